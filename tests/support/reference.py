"""The expected rows of silver, in plain Python, from the rules of docs/explanation/ordering-and-deletes.md alone.

It computes rows from a log. It shares nothing with `cdc_lake`, reads the whole log at once and has no
batches: a table must equal its result for every way to cut the log.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class _Unsent:
    def __repr__(self) -> str:
        return "UNSENT"


UNSENT = _Unsent()
"""A value that the connector did not send."""


SHARED = -1
"""The last number of a position that several events have."""


class Refused(Exception):
    """The settings reject this log."""


class Order(NamedTuple):
    """When an event happened at its source; null means unknown. A position that ends with `SHARED` is a group's."""

    position: tuple[int, ...] | None
    domain: str | None
    ts_ms: int | None


class Move(NamedTuple):
    """The identity of a key change, which both halves have.

    Two changes never share a position, unless it is that of a group. Without one a row that goes there and back and
    there again in one transaction makes two that share all else.
    """

    ts_ms: int | None
    domain: str | None = None
    position: tuple[int, ...] | None = None
    old: Hashable = None
    new: Hashable = None


class Place(NamedTuple):
    """A record's position in the log, most significant first. `log_ts` is the partition's highest Kafka timestamp so
    far.
    """

    log_ts: int
    generation: int
    partition: int
    offset: int


_NOWHERE = Place(0, 0, 0, 0)


@dataclass(frozen=True)
class Event:
    """One record in its partition.

    Attributes:
        op: r c u d t or tombstone; anything else is not folded.
        key: the row's key; null for truncates.
        values: the columns outside the key; none for deletes.
        kafka_ts: Kafka's timestamp, ms.
        moved_to: of a delete, the row's new key.
        moved_from: of an insert, the row's former key.
        status: ok; `quarantined` while it cannot be decoded; `control` if it is no event of a row.
        key_bytes: the key as it was sent; the key itself when left out.
    """

    op: str
    key: Hashable = None
    values: Mapping[str, Any] | None = None
    position: tuple[int, ...] | None = None
    domain: str | None = "source"
    ts_ms: int | None = None
    snapshot: str | None = None
    partition: int = 0
    offset: int = 0
    generation: int = 0
    kafka_ts: int = 0
    moved_to: Hashable = None
    moved_from: Hashable = None
    status: str = "ok"
    key_bytes: Hashable = None

    @property
    def order(self) -> Order:
        """When it happened."""
        return Order(self.position, self.domain, self.ts_ms)

    @property
    def is_snapshot(self) -> bool:
        """Whether it has the current row, not a change of it."""
        return self.op == "r" or (self.op in ("c", "u") and self.snapshot not in (None, "false"))

    @property
    def move(self) -> Move | None:
        """The key change that it is half of."""
        if self.moved_to is None and self.moved_from is None:
            return None
        old, new = (self.key, self.moved_to) if self.op == "d" else (self.moved_from, self.key)
        if self.position is None:
            return Move(self.ts_ms, old=old, new=new)
        if self.position[-1] == SHARED:
            return Move(self.ts_ms, self.domain, self.position, old, new)
        return Move(self.ts_ms, self.domain, self.position)


class Row(NamedTuple):
    """A row of silver: its columns without the key, and silver's own columns."""

    values: dict[str, Any]
    deleted: bool
    unavailable: tuple[str, ...]
    op: str
    place: Place
    order: Order | None


@dataclass(eq=False)
class Life:
    """The values that were sent of a row between two deletes of its key.

    Attributes:
        moved_at: where the half of a key change stands that closed it.
    """

    sent: dict[str, Any] = field(default_factory=dict)
    came_by: Move | None = None
    moved_at: Place = _NOWHERE


@dataclass
class Story:
    """One key, after its last accepted event; known once it had an event."""

    life: Life | None = None
    is_live: bool = False
    is_in_table: bool = False
    order: Order | None = None
    op: str = ""
    place: Place = _NOWHERE
    read_at: tuple[int, ...] | None = None
    """Where the log was when a snapshot read the row, if nothing was accepted since."""


