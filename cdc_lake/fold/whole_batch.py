"""Fold whole batches by index arithmetic, for the runs in which all events are applied."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.fold.rules import DELETES, SHARED, TOMBSTONE, UPSERTS
from cdc_lake.fold.stream import (
    EVENT,
    KAFKA_POSITION,
    MEMORY,
    ORDER_TYPE,
    ROW,
    ROW_PIECE,
    STRINGS,
    VALUES_PIECE,
    Rules,
    batch_of_pieces,
    order_dict,
)

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_NARROW = (
    "key",
    "rank",
    "kafka_position",
    "op",
    "is_streaming",
    "order",
    "read_at",
    "unsent",
    "key_change",
    "seen",
    "snapshot",
    "is_new",
    "refold",
)
"""The columns without the bytes and the primary key."""
_RARE = ("has_memory", "is_refolded", "is_out_of_order", "has_duplicates")
"""Markers of pieces that are false for every run in which all events are applied."""
_IGNORED = ("stale", "outdated", "behind_clock", "behind_ms")
"""Counts of ignored events."""


class WholeBatch:
    """A batch of the stream, computed at once as if each run were complete and all its events were applied.

    Attributes:
        is_slow: by run, whether it must go through `step`.
    """

    def __init__(self, batch: pa.RecordBatch, rules: Rules) -> None:
        self._batch, self._rules = batch, rules
        self._n = n = batch.num_rows
        # Example: key A has a row in silver, an update and a snapshot row; B an insert and a tombstone; C an insert.
        #   row      0  1  2    3  4          5
        #   op       u  u  r    c  tombstone  c    (row 0 is silver's)
        #   _run     0  0  0    1  1          2
        #   _mark    0  1  1    3  4          5    the row whose order the key has after this row
        #   _first and _last, by run: 0 3 5 and 2 4 5
        self._keys = batch.column("key")
        is_first = np.ones(n, bool)
        is_first[1:] = _to_numpy(pc.not_equal(self._keys.slice(1), self._keys.slice(0, n - 1)))
        self._first: Ints = np.flatnonzero(is_first)
        self._last: Ints = np.append(self._first[1:], n) - 1
        self._run: Ints = np.cumsum(is_first) - 1
        self._rank = _to_numpy(batch.column("rank"))
        self._is_event = self._rank == EVENT
        op = batch.column("op")
        self._is_upsert = _is_in(op, UPSERTS)
        self._is_delete = _is_in(op, DELETES)
        self._is_tombstone = self._is_event & _is_in(op, (TOMBSTONE,))
        self._is_streaming = self._is_event & _to_numpy(batch.column("is_streaming"))
        self._mark = self._last_of((self._rank == ROW) | self._is_streaming | self._is_tombstone)
        self._compare()
        self.is_slow = self._find_slow()

    @property
    def first_key(self) -> str:
        """The first run's key."""
        key: str = self._keys[0].as_py()
        return key

    def rows(self, is_wanted: Bools) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows of some runs: their numbers, and their columns without the bytes."""
        numbers = np.flatnonzero(is_wanted[self._run])
        narrow = self._batch.select(list(_NARROW)).take(pa.array(numbers))
        return zip(numbers.tolist(), narrow.to_pylist(), strict=True)

    def _last_of(self, is_one: Bools) -> Ints:
        """For each row, the last marked row at or before it in the same run; -1 if there is none.

        In the example above, if rows 0 and 3 are marked: 0 0 0 3 3 -1.
        """
        last = np.maximum.accumulate(np.where(is_one, np.arange(self._n), -1))
        return np.where(last >= self._first[self._run], last, -1)

    def _compare(self) -> None:
        """Compare events with the last event that has an order, like `rules.is_stale` and `rules.is_outdated`."""
        order, start = self._batch.column("order"), self._rules.start.order
        # Entry n is the order of a key without stored state: null, or that of the last truncate.
        orders = pa.concat_arrays([order, pa.array([order_dict(start)], order.type)])
        position, has_position = _padded(orders.field("position"))
        ts_ms, has_ts = _filled(orders.field("ts_ms"))
        domain = _to_numpy(pc.fill_null(orders.field("domain").dictionary_encode().indices, -1))
        nothing = np.append(self._is_tombstone, start is None)
        has_position, has_ts = has_position & ~nothing, has_ts & ~nothing
        # The row to compare each row with. In the example of `__init__`: 6 0 1 6 3 6. Row 3 is B's first, so the mark
        # of the row before it, which is A's, does not count.
        before = np.append(-1, self._mark[:-1])
        before = np.where(before >= self._first[self._run], before, self._n)
        now = np.arange(self._n)  # the rows; entry n is only for `before`
        is_comparable = has_position[now] & has_position[before] & (domain[now] == domain[before])
        pairs = zip(position[now].T, position[before].T, strict=True)
        is_less, is_equal = _lexicographic(((one < other, one == other) for one, other in pairs), self._n)
        # Unknown times are neither older nor newer.
        both_timed = has_ts[now] & has_ts[before]
        is_older = both_timed & (ts_ms[now] < ts_ms[before])
        is_newer = both_timed & (ts_ms[now] > ts_ms[before])
        # [40] after [40] is the same event, sent again. [999, 154, SHARED] twice are two events of a transaction.
        is_same_event = is_equal & (_last_of_lists(orders.field("position"))[now] != SHARED)
        is_stale = np.where(is_comparable, (is_less | is_same_event) & ~is_newer, is_older)
        is_read = self._is_event & self._is_upsert & ~self._is_streaming
        is_outdated = is_comparable & is_less & ~(is_newer & self._rules.log_may_reset)
        self._is_stale = np.where(is_read, is_outdated, self._is_streaming & is_stale)
        has_order = _to_numpy(pc.is_valid(orders)) & ~nothing
        # Whether the row directly before leaves the key live, so that a snapshot row replaces values.
        is_live = np.append(False, self._is_upsert[:-1] & (self._run[1:] == self._run[:-1]))
        self._is_unplaced = is_read & is_live & has_order[before] & ~has_position[now] & ~has_position[before]
        self._is_compared = self._is_streaming & is_comparable
        self._is_reset = self._is_compared & is_less & is_newer

    def _find_slow(self) -> Bools:
        """By run, whether an event may be ignored, or the run needs state that is not in its rows."""
        rules, first = self._rules, self._first
        # Whole-table events have no rows here, but belong between the rows of every run.
        if rules.table_events or rules.all_table_events:
            return np.ones(len(first), bool)
        is_odd = self._is_stale | (self._rank == MEMORY) | _to_numpy(self._batch.column("refold"))
        is_odd |= _to_numpy(pc.is_valid(self._batch.column("key_change")))
        is_second = np.zeros(self._n, bool)
        is_second[1:] = self._run[1:] == self._run[:-1]
        is_row = self._rank == ROW
        is_odd |= is_row & is_second  # another program wrote a second row with the key
        # Silver's row is the first of its run. With an event before it in the log, the key must be refolded. Comparing
        # the first event is enough, because events are sorted: silver's row at offset 7, events at 5 and 9.
        is_odd[1:] |= is_row[:-1] & is_second[1:] & ~self._is_above_the_one_before()
        is_odd[self._last] |= is_row[self._last]  # no event at all
        if rules.is_comparison:
            is_odd |= is_row
        if rules.start.seen_at is not None:
            # The last whole-table event may be newer. `step` decides between events of the same millisecond.
            log_ts = _to_numpy(self._batch.column("kafka_position").field("log_ts"))
            is_odd |= (log_ts <= rules.start.seen_at[0]) & self._is_event
        return np.logical_or.reduceat(is_odd, first)

    def _is_above_the_one_before(self) -> Bools:
        kafka_position = self._batch.column("kafka_position")
        fields = [kafka_position.field(name) for name in KAFKA_POSITION]
        pairs = ((values.slice(0, self._n - 1), values.slice(1)) for values in fields)
        # A null is neither less nor equal: if no field before it decides, the row is not above, and its run is slow.
        compared = (
            [_to_numpy(pc.fill_null(comparison(*pair), False)) for comparison in (pc.less, pc.equal)] for pair in pairs
        )
        return _lexicographic(compared, self._n - 1)[0]

    def fast_pieces(self, is_wanted: Bools) -> pa.RecordBatch | None:
        """The pieces of runs in which all events are applied; none if there are no such runs."""
        runs = np.flatnonzero(is_wanted)
        if not len(runs):
            return None
        first, last = self._first[runs], self._last[runs]
        large, batch = self._rules.large, self._batch
        is_live = self._is_upsert[last]
        has_row = is_live | (not self._rules.hard)
        has_stored = self._rank[first] == ROW
        upsert = np.where(has_row, self._last_of(self._is_event & self._is_upsert)[last], -1)
        # Without an upsert, index -1 reads the last row of the batch, which `has_upsert` masks below.
        has_upsert = upsert >= 0
        # The row's lifetime began after the last delete before its last values; it may include silver's row. With
        # soft deletes, rows 0 to 3 of a run, of which row 0 is silver's:
        #   u u u d    upsert 2, ended -1, begins 0: the deleted row keeps its values, also those of silver's row
        #   u d c u    upsert 3, ended 1, begins 2: silver's row gives nothing
        ended = self._last_of(self._is_delete)[upsert]
        goes_on = has_stored & ~(has_upsert & (ended >= first)) & has_row
        begins = np.where(ended >= first, ended + 1, first)
        kept, missing, given = self._large_values(runs, upsert, begins, goes_on)
        counting = np.add.reduceat(_to_numpy(batch.column("is_new")) & self._is_event, self._first, dtype=np.int32)
        record = pa.array(upsert, mask=~has_upsert)
        at_last = pa.array(last)
        rows = {
            "key": self._keys.take(at_last),
            "pk": batch.column("pk").take(at_last),
            "role": pa.repeat(ROW_PIECE, len(runs)),
            "op": batch.column("op").take(at_last),
            "snapshot": batch.column("snapshot").take(at_last),
            "kafka_position": batch.column("kafka_position").take(at_last),
            "source": batch.column("order").take(at_last),
            "order": self._orders(last),
            "kept": _named(kept, large),
            "missing": self._missing(missing, goes_on & ~has_upsert, first, large),
            **{name: batch.column(name).take(record) for name in ("raw_value", "value_schema", "framing")},
            "has_row": pa.array(has_row),
            "has_stored": pa.array(has_stored),
            "keeps_rest": pa.array(goes_on & ~has_upsert),
            "is_changed": pa.repeat(True, len(runs)),
            **dict.fromkeys(_RARE, pa.repeat(False, len(runs))),
            "is_compared": pa.array(np.logical_or.reduceat(self._is_compared, self._first)[runs]),
            "is_log_reset": pa.array(np.logical_or.reduceat(self._is_reset, self._first)[runs]),
            "is_unplaced": pa.array(np.logical_or.reduceat(self._is_unplaced, self._first)[runs]),
            "counting": pa.array(counting[runs]),
            **dict.fromkeys(_IGNORED, pa.array(np.zeros(len(runs), np.int32))),
        }
        pieces = batch_of_pieces(rows)
        if given:
            pieces = pa.concat_batches([pieces, self._given(last, given)])
        return pieces

    def _large_values(
        self, runs: Ints, upsert: Ints, begins: Ints, goes_on: Bools
    ) -> tuple[Bools, Bools, Mapping[tuple[int, int], list[str]]]:
        """Where the large columns of rows get their values.

        Example: silver's row 0 has `doc` and `img` but not `map`, update 1 sends `doc` alone, and update 2 sends none
        of them. Then the row's values come from update 2, `doc` is given by update 1, `img` is kept, `map` is missing.

        Args:
            runs: the rows' runs.
            upsert: by run, the record with the row's values; -1 if there is none.
            begins: by run, where the row's lifetime begins.
            goes_on: by run, whether the lifetime includes silver's row.

        Returns:
            Run by large column, whether silver's value is kept; whether there is no value; and (run, record) -> the
            columns with a value from a record other than `upsert`; here a run is its index in `runs`.
        """
        large, unsent, first = self._rules.large, self._unsent(), self._first[runs]
        has_upsert = upsert >= 0
        kept, missing = np.zeros((2, len(runs), len(large)), bool)
        given: dict[tuple[int, int], list[str]] = {}
        for number, name in enumerate(large):
            is_sent = self._is_event & self._is_upsert & ~unsent[:, number]
            source_of = self._last_of(is_sent)[upsert]
            is_held = has_upsert & (source_of >= begins)
            kept[:, number] = goes_on & ~is_held & ~unsent[first, number]
            missing[:, number] = (has_upsert | goes_on) & ~is_held & ~kept[:, number]
            for run in np.flatnonzero(is_held & (source_of != upsert)):
                given.setdefault((int(run), int(source_of[run])), []).append(name)
        return kept, missing, given

    def _orders(self, last: Ints) -> pa.Array:
        """By run, the order of its last event with one; otherwise the start's, or null after a tombstone."""
        mark = self._mark[last]
        # Entry n is the start's order, and entry n + 1 is null.
        taken = np.where(mark < 0, self._n, np.where(self._is_tombstone[mark], self._n + 1, mark))
        orders = [self._batch.column("order"), pa.array([order_dict(self._rules.start.order), None], ORDER_TYPE)]
        return pa.concat_arrays([one.cast(ORDER_TYPE) for one in orders]).take(pa.array(taken))

    def _unsent(self) -> Bools:
        """Row by large column, whether it has no value."""
        lists, large = self._batch.column("unsent"), {name: n for n, name in enumerate(self._rules.large)}
        is_unsent = np.zeros((self._n, len(large)), bool)
        rows, names = pc.list_parent_indices(lists).to_pylist(), lists.flatten().to_pylist()
        for row, name in zip(rows, names, strict=True):
            if name in large:
                is_unsent[row, large[name]] = True
        return is_unsent

    def _missing(self, missing: Bools, is_stored: Bools, first: Ints, large: Sequence[str]) -> pa.Array:
        """The columns without a value; for rows that keep silver's values, those that silver's row lists.

        Silver's row may list columns that are not among `large`, which cover only what this batch's events may omit.
        """
        names = _named(missing, large)
        fields = self._batch.column("unsent").take(pa.array(first)).cast(STRINGS)
        return pc.if_else(pa.array(is_stored), fields, names)

    def _given(self, last: Ints, given: Mapping[tuple[int, int], list[str]]) -> pa.RecordBatch:
        of_run = pa.array([int(last[run]) for run, _ in given])
        record = pa.array([row for _, row in given])
        rows = {
            "key": self._keys.take(of_run),
            "pk": self._batch.column("pk").take(of_run),
            "role": pa.repeat(VALUES_PIECE, len(given)),
            "kafka_position": self._batch.column("kafka_position").take(of_run),
            "columns": pa.array(list(given.values()), STRINGS),
            **{name: self._batch.column(name).take(record) for name in ("raw_value", "value_schema", "framing")},
        }
        return batch_of_pieces(rows)


