"""`make bench-short`: measure runs with few or no new records, for docs/explanation/performance.md.

Each command is a process of its own, as a scheduler starts it, with a warm disk cache. The commands take turns; the
result is the median of each. They archive no classes at first. Then runs for one changed row are measured again: the
first two, of which the second archives its classes, and those with the archive, which is removed at the end.
"""

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.log import Log, small
from benchmarks.quick import Cost, servers
from cdc_lake.spark.conf import ARCHIVE_FOLDER, spark_home
from cdc_lake.spark.java import SHORT_JVM

_CHECKOUT = Path(__file__).parents[1]

TABLES, ROWS, ROUNDS = 40, 1_000, 5
CHANGED, _BOTH = small(0), ("bronze", "silver")
RUN, SUBMIT, SHORT_SUBMIT = "cdc-lake run", "spark-submit", "spark-submit, short runs"
"""How runs are started; the last one with the options that `cdc-lake run` sets."""
_NO_ARCHIVE = {"SPARK_SUBMIT_OPTS": "-Dbenchmark=short"}
"""Runs with Java options of the user archive no classes."""
_SET_CHILD_SUBREAPER = 36
"""Option of prctl(2): processes whose parent has ended, such as PySpark's JVM, become children of this one."""


def main() -> None:
    """Run the benchmark and print the table."""
    with servers() as (folder, addresses):
        costs = measure(folder, addresses)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("", "CPU s", "wall s"):
        table.add_column(column, justify="right" if column else "left")
    for name, found in costs.items():
        table.add_row(name, f"{median(cost.cpu for cost in found):.1f}", f"{median(cost.wall for cost in found):.1f}")
    Console(width=80).print(table)


def measure(folder: Path, addresses: Mapping[str, str]) -> dict[str, list[Cost]]:
    """Measure all commands: name in the table -> its costs.

    Args:
        folder: of the servers and the lake.
        addresses: the servers' addresses.
    """
    names = [small(number) for number in range(TABLES)]
    log = Log(addresses["kafka"], addresses["registry"])
    log.create(dict.fromkeys(names, 1))
    for name in names:
        log.snapshot(name, ROWS)
    environment = {
        **os.environ,
        "CDC_LAKE__STACK__FOLDER": str(folder / "stack"),
        "CDC_LAKE__LAKE__ROOT": str(folder / "lake"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    for layer in ("bronze", "silver"):
        cost(_command(RUN, [layer], "*"), environment | _NO_ARCHIVE)
    costs: dict[str, list[Cost]] = defaultdict(list)

    def merge_one_row(launcher: str, jobs: Sequence[str], suffix: str, variables: Mapping[str, str]) -> None:
        if "bronze" in jobs:
            log.steady(CHANGED, 1)
        found = cost(_command(launcher, jobs, CHANGED), {**environment, **variables, **_variables(launcher)})
        costs[f"one changed row: {launcher}, {' and '.join(jobs)}{suffix}"].append(found)

    def change_one_row(launchers: Sequence[str], suffix: str = "", variables: Mapping[str, str] = _NO_ARCHIVE) -> None:
        for launcher in launchers:
            for jobs in ([_BOTH] if launcher == RUN else []) + [("bronze",), ("silver",)]:
                merge_one_row(launcher, jobs, suffix, variables)

    archive = spark_home() / ARCHIVE_FOLDER
    shutil.rmtree(archive, ignore_errors=True)
    for _ in range(ROUNDS):
        change_one_row((RUN, SUBMIT, SHORT_SUBMIT))
        for launcher in (RUN, SUBMIT):
            for layer in ("bronze", "silver"):
                found = cost(_command(launcher, [layer], "*"), environment)
                costs[f"{TABLES} tables, nothing new: {launcher}, {layer}"].append(found)
        found = cost(["cdc-lake", "status", "--table", "*"], environment)
        costs[f"{TABLES} tables: cdc-lake status"].append(found)
    for suffix in (", first run", ", second run"):
        merge_one_row(RUN, _BOTH, suffix, {})
    for _ in range(ROUNDS):
        change_one_row((RUN, SHORT_SUBMIT), ", archive", {})
    shutil.rmtree(archive)
    return costs


def _variables(launcher: str) -> dict[str, str]:
    return {"SPARK_SUBMIT_OPTS": SHORT_JVM} if launcher == SHORT_SUBMIT else {}


def _command(launcher: str, layers: Sequence[str], table: str) -> list[str]:
    if launcher == RUN:
        return ["cdc-lake", "run", *layers, "--table", table]
    return ["spark-submit", str(_CHECKOUT / "jobs" / f"{layers[0]}.py"), "--table", table]


def cost(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Measure a command until all its processes have ended.

    Raises:
        CalledProcessError: the command failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.short", *command],
        env=environment,
        cwd=_CHECKOUT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return Cost(**json.loads(done.stdout))


def _run(command: Sequence[str]) -> None:
    """Run a command and print its cost as JSON."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    started = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    wall = time.monotonic() - started
    try:
        while os.wait():
            pass
    except ChildProcessError:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"cpu": used.ru_utime + used.ru_stime, "wall": wall}))


if __name__ == "__main__":
    if sys.argv[1:]:
        _run(sys.argv[1:])
    else:
        main()
