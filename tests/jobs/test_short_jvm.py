"""The JVM of a run with few records."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.spark.conf import ARCHIVE_FOLDER, spark_home, write_spark_defaults
from cdc_lake.spark.jars import cache_folder, lock_file, read_lock
from cdc_lake.spark.java import COMPILE_HUGE_METHODS, SHORT_JVM
from cdc_lake.spark.session import SPARK_DEFAULTS
from cdc_lake.spark.versions import PROFILES, profile_name

SESSION = """
import json, os, sys
from pathlib import Path
from cdc_lake.spark.session import build_session
spark = build_session("short", is_short=True)
jvm = spark._jvm
beans = jvm.java.lang.management.ManagementFactory
json.dump(
    {
        "options": list(beans.getRuntimeMXBean().getInputArguments()),
        "left": os.environ.get("SPARK_SUBMIT_OPTS"),
        "loader": jvm.java.lang.Thread.currentThread().getContextClassLoader()
        .loadClass("io.delta.tables.DeltaTable").getClassLoader().getName(),
        "maps": Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/maps").read_text(),
    },
    sys.stdout,
)
"""


IN_SPARK_HOME = """
import os
from pathlib import Path
from cdc_lake.spark import conf
conf.spark_home = lambda: Path(os.environ["SPARK_HOME"])
conf._OWN_SETTINGS = tuple(name for name in conf._OWN_SETTINGS if name != "SPARK_HOME")
"""
"""With this, a program archives classes in another folder than this environment's."""
ARCHIVE = f"""{IN_SPARK_HOME}
from cdc_lake.cli.app import execute
execute("jars", "archive")
"""
SHORT_RUN = f"""{IN_SPARK_HOME}
from cdc_lake.config import Config
from cdc_lake.runs.scheduler import TableScheduler
scheduler = TableScheduler()
scheduler._is_short = True
jvm = scheduler.spark(Config(), "silver")._jvm
print("class-archive/classes.jsa" in Path(f"/proc/{{jvm.java.lang.ProcessHandle.current().pid()}}/maps").read_text())
"""
"""Says whether its JVM has read an archive."""


def run(command: Sequence[str], folder: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        command,
        env={**kept, "SPARK_LOCAL_IP": "127.0.0.1", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_session(folder: Path, **variables: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(run([sys.executable, "-c", SESSION], folder, **variables))
    return said


def write_conf(home: Path) -> Path:
    """Write the files of `cdc-lake jars fetch` to the folder `conf` of a Spark."""
    jars, module = read_lock(lock_file(profile_name())), PROFILES[profile_name()].java_module
    return write_spark_defaults(jars, cache_folder(), SPARK_DEFAULTS, conf=home / "conf", java_module=module).parent


@pytest.mark.core
def test_short_jvm_takes_default_options_then_user_options(tmp_path: Path) -> None:
    users = "-XX:+DontCompileHugeMethods"
    said = start_session(
        tmp_path,
        SPARK_CONF_DIR=str(write_conf(tmp_path)),
        SPARK_SUBMIT_OPTS="-XX:ReservedCodeCacheSize=100m",
        PYSPARK_SUBMIT_ARGS=f"--conf spark.driver.extraJavaOptions={users} pyspark-shell",
    )

    sizes = [option for option in said["options"] if option.startswith("-XX:ReservedCodeCacheSize=")]
    assert set(SHORT_JVM.split()) <= set(said["options"])
    assert sizes[-1] == "-XX:ReservedCodeCacheSize=100m"  # the last option wins
    assert said["left"] == "-XX:ReservedCodeCacheSize=100m"
    assert [option for option in said["options"] if "HugeMethods" in option] == [COMPILE_HUGE_METHODS, users]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a Spark without an archive."""
    home = tmp_path / "spark"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(spark_home() / name)
    write_conf(home)
    return home


def test_second_short_run_archives_its_classes(home: Path, tmp_path: Path) -> None:
    said = [run([sys.executable, "-c", SHORT_RUN], tmp_path, SPARK_HOME=str(home)) for _ in range(3)]

    assert said == ["False\n", "False\n", "True\n"]


@pytest.mark.deep
def test_session_starts_from_the_class_data_archive(home: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(SESSION)
    variables = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    run([sys.executable, "-c", ARCHIVE], tmp_path, **variables)

    submitted = json.loads(run([str(home / "bin" / "spark-submit"), str(job)], tmp_path, **variables))
    for said in (start_session(tmp_path, **variables), submitted):
        assert str(home / ARCHIVE_FOLDER / "classes.jsa") in said["maps"]
        assert said["loader"] == "app"  # the only one whose classes an archive contains
        assert COMPILE_HUGE_METHODS in said["options"]
    assert not set(SHORT_JVM.split()) & set(submitted["options"])
