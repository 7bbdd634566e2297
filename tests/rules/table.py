"""Silver as a dict: batches of events folded into stored states by `fold.rules.step`.

Between two batches it keeps what a table and its side table store. A key is refolded from all events if a batch has
one at or before the last that was considered, or a key change whose id an earlier batch had too.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from support import reference

from cdc_lake.fold.rules import MISSING, TOMBSTONE, TRUNCATE, UPSERTS, Event, Lifetime, Order, Position, State, step

Key = Hashable
Record = tuple[Position, reference.Event]


class Settled:
    """The settings of a table.

    Args:
        columns: those outside the key.
        deletes, soft_delete_values, truncates, remove_missing: see `reference.fold`.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        deletes: str = "soft",
        soft_delete_values: str = "last",
        truncates: str = "as_deletes",
        truncates_across_partitions: bool = False,
        remove_missing: bool = False,
    ) -> None:
        self.columns = columns
        self._is_hard = deletes == "hard"
        self._truncates_hard = self._is_hard if truncates == "as_deletes" else truncates == "hard"
        self._empties = soft_delete_values == "null"
        self._removes_missing = remove_missing
        self._log: list[Record] = []


class Table(Settled):
    """A table that is folded batch by batch."""

    def __init__(self, columns: Sequence[str], **settings: Any) -> None:
        super().__init__(columns, **settings)
        self.refolded = 0
        self._states: dict[Key, State] = {}
        self._lifetimes: dict[Hashable, list[tuple[Key, Lifetime]]] = {}
        self._table_events: list[Event] = []
        self._start = State()
        """The state of a key without events of its own."""

    def take(self, batch: Sequence[Record]) -> None:
        """Fold a batch, in any order, into the table."""
        self._log = sorted([*self._log, *batch], key=lambda record: record[0])
        before = replace(self._start)
        new_of_all, all_again = self._take_whole_table(batch)
        own: dict[Key, list[Event]] = {}
        for kafka_position, event in batch:
            if event.op != TRUNCATE:
                own.setdefault(event.key, []).append(event_of(kafka_position, event))
        touched = set(own) | (set(self._states) if new_of_all else set())
        refold = {
            key for key in touched if self._is_behind([*own.get(key, ()), *new_of_all], self._states.get(key, before))
        }
        refold |= {key for key in own if any(self._is_named_before(event) for event in own[key])}
        if all_again:
            refold = {event.key for _, event in self._log if event.op != TRUNCATE}
        refold = self._with_related(refold)
        self.refolded += len(refold)
        self._forget_lifetimes(refold)
        history: dict[Key, list[Event]] = {}
        for kafka_position, event in self._log:
            if event.op != TRUNCATE and event.key in refold:
                history.setdefault(event.key, []).append(event_of(kafka_position, event))
        changed = {}
        for key in touched | refold:
            if key in refold:
                state, events = State(), [*history.get(key, ()), *self._table_events]
            else:
                stored = self._states.get(key, before)
                state, events = replace(stored, values=dict(stored.values)), [*own.get(key, ()), *new_of_all]
            self._step_through(key, state, events)
            changed[key] = state
        self._inherit(changed)
        for key, state in changed.items():
            self._store(key, state, has_own=key in own or key in refold)

    def rows(self) -> dict[Key, tuple[Any, ...]]:
        """By key: values, whether it is deleted, the columns that were never sent, op, Kafka position, order."""
        return {key: self._row(state) for key, state in self._states.items() if state.has_row}

    @staticmethod
    def _is_behind(events: Iterable[Event], state: State) -> bool:
        first = min((event.kafka_position for event in events), default=None)
        return first is not None and state.seen_at is not None and first <= state.seen_at

    def _is_named_before(self, event: Event) -> bool:
        """Whether rows may have inherited from an earlier key change with that id, while this may be another change."""
        return (
            event.op == "d"
            and isinstance(event.key_change, reference.Move)
            and event.key_change.position is None
            and bool(self._lifetimes.get(event.key_change))
        )

    def _step_through(self, key: Key, state: State, events: Iterable[Event]) -> None:
        for event in sorted(events, key=lambda event: event.kafka_position):
            hard = self._truncates_hard if event.op == TRUNCATE else self._is_hard
            left = step(state, event, hard=hard).left
            if left is not None:
                self._lifetimes.setdefault(left.key_change, []).append((key, left))

    def _take_whole_table(self, batch: Sequence[Record]) -> tuple[list[Event], bool]:
        """The new whole-table events, and whether all keys are refolded."""
        new = [event_of(kafka_position, event) for kafka_position, event in batch if event.op == TRUNCATE]
        ends = list(reference.snapshot_ends(self._log)) if self._removes_missing else []
        known = {(event.kafka_position, event.since) for event in self._table_events if event.op == MISSING}
        now = {(tuple(end), tuple(start)) for start, end in ends}
        new += [Event(kafka_position, MISSING, since=since) for kafka_position, since in now - known]
        gone = known - now
        kept = [event for event in self._table_events if (event.kafka_position, event.since) not in gone]
        all_again = bool(gone) or self._is_behind(new, self._start)
        self._table_events = sorted([*kept, *new], key=lambda event: event.kafka_position)
        if all_again:
            self._start = State()
        for event in self._table_events if all_again else sorted(new, key=lambda event: event.kafka_position):
            step(self._start, event, hard=True)
        return new, all_again

    def _with_related(self, keys: set[Key]) -> set[Key]:
        """These keys, and those that key changes connect them to."""
        halves = [(event.key, event.move) for _, event in self._log if event.move is not None]
        while keys:
            key_changes = {key_change for key, key_change in halves if key in keys}
            more = keys | {key for key, key_change in halves if key_change in key_changes}
            if more == keys:
                break
            keys = more
        return keys

    def _forget_lifetimes(self, keys: set[Key]) -> None:
        for key_change, left in list(self._lifetimes.items()):
            self._lifetimes[key_change] = [one for one in left if one[0] not in keys]

    def _inherit(self, changed: dict[Key, State]) -> None:
        """Give rows the values that a key change left to them: rows of this batch, and waiting rows."""
        for left in self._lifetimes.values():
            left.sort(key=lambda one: one[1].kafka_position)
        waiting = {
            key: replace(state, values=dict(state.values))
            for key, state in self._states.items()
            if key not in changed and state.moved_by is not None
        }
        for key, state in (changed | waiting).items():
            for name in self.columns:
                if state.moved_by is not None and name not in state.values:
                    values = self._values(name, state.moved_by, [])
                    if len(values) == 1:
                        state.values[name] = values[0]
                    changed[key] = state

    def _values(self, name: str, key_change: Hashable, seen: list[Lifetime]) -> list[Any]:
        """The values of a column that a key change may have left: with a position the first, otherwise any."""
        values: list[Any] = []
        for _, left in self._lifetimes.get(key_change, ()):
            if any(left is one for one in seen):
                continue
            seen.append(left)
            more = [left.values[name]] if name in left.values else self._values(name, left.moved_by, seen)
            values += [value for value in more if value not in values]
            if values and isinstance(key_change, reference.Move) and key_change.position is not None:
                break
        return values

    def _store(self, key: Key, state: State, *, has_own: bool) -> None:
        """Keep only what the table and its side table can store."""
        if self._empties and not state.is_live:
            state.values = {}
        if not state.has_row:
            state.values, state.moved_by = {}, None
        if all(name in state.values for name in self.columns):
            state.moved_by = None
        is_told = state.op == TRUNCATE and state.seen_at == self._start.seen_at
        if not state.has_row and (is_told or (not has_own and key not in self._states)):
            self._states.pop(key, None)  # the truncate itself is stored once for all keys
        else:
            self._states[key] = state

    def _row(self, state: State) -> tuple[Any, ...]:
        shows_values = state.is_live or bool(state.values)
        unsent = [name for name in self.columns if name not in state.values] if shows_values else []
        values = {name: state.values.get(name) for name in self.columns}
        order = state.order and tuple(state.order)
        return values, not state.is_live, tuple(sorted(unsent)), state.op, state.applied_at, order


