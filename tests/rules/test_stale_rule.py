"""Cases of `fold.rules`: `is_stale`, `is_outdated`, and key changes that are replayed."""

import pytest

from cdc_lake.fold.rules import SHARED, Event, Order, State, is_outdated, is_stale, step

pytestmark = pytest.mark.core

LAST = Order([10], "d", 100)


@pytest.mark.parametrize(
    ("position", "ts_ms", "stale"),
    [
        (9, 99, True),
        (9, 100, True),
        (9, 101, False),
        (9, None, True),
        (10, 99, True),
        (10, 100, True),
        (10, 101, False),
        (10, None, True),
        (11, 99, False),
        (11, 100, False),
        (11, 101, False),
        (11, None, False),
        (None, 99, True),
        (None, 100, False),
        (None, 101, False),
        (None, None, False),
    ],
)
def test_event_is_stale_if_position_and_time_are_not_newer(
    position: int | None, ts_ms: int | None, stale: bool
) -> None:
    event = Order(None if position is None else [position], "d", ts_ms)

    assert is_stale(event, LAST) is stale


@pytest.mark.parametrize(("ts_ms", "stale"), [(99, True), (100, False), (101, False), (None, False)])
@pytest.mark.parametrize("position", [[9], [10], [11]])
def test_positions_of_different_domains_are_not_compared(position: list[int], ts_ms: int | None, stale: bool) -> None:
    assert is_stale(Order(position, "another", ts_ms), LAST) is stale


@pytest.mark.parametrize("last", [Order(None, "d", 100), Order(None, None, 100)])
def test_without_last_position_time_decides(last: Order) -> None:
    assert is_stale(Order([9], "d", 99), last)
    assert not is_stale(Order([9], "d", 100), last)


def test_without_last_time_position_decides() -> None:
    last = Order([10], "d", None)

    assert is_stale(Order([10], "d", 101), last)
    assert not is_stale(Order([11], "d", 99), last)


def test_first_event_of_a_key_is_never_stale() -> None:
    assert not is_stale(Order([1], "d", 1), None)
    assert not is_stale(Order(None, None, None), None)


def test_events_without_position_or_time_follow_log_order() -> None:
    nothing = Order(None, None, None)

    assert not is_stale(nothing, nothing)


def test_positions_compare_as_numbers_most_significant_first() -> None:
    last = Order([9, 5], "d", 100)

    assert is_stale(Order([9, 4], "d", 100), last)
    assert not is_stale(Order([10, 0], "d", 100), last)


@pytest.mark.parametrize("ts_ms", [99, 100, 101, None])
def test_events_of_one_group_follow_log_order(ts_ms: int | None) -> None:
    last = Order([9, SHARED], "d", 100)

    assert not is_stale(Order([9, SHARED], "d", ts_ms), last)
    assert is_stale(Order([8, SHARED], "d", 100), last)
    assert not is_stale(Order([10, SHARED], "d", 99), last)


@pytest.mark.parametrize(
    ("row", "log_may_reset", "outdated"),
    [
        (Order([9], "d", 99), False, True),
        (Order([9], "d", 101), False, True),  # the connector's clock says nothing
        (Order([9], "d", 101), True, False),  # the source was restored
        (Order([9], "d", 100), True, True),
        (Order([9], "d", None), True, True),
        (Order([10], "d", 99), False, False),
        (Order([11], "d", 99), False, False),
        (Order([9], "another", 99), False, False),
        (Order(None, "d", 99), False, False),
    ],
)
def test_snapshot_row_is_outdated_if_its_position_is_older(row: Order, log_may_reset: bool, outdated: bool) -> None:
    assert is_outdated(row, LAST, log_may_reset=log_may_reset) is outdated
    assert not is_outdated(row, None, log_may_reset=log_may_reset)
    assert not is_outdated(row, Order(None, "d", 100), log_may_reset=log_may_reset)


def test_replayed_key_change_of_a_group_keeps_its_values() -> None:
    """Also when silver has forgotten the values that the old key left."""
    order, state = Order([9, SHARED], "d", 100), State()
    step(state, Event((1,), "c", order, {"n": 1, "body": "a"}, key_change="1 to 2"), hard=True)

    step(state, Event((2,), "c", order, {"n": 1}, key_change="1 to 2"), hard=True)

    assert state.values == {"n": 1, "body": "a"}


def test_key_change_to_a_live_row_begins_a_new_lifetime() -> None:
    """The delete of the row before it was lost."""
    state = State()
    step(state, Event((1,), "c", Order([9, SHARED], "d", 100), {"n": 1, "body": "a"}), hard=True)

    step(state, Event((2,), "c", Order([10, SHARED], "d", 100), {"n": 2}, key_change="1 to 2"), hard=True)

    assert (state.values, state.moved_by) == ({"n": 2}, "1 to 2")
