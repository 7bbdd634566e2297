"""Facts about tables and their state, read from their files without Spark if possible, otherwise with Spark."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import KAFKA, REJECTED_ENTRY, REJECTED_STAGE
from cdc_lake.config import StorageConfig
from cdc_lake.config.gold_models import Header
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.lake import TABLE_FOLDERS, BronzeTable, Lake, SilverTarget
from cdc_lake.storage.files import Files
from cdc_lake.tables.contract import P, Table, progress_of
from cdc_lake.tables.newest import DataFile, Newest, newest_rows, newest_schema, rows_at, rows_where
from cdc_lake.tables.progress import BronzeProgress, GoldProgress, SilverProgress

T = TypeVar("T")

_LOG_ORDER = ("batch", "log_ts", "partition", "offset")
_NEAR_BATCHES = 16
"""The latest value schema is first searched in this many of bronze's latest batches."""


class NeedsSparkError(Exception):
    """Only Spark can read the table: another program wrote the latest commit, or a file is damaged."""


def without_spark(read: Callable[[], T]) -> tuple[T] | None:
    """The result of `read` in a tuple; None if Spark must read the table, or report its damage."""
    try:
        return (read(),)
    except (NeedsSparkError, OSError, pa.ArrowInvalid, Py4JJavaError):
        return None


Event = tuple[int, int, int]
"""The generation, the partition and the offset of a record."""


class BronzeRows(Protocol):
    def quarantined(self) -> int:
        """The number of quarantined rows."""

    def dropped_events(self) -> set[Event]:
        """The events that silver rejected and that were then dropped."""

    def waiting(self, reached: int) -> tuple[int, int | None]:
        """The number of `ok` rows in batches after `reached`, and their oldest Kafka timestamp, ms."""

    def latest_value_schema(self, commit: int) -> str | None:
        """The fingerprint of the last value's schema in log order; None if no row has one.

        Args:
            commit: the table's latest.
        """


class BronzeState(NamedTuple):
    """A bronze table at its latest commit."""

    table_id: str
    progress: BronzeProgress
    rows: BronzeRows


class TableCommit(NamedTuple, Generic[P]):
    """The newest commit of a silver or gold table."""

    table_id: str
    progress: P


class Columns(NamedTuple):
    """The columns of a table, and its partitions by the names of their folders."""

    schema: StructType
    partitions: Sequence[str]


class Reader(Protocol):
    def bronze(self, topic: str) -> BronzeState:
        """The bronze table of a topic."""

    def silver(self, target: SilverTarget) -> TableCommit[SilverProgress] | None:
        """The newest commit of a silver table; None if the table does not exist."""

    def rejected(self, target: SilverTarget, progress: SilverProgress) -> set[Event]:
        """The events that a silver table has rejected, without replayed ones that it accepted."""

    def gold(self, model: str, stored_in: StorageConfig) -> TableCommit[GoldProgress] | None:
        """The newest commit of a gold table; None if the table does not exist."""

    def columns(self, path: str, format: str, open: Callable[[SparkSession], Table[Any]]) -> Columns | None:
        """The columns of a table of any layer; None if the table does not exist."""


class FilesReader:
    """Reads without Spark. Raises `NeedsSparkError` if only Spark can."""

    def __init__(self, lake: Lake, files: Files) -> None:
        self._lake = lake
        self._files = files

    def bronze(self, topic: str) -> BronzeState:
        latest = newest_rows(self._files, self._lake.path("bronze", topic))
        if latest is None:
            raise NeedsSparkError
        newest, rows = latest
        return BronzeState(newest.table_id, newest.progress, _RowsInFiles(self._files, rows))

    def silver(self, target: SilverTarget) -> TableCommit[SilverProgress] | None:
        return self._commit(target.newest(self._files), target.path)

    def rejected(self, target: SilverTarget, progress: SilverProgress) -> set[Event]:
        pin = progress.side
        if pin is None or REJECTED_ENTRY not in pin.kinds:
            return set()
        entries = rows_at(self._files, target.side, pin.version)
        if entries is None:
            raise NeedsSparkError
        is_rejected = pc.field("kind") == REJECTED_ENTRY
        rows = rows_where(self._files, entries, is_rejected, ["kind", KAFKA], least={"kind": REJECTED_ENTRY})
        return {_event(position) for position in rows[KAFKA].to_pylist()}

    def gold(self, model: str, stored_in: StorageConfig) -> TableCommit[GoldProgress] | None:
        return self._commit(self._lake.newest_gold(self._files, model, stored_in), self._lake.path("gold", model))

    def _commit(self, newest: Newest[P] | None, path: str) -> TableCommit[P] | None:
        if newest is None and self._files.holds(path, *TABLE_FOLDERS):
            raise NeedsSparkError
        return TableCommit(newest.table_id, newest.progress) if newest else None

    def columns(self, path: str, format: str, open: Callable[[SparkSession], Table[Any]]) -> Columns | None:
        """See `Reader`. Hudi's commits have Avro types, which only Spark converts to column types."""
        schema = newest_schema(self._files, path) if format == "delta" else None
        if schema is None and self._files.holds(path, *TABLE_FOLDERS):
            raise NeedsSparkError
        return Columns(schema, ()) if schema else None


