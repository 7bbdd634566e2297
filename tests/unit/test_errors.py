"""The classes of errors match the tree in errors.py, and each has the exit code in it."""

import inspect
import re

import pytest

from cdc_lake import errors
from cdc_lake.errors import CdcLakeError, InfrastructureError, worst_exit_code

pytestmark = pytest.mark.core

LEAVES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CdcLakeError)]


def drawn_tree() -> dict[str, str]:
    """Class name -> name of its base, read from the tree."""
    parents: dict[str, str] = {}
    open_at: dict[int, str] = {}
    for line in errors.__doc__.splitlines():
        if match := re.match(r"([\s│├└─]*)(\w+Error)\b", line):
            depth = len(match[1])
            open_at = {at: name for at, name in open_at.items() if at < depth}
            if open_at:
                parents[match[2]] = open_at[max(open_at)]
            open_at[depth] = match[2]
    return parents


def test_documented_error_tree_matches_the_classes() -> None:
    real = {kind.__name__: kind.__base__.__name__ for kind in LEAVES if kind is not CdcLakeError}

    assert drawn_tree() == real


def test_documented_exit_codes_match_the_classes() -> None:
    drawn = {name: int(code) for name, code in re.findall(r"(\w+Error) +exit (\d+)", errors.__doc__)}

    assert drawn == {name: getattr(errors, name).exit_code for name in drawn}
    assert {kind.exit_code for kind in LEAVES} == set(drawn.values())


def test_every_error_has_a_unique_code() -> None:
    codes = [kind.code for kind in LEAVES]

    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"CDC-\d{3}", code) for code in codes)


def test_only_temporary_errors_are_retryable() -> None:
    passing = {"InfrastructureError", "BronzeBehindError", "TableLockedError", "IncompleteWriteError"}
    assert {kind.__name__ for kind in LEAVES if kind.retryable} == passing


def test_error_message_has_where_what_and_cure() -> None:
    error = InfrastructureError("broker b:1", "it does not answer", "start it")

    assert str(error) == "broker b:1: it does not answer; start it"
    assert (error.where, error.what, error.cure) == ("broker b:1", "it does not answer", "start it")


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ([], 0),
        ([0, 0], 0),
        ([0, 40], 40),
        ([40, 10], 10),
        ([10, 2], 2),
        ([2, 30], 30),
        ([30, 1], 1),
        ([1, 20], 20),
        ([40, 10, 2, 30, 1, 20, 0], 20),
    ],
)
def test_run_exit_code_is_the_worst_of_its_tables(codes: list[int], worst: int) -> None:
    assert worst_exit_code(codes) == worst


def test_every_exit_code_has_a_severity() -> None:
    assert set(errors.SEVERITY) == {kind.exit_code for kind in LEAVES}
