"""Fold many keys: apply `rules.step` to a stream of Arrow batches, sorted by key and log position.

A key's *run* is its part of the stream: its row in silver and its entry in the side table, if any, then its events. If
each event of a run is newer than the one before, all are applied and the last determines the row; that is computed by
index arithmetic over whole batches. Other runs go through `step`, event by event. A run may span batches, with its
state carried over, so keys with any number of events need the memory of one batch only.

Nothing is decoded here. Values are represented by the record that contains them, and its bytes are passed through.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.fold.rules import (
    DELETES,
    STARTS,
    TOMBSTONE,
    TRUNCATE,
    UPSERTS,
    Event,
    Lifetime,
    LogPosition,
    Order,
    State,
    step,
)

ROW, MEMORY, EVENT = 0, 1, 2
"""Ranks within a run: the row in silver, the key's entry in the side table, an event."""
ROW_PIECE, VALUES_PIECE, LIFETIME_PIECE = "row", "values", "lifetime"
"""Roles of pieces; see `fold`."""

_STRINGS, _BOOL = pa.list_(pa.string()), pa.bool_()
_LOG_POSITION = ("log_ts", "topic", "generation", "partition", "offset")
LOG_POSITION_TYPE = pa.struct(
    zip(_LOG_POSITION, (pa.int64(), pa.string(), pa.int32(), pa.int32(), pa.int64()), strict=True)
)
ORDER_TYPE = pa.struct([("position", pa.list_(pa.int64())), ("domain", pa.string()), ("ts_ms", pa.int64())])
PIECES = pa.schema(
    [
        *((name, pa.string()) for name in ("key", "role", "op", "snapshot", "key_change", "moved_by")),
        *(
            ("log_position", LOG_POSITION_TYPE),
            ("seen", LOG_POSITION_TYPE),
            ("source", ORDER_TYPE),
            ("order", ORDER_TYPE),
        ),
        *((name, _STRINGS) for name in ("columns", "kept", "missing")),
        *(("raw_value", pa.binary()), ("value_schema", pa.string()), ("framing", pa.string())),
        *((name, _BOOL) for name in ("has_row", "has_stored", "has_memory", "keeps_rest", "is_changed")),
        *(
            (name, _BOOL)
            for name in ("is_refolded", "is_out_of_order", "has_duplicates", "is_compared", "is_log_reset")
        ),
        *(("counting", pa.int32()), ("stale", pa.int32())),
    ]
)
"""The columns of pieces, followed by `pk`, whose type depends on the table."""

_REST = ""
"""Key in a state's values for all columns that are always sent."""
_NARROW = (
    "key",
    "rank",
    "log_position",
    "op",
    "is_streaming",
    "order",
    "unsent",
    "key_change",
    "seen",
    "snapshot",
    "is_new",
    "refold",
)
_Bools = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int64]


class _Record(NamedTuple):
    """A record with values of a row."""

    log_position: LogPosition
    raw_value: bytes | None
    value_schema: str | None
    framing: str | None


STORED = "stored"
"""In a state's values, in place of a record: silver's row has the value."""


@dataclass(frozen=True)
class Rules:
    """Parameters of the fold of a batch.

    Attributes:
        large: the columns that may not have been sent.
        hard: whether a delete removes the row.
        truncates_hard: whether a truncate removes rows.
        table_events: the new whole-table events.
        all_table_events: all whole-table events, for keys that are refolded.
        start: the state of a key without stored state.
        last_table_event: the last whole-table event so far; every key has processed it.
        is_comparison: silver may have more than the available events. If an event with a complete row is at or before
            silver's state, the key is refolded from there; otherwise only newer events are applied.
    """

    large: Sequence[str]
    hard: bool
    truncates_hard: bool
    table_events: Sequence[Event] = ()
    all_table_events: Sequence[Event] = ()
    start: State = field(default_factory=State)
    last_table_event: LogPosition | None = None
    is_comparison: bool = False


