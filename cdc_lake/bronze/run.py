"""Bronze: land each record of a topic exactly once, with its bytes and a status.

A re-created topic starts again at offset 0: its records are another *generation* in the same table.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pyspark.sql import SparkSession

from cdc_lake.bronze.batch import land_next
from cdc_lake.bronze.dead_letters import is_due
from cdc_lake.bronze.topic_run import TopicRun, continue_from, lag_by_partition, unread
from cdc_lake.catalogs.catalog import colliding
from cdc_lake.config import Config
from cdc_lake.failpoints import reach
from cdc_lake.lake.lake import is_table_name
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.registries.registry import Registry
from cdc_lake.runs.context import Layer, NewData, OpenRun, Run, Work, select
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.runs.servers import checked_registry, open_source
from cdc_lake.sources.logs import Span, TopicLog, TopicSource, count_offsets
from cdc_lake.spark.session import batch_bytes
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
        tables: topic names or globs.
        source: where the records are (default: that of the settings).
        registry: where the records' schemas are (default: that of the settings).
        accept_loss: continue past deleted records and record the gap, instead of stopping.
        quarantine_unknown_ids: quarantine unknown schema ids even if the registry knows none of them.

    Raises:
        UnknownTableError: a name or glob matches no topic.
        ConfigError: a setting requires another setting.
        InfrastructureError: the source or the registry does not respond.
    """
    scheduler = scheduler or TableScheduler(spark=spark)
    layer = BronzeLayer.of(
        config,
        tables,
        scheduler,
        source=source,
        registry=registry,
        accept_loss=accept_loss,
        quarantine_unknown_ids=quarantine_unknown_ids,
    )
    (report,) = scheduler.run(layer)
    return report


@dataclass
class BronzeLayer(Layer):
    source: TopicSource
    logs: dict[str, TopicLog]
    registry: Registry | None
    accept_loss: bool
    quarantine_unknown_ids: bool
    parallel: int
    is_continuous: bool

    @classmethod
    def of(
        cls,
        config: Config,
        tables: Sequence[str],
        scheduler: TableScheduler,
        *,
        source: TopicSource | None = None,
        registry: Registry | None = None,
        accept_loss: bool = False,
        quarantine_unknown_ids: bool = False,
    ) -> Self:
        """Begin a run; see `run_bronze`."""
        run = Run.begin(config, Report(layer="bronze"))
        source = source or open_source(config, lambda: scheduler.spark(config, "bronze"))
        cure = "check --table, and that the connector writes to the topic"
        topics = select(tables, source.topics(), f"topic in {source.name}", cure)
        for topic in topics:
            config.table(topic).check(topic)
        return cls(
            run,
            scheduler.files(run.lake),
            topics,
            source,
            source.logs(topics),
            registry,
            accept_loss,
            quarantine_unknown_ids,
            min(scheduler.parallel, len(topics)),
            scheduler.is_continuous,
        )

    def check(self) -> None:
        self.registry = self.registry or checked_registry(self.run.config)

    def work(self, run: OpenRun) -> "_BronzeWork":
        same_names = colliding(
            run.config.catalog, "bronze", {table: "delta" for table in self.tables if is_table_name(table)}
        )
        return _BronzeWork(run, self, run.lake.schema_files(run.files, self.registry), same_names)

    def look_again(self, tables: Sequence[str]) -> None:
        self.logs |= self.source.logs(tables)

    def before_report(self) -> None:
        reach("bronze.before_report")

    def new_data(self, report: TableReport) -> NewData | None:
        lake, log = self.run.lake, self.logs[report.table]
        if not log.problem and not lake.holds(self.files, "bronze", report.table):
            # An empty topic gets a table, too.
            return NewData(max(count_offsets(unread(log, {})), 1))
        newest = lake.newest_bronze(self.files, report.table)
        lag = self._lag(newest.progress, report) if newest else None
        return None if lag is None else NewData(lag)

    def _lag(self, progress: BronzeProgress, report: TableReport) -> int | None:
        """The number of new offsets; None if only Spark can tell whether there is something to do."""
        log = self.logs[report.table]
        if log.problem or log.id not in progress.offsets or continue_from(log, progress.offsets)[1]:
            return None
        if is_due(self.run.config.dead_letter_topic(report.table), progress):
            return None
        position = progress.offsets[log.id]
        report.lag_before = report.lag_after = lag_by_partition(log, position)
        report.consumed_from = report.consumed_to = {str(p): offset for p, offset in position.items()}
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
    run: OpenRun
    layer: BronzeLayer
    schemas: SchemaFiles
    same_names: Mapping[str, Mapping[str, str]]

    def process_next(self, spark: SparkSession, report: TableReport) -> bool:
        layer, name = self.layer, report.table
        for warning in layer.source.warnings(name):
            report.warn(warning)
        table, log = self.run.lake.bronze(spark, name), layer.logs[name]
        if log.problem:
            log = layer.source.logs([name])[name]  # a file that was being written may be complete now
        if log.problem:
            raise log.problem
        settings = self.run.config.table(name)
        topic = TopicRun(
            spark=spark,
            run=self.run,
            source=layer.source,
            schemas=self.schemas,
            log=log,
            table=table,
            settings=settings,
            report=report,
            accept_loss=layer.accept_loss,
            quarantine_unknown_ids=layer.quarantine_unknown_ids,
            same_name=self.same_names.get(name, {}),
            max_bytes=batch_bytes(spark, settings.read.max_batch_bytes, layer.parallel),
            is_continuous=layer.is_continuous,
        )
        return land_next(topic)
