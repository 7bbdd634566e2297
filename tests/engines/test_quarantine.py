"""Quarantined records are listed, shown, replayed after the cause is fixed, or dropped."""

import json
import random
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from conformance.by_lake import found_in, silver_rows
from conformance.records import show
from conformance.rows import Found
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, START_MS, Record, Topic
from support.fakes import FakeBroker
from support.reference import table_settings
from support.setting_groups import patched
from test_silver_property import COLUMNS as LARGE_COLUMNS
from test_silver_property import Run, differences, succeed
from typer.testing import CliRunner

from cdc_lake.bronze.run import run_bronze
from cdc_lake.cli.app import app
from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, TableConfig, TableType
from cdc_lake.errors import ConfigError
from cdc_lake.lake.readers import SparkReader, bronze_state, silver_state
from cdc_lake.operations import quarantine as quarantine_module
from cdc_lake.operations import replay as replay_module
from cdc_lake.operations.quarantine import ALL, OffsetRange, QuarantineListing, Selection, list_quarantined
from cdc_lake.operations.replay import drop_quarantined, replay_quarantined
from cdc_lake.operations.status import status
from cdc_lake.runs.context import Run as BegunRun
from cdc_lake.runs.context import lake_of
from cdc_lake.runs.metrics import states
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.silver.run import run_silver
from cdc_lake.storage.files import LocalFiles

COLUMNS = {"n": OPTIONAL_INT, "body": OPTIONAL_STRING}
POSITIVE = {"name": "positive", "holds": "n > 0", "on_fail": "reject"}


class QuarantineLake:
    """A lake with one topic, some of whose records cannot be decoded yet."""

    def __init__(self, spark: SparkSession, root: Path, **settings: Any) -> None:
        self.spark, self.root = spark, root
        self.topic, self.broker = Topic(COLUMNS), FakeBroker()
        self.topic.registry.hide(self.topic.late_id)
        self._settings = patched({"quality": {"on_unusable_records": "warn"}}, settings)

    def config(self, **settings: Any) -> Config:
        return Config(lake=LakeConfig(root=str(self.root)), defaults=TableConfig(**patched(self._settings, settings)))

    def change(self, lsn: int, key: int, n: int | None, body: str | None = "x", op: str = "u", **more: Any) -> Record:
        return self.topic.change(op, key, {"n": n, "body": body}, lsn=lsn, ts_ms=START_MS + lsn, **more)

    def land(self, *records: Record) -> TableReport:
        for record in records:
            self.broker.append(record)
        report = run_bronze(
            self.config(), [self.topic.table], self.spark, source=self.broker, registry=self.topic.registry
        )
        succeed(report)
        return report.tables[0]

    def fold(self, **settings: Any) -> list[TableReport]:
        return run_silver(self.config(**settings), [self.topic.table], self.spark).tables

    def replay(self, selection: Selection = ALL) -> TableReport:
        report = replay_quarantined(
            self.config(), [self.topic.table], self.spark, selection=selection, registry=self.topic.registry
        )
        succeed(report)
        return report.tables[0]

    def drop(self, selection: Selection) -> TableReport:
        report = drop_quarantined(self.config(), [self.topic.table], "a test", self.spark, selection=selection)
        succeed(report)
        return report.tables[0]

    def rows(self, layer: str = "silver") -> dict[int, tuple[Any, ...]]:
        rows = silver_rows(self.root, self.topic.table, layer)
        return {row["id"]: (row["n"], row["body"], row["__op"], row["__unavailable"] or []) for row in rows}

    def waiting(self, **selection: Any) -> dict[str, str]:
        """By coordinates: the stage of each quarantined record."""
        found = list_quarantined(
            self.config(), ["*"], self.spark, selection=Selection(**selection), each=True, limit=100
        )
        return {one.place: one.stage for one in found.records}

    def statuses(self) -> dict[int, tuple[str, bool]]:
        rows = DeltaTable(f"{self.root}/bronze/{self.topic.table.replace('.', '/')}").to_pyarrow_table()
        return {row["offset"]: (row["status"], row["late"]) for row in rows.to_pylist()}


def at(*texts: str, **more: Any) -> Selection:
    return Selection(offsets=[OffsetRange.parse(text) for text in texts], **more)


@pytest.fixture
def here(spark: SparkSession, tmp_path: Path) -> QuarantineLake:
    return QuarantineLake(spark, tmp_path, quality={"expectations": (POSITIVE,)}, deletes={"mode": "hard"})