def fold(batches: Iterable[pa.RecordBatch], rules: Rules) -> Iterator[pa.RecordBatch]:
    """Fold the runs of a sorted stream.

    Columns in: `key`; `pk`, struct of the key columns; `rank`; `log_position`; `op`; `is_streaming`; `order`, for a row
    in silver the key's; `unsent`, the large columns without a value; `key_change`, for a side entry the key change that
    began the lifetime; `seen`, for a side entry the last processed log position; `snapshot`; `is_new`, whether the
    event is new to silver; `refold`, whether to refold the key from its first event; `raw_value`, `value_schema`,
    `framing`.

    Columns out, one *piece* of role `row` for each key: `key`, `pk`; `op`, `snapshot`, `log_position`, `source` of the
    last applied event; `order`, the key's; `seen`, the last processed log position, if it differs from `log_position`
    and the last whole-table event; `moved_by`, the key change that may provide the `missing` columns; `kept`, the large
    columns that keep silver's value; `keeps_rest`, whether the other columns do; the record with the values, null if
    none was sent; `has_row`, `has_stored`, `has_memory`, whether there shall be a row, is one, is a side entry;
    `is_changed`; `is_refolded`, whether the key was refolded without the stored state; `is_out_of_order`, whether an
    event is before the last processed one, so that the key must be refolded (in a comparison: whether events were
    ignored because silver has more); `has_duplicates`, whether silver has several rows of the key; `is_compared`,
    `is_log_reset`, whether log positions were comparable, and went back while the time went forward; `counting`,
    `stale`, the numbers of new events that were applied and ignored.

    Pieces of role `values` have a further record with `columns` of the row. Pieces of role `lifetime` have the values
    that a key change passes on: `key_change`, `log_position`, `moved_by`, `kept`, and `columns` in the record.
    """
    open_run, pk = None, pa.null()
    for batch in batches:
        if not batch.num_rows:
            continue
        table = _Batch(batch, rules)
        is_slow = table.is_slow.copy()
        is_slow[-1] = True  # it may continue in the next batch
        if open_run is not None and open_run.key == table.first_key:
            is_slow[0] = True
        pk = batch.schema.field("pk").type
        out = _Pieces(pk)
        for number, content in table.rows(is_slow):
            if open_run is None or open_run.key != content["key"]:
                if open_run is not None:
                    out.end(open_run)
                open_run = _Run(content["key"], rules)
            open_run.take(content, table, number)
        if (fast := table.fast_pieces(~is_slow)) is not None:
            yield fast
        if (slow := out.batch()) is not None:
            yield slow
    if open_run is not None:
        out = _Pieces(pk)
        out.end(open_run)
        if (slow := out.batch()) is not None:
            yield slow


