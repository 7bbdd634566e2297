"""Carry values that were not sent from the old key to the new one.

A change of a primary key arrives as a delete of the old key and an insert of the new one, connected by the name of the
change (`key_change`). Large unchanged values were sent under the old key only. So a row inherits missing columns from
the key lifetimes that its change ended, or from the lifetimes before these.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa


class EndedLifetime(NamedTuple):
    """A key lifetime that a key change ended.

    Attributes:
        kafka_position: the delete's Kafka position; empty if unknown.
        values: column -> a mark, equal if the values are equal.
        moved_by: the key change that began the lifetime.
    """

    id: str
    kafka_position: tuple[Any, ...]
    values: Mapping[str, Hashable]
    moved_by: str | None


class EndedLifetimes:
    def __init__(self, ended: Iterable[tuple[str, EndedLifetime]]) -> None:
        self._by_move: dict[str, list[EndedLifetime]] = {}
        for key_change, left in ended:
            self._by_move.setdefault(key_change, []).append(left)
        for lifetimes in self._by_move.values():
            lifetimes.sort(key=lambda left: left.kafka_position)

    def source_of(self, column: str, key_change: str | None) -> str | None:
        """The lifetime from which a key change inherits a column; none if no value is known, or several are possible.

        A replay may end a second lifetime by the same change, with older or fewer values, so the first lifetime with a
        value is used. A change without a source position is named by its time and keys, which another change may share:
        then a value is used only if all of them have the same.
        """
        candidates = self._candidates(column, key_change, set())
        return next(iter(candidates.values())) if len(candidates) == 1 else None

    def _candidates(self, column: str, key_change: str | None, seen: set[str]) -> dict[Hashable, str]:
        """The possible values, and a lifetime with each. Each lifetime is looked at once: the changes of a transaction
        may form a circle, such as 1 to 2 and 2 to 1.
        """
        candidates: dict[Hashable, str] = {}
        for left in self._by_move.get(key_change or "", ()):
            if left.id in seen:
                continue
            seen.add(left.id)
            has_own = column in left.values
            own = {left.values[column]: left.id} if has_own else self._candidates(column, left.moved_by, seen)
            candidates = own | candidates
            if candidates and not is_without_position(key_change):
                break
        return candidates


def is_without_position(key_change: str | None) -> bool:
    """Whether a key change is named by its time and keys, because it has no source position."""
    return key_change is not None and '"old":' in key_change.partition("[")[0]


INHERITED = "key string, column string, id string"


def inherit(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The lifetime from which each row inherits its missing columns.

    Columns in, all in one partition: for lifetimes `id`, `key`, `key_change`, `kafka_position`, `moved_by`, `columns`
    and `hashes`, which are equal if the columns' values are; for rows, whose `id` is null, `key`, `moved_by` and the
    missing `columns`. Columns out: `INHERITED`.
    """
    rows = [row for batch in batches for row in batch.to_pylist()]
    lifetimes = EndedLifetimes((row["key_change"], _left(row)) for row in rows if row["id"] is not None)
    inherited = [
        (row["key"], column, source_of)
        for row in rows
        if row["id"] is None
        for column in row["columns"]
        if (source_of := lifetimes.source_of(column, row["moved_by"])) is not None
    ]
    yield _batch(("key", "column", "id"), inherited)


def connected_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The requested keys, and all keys that key changes connect with them.

    Columns in: `key`; `key_change`, null for requested keys; all in one partition. Column out: `key`.
    """
    moves_of: dict[str, set[str]] = {}
    keys_of: dict[str, set[str]] = {}
    connected: dict[str, None] = {}
    for batch in batches:
        for key, key_change in zip(
            batch.column("key").to_pylist(), batch.column("key_change").to_pylist(), strict=True
        ):
            if key_change is None:
                connected[key] = None
            else:
                moves_of.setdefault(key, set()).add(key_change)
                keys_of.setdefault(key_change, set()).add(key)
    waiting = list(connected)
    while waiting:
        for key_change in moves_of.get(waiting.pop(), ()):
            new = keys_of.pop(key_change, set()) - connected.keys()
            connected.update(dict.fromkeys(new))
            waiting += new
    yield _batch(("key",), [(key,) for key in connected])


def _left(row: Mapping[str, Any]) -> EndedLifetime:
    kafka_position = tuple(row["kafka_position"].values()) if row["kafka_position"] else ()
    return EndedLifetime(
        row["id"], kafka_position, dict(zip(row["columns"], row["hashes"], strict=True)), row["moved_by"]
    )


def _batch(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[number] for row in rows], pa.string()) for number in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, list(names))
