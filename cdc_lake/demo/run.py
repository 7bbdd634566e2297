"""The demo: run Postgres -> Debezium -> Kafka -> bronze -> silver -> gold, and compare the result with Postgres.

By default it replicates a small shop in two rounds, with jobs that run continuously: first the snapshot, then the
changes (`_run_rounds`). The full demo submits each job twice, the first time while the source changes (`_run_full`).
Afterwards proof.py compares every row.
"""

import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import psycopg
from confluent_kafka import Producer

from cdc_lake.config import TableType
from cdc_lake.demo import sample
from cdc_lake.demo.jobs import Jobs, Platform, sample_settings, this_machine
from cdc_lake.demo.proof import prove
from cdc_lake.demo.result import DemoResult, Show, Step, run_step
from cdc_lake.demo.servers.connectors import check_connector, postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack, rss_bytes
from cdc_lake.demo.source import (
    SourceDatabase,
    change,
    changing,
    check_sample_globs,
    dump_source,
    sample_source,
    small_source,
    topics_of,
    with_tables,
)
from cdc_lake.demo.tap import end_offsets, superseded_update
from cdc_lake.errors import ConfigError
from cdc_lake.spark.jars import EMBEDDED_PROFILE, cache_folder, lock_file, read_lock, require
from cdc_lake.spark.versions import profile_name

_SEED: Final = 1
SETTINGS: Final = "demo.yml"
"""The file in the demo's folder with the settings of its lake, which marks the folder as the demo's."""
_SENT_SECONDS = 120.0
_MEMORY_INTERVAL_SECONDS = 0.5


@dataclass(frozen=True)
class _Demo:
    """A demo whose servers run.

    Attributes:
        result: gets the number of transactions, the example and the steps' times.
    """

    source: SourceDatabase
    stack: Stack
    jobs: Jobs
    result: DemoResult
    show: Show

    @contextmanager
    def step(self, name: str, text: str, *, part: str | None = None) -> Iterator[Step]:
        with run_step(self.show, self.result.parts, name, text, part=part) as step:
            yield step

    def start_connector(self) -> None:
        """Create the connector, which begins with a snapshot, and wait until it runs."""
        with self.step("connector", "Debezium connects to Postgres"):
            config = postgres_connector_config(
                self.stack.endpoints,
                database=self.source.name,
                topic_prefix=self.source.name,
                tables=[table.place for table in self.source.tables],
                envelope_tables=self.source.envelope_tables,
                signal_table=self.source.signal_table,
            )
            put_connector(self.stack.endpoints["connect"], self.source.name, config)

    def wait_until_sent(self, *, signal_table: str | None = None) -> None:
        """Wait until Kafka has all changes made so far; see `sample.wait_until_sent`."""
        check = partial(check_connector, self.stack.endpoints["connect"], self.source.name)
        sample.wait_until_sent(self.source.dsn, self.source.name, _SENT_SECONDS, signal_table=signal_table, check=check)


def run_demo(
    folder: Path,
    *,
    is_full: bool = False,
    dumps: Sequence[Path] = (),
    tables: Sequence[str] = (),
    table_type: TableType = "delta",
    platform: Platform | None = None,
    keep: bool,
    show: Show,
) -> DemoResult:
    """Run the demo in `folder`, which it empties first.

    Args:
        folder: for the servers and the lake.
        is_full: replicate the whole sample, and change it while the jobs run. Dumps and `tables` imply it.
        dumps: files of `pg_dump`, in any of its formats, to load instead of the sample.
        tables: globs of the topics to replicate; default: all.
        platform: the Spark that runs the jobs; default: this machine's.

    Raises:
        ConfigError: the folder has other files, a dump cannot be loaded, or a table does not exist.
        InstallationError: a jar is missing or damaged.
        InfrastructureError: a server or connector does not start.
        CdcLakeError: a job failed.
    """
    started = time.monotonic()
    is_full = is_full or bool(dumps or tables)
    if not dumps:  # a dump's tables are not known before it is loaded
        check_sample_globs(tables)
    for profile in (profile_name(), EMBEDDED_PROFILE):
        require(read_lock(lock_file(profile)), cache_folder())
    stack, lake = Stack(folder / "stack"), folder / "lake"
    _prepare(folder, stack, lake, table_type)
    result = DemoResult()
    with _peak_memory(result):
        with run_step(show, result.parts, "start", "Postgres, Kafka, Connect with Debezium, Apicurio Registry"):
            stack.start(detach=False)
        try:
            content = ", ".join(path.name for path in dumps) or "a DVD rental shop"
            with run_step(show, result.parts, "load", content) as step:
                postgres = stack.endpoints["postgres"]
                if not is_full:
                    source = small_source(postgres)
                else:
                    source = dump_source(postgres, dumps) if dumps else sample_source(postgres)
                    source = with_tables(source, tables) if tables else source
                step.text += f": {len(source.tables)} tables with {_rows(source):,} rows"
            result.source, result.left_out, result.skipped = source.name, dict(source.left_out), dict(source.skipped)
            platform = platform or this_machine()
            jobs = Jobs(platform, stack, platform.lake or str(lake), table_type)
            (_run_full if is_full else _run_rounds)(_Demo(source, stack, jobs, result, show))
            with run_step(show, result.parts, "compare", "each row of silver and gold with Postgres"):
                platform.download(lake)
                prove(source, stack.endpoints, lake, jobs.seconds, result)
            if keep:
                stack.detach()
        finally:
            if not keep:
                stack.stop()
    result.seconds = round(time.monotonic() - started, 1)
    return result


