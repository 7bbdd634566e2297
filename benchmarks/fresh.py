"""`make bench-fresh`: seconds from the commit of an insert in Postgres to that of its row in silver.

Debezium sends the inserts, and `cdc-lake run bronze silver --continuous` runs all the time with default settings. Rows
become visible with a commit to silver's Delta log, so the time of a row is that of the log's file. The first seconds,
in which the JVM compiles, are reported but not counted.
"""

import argparse
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import altair as alt
import psutil
import psycopg
from deltalake import DeltaTable

from benchmarks.profile import CpuByKind
from benchmarks.quick import servers, silver_folder
from cdc_lake.demo.comparer import compare
from cdc_lake.demo.sample import wait_until_sent
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector

DATABASE = "fresh"
_POLL_SECONDS, _START_SECONDS, _LAST_SECONDS = 0.05, 300.0, 900.0
_LOOK_SECONDS = 1.0
"""Time between two looks at what the processes hold."""
_BINS = (1, 2, 3, 5, 8, 13, 21, 34, 55)
"""Upper ends of the histogram's bins, in seconds."""


@dataclass
class Silver:
    """When rows came into the silver tables.

    Attributes:
        at: table and id -> time of the commit.
        _next: table -> the version to read next.
    """

    lake: Path
    tables: Sequence[str]
    at: dict[tuple[str, int], float] = field(default_factory=dict)
    _next: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Find the rows of commits since the last look."""
        for table in self.tables:
            folder = silver_folder(self.lake, f"{DATABASE}.public.{table}")
            while (commit := folder / "_delta_log" / f"{self._next.get(table, 0):020}.json").exists():
                version = self._next.get(table, 0)
                rows = DeltaTable(str(folder), version=version).to_pyarrow_table(columns=["id"])
                for identity in rows["id"].to_pylist():
                    self.at.setdefault((table, identity), commit.stat().st_mtime)
                self._next[table] = version + 1


class Held(NamedTuple):
    """What a process tree holds: memory in bytes, open files, and threads."""

    memory: int
    files: int
    threads: int

    @classmethod
    def by(cls, process: psutil.Process) -> "Held":
        """Look at a process tree. Pages that processes share count once. A child that still has to start its program
        does not count, because it shares all pages of its parent.
        """
        found, since = cls(0, 0, 0), time.time() - _LOOK_SECONDS
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                if one.create_time() < since:
                    more = one.memory_full_info().pss, one.num_fds(), one.num_threads()
                    found = cls(*map(sum, zip(found, more, strict=True)))
        return found


@dataclass(frozen=True)
class Outcome:
    """What was measured.

    Attributes:
        first: seconds from the start of the process until all tables have a row.
        latencies: seconds of each insert, in their order.
        cores: CPU seconds per second, by the kinds of `benchmarks.profile`.
        held: what the processes held, in the order of time.
        differences: between silver and Postgres at the end.
    """

    first: float
    latencies: Sequence[float]
    cores: Mapping[str, float]
    held: Sequence[Held]
    differences: int


def measure(
    folder: Path, addresses: Mapping[str, str], *, tables: int, every: float, warm_up: float, seconds: float
) -> Outcome:
    """Insert rows, and find out when they are in silver.

    Args:
        folder: for the lake.
        addresses: the servers'.
        tables: number of tables.
        every: seconds between two inserts into a table.
        warm_up: seconds before the measurement.
        seconds: length of the measurement.

    Raises:
        RuntimeError: rows are missing in silver.
    """
    names = [f"t{number:03}" for number in range(tables)]
    with psycopg.connect(addresses["postgres"], autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE}")
    dsn = psycopg.conninfo.make_conninfo(addresses["postgres"], dbname=DATABASE)
    with psycopg.connect(dsn, autocommit=True) as source:
        for name in names:
            source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, at timestamptz, note text)")
            source.execute(f"INSERT INTO {name} VALUES (0, now(), 'the first row')")
        config = postgres_connector_config(
            addresses, database=DATABASE, topic_prefix=DATABASE, tables=[f"public.{name}" for name in names]
        )
        put_connector(addresses["connect"], DATABASE, config)
        wait_until_sent(dsn, DATABASE, _START_SECONDS)
        silver = Silver(folder / "lake", names)
        with _running(folder) as process:
            started = time.time()
            _watch(silver, lambda: len(silver.at) == len(names), _START_SECONDS)
            first = max(silver.at.values()) - started
            sent = dict[tuple[str, int], float]()
            stopped = threading.Event()
            inserting = threading.Thread(target=_insert, args=(source, names, every, sent, stopped))
            inserting.start()
            _watch(silver, lambda: False, warm_up)
            cpu = _Cpu(process.pid)
            begun, before = time.time(), cpu.read()
            held = _watch(silver, lambda: False, seconds, process.pid)
            ended, after = time.time(), cpu.read()
            cores = {kind: (after[kind] - before[kind]) / (ended - begun) for kind in after}
            stopped.set()
            inserting.join()
            _watch(silver, lambda: sent.keys() <= silver.at.keys(), _LAST_SECONDS)
    if missing := sent.keys() - silver.at.keys():
        raise RuntimeError(f"{len(missing)} rows are not in silver, for example {min(missing)}")
    folders = {name: str(silver_folder(silver.lake, f"{DATABASE}.public.{name}")) for name in names}
    differences = sum(compare(dsn, "public", *one).differences for one in folders.items())
    counted = [one for one, at in sent.items() if begun <= at < ended]
    return Outcome(first, [silver.at[one] - sent[one] for one in counted], cores, held, differences)


class _Cpu(CpuByKind):
    """The CPU seconds of a driver in another process."""

    def __init__(self, pid: int) -> None:
        self._driver = psutil.Process(pid)
        super().__init__(next(one.pid for one in self._driver.children(recursive=True) if one.name() == "java"))

    def read(self) -> dict[str, float]:
        """See `CpuByKind`."""
        times = self._driver.cpu_times()
        return super().read() | {"Python driver": times.user + times.system}


@contextmanager
def _running(folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Bronze and silver, continuously; stopped at the end, as by Ctrl-C."""
    environment = {
        **os.environ,
        "CDC_LAKE__STACK__FOLDER": str(folder / "stack"),
        "CDC_LAKE__LAKE__ROOT": str(folder / "lake"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = ["cdc-lake", "run", "bronze", "--table", f"{DATABASE}.public.*", "silver", "--continuous"]
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _insert(
    source: psycopg.Connection,
    names: Sequence[str],
    every: float,
    sent: dict[tuple[str, int], float],
    stopped: threading.Event,
) -> None:
    """Insert a row into one table after the other, until stopped."""
    begun, number = time.monotonic(), 0
    while not stopped.wait(max(begun + number * every / len(names) - time.monotonic(), 0)):
        identity, name = 1 + number // len(names), names[number % len(names)]
        source.execute(f"INSERT INTO {name} VALUES ({identity}, now(), 'row {identity}')")
        sent[name, identity] = time.time()
        number += 1


def _watch(silver: Silver, is_over: Callable[[], bool], seconds: float, pid: int | None = None) -> list[Held]:
    """Look at silver until `is_over`, or for some seconds. Returns what a process tree held each second."""
    held, begun, looked = list[Held](), time.monotonic(), 0.0
    while not is_over() and (now := time.monotonic()) < begun + seconds:
        silver.look()
        if pid is not None and now >= looked + _LOOK_SECONDS:
            held.append(Held.by(psutil.Process(pid)))
            looked = now
        time.sleep(_POLL_SECONDS)
    return held


def show(outcome: Outcome, parts: int) -> None:
    """Print the figures, how many inserts took how long, and how the parts of the time differ."""
    print(f"first rows after {outcome.first:.1f} s; {outcome.differences} differences at the end")
    print(_described(outcome.latencies, outcome.held), end="; ")
    print(f"{sum(outcome.cores.values()):.2f} cores")
    print(", ".join(f"{kind} {cores:.2f}" for kind, cores in outcome.cores.items()))
    least = 0
    for most in (*_BINS, max(*outcome.latencies, _BINS[-1]) + 1):
        number = sum(least <= one < most for one in outcome.latencies)
        print(f"{least:4}-{most:<3.0f} s {number:5} {'#' * round(60 * number / len(outcome.latencies))}")
        least = int(most)
    for number in range(parts if parts > 1 else 0):
        print(
            f"part {number + 1}:", _described(*(_part(of, number, parts) for of in (outcome.latencies, outcome.held)))
        )


def draw(latencies: Sequence[float], file: Path) -> None:
    """Draw how many inserts took how long, as SVG."""
    least, most = (alt.Axis(title=title, grid=False) for title in ("seconds from the insert to silver", "inserts"))
    data = alt.InlineData(values=[{"seconds": one} for one in latencies])
    chart = alt.Chart(data, width=560, height=200, title=f"{len(latencies):,} inserts").mark_bar()
    chart.encode(alt.X("seconds:Q", bin=alt.Bin(maxbins=40), axis=least), alt.Y("count()", axis=most)).save(file)


def _part(values: Sequence[Any], number: int, parts: int) -> Sequence[Any]:
    return values[len(values) * number // parts : len(values) * (number + 1) // parts]


def _described(latencies: Sequence[float], held: Sequence[Held]) -> str:
    cuts, most = quantiles(latencies, n=20), Held(*map(max, zip(*held, strict=True)))
    times = f"p50 {cuts[9]:.1f} s, p95 {cuts[18]:.1f} s, at most {max(latencies):.1f} s"
    return f"{times}; {most.memory / 2**30:.1f} GiB, {most.files} files, {most.threads} threads"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fresh", description=__doc__)
    parser.add_argument("--tables", type=int, default=5, help="number of tables")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two inserts into a table")
    parser.add_argument("--warm-up", type=float, default=100.0, help="seconds before the measurement")
    parser.add_argument("--seconds", type=float, default=100.0, help="length of the measurement")
    parser.add_argument("--parts", type=int, default=1, help="parts of the measurement to describe one by one")
    parser.add_argument("--picture", type=Path, help="an SVG file for the histogram")
    options = vars(parser.parse_args(arguments))
    parts, file = options.pop("parts"), options.pop("picture")
    with servers() as (folder, addresses):
        try:
            outcome = measure(folder, addresses, **options)
        except BaseException:
            print((folder / "run.log").read_text()[-4000:])
            raise
    show(outcome, parts)
    if file is not None:
        draw(outcome.latencies, file)


if __name__ == "__main__":
    main()
