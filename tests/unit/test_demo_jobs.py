"""How the demo reads the reports of its jobs."""

import os
import sys
from pathlib import Path

import pytest

from cdc_lake.config import CHECKOUT
from cdc_lake.demo.jobs import Jobs, Platform
from cdc_lake.embedded.stack import Stack

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
