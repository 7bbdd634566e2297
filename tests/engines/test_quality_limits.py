"""What a run does about records that cannot be decoded: `quality.on_error`, `quality.max_quarantined`, unknown ids."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support import wire
from support.converters import ENVELOPE, TABLE, AnyIdRegistry, Lake, event, numbered_registry, row

from cdc_lake.bronze import batch as bronze_batch
from cdc_lake.config import TableConfig
from cdc_lake.errors import QualityGateError
from cdc_lake.runs.report import TableReport


def send(lake: Lake, schema_id: int) -> None:
    created = wire.filled(ENVELOPE, event("c", row(1, "one"), 1))
    lake.send_numbered(1, wire.avro(wire.avro_schema(ENVELOPE), created), schema_id)


def test_on_error_stop_exits_30_without_a_commit(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, numbered_registry(), quality={"on_error": "stop"})
    send(lake, 2)
    send(lake, 9)

    report = lake.land()

    assert report.error is not None
    assert report.error.exit_code == 30
    assert report.error.message.startswith(
        "pagila.public.thing[0]@1: value: schema id 9 is not in the registry (1 such"
    )
    assert "the batch was not committed (`quality.on_error: stop`)" in report.error.message
    assert not lake.table("bronze").exists()


@pytest.mark.core
def test_max_quarantined_exits_30_after_commit(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, numbered_registry(), quality={"max_quarantined": "0"})
    send(lake, 2)
    send(lake, 9)

    report = lake.land()

    assert report.error is not None and report.error.exit_code == 30
    assert len(lake.bronze()) == 2


@pytest.mark.parametrize(("limit", "fails"), [("0", True), ("1", False), ("49%", True), ("50%", False)])
def test_max_quarantined_is_a_number_or_a_share(limit: str, fails: bool) -> None:
    report = TableReport(table=TABLE.name, status="ok", rows={"read": 2, "ok": 1, "quarantined": 1})

    with pytest.raises(QualityGateError) if fails else nullcontext():
        bronze_batch._check_quarantine_limit(report, TableConfig(quality={"max_quarantined": limit}))


def test_unknown_ids_exit_10_unless_quarantine_unknown_ids(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, AnyIdRegistry(), quality={"on_unusable_records": "warn"})
    send(lake, 9)

    report = lake.land()
    told = lake.land(quarantine_unknown_ids=True)

    assert report.error is not None
    assert (report.error.exit_code, told.error) == (10, None)
    assert "--quarantine-unknown-ids" in report.error.message
    assert told.rows == {"read": 1, "ok": 0, "quarantined": 1, "control": 0}
