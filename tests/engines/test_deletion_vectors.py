"""Deletion vectors: merges mark changed rows in their files, and delta-rs sees the same rows as cdc_lake."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from conformance.by_lake import table_rows
from deltalake import DeltaTable
from pydantic import ValidationError
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, START_MS, Record, Topic
from support.lake import Lake, step

from cdc_lake.config import DeletionVectors, StorageConfig
from cdc_lake.tables import delta_write
from cdc_lake.tables.contract import Changes
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.delta_write import DELETION_VECTORS
from cdc_lake.tables.progress import SilverProgress

ROWS = 40
NOTE = f"deletion vectors are on now: the last merge copied {ROWS - 1} rows to change 1"


@pytest.fixture
def topic() -> Topic:
    return Topic({"n": OPTIONAL_INT})


def change(topic: Topic, lsn: int, op: str, key: int, n: int | None = None) -> Record:
    return topic.change(op, key, {"n": n}, lsn=lsn, ts_ms=START_MS + lsn)


def inserts(topic: Topic) -> list[Record]:
    return [change(topic, key, "c", key, key) for key in range(1, ROWS + 1)]


def lake_with(
    spark: SparkSession, root: Path, topic: Topic, deletion_vectors: DeletionVectors, **settings: Any
) -> Lake:
    return Lake(spark, root, topic, storage=(StorageConfig(deletion_vectors=deletion_vectors),), **settings)


def rows(lake: Lake) -> dict[int, int]:
    """Silver's n by id."""
    return {row["id"]: row["n"] for row in table_rows(lake.silver.path)}


def deleted_rows(table: DeltaLakeTable) -> list[int]:
    """How many rows each live file's vector deletes, by Delta's log."""
    live: dict[tuple[str, str], int] = {}
    for file in sorted((Path(table.path) / "_delta_log").glob("*.json")):
        for action in map(json.loads, file.read_text().splitlines()):
            for kind in action.keys() & {"add", "remove"}:
                vector = action[kind].get("deletionVector") or {"pathOrInlineDv": "", "cardinality": 0}
                name = action[kind]["path"], vector["pathOrInlineDv"]
                if kind == "add":
                    live[name] = vector["cardinality"]
                else:
                    live.pop(name, None)
    return sorted(filter(None, live.values()))


def test_merge_marks_changed_rows_until_files_are_rewritten(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = lake_with(spark, tmp_path, topic, "on", deletes={"mode": "hard"})
    lake.land(inserts(topic))
    lake.fold()
    lake.land([change(topic, 41, "u", 3, -3), change(topic, 42, "d", 5), change(topic, 43, "u", 7, -7)])
    expected = {key: -key if key in (3, 7) else key for key in range(1, ROWS + 1) if key != 5}

    report = lake.fold()

    assert (rows(lake), report.warnings) == (expected, [])
    assert {row["id"]: row["n"] for row in lake.silver.read().collect()} == expected
    assert deleted_rows(lake.silver) == [3]

    version = lake.silver.version()
    lake.silver.maintain()

    assert (rows(lake), deleted_rows(lake.silver)) == (expected, [])
    assert lake.silver.read(as_of=version).count() == len(expected)
    for value, key, marked in (("on", 8, [1]), ("off", 9, [])):
        broker = lake.broker
        lake = lake_with(spark, tmp_path, topic, cast(DeletionVectors, value), deletes={"mode": "hard"})
        lake.broker = broker
        lake.land([change(topic, 36 + key, "u", key, -key)])
        lake.fold()
        assert deleted_rows(lake.silver) == marked
    assert rows(lake) == expected | {8: -8, 9: -9}
    assert DeltaTable(lake.silver.path).metadata().configuration[DELETION_VECTORS] == "false"


def test_auto_begins_after_a_merge_that_copied_too_much(
    spark: SparkSession, tmp_path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_write, "_COPIED_BYTES", 1)
    lake = lake_with(spark, tmp_path, topic, "auto")
    batches = [inserts(topic), *([change(topic, ROWS + n, "u", n, -n)] for n in range(1, 4))]
    found = []
    for batch in batches:
        lake.land(batch)
        found.append((lake.fold().warnings, deleted_rows(lake.silver)))

    assert found == [([], []), ([], []), ([NOTE], [1]), ([], [2])]
    assert rows(lake) == {key: -key if key < 4 else key for key in range(1, ROWS + 1)}


def test_auto_also_reports_the_change_before_an_append(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_write, "_COPIED_BYTES", 1)
    table = DeltaLakeTable[SilverProgress](spark, str(tmp_path / "table"), deletion_vectors="auto")

    def notes(commit: int, *ids: int, are_inserts: bool = False) -> list[str]:
        rows = [(number, commit, [], False) for number in ids]
        changes = spark.createDataFrame(rows, "id int, n int, __keep array<string>, __delete boolean")
        return list(table.merge(Changes(changes.coalesce(1), ["id"], are_inserts), step(commit)).notes)

    assert notes(1, *range(ROWS)) == []
    assert notes(2, 7) == []
    assert notes(3, ROWS, are_inserts=True) == [NOTE]


@pytest.mark.parametrize(
    ("size", "copied", "is_too_much"), [(128 << 20, 51, True), (128 << 20, 50, False), (1, 51, False)]
)
def test_a_merge_copies_too_much_by_bytes_and_by_rows(size: int, copied: int, is_too_much: bool) -> None:
    metrics = {"RowsCopied": copied, "RowsUpdated": 7, "RowsDeleted": 3, "BytesRemoved": size}

    found = delta_write.copied_too_much(
        {"operationMetrics": {f"numTarget{name}": str(value) for name, value in metrics.items()}}
    )

    assert found == ((copied, 10) if is_too_much else None)


def test_hudi_table_with_deletion_vectors_is_rejected() -> None:
    with pytest.raises(ValidationError, match="only tables of format delta have `deletion_vectors`"):
        StorageConfig(format="hudi", deletion_vectors="auto")
