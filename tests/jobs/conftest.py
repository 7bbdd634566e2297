"""Fixtures of the tests that submit jobs."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from submitting import CHECKOUT, PROGRAMS, SMALL_JVM, Ended, Submit


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Where the lake of a test is, or is going to be."""
    return tmp_path / "lake"


@pytest.fixture
def submit(lake: Path, tmp_path: Path) -> Submit:
    """`spark-submit <before> jobs/<layer>.py <flags>`, with the settings of `variables` in the environment."""

    def run(layer: str, *flags: str, job: Path | None = None, before: Sequence[str] = (), **variables: str) -> Ended:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CDC_LAKE")}
        done = subprocess.run(
            [
                *(str(PROGRAMS / "spark-submit"), "--conf", f"spark.driver.extraJavaOptions={SMALL_JVM}"),
                *("--master", "local[2]", *before, str(job or CHECKOUT / "jobs" / f"{layer}.py"), *flags),
            ],
            env={
                **inherited,
                "PATH": f"{PROGRAMS}{os.pathsep}{inherited['PATH']}",
                "CDC_LAKE__LAKE__ROOT": str(lake),
                "CDC_LAKE__STACK__FOLDER": str(tmp_path / "nothing-runs-here"),
                **variables,
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run