def _run_rounds(demo: _Demo) -> None:
    """Run the jobs continuously: the snapshot is the first round, the workload's changes are the second."""
    source, jobs, topics = demo.source, demo.jobs, list(demo.source.topics)
    demo.start_connector()
    with demo.step("snapshot", "Debezium sends each row to Kafka"):
        demo.wait_until_sent()
    with (
        jobs.continuous("bronze", *_flags("--table", topics)) as bronze,
        jobs.continuous("silver", *_flags("--table", topics)) as silver,
        jobs.continuous("gold", *_flags("--model", source.gold)) as gold,
    ):

        def run_layers(part: str) -> None:
            with demo.step("bronze", "store each record", part=part.format("bronze")) as step:
                rows = bronze.wait(end_offsets(demo.stack.endpoints["kafka"], topics))
                step.text = f"{rows['read']:,} records stored, {rows['quarantined']} of them quarantined"
            with demo.step("silver", "merge the events by primary key", part=part.format("silver")) as step:
                rows = silver.wait(bronze.batches)
                step.text = f"{rows['events']:,} events merged by primary key, {rows['stale']} of them stale"
            with demo.step("gold", "refresh the SQL models", part=part.format("gold")) as step:
                commits = {model: sum(silver.batches[topic] for topic in topics_of(model)) for model in source.gold}
                rows = gold.wait(commits)
                step.text = f"{rows['written']:,} rows of {len(source.gold)} SQL models written"

        run_layers("{}")
        with demo.step("changes", f"{source.transactions} transactions") as step:
            demo.result.transactions = change(
                source.dsn, source.changes_to, seed=_SEED, transactions=source.transactions
            ).total()
            demo.wait_until_sent()
            demo.result.example = _send_again(demo)
            step.text += "; then an old record again, and a broken one"
        run_layers("{} again")


def _send_again(demo: _Demo) -> str:
    """Send an update of a film again, as a restarted connector does, and then half of its value.

    Returns:
        The film's key.
    """
    topic, addresses = f"{demo.source.name}.public.film", demo.stack.endpoints
    old, film = superseded_update(addresses["kafka"], f"{addresses['registry']}/apis/registry/v3", topic)
    value = old.value() or b""
    producer = Producer({"bootstrap.servers": addresses["kafka"]})
    for sent in (value, value[: len(value) // 2]):
        producer.produce(topic, key=old.key(), value=sent, headers=old.headers())
    producer.flush()
    return str(film["film_id"])


def _rows(source: SourceDatabase) -> int:
    with psycopg.connect(source.dsn) as database:
        counts = " + ".join(f"(SELECT count(*) FROM {table.qualified})" for table in source.tables)
        ((rows,),) = database.execute(f"SELECT {counts}".encode()).fetchall()
    return int(rows)


def _flags(flag: str, names: Iterable[str]) -> list[str]:
    return [part for name in names for part in (flag, name)]


def _run_full(demo: _Demo) -> None:
    """Submit the jobs while the source changes, and again when it no longer does."""
    source, result = demo.source, demo.result
    demo.start_connector()
    with changing(source.dsn, source.changes_to, seed=_SEED, at_least=source.transactions) as done:
        with demo.step("snapshot", "Debezium sends each row to Kafka"):
            demo.wait_until_sent()
        _submit_layers(demo, "{}", "while the tables change")
    result.transactions = done.total()
    with demo.step("rest", "Debezium sends the last changes"):
        demo.wait_until_sent(signal_table=source.signal_table)
    _submit_layers(demo, "{} again", f"after {result.transactions:,} transactions")


def _submit_layers(demo: _Demo, part: str, when: str) -> None:
    """Run the job of each layer once; `part` makes the step's name in the result from the layer's."""
    tables = ["--table", demo.source.pattern]
    for layer, flags in (("bronze", tables), ("silver", tables), ("gold", _flags("--model", demo.source.gold))):
        if flags:
            with demo.step(layer, f"spark-submit jobs/{layer}.py, {when}", part=part.format(layer)):
                demo.jobs.submit(layer, *flags)


def _prepare(folder: Path, stack: Stack, lake: Path, table_type: TableType) -> None:
    """Empty the folder, unless it has files that the demo did not create, and write its settings for later commands."""
    settings = folder / SETTINGS
    if not settings.exists() and (lake.exists() or stack.folder.exists()):
        raise ConfigError(
            str(folder), "it contains servers or tables that the demo did not create", "use another --folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    settings.write_text(sample_settings(table_type), encoding="utf-8")
    stack.delete()
    shutil.rmtree(lake, ignore_errors=True)


@contextmanager
def _peak_memory(result: DemoResult) -> Iterator[None]:
    """Record the peak memory of this process and its descendants."""
    done = threading.Event()

    def watch() -> None:
        me = psutil.Process()
        while not done.wait(_MEMORY_INTERVAL_SECONDS):
            result.peak_rss_bytes = max(result.peak_rss_bytes, rss_bytes(me))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
