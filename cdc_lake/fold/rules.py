"""The fold: what one event does to what is known of its key.

Silver's row of a key is the state that `step` reaches over the key's events in log order. No Spark, no tables, no
batches: docs/explanation/ordering-and-deletes.md explains each rule with the cases that simpler rules get wrong.

- An upsert (`r`, `c`, `u`) creates the row or changes it. Values that were not sent stay as they are, within the row's
  lifetime. The first upsert after a delete begins a new lifetime, which inherits nothing from the one before. So does
  one that is half of a key change: the row that was there is another, whose delete was lost.
- A delete (`d`, an unpaired `tombstone`, `t`, `missing`) ends the lifetime. The row stays, marked as deleted, or goes.
- A streaming event (`c`, `u`, `d`, `t` outside a snapshot) that is stale does not count: see `is_stale`.
- A snapshot row and an unpaired tombstone always count. An unpaired tombstone has neither a position nor a time, so it
  resets what later events are compared with. Otherwise, if `[tombstone, c]` is sent again, the second `c` would be
  stale, and the row would be lost.
- A truncate (`t`) is a streaming delete of every key. `missing`, the end of a snapshot that does not have the key,
  deletes the row unless an event since the snapshot's start shows it.
- A delete that is half of a key change leaves the lifetime's values to the new key.
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
"""Of a row's events, those that happened at a time of the source's, unless they are a snapshot's."""
STARTS = ("r", "c", "d", TOMBSTONE)
"""Events that tell all of a row, or that it is gone."""
Place = tuple[Any, ...]
"""An event's place in the log: `__kafka`'s fields, in their order."""


class Order(NamedTuple):
    """When a streaming event happened, by its source: what `__order` holds. Null: not known."""

    position: Sequence[int] | None
    domain: str | None
    ts_ms: int | None


@dataclass(slots=True)
class Event:
    """An event of a key.

    Attributes:
        order: of streaming events only.
        sent: of upserts, the values that were sent.
        move: the key change that the event is half of.
        since: of `missing`, where its snapshot began.
    """

    place: Place
    op: str
    order: Order | None = None
    sent: Mapping[str, Any] = field(default_factory=dict)
    move: Hashable = None
    since: Place | None = None


@dataclass(slots=True)
class State:
    """What is known of a key.

    Attributes:
        has_row: whether the table has a row of it, deleted or not.
        is_live: whether that row is not deleted.
        op, decided: the last event that counted.
        considered: the last event, whether it counted or not.
        order: the last streaming event that counted; none after an unpaired tombstone.
        values: those sent in this lifetime, or in the last one if the row is deleted.
        came_by: the key change that brought this lifetime's row here.
    """

    has_row: bool = False
    is_live: bool = False
    op: str = ""
    decided: Place | None = None
    considered: Place | None = None
    order: Order | None = None
    values: dict[str, Any] = field(default_factory=dict)
    came_by: Hashable = None


class Lifetime(NamedTuple):
    """What a key change leaves to the new key: the values, and the key change that brought the row before."""

    move: Hashable
    place: Place
    values: Mapping[str, Any]
    came_by: Hashable


class Outcome(NamedTuple):
    """What became of an event: whether it counted, and what it left to another key."""

    counts: bool
    left: Lifetime | None = None


def is_stale(event: Order, last: Order | None) -> bool:
    """Whether a streaming event was sent again: position and time agree, as far as known, that it is not newer.

    Neither decides alone. Clocks step, and all changes of a transaction share a time; positions restart after a
    restore, and compare within one domain only.

        stale  =  position older or equal, and time older, equal or unknown
               or position unknown, and time strictly older

    Args:
        event: the event's.
        last: of the last streaming event of the key that counted.
    """
    if last is None:
        return False
    lead_ms = None if event.ts_ms is None or last.ts_ms is None else event.ts_ms - last.ts_ms
    if event.position is None or last.position is None or event.domain != last.domain:
        return lead_ms is not None and lead_ms < 0
    return event.position <= last.position and (lead_ms is None or lead_ms <= 0)  # type: ignore[operator]


def step(state: State, event: Event, *, hard: bool) -> Outcome:
    """Take the next event of a key, in log order.

    Args:
        state: of the key; changed in place.
        event: the event.
        hard: whether a delete removes the row.
    """
    state.considered = event.place
    if event.op == MISSING:
        if not state.is_live or state.decided is None or event.since is None or state.decided >= event.since:
            return Outcome(counts=False)
    elif event.order is not None and is_stale(event.order, state.order):
        return Outcome(counts=False)
    was_live, state.is_live = state.is_live, event.op in UPSERTS
    state.op, state.decided = event.op, event.place
    if event.order is not None or event.op == TOMBSTONE:
        state.order = event.order
    if state.is_live:
        if not was_live or event.move is not None:
            state.values, state.came_by = {}, event.move
        state.values = {**state.values, **event.sent}
        state.has_row = True
        return Outcome(counts=True)
    # A whole-table event makes no row of a key that has none.
    state.has_row = not hard and (state.has_row or event.op not in WHOLE_TABLE_OPS)
    is_left = event.op == "d" and event.move is not None and was_live
    left = Lifetime(event.move, event.place, state.values, state.came_by) if is_left else None
    return Outcome(counts=True, left=left)
