"""Where a record stands in the log: behind which delete a tombstone comes, and a time that never steps back."""

import dataclasses
from datetime import timedelta

import pytest
from events import START_MS, Record, Topic, framed
from lake import by_offset, decided
from pyspark.sql import Row, SparkSession

from cdc_lake.events.arrival import LastRecord, with_log_order


def topic() -> Topic:
    return Topic({"name": ["null", "string"]})


def ordered(spark: SparkSession, here: Topic, batches: list[list[Record]]) -> list[Row]:
    """The rows of several batches, each knowing where the one before ended."""
    before: dict[int, LastRecord] = {}
    rows: list[Row] = []
    for records in batches:
        rows += by_offset(with_log_order(decided(spark, here.registry, records), before))
        last = rows[-1]
        before = {0: LastRecord(last["log_ts"], last["offset"], last["key"], last["op"], last["status"])}
    return rows


def log(here: Topic) -> list[Record]:
    """Paired and lone tombstones, and one behind a delete that does not decode."""
    of_three = Topic({"name": ["null", "string"]}, registry=here.registry).change("d", 3)
    return [
        here.change("c", 1),  # 0
        here.change("d", 1),  # 1
        here.tombstone(1),  # 2: of 1
        here.tombstone(1),  # 3: lone
        here.change("d", 1),  # 4
        here.tombstone(2),  # 5: another key
        here.change("u", 2),  # 6
        here.tombstone(2),  # 7: behind an update
        here.record(of_three.key, of_three.value + b"\0"),  # 8: quarantined
        here.tombstone(3),  # 9: quarantined with it
        here.change("u", 3),  # 10
        here.tombstone(3),  # 11: lone
    ]


@pytest.mark.parametrize("cut_every_record", [False, True])
def test_a_tombstone_belongs_to_the_delete_right_before_it_also_across_the_edge_of_a_batch(
    spark: SparkSession, cut_every_record: bool
) -> None:
    here = topic()
    records = log(here)

    rows = ordered(spark, here, [[record] for record in records] if cut_every_record else [records])

    found = {row["offset"]: row["tombstone_of"] for row in rows if row["tombstone_of"] is not None}
    assert found == {2: 1}
    assert [(r["offset"], r["error"]["stage"]) for r in rows if r["status"] != "ok"] == [(8, "decode"), (9, "pair")]


@pytest.mark.parametrize("cut", [0, 2])
def test_a_second_tombstone_behind_a_quarantined_delete_does_not_depend_on_the_edge_of_a_batch(
    spark: SparkSession, cut: int
) -> None:
    here = topic()
    delete = here.change("d", 1)
    records = [here.record(delete.key, delete.value + b"\0"), here.tombstone(1), here.tombstone(1)]

    rows = ordered(spark, here, [part for part in (records[:cut], records[cut:]) if part])

    assert [row["status"] for row in rows] == ["quarantined", "quarantined", "ok"]


def test_the_time_in_the_log_never_steps_back(spark: SparkSession) -> None:
    here = topic()
    stamps = [5, 3, 9, 9, 1, 10]
    records = [at(here.change("u", 1), ms) for ms in stamps]

    whole = ordered(spark, here, [records])
    cut = ordered(spark, here, [records[:1], records[1:4], records[4:]])

    assert [row["log_ts"] - START_MS for row in whole] == [5, 5, 9, 9, 9, 10]
    assert [row["log_ts"] for row in cut] == [row["log_ts"] for row in whole]


def test_partitions_have_each_their_own_time_and_tombstones(spark: SparkSession) -> None:
    here = topic()
    change = here.change("d", 1)
    records = [
        at(dataclasses.replace(change, partition=0, offset=0), 9),
        at(dataclasses.replace(here.tombstone(1), partition=1, offset=1), 1),
        at(dataclasses.replace(here.tombstone(1), partition=0, offset=5), 2),
    ]
    before = {1: LastRecord(START_MS + 4)}

    rows = by_offset(with_log_order(decided(spark, here.registry, records), before))

    assert [(r["partition"], r["log_ts"] - START_MS, r["tombstone_of"]) for r in rows] == [
        (0, 9, None),
        (1, 4, None),
        (0, 9, 0),
    ]


def test_a_tombstone_behind_a_hole_in_the_offsets_is_still_its_delete_s(spark: SparkSession) -> None:
    here = topic()
    delete = here.change("d", 1)
    tombstone = dataclasses.replace(here.tombstone(1), offset=delete.offset + 7)

    rows = ordered(spark, here, [[delete, tombstone]])

    assert rows[1]["tombstone_of"] == delete.offset


def test_a_tombstone_with_a_key_of_another_schema_id_is_not_that_delete_s(spark: SparkSession) -> None:
    here = topic()
    other_id = here.registry.add(here.key_text + " ")
    delete = here.change("d", 1)
    tombstone = here.record(framed(other_id, delete.key[5:]), None)

    rows = ordered(spark, here, [[delete, tombstone]])

    assert [row["canonical_key"] for row in rows] == ['{"id":1}'] * 2
    assert rows[1]["tombstone_of"] is None


def at(record: Record, ms: int) -> Record:
    start = record.timestamp - timedelta(milliseconds=record.timestamp.microsecond // 1000)
    return dataclasses.replace(record, timestamp=start + timedelta(milliseconds=ms))
