"""Defects that users reported for writers of Debezium's events to Iceberg: such events end as the right rows here.

One history goes to a table of each type, unpartitioned and partitioned. pyiceberg reads the rows after each batch.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, START_MS, Record, Topic
from support.lake import Lake

from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, TableConfig
from cdc_lake.operations.maintain import run_maintain
from cdc_lake.runs.context import lake_of
from cdc_lake.silver.run import run_silver

Row = tuple[Any, ...]
Batches = Mapping[str, list[list[dict[str, Any]]]]
"""Name of a batch -> the rows of each table after it."""
BIG = 1 << 40
KEYS = range(1, 10)


class History:
    """Records of one table, with the columns before and after a change."""

    def __init__(self) -> None:
        self.old = Topic({"region": OPTIONAL_STRING, "n": OPTIONAL_INT, "code": OPTIONAL_INT})
        new = {"region": OPTIONAL_STRING, "n": ["null", "long"], "code": OPTIONAL_STRING, "added": OPTIONAL_STRING}
        self.new = Topic(new, registry=self.old.registry)
        self.new._next_offsets = self.old._next_offsets
        self._lsn = 0

    def change(self, op: str, key: int, region: str = "eu", n: int = 0, **more: Any) -> Record:
        """With `added`, a record has the new columns."""
        self._lsn += 1
        topic, snapshot = self.new if "added" in more else self.old, more.pop("snapshot", None)
        at = {"lsn": self._lsn, "ts_ms": START_MS + self._lsn}
        return topic.change(op, key, {"region": region, "n": n, **more}, snapshot=snapshot, **at)

    def snapshot(self, *keys: int, n: int, **more: Any) -> list[Record]:
        markers = ["first", *["true"] * (len(keys) - 2), "last"]
        return [self.change("r", key, n=n, snapshot=marker, **more) for key, marker in zip(keys, markers, strict=True)]


@pytest.fixture(scope="module", params=[(), ("region", "bucket(2, id)")], ids=["plain", "partitioned"])
def after(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Batches:
    root, history = tmp_path_factory.mktemp("reported"), History()
    types = [TABLE_TYPES["iceberg-cow"], TABLE_TYPES["iceberg-mor"]]
    storage = tuple(one.model_copy(update={"partition_by": request.param}) for one in types)
    settings = TableConfig(storage=storage, deletes={"mode": "hard", "missing_after_snapshot": True})
    config, lake = Config(lake=LakeConfig(root=str(root)), defaults=settings), Lake(spark, root, history.old)
    targets = lake_of(config).silver(history.old.table)
    found: dict[str, list[list[dict[str, Any]]]] = {}

    def merge(name: str, *records: Record) -> None:
        lake.land(records)
        assert [report.error for report in run_silver(config, ["*"], spark).tables] == [None, None]
        found[name] = [table_rows(target.path) for target in targets]

    change = history.change
    merge("snapshot", *history.snapshot(*KEYS, n=0))
    replayed = change("u", 7, n=1)
    merge(
        "updates",
        *(replayed, change("u", 1, n=1), change("u", 2), change("u", 4, "us", 1)),
        *(change("u", 3, n=1), change("d", 3), change("c", 3, n=2), change("u", 3, n=3)),
        *(change("u", 5, "us", 1), change("u", 5, n=2), change("c", 10), change("d", 10)),
    )
    merge("new columns", change("u", 1, n=2, code=7), change("u", 6, n=BIG, code="x", added="y"), change("u", 8, n=1))
    merge("deletes", *(change("d", key) for key in (2, 7, 8, 9)))
    reports = run_maintain(config, ["*"], spark).tables
    assert [one.error for one in reports] == [None, None]
    assert reports[1].rows["files_written"] > 0  # without deletion vectors; copy-on-write has few files
    found["compaction"] = [table_rows(target.path) for target in targets]
    merge("after compaction", history.old.again(replayed), change("u", 1, "us", 3), change("c", 9, n=1))
    merge("second snapshot", *history.snapshot(1, 3, 4, 6, n=9, added="z"))
    return found


CASES: Mapping[str, tuple[str, Mapping[int, Row | None]]] = {
    "iceberg-17542-and-15342-upserts-appended": ("updates", {1: ("eu", 1), 6: ("eu", 0)}),
    "olake-1189-update-written-twice": ("updates", {1: ("eu", 1), 2: ("eu", 0)}),
    "flink-cdc-4536-row-in-its-old-partition": ("updates", {4: ("us", 1)}),
    "partition-changed-and-changed-back": ("updates", {4: ("us", 1), 5: ("eu", 2)}),
    "several-events-of-a-key-in-a-commit": ("updates", {3: ("eu", 3), 10: None}),
    "schema-change-inside-a-batch": ("new columns", {1: ("eu", 2), 6: ("eu", BIG), 8: ("eu", 1)}),
    "deleted-rows-after-compaction": ("compaction", dict.fromkeys((2, 7, 8, 9))),
    "replay-of-a-deleted-row-after-compaction": ("after compaction", {1: ("us", 3), 2: None, 7: None, 9: ("eu", 1)}),
    "snapshot-rows-not-replaced": ("second snapshot", {**dict.fromkeys((1, 3, 4, 6), ("eu", 9)), 5: None, 9: None}),
}


@pytest.mark.parametrize("case", CASES)
def test_reported_defect_ends_as_the_right_rows(after: Batches, case: str) -> None:
    batch, expected = CASES[case]

    wanted = [(key, *row) for key, row in expected.items() if row is not None]
    for rows in after[batch]:
        found = [(row["id"], row["region"], row["n"]) for row in rows if row["id"] in expected]
        assert sorted(found) == sorted(wanted)


def test_no_batch_leaves_a_key_twice(after: Batches) -> None:
    counts = {batch: [sorted(row["id"] for row in rows) for rows in tables] for batch, tables in after.items()}

    assert counts == {batch: [sorted(set(ids)) for ids in tables] for batch, tables in counts.items()}
    assert counts["snapshot"] == [[*KEYS]] * 2
    assert counts["second snapshot"] == [[1, 3, 4, 6]] * 2


def test_each_record_has_the_columns_of_its_own_schema(after: Batches) -> None:
    for rows in after["new columns"]:
        found = {row["id"]: (row["code"], row["code__string"], row["added"]) for row in rows}
        assert {key: found[key] for key in (1, 6, 8)} == {
            1: (7, None, None),
            6: (None, "x", "y"),
            8: (None, None, None),
        }
