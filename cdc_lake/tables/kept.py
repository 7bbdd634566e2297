"""Changes that keep stored values, as whole rows."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import KEEP, KEY, quoted


def with_kept(changes: DataFrame, stored: DataFrame) -> DataFrame:
    """Whole rows: where a change keeps what is stored, that is filled in.

    Columns in: `changes`', and `stored`'s `__key` and those that there are. Columns out: `changes`'.
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
