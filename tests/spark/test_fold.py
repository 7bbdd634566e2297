"""The fold, docs/design.md "The fold": one log per case, folded whole and cut in two at every place."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.changes import fold
from cdc_lake.changes.fold import stale
from cdc_lake.columns import KAFKA_TYPE, ORDER_TYPE
from cdc_lake.fold.rules import Order, is_stale

ORDERS = st.builds(
    Order,
    st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=2),
    st.sampled_from([None, "a", "b"]),
    st.none() | st.integers(0, 3),
)


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(pairs=st.lists(st.tuples(ORDERS, st.none() | ORDERS), min_size=300, max_size=300))
def test_the_rule_in_sql_is_the_rule_in_python(spark: SparkSession, pairs: list[tuple[Order, Order | None]]) -> None:
    rows = [(number, tuple(event), last and tuple(last)) for number, (event, last) in enumerate(pairs)]
    frame = spark.createDataFrame(rows, f"number int, event {ORDER_TYPE}, last {ORDER_TYPE}")

    found = frame.select("number", stale(F.col("event"), F.col("last")).alias("is_stale")).collect()

    in_sql = {row["number"]: row["is_stale"] for row in found}
    assert in_sql == {number: is_stale(event, last) for number, (event, last) in enumerate(pairs)}


class E(NamedTuple):
    """An event of a case's log: `op`, place and time in the source, marker."""

    op: str
    lsn: int | None = None
    ts_ms: int | None = None
    snapshot: str | None = None


def r(ts_ms: int) -> E:
    """An incremental snapshot's row."""
    return E("r", None, ts_ms, "incremental")


TOMBSTONE = E("tombstone")
CASES: dict[str, tuple[Sequence[E], int]] = {
    "one event": ([E("c", 1, 1)], 0),
    "O1: many changes in one millisecond": ([E("c", 1, 5), E("u", 2, 5), E("u", 3, 5)], 2),
    "O1: many changes of one transaction without a place": ([E("c", None, 5), E("u", None, 5), E("d", None, 5)], 2),
    "O2: a later change with an earlier commit time than the snapshot row": ([r(100), E("u", 5, 50)], 1),
    "O2: a snapshot row behind newer changes": ([E("c", 1, 10), E("u", 2, 200), r(100)], 2),
    "O3: a first snapshot that took long": ([E("r", 7, 900, "true"), E("u", 9, 500)], 1),
    "O4: a transaction that was open at the snapshot": ([E("r", 50, 100, "last"), E("u", 40, 101)], 1),
    "O5: a clock that steps back while positions grow": ([E("c", 1, 100), E("u", 2, 90), E("u", 3, 95)], 2),
    "O7: a restore: positions start again, time goes on": ([E("c", 900, 10), E("u", 5, 20), E("u", 6, 30)], 2),
    "O8: a suffix once more": ([E("c", 1, 1), E("u", 2, 2), E("u", 3, 3), E("u", 2, 2), E("u", 3, 3)], 2),
    "O8: a suffix that ends in the middle": ([E("c", 1, 1), E("u", 2, 2), E("u", 3, 3), E("u", 2, 2)], 2),
    "O8: a replayed insert behind the delete": ([E("c", 1, 1), E("d", 2, 2), E("c", 1, 1)], 1),
    "O8: without a place, by time": ([E("c", None, 1), E("u", None, 3), E("u", None, 2)], 1),
    "O9: rows that share a place, the same event twice": ([E("c", 4, 4), E("c", 4, 4)], 0),
    "O9: one place, a later time": ([E("c", 4, 4), E("u", 4, 5)], 1),
    "O11: a snapshot row, then streaming from before it": ([E("u", 5, 50), r(60), E("u", 4, 40), E("u", 6, 61)], 3),
    "O11: a replay behind a snapshot row changes nothing": ([E("u", 5, 50), r(60), E("u", 5, 50)], 1),
    "a whole log copied ends at its snapshot row": ([r(1), E("u", 2, 2), r(1), E("u", 2, 2)], 2),
    "a delete, then an insert": ([E("c", 1, 1), E("d", 2, 2), E("c", 3, 2)], 2),
    "a lone tombstone deletes": ([E("c", 1, 1), TOMBSTONE], 1),
    "an insert behind a lone tombstone": ([E("c", 1, 1), TOMBSTONE, E("c", 2, 2)], 2),
    "a replay behind a lone tombstone counts until its tombstone comes again": (
        [E("c", 1, 1), E("u", 2, 2), TOMBSTONE, E("u", 2, 2)],
        3,
    ),
    "O8: a suffix with a lone tombstone once more": (
        [E("c", 1, 1), TOMBSTONE, E("c", 2, 2), TOMBSTONE, E("c", 2, 2)],
        4,
    ),
    "O8: a stretch with a lone tombstone once more": (
        [E("c", 1, 1), TOMBSTONE, E("c", 2, 2), E("c", 1, 1), TOMBSTONE, E("c", 2, 2)],
        5,
    ),
    "a lone tombstone alone": ([TOMBSTONE], 0),
    "no time and no place: the log": ([E("c"), E("u"), E("u")], 2),
    "a place without time": ([E("c", 2), E("u", 1), E("u", 3)], 2),
    "a place known, then not, then again": ([E("c", 5, 5), E("u", None, 6), E("u", 4, 7)], 2),
    "a snapshot marker on a c is a snapshot row": ([E("u", 9, 9), E("c", 1, 1, "true")], 1),
    "stale against the last that counted, not against the last": (
        [E("u", 9, 9), E("u", 5, 5), E("u", 6, 6), E("u", 10, 10)],
        3,
    ),
}


