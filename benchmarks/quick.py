"""`make bench-quick`: a million events, three ways, in one run; CPU seconds, wall seconds, ratios, and who was right.

The contenders take turns on the same topics and the same cores, each in an application of its own that stays up. What
their tables must hold is found by DuckDB over the log as it was sent.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Self

import duckdb
import psutil
import pyarrow as pa
from deltalake import DeltaTable
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.contender import CONTENDERS
from benchmarks.log import ORDERS, Log, small
from cdc_lake.embedded.stack import Stack
from cdc_lake.jars import cache_folder, lock_file, profile_name, read_lock

SNAPSHOT_ROWS, STEADY_BATCHES, STEADY_EVENTS = 700_000, 5, 50_000
SMALL_TABLES, SMALL_ROWS, SMALL_CHANGES = 50, 980, 20
"""All in all a million events."""
THEIR_SMALL_TABLES = 5
"""The others take so long with a small table that some stand for all; the figures are for one table."""
OURS = "cdc_lake"
_SUBMIT = "--master local[2] --driver-memory 2g --conf spark.ui.enabled=false pyspark-shell"
_COLUMNS = "id, customer, status, amount, note, city, score"


@dataclass(frozen=True)
class Step:
    """One piece of work: what is new in which topics.

    Attributes:
        theirs: how many of the topics the others take.
    """

    name: str
    topics: Sequence[str]
    theirs: int = 1


@dataclass(frozen=True)
class Cost:
    """What one table took in a step; `cpu` of all the contender's processes, both in seconds."""

    cpu: float
    wall: float


