"""The JVM of a run that takes little."""

import json
import os
import subprocess
import sys
from pathlib import Path

from cdc_lake.java import SHORT_JVM

SESSION = """
import json, os, sys
from cdc_lake.session import build_session
spark = build_session("short", is_short=True)
beans = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
json.dump({"options": list(beans.getInputArguments()), "left": os.environ.get("SPARK_SUBMIT_OPTS")}, sys.stdout)
"""


def test_short_jvm_takes_our_options_and_then_the_users(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": "-XX:ReservedCodeCacheSize=100m"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    sizes = [option for option in said["options"] if option.startswith("-XX:ReservedCodeCacheSize=")]
    assert set(SHORT_JVM.split()) <= set(said["options"])
    assert sizes[-1] == "-XX:ReservedCodeCacheSize=100m"  # the last one counts
    assert said["left"] == "-XX:ReservedCodeCacheSize=100m"
