"""Where every table stands: what it has consumed, how far it is behind, its last run, what is in quarantine."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache, partial
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pydantic import BaseModel
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.bronze.run import unread
from cdc_lake.config import Config
from cdc_lake.errors import CdcLakeError, DamagedFileError, IncompleteWriteError, InfrastructureError
from cdc_lake.lake.lake import BronzeTable, SilverTarget
from cdc_lake.lake.open import TABLE_FOLDERS
from cdc_lake.runs.context import LOOKS, is_elsewhere, lake_of, select_landed, silver_targets
from cdc_lake.runs.report import Report
from cdc_lake.sources import open_source
from cdc_lake.sources.logs import TopicLog, TopicSource
from cdc_lake.spark.session import build_session, lake_files
from cdc_lake.storage.files import LocalFiles, Storage
from cdc_lake.tables.contract import progress_of
from cdc_lake.tables.damage import damage_error, with_cure
from cdc_lake.tables.newest import DataFile, newest_rows, rows_where
from cdc_lake.tables.progress import BronzeProgress, SilverProgress

_UNREADABLE = (IncompleteWriteError, DamagedFileError, PySparkException, Py4JJavaError)
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
        spark: the session; made when there is none and a table cannot be looked at without.
        source: asked what the topics hold; the settings' when there is none.

    Raises:
        UnknownTableError: a name or glob fits no bronze table.
    """

    @cache
    def session() -> SparkSession:
        return spark or build_session("cdc_lake status", config.max_record_bytes)

    files = lake_files(config.lake.root, spark)
    if is_elsewhere(config, files):
        files = Storage(session())
    topics = select_landed(config, files, tables)
    source = source or open_source(config, session)
    found, logs = Status(), dict[str, TopicLog]()
    try:
        there = set(source.topics())
        logs = source.logs([topic for topic in topics if topic in there])
    except InfrastructureError as error:
        found.broker_error = str(error)
    runs = _last_runs(files, f"{config.lake.root}/_runs")
    with ThreadPoolExecutor(LOOKS) as pool:
        looked_at = list(pool.map(partial(_without_spark, config, files), topics))
    for topic, plain in zip(topics, looked_at, strict=True):
        try:
            of_topic = plain or _looked_at(config, _Spark(config, session()), topic)
        except _UNREADABLE as error:
            found.tables.append(_unreadable(topic, "bronze", error, config))
            continue
        if topic in logs:
            _compare(of_topic.tables[0], of_topic.consumed, logs[topic], source)
        found.tables += of_topic.tables
    for one in found.tables:
        one.last_run = runs.get((one.layer, one.table))
        one.last_reconcile = runs.get(("reconcile", one.table)) if one.layer == "silver" else None
    return found


class _Rows(Protocol):
    """What is counted of bronze's rows."""

    def quarantined(self) -> int:
        """Rows in quarantine."""

    def waiting(self, reached: int) -> tuple[int, int | None]:
        """Rows that silver has yet to fold, behind batch `reached`, and Kafka's time of the oldest, ms."""


class _Bronze(NamedTuple):
    """A bronze table."""

    table_id: str
    progress: BronzeProgress
    rows: _Rows


class _Reader(Protocol):
    """Reads the tables of a lake."""

    def bronze(self, topic: str) -> _Bronze:
        """A topic's bronze table."""

    def silver(self, target: SilverTarget) -> SilverProgress | None:
        """What a silver table has consumed; none if it is not there yet."""


class _NotPlainError(Exception):
    """Only Spark can tell what a table's log says."""


class _Files:
    """Reads them without Spark."""

    def __init__(self, config: Config, files: LocalFiles | Storage) -> None:
        self._config = config
        self._files = files

    def bronze(self, topic: str) -> _Bronze:
        """See `_Reader`."""
        found = newest_rows(self._files, lake_of(self._config).path("bronze", topic))
        if found is None:
            raise _NotPlainError
        newest, rows = found
        return _Bronze(newest.table_id, newest.progress, _RowsInFiles(self._files, rows))

    def silver(self, target: SilverTarget) -> SilverProgress | None:
        """See `_Reader`."""
        newest = target.newest(self._files)
        if newest is None and self._files.holds(target.path, *TABLE_FOLDERS):
            raise _NotPlainError
        return newest.progress if newest else None


class _RowsInFiles:
    """Of those files whose statistics do not rule them out."""

    def __init__(self, files: LocalFiles | Storage, rows: Sequence[DataFile]) -> None:
        self._files = files
        self._rows = rows

    def quarantined(self) -> int:
        """See `_Rows`."""
        is_quarantined = pc.field("status") == "quarantined"
        return len(rows_where(self._files, self._rows, is_quarantined, ["status"], least={"status": "quarantined"}))

    def waiting(self, reached: int) -> tuple[int, int | None]:
        """See `_Rows`."""
        is_waiting = (pc.field("batch") > reached) & (pc.field("status") == "ok")
        columns = ["batch", "status", "kafka_timestamp"]
        found = rows_where(self._files, self._rows, is_waiting, columns, least={"batch": reached + 1})
        times = found["kafka_timestamp"]
        oldest = pc.min(times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())).as_py()
        return len(times), None if oldest is None else oldest // 1000


