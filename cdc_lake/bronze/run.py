"""Bronze: land each record of a topic exactly once, with its bytes and a status.

A re-created topic starts again at offset 0: its records are another *generation* in the same table.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cdc_lake import failpoints
from cdc_lake.bronze.dead_letters import is_due
from cdc_lake.bronze.land import land_next
from cdc_lake.bronze.landing import BronzeRun, Landing
from cdc_lake.bronze.offsets import continue_from, lag_by_partition, unread
from cdc_lake.catalogs.naming import colliding
from cdc_lake.config import Config
from cdc_lake.lake.lake import is_table_name
from cdc_lake.registries.registry import Registry
from cdc_lake.runs.catalog_sync import sync_catalog_after_run
from cdc_lake.runs.context import Run, select
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.runs.servers import checked_registry, open_source
from cdc_lake.runs.work import NewData, Work
from cdc_lake.sources.logs import Span, TopicLog, TopicSource, count_offsets
from cdc_lake.storage.files import Files
from cdc_lake.tables.progress import BronzeProgress


def run_bronze(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    source: TopicSource | None = None,
    registry: Registry | None = None,
    accept_loss: bool = False,
    quarantine_unknown_ids: bool = False,
    scheduler: TableScheduler | None = None,
) -> Report:
    """Land new records from Kafka, or from the files of a sink connector.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session (default: a new one).
        source: where the records are (default: that of the settings).
        registry: where the records' schemas are (default: that of the settings).
        accept_loss: continue past deleted records and record the gap, instead of stopping.
        quarantine_unknown_ids: quarantine unknown schema ids even if the registry knows none of them.
        scheduler: runs the work (default: a new one, in the calling thread).

    Raises:
        UnknownTableError: a name or glob matches no topic.
        ConfigError: a setting requires another one that is missing.
        InfrastructureError: the source or the registry does not respond.
        InstallationError: Spark cannot start with the installed packages.
    """
    run = Run.begin(config, Report(layer="bronze"))
    scheduler = scheduler or TableScheduler(spark=spark)
    source = source or open_source(config, lambda: scheduler.spark(config, "bronze"))
    todo = "check --table, and that the connector writes to the topic"
    topics = select(tables, source.topics(), f"topic in {source.name}", todo)
    for topic in topics:
        config.table(topic).check(topic)
    logs = source.logs(topics)
    files = scheduler.files(run.lake)
    look = _TopicLag(run, files, source, logs, scheduler.is_continuous)
    if scheduler.finds_nothing_new(run, files, topics, look.without_spark):
        return run.report
    registry = registry or checked_registry(config)
    with scheduler.open(run) as opened:
        bronze = BronzeRun(
            opened,
            source,
            opened.lake.schema_files(opened.storage, registry),
            accept_loss,
            quarantine_unknown_ids,
            colliding(config.catalog, "bronze", {topic: "delta" for topic in topics if is_table_name(topic)}),
            min(scheduler.parallel, len(topics)),
            scheduler.is_continuous,
        )
        scheduler.each_table(run.report, topics, _BronzeWork(bronze, logs, look), leases=opened.leases)
        sync_catalog_after_run(opened)
        failpoints.reach("bronze.before_report")
    return run.report


@dataclass(frozen=True)
class _TopicLag:
    """Measures the lag of bronze behind its topics, in offsets."""

    run: Run
    files: Files
    source: TopicSource
    logs: Mapping[str, TopicLog]
    is_continuous: bool

    def without_spark(self, done: TableReport) -> NewData | None:
        """The new data, if the table's log is readable without Spark."""
        lake, log = self.run.lake, self.logs[done.table]
        if not log.problem and not lake.holds(self.files, "bronze", done.table):
            # An empty topic gets a table, too.
            return NewData(max(count_offsets(unread(log, {})), 1))
        found = lake.newest_bronze(self.files, done.table)
        lag = self.lag(found.progress, done) if found else None
        return None if lag is None else NewData(lag)

    def lag(self, progress: BronzeProgress | None, done: TableReport) -> int | None:
        """See `Work`.

        Args:
            progress: that of bronze.
            done: the table's report.
        """
        log = self.logs[done.table]
        if log.problem:
            return None
        if progress is None or log.id not in progress.offsets or continue_from(log, progress.offsets)[1]:
            return None
        if is_due(self.run.config.dead_letter_topic(done.table), progress):
            return None
        position = progress.offsets[log.id]
        done.lag_before = done.lag_after = lag_by_partition(log, position)
        done.consumed_from = done.consumed_to = {str(p): offset for p, offset in position.items()}
        left = unread(log, position)
        return 0 if self._can_wait(log, left, progress) else count_offsets(left)

    def _can_wait(self, log: TopicLog, left: Mapping[int, Span], progress: BronzeProgress) -> bool:
        """Whether the new records are few, and none is older than `max_latency_seconds`."""
        read = self.run.config.table(log.name).read
        number = count_offsets(left)
        if not (self.is_continuous and read.min_batch_bytes and number and progress.record_bytes):
            return False
        if number * progress.record_bytes >= read.min_batch_bytes or number >= read.max_records_per_batch:
            return False
        first_ms = self.source.timestamps_ms(log.name, {partition: span.start for partition, span in left.items()})
        oldest_ms = min(first_ms.values(), default=0)
        return time.time() * 1000 - oldest_ms < read.max_latency_seconds * 1000


@dataclass(frozen=True)
class _BronzeWork(Work):
    """The work of bronze on its tables."""

    bronze: BronzeRun
    logs: Mapping[str, TopicLog]
    look: _TopicLag

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return self.look.lag(self.bronze.run.lake.bronze(spark, done.table).progress(), done)

    def process_next(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        run, source = self.bronze.run, self.bronze.source
        for warning in source.warnings(done.table):
            done.warn(warning)
        table, log = run.lake.bronze(spark, done.table), self.logs[done.table]
        if log.problem:
            log = source.logs([log.name])[log.name]  # a file that was being written may be complete now
        if log.problem:
            raise log.problem
        return land_next(Landing(spark, self.bronze, log, table, run.config.table(done.table), done))