_TABLE_KEYS = {
    "deletes": ("deletes", "mode"),
    "soft_delete_values": ("deletes", "keep_values"),
    "truncates": ("deletes", "truncates"),
    "truncates_across_partitions": ("deletes", "across_partitions"),
    "remove_missing_after_snapshot": ("deletes", "missing_after_snapshot"),
    "null_means_keep": ("envelope", "null_means_unchanged"),
}


def table_settings(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of a table, by group, that correspond to the arguments and log settings of `fold`."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in arguments.items():
        group, key = _TABLE_KEYS[name]
        found.setdefault(group, {})[key] = value == "last" if name == "soft_delete_values" else value
    return found


def fold(
    log: Iterable[Event],
    columns: Sequence[str],
    *,
    deletes: str = "soft",
    soft_delete_values: str = "last",
    truncates: str = "as_deletes",
    truncates_across_partitions: bool = False,
    remove_missing: bool = False,
    log_may_reset: bool = False,
) -> dict[Hashable, Row]:
    """Silver's rows by key.

    Args:
        log: all records of one topic, in any order.
        columns: the table's columns outside the key.
        log_may_reset: whether a snapshot's row with a newer time counts although its position is older.

    Raises:
        Refused: there is a truncate, and it is not to be applied.
    """
    log = list(log)
    events = in_log_order(log)
    if any(event.op == "t" for _, event in events):
        is_spread = len({event.partition for event in log}) > 1
        if truncates == "refuse" or (is_spread and not truncates_across_partitions):
            raise Refused
    truncates = deletes if truncates == "as_deletes" else truncates
    ends = list(snapshot_ends(events)) if remove_missing else []
    moved: dict[Move, list[Life]] = {}
    stories: dict[Hashable, Story] = {}
    for key in dict.fromkeys(event.key for _, event in events if event.op != "t"):
        history: list[tuple[Place, Event, Place | None]]
        history = [(place, event, None) for place, event in events if event.op == "t" or event.key == key]
        history += [(end, Event("missing", key), start) for start, end in ends]
        stories[key] = story = Story()
        for place, event, start in sorted(history, key=lambda entry: entry[0]):
            if start is not None and not (story.is_live and story.place < start):
                continue
            if is_stale(event, story.order, log_may_reset=log_may_reset):
                continue
            accept(story, event, place, is_hard=(truncates if event.op == "t" else deletes) == "hard", moved=moved)
    for lives in moved.values():
        lives.sort(key=lambda life: life.moved_at)
    return {
        key: row_of(story, columns, moved, soft_delete_values) for key, story in stories.items() if story.is_in_table
    }


def in_log_order(log: Iterable[Event]) -> list[tuple[Place, Event]]:
    """The events that count, with their Kafka positions: no control records, quarantined records, or paired
    tombstones.
    """
    events = []
    last: dict[int, tuple[Event, int]] = {}
    for event in sorted(log, key=lambda event: (event.generation, event.offset)):
        before, log_ts = last.get(event.partition, (None, event.kafka_ts))
        log_ts = max(log_ts, event.kafka_ts)
        last[event.partition] = event, log_ts
        is_settled = event.op == "tombstone" and before is not None and settles(before, event)
        if event.status == "ok" and not is_settled:
            events.append((Place(log_ts, event.generation, event.partition, event.offset), event))
    return sorted(events, key=lambda entry: entry[0])


def settles(before: Event, tombstone: Event) -> bool:
    """Whether a tombstone adds nothing to the record before it, or is quarantined with that record."""
    of_same_key = (before.key_bytes or before.key) == (tombstone.key_bytes or tombstone.key)
    is_delete = before.op == "d" or before.status == "quarantined"
    return is_delete and of_same_key and before.generation == tombstone.generation


def snapshot_ends(events: Iterable[tuple[Place, Event]]) -> Iterator[tuple[Place, Place]]:
    """Where each completed snapshot of the table begins and ends."""
    start = None
    for place, event in events:
        if event.snapshot in ("first", "first_in_data_collection"):
            start = place
        elif event.snapshot in ("last", "last_in_data_collection"):
            if start is not None:
                yield start, place
            start = None


def is_stale(event: Event, order: Order | None, *, log_may_reset: bool = False) -> bool:
    """Whether a streaming event was replayed: position and time, as far as known, are not newer; or whether a
    snapshot's row was read before the last change.
    """
    if order is None or event.op in ("tombstone", "missing"):
        return False
    lead_ms = None if event.ts_ms is None or order.ts_ms is None else event.ts_ms - order.ts_ms
    if event.is_snapshot:
        if event.position is None or order.position is None or event.domain != order.domain:
            return False
        return event.position < order.position and not (log_may_reset and lead_ms is not None and lead_ms > 0)
    if event.position is None or order.position is None or event.domain != order.domain:
        return lead_ms is not None and lead_ms < 0
    if event.position == order.position and event.position[-1] == SHARED:
        return False
    return event.position <= order.position and (lead_ms is None or lead_ms <= 0)


def accept(story: Story, event: Event, place: Place, *, is_hard: bool, moved: dict[Move, list[Life]]) -> None:
    """Apply the event to its key; a delete ends the lifetime, an upsert begins or continues one."""
    story.op, story.place = event.op, place
    is_read_later = event.position is not None and story.read_at is not None and event.position <= story.read_at
    is_of_last_group = (
        story.order is not None
        and event.position is not None
        and event.position[-1] == SHARED
        and (event.position, event.domain) == (story.order.position, story.order.domain)
    )
    story.read_at = event.position if event.is_snapshot else None
    if event.op == "tombstone":
        story.order = None
    elif event.op != "missing" and not event.is_snapshot:
        story.order = event.order
    if event.op in ("r", "c", "u"):
        is_another_row = event.move is not None and not (is_read_later or is_of_last_group)
        if not story.is_live or story.life is None or is_another_row:
            story.life = Life(came_by=event.move)
        story.life.sent |= {name: value for name, value in (event.values or {}).items() if value is not UNSENT}
        story.is_live = story.is_in_table = True
        return
    if event.op == "d" and event.move is not None and story.is_live and story.life is not None and not is_read_later:
        story.life.moved_at = place
        moved.setdefault(event.move, []).append(story.life)
    story.is_live = False
    if is_hard:
        story.is_in_table = False
    elif event.op in ("d", "tombstone"):
        story.is_in_table = True


def row_of(story: Story, columns: Sequence[str], moved: Mapping[Move, list[Life]], soft_delete_values: str) -> Row:
    """The row after all events of a key."""
    values = dict.fromkeys(columns)
    unavailable: list[str] = []
    if story.life is not None and (story.is_live or soft_delete_values == "last"):
        values = {name: value_in(story.life, name, moved) for name in columns}
        unavailable = [name for name in columns if values[name] is UNSENT]
        values |= dict.fromkeys(unavailable)
    return Row(values, not story.is_live, tuple(sorted(unavailable)), story.op, story.place, story.order)


def value_in(life: Life, name: str, moved: Mapping[Move, list[Life]]) -> Any:
    """The last value sent in this lifetime, or in the lifetime that it inherits from; none if that is ambiguous."""
    values = values_in(life, name, moved, [])
    return values[0] if len(values) == 1 else UNSENT


def values_in(life: Life, name: str, moved: Mapping[Move, list[Life]], seen: list[Life]) -> list[Any]:
    """The candidates for that value.

    A stretch of the log that is sent again may close a second life by the same key change. What it tells then is older
    than what the first life ended with, or less. Without a position it may have been another change of the same keys.
    """
    if name in life.sent:
        return [life.sent[name]]
    seen.append(life)
    values: list[Any] = []
    if life.came_by is None:
        return values
    for giver in moved.get(life.came_by, []):
        if giver not in seen:
            values += [value for value in values_in(giver, name, moved, seen) if value not in values]
        if values and life.came_by.position is not None:
            break
    return values