def stored_of(decision: Row | None) -> tuple[Any, ...]:
    if decision is None:
        return (None, None, None, None, None)
    winner = decision["winner"]
    return decision["__order"], winner["__kafka"], winner["op"] in ("d", "tombstone"), [], False


def folded(spark: SparkSession, logs: Mapping[str, list[tuple[int, E]]], stored: Mapping[str, Row]) -> dict[str, Row]:
    """The decision for each key of one batch, as silver comes to it."""
    rows = [
        (
            key,
            (key,),
            event.op,
            event.ts_ms,
            None if event.lsn is None else [event.lsn],
            "domain",
            event.snapshot,
            None,
            1,
            False,
            (place, key, 0, 0, place),
            *stored_of(stored.get(key)),
        )
        for key, log in logs.items()
        for place, event in log
    ]
    stored_types = ", ".join(f"{name} {kind}" for name, kind in fold.STORED.items())
    events = spark.createDataFrame(
        rows,
        "key string, pk struct<key: string>, op string, source_ts_ms bigint, source_position array<bigint>, "
        "position_domain string, snapshot string, move string, batch bigint, late boolean, "
        f"__kafka {KAFKA_TYPE}, {stored_types}",
    )
    narrow = fold.narrowed(events, first_batch=1).join(
        events.select("key", "__kafka", *fold.STORED), ["key", "__kafka"], how="inner"
    )
    return {row["key"]: row for row in decide(narrow).collect()}


def decide(narrow: DataFrame) -> DataFrame:
    marked = fold.with_suspicion(narrow)
    return fold.decisions(fold.without(marked, fold.rejected_events(marked.where("is_suspect"))))


def test_every_log_ends_at_the_event_it_should_wherever_it_is_cut(spark: SparkSession) -> None:
    heads: dict[str, list[tuple[int, E]]] = {}
    tails: dict[str, list[tuple[int, E]]] = {}
    expected: dict[str, int] = {}
    for name, (log, winner) in CASES.items():
        for cut in range(len(log)):
            case = f"{name} (cut at {cut})"
            placed = list(enumerate(log))
            heads[case], tails[case], expected[case] = placed[:cut], placed[cut:], winner

    before = folded(spark, {case: log for case, log in heads.items() if log}, {})
    after = folded(spark, tails, before)

    found = {case: (after[case] if case in after else before[case])["winner"]["__kafka"]["offset"] for case in expected}
    assert found == expected


def test_a_key_without_a_stale_event_is_not_suspect(spark: SparkSession) -> None:
    suspects = {
        "O8: a suffix once more",
        "O8: a suffix that ends in the middle",
        "O8: a replayed insert behind the delete",
        "O8: without a place, by time",
        "O9: rows that share a place, the same event twice",
    }
    clean = {"one event", "O7: a restore: positions start again, time goes on", "a delete, then an insert"}
    logs = {name: list(enumerate(CASES[name][0])) for name in suspects | clean}

    found = folded(spark, logs, {})

    assert {name for name, row in found.items() if row["is_suspect"]} == suspects


@pytest.mark.parametrize(("stored_offset", "out_of_order"), [(0, False), (1, True), (2, True)])
def test_an_event_that_stands_in_the_log_before_the_stored_row_is_noticed(
    spark: SparkSession, stored_offset: int, out_of_order: bool
) -> None:
    stored = folded(spark, {"k": [(stored_offset, E("c", 1, 1))]}, {})

    found = folded(spark, {"k": [(1, E("u", 2, 2)), (3, E("u", 3, 3))]}, stored)

    assert found["k"]["is_out_of_order"] is out_of_order
