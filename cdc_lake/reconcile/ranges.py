"""Finding the ranges of keys in which two tables differ, by checksums: each that does is split until it is small.

The source's keys say where ranges begin, so that each holds about as many of its rows. Both sides have keys in the same
order; a range goes from its own beginning to that of the next, so every key there may be is in one.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cdc_lake.reconcile.canonical import Key

ROWS_PER_RANGE = 1_000
"""Ranges of so many rows of the source, or fewer, are not split."""
MOST_RANGES = 1_000
"""A pass over the table tells about so many ranges apart; the checksums of all are in memory."""


class Summary(NamedTuple):
    """What is compared of a range: the number of its rows, and the sums of their checksums' four parts."""

    rows: int = 0
    sums: tuple[int, int, int, int] = (0, 0, 0, 0)


class Range(NamedTuple):
    """The keys from `low` on, up to and without `high`; none where there is no end to that side."""

    low: Key | None
    high: Key | None


@dataclass(frozen=True)
class Places:
    """Where some ranges are among all keys, as a query takes it.

    Attributes:
        bounds: keys, in their order, at which another stretch of keys begins. A key's stretch has the number of bounds
            that are not behind it.
        numbers: those of the stretches that are the ranges, in the ranges' order.
    """

    bounds: Sequence[Key]
    numbers: Sequence[int]

    @classmethod
    def of(cls, ranges: Sequence[Range]) -> "Places":
        """The places of ranges, which do not overlap."""
        bounds: list[Key] = sorted({key for one in ranges for key in one if key is not None})
        return cls(bounds, [0 if one.low is None else bisect_right(bounds, one.low) for one in ranges])


SplitSource = Callable[[Places, int], Mapping[int, Sequence[tuple[Key, Summary]]]]
"""By number of a stretch its parts of so many rows of the source, in order: where each begins, and what it holds."""
SumSilver = Callable[[Places], Mapping[int, Summary]]
"""By number of a stretch what silver holds there; nothing, if no row."""


@dataclass
class Found:
    """Where two tables differ.

    Attributes:
        source_rows, silver_rows: of the whole tables.
        compared: how many ranges were compared, in all passes.
        differing: the ranges that differ and were not split further, in order.
        differing_rows: how many rows there are in them, on the side that has more.
    """

    source_rows: int = 0
    silver_rows: int = 0
    compared: int = 0
    differing: list[Range] = field(default_factory=list)
    differing_rows: int = 0


def differing_ranges(source: SplitSource, silver: SumSilver, rows: int) -> Found:
    """Compare two tables range by range, and what differs again in smaller ranges, as long as that narrows it down.

    Args:
        source, silver: the sides.
        rows: how many there are in the source.
    """
    found = Found(differing=[Range(None, None)], differing_rows=rows)
    size, smaller = math.inf, _size(rows)
    while found.differing and smaller <= size / 2:
        size = smaller
        parents = Places.of(found.differing)
        split = source(parents, smaller)
        parts = [
            part
            for one, number in zip(found.differing, parents.numbers, strict=True)
            for part in _parts(one, split.get(number, ()))
        ]
        children = Places.of([one for one, _ in parts])
        held = silver(children)
        both = [
            (one, here, held.get(number, Summary()))
            for (one, here), number in zip(parts, children.numbers, strict=True)
        ]
        if not found.compared:
            found.source_rows = sum(here.rows for _, here, _ in both)
            found.silver_rows = sum(there.rows for _, _, there in both)
        found.compared += len(both)
        different = [(one, here, there) for one, here, there in both if here != there]
        found.differing = [one for one, _, _ in different]
        found.differing_rows = sum(max(here.rows, there.rows) for _, here, there in different)
        smaller = _size(sum(here.rows for _, here, _ in different))
    return found


def _size(rows: int) -> int:
    """The rows of a range when so many are to be split."""
    return max(ROWS_PER_RANGE, math.ceil(rows / MOST_RANGES))


def _parts(one: Range, found: Sequence[tuple[Key, Summary]]) -> list[tuple[Range, Summary]]:
    """A range in parts: the first begins where the range does, whatever the first key in it is."""
    if not found:
        return [(one, Summary())]
    lows = [one.low, *(low for low, _ in found[1:])]
    highs = [*lows[1:], one.high]
    return [(Range(low, high), part) for low, high, (_, part) in zip(lows, highs, found, strict=True)]
