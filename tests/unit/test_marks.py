"""The mark `core` of the tests that `make test` runs."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

TESTS = Path(__file__).parents[1]
CORE_FOLDERS = ("unit", "docs", "rules", "columns", "infra")
MARK = "pytest.mark.core"


def unmarked(source: str) -> Iterator[str]:
    """The tests of a file without the mark: on the file, on the test or on one of its parameters."""
    body = ast.parse(source).body
    if any(isinstance(node, ast.Assign) and MARK in ast.unparse(node) for node in body):
        return
    tests = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    yield from (test.name for test in tests if not any(MARK in ast.unparse(one) for one in test.decorator_list))


@pytest.mark.parametrize("folder", CORE_FOLDERS)
def test_every_test_of_a_cheap_folder_is_core(folder: str) -> None:
    files = sorted((TESTS / folder).glob("test_*.py"))

    assert files
    assert {file.name: found for file in files if (found := list(unmarked(file.read_text(encoding="utf-8"))))} == {}


def test_marks_are_found_on_files_and_functions() -> None:
    marked = "@pytest.mark.core\ndef test_one():\n    ...\n\ndef test_two():\n    ...\n"

    assert list(unmarked(marked)) == ["test_two"]
    assert list(unmarked(f"pytestmark = pytest.mark.core\n{marked}")) == []


def test_no_core_test_is_deep(request: pytest.FixtureRequest) -> None:
    """`-m core` of `make test` replaces the `-m 'not deep'` of pyproject.toml. Its session has all core tests."""
    marks = {item.nodeid: {mark.name for mark in item.iter_markers()} for item in request.session.items}

    assert [name for name, its in marks.items() if {"core", "deep"} <= its] == []
