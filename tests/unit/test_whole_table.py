"""What happens to all keys at once, gone through in log order."""

import pytest

from cdc_lake.fold.rules import TRUNCATE, Order, State
from cdc_lake.fold.table_events import Mark, Missing, Place, TableEvents, Truncate, table_events


def at(offset: int) -> Place:
    return Place(1000 + offset, "topic", 0, 0, offset)


def truncate(offset: int, lsn: int) -> Truncate:
    return Truncate(at(offset), Order([lsn], "pagila/pagila", lsn))


def start(decided: int, lsn: int, *, considered: int) -> State:
    """What is known of a key without an event of its own: a truncate that counts, and the last event of all keys."""
    one = truncate(decided, lsn)
    return State(op=TRUNCATE, decided=one.place, considered=at(considered), order=one.order)


def test_the_last_truncate_is_remembered_unless_it_is_a_replay() -> None:
    found = table_events([truncate(5, 50), truncate(3, 30), truncate(9, 30)], [])

    assert [one.place.offset for one in found.truncates] == [3, 5, 9]
    assert found.start == start(5, 50, considered=9)
    assert not found.is_behind


def test_a_remembered_truncate_stays_when_a_replay_of_an_older_one_comes() -> None:
    before = TableEvents(start=start(5, 50, considered=5))

    found = table_events([truncate(9, 30)], [], before=before)

    assert found.start == start(5, 50, considered=9)
    assert before.start == start(5, 50, considered=5)
    assert not found.is_behind


@pytest.mark.parametrize(("offset", "is_behind"), [(8, True), (9, True), (10, False)])
def test_a_truncate_at_or_before_the_last_event_that_was_considered_is_behind(offset: int, is_behind: bool) -> None:
    before = TableEvents(start=start(5, 50, considered=9))

    found = table_events([truncate(offset, 60)], [], before=before)

    assert found.is_behind is is_behind


def test_the_end_of_a_snapshot_before_the_last_event_that_was_considered_is_behind() -> None:
    before = TableEvents(start=start(5, 50, considered=5), snapshot=at(2))

    assert table_events([], [Mark(at(4), "last")], before=before).is_behind
    assert not table_events([], [Mark(at(6), "last")], before=before).is_behind


def test_a_snapshot_ends_with_its_own_start() -> None:
    marks = [Mark(at(7), "last"), Mark(at(2), "first"), Mark(at(4), "first_in_data_collection")]

    found = table_events([], marks)

    assert found.missing == [Missing(at(7), since=at(4))]
    assert found.snapshot is None
    assert found.start == State(considered=at(7))


def test_a_snapshot_may_end_batches_after_its_start() -> None:
    begun = table_events([], [Mark(at(2), "first")])

    ended = table_events([], [Mark(at(7), "last_in_data_collection")], before=begun)

    assert begun.missing == []
    assert begun.start == State()
    assert ended.missing == [Missing(at(7), since=at(2))]


def test_an_end_without_a_start_is_counted_and_removes_nothing() -> None:
    found = table_events([], [Mark(at(3), "last"), Mark(at(5), "first"), Mark(at(6), "last"), Mark(at(8), "last")])

    assert found.missing == [Missing(at(6), since=at(5))]
    assert found.unpaired_ends == 2


def test_an_end_that_comes_late_ends_the_snapshot_before_it_and_leaves_the_next_one_begun() -> None:
    earlier = [Mark(at(2), "first"), Mark(at(5), "first")]

    found = table_events([], [Mark(at(4), "last")], earlier=earlier, before=TableEvents(snapshot=at(5)))

    assert found.missing == [Missing(at(4), since=at(2))]
    assert found.snapshot == at(5)


def test_only_what_late_marks_change_has_happened() -> None:
    earlier = [Mark(at(2), "first"), Mark(at(4), "last"), Mark(at(5), "last")]

    found = table_events([], [Mark(at(3), "first"), Mark(at(7), "first")], earlier=earlier)

    assert found.missing == [Missing(at(4), since=at(3))]
    assert (found.snapshot, found.unpaired_ends) == (at(7), 0)
    assert found.is_behind


def test_a_late_mark_that_undoes_an_end_is_behind() -> None:
    earlier = [Mark(at(2), "first"), Mark(at(5), "last")]
    before = table_events([], earlier)

    found = table_events([], [Mark(at(4), "last")], earlier=earlier, before=before)

    assert before.missing == [Missing(at(5), since=at(2))]
    assert found.missing == [Missing(at(4), since=at(2))]
    assert found.is_behind


def test_what_happened_is_in_log_order_as_events() -> None:
    found = table_events([truncate(9, 90), truncate(3, 30)], [Mark(at(2), "first"), Mark(at(5), "last")])

    assert [(event.op, event.place, event.order, event.since) for event in found.events] == [
        ("t", at(3), truncate(3, 30).order, None),
        ("missing", at(5), None, at(2)),
        ("t", at(9), truncate(9, 90).order, None),
    ]
