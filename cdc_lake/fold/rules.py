"""The rules of the fold: how one event changes the state of its key.

Silver's row of a key is the state after `step` was called for the key's events in log order. There is no Spark, table
or batch here. docs/explanation/ordering-and-deletes.md explains each rule with cases that simpler rules get wrong.

- An upsert (`r`, `c`, `u`) creates or changes the row. Values that were not sent stay unchanged within the row's
  lifetime. The first upsert after a delete begins a new lifetime, which inherits nothing. So does an upsert that is
  half of a key change: an existing row is another one whose delete was lost, unless it is this row (see `step`).
- A delete (`d`, an unpaired `tombstone`, `t`, `missing`) ends the lifetime. The row is marked as deleted, or removed.
- A stale streaming event (`c`, `u`, `d`, `t` outside a snapshot) is ignored: see `is_stale`.
- A snapshot row is ignored if it is older than the key's last streaming event: see `is_outdated`.
- An unpaired tombstone is always applied. It has neither position nor time, so it resets the order with which later
  events are compared. Otherwise, if `[tombstone, c]` is replayed, the second `c` would be stale, and the row would be
  lost.
- A truncate (`t`) is a streaming delete of every key. `missing`, the end of a snapshot without the key, deletes the row
  unless an event since the snapshot's start has it.
- A delete that is half of a key change passes the lifetime's values to the new key.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TRUNCATE, MISSING, TOMBSTONE = "t", "missing", "tombstone"
WHOLE_TABLE_OPS = (TRUNCATE, MISSING)
"""Events of every key."""
INSERTS = ("c", "r")
UPSERTS = (*INSERTS, "u")
DELETES = ("d", TOMBSTONE, *WHOLE_TABLE_OPS)
STREAMING_OPS = ("c", "u", "d")
"""Row events of the source's log, unless they are a snapshot's."""
STARTS = ("r", "c", "d", TOMBSTONE)
"""Events with a complete row, or without one."""
SHARED = -1
"""Last component of a position that a group of events shares, such as the changes of a transaction."""
Position = tuple[Any, ...]
"""An event's Kafka position: the fields of `__kafka`, in order."""


class Order(NamedTuple):
    """The source order of an event, as in `__order`. None: unknown."""

    position: Sequence[int] | None
    domain: str | None
    ts_ms: int | None


@dataclass(slots=True)
class Event:
    """An event of a key.

    Attributes:
        order: unknown for tombstones, and none for `missing`.
        sent: the values that an upsert sent.
        key_change: the key change of which the event is half.
        since: for `missing`, the start of its snapshot.
        is_streaming: whether it is a change; a snapshot row is not.
    """

    kafka_position: Position
    op: str
    order: Order | None = None
    sent: Mapping[str, Any] = field(default_factory=dict)
    key_change: Hashable = None
    since: Position | None = None
    is_streaming: bool = True


@dataclass(slots=True)
class State:
    """The state of a key.

    Attributes:
        has_row: whether the table has a row of the key, deleted or not.
        is_live: whether that row is not deleted.
        op, applied_at: the last applied event.
        seen_at: the last processed event, applied or not.
        order: the order of the last applied streaming event; none after an unpaired tombstone.
        values: the values sent in this lifetime, or in the last one if the row is deleted.
        moved_by: the key change that began this lifetime.
        read_at: the position at which a snapshot read the row, if that was the last applied event.
    """

    has_row: bool = False
    is_live: bool = False
    op: str = ""
    applied_at: Position | None = None
    seen_at: Position | None = None
    order: Order | None = None
    values: dict[str, Any] = field(default_factory=dict)
    moved_by: Hashable = None
    read_at: Sequence[int] | None = None


class Lifetime(NamedTuple):
    """Values that a key change passes to the new key, and the key change that began the old key's lifetime."""

    key_change: Hashable
    kafka_position: Position
    values: Mapping[str, Any]
    moved_by: Hashable


class Outcome(NamedTuple):
    """Result of an event: whether it was applied, and the values that it passes to another key."""

    counts: bool
    left: Lifetime | None = None


def are_comparable(one: Order, other: Order) -> bool:
    """Whether the positions tell which of two events is older."""
    return one.position is not None and other.position is not None and one.domain == other.domain


def lead_ms(event: Order, last: Order) -> int | None:
    """How much later an event is than another by the source's time; none if a time is unknown."""
    return None if event.ts_ms is None or last.ts_ms is None else event.ts_ms - last.ts_ms


