"""Bronze and silver run for ten minutes while the source changes: their memory does not grow, and silver is correct."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from cdc_lake.demo import sample
from cdc_lake.demo.comparer import compare
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.demo.source import changing

NAME = "soak"
SECONDS, EACH_SECONDS = 600, 10
CATCH_UP_SECONDS, END_SECONDS = 300, 30
COMMAND = Path(sys.executable).with_name("cdc-lake")
HELD = ("memory", "files", "threads")


@dataclass
class Job:
    """A continuous job, and the resources of its processes at each measurement.

    Attributes:
        held: what is named in `HELD`, each time; memory in MiB.
    """

    layer: str
    process: "subprocess.Popen[bytes]"
    held: list[dict[str, int]] = field(default_factory=list)

    def look(self) -> None:
        """Record the minimum of three measurements: between fork and exec, a child has its parent's memory."""
        assert self.process.poll() is None, f"{self.layer} ended by itself"
        looks = []
        for _ in range(3):
            looks.append(self._holds())
            time.sleep(0.1)
        self.held.append({what: min(one[what] for one in looks) for what in HELD})

    def _holds(self) -> dict[str, int]:
        me = psutil.Process(self.process.pid)
        sums = dict.fromkeys(HELD, 0)
        for one in (me, *me.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # shell commands start and end
                seen = one.memory_info().rss >> 20, one.num_fds(), one.num_threads()
                sums = {what: sums[what] + more for what, more in zip(HELD, seen, strict=True)}
        return sums

    def end(self) -> float:
        """Stop it; the seconds until it ended."""
        told = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(2 * END_SECONDS) == 0
        return time.monotonic() - told


@contextmanager
def continuous(layer: str, environment: Mapping[str, str], log: Path) -> Iterator[Job]:
    command = [str(COMMAND), "run", layer, "--table", f"{NAME}.public.*", "--continuous", "--interval", "10s"]
    with log.open("wb") as said, subprocess.Popen(command, env=environment, stdout=said, stderr=said) as process:
        try:
            yield Job(layer, process)
        finally:
            process.kill()


@pytest.mark.deep
def test_ten_minutes_of_continuous_jobs(stack: Stack, tmp_path: Path) -> None:
    dsn = sample.create(stack.endpoints["postgres"], NAME)
    connector = postgres_connector_config(
        stack.endpoints,
        database=NAME,
        topic_prefix=NAME,
        tables=[f"public.{table}" for table in sample.TABLES],
        envelope_tables=[f"public.{table}" for table in sample.ENVELOPE_TABLES],
        signal_table=f"public.{sample.SIGNAL_TABLE}",
    )
    put_connector(stack.endpoints["connect"], NAME, connector)
    sample.wait_until_sent(dsn, NAME, 120)
    environment = {
        **os.environ,
        "CDC_LAKE__STACK__FOLDER": str(stack.folder),
        "CDC_LAKE__LAKE__ROOT": str(tmp_path / "lake"),
    }

    with ExitStack() as ends:
        jobs = [ends.enter_context(continuous("bronze", environment, tmp_path / "bronze.log"))]
        wait_for_bronze(tmp_path / "lake")
        jobs.append(ends.enter_context(continuous("silver", environment, tmp_path / "silver.log")))
        with changing(dsn, sample.Shop, seed=1, at_least=0) as done:
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                time.sleep(EACH_SECONDS)
                for job in jobs:
                    job.look()
        sample.wait_until_sent(dsn, NAME, 120, signal_table=f"public.{sample.SIGNAL_TABLE}")
        behind = time.monotonic()
        while differences(dsn, tmp_path / "lake") and time.monotonic() < behind + CATCH_UP_SECONDS:
            time.sleep(EACH_SECONDS)
        caught_up = time.monotonic() - behind
        ended = {job.layer: job.end() for job in jobs}

    print(f"{done.total()} transactions; caught up in {caught_up:.0f} s; ended in {ended}")
    for job in jobs:
        for what in HELD:
            print(job.layer, what, *(held[what] for held in job.held))
    assert differences(dsn, tmp_path / "lake") == {}
    assert max(ended.values()) < END_SECONDS
    for job in jobs:
        for what in HELD:
            assert is_flat([held[what] for held in job.held]), (job.layer, what)


def wait_for_bronze(lake: Path) -> None:
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while len(list(lake.glob(f"bronze/{NAME}/public/*/_delta_log"))) < len(sample.TABLES):
        assert time.monotonic() < deadline
        time.sleep(1)


def differences(dsn: str, lake: Path) -> dict[str, int]:
    found = {}
    for table in sample.TABLES:
        place = lake / "silver" / NAME / "public" / table
        there = compare(dsn, "public", table, str(place)).differences if place.exists() else 1
        if there:
            found[table] = there
    return found


def is_flat(values: Sequence[int]) -> bool:
    """Whether the last third is at most a tenth above the second. The first third is the JVM's warm-up."""
    third = len(values) // 3
    return max(values[-third:]) <= 1.1 * max(values[third:-third])
