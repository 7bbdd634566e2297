"""`make bench-quick`: a million events, three ways, in one run; wall and CPU seconds, ratios, and who was right.

The contenders take turns on the same topics and the same cores, each in an application that is warm by then. What their
tables must hold is found by DuckDB over the log as it was sent.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psutil
from deltalake import DeltaTable
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.contender import CONTENDERS
from benchmarks.log import ORDERS, PARTITIONS, Log, small
from cdc_lake.embedded.stack import Stack

SNAPSHOT_ROWS, STEADY_BATCHES, STEADY_EVENTS = 700_000, 5, 50_000
SMALL_TABLES, SMALL_ROWS, SMALL_CHANGES = 50, 980, 20
"""All in all a million events."""
_SUBMIT = "--master local[2] --driver-memory 2g pyspark-shell"


@dataclass(frozen=True)
class Step:
    """One piece of work: what is new in which topics."""

    name: str
    topics: Sequence[str]


@dataclass(frozen=True)
class Cost:
    """What a step took; `cpu_seconds` of all its processes."""

    wall_seconds: float
    cpu_seconds: float


class Contender:
    """A contender's process, started and ready."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.folder = folder
        with (folder.parent / f"{name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.contender", name, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )
        self._listen("ready")

    def take(self, step: Step) -> Cost:
        """Let it do a step."""
        cpu, wall = self._cpu_seconds(), time.monotonic()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"topics": list(step.topics)}) + "\n")
        self._process.stdin.flush()
        self._listen("done")
        return Cost(time.monotonic() - wall, self._cpu_seconds() - cpu)

    def end(self) -> None:
        """End its process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def rows(self, topic: str) -> DeltaTable:
        """Its table of a topic."""
        own = self.folder / "silver" / topic.replace(".", "/") if self.name == "cdc_lake" else self.folder / topic
        return DeltaTable(str(own))

    def _listen(self, word: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if said != word:
            raise RuntimeError(f"{self.name} ended: see {self.folder.parent / f'{self.name}.log'}")

    def _cpu_seconds(self) -> float:
        process = psutil.Process(self._process.pid)
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
        return sum(time.user + time.system + time.children_user + time.children_system for time in times)


def steps(log: Log) -> Iterator[Step]:
    """The work, each piece sent to Kafka when it is asked for."""
    smalls = [small(number) for number in range(SMALL_TABLES)]
    log.create([(ORDERS, PARTITIONS), *((topic, 1) for topic in smalls)])
    log.snapshot(ORDERS, SNAPSHOT_ROWS)
    yield Step("snapshot", [ORDERS])
    for number in range(STEADY_BATCHES):
        log.steady(ORDERS, STEADY_EVENTS)
        yield Step(f"steady {number + 1}", [ORDERS])
    for topic in smalls:
        log.snapshot(topic, SMALL_ROWS)
    yield Step("small first", smalls)
    for topic in smalls:
        log.steady(topic, SMALL_CHANGES)
    yield Step("small", smalls)


def wrong_rows(log: Log, contender: Contender, topics: Sequence[str]) -> int:
    """Rows that are missing, too many, or not what the log's last event of their key says."""
    columns = "id, customer, status, amount, note, city, score"
    wrong = 0
    for topic in topics:
        sent, found = log.rows(topic), contender.rows(topic).to_pyarrow_table()
        there = duckdb.sql(f"SELECT {columns} FROM found")
        last = duckdb.sql(
            f"SELECT {columns} FROM sent WHERE NOT deleted "
            "AND seq = (SELECT max(o.seq) FROM sent o WHERE o.id = sent.id)"
        )
        both = duckdb.sql(
            "(SELECT * FROM last EXCEPT ALL SELECT * FROM there) "
            "UNION ALL (SELECT * FROM there EXCEPT ALL SELECT * FROM last)"
        )
        wrong += len({row[0] for row in both.fetchall()})
        del sent, found, there, last
    return wrong


def main() -> None:
    """Run it, and print the table of docs/performance.md."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cdc-lake-bench-") as root:
        stack = Stack(Path(root) / "stack")
        stack.start(detach=False)
        try:
            _run(Path(root), stack.endpoints)
        finally:
            stack.delete()
    print(f"{time.monotonic() - started:.0f} s in all")


def _run(root: Path, addresses: dict[str, str]) -> None:
    environment = {
        **os.environ,
        "BENCH_KAFKA": addresses["kafka"],
        "BENCH_REGISTRY": addresses["registry"],
        "PYSPARK_SUBMIT_ARGS": _SUBMIT,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    log = Log(addresses["kafka"], addresses["registry"])
    contenders = [Contender(name, root / name, environment) for name in CONTENDERS]
    costs: dict[str, list[Cost]] = {}
    topics: dict[str, None] = {}
    try:
        for step in steps(log):
            costs[step.name] = [contender.take(step) for contender in contenders]
            topics.update(dict.fromkeys(step.topics))
            said = ", ".join(
                f"{c.name} {cost.wall_seconds:.1f} s" for c, cost in zip(contenders, costs[step.name], strict=True)
            )
            print(f"{step.name}: {said}", flush=True)
    finally:
        for contender in contenders:
            contender.end()
    wrong = [wrong_rows(log, contender, list(topics)) for contender in contenders]
    _print(costs, wrong)
    assert wrong[0] == 0, "cdc_lake's tables are not what the log says"


def _print(costs: dict[str, list[Cost]], wrong: Sequence[int]) -> None:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("step")
    for name in CONTENDERS:
        table.add_column(f"{name}\nwall s", justify="right")
        table.add_column("\nCPU s", justify="right")
    for name in list(CONTENDERS)[1:]:
        table.add_column(f"x {name}\nwall", justify="right")
    for step, row in costs.items():
        numbers = [f"{value:.1f}" for cost in row for value in (cost.wall_seconds, cost.cpu_seconds)]
        ratios = [f"{cost.wall_seconds / row[0].wall_seconds:.2f}" for cost in row[1:]]
        table.add_row(step, *numbers, *ratios)
    table.add_row("wrong rows", *(text for number in wrong for text in (f"{number:,}", "")))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