def _to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """An array's values; it must have no nulls, unless they are strings."""
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


def _filled(array: pa.Array) -> tuple[npt.NDArray[Any], Bools]:
    """Numbers, with 0 for null, and which are not null."""
    return _to_numpy(pc.fill_null(array, 0)), _to_numpy(pc.is_valid(array))


def _is_in(array: pa.Array, values: Sequence[str]) -> Bools:
    """Which texts are among these values."""
    return _to_numpy(pc.is_in(array, pa.array(values)))


def _padded(lists: pa.Array) -> tuple[Ints, Bools]:
    """Lists of numbers as rows of a matrix, padded with the smallest number; and which are not null.

    The padding makes [1] less than [1, 0], as in Python.
    """
    lengths = _to_numpy(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    matrix = np.full((len(lists), int(lengths.max(initial=0))), np.iinfo(np.int64).min)
    # The index of each number in its list. Lengths 2 0 1: 0 1 2 minus the starts 0 0 2 is 0 1 0.
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    matrix[np.repeat(np.arange(len(lists)), lengths), within] = _to_numpy(lists.flatten())
    return matrix, _to_numpy(pc.is_valid(lists))


def _last_of_lists(lists: pa.Array) -> Ints:
    """The last number of each list; 0 for null and empty lists."""
    lengths = _to_numpy(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    # The 0 keeps the index valid if no list has a number.
    values = np.append(_to_numpy(lists.flatten()), 0)
    return np.where(lengths > 0, values[np.cumsum(lengths) - 1], 0).astype(np.int64)


def _lexicographic(columns: Iterable[Sequence[Bools]], rows: int) -> tuple[Bools, Bools]:
    """Row by row, whether one is less than another, and whether they are equal.

    Example: (1, 5) and (2, 3) are decided by the first column, (1, 3) and (1, 5) by the second.

    Args:
        columns: (less, equal) of each column, most significant first.
        rows: number of rows.
    """
    is_less, is_equal = np.zeros(rows, bool), np.ones(rows, bool)
    for is_less_here, is_equal_here in columns:
        is_less |= is_equal & is_less_here
        is_equal &= is_equal_here
    return is_less, is_equal


def _named(markers: Bools, names: Sequence[str]) -> pa.Array:
    """For each row, the marked names: [[True, False, True], [False, False, False]] and a, b, c is [[a, c], []]."""
    offsets = np.append(0, np.cumsum(markers.sum(axis=1)))
    chosen = np.nonzero(markers)[1]
    values = pa.array(list(names), pa.string()).take(pa.array(chosen))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