class _Spark:
    """Reads them by Spark, which reads every log and reports damaged files."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self._config = config
        self._spark = spark

    def bronze(self, topic: str) -> _Bronze:
        """See `_Reader`."""
        table = lake_of(self._config).bronze(self._spark, topic)
        progress = progress_of(table)
        return _Bronze(table.id(), progress, _RowsBySpark(table))

    def silver(self, target: SilverTarget) -> SilverProgress | None:
        """See `_Reader`."""
        return target.open(self._spark).progress()


class _RowsBySpark:
    """Of any table."""

    def __init__(self, bronze: BronzeTable) -> None:
        self._rows = bronze.read()

    def quarantined(self) -> int:
        """See `_Rows`."""
        return self._rows.where(F.col("status") == "quarantined").count()

    def waiting(self, reached: int) -> tuple[int, int | None]:
        """See `_Rows`."""
        rows = self._rows.where((F.col("batch") > reached) & (F.col("status") == "ok"))
        number, oldest_ms = rows.agg(F.count("*"), F.min(F.unix_millis("kafka_timestamp"))).collect()[0]
        return number, oldest_ms


class _Topic(NamedTuple):
    """What a topic's tables say.

    Attributes:
        consumed: by bronze.
        tables: bronze first.
    """

    consumed: BronzeProgress
    tables: list[TableStatus]


def _without_spark(config: Config, files: LocalFiles | Storage, topic: str) -> _Topic | None:
    try:
        return _looked_at(config, _Files(config, files), topic)
    except (_NotPlainError, OSError, pa.ArrowInvalid, Py4JJavaError):
        return None  # Spark says what is wrong


def _looked_at(config: Config, reader: _Reader, topic: str) -> _Topic:
    bronze = reader.bronze(topic)
    found = TableStatus(
        table=topic,
        layer="bronze",
        commit=bronze.progress.commit,
        consumed={str(partition): offset for partition, offset in bronze.progress.position.items()},
        quarantined=bronze.rows.quarantined(),
    )
    targets = silver_targets(config, topic)
    return _Topic(bronze.progress, [found, *(_of_silver(config, reader, target, bronze) for target in targets)])


def _unreadable(table: str, layer: str, error: Exception, config: Config) -> TableStatus:
    """What is said of a table of which a file is incomplete or damaged; other errors are raised again."""
    known = error if isinstance(error, CdcLakeError) else damage_error(error, table)
    if known is None:
        raise error
    if isinstance(known, DamagedFileError):
        known = with_cure(known, config.lake.root)
    return TableStatus(table=table, layer=layer, commit=None, error=str(known))


def _of_silver(config: Config, reader: _Reader, target: SilverTarget, bronze: _Bronze) -> TableStatus:
    try:
        folded = reader.silver(target)
    except _UNREADABLE as error:
        return _unreadable(target.name, "silver", error, config)
    is_known = folded is not None and folded.is_of(bronze.table_id, bronze.progress) is not False
    reached = folded.sources[bronze.table_id] if folded and is_known else 0
    found = TableStatus(
        table=target.name, layer="silver", commit=folded.commit if folded else None, consumed={"bronze": reached}
    )
    if reached >= bronze.progress.commit:
        found.behind_records, found.behind_seconds = 0, 0.0
        return found
    found.behind_records, oldest_ms = bronze.rows.waiting(reached)
    found.behind_seconds = _seconds_since(oldest_ms)
    return found


def _compare(bronze: TableStatus, progress: BronzeProgress, log: TopicLog, source: TopicSource) -> None:
    """Say how far a bronze table is behind its topic."""
    if log.problem is not None:
        return
    left = unread(log, progress.offsets.get(log.id, {}))
    bronze.behind_records = sum(span.end - span.start for span in left.values())
    firsts = {partition: span.start for partition, span in left.items()}
    oldest = source.timestamps_ms(log.name, firsts).values() if firsts else ()
    bronze.behind_seconds = _seconds_since(min(oldest, default=None))


def _seconds_since(then_ms: int | None) -> float:
    """Seconds since a moment; 0 when there is none."""
    return 0.0 if then_ms is None else round(max(time.time() - then_ms / 1000, 0.0), 1)


def _last_runs(storage: Storage | LocalFiles, folder: str) -> Mapping[tuple[str, str], LastRun]:
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


def _reports(storage: Storage | LocalFiles, folder: str) -> Iterator[Report]:
    names = [name for name in storage.names(folder) if name.endswith(".json")]
    for name in reversed(names[-_MOST_REPORTS:]):
        yield Report.model_validate_json(storage.read_text(f"{folder}/{name}"))