class _Run:
    """A key that is folded event by event."""

    def __init__(self, key: str, rules: Rules) -> None:
        self.key = key
        self.pk: pa.Array = pa.nulls(1)
        self.rules = rules
        self.state = replace(rules.start, values={})
        self.unsent: Sequence[str] = ()
        self.left: list[Lifetime] = []
        self.has_stored = self.has_memory = self.has_duplicates = self.is_out_of_order = self.refold = False
        self.is_changed = self.is_compared = self.is_log_reset = False
        self.counting = self.stale = 0
        self.snapshot: str | None = None
        self.source: Order | None = None
        self._floor: LogPosition | None = None
        self._fresh: State | None = None
        self._table_events: list[Event] | None = None

    def take(self, row: Mapping[str, Any], table: "_Batch", number: int) -> None:
        """Process the next row of the run."""
        if not self.pk[0].is_valid:
            self.pk = table.batch.column("pk").slice(number, 1)
        self.refold = self.refold or row["refold"]
        if row["rank"] == ROW:
            self._take_stored(row)
        elif row["rank"] == MEMORY:
            self._take_memory(row)
        else:
            record = table.record(number, row) if row["op"] in UPSERTS else None
            self._take_event(row, record)

    def _take_stored(self, row: Mapping[str, Any]) -> None:
        self.has_duplicates, self.has_stored, self.unsent = self.has_stored, True, row["unsent"]
        values = {name: STORED for name in (_REST, *self.rules.large) if name not in self.unsent}
        log_position = _log_position(row["log_position"])
        self.state = State(
            True, row["op"] in UPSERTS, row["op"], log_position, log_position, _order(row["order"]), values
        )

    def _take_memory(self, row: Mapping[str, Any]) -> None:
        self.has_memory = True
        # Versions up to 0.1.0 wrote no position in entries of awaited key changes.
        log_position = row["log_position"] and _log_position(row["log_position"])
        if not self.has_stored:
            self.state = State(applied_at=log_position, order=_order(row["order"]))
        if seen := row["seen"] or row["log_position"]:
            self.state.seen_at = _log_position(seen)
        self.state.moved_by = row["key_change"]

    def _take_event(self, row: Mapping[str, Any], record: _Record | None) -> None:
        log_position, op = _log_position(row["log_position"]), row["op"]
        self._take_table_events(before=log_position)
        sent = {name: record for name in (_REST, *self.rules.large) if name not in row["unsent"]} if record else {}
        source = _order(row["order"])
        event = Event(log_position, op, source if row["is_streaming"] else None, sent, row["key_change"])
        if not self._reaches(event, is_start=op in STARTS):
            self.stale += row["is_new"]
            return
        self._compare(event.order)
        counts = self._step(event)
        if counts:
            self.snapshot, self.source = row["snapshot"], source
        self.counting += counts and row["is_new"]
        self.stale += not counts and row["is_new"]

    def _take_table_events(self, before: LogPosition | None = None) -> None:
        """Process the whole-table events before a position; at the end all remaining ones."""
        if self._table_events is None:
            self._begin()
        assert self._table_events is not None
        while self._table_events and (before is None or self._table_events[0].log_position < before):
            event = self._table_events.pop(0)
            if self._fresh is not None:
                step(self._fresh, event, hard=True)
            if self._reaches(event) and self._step(event):
                self.snapshot, self.source = None, event.order

    def _begin(self) -> None:
        """Prepare the state for events, after the stored rows were read."""
        rules = self.rules
        self._table_events = list(rules.all_table_events if self.refold else rules.table_events)
        if self.refold:
            self.state = State()
        elif rules.is_comparison:
            self._floor, self._fresh = self.state.applied_at, State()
        else:
            known = (self.state.seen_at, rules.start.seen_at)
            self._floor = max((log_position for log_position in known if log_position is not None), default=None)
        self.state.seen_at = self._floor

    def _reaches(self, event: Event, *, is_start: bool = False) -> bool:
        """Whether to apply the event to the stored state."""
        if self._floor is None or event.log_position > self._floor:
            return self.rules.is_comparison or not self.is_out_of_order
        self.is_out_of_order = True
        if self._fresh is not None and is_start:
            self.state, self._floor, self._fresh = self._fresh, None, None
            self.is_out_of_order, self.refold = False, True
        return not self.is_out_of_order

    def _compare(self, order: Order | None) -> None:
        last = self.state.order
        if order is None or last is None or order.position is None or last.position is None:
            return
        if order.domain == last.domain:
            self.is_compared = True
            is_newer = None not in (order.ts_ms, last.ts_ms) and order.ts_ms > last.ts_ms  # type: ignore[operator]
            self.is_log_reset |= is_newer and order.position < last.position  # type: ignore[operator]

    def _step(self, event: Event) -> bool:
        hard = self.rules.truncates_hard if event.op == TRUNCATE else self.rules.hard
        outcome = step(self.state, event, hard=hard)
        self.is_changed |= outcome.counts
        if outcome.left is not None:
            self.left.append(outcome.left)
        return outcome.counts

    def end(self) -> State:
        """The state after the run."""
        self._take_table_events()
        return self.state


