"""Ranges of keys are split where two tables differ, until they are small, and no difference is lost."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lake.reconcile import comparison
from cdc_lake.reconcile.canonical import Key
from cdc_lake.reconcile.comparison import Range, RangeBuckets, RangeComparison, Summary, differing_ranges

pytestmark = pytest.mark.core

Rows = Mapping[Any, int]
"""A row's checksum, by key."""


def bucket(buckets: RangeBuckets, key: Key) -> int:
    return sum(bound <= key for bound in buckets.bounds)  # type: ignore[operator]


def total(rows: Rows, keys: Sequence[Key]) -> Summary:
    return Summary(len(keys), (sum(rows[key] for key in keys), 0, 0, 0))


class Tables:
    """Two tables in plain Python, which count how often they are read."""

    def __init__(self, source: Rows, silver: Rows) -> None:
        self.source, self.silver = source, silver
        self.passes = 0
        self.most = 0

    def split(self, buckets: RangeBuckets, size: int) -> Mapping[int, Sequence[tuple[Key, Summary]]]:
        self.passes += 1
        found = {}
        for number in buckets.numbers:
            keys = sorted(key for key in self.source if bucket(buckets, key) == number)
            parts = [keys[at : at + size] for at in range(0, len(keys), size)]
            found[number] = [(part[0], total(self.source, part)) for part in parts]
        return {number: parts for number, parts in found.items() if parts}

    def sum(self, buckets: RangeBuckets) -> Mapping[int, Summary]:
        self.most = max(self.most, len(buckets.numbers))
        found = {number: [key for key in self.silver if bucket(buckets, key) == number] for number in buckets.numbers}
        return {number: total(self.silver, keys) for number, keys in found.items() if keys}

    def compared(self) -> RangeComparison:
        return differing_ranges(self.split, self.sum, len(self.source))


def is_in(one: Range, key: Key) -> bool:
    return (one.low is None or one.low <= key) and (one.high is None or key < one.high)  # type: ignore[operator]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "ROWS_PER_RANGE", 3)
    monkeypatch.setattr(comparison, "MAX_RANGES", 10)


def keys_of(kind: Callable[[int], Key]) -> st.SearchStrategy[dict[Key, int]]:
    return st.dictionaries(st.integers(-200, 200).map(kind), st.integers(0, 9), max_size=120)


@pytest.mark.parametrize("kind", [int, str])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_every_differing_key_is_in_exactly_one_range(kind: Any, data: st.DataObject) -> None:
    source = data.draw(keys_of(kind))
    silver = source | data.draw(keys_of(kind)) if data.draw(st.booleans()) else data.draw(keys_of(kind))
    differing = {key for key in source.keys() | silver.keys() if source.get(key) != silver.get(key)}
    tables = Tables(source, silver)

    found = tables.compared()

    ranges_of = Counter(key for key in differing for one in found.differing if is_in(one, key))
    hidden = differing - ranges_of.keys()  # rows whose checksums cancel out, which MD5 sums do not
    assert sum(source.get(key, 0) for key in hidden) == sum(silver.get(key, 0) for key in hidden)
    assert set(ranges_of.values()) <= {1}
    assert (found.source_rows, found.silver_rows) == (len(source), len(silver))
    assert tables.most <= 2 * comparison.MAX_RANGES + 2


def test_single_differing_row_is_narrowed_to_a_small_range() -> None:
    rows = {number: number for number in range(1_000)}
    tables = Tables(rows, rows | {618: 0})

    found = tables.compared()

    assert [(one.low <= 618 < one.high) for one in found.differing] == [True]  # type: ignore[operator]
    assert (tables.passes, found.differing_rows) == (3, 3)


def test_fully_different_rows_are_not_split_needlessly() -> None:
    tables = Tables({number: 1 for number in range(1_000)}, {number: 2 for number in range(1_000)})

    found = tables.compared()

    assert (tables.passes, found.compared, found.differing_rows) == (1, 10, 1_000)


def test_keys_outside_the_source_keys_belong_to_a_range() -> None:
    source = {number: 1 for number in range(100, 200, 10)}
    for key in (-5, 105, 999):
        found = Tables(source, source | {key: 1}).compared()

        assert [is_in(one, key) for one in found.differing] == [True]


def test_equal_tables_need_one_pass() -> None:
    rows = {str(number): number for number in range(100)}
    tables = Tables(rows, rows)

    assert tables.compared() == RangeComparison(100, 100, 10, [], 0)
    assert tables.passes == 1