def batches_as_seen(
    events: Mapping[int, reference.Event], cut: Iterable[Iterable[int]], due: Mapping[int, int | None]
) -> list[list[Record]]:
    """The events that silver reads, batch by batch.

    Args:
        events: by number, in the order of arrival.
        cut: the numbers of each batch.
        due: of the events that cannot be decoded when they arrive, the batch after which they can. They come behind
            that batch, each with the tombstone of its delete.
    """
    number_at = {(event.generation, event.partition, event.offset): number for number, event in events.items()}
    batch_of = {number: batch for batch, numbers in enumerate(cut) for number in numbers}
    before: dict[int, int | None] = {}
    last: dict[int, int] = {}
    for number, event in events.items():
        before[number] = last.get(event.partition)
        last[event.partition] = number
    found: dict[tuple[int, int], list[Record]] = {}
    for kafka_position, event in reference.in_log_order(events.values()):
        number = number_at[event.generation, event.partition, event.offset]
        when, previous = (batch_of[number], 0), before[number]
        if (late := due.get(number)) is not None:
            when = late, 1
        elif event.op == "tombstone" and previous is not None and events[previous].key == event.key:
            late = due.get(previous)
            when = when if late is None else max(when, (late, 1))
        found.setdefault(when, []).append((tuple(kafka_position), event))
    return [found[when] for when in sorted(found)]


def event_of(kafka_position: Position, event: reference.Event) -> Event:
    """An event of the reference in the rules' form."""
    is_streaming = event.op in ("c", "u", "d", TRUNCATE) and not event.is_snapshot
    sent = {name: value for name, value in (event.values or {}).items() if value is not reference.UNSENT}
    return Event(
        tuple(kafka_position),
        event.op,
        None if event.op == TOMBSTONE else Order(event.position, event.domain, event.ts_ms),
        sent if event.op in UPSERTS else {},
        event.move,
        is_streaming=is_streaming,
    )