class _Pieces:
    """The pieces of completed runs."""

    def __init__(self, pk: pa.DataType) -> None:
        self._pk = pk
        self._rows: list[dict[str, Any]] = []
        self._pks: list[pa.Array] = []

    def end(self, run: _Run) -> None:
        """Add the pieces of a completed run."""
        state, large = run.end(), run.rules.large
        values = state.values if state.has_row else {}
        rest = values.get(_REST)
        given = {name: values[name] for name in large if name in values}
        missing = [name for name in large if name not in given] if values else []
        if rest is STORED:
            missing = [name for name in run.unsent if name not in given]
        known = [
            log_position for log_position in (state.applied_at, run.rules.last_table_event) if log_position is not None
        ]
        is_seen = state.seen_at is None or (bool(known) and state.seen_at <= max(known))
        self._add(
            run,
            ROW_PIECE,
            state.applied_at,
            op=state.op,
            snapshot=run.snapshot,
            source=_order_dict(run.source),
            order=_order_dict(state.order),
            seen=None if is_seen else _log_position_dict(state.seen_at),
            moved_by=state.moved_by if missing else None,
            kept=[name for name, value in given.items() if value is STORED],
            missing=missing,
            has_row=state.has_row,
            has_stored=run.has_stored,
            has_memory=run.has_memory,
            keeps_rest=rest is STORED,
            is_changed=run.is_changed or run.refold,
            is_refolded=run.refold,
            is_out_of_order=run.is_out_of_order,
            has_duplicates=run.has_duplicates,
            is_compared=run.is_compared,
            is_log_reset=run.is_log_reset,
            counting=run.counting,
            stale=run.stale,
            **_bytes(rest),
        )
        self._add_records(run, VALUES_PIECE, state.applied_at, given, but=rest)
        for left in run.left:
            values = {name: left.values[name] for name in large if name in left.values}
            kept = [name for name, value in values.items() if value is STORED]
            fields = {"key_change": left.key_change, "moved_by": left.moved_by, "kept": kept}
            if kept or left.moved_by is not None:
                self._add(run, LIFETIME_PIECE, left.log_position, **fields)
            self._add_records(run, LIFETIME_PIECE, left.log_position, values, **fields)

    def _add_records(
        self,
        run: _Run,
        role: str,
        log_position: LogPosition | None,
        values: Mapping[str, Any],
        *,
        but: Any = None,
        **fields: Any,
    ) -> None:
        """Add a piece for each record that contains values."""
        records = {id(one): one for one in values.values() if isinstance(one, _Record) and one is not but}
        for one in records.values():
            columns = [name for name, value in values.items() if value is one]
            self._add(run, role, log_position, columns=columns, **fields, **_bytes(one))

    def _add(self, run: _Run, role: str, log_position: LogPosition | None, **fields: Any) -> None:
        self._rows.append({"key": run.key, "role": role, "log_position": _log_position_dict(log_position), **fields})
        self._pks.append(run.pk)

    def batch(self) -> pa.RecordBatch | None:
        """All pieces as a batch; none without pieces."""
        if not self._rows:
            return None
        columns = {one.name: pa.array([row.get(one.name) for row in self._rows], one.type) for one in PIECES}
        pks = pa.concat_arrays([pk if pk.type == self._pk else pa.nulls(1, self._pk) for pk in self._pks])
        return _pieces({**columns, "pk": pks})


