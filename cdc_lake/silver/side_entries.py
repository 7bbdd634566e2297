"""Entries of silver's side table: state that its rows do not have. `columns.SIDE` describes their kinds."""

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import (
    DELETE,
    KAFKA,
    KAFKA_TYPE,
    KEY_ENTRY,
    ORDER,
    ORDER_TYPE,
    REJECTED_ENTRY,
    SEEN,
    SIDE,
    SNAPSHOT_ID,
    START_ID,
    TABLE_ENTRY,
)
from cdc_lake.fold.rules import TRUNCATE, Order, State
from cdc_lake.fold.table_events import KafkaPosition, TableEvents
from cdc_lake.spark.arrow_stage import from_rows
from cdc_lake.spark.expressions import of_batch


def key_is_remembered() -> Column:
    """Whether a key needs an entry, from `fold.arrow`'s pieces of rows. A truncate has one entry for all keys."""
    is_gone = ~F.col("has_row") & ~F.col("op").eqNullSafe(TRUNCATE) & F.col("kafka_position").isNotNull()
    return is_gone | F.col("seen").isNotNull() | (F.col("has_row") & F.col("moved_by").isNotNull())


def key_entries(rows: DataFrame) -> DataFrame:
    """The entries of keys; entries that are no longer needed are marked for deletion.

    Columns in: `fold.arrow`'s pieces of rows. Columns out: `kind`, `id`, `key`, `awaits`, `__order`, `__kafka`,
    `__seen`, `__delete`.
    """
    is_needed = key_is_remembered()
    return rows.where(is_needed | F.col("has_memory")).select(
        F.lit(KEY_ENTRY).alias("kind"),
        F.col("key").alias("id"),
        "key",
        F.col("moved_by").alias("awaits"),
        F.col("order").alias(ORDER),
        F.col("kafka_position").alias(KAFKA),
        F.col("seen").alias(SEEN),
        (~is_needed).alias(DELETE),
    )


def rejected_entries(rejected: DataFrame) -> DataFrame:
    """The entries of rejected events.

    Columns in: `key`, `__kafka`, `unmet`. Columns out: `kind`, `id`, `key`, `__kafka`, `image`, `__delete`.
    """
    return rejected.select(
        F.lit(REJECTED_ENTRY).alias("kind"),
        F.to_json(KAFKA).alias("id"),
        *("key", KAFKA),
        F.to_json("unmet").alias("image"),
        F.lit(False).alias(DELETE),
    )


def forgotten(entries: DataFrame) -> DataFrame:
    """Entries, marked for deletion.

    Columns in: the side table's. Columns out: `kind`, `id`, `key`, `__kafka`, `__delete`.
    """
    return entries.select("kind", "id", "key", KAFKA, F.lit(True).alias(DELETE))


def table_entries(spark: SparkSession, before: TableEvents, after: TableEvents) -> DataFrame | None:
    """The changed entries that apply to all keys; None if there are none.

    Columns out: `kind`, `id`, `__order`, `__kafka`, `__seen`, `__delete`.
    """
    rows: list[tuple[object, ...]] = []
    start = after.start
    if start != before.start:
        rows.append((TABLE_ENTRY, START_ID, start.order, start.applied_at, start.seen_at, False))
    if after.snapshot != before.snapshot:
        rows.append((TABLE_ENTRY, SNAPSHOT_ID, None, after.snapshot, None, after.snapshot is None))
    if not rows:
        return None
    return from_rows(
        spark,
        rows,
        f"kind string, id string, {ORDER} {ORDER_TYPE}, {KAFKA} {KAFKA_TYPE}, {SEEN} {KAFKA_TYPE}, {DELETE} boolean",
    )


def remembered_table_events(entries: DataFrame) -> TableEvents:
    """The state that applies to all keys, which at most two of the entries have."""
    of_all_keys = entries.where(F.col("kind") == TABLE_ENTRY).select("id", ORDER, KAFKA, SEEN)
    by_id = {row["id"]: row for row in of_all_keys.collect()}
    start, snapshot = by_id.get(START_ID), by_id.get(SNAPSHOT_ID)
    return TableEvents(
        start=_start(start) if start else State(), snapshot=KafkaPosition(*snapshot[KAFKA]) if snapshot else None
    )


def _start(entry: Row) -> State:
    applied_at = entry[KAFKA] and KafkaPosition(*entry[KAFKA])
    seen_at = KafkaPosition(*entry[SEEN]) if entry[SEEN] else applied_at
    order = entry[ORDER] and Order(*entry[ORDER])
    return State(op=TRUNCATE if applied_at else "", applied_at=applied_at, seen_at=seen_at, order=order)


def side_rows(parts: Iterable[DataFrame], *, batch: int, at_ms: int) -> DataFrame:
    """All entries of a commit, with every column of the side table and `__delete`.

    Args:
        parts: entries with some of the columns, at least one part; no two with the same kind and id.
        batch: silver's commit number.
        at_ms: its time.
    """
    own = {"__batch": of_batch(batch, F.col("id")), "at_ms": of_batch(at_ms, F.col("id"))}

    def side(part: DataFrame) -> DataFrame:
        values = {name: own.get(name, F.col(name) if name in part.columns else F.lit(None)) for name in SIDE}
        return part.select(*(value.cast(SIDE[name]).alias(name) for name, value in values.items()), DELETE)

    return reduce(DataFrame.unionByName, map(side, parts))
