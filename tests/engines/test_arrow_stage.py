"""Python functions over Arrow batches: without pandas, which other functions of the session still have."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support import wire
from support.converters import ENVELOPE, TABLE, VALUE_TEXT, Lake, event, numbered_registry, row

from cdc_lake.bronze import batch as bronze_batch
from cdc_lake.decode.framing import GLUE_ZLIB
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.runs.context import lake_of
from cdc_lake.silver import batch as silver_batch
from cdc_lake.silver import commit, merge
from cdc_lake.silver import table as silver_table
from cdc_lake.silver.batch import Batch
from cdc_lake.silver.table import SilverTable
from cdc_lake.spark import arrow_stage
from cdc_lake.spark.arrow_stage import in_driver, map_in_arrow, map_in_driver
from cdc_lake.tables.contract import progress_of
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import BronzeProgress


def test_function_runs_without_pandas(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def modules(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            pyarrow.array([1])  # which imports pandas if it can
            names = ",".join(name for name in ("numpy", "pandas") if name in sys.modules)
            columns = [pyarrow.array([names] * batch.num_rows), batch.column("id")]
            yield pyarrow.RecordBatch.from_arrays(columns, ["modules", "id"])

    rows = spark.range(3)
    monkeypatch.setitem(sys.modules, "pandas", None)  # the driver's import of it would fail
    found = map_in_arrow(rows, modules, "modules string, id long")

    assert {(row["modules"], row["id"]) for row in found.collect()} == {("numpy", number) for number in range(3)}


def test_users_function_has_pandas_afterwards(spark: SparkSession) -> None:
    rows = spark.range(3).repartition(1)
    assert map_in_arrow(rows, iter, "id long").count() == 3

    doubled = rows.mapInPandas(lambda frames: (frame * 2 for frame in frames), "id long")

    assert sorted(row["id"] for row in doubled.collect()) == [0, 2, 4]


@pytest.mark.parametrize("number", [0, 3])
def test_the_driver_maps_rows_as_workers_do(spark: SparkSession, number: int) -> None:
    rows = spark.range(number).selectExpr(
        "id",
        "struct(id AS a, cast(id AS decimal(20, 3)) AS b) AS pair",
        "timestamp_millis(id) AS at",
        "cast(id AS binary) AS bytes",
        "array(cast(id AS string), null) AS texts",
        "if(id = 1, null, date_from_unix_date(cast(id AS int))) AS day",
    )

    found = map_in_driver(rows.coalesce(1), iter, rows.schema)

    assert found.collect() == rows.collect()
    assert found.schema == rows.schema


def test_the_driver_folds_small_batches_without_large_values(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded = []
    monkeypatch.setattr(arrow_stage, "DRIVER_BYTES", 2_000)
    monkeypatch.setattr(merge, "map_in_driver", lambda *given: folded.append("here") or map_in_driver(*given))
    monkeypatch.setattr(merge, "map_in_arrow", lambda *given: folded.append("there") or map_in_arrow(*given))
    lake = Lake(spark, tmp_path, numbered_registry())
    for lsn, (op, name) in enumerate((("c", "new"), ("u", "short"), ("u", "long" * 500)), 1):
        value = wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event(op, row(1, name), lsn)))
        lake.send_numbered(1, value, 2)
        assert lake.land().error is None
        assert lake.fold()[1]["name"] == name

    assert folded == ["here", "there"]


def test_large_replayed_values_are_not_folded_in_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded = []
    monkeypatch.setattr(merge, "map_in_driver", lambda *given: folded.append("here") or map_in_driver(*given))
    monkeypatch.setattr(merge, "map_in_arrow", lambda *given: folded.append("there") or map_in_arrow(*given))
    lake = Lake(spark, tmp_path, numbered_registry())
    sent = ((1, "c", "new", 2), (2, "u", "long" * 500, 3), (3, "r", "of another row", 2))
    for key, (lsn, op, name, value_id) in zip((1, 1, 2), sent, strict=True):
        lake.send_numbered(key, wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event(op, row(key, name), lsn))), value_id)
    assert lake.land(quarantine_unknown_ids=True).rows["quarantined"] == 1
    assert lake.fold()[1]["name"] == "new"

    lake.registry.put("contentId:3", VALUE_TEXT)
    assert replay_quarantined(lake.config, ["*"], spark, registry=lake.registry).exit_code == 0
    monkeypatch.setattr(arrow_stage, "DRIVER_BYTES", 2_000)

    assert lake.fold()[1]["name"] == "long" * 500
    assert folded == ["there"]


def test_driver_does_not_hold_rows_that_a_truncate_changes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    monkeypatch.setattr(commit, "in_driver", lambda rows: held.append(rows) or in_driver(rows))
    lake = Lake(spark, tmp_path, numbered_registry())
    lake.send_numbered(1, wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("c", row(1, "new"), 1))), 2)
    assert (lake.land().error, lake.fold()[1]["__deleted"], len(held)) == (None, False, 1)
    truncate = wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("t", None, 2)))
    lake.send((None, []), wire.framed("id4", "id:2", truncate, "value"))

    assert lake.land().rows["ok"] == 1
    assert (lake.fold()[1]["__deleted"], len(held)) == (True, 1)


@pytest.mark.parametrize(("frame", "is_held"), [("id4", True), (GLUE_ZLIB, False)])
def test_driver_does_not_hold_compressed_records(monkeypatch: pytest.MonkeyPatch, frame: str, is_held: bool) -> None:
    monkeypatch.setattr(silver_batch, "in_driver", lambda rows: rows)
    counts = SimpleNamespace(total=1, writers={"frames": [frame], "bytes": 10})
    batch = Batch(None, 1, 1, None, None, counts)

    batch.hold_if_few()

    assert batch.is_in_driver is is_held


def test_rows_and_progress_of_bronze_are_of_one_version(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, tmp_path, numbered_registry())

    def land(key: int) -> None:
        lake.send_numbered(key, wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("c", row(key, "new"), key))), 2)
        assert lake.land().error is None

    def progress_while_another_run_commits(bronze: DeltaLakeTable, version: int | None) -> BronzeProgress:
        progress = progress_of(bronze, version)
        land(2)
        return progress

    land(1)
    monkeypatch.setattr(silver_table, "progress_of", progress_while_another_run_commits)
    (target,) = lake_of(lake.config).silver(TABLE.name)
    table = SilverTable.open(lake_of(lake.config), target, spark, lake.config.table(TABLE.name))

    assert table.bronze_rows.count() == table.landed.total_rows == 1


def test_bronze_rows_are_the_same_if_the_driver_holds_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    monkeypatch.setattr(bronze_batch, "in_driver", lambda rows: held.append(rows) or in_driver(rows))
    found = []
    for name, most in (("driver", arrow_stage.DRIVER_BYTES), ("executors", 0)):
        monkeypatch.setattr(arrow_stage, "DRIVER_BYTES", most)
        lake = Lake(spark, tmp_path / name, numbered_registry())
        for lsn, (op, key) in enumerate((("c", 1), ("u", 1), ("r", 2)), 1):
            lake.send_numbered(key, wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event(op, row(key, "ä"), lsn))), 2)
        lake.send_numbered(2, wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("d", None, 4))), 2)
        lake.send_numbered(2, None, 2)
        lake.send_numbered(3, b"\xff", 2)
        lake.send_numbered(3, None, 2)
        lake.send((None, [("h", b"\x00")]), (b"{", [("h", None)]))
        assert lake.land().error is None
        found.append([one.asDict(recursive=True) for one in lake.bronze()])

    assert len(held) == 1
    assert found[0] == found[1]
    assert {one["status"] for one in found[0]} == {"ok", "quarantined"}


@pytest.mark.core
def test_bronze_decodes_once_if_all_records_are_ok(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = []
    monkeypatch.setattr(arrow_stage, "DRIVER_BYTES", -1)
    bronze_rows = bronze_batch._bronze_rows
    monkeypatch.setattr(
        bronze_batch, "_bronze_rows", lambda *given, are_ok: ways.append(are_ok) or bronze_rows(*given, are_ok=are_ok)
    )
    lake = Lake(spark, tmp_path, numbered_registry(), quality={"on_unusable_records": "warn"})

    def land_next(*records: bytes | None) -> list[tuple[bool, dict[str, int]]]:
        ways.clear()
        for record in records:
            lake.send_numbered(1, record, 2)
        report = lake.land()
        assert report.error is None
        return ways.copy(), {name: number for name, number in report.rows.items() if number}

    good = [wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("c", row(1, "a"), lsn))) for lsn in range(2)]
    assert land_next(*good) == ([True], {"read": 2, "ok": 2})
    assert land_next(good[0], b"\xff") == ([True, False], {"read": 2, "ok": 1, "quarantined": 1})
    assert land_next(*good) == ([False], {"read": 2, "ok": 2})
    deleted = wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("d", None, 4)))
    assert land_next(deleted, None) == ([False], {"read": 2, "ok": 2})
    assert land_next(*good) == ([True], {"read": 2, "ok": 2})
    rows = sorted(lake.bronze(), key=lambda one: one["offset"])
    assert [one["offset"] for one in rows] == list(range(10))
    assert [one["status"] for one in rows] == ["ok"] * 3 + ["quarantined"] + ["ok"] * 6
    assert rows[7]["tombstone_of"] == 6
    assert "bytes end in the middle" in rows[3]["error"]["message"]
