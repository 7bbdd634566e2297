"""The fold of many keys as columns: which events count, and which of them decides.

`cdc_lake.fold.rules` defines both, for one key. Here, a window over narrow columns finds the keys in which any event is
stale; all events of the others count. Only the keys found go through `rules.step`, event by event. What concerns all
keys at once, truncates and completed snapshots, is in each key's history: `cdc_lake.changes.whole_table`.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.columns import KAFKA, KAFKA_TYPE, ORDER, ORDER_TYPE
from cdc_lake.fold.rules import DELETES, MISSING, TOMBSTONE, UPSERTS, WHOLE_TABLE_OPS, Event, Order, State, step
from cdc_lake.literals import of_batch

STORED_ORDER = "stored_order"
STORED_KAFKA = "stored_kafka"
STORED_DELETED = "stored_deleted"
STORED_UNAVAILABLE = "stored_unavailable"
IS_REMEMBERED = "is_remembered"
STORED = {
    STORED_ORDER: ORDER_TYPE,
    STORED_KAFKA: KAFKA_TYPE,
    STORED_DELETED: "boolean",
    STORED_UNAVAILABLE: "array<string>",
    IS_REMEMBERED: "boolean",
}
"""What the fold needs to know of an event's key as it is stored; all null when nothing is. `is_remembered`: it is not
the row, which is gone, but the memory of its delete."""
_STREAMING_OPS = ("c", "u", "d")


def stale(event: Column, last: Column) -> Column:
    """`rules.is_stale` as a column, never null: `event` and `last` are `__order` structs."""
    older = event["ts_ms"] < last["ts_ms"]
    not_newer_if_known = F.coalesce(event["ts_ms"] <= last["ts_ms"], F.lit(True))
    replayed = (event["position"] <= last["position"]) & not_newer_if_known
    return F.coalesce(last.isNotNull() & F.when(_comparable(event, last), replayed).otherwise(older), F.lit(False))


def narrowed(events: DataFrame, *, first_batch: int) -> DataFrame:
    """The part of events that the fold decides on.

    Args:
        events: `events()`' columns.
        first_batch: of bronze; events of this batch and later ones are new to silver.

    Columns out: `key`, `pk`, `op`, `snapshot`, `move`, `__kafka`, `__order`; `is_streaming`, `is_new`, `is_late`
    boolean; `since` `__kafka` struct, null for all events but `missing`.
    """
    order = F.struct(
        F.col("source_position").alias("position"),
        F.col("position_domain").alias("domain"),
        F.col("source_ts_ms").alias("ts_ms"),
    ).cast(ORDER_TYPE)
    is_snapshot = (F.col("op") == "r") | F.col("snapshot").isNotNull()
    return events.select(
        *("key", "pk", "op", "snapshot", "move", KAFKA),
        order.alias(ORDER),
        (F.col("op").isin(*_STREAMING_OPS) & ~is_snapshot).alias("is_streaming"),
        (F.col("batch") >= of_batch(first_batch, F.col("batch"))).alias("is_new"),
        F.col("late").alias("is_late"),
        F.lit(None).cast(KAFKA_TYPE).alias("since"),
    )


def with_suspicion(events: DataFrame) -> DataFrame:
    """Mark the keys in which any event is stale against the last streaming event before it.

    In a key without one every event counts, so its last one decides; only the others need to be gone through one by
    one.

    Columns in: `narrowed`'s and `STORED`'s. Columns out: all, and, never null, `is_suspect`, the same for all events of
    a key; `is_compared`, whether the event's position can be compared with the last one's; `is_reset`, whether it is
    older while its time is newer, as after a restore of the source.
    """
    event, last = F.col(ORDER), F.col("last_order")
    marked = events.withColumn("last_order", _last_order_before()).withColumns(
        {
            "is_stale_here": F.col("is_streaming") & stale(event, last),
            "is_compared": F.coalesce(F.col("is_streaming") & _comparable(event, last), F.lit(False)),
        }
    )
    is_reset = F.col("is_compared") & (event["position"] < last["position"]) & (event["ts_ms"] > last["ts_ms"])
    return marked.withColumns(
        {
            "is_suspect": F.max("is_stale_here").over(W.partitionBy("key")),
            "is_reset": F.coalesce(is_reset, F.lit(False)),
        }
    ).drop("is_stale_here", "last_order")


def without_void(events: DataFrame, *, keeps_behind: bool) -> DataFrame:
    """Take out the `missing` events that find nothing missing: their key was seen in the snapshot, or has no row.

    Those of suspect keys are left to `rejected_events`.

    Args:
        keeps_behind: those stay that stand in the log before what the stored row shows: what it was then, only its
            whole history tells.

    Columns in and out: `with_suspicion`'s.
    """
    is_missing = F.col("op") == MISSING
    seen = F.when(~is_missing, F.struct(F.col(KAFKA).alias("at"), is_delete(F.col("op")).alias("gone")))
    stored = F.struct(F.col(STORED_KAFKA).alias("at"), F.col(STORED_DELETED).alias("gone"))
    in_log_order = W.partitionBy("key").orderBy(KAFKA)
    before = in_log_order.rowsBetween(W.unboundedPreceding, -1)
    marked = events.withColumn("seen", F.coalesce(F.last(seen, ignorenulls=True).over(before), stored))
    finds = is_missing & ~F.col("seen.gone") & (F.col("seen.at") < F.col("since"))
    marked = marked.withColumn("finds", F.coalesce(finds, F.lit(False)))
    first = F.min(F.when(F.col("finds"), F.col(KAFKA))).over(W.partitionBy("key", "seen.at"))
    is_void = is_missing & ~(F.col("finds") & (F.col(KAFKA) == first))
    if keeps_behind:
        is_void = is_void & ~_is_behind()
    marked = marked.withColumn("is_void", is_void)
    return marked.where(F.col("is_suspect") | ~F.col("is_void")).drop("seen", "finds", "is_void")


def rejected_events(suspects: DataFrame) -> DataFrame:
    """Go through the events of suspect keys one by one, in log order, and name those that do not count.

    Only narrow tuples, sorted, in constant memory per key.

    Columns in: `with_suspicion`'s. Columns out: `key`, `op`, `topic`, `generation`, `partition`, `offset`, `is_new`.
    """
    narrow = (
        suspects.select(
            *("key", "op", KAFKA, ORDER, "is_streaming", "is_new", "since"), STORED_ORDER, STORED_KAFKA, STORED_DELETED
        )
        .repartition("key")
        .sortWithinPartitions("key", KAFKA)
    )
    found = narrow.rdd.mapPartitions(_rejected_in_partition)
    return suspects.sparkSession.createDataFrame(
        found, "key string, op string, topic string, generation int, partition int, offset bigint, is_new boolean"
    )


def without(events: DataFrame, rejected: DataFrame) -> DataFrame:
    """The events that are not among the `rejected_events`."""
    same = F.lit(True)
    for name in ("key", "op"):
        same = same & (F.col(f"event.{name}") == F.col(f"rejected.{name}"))
    for name in ("topic", "generation", "partition", "offset"):
        same = same & (F.col(f"event.{KAFKA}.{name}") == F.col(f"rejected.{name}"))
    return events.alias("event").join(rejected.alias("rejected"), same, how="left_anti")


def decisions(events: DataFrame) -> DataFrame:
    """What is decided for each key, if all of these events count.

    A key of which none but whole-table events count, and nothing is stored, has no row.

    Columns in: `with_suspicion`'s and `STORED`'s. Columns out, one row per key: `key`, `pk`;
    `winner` struct of `op`, `snapshot`, `__kafka`, `__order` of the last event; `__order`, the last streaming event, or
    the stored one when there is none; `barrier`, the `__kafka` of the last delete before the last insert, update or
    snapshot row, which values must not be taken from behind; `STORED`'s but `stored_order`; `new_count`, the key's own
    new events; `is_suspect`, `is_compared`, `is_reset`; `is_out_of_order`, whether a new event stands in the log before
    what the stored row shows, or was brought back late.
    """
    in_log_order = W.partitionBy("key").orderBy(KAFKA)
    before = in_log_order.rowsBetween(W.unboundedPreceding, -1)
    at_delete = F.when(is_delete(F.col("op")), F.col(KAFKA))
    marked = events.withColumn("delete_before", F.last(at_delete, ignorenulls=True).over(before))
    at_mark = F.when(_order_mark().isNotNull(), F.col(KAFKA))
    at_upsert = F.when(is_upsert(F.col("op")), F.col(KAFKA))
    is_own = ~F.col("op").isin(*WHOLE_TABLE_OPS)
    decided = marked.groupBy("key").agg(
        F.max_by("pk", KAFKA).alias("pk"),
        F.max_by(F.struct("op", "snapshot", KAFKA, ORDER), KAFKA).alias("winner"),
        F.coalesce(F.max_by(_order_mark(), at_mark), F.first(_stored_mark()))["order"].alias(ORDER),
        F.max_by("delete_before", at_upsert).alias("barrier"),
        *(F.first(name).alias(name) for name in STORED if name != STORED_ORDER),
        F.count(F.when(is_own, 1)).alias("own_count"),
        F.count(F.when(is_own & F.col("is_new"), 1)).alias("new_count"),
        *(F.max(name).alias(name) for name in ("is_suspect", "is_compared", "is_reset")),
        F.coalesce(F.max(F.col("is_new") & (F.col("is_late") | _is_behind())), F.lit(False)).alias("is_out_of_order"),
    )
    return decided.where((F.col("own_count") > 0) | F.col(STORED_DELETED).isNotNull()).drop("own_count")


def _is_behind() -> Column:
    """Whether an event stands in the log before what the stored row shows, or is it."""
    return F.coalesce(F.col(KAFKA) <= F.col(STORED_KAFKA), F.lit(False))


def is_delete(op: Column) -> Column:
    """Whether an event with this op deletes its row."""
    return op.isin(*DELETES)


def is_upsert(op: Column) -> Column:
    """Whether an event with this op has a row."""
    return op.isin(*UPSERTS)


def _comparable(event: Column, last: Column) -> Column:
    known = event["position"].isNotNull() & last["position"].isNotNull()
    return known & event["domain"].eqNullSafe(last["domain"])


def _order_mark() -> Column:
    """What an event leaves in `__order`, in a struct, because it may be nothing; null when it leaves it as it was."""
    nothing = F.lit(None).cast(ORDER_TYPE)
    return F.when(F.col("is_streaming"), F.struct(F.col(ORDER).alias("order"))).when(
        F.col("op") == TOMBSTONE, F.struct(nothing.alias("order"))
    )


def _stored_mark() -> Column:
    return F.struct(F.col(STORED_ORDER).alias("order"))


def _last_order_before() -> Column:
    before = W.partitionBy("key").orderBy(KAFKA).rowsBetween(W.unboundedPreceding, -1)
    return F.coalesce(F.last(_order_mark(), ignorenulls=True).over(before), _stored_mark())["order"]


def _rejected_in_partition(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for key, events in groupby(rows, key=lambda row: row["key"]):
        state: State | None = None
        for row in events:
            state = state or _stored_state(row)
            if not step(state, _event(row), hard=False).counts:
                at = row[KAFKA]
                yield key, row["op"], at["topic"], at["generation"], at["partition"], at["offset"], row["is_new"]


def _stored_state(row: Row) -> State:
    order, decided = row[STORED_ORDER], row[STORED_KAFKA]
    return State(
        is_live=decided is not None and not row[STORED_DELETED],
        decided=decided and tuple(decided),
        order=order and Order(*order),
    )


def _event(row: Row) -> Event:
    order = Order(*row[ORDER]) if row["is_streaming"] else None
    return Event(tuple(row[KAFKA]), row["op"], order, since=row["since"] and tuple(row["since"]))