def is_stale(event: Order, last: Order | None) -> bool:
    """Whether a streaming event is a replay: neither position nor time, as far as known, is newer.

    Neither alone suffices. Clocks may step back, and all changes of a transaction have the same time; positions restart
    after a restore, and are comparable within one domain only.

        stale  =  position older or equal, and time older, equal or unknown
               or position unknown, and time strictly older

    An equal position that is `SHARED` is not older: within the group, the order of the log decides. A group that is
    replayed is applied again, up to its end, where the row is the same as before.

    Args:
        event: the event's order.
        last: the order of the key's last applied streaming event.
    """
    if last is None:
        return False
    lead = lead_ms(event, last)
    if not are_comparable(event, last):
        return lead is not None and lead < 0
    is_older = event.position <= last.position and not _is_same_group(event, last)  # type: ignore[operator]
    return is_older and (lead is None or lead <= 0)


def is_outdated(row: Order, last: Order | None, *, log_may_reset: bool) -> bool:
    """Whether a snapshot row is older than the key's last streaming event. Without comparable positions, it is not.

    A snapshot row's time is the connector's and says nothing, unless the source's log may have been reset: then a row
    with an older position and a newer time was read after the source was restored.

    Args:
        row: the snapshot row's order.
        last: the order of the key's last applied streaming event.
        log_may_reset: whether the user expects positions to go back.
    """
    if last is None or not are_comparable(row, last):
        return False
    lead = lead_ms(row, last)
    is_older: bool = row.position < last.position  # type: ignore[operator]
    return is_older and not (log_may_reset and lead is not None and lead > 0)


def step(state: State, event: Event, *, hard: bool, log_may_reset: bool = False) -> Outcome:
    """Process the next event of a key, in log order.

    Args:
        state: the key's state; changed in place.
        hard: whether a delete removes the row.
        log_may_reset: see `is_outdated`.
    """
    state.seen_at = event.kafka_position
    if event.op == MISSING:
        if not state.is_live or state.applied_at is None or event.since is None or state.applied_at >= event.since:
            return Outcome(counts=False)
    elif event.order is not None:
        if event.is_streaming and is_stale(event.order, state.order):
            return Outcome(counts=False)
        if not event.is_streaming and is_outdated(event.order, state.order, log_may_reset=log_may_reset):
            return Outcome(counts=False)
    was_live, state.is_live = state.is_live, event.op in UPSERTS
    was_read_later = event.key_change is not None and _was_read_later(state, event.order)
    is_known_change = was_read_later or _is_same_group(event.order, state.order)
    state.op, state.applied_at = event.op, event.kafka_position
    if event.op == TOMBSTONE:
        state.order = None
    elif event.order is not None and event.is_streaming:
        state.order = event.order
    state.read_at = event.order.position if event.order is not None and not event.is_streaming else None
    if state.is_live:
        # A live row was not deleted before the insert of a key change. So it is another row whose delete was lost; or
        # this very row, if the insert is a replay, or if a snapshot read the row after the change, and the connector
        # sent the change after the snapshot: `r(3, A) read at 40`, `c(3, was 1) at 30`.
        if not was_live or (event.key_change is not None and not is_known_change):
            state.values, state.moved_by = {}, event.key_change
        state.values = {**state.values, **event.sent}
        state.has_row = True
        return Outcome(counts=True)
    # A whole-table event creates no row for a key without one.
    state.has_row = not hard and (state.has_row or event.op not in WHOLE_TABLE_OPS)
    # A row that was read after the change may be a later row of the old key, whose values must not move to the new key.
    is_left = event.op == "d" and event.key_change is not None and was_live and not was_read_later
    left = Lifetime(event.key_change, event.kafka_position, state.values, state.moved_by) if is_left else None
    return Outcome(counts=True, left=left)


def _was_read_later(state: State, change: Order | None) -> bool:
    """Whether a snapshot read the row at or after a change's position."""
    if state.read_at is None or change is None or change.position is None:
        return False
    return change.position <= state.read_at  # type: ignore[operator,no-any-return]


def _is_same_group(event: Order | None, last: Order | None) -> bool:
    """Whether two events belong to a group that shares its position."""
    if event is None or last is None or event.position is None or event.position[-1] != SHARED:
        return False
    return event.position == last.position and event.domain == last.domain
