"""Maintenance: the same rows in fewer files, and later batches are merged correctly."""

from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support.events import OPTIONAL_STRING, START_MS, Record, Topic
from support.lake import MOVABLE_TYPES, Lake

from cdc_lake.config import Config, LakeConfig, StorageConfig, TableConfig
from cdc_lake.errors import UnknownTableError
from cdc_lake.lake.side import SideTable
from cdc_lake.operations.maintain import Layer, run_maintain
from cdc_lake.runs.context import lake_of
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.run import run_silver
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.delta_write import USER_METADATA, session_settings
from cdc_lake.tables.hudi import HudiTable

AT_ONCE = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
NEVER = {"hoodie.compact.inline": "false"}


def config(root: Path, *silver: StorageConfig) -> Config:
    return Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(storage=silver, deletes={"mode": "hard"}))


def maintained(spark: SparkSession, settings: Config, layer: Layer = "silver") -> dict[str, TableReport]:
    report = run_maintain(settings, ["*"], spark, layer=layer)
    assert report.exit_code == 0, report
    return {table_report.table: table_report for table_report in report.tables}


@pytest.fixture
def topic() -> Topic:
    return Topic({"text": OPTIONAL_STRING})


def change(topic: Topic, lsn: int, op: str, key: int, text: str | None = None) -> Record:
    return topic.change(op, key, {"text": text}, lsn=lsn, ts_ms=START_MS + lsn)


def held(rows: list[dict[str, Any]]) -> dict[int, str]:
    return {row["id"]: row["text"] for row in rows}


@pytest.mark.hudi
def test_maintain_keeps_rows_compacts_logs_and_fold_continues(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    """Hudi's compaction in a separate job: `hoodie.compact.inline: false`, and `maintain`."""
    lake = Lake(spark, tmp_path, topic)
    properties: dict[str, dict[str, str]] = {"delta": AT_ONCE, "hudi-cow": {}, "hudi-mor": NEVER}
    settings = config(
        tmp_path,
        *(storage.model_copy(update={"properties": properties[name]}) for name, storage in MOVABLE_TYPES.items()),
    )
    targets = lake_of(settings).silver(topic.table)

    def fold(*records: Record) -> None:
        lake.land(records)
        assert run_silver(settings, [topic.table], spark).exit_code == 0

    def optimized() -> dict[int, str]:
        """The rows of a table with logs, without its logs."""
        table = targets[-1].open(spark)
        assert isinstance(table, HudiTable)
        return {row["id"]: row["text"] for row in table.read_optimized().collect()}

    spark.conf.set("spark.sql.files.maxRecordsPerFile", 2)  # in Delta several files, to compact
    try:
        fold(*(change(topic, number, "c", number, "first") for number in range(1, 6)))
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    fold(change(topic, 6, "u", 1, "second"), change(topic, 7, "d", 2))
    expected = {1: "second", 3: "first", 4: "first", 5: "first"}
    progress = [target.open(spark).progress() for target in targets]
    assert optimized()[1] == "first"

    reports = list(maintained(spark, settings).values())

    assert optimized() == expected
    assert [held(table_rows(target.path)) for target in targets] == [expected] * 3
    assert [target.open(spark).progress() for target in targets] == progress
    assert [(one.status, one.rows.get("files_written")) for one in reports] == [
        ("ok", 1),
        ("unchanged", None),
        ("ok", 1),
    ]
    assert reports[0].rows["bytes_removed"] > 0
    assert {one.status for one in maintained(spark, settings).values()} == {"unchanged"}

    fold(
        change(topic, 3, "u", 2, "sent again, behind its delete"),
        change(topic, 9, "u", 3, "third"),
        change(topic, 10, "c", 6, "first"),
    )
    expected |= {3: "third", 6: "first"}
    assert [held(table_rows(target.path)) for target in targets] == [expected] * 3


@pytest.mark.deep
def test_bronze_folds_on_after_compaction(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic)
    settings = config(tmp_path, StorageConfig())
    for number in range(1, 5):
        lake.land([change(topic, number, "c", number, "landed")])
        if number == 2:
            lake.fold()

    report = maintained(spark, settings, "bronze")[topic.table]
    lake.land([change(topic, 5, "u", 4, "landed later")])
    folded = lake.fold()

    assert report.rows["files_written"] == 1
    assert folded.rows["applied"] == 2
    assert held(table_rows(lake.silver.path)) == dict.fromkeys(range(1, 4), "landed") | {4: "landed later"}


def test_side_vacuum_keeps_the_version_that_silver_pins(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic, deletes={"mode": "hard"})
    lake.take([change(topic, 1, "c", 1), change(topic, 2, "c", 2), change(topic, 3, "d", 1)])
    progress = lake.silver.progress()
    assert progress is not None
    path = f"{tmp_path}/side/{topic.table.replace('.', '/')}"
    side = SideTable(spark, path)
    with session_settings(spark, {f"spark.databricks.delta.{USER_METADATA}": "altered"}):
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = '0 seconds')")

    assert progress.side is not None
    assert side.vacuum(progress.side) == 0  # that ALTER is a version newer than silver's
    pinned = progress.side.model_copy(update={"version": DeltaLakeTable(spark, path).version(), "nonce": "altered"})
    before = side.read(pinned).collect()
    spark.sql(f"DELETE FROM delta.`{path}`").collect()
    assert side.vacuum(pinned) == 0
    assert side.read(pinned).collect() == before


def test_locked_table_is_skipped_and_unknown_table_is_named(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic)
    lake.land([change(topic, 1, "c", 1)])
    lease = tmp_path / "_leases" / "bronze" / topic.table.replace(".", "/") / f"{99:012}.json"
    lease.parent.mkdir(parents=True, exist_ok=True)
    lease.write_text('{"run_id": "another", "host": "elsewhere", "pid": 1, "since_ms": 0, "until_ms": 99999999999999}')
    before = lake.bronze.version()

    report = run_maintain(config(tmp_path, StorageConfig()), ["*"], spark, layer="bronze")

    assert (report.exit_code, lake.bronze.version()) == (40, before)
    with pytest.raises(UnknownTableError, match=r"there is no table in .*gold yet; run the gold job"):
        run_maintain(config(tmp_path, StorageConfig()), ["revenue"], spark, layer="gold")
