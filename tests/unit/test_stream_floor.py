"""The demo fails if its stream has too few difficult changes."""

import pytest

from cdc_lake.demo.proof import too_few
from cdc_lake.demo.result import DemoResult
from cdc_lake.demo.source import FLOOR

pytestmark = pytest.mark.core

ENOUGH = dict(FLOOR)


def test_stream_with_enough_hard_cases_passes() -> None:
    assert too_few(ENOUGH, FLOOR) == {}
    assert DemoResult(stream=ENOUGH).exit_code == 0


@pytest.mark.parametrize("name", FLOOR)
def test_one_too_few_of_any_hard_case_fails_the_demo(name: str) -> None:
    found = too_few({**ENOUGH, name: FLOOR[name] - 1}, FLOOR)

    assert found == {name: FLOOR[name] - 1}
    assert DemoResult(too_few=found).exit_code == 1


def test_difference_fails_the_demo() -> None:
    assert DemoResult(differences=1).exit_code == 1
