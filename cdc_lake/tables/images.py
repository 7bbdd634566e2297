"""What became of silver's rows between two versions: how they were, and how they are."""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import BATCH, quoted
from cdc_lake.tables.contract import Table

IMAGE = "__image"
BEFORE, AFTER = "before", "after"


def images(silver: Table[Any], keys: Sequence[str], since: int, until: int) -> DataFrame:
    """The rows that differ between two versions of a silver table.

    Args:
        silver: the table.
        keys: its primary key.
        since, until: the versions.

    Returns:
        The table's columns as of `until`, and `__image`: `before`, the row as it was, and `after`, as it is. Of a
        changed row both, one of each; of a new one no `before`, of one that went no `after`. Files that both versions
        have are not read.

    Raises:
        ExpiredError: the table has let one of the versions go.
    """
    before, after = silver.differing(since, until)
    before = as_columns_of(after, before)
    # A commit's number is never used twice, so rows that share it and their key are the same.
    same = (F.col(f"b.{quoted(name)}").eqNullSafe(F.col(f"a.{quoted(name)}")) for name in (*keys, BATCH))
    was, is_now = (rows.select(F.struct("*").alias("row"), *map(quoted, (*keys, BATCH))) for rows in (before, after))
    both = was.alias("b").join(is_now.alias("a"), reduce(and_, same), "full")
    alone = both.where(F.col("b.row").isNull() | F.col("a.row").isNull())
    image = F.when(F.col("a.row").isNull(), BEFORE).otherwise(AFTER).alias(IMAGE)
    return alone.select(F.coalesce("b.row", "a.row").alias("row"), image).select("row.*", IMAGE)


def as_columns_of(wanted: DataFrame, rows: DataFrame) -> DataFrame:
    """Rows of an older version in the columns of a newer one; those that it did not have are null."""
    there = set(rows.columns)
    return rows.select(
        *(
            (F.col(quoted(field.name)) if field.name in there else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in wanted.schema
        )
    )
