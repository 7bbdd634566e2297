"""What happens to all keys at once, gone through in log order."""

from cdc_lake.changes.whole_table import Mark, Missing, Place, Truncate, whole_table
from cdc_lake.fold.rules import Order


def at(offset: int) -> Place:
    return Place(1000 + offset, "topic", 0, 0, offset)


def truncate(offset: int, lsn: int) -> Truncate:
    return Truncate(at(offset), Order([lsn], "pagila/pagila", lsn))


def test_the_last_truncate_is_remembered_unless_it_is_a_replay() -> None:
    found = whole_table([truncate(5, 50), truncate(3, 30), truncate(9, 30)], [])

    assert [one.place.offset for one in found.truncates] == [3, 5, 9]
    assert found.truncated == truncate(5, 50)


def test_a_remembered_truncate_stays_when_a_replay_of_an_older_one_comes() -> None:
    found = whole_table([truncate(9, 30)], [], truncated=truncate(5, 50))

    assert found.truncated == truncate(5, 50)


def test_a_snapshot_ends_with_its_own_start() -> None:
    marks = [Mark(at(7), "last"), Mark(at(2), "first"), Mark(at(4), "first_in_data_collection")]

    found = whole_table([], marks)

    assert found.missing == [Missing(at(7), since=at(4))]
    assert found.snapshot is None


def test_a_snapshot_may_end_batches_after_its_start() -> None:
    begun = whole_table([], [Mark(at(2), "first")])

    ended = whole_table([], [Mark(at(7), "last_in_data_collection")], snapshot=begun.snapshot)

    assert begun.missing == []
    assert ended.missing == [Missing(at(7), since=at(2))]


def test_an_end_without_a_start_is_counted_and_removes_nothing() -> None:
    found = whole_table([], [Mark(at(3), "last"), Mark(at(5), "first"), Mark(at(6), "last"), Mark(at(8), "last")])

    assert found.missing == [Missing(at(6), since=at(5))]
    assert found.unpaired_ends == 2


def test_an_end_that_comes_late_ends_the_snapshot_before_it_and_leaves_the_next_one_begun() -> None:
    found = whole_table([], [Mark(at(4), "last")], earlier=[Mark(at(2), "first"), Mark(at(5), "first")], snapshot=at(5))

    assert found.missing == [Missing(at(4), since=at(2))]
    assert found.snapshot == at(5)


def test_only_what_late_marks_change_has_happened() -> None:
    earlier = [Mark(at(2), "first"), Mark(at(4), "last"), Mark(at(5), "last")]

    found = whole_table([], [Mark(at(3), "first"), Mark(at(7), "first")], earlier=earlier)

    assert found.missing == [Missing(at(4), since=at(3))]
    assert (found.snapshot, found.unpaired_ends) == (at(7), 0)
