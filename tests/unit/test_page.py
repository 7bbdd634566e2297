"""The page of `cdc-lake report`: what it reads without Spark, and that no text of a lake becomes part of its code."""

import base64
import hashlib
from collections import Counter
from datetime import timedelta
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.page_lake import START, write_reports, write_tables
from typer.testing import CliRunner

from cdc_lake.cli.app import app
from cdc_lake.config import Config, GoldConfig, LakeConfig
from cdc_lake.errors import ConfigError
from cdc_lake.operations.page import series
from cdc_lake.operations.page.facts import PageFacts, read_facts
from cdc_lake.operations.page.render import render
from cdc_lake.operations.quarantine import ReasonGroup
from cdc_lake.operations.story import Story, StoryEvent
from cdc_lake.runs.report import Freshness, Report, TableReport

pytestmark = pytest.mark.core

ORDERS, CUSTOMERS = "shop.public.orders", "shop.public.customers"
HOSTILE = "</script></style>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}<!--"
MODEL = f"""-- name: revenue
-- description: "{HOSTILE.replace('"', "'")}"
-- keys: [id]
-- sources:
--   orders: {ORDERS}
SELECT id, sum(Price) AS revenue FROM orders GROUP BY id
"""


def config(root: Path) -> Config:
    return Config(lake=LakeConfig(root=str(root / "lake")), gold=GoldConfig(models=str(root / "gold")))


def run(layer: Any, minute: int, *tables: TableReport) -> Report:
    return Report(layer=layer, started_at=START + timedelta(minutes=minute), tables=list(tables))


def silver(table: str, *ages: tuple[float, int]) -> TableReport:
    return TableReport(table=table, status="ok", freshness=Freshness.of(ages))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake of two topics, a gold model, and the story of a key; all of its texts are hostile."""
    root = tmp_path_factory.mktemp("page")
    write_tables(root / "lake", ORDERS, quarantined=["cut off", HOSTILE, "cut off"], behind=7)
    write_tables(root / "lake", CUSTOMERS)
    write_reports(root / "lake", [ORDERS, CUSTOMERS], 120, error=HOSTILE)
    slowest = run("silver", 1005, silver(HOSTILE, (1_000_000, 1)))
    (root / "lake" / "_runs" / slowest.file_name).write_text(slowest.model_dump_json())
    (root / "gold").mkdir()
    (root / "gold" / "revenue.sql").write_text(MODEL)
    (root / "gold" / "broken.sql").write_text(f"-- name: {HOSTILE}\n")
    happened = StoryEvent(place="0@1", op=HOSTILE, source_ts_ms=1, why=HOSTILE, changes={HOSTILE: (HOSTILE, None)})
    story = Story(table=HOSTILE, key=HOSTILE, events=[happened], left_out=3)
    (root / "story.json").write_text(story.model_dump_json())
    return root


@pytest.fixture(scope="module")
def facts(root: Path) -> PageFacts:
    return read_facts(config(root), runs=100, stories=[root / "story.json"])


@pytest.fixture(scope="module")
def page(facts: PageFacts) -> str:
    return render(facts)


class Elements(HTMLParser):
    """The elements of a page, each with its attributes and its text, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.code: dict[str, str] = {}
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem:
            self.code[self.cdata_elem] = self.code.get(self.cdata_elem, "") + data
        else:
            self.text += data


def test_table_status_comes_from_logs_and_reports(facts: PageFacts) -> None:
    customers, orders = facts.topics
    bronze, silver = orders.tables

    assert (customers.name, orders.name, len(facts.reports)) == (CUSTOMERS, ORDERS, 100)
    assert (orders.rows, bronze.commit, bronze.quarantined, silver.commit) == (110, 2, 3, 1)
    assert (silver.behind_records, customers.tables[1].behind_records) == (7, 0)
    newest = {report.layer: report.tables[0] for report in facts.reports}
    newest_bronze, newest_silver = newest["bronze"], newest["silver"]
    assert bronze.behind_records == newest_bronze.lag_after["0"]
    assert silver.freshness == newest_silver.freshness is not None
    assert silver.last_run is not None
    assert silver.last_run.started_at == max(one.started_at for one in facts.reports if one.layer == "silver")


