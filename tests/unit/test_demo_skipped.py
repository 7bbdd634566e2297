"""The demo's messages about statements of a dump that failed."""

import io

import pytest
from rich.console import Console

from cdc_lake.cli.demo import print_result
from cdc_lake.demo.result import DemoResult

pytestmark = pytest.mark.core


def printed(skipped: dict[str, int]) -> list[str]:
    out = io.StringIO()
    print_result(DemoResult(skipped=skipped), Console(file=out, width=200))
    return [line.rstrip() for line in out.getvalue().splitlines() if line.startswith("Skipped")]


def test_skipped_errors_are_printed_with_their_count() -> None:
    assert printed({'role "bob" does not exist': 7, "syntax error": 1}) == [
        'Skipped: role "bob" does not exist (7 times).',
        "Skipped: syntax error.",
    ]


def test_only_the_first_of_many_skipped_errors_are_printed() -> None:
    lines = printed({f"error {number}": 1 for number in range(25)})

    assert (len(lines), lines[-1]) == (21, "Skipped: 5 other errors; `--json` has all of them.")
