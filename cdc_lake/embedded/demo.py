"""The whole way, for real, and the proof: Postgres -> Debezium -> Kafka -> bronze -> silver, compared with Postgres.

The jobs run as anyone would run them, by spark-submit. What judges them shares no code with them: the source is read by
psycopg, the tables by delta-rs, the topics by a plain consumer.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from deltalake import DeltaTable

from cdc_lake.config import CHECKOUT
from cdc_lake.embedded.comparer import Comparison, compare
from cdc_lake.embedded.connectors import postgres_connector_config, put_connector
from cdc_lake.embedded.sample import create, wait_until_sent, workload
from cdc_lake.embedded.stack import Stack
from cdc_lake.embedded.tap import StreamStats, observe
from cdc_lake.errors import CdcLakeError, ConfigError
from cdc_lake.jars import EMBEDDED_PROFILE, cache_folder, lock_file, profile_name, read_lock, require

PREFIX = "pagila"
TABLES = ("film", "customer")
ENVELOPE_TABLES = ("customer",)
ROUNDS = (500, 500)
"""Transactions of each round; after each, bronze and silver run once."""
_MARKER = "made-by-cdc-lake-demo"
_SENT_SECONDS = 60.0
_SMALL_JVM = "-Dorg.apache.avro.fastread=true -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""Starts in half the time and pays for it in speed, which a few thousand rows do not need."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class TableResult:
    """How one table came through.

    Attributes:
        events: records on the topic.
        differences: rows or cells in which silver is not the source, and records that bronze has not or twice.
        seconds: spent on it in bronze and silver.
    """

    topic: str
    events: int
    bronze_rows: int
    quarantined: int
    silver_rows: int
    source_rows: int
    differences: int
    seconds: float


@dataclass
class DemoResult:
    """What the demo found."""

    tables: list[TableResult] = field(default_factory=list)
    differences: int = 0
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    stream: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


def run_demo(folder: Path, *, keep: bool, say: Say) -> DemoResult:
    """Run the demo in `folder`, which it empties first.

    Args:
        folder: servers and lake are made in it.
        keep: leave the servers running.
        say: told what is going on.

    Raises:
        ConfigError: the folder holds something that no demo made.
        InstallationError: a jar is missing or damaged.
        InfrastructureError: a server or connector does not start.
        CdcLakeError: a job failed.
    """
    started = time.monotonic()
    for profile in (profile_name(), EMBEDDED_PROFILE):
        require(read_lock(lock_file(profile)), cache_folder())
    stack, lake = Stack(folder / "stack"), folder / "lake"
    _empty(folder, stack, lake)
    result = DemoResult()
    with _peak_memory(result):
        say("starting Postgres, Kafka, Apicurio Registry and Kafka Connect with Debezium")
        stack.start(detach=False)
        try:
            _play(stack, lake, result, say)
            if keep:
                stack.detach()
        finally:
            if not keep:
                stack.stop()
    result.seconds = round(time.monotonic() - started, 1)
    return result


def _play(stack: Stack, lake: Path, result: DemoResult, say: Say) -> None:
    addresses = stack.endpoints
    source = create(addresses["postgres"], PREFIX)
    connector = postgres_connector_config(
        addresses,
        database=PREFIX,
        topic_prefix=PREFIX,
        tables=[f"public.{table}" for table in TABLES],
        envelope_tables=[f"public.{table}" for table in ENVELOPE_TABLES],
    )
    put_connector(addresses["connect"], PREFIX, connector)
    seconds: dict[str, float] = {}
    for number, transactions in enumerate(ROUNDS, start=1):
        say(f"round {number}: {transactions} transactions in Postgres, then the bronze and the silver job")
        workload(source, seed=number, transactions=transactions)
        wait_until_sent(source, PREFIX, _SENT_SECONDS)
        for layer in ("bronze", "silver"):
            for topic, spent in _submit(layer, stack.folder, lake).items():
                seconds[topic] = seconds.get(topic, 0.0) + spent
    say("reading Postgres, Kafka and the tables with other programs, and comparing them")
    topics = [f"{PREFIX}.public.{table}" for table in TABLES]
    stream = observe(addresses["kafka"], f"{addresses['registry']}/apis/registry/v3", topics)
    for table, topic in zip(TABLES, topics, strict=True):
        compared = compare(source, "public", table, str(lake / "silver" / PREFIX / "public" / table))
        for sample in compared.samples:
            say(f"{topic}: {sample}")
        result.tables.append(_table_result(topic, table, lake, stream, compared, seconds[topic]))
    result.differences = sum(table.differences for table in result.tables)
    result.stream = {key: value for key, value in asdict(stream).items() if key != "records"}


def _table_result(
    topic: str, table: str, lake: Path, stream: StreamStats, compared: Comparison, seconds: float
) -> TableResult:
    bronze = DeltaTable(str(lake / "bronze" / PREFIX / "public" / table)).to_pyarrow_table(
        columns=["partition", "offset", "status"]
    )
    records = set(zip(bronze["partition"].to_pylist(), bronze["offset"].to_pylist(), strict=True))
    lost_or_doubled = abs(stream.records[topic] - len(records)) + bronze.num_rows - len(records)
    return TableResult(
        topic=topic,
        events=stream.records[topic],
        bronze_rows=bronze.num_rows,
        quarantined=bronze["status"].to_pylist().count("quarantined"),
        silver_rows=compared.lake_rows,
        source_rows=compared.source_rows,
        differences=compared.differences + lost_or_doubled,
        seconds=round(seconds, 1),
    )


def _submit(layer: str, stack: Path, lake: Path) -> dict[str, float]:
    """Run a layer's job over the demo's tables; the seconds it spent on each."""
    flags = [flag for table in TABLES for flag in ("--table", f"{PREFIX}.public.{table}")]
    command = [
        *(str(Path(sys.executable).with_name("spark-submit")), "--conf", f"spark.driver.extraJavaOptions={_SMALL_JVM}"),
        *(str(CHECKOUT / "jobs" / f"{layer}.py"), "--config", str(CHECKOUT / "conf" / "cdc-lake.yml"), "--json"),
        *flags,
    ]
    done = subprocess.run(command, env=_job_environment(stack, lake), capture_output=True, text=True, check=False)
    if done.returncode:
        raise CdcLakeError(
            f"the {layer} job", f"it ended with exit code {done.returncode}", f"it said:\n{done.stdout}{done.stderr}"
        )
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {table["table"]: sum(table["seconds"].values()) for table in report["tables"]}


def _job_environment(stack: Path, lake: Path) -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "CDC_LAKE__STACK__FOLDER": str(stack),
        "CDC_LAKE__LAKE__ROOT": str(lake),
    }


def _empty(folder: Path, stack: Stack, lake: Path) -> None:
    """Start from nothing, but never delete what no demo made."""
    marker = folder / _MARKER
    if not marker.exists():
        if lake.exists() or stack.folder.exists():
            raise ConfigError(
                str(folder), "it holds servers or tables that no demo made", "give another folder with --folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
    stack.delete()
    shutil.rmtree(lake, ignore_errors=True)


@contextmanager
def _peak_memory(result: DemoResult) -> Iterator[None]:
    """Note the most memory that this process and all below it held at once."""
    done = threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not done.wait(0.5):
            result.peak_rss_bytes = max(result.peak_rss_bytes, _rss_bytes([me, *me.children(recursive=True)]))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _rss_bytes(processes: Sequence[psutil.Process]) -> int:
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
