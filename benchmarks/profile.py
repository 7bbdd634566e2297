"""`make bench-profile`: where the CPU seconds of bronze and silver go, by kind of thread and by Spark stage.

Both layers run in one application, in this process, in four phases: `cold`, the first snapshot of the application;
`warm`, a snapshot of another new table; `steady`, the third batch of changes to that table, each a tenth of its rows;
`small`, the fourth batch of 20 changes to a small table. Stages come from Spark's event log, and the CPU time of
writing it is part of `rest of the JVM`.
"""

import argparse
import gc
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import cdc_lake
from benchmarks import contender
from benchmarks.cpu import cpu_seconds
from benchmarks.log import FIRST_ORDERS, ORDERS, Log, small
from benchmarks.quick import environments, servers

SMALL = small(0)
THREADS = {
    "tasks": ("Executo",),
    "tasks: rows to Python": ("stdout ",),
    "planning": ("Thread-",),
    "compiler C1": ("C1 Comp",),
    "compiler C2": ("C2 Comp",),
    "garbage collector": ("GC Thre", "G1 ", "VM Thre"),
}
"""Kind -> how the names of its threads in the JVM begin. Newer JVMs shorten long names after 7 characters."""
REST = "rest of the JVM"
KINDS = (*THREADS, REST, "Python workers", "Python driver")
HUGE_METHOD_BYTES = 8_000
"""HotSpot interprets larger methods, unless `-XX:-DontCompileHugeMethods` is set."""
EVENT_LOG = (
    "--conf spark.eventLog.enabled=true --conf spark.eventLog.dir={} --conf spark.eventLog.compress=false "
    "--conf spark.eventLog.rolling.enabled=false"
)
_SAMPLE_SECONDS, _FEW_SECONDS = 0.2, 0.05
_PACKAGE = str(Path(cdc_lake.__file__).parent)


@dataclass(frozen=True)
class Stage:
    """A stage; its CPU seconds are those of its tasks' own threads, as Spark counts them."""

    job: int
    name: str
    operators: Sequence[str]
    tasks: int
    cpu: float


@dataclass(frozen=True)
class Phase:
    """What a layer did in a phase: CPU seconds by kind, generated classes, bytes of each generated method, stages."""

    name: str
    layer: str
    started: float
    ended: float
    cpu: dict[str, float]
    classes: int
    methods: list[int]
    stages: list[Stage] = field(default_factory=list)


class CpuByKind:
    """CPU seconds of the JVM, Python's workers and this process. Threads are sampled, because they may end."""

    def __init__(self, jvm_pid: int) -> None:
        self._jvm = psutil.Process(jvm_pid)
        self._threads: dict[tuple[str, str], tuple[str, float]] = {}
        self._lock, self._own = threading.Lock(), 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def read(self) -> dict[str, float]:
        """The seconds so far of each of `KINDS`."""
        found = dict.fromkeys(KINDS, 0.0)
        with self._lock:
            self._sample()
            for name, seconds in self._threads.values():
                found[next((kind for kind, starts in THREADS.items() if name.startswith(starts)), REST)] += seconds
        times = self._jvm.cpu_times()
        jvm = times.user + times.system
        found[REST] = jvm - sum(seconds for kind, seconds in found.items() if kind != REST)
        found["Python workers"] = cpu_seconds(self._jvm.pid) - jvm
        found["Python driver"] = time.process_time() - self._own
        return found

    def _watch(self) -> None:
        while self._jvm.is_running():
            with self._lock:
                self._sample()
                self._own = time.thread_time()
            time.sleep(_SAMPLE_SECONDS)

    def _sample(self) -> None:
        for thread in Path(f"/proc/{self._jvm.pid}/task").glob("*/stat"):
            try:
                name, _, rest = thread.read_text().partition("(")[2].rpartition(") ")
            except OSError:  # it has ended
                continue
            values = rest.split()
            ticks = int(values[11]) + int(values[12])
            self._threads[thread.parent.name, values[19]] = name, ticks / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, rows: int, layers: Sequence[str], log: Log) -> list[Phase]:
    """Run the phases; the environment has the settings of Spark and the addresses of the servers.

    Args:
        folder: for the lake; its folder `events` gets the event log.
        rows: of a snapshot.
        layers: the layers to run.
    """
    from pyspark.sql import SparkSession

    takes = {layer: contender.cdc_lake(folder / "lake", layers=[layer]) for layer in layers}
    spark = SparkSession.builder.getOrCreate()
    name_jobs(spark)
    jvm: Any = spark._jvm
    generated = getattr(getattr(jvm.org.apache.spark.metrics.source, "CodegenMetrics$"), "MODULE$")
    classes = generated.METRIC_GENERATED_CLASS_BYTECODE_SIZE()
    methods = generated.METRIC_GENERATED_METHOD_BYTECODE_SIZE()
    sizes = methods.getClass().getDeclaredField("reservoir")
    sizes.setAccessible(True)
    cpu = CpuByKind(jvm.java.lang.ProcessHandle.current().pid())
    phases = []
    for name, topic in steps(log, rows):
        gc.freeze()  # so that Python's collector does not go through the log's events
        for layer, take in takes.items():
            sizes.set(methods, jvm.com.codahale.metrics.UniformReservoir(1 << 15))  # Spark's is a small sample
            classes_before, before, started = classes.getCount(), cpu.read(), time.time()
            take([topic])
            ended, after = time.time(), cpu.read()
            if name:
                seconds = {kind: after[kind] - before[kind] for kind in KINDS}
                found = json.loads(jvm.java.util.Arrays.toString(methods.getSnapshot().getValues()))
                made = classes.getCount() - classes_before
                phases.append(Phase(name, layer, started, ended, seconds, made, found))
                print(f"{name}: {layer} {sum(seconds.values()):.1f} CPU s, {ended - started:.1f} s", flush=True)
    spark.stop()
    (events,) = (folder / "events").iterdir()
    for at, stage in stages(events):
        for phase in phases:
            if phase.started <= at <= phase.ended:
                phase.stages.append(stage)
    return phases


