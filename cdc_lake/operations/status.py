"""The status of every table: position, lag, last run and number of quarantined records."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache, partial

from py4j.protocol import Py4JJavaError
from pydantic import BaseModel
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_lake.bronze.offsets import unread
from cdc_lake.config import Config
from cdc_lake.errors import CdcLakeError, DamagedFileError, IncompleteWriteError
from cdc_lake.lake.lake import Lake, SilverTarget
from cdc_lake.lake.readers import BronzeState, FilesReader, Reader, SparkReader, without_spark
from cdc_lake.runs.context import PARALLEL_READS, lake_of, latest_reports, needs_hadoop, select_landed
from cdc_lake.runs.report import Freshness, Report
from cdc_lake.runs.servers import SourceView
from cdc_lake.sources.logs import TopicLog, TopicSource, count_offsets
from cdc_lake.spark.session import build_session, hadoop, lake_files
from cdc_lake.storage.hadoop import Storage
from cdc_lake.tables.damage import damage_error, with_cure
from cdc_lake.tables.progress import BronzeProgress

_UNREADABLE = (IncompleteWriteError, DamagedFileError, PySparkException, Py4JJavaError)
_MAX_REPORTS = 500
"""How many of the latest reports are searched for the last run of a table."""


class LastRun(BaseModel):
    """A run's outcome for a table.

    Attributes:
        status: as in its report.
        error: why it failed.
    """

    run_id: str
    started_at: datetime
    status: str
    error: str | None = None


class TableStatus(BaseModel):
    """The status of one table of a layer.

    Attributes:
        commit: its last commit number; None if the table does not exist.
        consumed: bronze: `{partition: next offset}`; silver: `{bronze: batch}`.
        behind_records: records not yet processed. For bronze, a difference of offsets, some of which may not exist;
            None if Kafka does not respond.
        behind_seconds: the age of the oldest of them in Kafka.
        quarantined: the number of quarantined rows; bronze only.
        freshness: the freshness of the last run that committed changes; silver only.
        last_reconcile: the last comparison with the source; silver only.
        error: why the table cannot be read.
    """

    table: str
    layer: str
    commit: int | None
    consumed: dict[str, int] = {}
    behind_records: int | None = None
    behind_seconds: float | None = None
    quarantined: int | None = None
    freshness: Freshness | None = None
    last_run: LastRun | None = None
    last_reconcile: LastRun | None = None
    error: str | None = None


class Status(BaseModel):
    """The status of several tables.

    Attributes:
        broker_error: why Kafka's offsets are unknown.
    """

    tables: list[TableStatus] = []
    broker_error: str | None = None


def status(
    config: Config, tables: Sequence[str], spark: SparkSession | None = None, *, source: TopicSource | None = None
) -> Status:
    """The status of tables. Writes nothing.

    Args:
        tables: topic names or globs.
        spark: the session (default: a new one, if a table cannot be read without Spark).
        source: where the topics are (default: that of the settings).

    Raises:
        UnknownTableError: a name or glob matches no bronze table.
        CdcLakeError: there is no bronze table, and the source does not respond.
    """

    @cache
    def session() -> SparkSession:
        return spark or build_session("cdc_lake status", config.max_record_bytes)

    lake = lake_of(config)
    files = lake_files(lake.root, spark)
    if needs_hadoop(lake, files):
        files = Storage.of(*hadoop(spark))
    view = SourceView.of(config, session, source)
    if view.error and not lake.names(files):
        what = f"{view.error.what}, and there is no table in {lake.folder('bronze')} yet"
        raise type(view.error)(view.error.where, what, view.error.todo)
    topics = select_landed(lake, files, tables)
    lake_status, logs = Status(), view.logs(topics)
    lake_status.broker_error = str(view.error) if view.error else None
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        plain = FilesReader(lake, files)
        read = list(pool.map(lambda topic: without_spark(partial(read_topic, lake, plain, topic)), topics))
    for topic, known in zip(topics, read, strict=True):
        try:
            consumed, of_topic = known[0] if known else read_topic(lake, SparkReader(lake, session()), topic)
        except _UNREADABLE as error:
            lake_status.tables.append(_unreadable_status(lake, "bronze", topic, error))
            continue
        if view.source is not None and topic in logs:
            _add_lag(of_topic[0], consumed, logs[topic], view.source)
        lake_status.tables += of_topic
    add_last_runs(lake_status.tables, latest_reports(files, lake, _MAX_REPORTS))
    return lake_status


def read_topic(lake: Lake, reader: Reader, topic: str) -> tuple[BronzeProgress, list[TableStatus]]:
    """Bronze's progress, and the status of the topic's tables, bronze first."""
    bronze = reader.bronze(topic)
    bronze_status = TableStatus(
        table=topic,
        layer="bronze",
        commit=bronze.progress.commit,
        consumed={str(partition): offset for partition, offset in bronze.progress.position.items()},
        quarantined=bronze.rows.quarantined(),
    )
    silver = [_silver_status(lake, reader, target, bronze) for target in lake.silver(topic)]
    return bronze.progress, [bronze_status, *silver]


def _unreadable_status(lake: Lake, layer: str, table: str, error: Exception) -> TableStatus:
    """The status of a table with an incomplete or damaged file. Raises other errors again."""
    known = error if isinstance(error, CdcLakeError) else damage_error(error, table)
    if known is None:
        raise error
    if isinstance(known, DamagedFileError):
        known = with_cure(known, lake.root)
    return TableStatus(table=table, layer=layer, commit=None, error=str(known))


def _silver_status(lake: Lake, reader: Reader, target: SilverTarget, bronze: BronzeState) -> TableStatus:
    try:
        folded = reader.silver(target)
    except _UNREADABLE as error:
        return _unreadable_status(lake, "silver", target.name, error)
    is_known = folded is not None and folded.is_of(bronze.table_id, bronze.progress) is not False
    reached = folded.sources[bronze.table_id] if folded and is_known else 0
    silver_status = TableStatus(
        table=target.name, layer="silver", commit=folded.commit if folded else None, consumed={"bronze": reached}
    )
    if reached >= bronze.progress.commit:
        silver_status.behind_records, silver_status.behind_seconds = 0, 0.0
        return silver_status
    silver_status.behind_records, oldest_ms = bronze.rows.waiting(reached)
    silver_status.behind_seconds = _seconds_since(oldest_ms)
    return silver_status


def _add_lag(bronze: TableStatus, progress: BronzeProgress, log: TopicLog, source: TopicSource) -> None:
    if log.problem is not None:
        return
    left = unread(log, progress.offsets.get(log.id, {}))
    bronze.behind_records = count_offsets(left)
    firsts = {partition: span.start for partition, span in left.items()}
    oldest = source.timestamps_ms(log.name, firsts).values() if firsts else ()
    bronze.behind_seconds = _seconds_since(min(oldest, default=None))


def _seconds_since(then_ms: int | None) -> float:
    """Seconds since a time; 0 without a time."""
    return 0.0 if then_ms is None else round(max(time.time() - then_ms / 1000, 0.0), 1)


def add_last_runs(tables: Iterable[TableStatus], reports: Iterable[Report]) -> None:
    """Add the last runs and the last freshness to the status of tables.

    Args:
        reports: the latest, newest first.
    """
    runs, freshness = dict[tuple[str, str], LastRun](), dict[str, Freshness]()
    for report in reports:
        for done in report.tables:
            last = LastRun(
                run_id=report.run_id,
                started_at=report.started_at,
                status=done.status,
                error=done.error.message if done.error else None,
            )
            runs.setdefault((report.layer, done.table), last)
            if done.freshness:
                freshness.setdefault(done.table, done.freshness)
    for table in tables:
        table.last_run = runs.get((table.layer, table.table))
        if table.layer == "silver":
            table.freshness = freshness.get(table.table)
            table.last_reconcile = runs.get(("reconcile", table.table))