class Contender:
    """A contender's process, started and ready."""

    def __init__(self, name: str, root: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._folder = root / name
        self._log = root / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.contender", name, str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self._listen("ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._orders.close()
        self._process.wait(60)
        self._answers.close()

    def take(self, topics: Sequence[str]) -> Cost:
        """Bring the tables of some topics up to date."""
        cpu, wall = self._cpu_seconds(), time.monotonic()
        self._orders.write(json.dumps({"topics": list(topics)}) + "\n")
        self._orders.flush()
        self._listen("done")
        spent_cpu, spent_wall = self._cpu_seconds() - cpu, time.monotonic() - wall
        return Cost(spent_cpu / len(topics), spent_wall / len(topics))

    def rows(self, topic: str) -> pa.Table:
        """What its table of a topic holds."""
        table = self._folder / "silver" / topic.replace(".", "/") if self.name == OURS else self._folder / topic
        return DeltaTable(str(table)).to_pyarrow_table()

    def _listen(self, word: str) -> None:
        if self._answers.readline().strip() != word:
            raise RuntimeError(f"{self.name} ended; it said:\n{self._log.read_text()[-4000:]}")

    def _cpu_seconds(self) -> float:
        process = psutil.Process(self._process.pid)
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
        return sum(time.user + time.system + time.children_user + time.children_system for time in times)


def steps(log: Log) -> Iterator[Step]:
    """The work, each piece sent to Kafka when it is asked for."""
    smalls = [small(number) for number in range(SMALL_TABLES)]
    log.create({ORDERS: 4, **dict.fromkeys(smalls, 1)})
    log.snapshot(ORDERS, SNAPSHOT_ROWS)
    yield Step("snapshot", [ORDERS])
    for number in range(STEADY_BATCHES):
        log.steady(ORDERS, STEADY_EVENTS, evolves=number % 2 == 1)
        yield Step("steady" if number else "steady, the first", [ORDERS])
    for topic in smalls:
        log.snapshot(topic, SMALL_ROWS)
    yield Step("small table, the first rows", smalls, THEIR_SMALL_TABLES)
    for topic in smalls:
        log.steady(topic, SMALL_CHANGES)
    yield Step("small table, some changes", smalls, THEIR_SMALL_TABLES)


def wrong_rows(sent: pa.Table, found: pa.Table) -> int:
    """Keys whose row is missing, too much, or not what the log's last event of them says."""
    connection = duckdb.connect()
    connection.register("sent", sent)
    connection.register("found", found)
    connection.execute(
        f"CREATE VIEW expected AS SELECT {_COLUMNS} FROM "
        "(SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) AS n FROM sent) WHERE n = 1 AND NOT deleted"
    )
    there = f"SELECT {_COLUMNS} FROM found"
    ((wrong,),) = connection.execute(
        "SELECT count(DISTINCT coalesce(id, -1)) FROM "
        f"((FROM expected EXCEPT ALL {there}) UNION ALL ({there} EXCEPT ALL FROM expected))"
    ).fetchall()
    return int(wrong)


def main() -> None:
    """Run it, and print the table of docs/performance.md."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cdc-lake-bench-") as folder:
        stack = Stack(Path(folder) / "stack")
        stack.start(detach=False)
        try:
            _run(Path(folder), stack.endpoints)
        finally:
            stack.delete()
    print(f"{time.monotonic() - started:.0f} s in all")


def _run(root: Path, addresses: Mapping[str, str]) -> None:
    ours = {
        **os.environ,
        "BENCH_KAFKA": addresses["kafka"],
        "BENCH_REGISTRY": addresses["registry"],
        "PYSPARK_SUBMIT_ARGS": _SUBMIT,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    theirs = {**ours, "SPARK_CONF_DIR": str(_only_jars(root / "conf"))}
    log = Log(ours["BENCH_KAFKA"], ours["BENCH_REGISTRY"])
    costs: dict[str, list[list[Cost]]] = {}
    taken: dict[str, list[Contender]] = {}
    with ExitStack() as stack:
        contenders = [
            stack.enter_context(Contender(name, root, ours if name == OURS else theirs)) for name in CONTENDERS
        ]
        for step in steps(log):
            for contender in contenders:
                topics = step.topics if contender.name == OURS else step.topics[: step.theirs]
                cost = contender.take(topics)
                costs.setdefault(step.name, [[] for _ in contenders])[contenders.index(contender)].append(cost)
                print(f"{step.name}: {contender.name} {cost.cpu:.1f} CPU s, {cost.wall:.1f} s", flush=True)
                for topic in topics:
                    taken.setdefault(topic, [])
                    if contender not in taken[topic]:
                        taken[topic].append(contender)
    wrong = dict.fromkeys(CONTENDERS, 0)
    for topic, by in taken.items():
        sent = log.events(topic)
        for contender in by:
            wrong[contender.name] += wrong_rows(sent, contender.rows(topic))
    _print({name: [_median(of_one) for of_one in all_of] for name, all_of in costs.items()}, list(wrong.values()))
    if wrong[OURS]:
        raise SystemExit(f"{wrong[OURS]} rows of cdc_lake's tables are not what the log says")


def _only_jars(folder: Path) -> Path:
    """Spark's own defaults, in place of those that `cdc-lake jars fetch` wrote; the same jars."""
    jars = read_lock(lock_file(profile_name()))
    folder.mkdir()
    text = f"spark.jars {','.join(str(jar.path(cache_folder())) for jar in jars)}\n"
    (folder / "spark-defaults.conf").write_text(text)
    return folder


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(median(cost.cpu for cost in costs), median(cost.wall for cost in costs))


def _print(costs: Mapping[str, Sequence[Cost]], wrong: Sequence[int]) -> None:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("seconds for one table")
    for name in CONTENDERS:
        table.add_column(f"{name}\nCPU", justify="right")
        table.add_column("\nwall", justify="right")
    for name in list(CONTENDERS)[1:]:
        table.add_column(f"{name} x\nCPU", justify="right")
        table.add_column("\nwall", justify="right")
    for step, (ours, *theirs) in costs.items():
        numbers = [f"{value:.1f}" for cost in (ours, *theirs) for value in (cost.cpu, cost.wall)]
        ratios = [f"{value:.1f}" for cost in theirs for value in (cost.cpu / ours.cpu, cost.wall / ours.wall)]
        table.add_row(step, *numbers, *ratios)
    table.add_row("wrong rows", *(text for number in wrong for text in (f"{number:,}", "")))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
