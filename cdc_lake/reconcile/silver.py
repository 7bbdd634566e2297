"""Silver's side: a version of a table, without the rows that are marked deleted."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import DELETED, UNAVAILABLE, quoted
from cdc_lake.reconcile.canonical import Key, joined_in_silver
from cdc_lake.reconcile.columns import Shared, SharedColumn
from cdc_lake.reconcile.ranges import Places, Summary
from cdc_lake.reconcile.rows import TextRow

_ROWS_AT_ONCE = 1_000
_POSITION = "__source_position"


def lsn(rows: DataFrame) -> int | None:
    """The highest place in Postgres' log that a silver table has a change of, deletes among them."""
    ((found,),) = rows.agg(F.max(F.col(_POSITION)[0])).collect()
    return None if found is None else int(found)


class SilverRows:
    """A table's rows as canonical texts.

    Args:
        rows: of one version, silver's own columns among them.
        shared: what of the table is compared.
    """

    def __init__(self, rows: DataFrame, shared: Shared) -> None:
        live = rows.where(~F.col(DELETED).eqNullSafe(True))
        key, texts = ([_text(one) for one in columns] for columns in (shared.key, shared.others))
        self._type = "bigint" if shared.has_number_as_key else "string"
        one_key = key[0].cast(self._type) if len(key) == 1 else joined_in_silver(key)
        self._digests = live.select(one_key.alias("key"), F.md5(joined_in_silver([*key, *texts])).alias("digest"))
        names = [text.alias(f"_{number}") for number, text in enumerate(texts)]
        self._texts = live.select(one_key.alias("key"), F.col(UNAVAILABLE).alias("unavailable"), *names)

    def sum(self, places: Places) -> Mapping[int, Summary]:
        """See `ranges.SumSilver`."""
        parts = (F.conv(F.substring("digest", at, 8), 16, 10).cast("bigint") for at in (1, 9, 17, 25))
        found = self._in(self._digests, places).groupBy("stretch").agg(F.count("*"), *map(F.sum, parts))
        return {number: Summary(rows, tuple(sums)) for number, rows, *sums in found.collect()}

    def rows(self, places: Places, number: int) -> Iterator[TextRow]:
        """The rows of some ranges, in the order of their keys; about a thousand of them are in memory.

        Args:
            number: about how many there are.
        """
        rows = self._in(self._texts, places).drop("stretch")
        partitions = max(math.ceil(number / _ROWS_AT_ONCE), 1)
        ordered = rows.repartitionByRange(partitions, "key").sortWithinPartitions("key")
        return map(_text_row, ordered.toLocalIterator())

    def rows_of(self, keys: Sequence[Key]) -> Iterator[TextRow]:
        """The rows of these keys, in their order."""
        found = self._texts.where(F.col("key").isin(list(keys))).collect()
        return iter(sorted(map(_text_row, found), key=lambda row: row.key))

    def _in(self, rows: DataFrame, places: Places) -> DataFrame:
        numbered = rows.withColumn("stretch", self._stretch(places.bounds))
        is_all = len(places.numbers) > len(places.bounds)
        return numbered if is_all else numbered.where(F.col("stretch").isin(list(places.numbers)))

    def _stretch(self, bounds: Sequence[Key]) -> Column:
        """How many bounds are not behind a row's key, int: they are halved until it is found."""
        if not bounds:
            return F.lit(0)
        # One expression: a literal for each of a thousand keys would take long to plan.
        there = F.from_json(F.lit(json.dumps(list(bounds))), f"array<{self._type}>")
        steps = F.array(*(F.lit(1 << bit) for bit in reversed(range(len(bounds).bit_length()))))
        return F.aggregate(
            steps,
            F.lit(0),
            lambda at, step: F.when(F.get(there, at + step - 1) <= F.col("key"), at + step).otherwise(at),
        )


def _text(one: SharedColumn) -> Column:
    return F.coalesce(*(rule.silver(F.col(quoted(name))) for name, rule in one.held.items()))


def _text_row(row: Sequence[object]) -> TextRow:
    key, unavailable, *texts = row
    return TextRow(key, tuple(texts), tuple(unavailable or ()))  # type: ignore[arg-type]
