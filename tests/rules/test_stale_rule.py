"""Cases of `fold.rules.is_stale`."""

import pytest

from cdc_lake.fold.rules import Order, is_stale

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
