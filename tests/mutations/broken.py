"""A copy of the project in which one rule is broken, and commands to run in it."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.edits import edited

from cdc_lake.demo.jobs import SMALL_JVM

from .bronze import BRONZE
from .others import OTHERS
from .silver import SILVER

CHECKOUT = Path(__file__).parents[2]
MUTATIONS = {**BRONZE, **SILVER, **OTHERS}


def copy_of_the_project(folder: Path) -> Path:
    """Copy what tests need into an empty folder."""
    for name in ("benchmarks", "cdc_lake", "conf", "jobs", "tests"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", folder)
    return folder


def broken_copy(folder: Path, name: str) -> Path:
    """Copy the project and break a rule in the copy."""
    project = copy_of_the_project(folder)
    for path, tree, _ in edited(project / "cdc_lake", MUTATIONS[name].edits):
        path.write_text(ast.unparse(tree), encoding="utf-8")
    return project


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
