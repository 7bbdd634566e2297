"""Null-safe joins: null equals null."""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import quoted


def equal_in(names: Iterable[str], one: str, other: str) -> Column:
    """Whether two rows have equal values in columns.

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
