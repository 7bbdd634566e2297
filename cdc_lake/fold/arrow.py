"""Fold many keys: apply `rules.step` to a stream of Arrow batches, sorted by key and Kafka position.

A key's *run* is its part of the stream: its row in silver and its entry in the side table, if any, then its events. If
each event of a run is newer than the one before, all are applied and the last determines the row; that is computed by
index arithmetic over whole batches (`whole_batch`). Other runs go through `step`, event by event (`_KeyRun`). A run may
span batches, with its state carried over, so keys with any number of events need the memory of one batch only.

Nothing is decoded here. Values are represented by the record that contains them, and its bytes are passed through.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cdc_lake.fold.rules import (
    STARTS,
    TRUNCATE,
    UPSERTS,
    Event,
    Lifetime,
    Order,
    Position,
    State,
    are_comparable,
    lead_ms,
    step,
)
from cdc_lake.fold.stream import (
    LIFETIME_PIECE,
    MEMORY,
    PIECES,
    REST,
    ROW,
    ROW_PIECE,
    STORED,
    VALUES_PIECE,
    Record,
    Rules,
    batch_of_pieces,
    bytes_of,
    kafka_position_dict,
    kafka_position_of,
    order_dict,
    order_of,
)
from cdc_lake.fold.whole_batch import WholeBatch


def fold(batches: Iterable[pa.RecordBatch], rules: Rules) -> Iterator[pa.RecordBatch]:
    """Fold the runs of a sorted stream.

    Columns in: `key`; `pk`, struct of the key columns; `rank`; `kafka_position`; `op`; `is_streaming`; `order`, for a
    row in silver the key's; `read_at`, for a row in silver that a snapshot wrote, the position at which it was read;
    `unsent`, the large columns without a value; `key_change`, for a side entry the key change that began the lifetime;
    `seen`, for a side entry the last processed Kafka position; `snapshot`; `is_new`, whether the event is new to
    silver; `refold`, whether to refold the key from its first event; `raw_value`, `value_schema`, `framing`.

    Columns out, one *piece* of role `row` for each key: `key`, `pk`; `op`, `snapshot`, `kafka_position`, `source` of
    the last applied event; `order`, the key's; `seen`, the last processed Kafka position, if it differs from
    `kafka_position` and the last whole-table event; `moved_by`, the key change that may provide the `missing` columns;
    `kept`, the large columns that keep silver's value; `keeps_rest`, whether the other columns do; the record with the
    values, null if none was sent; `has_row`, `has_stored`, `has_memory`, whether there shall be a row, is one, is a
    side entry; `is_changed`; `is_refolded`, whether the key was refolded without the stored state; `is_out_of_order`,
    whether an event is before the last processed one, so that the key must be refolded (in a comparison: whether events
    were ignored because silver has more); `has_duplicates`, whether silver has several rows of the key; `is_compared`,
    `is_log_reset`, whether source positions were comparable, and went back while the time went forward; `is_unplaced`,
    whether a snapshot row without a position replaced a row that changes without a position had written; `counting`,
    `stale`, the numbers of new events that were applied and ignored; of the ignored ones `outdated`, the snapshot rows,
    and `behind_clock`, those that only their time made stale, at most `behind_ms` before the time of the last event.

    Pieces of role `values` have a further record with `columns` of the row. Pieces of role `lifetime` have the values
    that a key change passes on: `key_change`, `kafka_position`, `moved_by`, `kept`, and `columns` in the record.
    """
    open_run, pk = None, pa.null()
    for batch in batches:
        if not batch.num_rows:
            continue
        table = WholeBatch(batch, rules)
        is_slow = table.is_slow.copy()
        is_slow[-1] = True  # it may continue in the next batch
        if open_run is not None and open_run.key == table.first_key:
            is_slow[0] = True
        pk = batch.schema.field("pk").type
        out = _RunPieces(pk)
        for number, row in table.rows(is_slow):
            if open_run is None or open_run.key != row["key"]:
                if open_run is not None:
                    out.end(open_run)
                open_run = _KeyRun(row["key"], rules)
            open_run.take(row, batch, number)
        if (fast := table.fast_pieces(~is_slow)) is not None:
            yield fast
        if (slow := out.batch()) is not None:
            yield slow
    if open_run is not None:
        out = _RunPieces(pk)
        out.end(open_run)
        if (slow := out.batch()) is not None:
            yield slow


class _KeyRun:
    """A key that is folded event by event."""

    def __init__(self, key: str, rules: Rules) -> None:
        self.key = key
        self.pk: pa.Array = pa.nulls(1)
        self.rules = rules
        self.state = replace(rules.start, values={})
        self.unsent: Sequence[str] = ()
        self.left: list[Lifetime] = []
        self.has_stored = self.has_memory = self.has_duplicates = self.is_out_of_order = self.refold = False
        self.is_changed = self.is_compared = self.is_log_reset = self.is_unplaced = False
        self.counting = self.stale = self.outdated = self.behind_clock = self.behind_ms = 0
        self.snapshot: str | None = None
        self.source: Order | None = None
        self._floor: Position | None = None
        self._fresh: State | None = None
        self._table_events: list[Event] | None = None

    def take(self, row: Mapping[str, Any], batch: pa.RecordBatch, number: int) -> None:
        """Process the next row of the run.

        Args:
            row: its columns without the bytes.
            batch: the batch with the row.
            number: the row's number in the batch.
        """
        if not self.pk[0].is_valid:
            self.pk = batch.column("pk").slice(number, 1)
        self.refold = self.refold or row["refold"]
        if row["rank"] == ROW:
            self._take_stored(row)
        elif row["rank"] == MEMORY:
            self._take_memory(row)
        else:
            record = _record(row, batch, number) if row["op"] in UPSERTS else None
            self._take_event(row, record)

    def _take_stored(self, row: Mapping[str, Any]) -> None:
        self.has_duplicates, self.has_stored, self.unsent = self.has_stored, True, row["unsent"]
        values = {name: STORED for name in (REST, *self.rules.large) if name not in self.unsent}
        kafka_position = kafka_position_of(row["kafka_position"])
        self.state = State(
            has_row=True,
            is_live=row["op"] in UPSERTS,
            op=row["op"],
            applied_at=kafka_position,
            seen_at=kafka_position,
            order=order_of(row["order"]),
            values=values,
            read_at=row["read_at"],
        )

    def _take_memory(self, row: Mapping[str, Any]) -> None:
        self.has_memory = True
        if not self.has_stored:
            self.state = State(applied_at=kafka_position_of(row["kafka_position"]), order=order_of(row["order"]))
        self.state.seen_at = kafka_position_of(row["seen"] or row["kafka_position"])
        self.state.moved_by = row["key_change"]

    def _take_event(self, row: Mapping[str, Any], record: Record | None) -> None:
        kafka_position, op = kafka_position_of(row["kafka_position"]), row["op"]
        self._take_table_events(before=kafka_position)
        sent = {name: record for name in (REST, *self.rules.large) if name not in row["unsent"]} if record else {}
        source = order_of(row["order"])
        event = Event(kafka_position, op, source, sent, row["key_change"], is_streaming=row["is_streaming"])
        if not self._reaches(event, is_start=op in STARTS):
            self.stale += row["is_new"]
            return
        last = self.state.order
        self._compare(event)
        counts = self._step(event)
        if counts:
            self.snapshot, self.source = row["snapshot"], source
        self.counting += counts and row["is_new"]
        if not counts and row["is_new"]:
            self._count_ignored(event, last)

    def _take_table_events(self, before: Position | None = None) -> None:
        """Process the whole-table events before a position; at the end all remaining ones."""
        if self._table_events is None:
            self._begin()
        assert self._table_events is not None
        while self._table_events and (before is None or self._table_events[0].kafka_position < before):
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
            self._floor = max((position for position in known if position is not None), default=None)
        self.state.seen_at = self._floor

    def _reaches(self, event: Event, *, is_start: bool = False) -> bool:
        """Whether to apply the event to the state.

        Example: silver has processed the key up to offset 7. If offset 5 arrives, neither it nor a later event is
        applied here, because the key is refolded from bronze.
        """
        if self._floor is None or event.kafka_position > self._floor:
            return self.rules.is_comparison or not self.is_out_of_order
        self.is_out_of_order = True
        # In a comparison, an event with a complete row, or none, is a start from which the key can be refolded.
        if self._fresh is not None and is_start:
            self.state, self._floor, self._fresh = self._fresh, None, None
            self.is_out_of_order, self.refold = False, True
        return not self.is_out_of_order

    def _compare(self, event: Event) -> None:
        order, last = event.order, self.state.order
        if order is None or last is None:
            return
        if not event.is_streaming:
            is_unknown = order.position is None and last.position is None
            self.is_unplaced |= is_unknown and event.op in UPSERTS and self.state.is_live
        elif are_comparable(order, last):
            self.is_compared = True
            is_newer = (lead_ms(order, last) or 0) > 0
            self.is_log_reset |= is_newer and order.position < last.position  # type: ignore[operator]

    def _count_ignored(self, event: Event, last: Order | None) -> None:
        """Count a new event that was ignored. `last` is the order of the last streaming event before it."""
        self.stale += 1
        if not event.is_streaming:
            self.outdated += 1
        elif event.order is not None and last is not None and not are_comparable(event.order, last):
            self.behind_clock += 1
            self.behind_ms = max(self.behind_ms, -(lead_ms(event.order, last) or 0))

    def _step(self, event: Event) -> bool:
        hard = self.rules.truncates_hard if event.op == TRUNCATE else self.rules.hard
        outcome = step(self.state, event, hard=hard, log_may_reset=self.rules.log_may_reset)
        self.is_changed |= outcome.counts
        if outcome.left is not None:
            self.left.append(outcome.left)
        return outcome.counts

    def end(self) -> State:
        """The state after the run."""
        self._take_table_events()
        return self.state


class _RunPieces:
    def __init__(self, pk: pa.DataType) -> None:
        self._pk = pk
        self._rows: list[dict[str, Any]] = []
        self._pks: list[pa.Array] = []

    def end(self, run: _KeyRun) -> None:
        """Add the pieces of a completed run."""
        state, large = run.end(), run.rules.large
        values = state.values if state.has_row else {}
        rest = values.get(REST)
        given = {name: values[name] for name in large if name in values}
        missing = [name for name in large if name not in given] if values else []
        if rest is STORED:
            missing = [name for name in run.unsent if name not in given]
        known = [position for position in (state.applied_at, run.rules.last_table_event) if position is not None]
        # Applied at offset 5, then a stale event at 7: 7 is stored, so that offset 6 is out of order if it comes late.
        is_seen = state.seen_at is None or (bool(known) and state.seen_at <= max(known))
        self._add(
            run,
            ROW_PIECE,
            state.applied_at,
            op=state.op,
            snapshot=run.snapshot,
            source=order_dict(run.source),
            order=order_dict(state.order),
            seen=None if is_seen else kafka_position_dict(state.seen_at),
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
            is_unplaced=run.is_unplaced,
            counting=run.counting,
            stale=run.stale,
            outdated=run.outdated,
            behind_clock=run.behind_clock,
            behind_ms=run.behind_ms,
            **bytes_of(rest),
        )
        self._add_records(run, VALUES_PIECE, state.applied_at, given, but=rest)
        for left in run.left:
            values = {name: left.values[name] for name in large if name in left.values}
            kept = [name for name, value in values.items() if value is STORED]
            fields = {"key_change": left.key_change, "moved_by": left.moved_by, "kept": kept}
            if kept or left.moved_by is not None:
                self._add(run, LIFETIME_PIECE, left.kafka_position, **fields)
            self._add_records(run, LIFETIME_PIECE, left.kafka_position, values, **fields)

    def _add_records(
        self,
        run: _KeyRun,
        role: str,
        kafka_position: Position | None,
        values: Mapping[str, Any],
        *,
        but: Any = None,
        **fields: Any,
    ) -> None:
        """Add a piece for each record that contains values."""
        records = {id(value): value for value in values.values() if isinstance(value, Record) and value is not but}
        for record in records.values():
            columns = [name for name, value in values.items() if value is record]
            self._add(run, role, kafka_position, columns=columns, **fields, **bytes_of(record))

    def _add(self, run: _KeyRun, role: str, at: Position | None, **fields: Any) -> None:
        self._rows.append({"key": run.key, "role": role, "kafka_position": kafka_position_dict(at), **fields})
        self._pks.append(run.pk)

    def batch(self) -> pa.RecordBatch | None:
        """All pieces as a batch; none without pieces."""
        if not self._rows:
            return None
        columns = {field.name: pa.array([row.get(field.name) for row in self._rows], field.type) for field in PIECES}
        pks = pa.concat_arrays([pk if pk.type == self._pk else pa.nulls(1, self._pk) for pk in self._pks])
        return batch_of_pieces({**columns, "pk": pks})


def _record(row: Mapping[str, Any], batch: pa.RecordBatch, number: int) -> Record:
    fields = (batch.column(name)[number].as_py() for name in ("raw_value", "value_schema", "framing"))
    return Record(kafka_position_of(row["kafka_position"]), *fields)
