"""The OpenLineage events of a run, read back with the classes of OpenLineage's own client.

The client's package has no JSON schema. Its classes check times and run ids, and reject unknown and missing fields.
"""

import json
import sys
import tarfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import event_v2, facet_v2
from support.receiver import Receiver, receiving

from cdc_lake.config import Config, FilesConfig, GoldConfig, KafkaConfig, LakeConfig, RunConfig
from cdc_lake.errors import CdcLakeError, InstallationError
from cdc_lake.runs.context import Run
from cdc_lake.runs.lineage import check_lineage_client, send_lineage
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.spark.jars import EXTRACTION_FILTER
from cdc_lake.storage.files import LocalFiles

pytestmark = pytest.mark.core

LAKE = Path(__file__).parents[1] / "fixtures" / "lakes" / "2026-11-28.tar.gz"
TABLE = "shop.public.stock_hard"
STARTED, ENDED = datetime(2026, 11, 28, 12, 0, tzinfo=UTC), datetime(2026, 11, 28, 12, 5, tzinfo=UTC)
FACETS = {
    "schema": facet_v2.schema_dataset.SchemaDatasetFacet,
    "version": facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet,
    "tags": facet_v2.tags_run.TagsRunFacet,
    "errorMessage": facet_v2.error_message_run.ErrorMessageRunFacet,
}
MODEL = """\
-- name: stock
-- keys: [id]
-- sources: {stock: shop.public.stock_hard, codes: {file: codes.csv, columns: {code: string}}}
-- topic: {topic: gold.stock}
SELECT 1 AS id
"""


def checked(kind: Any, content: Mapping[str, Any]) -> Any:
    """An object of the client from its JSON; the client computes the URL of the schema."""
    url = next((name for name in ("schemaURL", "_schemaURL") if name in content), None)
    made = kind(**{name.lstrip("_"): value for name, value in content.items() if name != url})
    assert url is None or getattr(made, url) == content[url]
    return made


def facets(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: checked(FACETS[name], facet) for name, facet in content.get("facets", {}).items()}


