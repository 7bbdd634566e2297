"""Joins in which a null equals a null."""

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import quoted


def joined(rows: DataFrame, others: DataFrame, on: Sequence[str], how: str) -> DataFrame:
    """`rows` that have, or with `left_anti` have not, a partner in `others` with the same values of the columns `on`.

    Args:
        how: `left_semi` or `left_anti`.
    """
    same = (F.col(f"r.{quoted(name)}").eqNullSafe(F.col(f"o.{quoted(name)}")) for name in on)
    return rows.alias("r").join(others.alias("o"), reduce(and_, same), how)
