"""The fold: which events of a key count, and which of them decides.

Per key, in log order. A snapshot row and a lone tombstone count always. A streaming event does not count if it and
the key's last streaming event that did agree that it is not newer: then it is a replay (a connector restarted and
sent a stretch of the log again). Neither the source's clock nor its log position decides alone: clocks step,
positions restart after a restore.

    stale  =  position older or equal, and time older, equal or unknown
           or position unknown, and time strictly older

Why, with the cases each simpler rule gets wrong: docs/design.md "The fold".
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.columns import KAFKA, KAFKA_TYPE, ORDER, ORDER_TYPE

STORED_ORDER = "stored_order"
STORED_KAFKA = "stored_kafka"
STORED_DELETED = "stored_deleted"
STORED_UNAVAILABLE = "stored_unavailable"
STORED = {
    STORED_ORDER: ORDER_TYPE,
    STORED_KAFKA: KAFKA_TYPE,
    STORED_DELETED: "boolean",
    STORED_UNAVAILABLE: "array<string>",
}
"""What the fold needs to know of the stored row of an event's key; all null when there is none."""
_STREAMING_OPS = ("c", "u", "d")
_UPSERTS = ("c", "u", "r")
_DELETES = ("d", "tombstone")


class Order(NamedTuple):
    """When a streaming event happened, by its source: what `__order` holds."""

    position: list[int] | None
    domain: str | None
    ts_ms: int | None


def is_stale(event: Order, last: Order | None) -> bool:
    """The rule, for one event and the key's last accepted streaming event; the twin of `stale`."""
    if last is None:
        return False
    times_known = event.ts_ms is not None and last.ts_ms is not None
    if event.position is not None and last.position is not None and event.domain == last.domain:
        return event.position <= last.position and (not times_known or event.ts_ms <= last.ts_ms)  # type: ignore[operator]
    return times_known and event.ts_ms < last.ts_ms  # type: ignore[operator]


def stale(event: Column, last: Column) -> Column:
    """The rule as a column, never null: `event` and `last` are `__order` structs."""
    older = event["ts_ms"] < last["ts_ms"]
    not_newer_if_known = F.coalesce(event["ts_ms"] <= last["ts_ms"], F.lit(True))
    comparable = (
        event["position"].isNotNull() & last["position"].isNotNull() & event["domain"].eqNullSafe(last["domain"])
    )
    replayed = (event["position"] <= last["position"]) & not_newer_if_known
    return F.coalesce(last.isNotNull() & F.when(comparable, replayed).otherwise(older), F.lit(False))


def narrowed(events: DataFrame) -> DataFrame:
    """The part of events that the fold decides on.

    Columns in: `key`, `pk`, `op`, `source_ts_ms`, `source_position`, `position_domain`, `snapshot`, `__kafka`.
    Columns out: `key`, `pk`, `op`, `snapshot`, `__kafka`, `__order`, `is_streaming`.
    """
    order = F.struct(
        F.col("source_position").alias("position"),
        F.col("position_domain").alias("domain"),
        F.col("source_ts_ms").alias("ts_ms"),
    ).cast(ORDER_TYPE)
    is_snapshot = (F.col("op") == "r") | F.col("snapshot").isNotNull()
    is_streaming = F.col("op").isin(*_STREAMING_OPS) & ~is_snapshot
    return events.select("key", "pk", "op", "snapshot", KAFKA, order.alias(ORDER), is_streaming.alias("is_streaming"))


def with_suspicion(events: DataFrame) -> DataFrame:
    """Mark the keys in which any event is stale against the last streaming event before it.

    In a key without one every event counts, so its last one decides; only the others need to be gone through one by
    one.

    Columns in: `narrowed`'s and `stored_order`, the key's last accepted streaming event of earlier batches.
    Columns out: all, and `is_suspect`, the same for all events of a key; never null.
    """
    in_log_order = W.partitionBy("key").orderBy(KAFKA)
    before = in_log_order.rowsBetween(W.unboundedPreceding, -1)
    last = F.coalesce(F.last(_streaming_order(), ignorenulls=True).over(before), F.col(STORED_ORDER))
    is_stale_here = F.col("is_streaming") & stale(F.col(ORDER), last)
    marked = events.withColumn("is_stale_here", is_stale_here)
    return marked.withColumn("is_suspect", F.max("is_stale_here").over(W.partitionBy("key"))).drop("is_stale_here")


