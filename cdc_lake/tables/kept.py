"""Fill changes with the stored values that they keep."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import KEEP, KEY, quoted


def kept_or_sent(name: str) -> Column:
    """The value of a column after a change: the stored one if `__keep` has the column, else the one that was sent.

    Columns in: those of the change under the alias `s`, and of the stored row under `t`.
    """
    return F.when(F.array_contains(f"s.{KEEP}", name), F.col(f"t.{quoted(name)}")).otherwise(F.col(f"s.{quoted(name)}"))


def with_kept(changes: DataFrame, stored: DataFrame) -> DataFrame:
    """Fill the columns in `__keep` of each change with the stored values.

    Columns in: those of `changes`, and `__key` and others in `stored`. Columns out: those of `changes`.
    """
    joined = changes.alias("s").join(stored.alias("t"), F.col(f"s.{KEY}") == F.col(f"t.{KEY}"), "left")
    there = set(stored.columns) - {KEY}

    def value(name: str) -> Column:
        return kept_or_sent(name).alias(name) if name in there else F.col(f"s.{quoted(name)}")

    return joined.select(*(value(name) for name in changes.columns))
