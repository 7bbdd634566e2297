"""Null-safe joins: null equals null."""

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import quoted


def null_safe_join(rows: DataFrame, others: DataFrame, on: Sequence[str], how: str) -> DataFrame:
    """The `rows` with (`left_semi`) or without (`left_anti`) a row in `others` with equal values in the columns `on`.

    Args:
        how: `left_semi` or `left_anti`.
    """
    same = (F.col(f"r.{quoted(name)}").eqNullSafe(F.col(f"o.{quoted(name)}")) for name in on)
    return rows.alias("r").join(others.alias("o"), reduce(and_, same), how)