def test_quarantined_records_are_grouped_by_reason(facts: PageFacts) -> None:
    customers, orders = facts.topics
    first = START + timedelta(seconds=100)
    second = first + timedelta(seconds=1)
    group = partial(ReasonGroup, table=ORDERS, stage="decode", code="body")

    assert customers.reasons == []
    assert orders.reasons == [
        group(reason="cut off", records=2, first=first, last=first + timedelta(seconds=2), example="0@100"),
        group(reason=HOSTILE, records=1, first=second, last=second, example="0@101"),
    ]


def test_lineage_has_types_keys_and_models_of_columns(facts: PageFacts) -> None:
    columns = {column.name: column for column in facts.topics[1].columns or ()}

    assert [*columns][:3] == ["id", "name", "price"]
    assert (columns["id"].type, columns["id"].source, columns["id"].note) == ("bigint", "id", "key")
    assert (columns["price"].models, columns["name"].models) == (["revenue"], [])
    assert columns["__deleted"].source == ""
    assert facts.topics[1].models == ["revenue"]


def test_renamed_column_keeps_the_name_of_its_source(root: Path) -> None:
    renaming = {"tables": {ORDERS: {"schema": {"rename": {"cost": "price"}}}}}
    settings = Config.model_validate(config(root).model_dump(include={"lake", "gold"}) | renaming)

    columns = read_facts(settings, runs=1).topics[1].columns

    assert {column.name: column.source for column in columns or ()}["price"] == "cost"


def test_file_that_is_not_a_report_is_skipped(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_reports(tmp_path / "lake", [ORDERS], 2)
    (tmp_path / "lake" / "_runs" / "20990101T000000000000Z-bronze-x.json").write_text('{"layer": "platinum"}')

    facts = read_facts(config(tmp_path), runs=10)

    assert [report.layer for report in facts.reports] == ["bronze", "silver"]
    assert "it is not a report of this version, and was skipped" in caplog.text


def test_table_that_needs_spark_is_named(root: Path, tmp_path: Path) -> None:
    write_tables(tmp_path / "lake", ORDERS)
    log = tmp_path / "lake" / "bronze" / ORDERS.replace(".", "/") / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace("userMetadata", "otherMetadata"))

    facts = read_facts(config(tmp_path), runs=10)

    assert [status.error for status in facts.topics[0].tables] == [
        "only Spark can read this table; see `cdc-lake status`"
    ] * 2
    assert "<code>cdc-lake status</code>" in render(facts)


@pytest.mark.parametrize("saved", ["{}", "no JSON", None])
def test_file_that_is_not_a_story_is_refused(root: Path, tmp_path: Path, saved: str | None) -> None:
    file = tmp_path / "story.json"
    if saved is not None:
        file.write_text(saved)

    with pytest.raises(ConfigError, match=r"story\.json: it is not a story; write it with `cdc-lake story … --json`"):
        read_facts(config(root), runs=1, stories=[file])


def test_lake_without_tables_and_reports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no table and no report"):
        read_facts(config(tmp_path), runs=1)


def test_freshness_has_the_median_and_the_slowest_table() -> None:
    reports = [
        run("silver", 0, silver("a", (2, 1)), silver("b", (4, 1)), silver("c", (60, 1))),
        run("silver", 10, silver("a", (3, 1))),
    ]

    points = series.freshness(reports, series.Steps(reports))

    assert [(point.median, point.slowest) for point in points] == [(4, 60), (3, 3)]


def test_lag_of_a_topic_counts_until_its_next_run() -> None:
    def bronze(minute: int, **lags: int) -> Report:
        return run("bronze", minute, *(TableReport(table=name, lag_after={"0": lag}) for name, lag in lags.items()))

    reports = [bronze(0, a=5, b=1), bronze(10, a=2), run("silver", 20), bronze(30, b=0)]

    assert [offsets for _, offsets in series.lag(reports, series.Steps(reports))] == [6, 3, 3, 2]


def test_ages_of_all_runs_add_up_to_their_changes() -> None:
    reports = [run("silver", 0, silver("a", (0.5, 3), (7, 4))), run("silver", 1, silver("b", (7, 1), (100_000, 2)))]

    ranges = {one.label: one.changes for one in series.ages(reports) if one.changes}

    assert ranges == {"≤ 1 s": 3, "≤ 10 s": 5, "> 24 h": 2}
    assert sum(one.share for one in series.ages(reports)) == pytest.approx(1)


