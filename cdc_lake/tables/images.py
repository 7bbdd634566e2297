"""The rows of silver that changed between two versions, before and after the change."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import BATCH, quoted
from cdc_lake.tables.contract import Table
from cdc_lake.tables.joins import equal_in

IMAGE = "__image"
BEFORE, AFTER = "before", "after"


def images(silver: Table[Any], keys: Sequence[str], since: int, until: int) -> DataFrame:
    """The rows that differ between two versions of a silver table.

    Args:
        silver: the table.
        keys: its primary key.
        since, until: the versions.

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
    there = set(rows.columns)
    return rows.select(
        *(
            (F.col(quoted(field.name)) if field.name in there else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in wanted
        )
    )
