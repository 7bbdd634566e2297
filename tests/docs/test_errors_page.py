"""docs/reference/errors.md lists the errors there are, and says of each what is so."""

import re
from collections.abc import Iterator
from pathlib import Path

from cdc_lake import errors
from cdc_lake.errors import CdcLakeError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
CODE = re.compile(r"\bCDC-\d{3}\b")
ROW = re.compile(r"^\| *(CDC-\d{3}) *\| *(\w+) *\| *(\d+) *\| *(yes|no) *\|", re.MULTILINE)


def all_errors(error: type[CdcLakeError] = CdcLakeError) -> Iterator[type[CdcLakeError]]:
    """The classes of errors.py."""
    if error.__module__ == errors.__name__:
        yield error
        for below in error.__subclasses__():
            yield from all_errors(below)


def test_the_page_lists_every_code_and_no_other() -> None:
    assert PAGE.is_file()
    assert set(CODE.findall(PAGE.read_text(encoding="utf-8"))) == {error.code for error in all_errors()}


def test_the_page_says_of_every_error_how_a_run_ends_and_whether_to_repeat_it() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))

    assert rows == sorted(
        (error.code, error.__name__, str(error.exit_code), "yes" if error.retryable else "no") for error in all_errors()
    )
