"""Compare two tables: the checksums of ranges of keys, then the rows of the ranges that differ.

The source's keys define where ranges begin, so that each has about the same number of rows. Both sides order keys
alike, and each range ends where the next begins, so every possible key is in one range. Ranges that differ are split.
Rows are compared by key and column, and known losses are separated from differences.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from cdc_lake.reconcile.canonical import Cell, Key, Shared, SharedColumn

ROWS_PER_RANGE = 1_000
"""Ranges with at most this many rows in the source are not split."""
MAX_RANGES = 1_000
"""Number of ranges in one pass over the table; the checksums of all are in memory."""
NEVER_THERE: Final = "unchanged values that were not sent and that silver never had (`__unavailable`)"

Kind = Literal["missing", "extra", "changed", "repeated"]


class Summary(NamedTuple):
    """Checksum of a range: the number of rows, and the sums of the four parts of their MD5 digests."""

    rows: int = 0
    sums: tuple[int, int, int, int] = (0, 0, 0, 0)


class Range(NamedTuple):
    """The keys from `low` to `high`, exclusive; none means unbounded."""

    low: Key | None
    high: Key | None


@dataclass(frozen=True)
class RangeBuckets:
    """Ranges as numbered buckets of all keys, for queries.

    Attributes:
        bounds: sorted keys at which buckets begin. The number of a key's bucket is the number of bounds up to it.
        numbers: the numbers of the buckets that are the ranges, in their order.
    """

    bounds: Sequence[Key]
    numbers: Sequence[int]

    @classmethod
    def of(cls, ranges: Sequence[Range]) -> "RangeBuckets":
        """The buckets of ranges that do not overlap."""
        bounds: list[Key] = sorted({key for one in ranges for key in one if key is not None})
        return cls(bounds, [0 if one.low is None else bisect_right(bounds, one.low) for one in ranges])


SplitSource = Callable[[RangeBuckets, int], Mapping[int, Sequence[tuple[Key, Summary]]]]
"""Split buckets into parts with a number of the source's rows: bucket -> first key and checksum of each part."""
SumSilver = Callable[[RangeBuckets], Mapping[int, Summary]]
"""Bucket -> checksum in silver; omitted if it has no rows."""


@dataclass
class RangeComparison:
    """The ranges in which two tables differ.

    Attributes:
        source_rows, silver_rows: the numbers of rows of the whole tables.
        compared: number of compared ranges in all passes.
        differing: the ranges that differ and were not split further, in order.
        differing_rows: number of rows in them, on the side that has more.
    """

    source_rows: int = 0
    silver_rows: int = 0
    compared: int = 0
    differing: list[Range] = field(default_factory=list)
    differing_rows: int = 0


def differing_ranges(source: SplitSource, silver: SumSilver, rows: int) -> RangeComparison:
    """Compare two tables range by range, and split the ranges that differ as long as that narrows them down."""
    comparison = RangeComparison(differing=[Range(None, None)], differing_rows=rows)
    size, smaller = math.inf, _size(rows)
    while comparison.differing and smaller <= size / 2:
        size = smaller
        parents = RangeBuckets.of(comparison.differing)
        split = source(parents, smaller)
        parts = [
            part
            for parent, number in zip(comparison.differing, parents.numbers, strict=True)
            for part in _parts(parent, split.get(number, ()))
        ]
        children = RangeBuckets.of([key_range for key_range, _ in parts])
        sums = silver(children)
        both = [
            (key_range, here, sums.get(number, Summary()))
            for (key_range, here), number in zip(parts, children.numbers, strict=True)
        ]
        if not comparison.compared:
            comparison.source_rows = sum(here.rows for _, here, _ in both)
            comparison.silver_rows = sum(there.rows for _, _, there in both)
        comparison.compared += len(both)
        different = [(key_range, here, there) for key_range, here, there in both if here != there]
        comparison.differing = [key_range for key_range, _, _ in different]
        comparison.differing_rows = sum(max(here.rows, there.rows) for _, here, there in different)
        smaller = _size(sum(here.rows for _, here, _ in different))
    return comparison


