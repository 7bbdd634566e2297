"""Where every table stands: what it has consumed, how far it is behind, its last run, what is in quarantine."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset, field
from pydantic import BaseModel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.config import Config
from cdc_lake.errors import IncompleteWriteError, InfrastructureError
from cdc_lake.layers.bronze import unread
from cdc_lake.layers.run import SilverTarget, landed, select_landed, silver_targets, table_path
from cdc_lake.metrics.report import Report
from cdc_lake.session import build_session
from cdc_lake.sources import open_source
from cdc_lake.sources.logs import TopicLog, TopicSource
from cdc_lake.storage import LocalFiles, Storage
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.newest import delta_files, newest_commit
from cdc_lake.tables.progress import Progress
from cdc_lake.tables.silver import TABLE_FOLDERS

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
    look = _Look(config, spark)
    source = source or open_source(config, lambda: look.spark)
    storage = look.storage
    topics = select_landed(config, storage, tables)
    found, logs = Status(), dict[str, TopicLog]()
    try:
        there = set(source.topics())
        logs = source.logs([topic for topic in topics if topic in there])
    except InfrastructureError as error:
        found.broker_error = str(error)
    runs = _last_runs(storage, f"{config.lake.root}/_runs")
    for topic in topics:
        try:
            of_topic = list(_of_topic(look, look.bronze(topic), topic, logs.get(topic), source))
        except (OSError, pa.ArrowInvalid):  # Spark says what is wrong with the file
            of_topic = list(_of_topic(look, look.bronze_by_spark(topic), topic, logs.get(topic), source))
        found.tables += of_topic
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


class _ByArrow:
    """Of the files of a local table: Arrow skips row groups by their statistics."""

    def __init__(self, files: Sequence[str]) -> None:
        moment = pa.timestamp("us", "UTC")
        columns = pa.schema([("status", pa.string()), ("batch", pa.int64()), ("kafka_timestamp", moment)])
        self._rows = dataset(files, schema=columns, format="parquet")

    def quarantined(self) -> int:
        """See `_Rows`."""
        return int(self._rows.count_rows(filter=field("status") == "quarantined"))

    def waiting(self, reached: int) -> tuple[int, int | None]:
        """See `_Rows`."""
        is_waiting = (field("batch") > reached) & (field("status") == "ok")
        times = self._rows.to_table(columns=["kafka_timestamp"], filter=is_waiting)["kafka_timestamp"]
        oldest = pc.min(times).cast(pa.int64()).as_py()
        return len(times), None if oldest is None else oldest // 1000


class _BySpark:
    """Of any table."""

    def __init__(self, bronze: DeltaLakeTable) -> None:
        self._rows = bronze.read()

    def quarantined(self) -> int:
        """See `_Rows`."""
        return self._rows.where(F.col("status") == "quarantined").count()

    def waiting(self, reached: int) -> tuple[int, int | None]:
        """See `_Rows`."""
        rows = self._rows.where((F.col("batch") > reached) & (F.col("status") == "ok"))
        number, oldest_ms = rows.agg(F.count("*"), F.min(F.unix_millis("kafka_timestamp"))).collect()[0]
        return number, oldest_ms


class _Bronze(NamedTuple):
    """A bronze table."""

    table_id: str
    progress: Progress
    rows: _Rows


class _Look:
    """Opens tables, without Spark where that can be."""

    def __init__(self, config: Config, spark: SparkSession | None) -> None:
        self.config = config
        self._spark = spark
        self._files = LocalFiles.of(config.lake.root)

    @cached_property
    def spark(self) -> SparkSession:
        """The session."""
        return self._spark or build_session("cdc_lake status", self.config.max_record_bytes)

    @cached_property
    def storage(self) -> Storage | LocalFiles:
        """The lake's files."""
        is_here = self._files is not None and landed(self.config, self._files)
        return self._files if self._files and is_here else Storage(self.spark)

    def bronze(self, topic: str) -> _Bronze:
        """A topic's bronze table."""
        path = table_path(self.config, "bronze", topic)
        if self._files:
            newest, files = newest_commit(self._files, path, "delta"), delta_files(self._files, path)
            if newest is not None and files is not None:
                return _Bronze(newest.table_id, newest.progress, _ByArrow(files))
        return self.bronze_by_spark(topic)

    def bronze_by_spark(self, topic: str) -> _Bronze:
        """The same through Spark, which reads every log and reports damaged files."""
        table = DeltaLakeTable(self.spark, table_path(self.config, "bronze", topic))
        progress = table.progress()
        assert progress is not None, "a bronze table is created with progress"
        return _Bronze(table.id(), progress, _BySpark(table))

    def silver(self, target: SilverTarget) -> Progress | None:
        """What a silver table has consumed; none if it is not there yet."""
        if isinstance(self.storage, LocalFiles) and not self.storage.holds(target.path, *TABLE_FOLDERS):
            return None
        newest = newest_commit(self._files, target.path, target.held_in.format) if self._files else None
        return newest.progress if newest else target.open(self.spark).progress()


def _of_topic(
    look: _Look, bronze: _Bronze, topic: str, log: TopicLog | None, source: TopicSource
) -> Iterator[TableStatus]:
    yield _of_bronze(topic, bronze, log, source)
    for target in silver_targets(look.config, topic):
        try:
            yield _of_silver(target.name, bronze, look.silver(target))
        except IncompleteWriteError as error:
            yield TableStatus(table=target.name, layer="silver", commit=None, error=str(error))


def _of_bronze(topic: str, bronze: _Bronze, log: TopicLog | None, source: TopicSource) -> TableStatus:
    progress = bronze.progress
    found = TableStatus(
        table=topic,
        layer="bronze",
        commit=progress.commit,
        consumed={str(partition): offset for partition, offset in progress.position.items()},
        quarantined=bronze.rows.quarantined(),
    )
    if log is not None and log.problem is None:
        left = unread(log, progress.offsets.get(log.id, {}))
        found.behind_records = sum(span.end - span.start for span in left.values())
        firsts = {partition: span.start for partition, span in left.items()}
        oldest = source.timestamps_ms(log.name, firsts).values() if firsts else ()
        found.behind_seconds = _seconds_since(min(oldest, default=None))
    return found


def _of_silver(name: str, bronze: _Bronze, folded: Progress | None) -> TableStatus:
    is_known = folded is not None and folded.is_of(bronze.table_id, bronze.progress) is not False
    reached = folded.sources[bronze.table_id] if folded and is_known else 0
    found = TableStatus(
        table=name, layer="silver", commit=folded.commit if folded else None, consumed={"bronze": reached}
    )
    if reached >= bronze.progress.commit:
        found.behind_records, found.behind_seconds = 0, 0.0
        return found
    found.behind_records, oldest_ms = bronze.rows.waiting(reached)
    found.behind_seconds = _seconds_since(oldest_ms)
    return found


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
