"""`make bench-quick`: compare cdc_lake with two textbook pipelines on 1.7 million events, and count wrong rows.

The pipelines take turns on the same topics and cores, each in an application of its own that keeps running. DuckDB
computes the expected content of their tables from the log.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.contender import IN_OTHER_FORMATS, PIPELINES
from benchmarks.cpu import cpu_seconds
from benchmarks.log import FIRST_ORDERS, ORDERS, Log, small
from cdc_lake.demo.comparer import iceberg_table
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.spark.jars import cache_folder, lock_file, read_lock
from cdc_lake.spark.versions import profile_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OURS = "cdc_lake"
ALL_OURS = frozenset((OURS, *IN_OTHER_FORMATS))
_SUBMIT = "--master local[2] --driver-memory 2g --conf spark.ui.enabled=false pyspark-shell"
_COLUMNS = ("id", "customer", "status", "amount", "note", "city", "score")


@dataclass(frozen=True)
class Sizes:
    """Size of the workload.

    Attributes:
        snapshot, small_rows: initial rows of each large table, and of each small table.
        steady_batches, recent_batches: of changes to all rows of a large table, and to its newest 5 %.
        steady_events, small_changes: events per batch.
        their_small_tables: number of small tables for the other pipelines, fewer to save time.
    """

    snapshot: int = 700_000
    steady_batches: int = 3
    recent_batches: int = 2
    steady_events: int = 50_000
    small_tables: int = 10
    small_rows: int = 980
    small_changes: int = 20
    their_small_tables: int = 1


FULL = Sizes()


@dataclass(frozen=True)
class Step:
    """A step of the workload: new events in some topics.

    Attributes:
        theirs: number of topics for the other pipelines.
    """

    name: str
    topics: Sequence[str]
    theirs: int = 1


@dataclass(frozen=True)
class Cost:
    """Seconds per table in a step; `cpu` includes all processes of the pipeline."""

    cpu: float
    wall: float


class Contender:
    """A pipeline's process. It starts in the background; its first request waits for it."""

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
        self._is_ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._orders.close()
        self._process.wait(60)
        self._answers.close()

    def take(self, topics: Sequence[str]) -> Cost:
        """Bring the tables of some topics up to date."""
        self.wait()
        cpu, wall = cpu_seconds(self._process.pid), time.monotonic()
        self._orders.write(json.dumps({"topics": list(topics)}) + "\n")
        self._orders.flush()
        self._listen("done")
        spent_cpu, spent_wall = cpu_seconds(self._process.pid) - cpu, time.monotonic() - wall
        return Cost(spent_cpu / len(topics), spent_wall / len(topics))

    def rows(self, topic: str) -> pa.Table:
        """The live rows of its table of a topic."""
        if self.name not in ALL_OURS:
            return DeltaTable(str(self._folder / topic)).to_pyarrow_table()
        rows = silver_rows(silver_folder(self._folder, topic))
        return rows.filter(pc.invert(rows["__deleted"]))

    def wait(self) -> None:
        """Wait until it has started."""
        if not self._is_ready:
            self._listen("ready")
            self._is_ready = True

    def _listen(self, word: str) -> None:
        if self._answers.readline().strip() != word:
            raise RuntimeError(f"{self.name} ended; its log:\n{self._log.read_text()[-4000:]}")


def silver_folder(lake: Path, topic: str) -> Path:
    """The folder of a topic's silver table in a lake of cdc_lake."""
    return lake / "silver" / topic.replace(".", "/")


def silver_rows(folder: Path) -> pa.Table:
    """A silver table's rows by delta-rs, by pyiceberg, or by Spark for Hudi: hudi-rs 0.5 skips some logs after a column
    was added.
    """
    if (folder / "_delta_log").exists():
        return DeltaTable(str(folder)).to_pyarrow_table()
    if (folder / "_iceberg").exists():
        return iceberg_table(str(folder)).scan().to_arrow()
    copy = folder.with_name(f"{folder.name}.rows")
    by_spark(folder).write.parquet(str(copy))
    return pq.read_table(copy)