def steps(log: Log, rows: int) -> Iterator[tuple[str, str]]:
    """The phase, empty for a step that is not shown, and the topic; its events are sent just before."""
    log.create({FIRST_ORDERS: 4, ORDERS: 4, SMALL: 1})
    for name, topic in (("cold", FIRST_ORDERS), ("warm", ORDERS)):
        log.snapshot(topic, rows)
        yield name, topic
    for name in ("", "", "steady"):
        log.steady(ORDERS, rows // 10)
        yield name, ORDERS
    log.snapshot(SMALL, 980)
    yield "", SMALL
    for name in ("", "", "", "small"):
        log.steady(SMALL, 20)
        yield name, SMALL


def name_jobs(spark: Any) -> None:
    """Name each job after its action and the function of cdc_lake that calls it; Spark's names are mostly Java's."""
    from delta.tables import DeltaMergeBuilder
    from pyspark.traceback_utils import SCCallSiteSync

    def named(action: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            while frame.f_back and not frame.f_code.co_filename.startswith(_PACKAGE):
                frame = frame.f_back
            file = frame.f_code.co_filename.removeprefix(_PACKAGE + os.sep)
            site: Any = SCCallSiteSync(spark.sparkContext)  # type: ignore[no-untyped-call]
            site._call_site = f"{action} at {file}:{frame.f_code.co_name}"
            with site:
                return do(*args, **kwargs)

        return call

    rows = spark.range(0)
    owners = dict.fromkeys(("collect", "count", "first", "head", "isEmpty", "localCheckpoint"), type(rows))
    owners |= {"save": type(rows.write), "sql": type(spark), "execute": DeltaMergeBuilder}
    for action, owner in owners.items():
        setattr(owner, action, named(action, getattr(owner, action)))


def stages(events: Path) -> Iterator[tuple[float, Stage]]:
    """The stages of an event log, and when each was submitted, in seconds since 1970.

    A stage's operators are those whose metrics its tasks changed, in the order of the data.
    """
    order, operators = count(), dict[int, tuple[int, str]]()
    jobs: dict[int, tuple[int, str]] = {}

    def learn(node: dict[str, Any]) -> None:
        for child in node["children"]:
            learn(child)
        if not node["nodeName"].startswith("WholeStageCodegen"):
            name = re.split(r" - | ?[(#]", node["nodeName"])[0].strip()
            operators.update({metric["accumulatorId"]: (next(order), name) for metric in node["metrics"]})

    for event in map(json.loads, events.open(encoding="utf-8")):
        if "sparkPlanInfo" in event:
            learn(event["sparkPlanInfo"])
        elif event["Event"] == "SparkListenerJobStart":
            names = map(event["Properties"].get, ("callSite.short", "spark.job.description"))
            name = " | ".join(dict.fromkeys(filter(None, names)))
            jobs = {stage: (event["Job ID"], name) for stage in event["Stage IDs"]} | jobs
        elif event["Event"] == "SparkListenerStageCompleted":
            info = event["Stage Info"]
            metrics = {metric["ID"]: metric for metric in info["Accumulables"]}
            seconds = sum(metric["Value"] for metric in metrics.values() if metric["Name"].endswith("CpuTime")) / 1e9
            ran = dict.fromkeys(name for _, name in sorted(operators[one] for one in metrics.keys() & operators))
            job, name = jobs[info["Stage ID"]]
            stage = Stage(job, name or info["Stage Name"], list(ran), info["Number of Tasks"], seconds)
            yield info["Submission Time"] / 1e3, stage


def show(phases: Sequence[Phase]) -> None:
    """Print where the CPU seconds went, and the stages of each phase."""
    table = _table("CPU seconds", *(f"{phase.name}\n{phase.layer}" for phase in phases))
    for kind in KINDS:
        table.add_row(kind, *(f"{phase.cpu[kind]:.1f}" for phase in phases), end_section=kind == KINDS[-1])
    figures: dict[str, Callable[[Phase], str]] = {
        "total": lambda phase: f"{sum(phase.cpu.values()):.1f}",
        "wall seconds": lambda phase: f"{phase.ended - phase.started:.1f}",
        "jobs": lambda phase: str(len({stage.job for stage in phase.stages})),
        "stages": lambda phase: str(len(phase.stages)),
        "generated classes": lambda phase: str(phase.classes),
        "largest method, bytes": lambda phase: f"{max(phase.methods, default=0):,}",
        f"methods above {HUGE_METHOD_BYTES:,}": lambda phase: str(sum(n > HUGE_METHOD_BYTES for n in phase.methods)),
    }
    for title, figure in figures.items():
        table.add_row(title, *map(figure, phases))
    console = Console(width=100)
    console.print(table)
    for phase in phases:
        console.print()
        table = _table(f"{phase.name}, {phase.layer}", "tasks", "CPU s")
        for stage in phase.stages:
            if stage.cpu >= _FEW_SECONDS:
                text = f"{escape(stage.name)}\n  [dim]{escape(', '.join(stage.operators))}"
                table.add_row(text, str(stage.tasks), f"{stage.cpu:.2f}")
        few = [stage for stage in phase.stages if stage.cpu < _FEW_SECONDS]
        for title, several in ((f"stages below {_FEW_SECONDS} s: {len(few)}", few), ("all", phase.stages)):
            tasks, seconds = sum(stage.tasks for stage in several), sum(stage.cpu for stage in several)
            table.add_row(title, str(tasks), f"{seconds:.2f}")
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, expand=True)
    table.add_column(title, ratio=1)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def main(arguments: Sequence[str]) -> None:
    """Run the profile and print its tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description="Profile bronze and silver.")
    parser.add_argument("--rows", type=int, default=500_000, help="rows of a snapshot; up to 20,000 are interpreted")
    parser.add_argument("--layers", nargs="+", choices=contender.LAYERS, default=contender.LAYERS)
    parser.add_argument("--java-options", default="", help="for the JVM; write --java-options=-XX:...")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    options = parser.parse_args(arguments)
    with servers() as (folder, addresses):
        ours, _ = environments(folder, addresses)
        (folder / "events").mkdir()
        event_log = EVENT_LOG.format((folder / "events").as_uri())
        os.environ |= {**ours, "PYSPARK_SUBMIT_ARGS": f"{event_log} {ours['PYSPARK_SUBMIT_ARGS']}"}
        os.environ["SPARK_SUBMIT_OPTS"] = options.java_options
        phases = measure(folder, options.rows, options.layers, Log(addresses["kafka"], addresses["registry"]))
    show(phases)
    if options.json:
        found = {"rows": options.rows, "java_options": options.java_options, "phases": [asdict(one) for one in phases]}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
