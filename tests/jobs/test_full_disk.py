"""Runs whose disk is full fail with exit code 10, and the next run with space is right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bronze_of_fakes import MAX_ROWS
from submitting import CHECKOUT

from cdc_lake.demo.jobs import SMALL_JVM

IN_A_NAMESPACE = ("unshare", "--mount", "--map-root-user")
"""Whether the user who runs the tests may mount a disk at that place. The mount ends with the process."""
NO_BYTES, SOME = 0, 65_536
"""Sizes at which a run fails at once, and in the middle of a table."""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Whether a process may mount a disk, and where."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def submitted(program: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return subprocess.run(
        [*IN_A_NAMESPACE, sys.executable, program, *map(str, arguments)],
        env={
            **kept,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(CHECKOUT),
            "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.sql.codegen.wholeStage=false "
            f"--conf spark.sql.codegen.factoryMode=NO_CODEGEN --conf 'spark.driver.extraJavaOptions={SMALL_JVM}' "
            "pyspark-shell",
            **variables,
        },
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_full_disk_exits_10_and_the_next_run_succeeds(disk: Path) -> None:
    done = submitted(
        Path(__file__).parent / "lake_on_a_full_disk.py",
        *(disk, NO_BYTES, SOME),
        CDC_LAKE__DEFAULTS__DELETES__MODE="hard",
        CDC_LAKE__DEFAULTS__READ__MAX_RECORDS_PER_BATCH=str(MAX_ROWS),
        CDC_LAKE__DEFAULTS__STORAGE=json.dumps([{"format": "delta"}, {"format": "hudi", "type": "cow"}]),
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rows = [[1, "uno"], [3, "drei"], [4, "four"]]
    assert found == {
        "codes": {"bronze": [10, 10, 0], "silver": [10, 10, 0]},
        "offsets": list(range(3 * MAX_ROWS)),
        "delta": rows,
        "hudi": rows,
        "reports": 2,
        "drafts": [],
    }
    errors = [line for line in done.stderr.splitlines() if line.startswith("error CDC-300 ")]
    full = f": No space left on device: {disk} (with {disk}/lake"
    assert len(errors) == 9 and all(full in line for line in errors), errors
    assert "Traceback" not in done.stderr
