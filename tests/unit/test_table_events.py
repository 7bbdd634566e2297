"""Whole-table events, applied in log order."""

import pytest

from cdc_lake.fold.rules import TRUNCATE, Order, State
from cdc_lake.fold.table_events import KafkaPosition, SnapshotEnd, SnapshotMarker, TableEvents, Truncate, table_events

pytestmark = pytest.mark.core


def at(offset: int) -> KafkaPosition:
    return KafkaPosition(1000 + offset, "topic", 0, 0, offset)


def truncate(offset: int, lsn: int) -> Truncate:
    return Truncate(at(offset), Order([lsn], "pagila/pagila", lsn))


def start(applied_at: int, lsn: int, *, seen_at: int) -> State:
    """The state of a key without its own events: a truncate that counts, and the last whole-table event."""
    one = truncate(applied_at, lsn)
    return State(op=TRUNCATE, applied_at=one.kafka_position, seen_at=at(seen_at), order=one.order)


def test_the_last_truncate_is_remembered_unless_it_is_a_replay() -> None:
    found = table_events([truncate(5, 50), truncate(3, 30), truncate(9, 30)], [])

    assert [one.kafka_position.offset for one in found.truncates] == [3, 5, 9]
    assert found.start == start(5, 50, seen_at=9)
    assert not found.is_out_of_order


def test_remembered_truncate_survives_replay_of_an_older_one() -> None:
    before = TableEvents(start=start(5, 50, seen_at=5))

    found = table_events([truncate(9, 30)], [], before=before)

    assert found.start == start(5, 50, seen_at=9)
    assert before.start == start(5, 50, seen_at=5)
    assert not found.is_out_of_order


@pytest.mark.parametrize(("offset", "is_out_of_order"), [(8, True), (9, True), (10, False)])
def test_truncate_not_after_the_last_considered_event_is_behind(offset: int, is_out_of_order: bool) -> None:
    before = TableEvents(start=start(5, 50, seen_at=9))

    found = table_events([truncate(offset, 60)], [], before=before)

    assert found.is_out_of_order is is_out_of_order


def test_snapshot_end_before_last_considered_event_is_behind() -> None:
    before = TableEvents(start=start(5, 50, seen_at=5), snapshot=at(2))

    assert table_events([], [SnapshotMarker(at(4), "last")], before=before).is_out_of_order
    assert not table_events([], [SnapshotMarker(at(6), "last")], before=before).is_out_of_order


def test_a_snapshot_ends_with_its_own_start() -> None:
    markers = [
        SnapshotMarker(at(7), "last"),
        SnapshotMarker(at(2), "first"),
        SnapshotMarker(at(4), "first_in_data_collection"),
    ]

    found = table_events([], markers)

    assert found.missing == [SnapshotEnd(at(7), since=at(4))]
    assert found.snapshot is None
    assert found.start == State(seen_at=at(7))


def test_a_snapshot_may_end_batches_after_its_start() -> None:
    begun = table_events([], [SnapshotMarker(at(2), "first")])

    ended = table_events([], [SnapshotMarker(at(7), "last_in_data_collection")], before=begun)

    assert begun.missing == []
    assert begun.start == State()
    assert ended.missing == [SnapshotEnd(at(7), since=at(2))]


def test_an_end_without_a_start_is_counted_and_removes_nothing() -> None:
    found = table_events(
        [],
        [
            SnapshotMarker(at(3), "last"),
            SnapshotMarker(at(5), "first"),
            SnapshotMarker(at(6), "last"),
            SnapshotMarker(at(8), "last"),
        ],
    )

    assert found.missing == [SnapshotEnd(at(6), since=at(5))]
    assert found.unpaired_ends == 2


def test_late_snapshot_end_ends_only_the_snapshot_before_it() -> None:
    earlier = [SnapshotMarker(at(2), "first"), SnapshotMarker(at(5), "first")]

    found = table_events([], [SnapshotMarker(at(4), "last")], earlier=earlier, before=TableEvents(snapshot=at(5)))

    assert found.missing == [SnapshotEnd(at(4), since=at(2))]
    assert found.snapshot == at(5)


def test_only_what_late_marks_change_has_happened() -> None:
    earlier = [SnapshotMarker(at(2), "first"), SnapshotMarker(at(4), "last"), SnapshotMarker(at(5), "last")]

    found = table_events([], [SnapshotMarker(at(3), "first"), SnapshotMarker(at(7), "first")], earlier=earlier)

    assert found.missing == [SnapshotEnd(at(4), since=at(3))]
    assert (found.snapshot, found.unpaired_ends) == (at(7), 0)
    assert found.is_out_of_order


def test_a_late_mark_that_undoes_an_end_is_behind() -> None:
    earlier = [SnapshotMarker(at(2), "first"), SnapshotMarker(at(5), "last")]
    before = table_events([], earlier)

    found = table_events([], [SnapshotMarker(at(4), "last")], earlier=earlier, before=before)

    assert before.missing == [SnapshotEnd(at(5), since=at(2))]
    assert found.missing == [SnapshotEnd(at(4), since=at(2))]
    assert found.is_out_of_order


def test_what_happened_is_in_log_order_as_events() -> None:
    found = table_events(
        [truncate(9, 90), truncate(3, 30)], [SnapshotMarker(at(2), "first"), SnapshotMarker(at(5), "last")]
    )

    assert [(event.op, event.kafka_position, event.order, event.since) for event in found.events] == [
        ("t", at(3), truncate(3, 30).order, None),
        ("missing", at(5), None, at(2)),
        ("t", at(9), truncate(9, 90).order, None),
    ]
