"""The demo: run Postgres -> Debezium -> Kafka -> bronze -> silver -> gold, and compare the result with Postgres.

The source (source.py) changes while the jobs (jobs.py) run. Afterwards proof.py compares every row.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from cdc_lake.config import TableType
from cdc_lake.demo import sample
from cdc_lake.demo.jobs import Jobs, Platform, this_machine
from cdc_lake.demo.proof import prove
from cdc_lake.demo.result import DemoResult
from cdc_lake.demo.source import Source, check_sample_globs, dump_source, sample_source, with_tables
from cdc_lake.demo.workload import changing
from cdc_lake.embedded.connectors import check_connector, postgres_connector_config, put_connector
from cdc_lake.embedded.stack import Stack, rss_bytes
from cdc_lake.errors import ConfigError
from cdc_lake.spark.jars import EMBEDDED_PROFILE, cache_folder, lock_file, read_lock, require
from cdc_lake.spark.versions import profile_name

_SEED: Final = 1
_MARKER = "made-by-cdc-lake-demo"
_SENT_SECONDS = 120.0
_MEMORY_INTERVAL_SECONDS = 0.5

Say = Callable[[str], None]


def run_demo(
    folder: Path,
    *,
    dumps: Sequence[Path] = (),
    tables: Sequence[str] = (),
    table_type: TableType = "delta",
    platform: Platform | None = None,
    keep: bool,
    say: Say,
) -> DemoResult:
    """Run the demo in `folder`, which it empties first.

    Args:
        folder: for the servers and the lake.
        dumps: files of `pg_dump`, in any of its formats, to load instead of the sample.
        tables: globs of the topics to replicate; default: all.
        table_type: silver's table type.
        platform: the Spark that runs the jobs; default: this machine's.
        keep: leave the servers running.
        say: called with each step.

    Raises:
        ConfigError: the folder has other files, a dump cannot be loaded, or a table does not exist.
        InstallationError: a jar is missing or damaged.
        InfrastructureError: a server or connector does not start.
        CdcLakeError: a job failed.
    """
    started = time.monotonic()
    if not dumps:  # a dump's tables are not known before it is loaded
        check_sample_globs(tables)
    for profile in (profile_name(), EMBEDDED_PROFILE):
        require(read_lock(lock_file(profile)), cache_folder())
    stack, lake = Stack(folder / "stack"), folder / "lake"
    _empty(folder, stack, lake)
    result = DemoResult()
    with _peak_memory(result):
        say("starting Postgres, Kafka, Apicurio Registry and Kafka Connect with Debezium")
        with result.part("start"):
            stack.start(detach=False)
        try:
            say(f"loading {', '.join(path.name for path in dumps) or 'the sample'}")
            postgres = stack.endpoints["postgres"]
            with result.part("load"):
                source = dump_source(postgres, dumps) if dumps else sample_source(postgres)
                source = with_tables(source, tables) if tables else source
            result.source, result.left_out, result.skipped = source.name, dict(source.left_out), dict(source.skipped)
            platform = platform or this_machine()
            jobs = Jobs(platform, stack, platform.lake or str(lake), table_type)
            _run_jobs(source, jobs, stack, result, say)
            say("comparing the tables with Postgres and Kafka")
            with result.part("compare"):
                platform.download(lake)
                prove(source, stack.endpoints, lake, jobs.seconds, result, say)
            if keep:
                stack.detach()
        finally:
            if not keep:
                stack.stop()
    result.seconds = round(time.monotonic() - started, 1)
    return result


def _run_jobs(source: Source, jobs: Jobs, stack: Stack, result: DemoResult, say: Say) -> None:
    """Run the jobs while the source changes, and again when it no longer does."""
    connector = postgres_connector_config(
        stack.endpoints,
        database=source.name,
        topic_prefix=source.name,
        tables=[table.place for table in source.tables],
        envelope_tables=source.envelope_tables,
        signal_table=source.signal_table,
    )
    connect = stack.endpoints["connect"]
    put_connector(connect, source.name, connector)
    wait = partial(
        sample.wait_until_sent,
        source.dsn,
        source.name,
        _SENT_SECONDS,
        check=partial(check_connector, connect, source.name),
    )
    with changing(source.dsn, source.changes_to, seed=_SEED, at_least=source.transactions) as done:
        with result.part("snapshot"):
            wait()
        _run_layers(source, jobs, result, say, "{}", "while the tables change")
    result.transactions = done.total()
    with result.part("rest"):
        wait(signal_table=source.signal_table)
    _run_layers(source, jobs, result, say, "{} again", f"after {result.transactions} transactions")


def _run_layers(source: Source, jobs: Jobs, result: DemoResult, say: Say, part: str, when: str) -> None:
    """Run the job of each layer once; `part` makes the part's name in the result from the layer's."""
    models = [flag for model in source.gold for flag in ("--model", model)]
    tables = ["--table", source.pattern]
    for layer, flags in (("bronze", tables), ("silver", tables), ("gold", models)):
        if flags:
            say(f"the {layer} job, {when}")
            with result.part(part.format(layer)):
                jobs.submit(layer, *flags)


def _empty(folder: Path, stack: Stack, lake: Path) -> None:
    """Empty the folder, unless it has files that the demo did not create."""
    marker = folder / _MARKER
    if not marker.exists():
        if lake.exists() or stack.folder.exists():
            raise ConfigError(
                str(folder), "it contains servers or tables that the demo did not create", "use another --folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
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
