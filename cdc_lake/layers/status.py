"""Where every table stands: what it has consumed, how far it is behind, its last run, what is in quarantine."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from pydantic import BaseModel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.config import Config
from cdc_lake.errors import IncompleteWriteError, InfrastructureError
from cdc_lake.layers.bronze import unread
from cdc_lake.layers.run import select_landed, silver_targets, table_path
from cdc_lake.metrics.report import Report
from cdc_lake.session import build_session
from cdc_lake.sources import open_source
from cdc_lake.sources.logs import TopicLog, TopicSource
from cdc_lake.storage import Storage
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Progress

_MOST_REPORTS = 500
"""A table's last run is looked for in so many of the newest reports."""


class LastRun(BaseModel):
    """A run's outcome for a table.

    Attributes:
        status: as in its report.
        error: what it failed of.
    """

    run_id: str
    started_at: datetime
    status: str
    error: str | None = None


class TableStatus(BaseModel):
    """Where a table of a layer stands.

    Attributes:
        table: topic name.
        commit: its own last commit number; none when it has not been created.
        consumed: bronze: `{partition: next offset}`; silver: `{bronze: batch}`.
        behind_records: records that are there for it and not in it; bronze's are a difference of offsets, which may
            have holes. None when Kafka does not answer.
        behind_seconds: since the oldest of them was written to Kafka.
        quarantined: bronze's rows in quarantine.
        last_reconcile: silver's last comparison with the source.
        error: why nothing more is known of it.
    """

    table: str
    layer: str
    commit: int | None
    consumed: dict[str, int] = {}
    behind_records: int | None = None
    behind_seconds: float | None = None
    quarantined: int | None = None
    last_run: LastRun | None = None
    last_reconcile: LastRun | None = None
    error: str | None = None


class Status(BaseModel):
    """Where the tables stand.

    Attributes:
        broker_error: why nothing is known of what Kafka holds.
    """

    tables: list[TableStatus] = []
    broker_error: str | None = None


def status(
    config: Config, tables: Sequence[str], spark: SparkSession | None = None, *, source: TopicSource | None = None
) -> Status:
    """Look at the tables; nothing is written.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session; made when there is none.
        source: asked what the topics hold; the settings' when there is none.

    Raises:
        UnknownTableError: a name or glob fits no bronze table.
    """
    source = source or open_source(config, lambda: session)
    session = spark = spark or build_session("cdc_lake status", config.max_record_bytes)
    storage = Storage(spark)
    topics = select_landed(config, storage, tables)
    found, logs = Status(), dict[str, TopicLog]()
    try:
        there = set(source.topics())
        logs = source.logs([topic for topic in topics if topic in there])
    except InfrastructureError as error:
        found.broker_error = str(error)
    runs = _last_runs(storage, f"{config.lake.root}/_runs")
    for topic in topics:
        bronze = DeltaLakeTable(spark, table_path(config, "bronze", topic))
        landed = bronze.progress()
        assert landed is not None, "a bronze table is created with progress"
        found.tables.append(_of_bronze(topic, bronze, landed, logs.get(topic), source))
        for target in silver_targets(config, topic):
            try:
                found.tables.append(_of_silver(target.name, bronze, landed, target.open(spark).progress()))
            except IncompleteWriteError as error:
                found.tables.append(TableStatus(table=target.name, layer="silver", commit=None, error=str(error)))
    for one in found.tables:
        one.last_run = runs.get((one.layer, one.table))
        one.last_reconcile = runs.get(("reconcile", one.table)) if one.layer == "silver" else None
    return found


def _of_bronze(
    topic: str, bronze: DeltaLakeTable, landed: Progress, log: TopicLog | None, source: TopicSource
) -> TableStatus:
    quarantined = bronze.read().where(F.col("status") == "quarantined").count()
    found = TableStatus(
        table=topic,
        layer="bronze",
        commit=landed.commit,
        consumed={str(partition): offset for partition, offset in landed.position.items()},
        quarantined=quarantined,
    )
    if log is not None and log.problem is None:
        left = unread(log, landed.offsets.get(log.id, {}))
        found.behind_records = sum(span.end - span.start for span in left.values())
        firsts = {partition: span.start for partition, span in left.items()}
        oldest = source.timestamps_ms(log.name, firsts).values() if firsts else ()
        found.behind_seconds = _seconds_since(min(oldest, default=None))
    return found


def _of_silver(name: str, bronze: DeltaLakeTable, landed: Progress, folded: Progress | None) -> TableStatus:
    source = bronze.id()
    reached = folded.sources.get(source, 0) if folded else 0
    found = TableStatus(
        table=name, layer="silver", commit=folded.commit if folded else None, consumed={"bronze": reached}
    )
    if reached >= landed.commit:
        found.behind_records, found.behind_seconds = 0, 0.0
        return found
    waiting = bronze.read().where((F.col("batch") > reached) & (F.col("status") == "ok"))
    behind = waiting.agg(F.count("*"), F.min(F.unix_millis("kafka_timestamp"))).collect()[0]
    found.behind_records, found.behind_seconds = behind[0], _seconds_since(behind[1])
    return found


def _seconds_since(then_ms: int | None) -> float:
    """Seconds since a moment; 0 when there is none."""
    return 0.0 if then_ms is None else round(max(time.time() - then_ms / 1000, 0.0), 1)


def _last_runs(storage: Storage, folder: str) -> Mapping[tuple[str, str], LastRun]:
    """By layer and table, from the newest reports."""
    found: dict[tuple[str, str], LastRun] = {}
    for report in _reports(storage, folder):
        for done in report.tables:
            last = LastRun(
                run_id=report.run_id,
                started_at=report.started_at,
                status=done.status,
                error=done.error.message if done.error else None,
            )
            found.setdefault((report.layer, done.table), last)
    return found


def _reports(storage: Storage, folder: str) -> Iterator[Report]:
    names = [name for name in storage.names(folder) if name.endswith(".json")]
    for name in reversed(names[-_MOST_REPORTS:]):
        yield Report.model_validate_json(storage.read_text(f"{folder}/{name}"))
