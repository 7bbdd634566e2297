"""What silver must hold, said again in plain Python from the rules of docs/design.md: "The fold" and "Placeholders".

It shares nothing with `cdc_lake.changes`: a log goes in, event by event, and the rows come out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

UNSENT = object()
"""A value that the connector did not send."""


class Event(NamedTuple):
    """One record of the log.

    Attributes:
        op: c u d r, or tombstone.
        values: the columns outside the key; none for deletes and tombstones.
        lsn: place in the source's log, null when unknown.
    """

    key: int
    op: str
    values: Mapping[str, Any] | None = None
    lsn: int | None = None
    ts_ms: int = 0


@dataclass
class State:
    """One row, and when its last streaming event happened."""

    values: dict[str, Any]
    deleted: bool = True
    unavailable: set[str] = field(default_factory=set)
    last: tuple[int | None, int] | None = None


def fold(log: Sequence[Event], columns: Sequence[str], *, soft_delete_values: str = "last") -> dict[int, State]:
    """Silver with soft deletes; with hard ones it is the same without the rows that are deleted."""
    rows: dict[int, State] = {}
    before: Event | None = None
    for event in log:
        is_paired = event.op == "tombstone" and before is not None and before.op == "d" and before.key == event.key
        before = event
        if is_paired:
            continue
        row = rows.setdefault(event.key, State(dict.fromkeys(columns)))
        if event.op in ("c", "u", "d"):
            if row.last is not None and is_replay((event.lsn, event.ts_ms), row.last):
                continue
            row.last = event.lsn, event.ts_ms
        if event.values is None:
            delete(row, emptied=soft_delete_values == "null")
        else:
            upsert(row, event.values)
    return rows


def is_replay(event: tuple[int | None, int], last: tuple[int | None, int]) -> bool:
    """Whether place and time agree that the event is not newer; without a place, whether it is clearly older."""
    (lsn, ts_ms), (last_lsn, last_ts_ms) = event, last
    if lsn is None or last_lsn is None:
        return ts_ms < last_ts_ms
    return lsn <= last_lsn and ts_ms <= last_ts_ms


def delete(row: State, *, emptied: bool) -> None:
    """The row keeps its last values, or none."""
    row.deleted = True
    if emptied:
        row.values = dict.fromkeys(row.values)
        row.unavailable = set()


def upsert(row: State, values: Mapping[str, Any]) -> None:
    """What was not sent stays, unless there is nothing, or a deleted row, to take it from."""
    for name, value in values.items():
        if value is not UNSENT:
            row.values[name] = value
            row.unavailable.discard(name)
        elif row.deleted:
            row.values[name] = None
            row.unavailable.add(name)
    row.deleted = False