def by_spark(folder: Path) -> "DataFrame":
    """A silver table as Spark reads it in this process, with the default settings of its jars."""
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_SUBMIT_ARGS": _SUBMIT, "SPARK_LOCAL_IP": "127.0.0.1"}
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if metadata := list(folder.glob("_iceberg/*.metadata.json")):
        return spark.read.format("iceberg").load(str(max(metadata)))
    kind = "hudi" if (folder / ".hoodie").exists() else "delta"
    return spark.read.format(kind).option("hoodie.metadata.enable", "false").load(str(folder))


def steps(log: Log, sizes: Sizes) -> Iterator[Step]:
    """The steps of the workload; the events of each are sent to Kafka just before it."""
    smalls = [small(number) for number in range(sizes.small_tables)]
    log.create({FIRST_ORDERS: 4, ORDERS: 4, **dict.fromkeys(smalls, 1)})
    for name, topic in (("snapshot, cold", FIRST_ORDERS), ("snapshot, warm", ORDERS)):
        log.snapshot(topic, sizes.snapshot)
        yield Step(name, [topic])
    for number in range(sizes.steady_batches):
        log.steady(ORDERS, sizes.steady_events, evolves=number == 1)
        yield Step("steady" if number else "first steady", [ORDERS])
    for number in range(sizes.recent_batches):
        log.steady(ORDERS, sizes.steady_events, evolves=number == 1, newest=sizes.snapshot // 20)
        yield Step("recent keys", [ORDERS])
    for topic in smalls:
        log.snapshot(topic, sizes.small_rows)
    yield Step("small, first", smalls, sizes.their_small_tables)
    for topic in smalls:
        log.steady(topic, sizes.small_changes)
    yield Step("small, changes", smalls, sizes.their_small_tables)


def wrong_rows(sent: pa.Table, found: pa.Table) -> int:
    """Number of keys whose row is missing, surplus, or differs from their last event in the log."""
    connection = duckdb.connect()
    connection.register("sent", sent)
    connection.register("found", found)
    columns = (name if name in found.column_names else f"NULL AS {name}" for name in _COLUMNS)
    there = f"SELECT {', '.join(columns)} FROM found"
    connection.execute(
        f"CREATE VIEW expected AS SELECT {', '.join(_COLUMNS)} FROM "
        "(SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) AS n FROM sent) WHERE n = 1 AND NOT deleted"
    )
    ((wrong,),) = connection.execute(
        "SELECT count(DISTINCT coalesce(id, -1)) FROM "
        f"((FROM expected EXCEPT ALL {there}) UNION ALL ({there} EXCEPT ALL FROM expected))"
    ).fetchall()
    return int(wrong)


def main() -> None:
    """Run the benchmark and print the table of docs/explanation/performance.md."""
    started = time.monotonic()
    with servers() as (folder, addresses):
        outcome = measure(folder, addresses, FULL)
    show(outcome)
    print(f"{time.monotonic() - started:.0f} s in total")
    if outcome.wrong[OURS]:
        raise SystemExit(f"{outcome.wrong[OURS]} rows of cdc_lake's tables differ from the log")


@dataclass(frozen=True)
class Outcome:
    """The result of a benchmark.

    Attributes:
        costs: step -> pipeline -> cost; the median of repeated steps.
        wrong: pipeline -> number of wrong rows in its tables.
    """

    costs: Mapping[str, Mapping[str, Cost]]
    wrong: Mapping[str, int]


def measure(root: Path, addresses: Mapping[str, str], sizes: Sizes, names: Sequence[str] = tuple(PIPELINES)) -> Outcome:
    """Run each step with each pipeline in turn.

    Args:
        root: an empty folder for their tables.
        addresses: the servers' addresses; see `Stack.endpoints`.
        names: of the pipelines.
    """
    ours, theirs = environments(root, addresses)
    log = Log(addresses["kafka"], addresses["registry"])
    costs: dict[str, dict[str, list[Cost]]] = {}
    taken: dict[str, dict[str, int]] = {name: {} for name in names}
    with ExitStack() as stack:
        contenders = [
            stack.enter_context(Contender(name, root, ours if name in ALL_OURS else theirs)) for name in names
        ]
        for step in steps(log, sizes):
            for contender in contenders:
                contender.wait()  # all of them, so that none starts during a measurement
            for contender in contenders:
                topics = step.topics if contender.name in ALL_OURS else step.topics[: step.theirs]
                if not topics:
                    continue
                cost = contender.take(topics)
                costs.setdefault(step.name, {}).setdefault(contender.name, []).append(cost)
                taken[contender.name] |= {topic: log.number(topic) for topic in topics}
                print(f"{step.name}: {contender.name} {cost.cpu:.1f} CPU s, {cost.wall:.1f} s", flush=True)
    return Outcome(
        {step: {name: _median(several) for name, several in by.items()} for step, by in costs.items()},
        {
            one.name: sum(wrong_rows(log.events(t, number), one.rows(t)) for t, number in taken[one.name].items())
            for one in contenders
        },
    )


@contextmanager
def servers() -> Iterator[tuple[Path, dict[str, str]]]:
    """Run the embedded servers; yield a folder for the tables, and the servers' addresses."""
    with tempfile.TemporaryDirectory(prefix="cdc-lake-bench-") as folder:
        stack = Stack(Path(folder) / "stack")
        stack.start(detach=False)
        try:
            yield Path(folder), stack.endpoints
        finally:
            stack.delete()


def environments(root: Path, addresses: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Environments of cdc_lake and of the other pipelines, which get Spark's defaults and the same jars."""
    ours = {
        **os.environ,
        "BENCH_KAFKA": addresses["kafka"],
        "BENCH_REGISTRY": addresses["registry"],
        "PYSPARK_SUBMIT_ARGS": _SUBMIT,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return ours, {**ours, "SPARK_CONF_DIR": str(_only_jars(root / "conf"))}


def _only_jars(folder: Path) -> Path:
    """A conf folder with the jars, but without the settings that `cdc-lake jars fetch` writes."""
    jars = read_lock(lock_file(profile_name()))
    folder.mkdir()
    text = f"spark.jars {','.join(str(jar.path(cache_folder())) for jar in jars)}\n"
    (folder / "spark-defaults.conf").write_text(text)
    return folder


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(median(cost.cpu for cost in costs), median(cost.wall for cost in costs))


def show(outcome: Outcome) -> None:
    """Print seconds, and their ratios to the first pipeline; of many pipelines only CPU seconds."""
    is_wide = len(outcome.wrong) > len(PIPELINES)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("CPU seconds" if is_wide else "seconds per table")
    for name in outcome.wrong:
        for title in [name.replace("-", "\n")] if is_wide else [f"{name}\nCPU", "\nwall"]:
            table.add_column(title, justify="right")
    for step, costs in outcome.costs.items():
        seconds = [(cost.cpu,) if is_wide else (cost.cpu, cost.wall) for cost in costs.values()]
        table.add_row(step, *(f"{value:.1f}" for both in seconds for value in both))
        ratios = (value / ours for both in seconds for value, ours in zip(both, seconds[0], strict=True))
        table.add_row("  times the first", *(f"{value:.2f}" for value in ratios), end_section=True)
    wrong = ([f"{number:,}"] if is_wide else [f"{number:,}", ""] for number in outcome.wrong.values())
    table.add_row("wrong rows", *(text for texts in wrong for text in texts))
    Console(width=80).print(table)


if __name__ == "__main__":
    main()
