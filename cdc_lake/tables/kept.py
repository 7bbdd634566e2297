"""Complete changes that keep stored values."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import KEEP, KEY, quoted


def with_kept(changes: DataFrame, stored: DataFrame) -> DataFrame:
    """Fill the columns in `__keep` of each change with the stored values.

    Columns in: those of `changes`, and `__key` and others in `stored`. Columns out: those of `changes`.
    """
    joined = changes.alias("s").join(stored.alias("t"), F.col(f"s.{KEY}") == F.col(f"t.{KEY}"), "left")
    there = set(stored.columns) - {KEY}

    def value(name: str) -> Column:
        sent = F.col(f"s.{quoted(name)}")
        if name not in there:
            return sent
        is_kept = F.array_contains(f"s.{KEEP}", name)
        return F.when(is_kept, F.col(f"t.{quoted(name)}")).otherwise(sent).alias(name)

    return joined.select(*(value(name) for name in changes.columns))
