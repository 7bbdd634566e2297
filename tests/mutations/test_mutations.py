"""Each rule that matters, broken on purpose in a copy of the project: something named must notice.

A patch beside this file says in its first lines which rule it breaks and what notices it: a log of the conformance kit
or a test. The same logs and tests pass without the patch. These are the rules that need Spark; those of the fold are
broken in `tests/rules/test_broken_rules.py`.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_lake.embedded.demo import SMALL_JVM

FOLDER = Path(__file__).parent
CHECKOUT = FOLDER.parents[1]
PATCHES = {patch.stem: patch for patch in sorted(FOLDER.glob("*.patch"))}
QUICK = ("placeholders-are-stored",)
"""What is tried with every change."""


def copy_of_the_project(folder: Path) -> Path:
    for name in ("cdc_lake", "conf", "jobs", "tests"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", folder)
    return folder


def caught_by(patch: Path) -> list[str]:
    """The command that notices it, from the patch's second line."""
    heading, command = patch.read_text(encoding="utf-8").splitlines()[1].split(": ", 1)
    assert heading == "Caught by"
    tool, *arguments = shlex.split(command)
    if tool == "conformance":
        return ["-m", "tests.conformance", *arguments, "--table-type", "delta", "--shape", "envelope"]
    return ["-m", tool, "-q", *arguments]


def run(project: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(project),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] --conf 'spark.driver.extraJavaOptions={SMALL_JVM}' pyspark-shell",
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.deep) for name in PATCHES]
)
def test_a_broken_rule_is_noticed(tmp_path: Path, name: str) -> None:
    project = copy_of_the_project(tmp_path)
    subprocess.run(["git", "apply", PATCHES[name]], cwd=project, check=True)

    ended = run(project, caught_by(PATCHES[name]))

    assert ended.returncode == 1, ended.stdout
    assert "WRONG" in ended.stdout or "AssertionError" in ended.stdout or "DID NOT RAISE" in ended.stdout, ended.stdout


@pytest.mark.deep
@pytest.mark.parametrize("command", sorted({tuple(caught_by(patch)) for patch in PATCHES.values()}), ids=" ".join)
def test_nothing_is_noticed_where_no_rule_is_broken(tmp_path: Path, command: tuple[str, ...]) -> None:
    ended = run(copy_of_the_project(tmp_path), list(command))

    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("name", PATCHES)
def test_every_patch_fits_the_code(name: str) -> None:
    """Most are tried rarely: that one does not fit any more must not wait until then."""
    subprocess.run(["git", "apply", "--check", PATCHES[name]], cwd=CHECKOUT, check=True)


def test_at_least_ten_rules_are_broken() -> None:
    assert len(PATCHES) >= 10