def _size(rows: int) -> int:
    """The number of rows per range when `rows` are split."""
    return max(ROWS_PER_RANGE, math.ceil(rows / MAX_RANGES))


def _parts(whole: Range, parts: Sequence[tuple[Key, Summary]]) -> list[tuple[Range, Summary]]:
    """A range in parts; the first part begins where the range begins."""
    if not parts:
        return [(whole, Summary())]
    lows = [whole.low, *(low for low, _ in parts[1:])]
    highs = [*lows[1:], whole.high]
    return [(Range(low, high), part) for low, high, (_, part) in zip(lows, highs, parts, strict=True)]


class TextRow(NamedTuple):
    """A row as canonical texts.

    Attributes:
        texts: the texts of the compared columns, in order.
        unavailable: names of silver's columns whose values it never received.
    """

    key: Key
    texts: tuple[str | None, ...]
    unavailable: tuple[str, ...] = ()


class RowDifference(NamedTuple):
    """A key whose rows differ: missing in silver, extra there, repeated there, or changed.

    Attributes:
        columns: for a changed row, the source's names of the columns that differ.
    """

    kind: Kind
    key: Key
    columns: tuple[str, ...] = ()


@dataclass
class Differences:
    """Counts and samples of differences.

    Attributes:
        kept: maximum number of samples.
        counts: differences by kind, without known losses.
        losses: values lost before Kafka or never sent, and quarantined rows, by kind of loss.
        first: the first differences.
        lost_keys: number of missing keys that may have been sent as other rows' keys.
    """

    shared: Shared
    kept: int
    counts: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    first: list[RowDifference] = field(default_factory=list)
    lost_keys: int = 0

    def compare(self, source: Iterator[TextRow], silver: Iterator[TextRow]) -> None:
        """Compare the rows of both sides, which stream in key order."""
        here, there = next(source, None), next(silver, None)
        while here or there:
            if there is None or (here is not None and here.key < there.key):  # type: ignore[operator]
                assert here is not None
                self._add_missing(here.key)
                here = next(source, None)
                continue
            if here is None or there.key < here.key:  # type: ignore[operator]
                self._add(RowDifference("extra", there.key))
                there = self._next(silver, there)
                continue
            if here.texts != there.texts:
                self._compare_values(here, there)
            here, there = next(source, None), self._next(silver, there)

    def _next(self, silver: Iterator[TextRow], last: TextRow) -> TextRow | None:
        """Silver's next row with another key."""
        following = next(silver, None)
        while following is not None and following.key == last.key:
            self._add(RowDifference("repeated", last.key))
            following = next(silver, None)
        return following

    def _add_missing(self, key: Key) -> None:
        loss = self.shared.loss_of(key)
        if loss:
            self.losses[loss] += 1
            return
        self._add(RowDifference("missing", key))
        self.lost_keys += self.shared.may_be_another_key(key)

    def _compare_values(self, here: TextRow, there: TextRow) -> None:
        changed = []
        for shared_column, source, lake in zip(self.shared.others, here.texts, there.texts, strict=True):
            if source == lake:
                continue
            loss = self._loss(shared_column, source, lake, there.unavailable)
            if loss is None:
                changed.append(shared_column.column.name)
            else:
                self.losses[loss] += 1
        if changed:
            self._add(RowDifference("changed", here.key, tuple(changed)))

    def _loss(
        self, shared_column: SharedColumn, source: str | None, lake: str | None, unavailable: tuple[str, ...]
    ) -> str | None:
        if lake is None and not shared_column.rules.keys().isdisjoint(unavailable):
            return NEVER_THERE
        here, there = (None if text is None else shared_column.rule.read(text) for text in (source, lake))
        return self.shared.table.loss(Cell(shared_column.column.name, here, there))

    def _add(self, difference: RowDifference) -> None:
        self.counts[difference.kind] += 1
        if len(self.first) < self.kept:
            self.first.append(difference)