def test_selected_records_are_replayed_and_others_stay(here: QuarantineLake) -> None:
    """A schema is broken, later records of the same keys without large values land, then the schema is fixed."""
    topic = here.topic
    here.land(
        here.change(1, 1, 1, "one", op="c"),  # 0
        here.change(2, 2, 2, "two", op="c"),  # 1
        here.change(3, 1, 3, "one, late", late=True),  # 2
        here.change(4, 2, 4, "two, late", late=True),  # 3
        topic.change("d", 3, None, lsn=5, ts_ms=START_MS + 5, late=True),  # 4
        topic.tombstone(3),  # 5: quarantined with it
        replace(here.change(6, 9, 6), value=b"\0\0"),  # 6: can never be decoded
        here.change(7, 3, -7, "three", op="c"),  # 7: rejected
        here.change(8, 3, -90, "four"),  # 8: can never be accepted
        here.change(9, 1, 9, PLACEHOLDER),  # 9
        here.change(10, 2, 10, PLACEHOLDER),  # 10
        here.change(11, 4, -11, "four", op="c"),  # 11: rejected
        here.change(12, 4, 12, PLACEHOLDER),  # 12
    )
    here.fold()
    assert here.rows() == {1: (9, "one", "u", []), 2: (10, "two", "u", []), 4: (12, None, "u", ["body"])}

    topic.registry.show(topic.late_id)
    report = here.replay(at("0@2", "0@5-8", "0@11"))  # 5 is selected with 4
    (folded,) = here.fold(quality={"expectations": ({**POSITIVE, "holds": "n > -20"},)})

    assert report.rows == {"replayed": 6, "still_quarantined": 1}
    (why,) = report.warnings
    assert why.startswith(
        "1 records stay quarantined, such as 0@6: frame: unreadable_frame: value: 2 bytes are too few"
    )
    assert folded.rows.items() >= {"rejected": 1, "refolded": 2}.items()
    assert here.rows() == {
        1: (9, "one, late", "u", []),
        2: (10, "two", "u", []),
        3: (-7, "three", "c", []),
        4: (12, "four", "u", []),
    }
    assert here.waiting() == {"0@3": "lookup", "0@6": "frame", "0@8": "expectation"}
    assert here.statuses() == {n: ("ok", n in (2, 4, 5, 7, 8, 11)) for n in range(13)} | dict.fromkeys(
        (3, 6), ("quarantined", False)
    )


