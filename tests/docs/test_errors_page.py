"""docs/errors.md lists the errors there are, and errors.py draws their tree as it is."""

import re
from collections.abc import Iterator
from pathlib import Path

from cdc_lake import errors
from cdc_lake.errors import CdcLakeError

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
CODE = re.compile(r"\bCDC-\d{3}\b")
DRAWN = re.compile(r"^ {4}([│ ├└─]*)(\w+Error)\b(?: +exit (\d+))?", re.MULTILINE)


def tree(error: type[CdcLakeError] = CdcLakeError, depth: int = 0) -> Iterator[tuple[int, type[CdcLakeError]]]:
    """The classes of errors.py in the order they are written down, each with its depth."""
    if error.__module__ == errors.__name__:
        yield depth, error
        for below in error.__subclasses__():
            yield from tree(below, depth + 1)


def test_the_page_lists_every_code_and_no_other() -> None:
    assert PAGE.is_file()
    assert set(CODE.findall(PAGE.read_text(encoding="utf-8"))) == {error.code for _, error in tree()}


def test_no_two_errors_share_a_code() -> None:
    codes = [error.code for _, error in tree()]

    assert len(codes) == len(set(codes))
    assert all(CODE.fullmatch(code) for code in codes)


def test_the_drawn_tree_is_the_real_tree() -> None:
    drawn = [(len(branch) // 4, name) for branch, name, _ in DRAWN.findall(errors.__doc__ or "")]

    assert drawn == [(depth, error.__name__) for depth, error in tree()]


def test_the_drawn_exit_codes_are_the_real_ones() -> None:
    drawn = {name: int(code) for _, name, code in DRAWN.findall(errors.__doc__ or "") if code}
    real = {error.__name__: error.exit_code for _, error in tree()}

    assert set(drawn) >= {error.__name__ for depth, error in tree() if depth < 2}
    assert drawn == {name: real[name] for name in drawn}


def test_every_exit_code_has_its_place_in_the_order_of_severity() -> None:
    assert set(errors.SEVERITY) == {error.exit_code for _, error in tree()}
