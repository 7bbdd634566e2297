"""The rows of a finished table, as the kit compares them."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .log import Arrival, Deletes, ExpectedRow, Log
from .position import Position, position_of

START_MS = 1_700_000_000_000
"""The time at which every log begins."""


Result = tuple[str, list[str]]
"""The number of runs, and a list of errors; empty if all are correct."""


class Found(NamedTuple):
    """One row.

    Attributes:
        values: the columns outside the key.
        unavailable: names, sorted.
        place: generation, partition and offset of the event that decided the row; partitions as in the log.
        order: position and time of the last streaming event that counts.
    """

    values: dict[str, Any]
    deleted: bool
    unavailable: tuple[str, ...]
    op: str
    place: tuple[int, int, int]
    order: tuple[Position, int | None] | None


def hashable(key: Any) -> Hashable:
    """A key as an index: the values in the order of the columns' names."""
    return tuple(sorted(key.items())) if isinstance(key, Mapping) else key


def source_ms(ts: int | None) -> int | None:
    """A log's source time as ms since 1970."""
    return None if ts is None else START_MS + ts


def expected_rows(log: Log, deletes: Deletes) -> dict[Hashable, Found]:
    """The handwritten rows, with event numbers replaced by coordinates."""
    return {hashable(row.key): _expected(log, row) for row in log.expected(deletes)}


def _expected(log: Log, row: ExpectedRow) -> Found:
    last = log.events[row.last - 1]
    place = last.generation, last.partition, log.offsets()[row.last - 1]
    number = row.last if row.order is None else row.order
    order = None
    if number != "none":
        event = log.events[number - 1]
        position, _ = position_of(log.connector, event.position)
        order = position, source_ms(event.ts)
    values = {**dict.fromkeys(log.table_columns), **row.values}
    return Found(values, row.deleted, tuple(sorted(row.unavailable)), row.op or last.op, place, order)


def differences(
    log: Log,
    expected: Mapping[Hashable, Found],
    found: Mapping[Hashable, Found],
    *,
    only: Sequence[str] = Found._fields,
) -> list[str]:
    """A few lines of at most 78 columns for each row that differs.

    Args:
        only: the parts of a row to compare.
    """
    lines: list[str] = []
    for key in sorted({*expected, *found}, key=str):
        wanted, got = expected.get(key), found.get(key)
        if wanted is None or got is None:
            wrong = ["there must be no such row" if wanted is None else "the row is missing"]
        else:
            pairs = {name: (getattr(wanted, name), getattr(got, name)) for name in only}
            wrong = [f"{name} must be {this}, is {that}" for name, (this, that) in pairs.items() if this != that]
        if wrong:
            lines += [line for text in (f"key {key}", *wrong) for line in _wrapped("", text)]
            lines += [line for number, event in enumerate(log.events, 1) for line in _story(number, event, key)]
    return lines


def _story(number: int, event: Arrival, key: Hashable) -> Iterable[str]:
    if event.op == "t" or hashable(event.key) == key:
        told = {name: value for name, value in event.model_dump(exclude_defaults=True).items() if name != "key"}
        yield from _wrapped(f"  {number:>3} ", " ".join(f"{name}={value}" for name, value in told.items()))


def _wrapped(start: str, text: str, width: int = 78) -> Iterable[str]:
    room = width - len(start)
    for place in range(0, max(len(text), 1), room):
        yield (start if place == 0 else " " * len(start)) + text[place : place + room]
