"""A job with `--continuous`: it processes new records, writes no report if there are none, and stops on SIGTERM.

Here Python starts the JVM, and the report must still be the last line; test_json_report.py covers spark-submit.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance.by_lake import silver_rows
from pyspark.sql import SparkSession
from submitting import CHECKOUT, PROGRAMS
from support.events import OPTIONAL_INT, START_MS, Topic
from support.fakes import FakeBroker

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, LakeConfig
from cdc_lake.demo.jobs import SMALL_JVM

PATIENCE_SECONDS = 240
END_SECONDS = 30
PROGRAM = {
    "cdc-lake": [PROGRAMS / "cdc-lake", "run", "silver"],
    "spark-submit": [PROGRAMS / "spark-submit", CHECKOUT / "jobs" / "silver.py"],
}


def wait_for(state: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not state():
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.3)


@pytest.mark.parametrize("program", ["cdc-lake", pytest.param("spark-submit", marks=pytest.mark.deep)])
def test_continuous_job_runs_until_sigterm(spark: SparkSession, tmp_path: Path, program: str) -> None:
    topic, broker = Topic({"n": OPTIONAL_INT}), FakeBroker()
    root = tmp_path / "lake"
    config = Config(lake=LakeConfig(root=str(root)))

    def land(n: int) -> None:
        broker.append(topic.change("u", 1, {"n": n}, lsn=n, ts_ms=START_MS + n))
        assert run_bronze(config, [topic.table], spark, source=broker, registry=topic.registry).exit_code == 0

    def shown() -> list[int]:
        return [row["n"] for row in silver_rows(root, topic.table)]

    land(1)
    environment = {
        **os.environ,
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "CDC_LAKE__LAKE__ROOT": str(root),
        "PYSPARK_SUBMIT_ARGS": f"--conf 'spark.driver.extraJavaOptions={SMALL_JVM}' pyspark-shell",
    }
    report = tmp_path / "report.json"
    flags = ("--table", "*", "--continuous", "--interval", "500ms", "--json", "--json-file", str(report))
    command = [*PROGRAM[program], *flags]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            wait_for(lambda: shown() == [1], process)
            land(2)
            wait_for(lambda: shown() == [2], process)
            time.sleep(2)  # idle runs
            process.send_signal(signal.SIGTERM)
            told = time.monotonic()
            said = process.communicate(timeout=END_SECONDS)[0].decode()
        finally:
            process.kill()

    assert process.returncode == {"cdc-lake": 0, "spark-submit": 128 + signal.SIGTERM}[program], said
    assert time.monotonic() - told < END_SECONDS
    _, last = sorted((root / "_runs").glob("*-silver-*.json"))
    assert json.loads(report.read_text()) == json.loads(last.read_text()) == json.loads(said.splitlines()[-1])
    assert "Traceback" not in said