class _RowsInFiles:
    """Reads data files, except those that their statistics exclude."""

    def __init__(self, files: Files, rows: Sequence[DataFile]) -> None:
        self._files = files
        self._rows = rows

    def quarantined(self) -> int:
        is_quarantined = pc.field("status") == "quarantined"
        return len(rows_where(self._files, self._rows, is_quarantined, ["status"], least={"status": "quarantined"}))

    def dropped_events(self) -> set[Event]:
        is_dropped, status = pc.field("status") == "dropped", {"status": "dropped"}
        columns = ["status", "error", "generation", "partition", "offset"]
        rows = rows_where(self._files, self._rows, is_dropped, columns, least=status, most=status)
        return {_event(row) for row in rows.to_pylist() if row["error"]["stage"] == REJECTED_STAGE}

    def waiting(self, reached: int) -> tuple[int, int | None]:
        is_waiting = (pc.field("batch") > reached) & (pc.field("status") == "ok")
        columns = ["batch", "status", "kafka_timestamp"]
        rows = rows_where(self._files, self._rows, is_waiting, columns, least={"batch": reached + 1})
        times = rows["kafka_timestamp"]
        oldest = pc.min(times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())).as_py()
        return len(times), None if oldest is None else oldest // 1000

    def latest_value_schema(self, commit: int) -> str | None:
        columns = ["status", "value_schema", *_LOG_ORDER]
        for since in (commit - _NEAR_BATCHES, 0):
            is_of_row = (pc.field("status") == "ok") & pc.field("value_schema").is_valid() & (pc.field("batch") > since)
            rows = rows_where(self._files, self._rows, is_of_row, columns, least={"batch": since + 1})
            if rows:
                latest_first = rows.sort_by([(name, "descending") for name in _LOG_ORDER])
                fingerprint: str = latest_first["value_schema"][0].as_py()
                return fingerprint
        return None


class SparkReader:
    """Reads with Spark, which reads every log and reports damaged files."""

    def __init__(self, lake: Lake, spark: SparkSession) -> None:
        self._lake = lake
        self._spark = spark

    def bronze(self, topic: str) -> BronzeState:
        table = self._lake.bronze(self._spark, topic)
        progress = progress_of(table)
        return BronzeState(table.id(), progress, _RowsBySpark(table))

    def silver(self, target: SilverTarget) -> TableCommit[SilverProgress] | None:
        return _commit_of(target.open(self._spark))

    def rejected(self, target: SilverTarget, progress: SilverProgress) -> set[Event]:
        if progress.side is None or REJECTED_ENTRY not in progress.side.kinds:
            return set()
        entries = target.open_side(self._spark).read(progress.side).where(F.col("kind") == REJECTED_ENTRY)
        return {_event(row[KAFKA].asDict()) for row in entries.select(KAFKA).collect()}

    def gold(self, model: str, stored_in: StorageConfig) -> TableCommit[GoldProgress] | None:
        return _commit_of(self._lake.gold(self._spark, model, stored_in))

    def columns(self, path: str, format: str, open: Callable[[SparkSession], Table[Any]]) -> Columns | None:
        table = open(self._spark)
        return Columns(table.schema(), table.partition_folders()) if table.exists() else None


def _commit_of(table: Table[P]) -> TableCommit[P] | None:
    progress = table.progress()
    return TableCommit(table.id(), progress) if progress else None


def _event(row: Mapping[str, Any]) -> Event:
    return row["generation"], row["partition"], row["offset"]


