"""Joins of rows: with null keys, between two versions of a table, and of changes with the values that they keep."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import BATCH, KEEP, KEY, quoted
from cdc_lake.tables.contract import Changes, Table

IMAGE = "__image"
BEFORE, AFTER = "before", "after"


def equal_in(names: Iterable[str], one: str, other: str) -> Column:
    """Whether two rows have equal values in columns; null equals null.

    Args:
        one, other: the aliases of the rows' DataFrames.
    """
    return reduce(and_, (F.col(f"{one}.{quoted(name)}").eqNullSafe(F.col(f"{other}.{quoted(name)}")) for name in names))


def null_safe_join(rows: DataFrame, others: DataFrame, on: Sequence[str], how: str) -> DataFrame:
    """The `rows` with (`left_semi`) or without (`left_anti`) a row in `others` with equal values in the columns `on`.

    Args:
        how: `left_semi` or `left_anti`.
    """
    return rows.alias("r").join(others.alias("o"), equal_in(on, "r", "o"), how)


def images(silver: Table[Any], keys: Sequence[str], since: int, until: int) -> DataFrame:
    """The rows that differ between two versions of a silver table.

    Args:
        keys: its primary key.

    Returns:
        The table's columns as of `until`, and `__image`: `before` or `after`. A changed row has both, a new one only
        `after`, a deleted one only `before`. Files that both versions have are not read.

    Raises:
        ExpiredError: the table no longer retains one of the versions.
    """
    before, after = silver.differing(since, until)
    before = as_columns_of(after.schema, before)
    # Commit numbers are never reused, so rows with the same number and key are equal.
    same = equal_in((*keys, BATCH), "b", "a")
    was, is_now = (rows.select(F.struct("*").alias("row"), *map(quoted, (*keys, BATCH))) for rows in (before, after))
    both = was.alias("b").join(is_now.alias("a"), same, "full")
    alone = both.where(F.col("b.row").isNull() | F.col("a.row").isNull())
    image = F.when(F.col("a.row").isNull(), BEFORE).otherwise(AFTER).alias(IMAGE)
    return alone.select(F.coalesce("b.row", "a.row").alias("row"), image).select("row.*", IMAGE)


def as_columns_of(wanted: StructType, rows: DataFrame) -> DataFrame:
    """Rows with the columns of another table or version; columns that they lack are null."""
    columns = set(rows.columns)
    return rows.select(
        *(
            (F.col(quoted(field.name)) if field.name in columns else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in wanted
        )
    )


def kept_or_sent(name: str) -> Column:
    """The value of a column after a change: the stored one if `__keep` has the column, else the one that was sent.

    Columns in: those of the change under the alias `s`, and of the stored row under `t`.
    """
    return F.when(F.array_contains(f"s.{KEEP}", name), F.col(f"t.{quoted(name)}")).otherwise(F.col(f"s.{quoted(name)}"))


def with_kept(changes: Changes, stored: DataFrame) -> Changes:
    """Fill the columns in `__keep` of each change with the values of the stored rows, which have a `__key`, too."""
    joined = changes.rows.alias("s").join(stored.alias("t"), F.col(f"s.{KEY}") == F.col(f"t.{KEY}"), "left")
    stored_columns = set(stored.columns) - {KEY}

    def value(name: str) -> Column:
        return kept_or_sent(name).alias(name) if name in stored_columns else F.col(f"s.{quoted(name)}")

    return replace(changes, rows=joined.select(*(value(name) for name in changes.rows.columns)))
