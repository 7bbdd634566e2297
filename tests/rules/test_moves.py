"""`fold.key_changes`: the lifetime from which a value is inherited, and the keys that are connected."""

import json
from collections.abc import Hashable
from typing import NamedTuple

import pyarrow as pa
import pytest
from support import reference

from cdc_lake.fold import key_changes
from cdc_lake.fold.key_changes import EndedLifetime
from rules.arrow_table import key_change_name

pytestmark = pytest.mark.core


def at(position: int) -> str | None:
    """The id of a key change with a source position."""
    return key_change_name(reference.Move(7, "server/db", (position,)))


def between(old: int, new: int) -> str | None:
    """The id of a key change without one."""
    return key_change_name(reference.Move(7, old=old, new=new))


def ended(
    key_change: str | None, name: str, kafka_position: int, moved_by: str | None = None, **values: Hashable
) -> tuple[str | None, EndedLifetime]:
    return key_change, EndedLifetime(name, (kafka_position,), values, moved_by)


class Case(NamedTuple):
    """Lifetimes that key changes ended; and by key change, the one from which the new row inherits its body."""

    lifetimes: list[tuple[str | None, EndedLifetime]]
    holders: dict[str | None, str | None]


THERE, BACK = between(1, 2), between(2, 1)
HOLDERS = {
    "from the lifetime that the change ended": Case(
        [ended(at(10), "one", 1, body="a", tags="x"), ended(at(20), "two", 2, body="b"), ended(at(30), "three", 3)],
        {at(10): "one", at(20): "two", at(30): None, at(40): None, None: None},
    ),
    "of those that one change ended, from the first that has a value": Case(
        [ended(at(10), "refold", 3, body="b"), ended(at(10), "none", 1), ended(at(10), "first", 2, body="a")],
        {at(10): "first"},
    ),
    "from the lifetimes before": Case(
        [
            ended(at(10), "one", 1, body="a", tags="x"),
            ended(at(20), "two", 2, at(10), tags="y"),
            ended(at(30), "three", 3, at(20)),
        ],
        {at(30): "one", at(20): "one"},
    ),
    "from the nearest of them": Case(
        [
            ended(at(10), "one", 1, body="a"),
            ended(at(20), "two", 2, at(10), body="b"),
            ended(at(30), "three", 3, at(20)),
        ],
        {at(30): "two"},
    ),
    "from the one before the first rather than from the second": Case(
        [ended(at(10), "one", 1, body="a"), ended(at(20), "two", 2, at(10)), ended(at(20), "refold", 3, body="b")],
        {at(20): "one"},
    ),
    "round a cycle from none": Case(
        [ended(at(10), "one", 1, at(20)), ended(at(20), "two", 2, at(10))],
        {at(10): None, at(20): None},
    ),
    "round a cycle from one that has a value": Case(
        [ended(THERE, "one", 1, BACK), ended(BACK, "two", 2, THERE), ended(THERE, "three", 3, body="a")],
        {THERE: "three", BACK: "three"},
    ),
    "without a position from none of several": Case(
        [ended(THERE, "one", 1, body="a"), ended(THERE, "two", 2, body="b")],
        {THERE: None},
    ),
    "without a position from any that has the same value as the others": Case(
        [ended(THERE, "one", 1, body="a"), ended(THERE, "two", 2, body="a")],
        {THERE: "one"},
    ),
    "without a position from the only one that has a value": Case(
        [ended(THERE, "one", 1), ended(THERE, "two", 2, body="b")],
        {THERE: "two"},
    ),
    "from none where it is not clear one step behind": Case(
        [ended(THERE, "one", 1, body="a"), ended(THERE, "two", 2, body="b"), ended(at(10), "three", 3, THERE)],
        {at(10): None},
    ),
    "from none where it is not clear two steps behind": Case(
        [
            ended(THERE, "one", 1, body="a"),
            ended(THERE, "two", 2, body="b"),
            ended(BACK, "three", 3, THERE),
            ended(BACK, "four", 4, body="a"),
            ended(at(10), "five", 5, BACK),
        ],
        {BACK: None, at(10): None},
    ),
}

HALVES = [("a", "1"), ("b", "1"), ("b", "2"), ("c", "2"), ("c", "3"), ("d", "3"), ("e", "4"), ("f", "4"), ("e", "4")]
RELATIVES = {
    "": "",
    "z": "z",
    "a": "abcd",
    "c": "abcd",
    "ad": "abcd",
    "f": "ef",
    "fa": "abcdef",
}
"""Queries by key."""


def wrong_holders(case: Case) -> dict[str | None, str | None]:
    """By key change: the lifetimes that differ from those of the case."""
    lifetimes = key_changes.EndedLifetimes(case.lifetimes)
    found = {key_change: lifetimes.source_of("body", key_change) for key_change in case.holders}
    return {key_change: source_of for key_change, source_of in found.items() if source_of != case.holders[key_change]}


def connected_keys(asked: str) -> str:
    """The keys that are connected with these, each a letter, in order."""
    rows = [*HALVES, *((key, None) for key in asked)]
    batches = [pa.RecordBatch.from_pylist([{"key": key, "key_change": key_change}]) for key, key_change in rows]
    return "".join(
        sorted(key for batch in key_changes.connected_keys(batches) for key in batch.column("key").to_pylist())
    )


@pytest.mark.parametrize("case", HOLDERS.values(), ids=HOLDERS)
def test_value_is_carried_from_the_expected_lifetime(case: Case) -> None:
    assert wrong_holders(case) == {}


@pytest.mark.parametrize("asked", RELATIVES)
def test_keys_connected_by_changes_are_related(asked: str) -> None:
    assert connected_keys(asked) == RELATIVES[asked]


def test_change_id_shows_whether_it_has_a_position() -> None:
    assert key_changes.is_without_position(json.dumps({"ts_ms": 7, "old": [], "new": []}, separators=(",", ":")))
    assert not key_changes.is_without_position(at(10))
    assert not key_changes.is_without_position(None)
