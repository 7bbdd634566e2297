"""A run's report for programs: the last line of the output, and a file."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_of_fakes import ERROR, WARNING
from submitting import Ended, Submit

from cdc_lake.demo.jobs import SMALL_JVM

JOB = Path(__file__).with_name("cli_of_fakes.py")


def run_without_spark_submit(lake: Path, *flags: str) -> Ended:
    """Like `cdc-lake run bronze`: Python starts the JVM. Both streams go to the same file, as in a scheduler's log."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CDC_LAKE")},
        "CDC_LAKE__LAKE__ROOT": str(lake),
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] --conf 'spark.driver.extraJavaOptions={SMALL_JVM}' pyspark-shell",
    }
    command = [sys.executable, str(JOB), *flags]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )
    return Ended(done.returncode, done.stdout, "")


@pytest.mark.parametrize("launcher", ["spark-submit", pytest.param("cdc-lake", marks=pytest.mark.deep)])
def test_report_is_last_line_and_in_file(launcher: str, submit: Submit, lake: Path, tmp_path: Path) -> None:
    file, profile = tmp_path / "report.json", tmp_path / "profile.json"
    for one in (file, profile):
        one.write_text("of an earlier run")
    # The calling thread runs the jobs, because Spark does not name those of other threads.
    flags = ("--json", "--json-file", str(file), "--profile", str(profile), "--parallel", "1")

    ended = submit("bronze", *flags, job=JOB) if launcher == "spark-submit" else run_without_spark_submit(lake, *flags)

    tables: list[dict[str, Any]] = ended.report["tables"]
    assert [(table["status"], table["warnings"]) for table in tables] == [("ok", [WARNING]), ("failed", [])]
    assert set(ended.report["seconds"]) == {"start", "session", "tables", "list"}
    assert ended.code == 2
    assert f": {WARNING}" in ended.out
    assert f"error CDC-200 {tables[1]['table']}: {ERROR}" in ended.out
    assert json.loads(file.read_text()) == ended.report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "profile.json", "report.json"]
    done = json.loads(profile.read_text())
    assert any("/bronze/" in job["name"] and job["status"] == "SUCCEEDED" for job in done["jobs"])
    assert sum(stage["executorRunTime"] for stage in done["stages"]) > 0
    assert done["jvm"]["loaded_classes"] > 10_000
    assert done["generated"].keys() == {"classes", "seconds"}
