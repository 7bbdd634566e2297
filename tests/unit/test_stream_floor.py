"""The demo may not call an easy stream a proof."""

import pytest

from cdc_lake.demo.run import FLOOR, DemoResult, too_few

ENOUGH = dict(FLOOR)


def test_a_stream_with_enough_of_everything_is_hard_enough() -> None:
    assert too_few(ENOUGH, FLOOR) == {}
    assert DemoResult(stream=ENOUGH).exit_code == 0


@pytest.mark.parametrize("name", FLOOR)
def test_one_too_few_of_anything_fails_the_demo(name: str) -> None:
    found = too_few({**ENOUGH, name: FLOOR[name] - 1}, FLOOR)

    assert found == {name: FLOOR[name] - 1}
    assert DemoResult(too_few=found).exit_code == 1


def test_a_difference_fails_the_demo() -> None:
    assert DemoResult(differences=1).exit_code == 1
