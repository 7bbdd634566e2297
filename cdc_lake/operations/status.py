"""The status of every table: position, lag, last run and number of quarantined records.

docs/reference/status.md is generated from this file, as docs/reference/report.md is from `cdc_lake.runs.report`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Self

from py4j.protocol import Py4JJavaError
from pydantic import BaseModel
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_lake.bronze.topic_run import unread
from cdc_lake.config import Config
from cdc_lake.errors import CdcLakeError, DamagedFileError
from cdc_lake.lake.lake import Lake, topic_of
from cdc_lake.lake.readers import (
    FilesReader,
    Reader,
    SparkReader,
    TableState,
    bronze_state,
    gold_state,
    seconds_since,
    silver_state,
    without_spark,
)
from cdc_lake.runs.context import PARALLEL_READS, files_of, lake_of, latest_reports, model_header, select
from cdc_lake.runs.report import Freshness, Report, ReportedError
from cdc_lake.runs.servers import SourceView
from cdc_lake.sources.logs import TopicLog, TopicSource, count_offsets
from cdc_lake.spark.session import build_session
from cdc_lake.storage.files import Files
from cdc_lake.tables.damage import damage_error, with_cure
from cdc_lake.tables.progress import BronzeProgress

_UNREADABLE = (CdcLakeError, PySparkException, Py4JJavaError)
"""Errors of one table, which do not hide the others."""
_MAX_REPORTS = 500
"""How many of the latest reports are searched for the last run of a table."""
_LAYERS = ("bronze", "silver", "gold")


class LastRun(BaseModel):
    """The outcome of a run, as a whole or for a table.

    Attributes:
        layer: The layer or the command, as in the run's report.
        run_id: The id of the run.
        started_at: When the run began, in UTC.
        ended_at: When the run ended, in UTC.
        status: As in the run's report; `failed` for a run that ended before its tables started.
        code: The code of the error (docs/reference/errors.md); null if it did not fail.
        error: Where the error is, what is wrong, and what to do; null if it did not fail.
    """

    layer: str
    run_id: str
    started_at: datetime
    ended_at: datetime | None
    status: str
    code: str | None = None
    error: str | None = None

    @classmethod
    def of(cls, report: Report, status: str, error: ReportedError | None) -> Self:
        return cls(
            layer=report.layer,
            run_id=report.run_id,
            started_at=report.started_at,
            ended_at=report.ended_at,
            status=status,
            code=error.code if error else None,
            error=error.message if error else None,
        )


class TableStatus(BaseModel):
    """The status of one table.

    Attributes:
        table: The topic or the gold model. If a topic has several silver tables, all but the first are
            `<topic>@<format>`.
        layer: `bronze`, `silver` or `gold`.
        commit: The number of cdc_lake's last commit; null if the table does not exist.
        consumed: What the table has read. Bronze: the next offset, by partition. Silver: the last merged batch of
            `bronze`. Gold: the last commit that was read, by silver table ID.
        behind_records (bronze, silver; records): How many records of Kafka or bronze the table lacks. For bronze, a
            difference of offsets, some of which may not exist. Null if Kafka does not respond.
        behind_seconds (all; seconds): The age of the oldest change in the layer below that the table lacks; 0 if it
            lacks none, null if it is unknown. For bronze and silver, the age of the record in Kafka; for gold, the age
            of silver's commit.
        lag_seconds (all; seconds): The age of the oldest change in Kafka that the table lacks, including what the
            layers below lack; null if it is unknown. `--max-lag` compares it.
        quarantined (bronze, silver; records): Bronze: the quarantined records. Silver: the events that it rejected.
            Replayed and dropped ones do not count.
        freshness (silver): The freshness of the last run that committed changes.
        last_run: The last run that processed the table, of the latest 500 reports.
        last_reconcile (silver): The last comparison with the source.
        error: Why the table cannot be read.
    """

    table: str
    layer: str
    commit: int | None
    consumed: dict[str, int] = {}
    behind_records: int | None = None
    behind_seconds: float | None = None
    lag_seconds: float | None = None
    quarantined: int | None = None
    freshness: Freshness | None = None
    last_run: LastRun | None = None
    last_reconcile: LastRun | None = None
    error: str | None = None

    @property
    def is_failed(self) -> bool:
        """Whether it cannot be read, or its last run failed."""
        return bool(self.error or (self.last_run and self.last_run.status == "failed"))

    def is_late(self, max_lag: float) -> bool:
        """Whether its lag is above this number of seconds, or unknown. Tables that no run has created are not late."""
        is_there = self.commit is not None or self.is_failed
        return is_there and (self.lag_seconds is None or self.lag_seconds > max_lag)


class Status(BaseModel):
    """The status of several tables.

    Attributes:
        tables: The tables: bronze and silver topic by topic, then gold.
        failed_runs: The latest run of each layer or command, if it ended before its tables started.
        broker_error: Why Kafka's offsets are unknown; null if they are known.
    """

    tables: list[TableStatus] = []
    failed_runs: list[LastRun] = []
    broker_error: str | None = None


def status(
    config: Config, tables: Sequence[str], spark: SparkSession | None = None, *, source: TopicSource | None = None
) -> Status:
    """The status of tables. Writes nothing.

    Args:
        tables: names or globs of topics and gold models.
        spark: the session (default: a new one, if a table cannot be read without Spark).

    Raises:
        UnknownTableError: a name or glob matches no table.
        CdcLakeError: there is no table, and the source does not respond.
    """

    @cache
    def session() -> SparkSession:
        return spark or build_session("cdc_lake status", config.max_record_bytes)

    lake = lake_of(config)
    files = files_of(lake, spark)
    view = SourceView.of(config, session, source)
    runs = LatestRuns.of(latest_reports(files, lake, _MAX_REPORTS))
    landed, gold = lake.names(files), lake.names(files, "gold")
    names = sorted({*landed, *gold, *runs.failing})
    if view.error and not (names or runs.failed):
        what = f"{view.error.what}, and there is no table in {lake.folder('bronze')} yet"
        cure = f"{view.error.cure}; if the lake is elsewhere, name its settings with --config"
        raise type(view.error)(view.error.where, what, cure)
    if names or not runs.failed:
        names = select(tables, names, f"table in {lake.root}", "run the bronze job first")
    models = [name for name in names if name in gold]
    # The lag of a model includes that of its sources.
    topics = landed if models else [name for name in names if name in landed]
    found = _read_topics(lake, files, topics, session, view)
    lags = {table.table: table.lag_seconds for table in found if table.layer == "silver"}
    found += [_gold_status(config, lake, files, model, session, lags) for model in models]
    found = [table for table in found if topic_of(table.table) in names]
    known = {(table.layer, table.table) for table in found}
    found += [
        TableStatus(table=name, layer=layer, commit=None)
        for layer, name in runs.failing_tables()
        if topic_of(name) in names and (layer, name) not in known
    ]
    for table in found:
        runs.add_to(table)
    broker_error = str(view.error) if view.error else None
    return Status(tables=found, failed_runs=list(runs.failed.values()), broker_error=broker_error)


def _read_topics(
    lake: Lake, files: Files, topics: Sequence[str], session: Callable[[], SparkSession], view: SourceView
) -> list[TableStatus]:
    found, logs, plain = list[TableStatus](), view.logs(topics), FilesReader(lake, files)
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        read = list(pool.map(lambda topic: without_spark(partial(read_topic, lake, plain, topic)), topics))
    for topic, known in zip(topics, read, strict=True):
        try:
            progress, of_topic = known[0] if known else read_topic(lake, SparkReader(lake, session()), topic)
        except _UNREADABLE as error:
            found.append(_unreadable_status(lake, "bronze", topic, error))
            continue
        bronze, *silver = of_topic
        if view.source is not None and topic in logs:
            _add_lag(bronze, progress, logs[topic], view.source)
        for table in silver:
            table.lag_seconds = _oldest(bronze.lag_seconds, table.behind_seconds)
        found += of_topic
    return found


def read_topic(lake: Lake, reader: Reader, topic: str) -> tuple[BronzeProgress, list[TableStatus]]:
    """Bronze's progress, and the status of the topic's tables, bronze first."""
    bronze = reader.bronze(topic)
    of_topic = [_table_status("bronze", topic, bronze_state(bronze))]
    for target in lake.silver(topic):
        try:
            of_topic.append(_table_status("silver", target.name, silver_state(reader, target, bronze)))
        except _UNREADABLE as error:
            of_topic.append(_unreadable_status(lake, "silver", target.name, error))
    return bronze.progress, of_topic


def _gold_status(
    config: Config,
    lake: Lake,
    files: Files,
    name: str,
    session: Callable[[], SparkSession],
    lags: Mapping[str, float | None],
) -> TableStatus:
    """The status of a model's table.

    Args:
        lags: the lag of each silver table.
    """
    try:
        model = model_header(config.gold.models, name)
        known = without_spark(partial(gold_state, lake, FilesReader(lake, files), files, model))
        state = known[0] if known else gold_state(lake, SparkReader(lake, session()), files, model)
    except _UNREADABLE as error:
        return _unreadable_status(lake, "gold", name, error)
    table = _table_status("gold", name, state)
    table.lag_seconds = _oldest(table.behind_seconds, *(lags.get(topic) for topic in model.topics.values()))
    return table


def _table_status(layer: str, table: str, state: TableState) -> TableStatus:
    return TableStatus(table=table, layer=layer, **state._asdict())


def _unreadable_status(lake: Lake, layer: str, table: str, error: Exception) -> TableStatus:
    """The status of a table with an incomplete or damaged file. Raises other errors again."""
    known = error if isinstance(error, CdcLakeError) else damage_error(error, table)
    if known is None:
        raise error
    if isinstance(known, DamagedFileError):
        known = with_cure(known, lake.root)
    return TableStatus(table=table, layer=layer, commit=None, error=str(known))


def _add_lag(bronze: TableStatus, progress: BronzeProgress, log: TopicLog, source: TopicSource) -> None:
    if log.problem is not None:
        return
    left = unread(log, progress.offsets.get(log.id, {}))
    bronze.behind_records = count_offsets(left)
    firsts = {partition: span.start for partition, span in left.items()}
    oldest = source.timestamps_ms(log.name, firsts).values() if firsts else ()
    bronze.behind_seconds = bronze.lag_seconds = seconds_since(min(oldest, default=None))


def _oldest(*ages: float | None) -> float | None:
    """The highest age; None if one is unknown."""
    known = [age for age in ages if age is not None]
    return max(known) if len(known) == len(ages) else None


@dataclass
class LatestRuns:
    """The latest run of each table, from the latest reports.

    Attributes:
        last: by layer or command, and table.
        freshness: by silver table; of its last run that committed changes.
        failed: by layer or command, if its latest run ended before its tables started.
    """

    last: dict[tuple[str, str], LastRun]
    freshness: dict[str, Freshness]
    failed: dict[str, LastRun]

    @property
    def failing(self) -> set[str]:
        """The topics and models whose latest run failed, which may not have a table."""
        return {topic_of(table) for _, table in self.failing_tables()}

    def failing_tables(self) -> list[tuple[str, str]]:
        """Layer and table, where the latest run failed."""
        return sorted(key for key, run in self.last.items() if run.status == "failed" and key[0] in _LAYERS)

    @classmethod
    def of(cls, reports: Iterable[Report]) -> Self:
        """The latest runs.

        Args:
            reports: newest first.
        """
        runs, layers = cls({}, {}, {}), set[str]()
        for report in reports:
            if report.error and report.layer not in layers:
                runs.failed[report.layer] = LastRun.of(report, "failed", report.error)
            layers.add(report.layer)
            for table_report in report.tables:
                if (key := (report.layer, table_report.table)) not in runs.last:
                    runs.last[key] = LastRun.of(report, table_report.status, table_report.error)
                if table_report.freshness:
                    runs.freshness.setdefault(table_report.table, table_report.freshness)
        return runs

    def add_to(self, table: TableStatus) -> None:
        """Add the last run of a table, and the last freshness of a silver table."""
        table.last_run = self.last.get((table.layer, table.table))
        if table.layer == "silver":
            table.freshness = self.freshness.get(table.table)
            table.last_reconcile = self.last.get(("reconcile", table.table))
