"""Carry values that were not sent from the old key to the new one.

A change of a primary key arrives as a delete of the old key and an insert of the new one, connected by the name of the
change (`move`). Large unchanged values were sent under the old key only. So a row inherits missing columns from the key
lifetimes that its change ended, or from the lifetimes before these.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa


class EndedLifetime(NamedTuple):
    """A key lifetime that a key change ended.

    Attributes:
        id: its name.
        place: the delete's log position; empty if unknown.
        values: column -> a mark, equal if the values are equal.
        came_by: the key change that began the lifetime.
    """

    id: str
    place: tuple[Any, ...]
    values: Mapping[str, Hashable]
    came_by: str | None


class Lifetimes:
    """The key lifetimes that key changes ended."""

    def __init__(self, ended: Iterable[tuple[str, EndedLifetime]]) -> None:
        self._by_move: dict[str, list[EndedLifetime]] = {}
        for move, left in ended:
            self._by_move.setdefault(move, []).append(left)
        for lifetimes in self._by_move.values():
            lifetimes.sort(key=lambda left: left.place)

    def holder(self, column: str, move: str | None) -> str | None:
        """The lifetime from which a key change inherits a column; none if no value is known, or several are possible.

        A replay may end a second lifetime by the same change, with older or fewer values, so the first lifetime with a
        value is used. A change without a log position is named by its time and keys, which another change may share:
        then a value is used only if all of them have the same.
        """
        found = self._held(column, move, ())
        return next(iter(found.values())) if len(found) == 1 else None

    def _held(self, column: str, move: str | None, seen: tuple[str, ...]) -> dict[Hashable, str]:
        """The possible values, and a lifetime with each."""
        found: dict[Hashable, str] = {}
        for left in self._by_move.get(move or "", ()):
            if left.id in seen:
                continue
            has_own = column in left.values
            held = {left.values[column]: left.id} if has_own else self._held(column, left.came_by, (*seen, left.id))
            found = held | found
            if found and not is_without_position(move):
                break
        return found


def is_without_position(move: str | None) -> bool:
    """Whether a key change is named by its time and keys, because it has no log position."""
    return move is not None and '"old":' in move.partition("[")[0]


INHERITED = "key string, column string, id string"


def inherit(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The lifetime from which each row inherits its missing columns.

    Columns in, all in one partition: for lifetimes `id`, `key`, `move`, `place`, `came_by`, `columns` and `marks`,
    which are equal if the columns' values are; for rows, whose `id` is null, `key`, `came_by` and the missing
    `columns`. Columns out: `INHERITED`.
    """
    rows = [row for batch in batches for row in batch.to_pylist()]
    lifetimes = Lifetimes((row["move"], _left(row)) for row in rows if row["id"] is not None)
    found = [
        (row["key"], column, holder)
        for row in rows
        if row["id"] is None
        for column in row["columns"]
        if (holder := lifetimes.holder(column, row["came_by"])) is not None
    ]
    yield _batch(("key", "column", "id"), found)


def relatives(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The requested keys, and all keys that key changes connect with them.

    Columns in: `key`; `move`, null for requested keys; all in one partition. Column out: `key`.
    """
    moves_of: dict[str, set[str]] = {}
    keys_of: dict[str, set[str]] = {}
    found: dict[str, None] = {}
    for batch in batches:
        for key, move in zip(batch.column("key").to_pylist(), batch.column("move").to_pylist(), strict=True):
            if move is None:
                found[key] = None
            else:
                moves_of.setdefault(key, set()).add(move)
                keys_of.setdefault(move, set()).add(key)
    waiting = list(found)
    while waiting:
        for move in moves_of.get(waiting.pop(), ()):
            new = keys_of.pop(move, set()) - found.keys()
            found.update(dict.fromkeys(new))
            waiting += new
    yield _batch(("key",), [(key,) for key in found])


def _left(row: Mapping[str, Any]) -> EndedLifetime:
    place = tuple(row["place"].values()) if row["place"] else ()
    return EndedLifetime(row["id"], place, dict(zip(row["columns"], row["marks"], strict=True)), row["came_by"])


def _batch(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[number] for row in rows], pa.string()) for number in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, list(names))