class _Batch:
    """A batch of the stream, computed at once as if each run were complete and all its events were applied.

    Attributes:
        is_slow: by run, whether it must go through `step`.
    """

    def __init__(self, batch: pa.RecordBatch, rules: Rules) -> None:
        self.batch, self._rules = batch, rules
        self._n = n = batch.num_rows
        self._keys = batch.column("key")
        is_first = np.ones(n, bool)
        is_first[1:] = _numpy(pc.not_equal(self._keys.slice(1), self._keys.slice(0, n - 1)))
        self._first: _Ints = np.flatnonzero(is_first)
        self._last: _Ints = np.append(self._first[1:], n) - 1
        self._run: _Ints = np.cumsum(is_first) - 1
        self._rank = _numpy(batch.column("rank"))
        self._is_event = self._rank == EVENT
        op = batch.column("op")
        self._is_upsert = _is_in(op, UPSERTS)
        self._is_delete = _is_in(op, DELETES)
        self._is_tombstone = self._is_event & _is_in(op, (TOMBSTONE,))
        self._is_streaming = self._is_event & _numpy(batch.column("is_streaming"))
        self._mark = self._last_of((self._rank == ROW) | self._is_streaming | self._is_tombstone)
        self._compare()
        self.is_slow = self._find_slow()

    @property
    def first_key(self) -> str:
        """The first run's key."""
        key: str = self._keys[0].as_py()
        return key

    def record(self, number: int, row: Mapping[str, Any]) -> _Record:
        """The record of an event."""
        fields = (self.batch.column(name)[number].as_py() for name in ("raw_value", "value_schema", "framing"))
        return _Record(_log_position(row["log_position"]), *fields)

    def rows(self, is_wanted: _Bools) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows of some runs: their numbers, and their columns without the bytes."""
        numbers = np.flatnonzero(is_wanted[self._run])
        narrow = self.batch.select(list(_NARROW)).take(pa.array(numbers))
        return zip(numbers.tolist(), narrow.to_pylist(), strict=True)

    def _last_of(self, is_one: _Bools) -> _Ints:
        """For each row, the last marked row at or before it in the same run; -1 if there is none."""
        found = np.maximum.accumulate(np.where(is_one, np.arange(self._n), -1))
        return np.where(found >= self._first[self._run], found, -1)

    def _compare(self) -> None:
        """Compute which events are stale against the last event with an order, like `rules.is_stale`."""
        order, start = self.batch.column("order"), self._rules.start.order
        orders = pa.concat_arrays([order, pa.array([_order_dict(start)], order.type)])
        position, has_position = _padded(orders.field("position"))
        ts_ms, has_ts = _numbers(orders.field("ts_ms"))
        domain = _numpy(pc.fill_null(orders.field("domain").dictionary_encode().indices, -1))
        nothing = np.append(self._is_tombstone, start is None)
        has_position, has_ts = has_position & ~nothing, has_ts & ~nothing
        before = np.append(-1, self._mark[:-1])
        before = np.where(before >= self._first[self._run], before, self._n)
        now = np.arange(self._n)
        is_comparable = has_position[now] & has_position[before] & (domain[now] == domain[before])
        pairs = zip(position[now].T, position[before].T, strict=True)
        is_less, is_equal = _lexicographic(((one < other, one == other) for one, other in pairs), self._n)
        both_timed = has_ts[now] & has_ts[before]
        is_older = both_timed & (ts_ms[now] < ts_ms[before])
        is_newer = both_timed & (ts_ms[now] > ts_ms[before])
        is_stale = np.where(is_comparable, (is_less | is_equal) & ~is_newer, is_older)
        self._is_stale = self._is_streaming & is_stale
        self._is_compared = self._is_streaming & is_comparable
        self._is_reset = self._is_compared & is_less & is_newer

    def _find_slow(self) -> _Bools:
        rules, first = self._rules, self._first
        if rules.table_events or rules.all_table_events:
            return np.ones(len(first), bool)
        is_odd = self._is_stale | (self._rank == MEMORY) | _numpy(self.batch.column("refold"))
        is_odd |= _numpy(pc.is_valid(self.batch.column("key_change")))
        is_second = np.zeros(self._n, bool)
        is_second[1:] = self._run[1:] == self._run[:-1]
        is_row = self._rank == ROW
        is_odd |= is_row & is_second
        # Silver's row is the first of its run. With an event before it in the log, the key must be refolded.
        is_odd[1:] |= is_row[:-1] & is_second[1:] & ~self._is_above_the_one_before()
        is_odd[self._last] |= is_row[self._last]  # no event at all
        if rules.is_comparison:
            is_odd |= is_row
        if rules.start.seen_at is not None:
            log_ts = _numpy(self.batch.column("log_position").field("log_ts"))
            is_odd |= (log_ts <= rules.start.seen_at[0]) & self._is_event
        return np.logical_or.reduceat(is_odd, first)

    def _is_above_the_one_before(self) -> _Bools:
        log_position = self.batch.column("log_position")
        fields = [log_position.field(name) for name in _LOG_POSITION]
        pairs = ((values.slice(0, self._n - 1), values.slice(1)) for values in fields)
        compared = (
            [_numpy(pc.fill_null(comparison(*pair), False)) for comparison in (pc.less, pc.equal)] for pair in pairs
        )
        return _lexicographic(compared, self._n - 1)[0]

    def fast_pieces(self, is_wanted: _Bools) -> pa.RecordBatch | None:
        """The pieces of runs in which all events are applied; none if there are no such runs."""
        runs = np.flatnonzero(is_wanted)
        if not len(runs):
            return None
        first, last = self._first[runs], self._last[runs]
        large, batch = self._rules.large, self.batch
        is_live = self._is_upsert[last]
        has_row = is_live | (not self._rules.hard)
        has_stored = self._rank[first] == ROW
        upsert = np.where(has_row, self._last_of(self._is_event & self._is_upsert)[last], -1)
        has_upsert = upsert >= 0
        # The row's lifetime began after the last delete before its last values; it may include silver's row.
        ended = self._last_of(self._is_delete)[upsert]
        goes_on = has_stored & ~(has_upsert & (ended >= first)) & has_row
        begins = np.maximum(first, np.where(ended >= first, ended + 1, first))
        unsent = self._unsent()
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
        counting = np.add.reduceat(_numpy(batch.column("is_new")) & self._is_event, self._first, dtype=np.int32)
        record = pa.array(upsert, mask=~has_upsert)
        at_last = pa.array(last)
        rows = {
            "key": self._keys.take(at_last),
            "pk": batch.column("pk").take(at_last),
            "role": pa.repeat(ROW_PIECE, len(runs)),
            "op": batch.column("op").take(at_last),
            "snapshot": batch.column("snapshot").take(at_last),
            "log_position": batch.column("log_position").take(at_last),
            "source": batch.column("order").take(at_last),
            "order": self._orders(last),
            "kept": _named(kept, large),
            "missing": self._missing(missing, goes_on & ~has_upsert, first, large),
            **{name: batch.column(name).take(record) for name in ("raw_value", "value_schema", "framing")},
            "has_row": pa.array(has_row),
            "has_stored": pa.array(has_stored),
            "has_memory": pa.repeat(False, len(runs)),
            "keeps_rest": pa.array(goes_on & ~has_upsert),
            "is_changed": pa.repeat(True, len(runs)),
            "is_refolded": pa.repeat(False, len(runs)),
            "is_out_of_order": pa.repeat(False, len(runs)),
            "has_duplicates": pa.repeat(False, len(runs)),
            "is_compared": pa.array(np.logical_or.reduceat(self._is_compared, self._first)[runs]),
            "is_log_reset": pa.array(np.logical_or.reduceat(self._is_reset, self._first)[runs]),
            "counting": pa.array(counting[runs]),
            "stale": pa.array(np.zeros(len(runs), np.int32)),
        }
        found = _pieces(rows)
        if given:
            found = pa.concat_batches([found, self._given(runs, last, given)])
        return found

    def _orders(self, last: _Ints) -> pa.Array:
        """By run, the order of its last event with one; otherwise the start's, or null after a tombstone."""
        mark = self._mark[last]
        taken = np.where(mark < 0, self._n, np.where(self._is_tombstone[mark], self._n + 1, mark))
        orders = [self.batch.column("order"), pa.array([_order_dict(self._rules.start.order), None], ORDER_TYPE)]
        return pa.concat_arrays([one.cast(ORDER_TYPE) for one in orders]).take(pa.array(taken))

    def _unsent(self) -> _Bools:
        """Row by large column, whether it has no value."""
        lists, large = self.batch.column("unsent"), {name: n for n, name in enumerate(self._rules.large)}
        found = np.zeros((self._n, len(large)), bool)
        rows, names = pc.list_parent_indices(lists).to_pylist(), lists.flatten().to_pylist()
        for row, name in zip(rows, names, strict=True):
            if name in large:
                found[row, large[name]] = True
        return found

    def _missing(self, missing: _Bools, is_stored: _Bools, first: _Ints, large: Sequence[str]) -> pa.Array:
        """The columns without a value; for unchanged rows, the stored ones."""
        found = _named(missing, large)
        fields = self.batch.column("unsent").take(pa.array(first)).cast(_STRINGS)
        return pc.if_else(pa.array(is_stored), fields, found)

    def _given(self, runs: _Ints, last: _Ints, given: Mapping[tuple[int, int], list[str]]) -> pa.RecordBatch:
        of_run = pa.array([int(last[run]) for run, _ in given])
        record = pa.array([row for _, row in given])
        rows = {
            "key": self._keys.take(of_run),
            "pk": self.batch.column("pk").take(of_run),
            "role": pa.repeat(VALUES_PIECE, len(given)),
            "log_position": self.batch.column("log_position").take(of_run),
            "columns": pa.array(list(given.values()), _STRINGS),
            **{name: self.batch.column(name).take(record) for name in ("raw_value", "value_schema", "framing")},
        }
        return _pieces(rows)