class _RowsBySpark:
    def __init__(self, bronze: BronzeTable) -> None:
        self._rows = bronze.read()

    def quarantined(self) -> int:
        return self._rows.where(F.col("status") == "quarantined").count()

    def dropped_events(self) -> set[Event]:
        is_dropped = (F.col("status") == "dropped") & (F.col("error.stage") == REJECTED_STAGE)
        rows = self._rows.where(is_dropped).select("generation", "partition", "offset")
        return {_event(row.asDict()) for row in rows.collect()}

    def waiting(self, reached: int) -> tuple[int, int | None]:
        rows = self._rows.where((F.col("batch") > reached) & (F.col("status") == "ok"))
        number, oldest_ms = rows.agg(F.count("*"), F.min(F.unix_millis("kafka_timestamp"))).collect()[0]
        return number, oldest_ms

    def latest_value_schema(self, commit: int) -> str | None:
        rows = self._rows.where((F.col("status") == "ok") & F.col("value_schema").isNotNull())
        latest = F.max_by("value_schema", F.struct(*_LOG_ORDER))
        for since in (commit - _NEAR_BATCHES, 0):
            fingerprint: str | None = rows.where(F.col("batch") > since).agg(latest).collect()[0][0]
            if fingerprint is not None:
                return fingerprint
        return None


class TableState(NamedTuple):
    """The state of a table at its newest commit.

    Attributes:
        commit: the number of the commit; None if the table does not exist.
        consumed: as in a run report; of silver `{"bronze": batch}`.
        behind_records: silver: the records of bronze that it has not merged. None for other layers.
        behind_seconds: the age of the oldest change in the layer below that the table lacks; 0 if it lacks none. For
            silver since the record's time in Kafka, for gold since silver's commit. None for bronze, or if unknown.
        quarantined: bronze: the quarantined records; silver: the events that it rejected. Replayed and dropped ones do
            not count; rejected events count until silver's next run. None for gold, and without a table.
    """

    commit: int | None = None
    consumed: Mapping[str, int] = {}
    behind_records: int | None = None
    behind_seconds: float | None = None
    quarantined: int | None = None


def bronze_state(bronze: BronzeState) -> TableState:
    position = {str(partition): offset for partition, offset in bronze.progress.position.items()}
    return TableState(bronze.progress.commit, position, quarantined=bronze.rows.quarantined())


def silver_state(reader: Reader, target: SilverTarget, bronze: BronzeState) -> TableState:
    silver = reader.silver(target)
    progress = silver.progress if silver else None
    is_known = progress is not None and progress.is_of(bronze.table_id, bronze.progress) is not False
    reached = progress.sources[bronze.table_id] if progress and is_known else 0
    behind: tuple[int, int | None] = (0, None)
    if reached < bronze.progress.commit:
        behind = bronze.rows.waiting(reached)
    quarantined = None
    if progress:
        rejected = reader.rejected(target, progress)
        quarantined = len(rejected - bronze.rows.dropped_events()) if rejected else 0
    return TableState(
        commit=progress.commit if progress else None,
        consumed={"bronze": reached},
        behind_records=behind[0],
        behind_seconds=seconds_since(behind[1]),
        quarantined=quarantined,
    )


def gold_state(lake: Lake, reader: Reader, files: Files, model: Header) -> TableState:
    gold = reader.gold(model.name, model.table)
    if gold is None:
        return TableState()
    missed_ms = list[int | None]()
    for target in (lake.silver(topic)[0] for topic in model.topics.values()):
        try:
            silver = reader.silver(target)
        except (CdcLakeError, PySparkException, Py4JJavaError):  # the error is silver's, not gold's
            return TableState(gold.progress.commit, gold.progress.sources)
        if silver and gold.progress.sources.get(silver.table_id) != silver.progress.commit:
            read = gold.progress.versions.get(silver.table_id, -1)
            missed_ms.append(target.commit_ms_after(files, read))
    known_ms = [at_ms for at_ms in missed_ms if at_ms is not None]
    is_known = len(known_ms) == len(missed_ms)  # there is no later commit if silver was restored
    behind = seconds_since(min(known_ms, default=None)) if is_known else None
    return TableState(gold.progress.commit, gold.progress.sources, behind_seconds=behind)


def seconds_since(then_ms: int | None) -> float:
    """Seconds since a time; 0 without a time."""
    return 0.0 if then_ms is None else round(max(time.time() - then_ms / 1000, 0.0), 1)