@pytest.mark.parametrize(("merged", "landed_before", "not_merged"), [(9, 0, 1), (10, 0, 0), (13, 3, 0)])
def test_columns_of_the_flow_continue_each_other(merged: int, landed_before: int, not_merged: int) -> None:
    landed = TableReport(table="a", rows={"read": 12, "ok": 10, "quarantined": 2})
    folded = TableReport(table="a", rows={"events": merged, "applied": merged - 1, "superseded": 1})
    other = TableReport(table="a@hudi_cow", rows=folded.rows)

    refreshed = TableReport(table="counts", rows={"groups": 3, "written": 7, "removed": 2})
    runs = [
        run("bronze", 0, landed),
        run("silver", 1, folded, other),
        run("gold", 2, refreshed),
        run("gold", 3, refreshed),
    ]

    flow = series.flow(runs)

    parts = {one.name: one.records for one in (*flow.landed, *flow.merged)}
    assert (parts.get("landed_before", 0), parts.get("not_merged", 0)) == (landed_before, not_merged)
    assert sum(one.records for one in flow.read) == sum(one.records for one in flow.landed) - landed_before
    assert parts["ok"] + landed_before == sum(one.records for one in flow.merged)
    assert flow.computed == [("written", 14), ("removed", 4)]


def test_hostile_texts_add_no_element_and_no_code(page: str) -> None:
    elements = Elements(page)
    tags = Counter(tag for tag, _ in elements.all)
    files = Path(series.__file__).parent

    assert HOSTILE in elements.text
    assert tags["img"] == 0
    assert (tags["script"], tags["style"]) == (1, 1)
    assert elements.code["script"].strip() == (files / "page.js").read_text().strip()
    assert elements.code["style"].strip() == (files / "page.css").read_text().strip()
    assert not [name for _, attributes in elements.all for name in attributes if name.startswith("on")]


def test_page_loads_nothing_and_runs_only_its_script(page: str) -> None:
    elements = Elements(page)
    digest = base64.b64encode(hashlib.sha256(elements.code["script"].encode()).digest()).decode()
    (policy,) = (its["content"] for _, its in elements.all if its.get("http-equiv") == "Content-Security-Policy")
    links = [its[name] for _, its in elements.all for name in ("href", "src", "xlink:href") if name in its]

    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert links
    assert [link for link in links if not str(link).startswith("#")] == []
    assert "url(" not in elements.code["style"]


def test_links_lead_to_unique_ids(page: str) -> None:
    elements = Elements(page)
    ids = Counter(its["id"] for _, its in elements.all if "id" in its)

    assert [name for name, number in ids.items() if number > 1] == []
    assert {str(its["href"])[1:] for tag, its in elements.all if tag == "a"} <= ids.keys()


def test_charts_have_a_text_for_screen_readers(page: str) -> None:
    charts = [its for tag, its in Elements(page).all if tag == "svg"]

    assert len(charts) == 12  # six, each for wide and for narrow screens
    assert {its["role"] for its in charts} == {"img"}
    assert all(its["aria-label"] for its in charts)
    assert sum("written to gold" in str(its["aria-label"]) for its in charts) == 2


def test_page_of_many_tables_is_small(tmp_path: Path) -> None:
    topics = [f"shop.public.table_{number}" for number in range(40)]
    write_reports(tmp_path / "lake", topics, 120)
    facts = read_facts(config(tmp_path), runs=1000)
    many = [report.model_copy(update={"tables": report.tables[:1]}) for report in facts.reports for _ in range(8)]

    page = render(facts._replace(reports=[*many, *facts.reports]))

    assert len(many) + len(facts.reports) > 1000
    assert len(page.encode()) < 3_000_000


def test_report_prints_the_path_and_the_size(root: Path, tmp_path: Path) -> None:
    (tmp_path / "lake.yml").write_text(f"lake: {{root: {root}/lake}}\ngold: {{models: {root}/gold}}\n")
    arguments = ["report", "--config", str(tmp_path / "lake.yml"), "--output", str(tmp_path / "page.html")]

    ended = CliRunner().invoke(app, [*arguments, "--runs", "4", "--story", str(root / "story.json")])

    assert (ended.exit_code, ended.exception) == (0, None)
    page = tmp_path / "page.html"
    assert ended.stdout == f"{page}: {page.stat().st_size / 1000:,.0f} kB\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_failed_runs_are_listed_with_their_errors(page: str, facts: PageFacts) -> None:
    errors = [done.error for report in facts.reports for done in report.tables if done.error]
    text = Elements(page).text

    assert errors
    assert [error.message for error in errors if f"{error.code} {error.message.replace('`', '')}" not in text] == []