def _pieces(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """A batch of pieces; missing columns are null."""
    number = len(columns["key"])
    found = [columns.get(one.name, pa.nulls(number)).cast(one.type) for one in PIECES]
    return pa.RecordBatch.from_arrays([*found, columns["pk"]], [*PIECES.names, "pk"])


def _numpy(array: pa.Array) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def _numbers(array: pa.Array) -> tuple[npt.NDArray[Any], _Bools]:
    """Numbers, with 0 for null, and which are not null."""
    return _numpy(pc.fill_null(array, 0)), _numpy(pc.is_valid(array))


def _is_in(array: pa.Array, values: Sequence[str]) -> _Bools:
    return _numpy(pc.is_in(array, pa.array(values)))


def _padded(lists: pa.Array) -> tuple[_Ints, _Bools]:
    """Lists of numbers as rows of a matrix, padded with the smallest number; and which are not null."""
    lengths = _numpy(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    found = np.full((len(lists), int(lengths.max(initial=0))), np.iinfo(np.int64).min)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found[np.repeat(np.arange(len(lists)), lengths), within] = _numpy(lists.flatten())
    return found, _numpy(pc.is_valid(lists))


def _lexicographic(columns: Iterable[Sequence[_Bools]], rows: int) -> tuple[_Bools, _Bools]:
    """Row by row, whether one is less than another, and whether they are equal.

    Args:
        columns: (less, equal) of each column, most significant first.
        rows: number of rows.
    """
    is_less, is_equal = np.zeros(rows, bool), np.ones(rows, bool)
    for is_less_here, is_equal_here in columns:
        is_less |= is_equal & is_less_here
        is_equal &= is_equal_here
    return is_less, is_equal


def _named(markers: _Bools, names: Sequence[str]) -> pa.Array:
    """For each row, the marked names."""
    offsets = np.append(0, np.cumsum(markers.sum(axis=1)))
    chosen = np.nonzero(markers)[1]
    values = pa.array(list(names), pa.string()).take(pa.array(chosen))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _log_position(fields: Mapping[str, Any]) -> LogPosition:
    return tuple(fields[name] for name in _LOG_POSITION)


def _log_position_dict(log_position: LogPosition | None) -> dict[str, Any] | None:
    return None if log_position is None else dict(zip(_LOG_POSITION, log_position, strict=True))


def _order(fields: Mapping[str, Any] | None) -> Order | None:
    return None if fields is None else Order(fields["position"], fields["domain"], fields["ts_ms"])


def _order_dict(order: Order | None) -> dict[str, Any] | None:
    return None if order is None else order._asdict()


def _bytes(record: Any) -> dict[str, Any]:
    if not isinstance(record, _Record):
        return {}
    return {"raw_value": record.raw_value, "value_schema": record.value_schema, "framing": record.framing}