def stale_events(suspects: DataFrame) -> DataFrame:
    """Go through the events of suspect keys one by one, in log order, and name those that do not count.

    Only narrow tuples, sorted, in constant memory per key.

    Columns in: `with_suspicion`'s. Columns out: `topic`, `generation`, `partition`, `offset`.
    """
    narrow = (
        suspects.select("key", KAFKA, ORDER, "is_streaming", STORED_ORDER)
        .repartition("key")
        .sortWithinPartitions("key", KAFKA)
    )
    found = narrow.rdd.mapPartitions(_stale_in_partition)
    return suspects.sparkSession.createDataFrame(found, "topic string, generation int, partition int, offset bigint")


def without(events: DataFrame, rejected: DataFrame) -> DataFrame:
    """The events that are not among `rejected`'s coordinates."""
    same = [F.col(KAFKA)[name] == F.col(f"rejected.{name}") for name in ("topic", "generation", "partition", "offset")]
    condition = same[0] & same[1] & same[2] & same[3]
    return events.join(rejected.alias("rejected"), condition, how="left_anti")


def decisions(events: DataFrame) -> DataFrame:
    """What is decided for each key, if all of these events count.

    Columns in: `with_suspicion`'s and `STORED`'s. Columns out, one row per key: `key`, `pk`;
    `winner` struct of `op`, `snapshot`, `__kafka`, `__order` of the last event; `__order`, the last streaming event, or
    the stored one when there is none; `barrier`, the `__kafka` of the last delete before the last insert, update or
    snapshot row, which values must not be taken from behind; `stored_deleted`, `stored_unavailable`; `event_count`;
    `is_suspect`; `is_out_of_order`, whether any event stands in the log before what the stored row shows.
    """
    in_log_order = W.partitionBy("key").orderBy(KAFKA)
    before = in_log_order.rowsBetween(W.unboundedPreceding, -1)
    at_delete = F.when(F.col("op").isin(*_DELETES), F.col(KAFKA))
    marked = events.withColumn("delete_before", F.last(at_delete, ignorenulls=True).over(before))
    at_streaming = F.when(F.col("is_streaming"), F.col(KAFKA))
    at_upsert = F.when(F.col("op").isin(*_UPSERTS), F.col(KAFKA))
    return marked.groupBy("key").agg(
        F.max_by("pk", KAFKA).alias("pk"),
        F.max_by(F.struct("op", "snapshot", KAFKA, ORDER), KAFKA).alias("winner"),
        F.coalesce(F.max_by(ORDER, at_streaming), F.first(STORED_ORDER)).alias(ORDER),
        F.max_by("delete_before", at_upsert).alias("barrier"),
        F.first(STORED_DELETED).alias(STORED_DELETED),
        F.first(STORED_UNAVAILABLE).alias(STORED_UNAVAILABLE),
        F.count(F.lit(1)).alias("event_count"),
        F.max("is_suspect").alias("is_suspect"),
        F.coalesce(F.max(F.col(KAFKA) <= F.col(STORED_KAFKA)), F.lit(False)).alias("is_out_of_order"),
    )


def is_delete(op: Column) -> Column:
    """Whether an event with this op deletes its row."""
    return op.isin(*_DELETES)


def _streaming_order() -> Column:
    return F.when(F.col("is_streaming"), F.col(ORDER))


def _stale_in_partition(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    key: str | None = None
    last: Order | None = None
    for row in rows:
        if row["key"] != key:
            key = row["key"]
            last = Order(*row[STORED_ORDER]) if row[STORED_ORDER] is not None else None
        if not row["is_streaming"]:
            continue
        event = Order(*row[ORDER])
        if is_stale(event, last):
            at = row[KAFKA]
            yield at["topic"], at["generation"], at["partition"], at["offset"]
        else:
            last = event
