"""From the fold's pieces to the rows to write, and to the entries of the side table.

A piece of a row (`fold.arrow`) identifies the record with the row's values, the columns whose value in silver stays,
and those without a value. The latter are null, and listed in `__unavailable`. Entries are state that rows do not have;
`columns.SIDE` describes their kinds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import (
    BATCH,
    DELETE,
    DELETED,
    KAFKA,
    KAFKA_TYPE,
    KEEP,
    KEY,
    KEY_ENTRY,
    ORDER,
    ORDER_TYPE,
    REJECTED_ENTRY,
    SEEN,
    SIDE,
    SILVER_META,
    SNAPSHOT_ID,
    START_ID,
    TABLE_ENTRY,
    UNAVAILABLE,
)
from cdc_lake.fold.rules import DELETES, TRUNCATE, Order, State
from cdc_lake.fold.table_events import KafkaPosition, TableEvents
from cdc_lake.spark.arrow_stage import from_rows
from cdc_lake.spark.expressions import built_once, of_batch
from cdc_lake.tables.contract import Changes

OTHER_VALUES, INHERITED_VALUES, INHERITED_COLUMNS = "other_values", "inherited_values", "inherited_columns"
"""Columns of pieces: values from other records than the row's own; inherited values, and their columns."""


@dataclass(frozen=True)
class RowSchema:
    """The columns of a table's rows.

    Attributes:
        columns: all columns of the source table, keys first.
        large: the columns that an event may omit.
        keep_values: whether a soft-deleted row keeps its values outside the key; otherwise they are null.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    stored: frozenset[str]
    large: tuple[str, ...]
    keep_values: bool

    def is_emptied(self) -> Column:
        """Whether a piece's row is deleted, and deleted rows have nulls."""
        return is_deleted() & F.lit(not self.keep_values)


def is_deleted() -> Column:
    return F.col("op").isin(*DELETES)


def collect_large_values(pieces: DataFrame, by: Sequence[str], large: Sequence[str]) -> DataFrame:
    """The values of large columns that come from other records than the row's own.

    Columns in: `columns`, those that a piece's record supplies; `row`, decoded. Columns out: `by`, and `large_values`,
    a struct of the `large` columns, each a struct of one value `v`, null if no record supplies it.
    """

    def value(name: str) -> Column:
        is_given = F.array_contains("columns", name)
        return F.first(F.when(is_given, F.struct(F.col("row")[name].alias("v"))), ignorenulls=True).alias(name)

    return pieces.groupBy(*by).agg(F.struct(*(value(name) for name in large)).alias("large_values"))


def changes(rows: DataFrame, row_schema: RowSchema, *, batch: int, are_inserts: bool = False) -> Changes:
    """The rows to write: the source's columns, silver's own, and those of `Changes`.

    Args:
        rows: pieces of rows with `row`, decoded; `other_values` and `inherited_values`, structs as in
            `collect_large_values`, if there are any; `inherited_columns`, the columns in `inherited_values`.
        are_inserts: see `Changes`.
    """
    other_columns = frozenset({OTHER_VALUES, INHERITED_VALUES}.intersection(rows.columns))
    is_written, values, own = _changes(row_schema, other_columns)
    rows = rows.where(is_written).select(*values, of_batch(batch, F.col("key")).alias(BATCH), *own)
    return Changes(rows, row_schema.keys, are_inserts)


@built_once
def _changes(row_schema: RowSchema, other_columns: frozenset[str]) -> tuple[Column, Sequence[Column], Sequence[Column]]:
    """Whether to write a piece's row, and the columns of `changes` before and after `__batch`.

    Args:
        other_columns: the columns with values from other records.
    """
    names = [name for name in row_schema.columns if name not in row_schema.keys]
    nothing = F.array().cast("array<string>")
    stored = F.array(*(F.lit(name) for name in names if name in row_schema.stored)).cast("array<string>")
    # A row without an event of its own, which only inherits a value, keeps everything else.
    meta = F.array(*(F.lit(name) for name in SILVER_META if name not in (BATCH, UNAVAILABLE)))
    stays = F.array_except(stored, INHERITED_COLUMNS)
    stays = F.when(F.col("is_changed"), stays).otherwise(F.concat(stays, meta))
    is_emptied = row_schema.is_emptied()
    keep = (
        F.when(is_emptied | ~F.col("has_row"), nothing)
        .when(F.col("keeps_rest"), stays)
        .otherwise(F.array_intersect("kept", stored))
    )
    unavailable = (
        F.when(is_emptied, nothing)
        .when(F.col("keeps_rest"), F.array_intersect("missing", stored))
        .otherwise(F.col("missing"))
    )

    def value(name: str) -> Column:
        column = F.col("row")[name]
        if name in row_schema.large:
            is_sent = ~F.array_contains("kept", name) & ~F.array_contains("missing", name)
            column = F.when(is_sent, column)
            for other in other_columns:
                large_values = F.col(other)[name]
                column = F.when(large_values.isNotNull(), large_values["v"]).otherwise(column)
        return F.when(~is_emptied, column)

    is_written = (F.col("is_changed") | (F.size(INHERITED_COLUMNS) > 0)) & (F.col("has_row") | F.col("has_stored"))
    values = (
        *(F.col("pk")[name].alias(name) for name in row_schema.keys),
        *(value(name).alias(name) for name in names),
        F.col("op").alias("__op"),
        is_deleted().alias(DELETED),
        F.col("source")["ts_ms"].alias("__source_ts_ms"),
        F.col("source")["position"].alias("__source_position"),
        F.col("snapshot").alias("__snapshot"),
        F.col("kafka_position").alias(KAFKA),
        F.col("order").alias(ORDER),
    )
    own = (
        unavailable.alias(UNAVAILABLE),
        F.col("key").alias(KEY),
        keep.alias(KEEP),
        (~F.col("has_row")).alias(DELETE),
    )
    return is_written, values, own


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
    """
    own = {"__batch": of_batch(batch, F.col("id")), "at_ms": of_batch(at_ms, F.col("id"))}

    def side(part: DataFrame) -> DataFrame:
        values = {name: own.get(name, F.col(name) if name in part.columns else F.lit(None)) for name in SIDE}
        return part.select(*(value.cast(SIDE[name]).alias(name) for name, value in values.items()), DELETE)

    return reduce(DataFrame.unionByName, map(side, parts))
