"""If a driver's JVM runs out of memory, it ends with CDC-101 and reports the finished tables."""

import json
import os
import subprocess
import sys
from pathlib import Path

from bronze_out_of_memory import LARGE, LAST
from submitting import CHECKOUT
from support.events import TABLE

from cdc_lake.demo.jobs import SMALL_JVM


def test_dead_jvm_exits_1_and_finished_tables_are_reported(tmp_path: Path) -> None:
    kept = {name: one for name, one in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "CDC_LAKE"))}

    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("bronze_out_of_memory.py")],
        env={
            **kept,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(CHECKOUT),
            "CDC_LAKE__LAKE__ROOT": str(tmp_path / "lake"),
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] --driver-memory 640m "
            f"--conf 'spark.driver.extraJavaOptions={SMALL_JVM}' pyspark-shell",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    said = next(line for line in done.stderr.splitlines() if line.startswith("error CDC-101"))
    assert f"{LARGE}: the driver's JVM has exited" in said
    assert "the driver's heap is 6" in said and "spark.driver.memory" in said
    (file,) = (tmp_path / "lake" / "_runs").glob("*.json")
    tables = {table["table"]: table["status"] for table in json.loads(file.read_text())["tables"]}
    assert tables == {TABLE: "ok", LARGE: "failed", LAST: "waiting"}
