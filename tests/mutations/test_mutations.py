"""Each important rule, broken on purpose in a copy of the project: a named test must fail.

The first lines of each patch name the rule that it breaks and the check that must fail: a log of the conformance kit
or a test. The same logs and tests pass without the patch. These are the rules that need Spark; those of the fold are
broken in `tests/rules/test_broken_rules.py`.
"""

import subprocess
from pathlib import Path

import pytest

from .broken import CHECKOUT, PATCHES, broken_copy, caught_by, copy_of_the_project, run

QUICK = ("placeholders-are-stored",)
"""The broken rules that run with every change."""
SIGNS = ("WRONG", "AssertionError", "DataFramesNotEqualError", "DID NOT RAISE")
"""The output of a check that failed, and not of a program that could not run."""


def noticed(project: Path, name: str) -> "subprocess.CompletedProcess[str]":
    tool, arguments = caught_by(PATCHES[name])
    if tool == "conformance":
        return run(project, "tests.conformance", [*arguments, "--table-type", "delta", "--shape", "envelope"])
    return run(project, tool, ["-q", *arguments])


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.deep) for name in PATCHES]
)
def test_a_broken_rule_fails_its_test(tmp_path: Path, name: str) -> None:
    ended = noticed(broken_copy(tmp_path, name), name)

    assert ended.returncode == 1, ended.stdout
    assert any(sign in ended.stdout for sign in SIGNS), ended.stdout


@pytest.mark.deep
@pytest.mark.parametrize("name", {caught_by(patch)[1][0]: name for name, patch in PATCHES.items()}.values())
def test_unbroken_copy_passes_all_named_tests(tmp_path: Path, name: str) -> None:
    ended = noticed(copy_of_the_project(tmp_path), name)

    assert ended.returncode == 0, ended.stdout


@pytest.mark.core
@pytest.mark.parametrize("name", PATCHES)
def test_every_patch_applies_to_the_code(name: str) -> None:
    """Most patches run rarely, so check with every change that they still apply."""
    subprocess.run(["git", "apply", "--check", PATCHES[name]], cwd=CHECKOUT, check=True)
    tool, (named, *_) = caught_by(PATCHES[name])
    if tool == "pytest":
        file, _, test = named.partition("::")
        assert f"def {test}" in (CHECKOUT / file).read_text()


@pytest.mark.core
def test_at_least_twenty_rules_are_broken() -> None:
    assert len(PATCHES) >= 20
