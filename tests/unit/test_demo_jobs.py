"""How the demo reads the reports of its jobs, and stops those that run continuously."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import CHECKOUT

from cdc_lake.demo.jobs import ContinuousJob, Jobs, Platform
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.errors import CdcLakeError

pytestmark = pytest.mark.core

SUBMIT = """
import json, sys
report = {"tables": [{"table": "dump.public.port", "seconds": {"read": 1.5, "write": 2}}]}
with open(sys.argv[sys.argv.index("--json-file") + 1], "w") as file:
    json.dump(report, file)
print("warning dump.public.port: a null in `name` arrives as the column's default")
"""


def test_warning_after_the_report_does_not_hide_it(tmp_path: Path) -> None:
    submit = tmp_path / "submit.py"
    submit.write_text(SUBMIT)
    platform = Platform(
        (sys.executable, str(submit)), CHECKOUT / "jobs", CHECKOUT / "conf" / "cdc-lake.yml", os.environ
    )
    jobs = Jobs(platform, Stack(tmp_path / "stack"), str(tmp_path / "lake"), "delta")

    report = jobs.submit("bronze", "--table", "dump.*")

    assert [table["table"] for table in report["tables"]] == ["dump.public.port"]
    assert jobs.seconds == {"dump.public.port": 3.5}


CONTINUOUS = """
import json, sys, time

def tell(table, consumed, error=None):
    report = {"run_id": "1", "tables": [{"table": table, "consumed_to": consumed, "batches": 1, "rows": {"read": 5},
                                         "seconds": {"read": 0.5}, "error": error}]}
    print(json.dumps(report), flush=True)

print("WARN a line of the log", flush=True)
tell("a", {"0": 2, "1": 3})
tell("b", {"0": 1})
"""


@pytest.fixture
def continuous(tmp_path: Path) -> Callable[[str], ContinuousJob]:
    """A job whose process runs `CONTINUOUS` and then some more lines."""

    def job(more: str) -> ContinuousJob:
        submit = tmp_path / "submit.py"
        submit.write_text(f"#!{sys.executable}\n{CONTINUOUS}{more}")
        submit.chmod(0o700)
        platform = Platform((str(submit),), CHECKOUT / "jobs", CHECKOUT / "conf" / "cdc-lake.yml", os.environ)
        return Jobs(platform, Stack(tmp_path / "stack"), str(tmp_path / "lake"), "delta").continuous("bronze")

    return job


def test_continuous_job_adds_up_reports_until_its_goal(continuous: Callable[[str], ContinuousJob]) -> None:
    with continuous("time.sleep(60)") as job:
        assert job.wait({"a": 5, "b": 1}) == {"read": 10}

        assert (job.progress, job.batches) == ({"a": 5, "b": 1}, {"a": 1, "b": 1})
        assert job.wait({"a": 5}) == {}


def test_continuous_job_is_stopped_between_rounds(continuous: Callable[[str], ContinuousJob], tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    with continuous(f"time.sleep(0.5); open({str(sign)!r}, 'w').close(); tell('a', {{'0': 9}}); time.sleep(60)") as job:
        job.wait({"b": 1})
        time.sleep(1.5)
        assert not sign.exists()

        job.wait({"a": 9})

        assert sign.exists()


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("tell('b', {'0': 1}, {'code': 'CDC-100', 'message': 'x'}); time.sleep(60)", "b failed"),
        ("sys.exit(2)", "it ended"),
    ],
)
def test_failed_continuous_job_raises_with_its_log(
    continuous: Callable[[str], ContinuousJob], more: str, what: str
) -> None:
    with continuous(more) as job, pytest.raises(CdcLakeError, match=what) as raised:
        job.wait({"b": 2})

    assert "WARN a line of the log" in str(raised.value)


def test_continuous_job_ends_with_its_context(continuous: Callable[[str], ContinuousJob]) -> None:
    with continuous("time.sleep(60)") as job:
        job.wait({"a": 1})
        process = job._process

    assert process is not None
    assert process.poll() == -signal.SIGTERM
