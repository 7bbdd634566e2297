"""From the fold's pieces to the rows to write.

A piece of a row (`fold.arrow`) identifies the record with the row's values, the columns whose value in silver stays,
and those without a value. The latter are null, and listed in `__unavailable`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import BATCH, DELETE, DELETED, KAFKA, KEEP, KEY, ORDER, SILVER_META, UNAVAILABLE
from cdc_lake.fold.rules import DELETES
from cdc_lake.spark.expressions import built_once, of_batch
from cdc_lake.tables.contract import Changes

OTHER_VALUES, INHERITED_VALUES, INHERITED_COLUMNS = "other_values", "inherited_values", "inherited_columns"
"""Columns of pieces: values from other records than the row's own; inherited values, and their columns."""


@dataclass(frozen=True)
class RowSchema:
    """The columns of a table's rows.

    Attributes:
        keys: the primary key's columns.
        columns: all columns of the source table, keys first.
        stored: the columns that the table already has.
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
    """Whether a piece's row is deleted."""
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
        row_schema: the columns of the table's rows.
        batch: silver's commit number.
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
