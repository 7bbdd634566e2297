"""The rules of the fold: how one event changes the state of its key.

Silver's row of a key is the state after `step` was called for the key's events in log order. There is no Spark, table
or batch here. docs/explanation/ordering-and-deletes.md explains each rule with cases that simpler rules get wrong.

- An upsert (`r`, `c`, `u`) creates or changes the row. Values that were not sent stay unchanged within the row's
  lifetime. The first upsert after a delete begins a new lifetime, which inherits nothing. So does an upsert that is
  half of a key change: an existing row is another one whose delete was lost.
- A delete (`d`, an unpaired `tombstone`, `t`, `missing`) ends the lifetime. The row is marked as deleted, or removed.
- A stale streaming event (`c`, `u`, `d`, `t` outside a snapshot) is ignored: see `is_stale`.
- A snapshot row and an unpaired tombstone are always applied. An unpaired tombstone has neither position nor time, so
  it resets the order with which later events are compared. Otherwise, if `[tombstone, c]` is replayed, the second `c`
  would be stale, and the row would be lost.
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
UPSERTS = ("c", "u", "r")
DELETES = ("d", TOMBSTONE, *WHOLE_TABLE_OPS)
STREAMING_OPS = ("c", "u", "d")
"""Row events of the source's log, unless they are a snapshot's."""
STARTS = ("r", "c", "d", TOMBSTONE)
"""Events with a complete row, or without one."""
LogPosition = tuple[Any, ...]
"""An event's log position: the fields of `__kafka`, in order."""


class Order(NamedTuple):
    """The source order of a streaming event, as in `__order`. None: unknown."""

    position: Sequence[int] | None
    domain: str | None
    ts_ms: int | None


@dataclass(slots=True)
class Event:
    """An event of a key.

    Attributes:
        order: only of streaming events.
        sent: the values that an upsert sent.
        key_change: the key change of which the event is half.
        since: for `missing`, the start of its snapshot.
    """

    log_position: LogPosition
    op: str
    order: Order | None = None
    sent: Mapping[str, Any] = field(default_factory=dict)
    key_change: Hashable = None
    since: LogPosition | None = None


@dataclass(slots=True)
class State:
    """The state of a key.

    Attributes:
        has_row: whether the table has a row of the key, deleted or not.
        is_live: whether that row is not deleted.
        op, applied_at: the last applied event.
        seen_at: the last processed event, applied or not.
        order: of the last applied streaming event; none after an unpaired tombstone.
        values: the values sent in this lifetime, or in the last one if the row is deleted.
        moved_by: the key change that began this lifetime.
    """

    has_row: bool = False
    is_live: bool = False
    op: str = ""
    applied_at: LogPosition | None = None
    seen_at: LogPosition | None = None
    order: Order | None = None
    values: dict[str, Any] = field(default_factory=dict)
    moved_by: Hashable = None


class Lifetime(NamedTuple):
    """Values that a key change passes to the new key, and the key change that began the old key's lifetime."""

    key_change: Hashable
    log_position: LogPosition
    values: Mapping[str, Any]
    moved_by: Hashable


class Outcome(NamedTuple):
    """Result of an event: whether it was applied, and the values that it passes to another key."""

    counts: bool
    left: Lifetime | None = None


def is_stale(event: Order, last: Order | None) -> bool:
    """Whether a streaming event is a replay: neither position nor time, as far as known, is newer.

    Neither alone suffices. Clocks may step back, and all changes of a transaction have the same time; positions restart
    after a restore, and are comparable within one domain only.

        stale  =  position older or equal, and time older, equal or unknown
               or position unknown, and time strictly older

    Args:
        event: the event's order.
        last: the order of the key's last applied streaming event.
    """
    if last is None:
        return False
    lead_ms = None if event.ts_ms is None or last.ts_ms is None else event.ts_ms - last.ts_ms
    if event.position is None or last.position is None or event.domain != last.domain:
        return lead_ms is not None and lead_ms < 0
    return event.position <= last.position and (lead_ms is None or lead_ms <= 0)  # type: ignore[operator]


def step(state: State, event: Event, *, hard: bool) -> Outcome:
    """Process the next event of a key, in log order.

    Args:
        state: the key's state; changed in place.
        event: the event.
        hard: whether a delete removes the row.
    """
    state.seen_at = event.log_position
    if event.op == MISSING:
        if not state.is_live or state.applied_at is None or event.since is None or state.applied_at >= event.since:
            return Outcome(counts=False)
    elif event.order is not None and is_stale(event.order, state.order):
        return Outcome(counts=False)
    was_live, state.is_live = state.is_live, event.op in UPSERTS
    state.op, state.applied_at = event.op, event.log_position
    if event.order is not None or event.op == TOMBSTONE:
        state.order = event.order
    if state.is_live:
        if not was_live or event.key_change is not None:
            state.values, state.moved_by = {}, event.key_change
        state.values = {**state.values, **event.sent}
        state.has_row = True
        return Outcome(counts=True)
    # A whole-table event creates no row for a key without one.
    state.has_row = not hard and (state.has_row or event.op not in WHOLE_TABLE_OPS)
    is_left = event.op == "d" and event.key_change is not None and was_live
    left = Lifetime(event.key_change, event.log_position, state.values, state.moved_by) if is_left else None
    return Outcome(counts=True, left=left)