@pytest.mark.core
def test_quarantine_commands_from_list_to_drop_fit_80_columns(
    here: QuarantineLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = here.topic
    monkeypatch.setenv("CDC_LAKE__LAKE__ROOT", str(here.root))
    monkeypatch.setenv("CDC_LAKE__DEFAULTS__QUALITY__EXPECTATIONS", json.dumps([POSITIVE]))
    monkeypatch.setattr(replay_module, "checked_registry", lambda config: topic.registry)
    first, cut = here.change(1, 1, 1, op="c"), here.change(2, 2, 22, "secret words", headers=[("trace", b"\xff\x01")])
    here.land(
        first,  # 0
        replace(cut, value=cut.value[:-3]),  # 1
        here.change(3, 1, -3, "secret too"),  # 2: rejected
        here.change(4, 3, 4, late=True),  # 3: of an unknown schema
    )
    here.fold()

    def said(*words: str) -> str:
        ended = CliRunner().invoke(app, ["quarantine", *words])
        assert ended.exit_code == 0, (ended.output, ended.exception)
        assert max(map(len, ended.output.splitlines()), default=0) <= 80 or "--json" in words
        return ended.output

    table = ["--table", topic.table]
    listed = said("list", *table)
    assert all(words in listed for words in ("0@1", "decode", "0@2", "positive", "0@3", "lookup"))
    each = said("list", "--json", "--each", "--reason", "decode", "--since", "2020-01-01T00:00:00Z")
    (waits,) = json.loads(each)["records"]
    assert (waits["place"], waits["code"], "secret" in listed + each) == ("0@1", "undecodable", False)
    shown = said("show", *table, "--offset", "0:1-9", "--limit", "9")
    for words in (
        "header trace: ff01",
        "0000  00 00 00 00 02 ",
        "after.n: 22",
        "the bytes end in the middle of the record",
        "body: secret too",
        "no known schema could have written it",
    ):
        assert words in shown

    given = ["--reason", "decode", "--reason", "expectation", "--because", "tests"]
    dropped = json.loads(said("drop", *table, *given, "--json"))
    assert (dropped["tables"][0]["rows"], dropped["because"][-7:]) == ({"dropped": 2, "not_dropped": 0}, ": tests")
    gone = said("list", *table, "--dropped", "--each")
    assert ["0@1" in gone, "0@2" in gone, "tests" in gone, "0@3" in gone] == [True, True, True, False]
    assert [here.statuses()[offset][0] for offset in range(4)] == ["ok", "dropped", "dropped", "quarantined"]
    assert status(here.config(), ["*"], here.spark, source=here.broker).tables[0].quarantined == 1

    said("replay", *table, "--dropped", "--reason", "expectation")
    monkeypatch.delenv("CDC_LAKE__DEFAULTS__QUALITY__EXPECTATIONS")
    here.fold(quality={"expectations": ()})
    assert (here.rows()[1][:2], here.statuses()[2]) == ((-3, "secret too"), ("ok", True))
    for wrong in (["list", "--offset", "120"], ["list", "--since", "2026-11-23"]):
        assert isinstance(CliRunner().invoke(app, ["quarantine", *wrong]).exception, ConfigError)
    refused = CliRunner().invoke(app, ["quarantine", "drop", *table, "--because", " "])
    assert refused.exit_code == 2 and "--because: it is empty" in refused.stderr


@pytest.mark.core
def test_metrics_count_what_is_quarantined_now(here: QuarantineLake, caplog: pytest.LogCaptureFixture) -> None:
    first, cut = here.change(1, 1, 1, op="c"), here.change(2, 2, 22)
    here.land(first, replace(cut, value=(cut.value or b"")[:-3]), here.change(3, 1, -3))  # 1: broken, 2: rejected
    here.fold()
    assert (here.land().status, here.fold()[0].status) == ("unchanged", "unchanged")
    lake, name = lake_of(here.config()), here.topic.table

    def quarantined() -> list[int | None]:
        """Of bronze and silver, as the metrics have them; Spark counts the same."""
        runs = [Report(layer=layer, tables=[TableReport(table=name)]) for layer in ("bronze", "silver")]
        found = [states(BegunRun.begin(here.config(), run), LocalFiles())[name] for run in runs]
        reader = SparkReader(lake, here.spark)
        bronze, (target,) = reader.bronze(name), lake.silver(name)
        by_spark = [bronze_state(bronze), silver_state(reader, target, bronze)]
        assert [one.quarantined for one in found] == [one.quarantined for one in by_spark]
        return [one.quarantined for one in found]

    assert quarantined() == [1, 1]
    here.drop(Selection(reasons=["expectation"]))
    assert quarantined() == [1, 0]
    here.drop(ALL)
    assert quarantined() == [0, 0]
    command = f"run `cdc-lake quarantine list --table {name}`"
    broken, rejected = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert broken.startswith(f"{name}: records of batch 1 in quarantine: 1, first [0]@1: value: the bytes end")
    assert rejected == f"{name}: events are rejected, because they do not meet positive (1); {command}"
    assert broken.endswith(command)


def test_log_has_the_first_reason_of_any_stage(here: QuarantineLake, caplog: pytest.LogCaptureFixture) -> None:
    good, other, cut = (here.change(number, number, number, op="c") for number in (1, 2, 3))

    here.land(good, replace(other, value=b"\0\0\0\0\x63 of no schema"), replace(cut, value=(cut.value or b"")[:-3]))

    (warned,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "records of batch 1 in quarantine: 2, first [0]@1: value: schema id 99 is not in the registry" in warned


@pytest.mark.core
def test_empty_quarantine_is_listed_without_spark(here: QuarantineLake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a session is made")

    here.land(here.change(1, 1, 1, op="c"))
    here.fold()
    monkeypatch.setattr(quarantine_module, "build_session", refuse)
    assert list_quarantined(here.config(), ["*"]) == QuarantineListing()

    here.land(here.change(2, 1, -1))
    here.fold()
    with pytest.raises(AssertionError, match="a session is made"):
        list_quarantined(here.config(), ["*"])


@pytest.mark.deep
@pytest.mark.hudi
def test_rejects_are_replayed_in_every_table_after_a_crash(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows equal those without any rejection; events that are still unmet stay rejected."""
    kinds = (TABLE_TYPES["delta"], TABLE_TYPES["hudi-mor"])
    here = QuarantineLake(
        spark, tmp_path, storage=kinds, quality={"expectations": (POSITIVE,)}, deletes={"mode": "hard"}
    )
    here.land(
        here.change(1, 1, 1, "one", op="c"),
        here.change(2, 1, -2, "two"),  # 1: rejected
        here.change(3, 2, -99, "never", op="c"),  # 2: rejected
    )
    here.fold()
    here.land(here.change(4, 1, 4, PLACEHOLDER))
    here.fold()
    assert here.rows() == here.rows("silver_hudi_mor") == {1: (4, "one", "u", [])}
    lenient = {"quality": {"expectations": ({**POSITIVE, "holds": "n > -10"},)}}

    assert here.replay().rows == {"replayed": 2, "still_quarantined": 0}
    assert here.waiting() == {}  # they wait for silver
    with monkeypatch.context() as patch:
        patch.setenv("CDC_LAKE_FAILPOINT", "silver.after_side:raise")
        assert [report.status for report in here.fold(**lenient)] == ["failed", "failed"]
    assert here.rows() == {1: (4, "one", "u", [])}
    reports = here.fold(**lenient)

    assert [(one.status, one.rows["rejected"], one.rows["refolded"]) for one in reports] == [("ok", 1, 1)] * 2
    assert here.rows() == here.rows("silver_hudi_mor") == {1: (4, "two", "u", [])}
    assert here.waiting() == {"0@2": "expectation"}
    here.land(here.change(5, 1, 5, PLACEHOLDER, partition=1, timestamp_ms=START_MS + 1))  # refolded from bronze
    assert {one.rows["refolded"] for one in here.fold()} == {1}
    # It was sent after the fourth, which is stale now, and without the body.
    assert here.rows()[1] == here.rows("silver_hudi_mor")[1] == (5, "two", "u", [])


@pytest.mark.deep
def test_drop_keeps_snapshot_markers_and_drops_paired_tombstones(here: QuarantineLake) -> None:
    """The end of a snapshot; a delete whose tombstone comes in the next batch, and is replayed or dropped with it."""
    topic = here.topic
    here.land(
        here.change(1, 1, 1, op="r", snapshot="first"),
        here.change(2, 2, -1, op="r", snapshot="last"),  # 1: rejected
        here.change(3, 2, -1),  # 2: rejected
        topic.change("d", 1, None, lsn=4, ts_ms=START_MS + 4, late=True),  # 3
    )
    here.fold()

    report = here.drop(ALL)
    here.land(topic.tombstone(1))
    here.fold()

    assert report.rows == {"dropped": 2, "not_dropped": 1}
    assert report.warnings == ["1 records were not dropped: it begins or ends a snapshot, which silver needs"]
    assert (here.waiting(), here.statuses()[4][0]) == ({"0@1": "expectation"}, "dropped")
    assert here.rows() == {1: (1, "x", "r", [])}


class Portions(Run):
    """A random log with undecodable and rejected records that are replayed step by step."""

    ODD = ({"name": "not_odd", "holds": "n % 3 <> 0", "on_fail": "reject"},)

    def found(self, spark: SparkSession, root: Path, table_type: TableType) -> dict[Hashable, Found]:
        """Silver's rows after all records that can be replayed were replayed."""
        rng = random.Random(len(self.log.events))
        topic, broker = Topic(LARGE_COLUMNS, flat=self.is_flat), FakeBroker()
        broker.add_partitions(topic.table, 2)
        settings = {
            "storage": (TABLE_TYPES[table_type],),
            **table_settings(self.settings),
            "read": {"on_log_reset": "warn"},
        }
        strict, config = (
            Config(
                lake=LakeConfig(root=str(root)),
                defaults=TableConfig(**settings, quality={"expectations": those, "on_unusable_records": "warn"}),
            )
            for those in (self.ODD, ())
        )
        most = max(event.offset for event in self.log.events)

        def replay(settings: Config, selection: Selection) -> None:
            succeed(replay_quarantined(settings, [topic.table], spark, selection=selection, registry=topic.registry))

        def some() -> Selection:
            first, last = sorted(rng.randint(0, most) for _ in range(2))
            return Selection(offsets=[OffsetRange(0, rng.randrange(2), first, last)])

        for number, batch in enumerate(self.batches):
            for index in batch:
                broker.append(self._record(topic, index))
            succeed(run_bronze(strict, [topic.table], spark, source=broker, registry=topic.registry))
            succeed(run_silver(strict, [topic.table], spark))
            if number in self.due.values():
                show(topic.registry, str(number))
            if rng.random() < 0.5:
                replay(strict, some())
        for selection in (some(), some(), ALL):
            replay(config, selection)
            succeed(run_silver(config if selection is ALL else rng.choice((config, strict)), [topic.table], spark))
        replay(config, ALL)  # replayed records that are rejected again
        succeed(run_silver(config, [topic.table], spark))
        waiting = list_quarantined(config, ["*"], spark, each=True, limit=1000).records
        assert {one.stage for one in waiting} <= {"lookup", "pair"}  # records that can never be decoded
        return {row["id"]: found_in(row, LARGE_COLUMNS) for row in silver_rows(root, topic.table)}


@pytest.mark.deep
@pytest.mark.parametrize("table_type", get_args(TableType))
@pytest.mark.parametrize("seed", range(12))
def test_silver_after_replay_equals_silver_without_quarantine(
    spark: SparkSession, tmp_path: Path, table_type: TableType, seed: int
) -> None:
    run = Portions(seed, 12)

    found = run.found(spark, tmp_path, table_type)

    wrong = differences(run, found, run.expected())
    assert not wrong, f"seed {seed}, {table_type}: {wrong}"
