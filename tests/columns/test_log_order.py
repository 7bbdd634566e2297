"""A record's position in the log: which delete a tombstone follows, and a time that never goes back."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from pyspark.sql import Row, SparkSession
from support.events import START_MS, FakeRegistry, Record, Topic, framed
from support.lake import by_offset, decided, in_log_order

from cdc_lake.bronze.log_order import LastRecord

pytestmark = pytest.mark.core

COLUMNS = {"name": ["null", "string"]}


def log(here: Topic) -> list[Record]:
    """Paired and unpaired tombstones, and one after a delete that cannot be decoded."""
    of_three = Topic(COLUMNS, registry=here.registry).change("d", 3)
    return [
        here.change("c", 1),  # 0
        here.change("d", 1),  # 1
        here.tombstone(1),  # 2: of 1
        here.tombstone(1),  # 3: unpaired
        here.change("d", 1),  # 4
        here.tombstone(2),  # 5: another key
        here.change("u", 2),  # 6
        here.tombstone(2),  # 7: after an update
        here.record(of_three.key, of_three.value + b"\0"),  # 8: quarantined
        here.tombstone(3),  # 9: quarantined with it
        here.change("u", 3),  # 10
        here.tombstone(3),  # 11: unpaired
    ]


def broken_delete(here: Topic) -> list[Record]:
    delete = here.change("d", 1)
    return [here.record(delete.key, delete.value + b"\0"), here.tombstone(1), here.tombstone(1)]


def clock(here: Topic) -> list[Record]:
    return [at(here.change("u", 1), ms) for ms in (5, 3, 9, 9, 1, 10)]


def hole(here: Topic) -> list[Record]:
    return [here.change("d", 1), replace(here.tombstone(1), offset=7)]


def other_schema_id(here: Topic) -> list[Record]:
    delete = here.change("d", 1)
    return [delete, here.record(framed(here.registry.add(here.key_text + " "), delete.key[5:]), None)]


def two_empty_values(here: Topic) -> list[Record]:
    """The transform's null value, followed by the connector's tombstone."""
    flat = Topic(COLUMNS, registry=here.registry, flat=True)
    return [flat.change("c", 1), flat.tombstone(1), flat.tombstone(1), flat.change("c", 1)]


LOGS: dict[str, Callable[[Topic], list[Record]]] = {
    "log": log,
    "broken delete": broken_delete,
    "clock": clock,
    "hole": hole,
    "other schema id": other_schema_id,
    "two empty values": two_empty_values,
}
CUTS = {"log": tuple(range(1, 12)), "broken delete": (2,), "clock": (1, 4)}
"""The indexes at which the second and later batches of a log begin."""
Ordered = dict[tuple[str, bool], list[Row]]


def in_order(spark: SparkSession, registry: FakeRegistry, *batches: tuple[list[Record], Row | None]) -> list[list[Row]]:
    """The rows of each batch; a batch has its own partition and follows the last row of the batch before it."""
    records = [replace(record, partition=number) for number, (batch, _) in enumerate(batches) for record in batch]
    before = {
        number: LastRecord(last["log_ts"], last["offset"], last["key"], last["op"], last["status"])
        for number, (_, last) in enumerate(batches)
        if last
    }
    found: list[list[Row]] = [[] for _ in batches]
    for row in by_offset(in_log_order(decided(spark, registry, records), before)):
        found[row["partition"]].append(row)
    return found


@pytest.fixture(scope="module")
def ordered(spark: SparkSession) -> Ordered:
    """The rows of each log, uncut and cut. After a cut, the last row before it is read from the uncut log."""
    registry = FakeRegistry()
    sent = {name: sends(Topic(COLUMNS, registry=registry)) for name, sends in LOGS.items()}
    whole = dict(zip(sent, in_order(spark, registry, *((records, None) for records in sent.values())), strict=True))
    parts = [
        (name, start, end)
        for name, cuts in CUTS.items()
        for start, end in zip((0, *cuts), (*cuts, len(sent[name])), strict=True)
    ]
    batches = [(sent[name][start:end], whole[name][start - 1] if start else None) for name, start, end in parts]
    found: Ordered = {(name, False): rows for name, rows in whole.items()}
    for (name, *_), rows in zip(parts, in_order(spark, registry, *batches), strict=True):
        found.setdefault((name, True), []).extend(rows)
    return found


both = pytest.mark.parametrize("is_cut", [pytest.param(False, id="whole"), pytest.param(True, id="cut")])


@both
def test_tombstone_pairs_with_preceding_delete_across_batches(ordered: Ordered, is_cut: bool) -> None:
    rows = ordered["log", is_cut]

    assert len(rows) == 12
    found = {row["offset"]: row["tombstone_of"] for row in rows if row["tombstone_of"] is not None}
    assert found == {2: 1}
    assert [(r["offset"], r["error"]["stage"]) for r in rows if r["status"] != "ok"] == [(8, "decode"), (9, "pair")]


@both
def test_only_first_tombstone_after_bad_delete_is_quarantined(ordered: Ordered, is_cut: bool) -> None:
    assert [row["status"] for row in ordered["broken delete", is_cut]] == ["quarantined", "quarantined", "ok"]


@both
def test_log_ts_never_decreases(ordered: Ordered, is_cut: bool) -> None:
    assert [row["log_ts"] - START_MS for row in ordered["clock", is_cut]] == [5, 5, 9, 9, 9, 10]


def test_partitions_have_independent_log_ts_and_tombstones(spark: SparkSession) -> None:
    here = Topic(COLUMNS)
    change = here.change("d", 1)
    records = [
        at(replace(change, partition=0, offset=0), 9),
        at(replace(here.tombstone(1), partition=1, offset=1), 1),
        at(replace(here.tombstone(1), partition=0, offset=5), 2),
    ]
    before = {1: LastRecord(START_MS + 4)}

    rows = by_offset(in_log_order(decided(spark, here.registry, records), before))

    assert [(r["partition"], r["log_ts"] - START_MS, r["tombstone_of"]) for r in rows] == [
        (0, 9, None),
        (1, 4, None),
        (0, 9, 0),
    ]


def test_tombstone_after_an_offset_gap_pairs_with_its_delete(ordered: Ordered) -> None:
    assert [(row["offset"], row["tombstone_of"]) for row in ordered["hole", False]] == [(0, None), (7, 0)]


def test_tombstone_with_other_key_schema_id_does_not_pair(ordered: Ordered) -> None:
    rows = ordered["other schema id", False]

    assert [row["canonical_key"] for row in rows] == ['{"id":1}'] * 2
    assert rows[1]["tombstone_of"] is None


def test_delete_sent_as_two_nulls_is_two_unpaired_tombstones(ordered: Ordered) -> None:
    """Case F2."""
    assert [(r["status"], r["op"], r["tombstone_of"]) for r in ordered["two empty values", False]] == [
        ("ok", "c", None),
        ("ok", "tombstone", None),
        ("ok", "tombstone", None),
        ("ok", "c", None),
    ]


def at(record: Record, ms: int) -> Record:
    start = record.timestamp - timedelta(milliseconds=record.timestamp.microsecond // 1000)
    return replace(record, timestamp=start + timedelta(milliseconds=ms))