def event(line: str) -> event_v2.RunEvent:
    """An event of the client, from its JSON."""
    content = json.loads(line)
    content["eventType"] = event_v2.RunState(content["eventType"])
    run = content["run"]
    content["run"] = event_v2.Run(run["runId"], facets=facets(run))
    content["job"] = event_v2.Job(content["job"]["namespace"], content["job"]["name"])
    for name, kind in (("inputs", event_v2.InputDataset), ("outputs", event_v2.OutputDataset)):
        content[name] = [kind(one["namespace"], one["name"], facets=facets(one)) for one in content[name]]
    made: event_v2.RunEvent = checked(event_v2.RunEvent, content)
    return made


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that a run has written."""
    root = tmp_path_factory.mktemp("lineage") / "lake"
    with tarfile.open(LAKE) as packed:
        packed.extraction_filter = EXTRACTION_FILTER
        packed.extractall(root)
    return root


def send(root: str, to: str, layer: Any, *tables: TableReport, **settings: Any) -> None:
    config = Config(
        lake=LakeConfig(root=root),
        kafka=KafkaConfig(bootstrap_servers="one:9092,two:9092"),
        run=RunConfig(openlineage=to),
        **settings,
    )
    report = Report(layer=layer, started_at=STARTED, ended_at=ENDED, tables=list(tables))
    send_lineage(Run.begin(config, report), LocalFiles())


def sent(root: Path | str, folder: Path, layer: str, *tables: TableReport, **settings: Any) -> list[event_v2.RunEvent]:
    """The events of a run, which were written to a file."""
    file = folder / "events.jsonl"
    send(str(root), str(file), layer, *tables, **settings)
    return [event(line) for line in file.read_text(encoding="utf-8").splitlines()]


def done(table: str = TABLE, **more: Any) -> TableReport:
    return TableReport(table=table, status="ok", batches=1, **more)


def names(datasets: Any) -> list[tuple[str, str]]:
    return [(dataset.namespace, dataset.name) for dataset in datasets]


def test_changed_table_starts_and_completes(lake: Path, tmp_path: Path) -> None:
    unchanged = TableReport(table="shop.public.parts_hard")

    start, complete = sent(lake, tmp_path, "silver", done(version_after=7), unchanged)

    assert (start.eventType, complete.eventType) == (event_v2.RunState.START, event_v2.RunState.COMPLETE)
    assert (start.eventTime, complete.eventTime) == (STARTED.isoformat(), ENDED.isoformat())
    assert start.run.runId == complete.run.runId
    assert (complete.job.namespace, complete.job.name) == ("cdc_lake", f"silver.{TABLE}")
    assert names(complete.inputs) == [("file", f"{lake}/bronze/shop/public/stock_hard")]
    (output,) = complete.outputs
    assert (output.namespace, output.name) == ("file", f"{lake}/silver/shop/public/stock_hard")
    columns = {field["name"]: field["type"] for field in output.facets["schema"].fields}
    assert (columns["__deleted"], columns["__source_ts_ms"]) == ("boolean", "bigint")
    assert output.facets["version"].datasetVersion == "7"
    assert complete.producer.startswith("pkg:pypi/cdc-lake@")


def test_failed_table_has_its_error(lake: Path, tmp_path: Path) -> None:
    failed = TableReport(table=TABLE)
    failed.fail(CdcLakeError(TABLE, "broke", "repair it"))

    start, fail = sent(lake, tmp_path, "silver", failed)

    assert (start.eventType, fail.eventType) == (event_v2.RunState.START, event_v2.RunState.FAIL)
    assert "errorMessage" not in start.run.facets
    assert "broke; repair it" in fail.run.facets["errorMessage"].message


def test_bronze_reads_a_topic_or_files(lake: Path, tmp_path: Path) -> None:
    for files, expected in (
        (FilesConfig(), ("kafka://one:9092", TABLE)),
        (FilesConfig(root="s3a://landing/topics"), ("s3://landing", f"topics/{TABLE}")),
    ):
        *_, complete = sent(lake, tmp_path, "bronze", done(), files=files)
        assert names(complete.inputs) == [expected]


def test_gold_reads_the_sources_of_its_model(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "stock.sql").write_text(MODEL, encoding="utf-8")
    (tmp_path / "codes.csv").write_text("code\nA\n", encoding="utf-8")

    *_, complete = sent(lake, tmp_path, "gold", done("stock"), gold=GoldConfig(models=str(tmp_path)))

    assert names(complete.inputs) == [
        ("file", f"{lake}/silver/shop/public/stock_hard"),
        ("file", f"{tmp_path}/codes.csv"),
    ]
    assert names(complete.outputs) == [("file", f"{lake}/gold/stock"), ("kafka://one:9092", "gold.stock")]


@pytest.mark.parametrize(
    ("root", "namespace", "name"),
    [
        ("s3a://bucket/lake", "s3://bucket", "lake/silver_hudi_mor/shop/public/stock_hard"),
        ("hdfs://host:8020/lake", "hdfs://host:8020", "/lake/silver_hudi_mor/shop/public/stock_hard"),
    ],
)
def test_datasets_are_named_as_openlineage_specifies(root: str, namespace: str, name: str, tmp_path: Path) -> None:
    *_, complete = sent(root, tmp_path, "rebuild", done(f"{TABLE}@hudi_mor"))

    assert names(complete.outputs) == [(namespace, name)]


def test_no_events_if_nothing_changed(lake: Path, tmp_path: Path) -> None:
    send(str(lake), str(tmp_path / "events"), "silver", TableReport(table=TABLE))
    send(str(lake), str(tmp_path / "events"), "maintain", done())

    assert not (tmp_path / "events").exists()


@pytest.fixture
def backend() -> Iterator[Receiver]:
    with receiving() as server:
        server.status = 201
        yield server


@pytest.mark.parametrize("is_in_a_file", [False, True])
def test_events_are_posted_to_a_url(backend: Receiver, lake: Path, tmp_path: Path, is_in_a_file: bool) -> None:
    to = url = backend.url
    if is_in_a_file:
        to = str(tmp_path / "openlineage.yml")
        auth = {"type": "api_key", "apiKey": "of-a-test"}
        Path(to).write_text(json.dumps({"transport": {"type": "http", "url": url, "auth": auth}}), encoding="utf-8")

    send(str(lake), to, "silver", done())

    login = "Bearer of-a-test" if is_in_a_file else None
    found = [(posted.path, posted.headers.get("Authorization")) for posted in backend.posted]
    assert found == [("/api/v1/lineage", login)] * 2
    assert event(backend.posted[1].body.decode()).eventType == event_v2.RunState.COMPLETE


def test_undeliverable_lineage_only_logs_a_warning(
    backend: Receiver, lake: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend.status = 500
    targets = [backend.url, str(tmp_path / "missing" / "events"), f"{tmp_path}/none.yml"]

    for to in targets:
        send(str(lake), to, "silver", done())

    warnings = [record.getMessage() for record in caplog.records if record.name == "cdc_lake.runs.lineage"]
    prefix = "run.openlineage: {}: the lineage of this run was not delivered: "
    assert [warning.startswith(prefix.format(to)) for warning, to in zip(warnings, targets, strict=True)] == [True] * 3
    assert len(backend.posted) == 2, "one event, sent twice"


def test_missing_client_fails_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client", None)

    with pytest.raises(
        InstallationError, match=r"openlineage\.client is not installed; run `pip .*cdc-lake\[lineage\]"
    ):
        check_lineage_client("events.jsonl")
    check_lineage_client(None)
