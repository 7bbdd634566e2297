"""Events that concern every key at once: a truncate, and the end of a new snapshot that lacks rows.

Each stands in the history of every key, at its own place in the log. A truncate is a streaming delete of every row, so
that a replayed one does nothing to rows that are newer. A completed snapshot of the whole table deletes the rows that
neither it nor any event since its start has shown, if the table is set so; a snapshot sends no deletes for what went
while nobody looked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cdc_lake.fold.rules import MISSING, TRUNCATE, Event, Order, State, step

SNAPSHOT_STARTS = ("first", "first_in_data_collection")
SNAPSHOT_ENDS = ("last", "last_in_data_collection")


class Place(NamedTuple):
    """A place in the log: what `__kafka` holds, in its order."""

    log_ts: int
    topic: str
    generation: int
    partition: int
    offset: int


class Truncate(NamedTuple):
    """A truncate and when it happened by its source."""

    place: Place
    order: Order


class Mark(NamedTuple):
    """A snapshot row with a marker that begins or ends it."""

    place: Place
    marker: str


class Missing(NamedTuple):
    """The end of a snapshot, and where it had begun."""

    place: Place
    since: Place


@dataclass(frozen=True)
class WholeTable:
    """What happened to all keys in a stretch of the log, and what must be remembered of it.

    Attributes:
        truncates, missing: in log order.
        start: what is known after it of a key that has no event of its own.
        snapshot: the start of a snapshot that has not ended.
        unpaired_ends: ends of snapshots whose start is not known, so that nothing was removed.
        is_behind: whether any of it stands before what was remembered, or undoes it: then all keys are folded again.
    """

    truncates: Sequence[Truncate] = ()
    missing: Sequence[Missing] = ()
    start: State = field(default_factory=State)
    snapshot: Place | None = None
    unpaired_ends: int = 0
    is_behind: bool = False

    @property
    def events(self) -> list[Event]:
        """What happened, as events of any key, in log order."""
        truncates = [Event(one.place, TRUNCATE, one.order) for one in self.truncates]
        missing = [Event(one.place, MISSING, since=one.since) for one in self.missing]
        return sorted((*truncates, *missing), key=lambda event: event.place)


def whole_table(
    truncates: Iterable[Truncate],
    marks: Iterable[Mark],
    *,
    earlier: Iterable[Mark] = (),
    before: WholeTable | None = None,
) -> WholeTable:
    """Go through what happened to all keys, in log order.

    Args:
        truncates, marks: of a stretch of the log, in any order.
        earlier: the marks that were read before, where some of these may stand before them in the log; else what is
            remembered says enough.
        before: what is remembered from before it.
    """
    before = before or WholeTable()
    known = [*earlier, *([Mark(before.snapshot, SNAPSHOT_STARTS[0])] if before.snapshot else [])]
    was, now = _snapshots(known), _snapshots([*known, *marks])
    happened = WholeTable(
        sorted(truncates),
        [one for one in now.ended if one not in was.ended],
        replace(before.start),
        now.begun,
        max(now.unpaired_ends - was.unpaired_ends, 0),
    )
    seen = before.start.considered
    is_behind = any(one not in now.ended for one in was.ended)
    for event in happened.events:
        is_behind |= seen is not None and event.place <= seen
        step(happened.start, event, hard=True)
    return replace(happened, is_behind=is_behind)


class _Snapshots(NamedTuple):
    """The snapshots that marks make: those that ended, the start of one that has not, and ends without a start."""

    ended: Sequence[Missing]
    begun: Place | None
    unpaired_ends: int


def _snapshots(marks: Iterable[Mark]) -> _Snapshots:
    ended: list[Missing] = []
    begun, unpaired = None, 0
    for mark in sorted(marks):
        if mark.marker in SNAPSHOT_STARTS:
            begun = mark.place
        elif begun is None:
            unpaired += 1
        else:
            ended.append(Missing(mark.place, begun))
            begun = None
    return _Snapshots(ended, begun, unpaired)
