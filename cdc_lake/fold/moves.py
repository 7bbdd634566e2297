"""Values that a key change takes along: from the lifetimes that it ended under the old key to the new key's row.

A change of a primary key is a delete of the old key and an insert of the new one, tied together by the name of the
change (`move`). What the change left alone and is large was sent under the old key only. So a row takes the columns
that it was not sent from the lifetimes that its change ended; and what these were not sent either, from those before.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa


class Left(NamedTuple):
    """A lifetime that a key change ended.

    Attributes:
        id: its name.
        place: of the delete; empty when it is not known any more.
        values: by column, something that is equal where the values are.
        came_by: the key change that brought the row before.
    """

    id: str
    place: tuple[Any, ...]
    values: Mapping[str, Hashable]
    came_by: str | None


class Lifetimes:
    """The lifetimes that key changes ended."""

    def __init__(self, ended: Iterable[tuple[str, Left]]) -> None:
        self._by_move: dict[str, list[Left]] = {}
        for move, left in ended:
            self._by_move.setdefault(move, []).append(left)
        for lifetimes in self._by_move.values():
            lifetimes.sort(key=lambda left: left.place)

    def holder(self, column: str, move: str | None) -> str | None:
        """The lifetime whose value of a column a key change takes along; none if no value is known, or not which.

        A part of the log that is sent again may end a second lifetime by the same change. What that has is older, or
        less: the first that has a value counts. A change without a log position is named by its time and its keys,
        which another may share: of these any may be meant, and a value counts only if all have the same.
        """
        found = self._held(column, move, ())
        return next(iter(found.values())) if len(found) == 1 else None

    def _held(self, column: str, move: str | None, seen: tuple[str, ...]) -> dict[Hashable, str]:
        """The values that may be meant, and a lifetime that has each."""
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
    """Whether a key change is named by its time and keys; see `events.moves.move_of`."""
    return move is not None and '"old":' in move.partition("[")[0]


INHERITED = "key string, column string, id string"


def inherit(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """From which lifetime each row takes what it lacks.

    Columns in, all in one partition: of lifetimes `id`, `key`, `move`, `place`, `came_by`, `columns` and `marks`, which
    are equal where the columns' values are; of rows, whose `id` is null, `key`, `came_by` and the `columns` that they
    lack. Columns out: `INHERITED`.
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
    """The keys that are asked for, and all that key changes connect them to.

    Columns in: `key`; `move`, null where a key is asked for; all in one partition. Column out: `key`.
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


def _left(row: Mapping[str, Any]) -> Left:
    place = tuple(row["place"].values()) if row["place"] else ()
    return Left(row["id"], place, dict(zip(row["columns"], row["marks"], strict=True)), row["came_by"])


def _batch(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[number] for row in rows], pa.string()) for number in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, list(names))
