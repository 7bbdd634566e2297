"""A copy of the project in which one rule is broken, and commands to run in it."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cdc_lake.demo.jobs import SMALL_JVM

FOLDER = Path(__file__).parent
CHECKOUT = FOLDER.parents[1]
PATCHES = {patch.stem: patch for patch in sorted(FOLDER.glob("*.patch"))}


def copy_of_the_project(folder: Path) -> Path:
    """Copy what tests need into an empty folder."""
    for name in ("benchmarks", "cdc_lake", "conf", "jobs", "tests"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", folder)
    return folder


def broken_copy(folder: Path, name: str) -> Path:
    """Copy the project and break a rule in the copy."""
    project = copy_of_the_project(folder)
    subprocess.run(["git", "apply", PATCHES[name]], cwd=project, check=True)
    return project


def caught_by(patch: Path) -> tuple[str, list[str]]:
    """The command that must fail, from the patch's second line: `pytest` or `conformance`, and the arguments."""
    heading, command = patch.read_text(encoding="utf-8").splitlines()[1].split(": ", 1)
    assert heading == "Caught by"
    tool, *arguments = shlex.split(command)
    return tool, arguments


def run(project: Path, module: str, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a module in the copy."""
    environment = os.environ | {
        "PYTHONPATH": str(project),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] --conf 'spark.driver.extraJavaOptions={SMALL_JVM}' pyspark-shell",
    }
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
