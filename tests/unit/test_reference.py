"""The reference itself: each rule with the smallest log that shows it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.reference import SHARED, UNSENT, Event, Move, Order, Refused, Row, fold

pytestmark = pytest.mark.core

COLUMNS = ("n", "body")


def log(*events: Event, **more: Any) -> list[Event]:
    """The events in one partition, one Kafka millisecond apart."""
    return [replace(event, offset=place, kafka_ts=place, **more) for place, event in enumerate(events)]


def change(op: str, position: int | None, key: int = 1, ts_ms: int | None = None, **values: Any) -> Event:
    """A streaming event; its time is its position unless given."""
    place = None if position is None else (position,)
    return Event(
        op,
        key,
        None if op in "dt" else dict.fromkeys(COLUMNS) | values,
        place,
        ts_ms=position if ts_ms is None else ts_ms,
    )


def snapshot_row(key: int = 1, marker: str = "incremental", **values: Any) -> Event:
    return Event("r", key, dict.fromkeys(COLUMNS) | values, ts_ms=99, snapshot=marker)


def tombstone(key: int = 1) -> Event:
    return Event("tombstone", key)


def only(events: Sequence[Event], **settings: Any) -> Row:
    """The row of key 1."""
    return fold(events, COLUMNS, **settings)[1]


def test_the_last_event_of_a_key_wins() -> None:
    row = only(log(change("c", 1, n=1), change("u", 2, n=2), change("u", 5, key=2, n=5)))

    assert (row.values, row.deleted, row.op, row.place[1:]) == ({"n": 2, "body": None}, False, "u", (0, 0, 1))
    assert row.order == Order((2,), "source", 2)


@pytest.mark.parametrize(
    ("position", "ts_ms", "accepted"),
    [(1, 5, False), (2, 5, False), (3, 4, True), (2, 6, True), (None, 4, False), (None, 5, True)],
)
def test_event_is_stale_if_position_and_time_are_not_newer(position: int | None, ts_ms: int, accepted: bool) -> None:
    row = only(log(change("c", 2, ts_ms=5, n=1), change("u", position, ts_ms=ts_ms, n=2)))

    assert (row.values["n"] == 2) is accepted


def test_snapshot_row_counts_without_changing_the_order() -> None:
    row = only(log(change("c", 1, n=1), change("u", 2, n=2), snapshot_row(n=3), change("u", 2, n=2)))

    assert (row.values["n"], row.op, row.order) == (3, "r", Order((2,), "source", 2))


def test_tombstone_after_its_delete_is_dropped() -> None:
    row = only(log(change("c", 1, n=1), change("d", 2), tombstone()))

    assert (row.op, row.deleted, row.values["n"], row.order) == ("d", True, 1, Order((2,), "source", 2))


def test_unpaired_tombstone_deletes_and_clears_the_order() -> None:
    events = log(change("c", 1, n=1), tombstone())

    assert only(events)[3:] == ("tombstone", (1, 0, 0, 1), None)
    assert fold(events, COLUMNS, deletes="hard") == {}


def test_tombstone_after_a_quarantined_record_is_quarantined() -> None:
    unreadable = replace(change("d", 2), status="quarantined")

    assert only(log(change("c", 1, n=1), unreadable, tombstone())).op == "c"


def test_tombstone_of_other_key_bytes_or_generation_is_unpaired() -> None:
    other = log(change("c", 1, n=1), change("d", 2), replace(tombstone(), key_bytes="other"))
    created_again = [*log(change("c", 1, n=1), change("d", 2)), *log(tombstone(), generation=1)]

    assert only(other).op == "tombstone"
    assert only(created_again).op == "tombstone"


def test_log_order_uses_the_highest_kafka_time_so_far() -> None:
    events = [
        replace(change("c", 1, n=1), kafka_ts=50),
        replace(change("u", 3, n=3), offset=1, kafka_ts=10),
        replace(snapshot_row(n=2), partition=1, kafka_ts=40),
    ]

    row = only(events)

    assert (row.values["n"], row.place) == (3, (50, 0, 0, 1))


def test_log_order_continues_across_generations() -> None:
    events = [replace(change("c", 1, n=1), offset=9, kafka_ts=50), replace(snapshot_row(n=2), generation=1)]

    row = only(events)

    assert (row.values["n"], row.place) == (2, (50, 1, 0, 0))


def test_unsent_value_is_the_last_sent_since_the_last_delete() -> None:
    kept = only(log(change("c", 1, body="a"), change("u", 2, body="b"), change("u", 3, body=UNSENT)))
    lost = only(log(change("c", 1, body="a"), change("d", 2), tombstone(), change("c", 3, body=UNSENT)))

    assert (kept.values["body"], kept.unavailable) == ("b", ())
    assert (lost.values["body"], lost.unavailable) == (None, ("body",))


def moved(old: int, new: int, position: int) -> list[Event]:
    """A key change that does not send the text."""
    return [
        replace(change("d", position, old), moved_to=new),
        tombstone(old),
        replace(change("c", position, new, body=UNSENT), moved_from=old),
    ]


def test_unsent_value_is_found_along_a_chain_of_key_changes() -> None:
    rows = fold(log(change("c", 1, body="a"), *moved(1, 2, 2), *moved(2, 3, 3)), COLUMNS)

    assert [rows[key].values["body"] for key in (1, 2, 3)] == ["a", "a", "a"]


def test_cycle_of_key_changes_without_the_value_terminates() -> None:
    there = replace(change("c", 1, body=UNSENT), moved_from=2)
    back = replace(change("d", 1), moved_to=2)
    rows = fold([*log(there, replace(back, position=(3,))), *log(*moved(1, 2, 3), partition=1)], COLUMNS)

    assert rows[2].unavailable == ("body",)


def test_rejected_delete_carries_no_values() -> None:
    events = log(change("c", 1, body="a"), change("u", 5, body="b"), *moved(1, 2, 2))

    rows = fold(events, COLUMNS)

    assert (rows[1].op, rows[2].unavailable) == ("u", ("body",))


def test_key_change_of_a_group_is_named_by_its_keys_too() -> None:
    old = replace(change("d", 1, 1), moved_to=2)
    new = replace(change("c", 1, 2), moved_from=1)
    in_group = replace(old, position=(5, SHARED)), replace(new, position=(5, SHARED))
    nowhere = replace(old, position=None), replace(new, position=None)

    assert old.move == new.move == Move(1, "source", (1,))
    assert in_group[0].move == in_group[1].move == Move(1, "source", (5, SHARED), 1, 2)
    assert nowhere[0].move == nowhere[1].move == Move(1, old=1, new=2)
    assert change("d", 1).move is None


def test_truncate_applies_to_every_key() -> None:
    events = log(change("c", 1, n=1), change("t", 5, None), change("c", 4, key=2, n=2), change("c", 6, key=3, n=3))

    rows = fold(events, COLUMNS)

    assert {key: (row.op, row.deleted) for key, row in rows.items()} == {1: ("t", True), 3: ("c", False)}


@pytest.mark.parametrize(
    ("deletes", "truncates", "keys"),
    [("soft", "hard", {2}), ("hard", "soft", {1}), ("hard", "as_deletes", set()), ("soft", "as_deletes", {1, 2})],
)
def test_truncates_can_be_softer_or_harder_than_deletes(deletes: str, truncates: str, keys: set[int]) -> None:
    events = log(change("c", 1, n=1), change("t", 2, None), change("c", 3, key=2, n=2), change("d", 4, key=2))

    assert set(fold(events, COLUMNS, deletes=deletes, truncates=truncates)) == keys


def test_truncates_are_refused_by_setting_or_across_partitions() -> None:
    alone = log(change("c", 1, n=1), change("t", 2, None))
    spread = [*alone, *log(change("c", 3, n=3), partition=1)]

    with pytest.raises(Refused):
        fold(alone, COLUMNS, truncates="refuse")
    with pytest.raises(Refused):
        fold(spread, COLUMNS)
    assert only(spread, truncates_across_partitions=True).values["n"] == 3


def test_snapshot_end_deletes_rows_older_than_its_start() -> None:
    events = log(
        change("c", 1, n=1),
        change("c", 2, key=2, n=2),
        snapshot_row(3, "first", n=3),
        snapshot_row(2, "last", n=4),
        snapshot_row(3, "last", n=5),
    )

    rows = fold(events, COLUMNS, remove_missing=True)

    assert {key: (row.op, row.deleted) for key, row in rows.items()} == {
        1: ("missing", True),
        2: ("r", False),
        3: ("r", False),
    }
    assert rows[1].place[3] == 3


def test_soft_delete_values_null_clears_the_row() -> None:
    row = only(log(change("c", 1, n=1, body=UNSENT), change("d", 2)), soft_delete_values="null")

    assert (row.values, row.unavailable) == ({"n": None, "body": None}, ())


def test_delete_of_unknown_key_leaves_a_null_row_or_nothing() -> None:
    events = log(change("d", 2))

    assert only(events)[:3] == ({"n": None, "body": None}, True, ())
    assert fold(events, COLUMNS, deletes="hard") == {}


def test_control_and_quarantined_records_are_ignored() -> None:
    events = log(replace(change("c", 1, n=1), status="control"), replace(change("c", 1, n=1), status="quarantined"))

    assert fold(events, COLUMNS) == {}
