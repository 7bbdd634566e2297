"""Rows that differ between two versions of a silver table, compared with a reader of both versions in plain Python."""

import random
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support.lake import in_catalog, step

from cdc_lake.config import TABLE_TYPES, StorageConfig
from cdc_lake.lake.lake import silver_table
from cdc_lake.tables.contract import Changes, Table
from cdc_lake.tables.joins import AFTER, BEFORE, IMAGE, images

CHANGE = (
    "id int, part string, n int, __batch bigint, __source_ts_ms bigint, "
    "__key string, __keep array<string>, __delete boolean"
)
Rows = dict[int, tuple[Any, ...]]


def changes(spark: SparkSession, commit: int, rows: dict[int, tuple[str, int] | None]) -> Changes:
    """Rows by id; null for a deleted row."""
    found = [
        (number, *(row or (None, None)), commit, 0, f'{{"id": {number}}}', [], row is None)
        for number, row in rows.items()
    ]
    return Changes(spark.createDataFrame(found, CHANGE), ["id"])


def rows(path: str, version: int) -> Rows:
    """The rows of a version, read by delta-rs, hudi-rs or pyiceberg."""
    return {row["id"]: (row["part"], row["n"], row["__batch"]) for row in table_rows(path, version)}


def expected(was: Rows, is_now: Rows) -> dict[str, Rows]:
    return {
        BEFORE: {number: row for number, row in was.items() if is_now.get(number) != row},
        AFTER: {number: row for number, row in is_now.items() if was.get(number) != row},
    }


def found(table: Table, since: int, until: int) -> dict[str, Rows]:
    all_of_them: dict[str, Rows] = {BEFORE: {}, AFTER: {}}
    for row in images(table, ["id"], since, until).collect():
        assert row["id"] not in all_of_them[row[IMAGE]]
        all_of_them[row[IMAGE]][row["id"]] = (row["part"], row["n"], row["__batch"])
    return all_of_them


@pytest.mark.parametrize(
    "storage",
    [
        *(pytest.param(storage, id=name) for name, storage in TABLE_TYPES.items()),
        pytest.param(StorageConfig(deletion_vectors="on"), id="deletion-vectors"),
    ],
)
def test_diff_of_two_versions_lists_before_and_after_images(
    spark: SparkSession, tmp_path: Path, storage: StorageConfig
) -> None:
    rng = random.Random(8)
    wanted = storage.model_copy(update={"partition_by": ("part",)})
    path = str(tmp_path / "table")
    table = silver_table(spark, path, wanted, in_catalog(path))
    versions, progress = [], step(0)
    for commit in range(1, 5):
        batch = {
            number: None if rng.random() < 0.2 else (rng.choice(("a b", "c%/=", "")), rng.randrange(9))
            for number in rng.sample(range(40), 40 if commit == 1 else 6)
        }
        progress = progress.next("a run") if commit > 1 else step(1)
        versions.append(table.merge(changes(spark, commit, batch), progress).version)
        if commit == 3:
            table.maintain()
            versions.append(table.version())

    held = {number: rows(path, versions[number]) for number in (0, 1, 3, 4)}
    for since, until in [(0, 1), (0, 4), (1, 3)]:
        assert found(table, versions[since], versions[until]) == expected(held[since], held[until])
    assert found(table, versions[2], versions[3]) == {BEFORE: {}, AFTER: {}}
    assert all(expected(held[0], held[4]).values())
