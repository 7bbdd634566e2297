"""Read silver: the live rows of a table's version."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import DELETED, UNAVAILABLE, quoted
from cdc_lake.reconcile.canonical import Key, Shared, SharedColumn, join_in_silver
from cdc_lake.reconcile.comparison import RangeBuckets, Summary, TextRow

_ROWS_AT_ONCE = 1_000
_POSITION = "__source_position"


def lsn(rows: DataFrame) -> int | None:
    """The highest position in Postgres's log of the changes in a silver table, including deletes."""
    ((found,),) = rows.agg(F.max(F.col(_POSITION)[0])).collect()
    return None if found is None else int(found)


class SilverRows:
    """A table's rows as canonical texts.

    Args:
        rows: the rows of one version, including silver's own columns.
        shared: the columns to compare.
    """

    def __init__(self, rows: DataFrame, shared: Shared) -> None:
        live = rows.where(~F.col(DELETED).eqNullSafe(True))
        key, texts = ([_text(one) for one in columns] for columns in (shared.key, shared.others))
        self._type = "bigint" if shared.has_number_as_key else "string"
        one_key = key[0].cast(self._type) if len(key) == 1 else join_in_silver(key)
        self._digests = live.select(one_key.alias("key"), F.md5(join_in_silver([*key, *texts])).alias("digest"))
        names = [text.alias(f"_{number}") for number, text in enumerate(texts)]
        self._texts = live.select(one_key.alias("key"), F.col(UNAVAILABLE).alias("unavailable"), *names)

    def sum(self, buckets: RangeBuckets) -> Mapping[int, Summary]:
        """See `comparison.SumSilver`."""
        parts = (F.conv(F.substring("digest", at, 8), 16, 10).cast("bigint") for at in (1, 9, 17, 25))
        found = self._in(self._digests, buckets).groupBy("bucket").agg(F.count("*"), *map(F.sum, parts))
        return {number: Summary(rows, tuple(sums)) for number, rows, *sums in found.collect()}

    def rows(self, buckets: RangeBuckets, number: int) -> Iterator[TextRow]:
        """Stream the rows of some ranges in key order, about a thousand at a time.

        Args:
            number: estimated number of rows.
        """
        rows = self._in(self._texts, buckets).drop("bucket")
        partitions = max(math.ceil(number / _ROWS_AT_ONCE), 1)
        ordered = rows.repartitionByRange(partitions, "key").sortWithinPartitions("key")
        return map(_text_row, ordered.toLocalIterator())

    def rows_of(self, keys: Sequence[Key]) -> Iterator[TextRow]:
        """The rows of these keys, in key order."""
        found = self._texts.where(F.col("key").isin(list(keys))).collect()
        return iter(sorted(map(_text_row, found), key=lambda row: row.key))

    def _in(self, rows: DataFrame, buckets: RangeBuckets) -> DataFrame:
        numbered = rows.withColumn("bucket", self._bucket(buckets.bounds))
        is_all = len(buckets.numbers) > len(buckets.bounds)
        return numbered if is_all else numbered.where(F.col("bucket").isin(list(buckets.numbers)))

    def _bucket(self, bounds: Sequence[Key]) -> Column:
        """The number of a key's bucket, int, by binary search in `bounds`."""
        if not bounds:
            return F.lit(0)
        # One JSON literal: Spark takes long to plan a thousand literals.
        there = F.from_json(F.lit(json.dumps(list(bounds))), f"array<{self._type}>")
        steps = F.array(*(F.lit(1 << bit) for bit in reversed(range(len(bounds).bit_length()))))
        return F.aggregate(
            steps,
            F.lit(0),
            lambda at, step: F.when(F.get(there, at + step - 1) <= F.col("key"), at + step).otherwise(at),
        )


def _text(one: SharedColumn) -> Column:
    return F.coalesce(*(rule.silver(F.col(quoted(name))) for name, rule in one.rules.items()))


def _text_row(row: Sequence[object]) -> TextRow:
    key, unavailable, *texts = row
    return TextRow(key, tuple(texts), tuple(unavailable or ()))  # type: ignore[arg-type]
