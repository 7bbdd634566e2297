"""Events of a whole table: a truncate, and the end of a snapshot that lacks rows.

Each is part of every key's history, at its Kafka position. A truncate is a streaming delete of every row, so a replayed
truncate does not affect newer rows. If the table is configured so, a completed snapshot of the whole table deletes rows
that neither it nor any event since its start contains, because a snapshot has no deletes for rows that were deleted
while the connector was down.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cdc_lake.fold.rules import MISSING, TRUNCATE, Event, Order, State, step

SNAPSHOT_STARTS = ("first", "first_in_data_collection")
SNAPSHOT_ENDS = ("last", "last_in_data_collection")


class KafkaPosition(NamedTuple):
    """A Kafka position: the fields of `__kafka`, in order."""

    log_ts: int
    topic: str
    generation: int
    partition: int
    offset: int


class Truncate(NamedTuple):
    """A truncate and its source order; none if Kafka's order decides."""

    kafka_position: KafkaPosition
    order: Order | None


class SnapshotMarker(NamedTuple):
    """A snapshot row whose marker begins or ends the snapshot."""

    kafka_position: KafkaPosition
    marker: str


class SnapshotEnd(NamedTuple):
    """The end of a snapshot, and its start."""

    kafka_position: KafkaPosition
    since: KafkaPosition


@dataclass(frozen=True)
class TableEvents:
    """The whole-table events in a range of the log, and the state that must be stored after it.

    Attributes:
        truncates, missing: in log order.
        start: the state after the range of a key without events.
        snapshot: the start of a snapshot that has not ended.
        unpaired_ends: number of snapshot ends without a known start, for which no rows are removed.
        is_out_of_order: whether an event is before the stored state, or contradicts it, so that all keys must be
        refolded.
    """

    truncates: Sequence[Truncate] = ()
    missing: Sequence[SnapshotEnd] = ()
    start: State = field(default_factory=State)
    snapshot: KafkaPosition | None = None
    unpaired_ends: int = 0
    is_out_of_order: bool = False

    @property
    def events(self) -> list[Event]:
        """The whole-table events as events of a key, in log order."""
        truncates = [Event(truncate.kafka_position, TRUNCATE, truncate.order) for truncate in self.truncates]
        missing = [Event(end.kafka_position, MISSING, since=end.since) for end in self.missing]
        return sorted((*truncates, *missing), key=lambda event: event.kafka_position)


def table_events(
    truncates: Iterable[Truncate],
    markers: Iterable[SnapshotMarker],
    *,
    earlier: Iterable[SnapshotMarker] = (),
    before: TableEvents | None = None,
) -> TableEvents:
    """Process the whole-table events of a range of the log.

    Args:
        truncates, markers: the range's events, in any order.
        earlier: all marks that were read before, needed only if some of `markers` may be before them in the log.
        before: the state stored before the range.
    """
    before = before or TableEvents()
    known = [*earlier, *([SnapshotMarker(before.snapshot, SNAPSHOT_STARTS[0])] if before.snapshot else [])]
    was, now = _snapshots(known), _snapshots([*known, *markers])
    happened = TableEvents(
        sorted(truncates),
        [snapshot for snapshot in now.ended if snapshot not in was.ended],
        replace(before.start),
        now.begun,
        max(now.unpaired_ends - was.unpaired_ends, 0),
    )
    seen = before.start.seen_at
    is_out_of_order = any(snapshot not in now.ended for snapshot in was.ended)
    for event in happened.events:
        is_out_of_order |= seen is not None and event.kafka_position <= seen
        step(happened.start, event, hard=True)
    return replace(happened, is_out_of_order=is_out_of_order)


class _Snapshots(NamedTuple):
    """Snapshots by their marks: completed ones, the start of a running one, and the number of ends without a start."""

    ended: Sequence[SnapshotEnd]
    begun: KafkaPosition | None
    unpaired_ends: int


def _snapshots(markers: Iterable[SnapshotMarker]) -> _Snapshots:
    ended: list[SnapshotEnd] = []
    begun, unpaired = None, 0
    for mark in sorted(markers):
        if mark.marker in SNAPSHOT_STARTS:
            begun = mark.kafka_position
        elif begun is None:
            unpaired += 1
        else:
            ended.append(SnapshotEnd(mark.kafka_position, begun))
            begun = None
    return _Snapshots(ended, begun, unpaired)
