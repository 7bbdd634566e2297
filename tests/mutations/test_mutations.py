"""Each important rule, broken on purpose in a copy of the project: a named test or log of the kit must fail.

The same tests and logs pass without the edit. These are the rules that need Spark; those of the fold are broken in
`tests/rules/test_broken_rules.py`.
"""

import subprocess
from pathlib import Path

import pytest
from support.edits import edited

from .broken import CHECKOUT, MUTATIONS, broken_copy, copy_of_the_project, run

QUICK = ("placeholders-are-stored",)
"""The broken rules that run with every change."""
SIGNS = ("WRONG", "AssertionError", "DataFramesNotEqualError", "DID NOT RAISE")
"""The output of a check that failed, and not of a program that could not run."""


def noticed(project: Path, name: str) -> "subprocess.CompletedProcess[str]":
    tool, arguments = MUTATIONS[name].tool()
    if tool == "conformance":
        return run(project, "tests.conformance", [*arguments, "--table-type", "delta", "--shape", "envelope"])
    return run(project, tool, ["-q", *arguments])


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.deep) for name in MUTATIONS]
)
def test_a_broken_rule_fails_its_test(tmp_path: Path, name: str) -> None:
    ended = noticed(broken_copy(tmp_path, name), name)

    assert ended.returncode == 1, ended.stdout
    assert any(sign in ended.stdout for sign in SIGNS), ended.stdout


@pytest.mark.deep
@pytest.mark.parametrize("name", {one.tool()[1][0]: name for name, one in MUTATIONS.items()}.values())
def test_unbroken_copy_passes_all_named_tests(tmp_path: Path, name: str) -> None:
    ended = noticed(copy_of_the_project(tmp_path), name)

    assert ended.returncode == 0, ended.stdout


@pytest.mark.core
@pytest.mark.parametrize("name", MUTATIONS)
def test_every_edit_finds_its_code(name: str) -> None:
    """Most broken rules run rarely, so check with every change that they can still be broken."""
    edited(CHECKOUT / "cdc_lake", MUTATIONS[name].edits)
    tool, (named, *_) = MUTATIONS[name].tool()
    if tool == "pytest":
        file, _, test = named.partition("::")
        assert f"def {test}" in (CHECKOUT / file).read_text()


@pytest.mark.core
def test_at_least_twenty_rules_are_broken() -> None:
    assert len(MUTATIONS) >= 20
