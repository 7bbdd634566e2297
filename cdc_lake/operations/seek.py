"""Change the next offsets that bronze reads: skip records, or read them again."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from pyspark.sql import SparkSession

from cdc_lake.bronze.dead_letters import sent_after
from cdc_lake.bronze.log_order import records_there
from cdc_lake.bronze.topic_run import rewritten_offsets
from cdc_lake.config import Config, StartPosition
from cdc_lake.errors import ConfigError, DataLossError
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.runs.context import OpenRun, Run, Work, lake_of, select_landed
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.runs.servers import open_source
from cdc_lake.sources.logs import Span, TopicLog, TopicSource, offsets_of
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import progress_of
from cdc_lake.tables.progress import BronzeProgress, Gap


class OffsetChange(BaseModel):
    """A change of the next offset of one partition.

    Attributes:
        new_offset: the next offset to read after the change.
        landed: how many of the records to read again are already in bronze; they do not change.
    """

    table: str
    partition: int
    offset: int
    new_offset: int
    landed: int = 0


def offset_changes(
    config: Config, tables: Sequence[str], to: StartPosition, spark: SparkSession, *, source: TopicSource | None = None
) -> list[OffsetChange]:
    """The partitions whose next offset `seek` would change. Writes nothing.

    Args:
        tables: topic names or globs.

    Raises:
        UnknownTableError: a name or glob matches no bronze table.
        ConfigError: a topic does not have the position.
        DataLossError: a topic was re-created, or lost records that bronze had read.
        InfrastructureError: the source does not respond.
    """
    source, lake = source or open_source(config, lambda: spark), lake_of(config)
    topics = select_landed(lake, HadoopFiles(spark), tables)
    logs = source.logs(topics)
    changes = []
    for topic in topics:
        table = lake.bronze(spark, topic)
        progress = progress_of(table)
        if problem := logs[topic].problem:
            raise problem
        log = logs[topic]
        if log.id not in progress.offsets or rewritten_offsets(spark, table, progress, log, source, log.partitions):
            raise DataLossError(
                topic,
                "the topic was re-created, or lost the end of its log, since bronze read it",
                f"record this loss first: `cdc-lake run bronze --table {topic} --accept-loss`",
            )
        changes += _offset_changes(table, progress, log, offsets_of(to, log, source))
    return changes


def _offset_changes(
    table: BronzeTable, progress: BronzeProgress, log: TopicLog, to: dict[int, int]
) -> list[OffsetChange]:
    position = {p: progress.position.get(p, span.start) for p, span in log.partitions.items()}
    back = {p: Span(offset, position[p]) for p, offset in to.items() if offset < position[p]}
    counted = records_there(table, len(progress.offsets) - 1, back).groupBy("partition").count().collect()
    landed = {row["partition"]: row["count"] for row in counted}
    return [
        OffsetChange(table=log.name, partition=p, offset=position[p], new_offset=offset, landed=landed.get(p, 0))
        for p, offset in to.items()
        if offset != position[p]
    ]


def seek(config: Config, changes: Sequence[OffsetChange], *, scheduler: TableScheduler) -> Report:
    """Change the next offsets that bronze reads, in one commit per table without rows.

    Skipped records are recorded as a gap. Records that are read again and are not in bronze are landed at their log
    position, marked as replayed (`late`), and silver refolds their keys. Records in bronze do not change.

    Args:
        changes: the result of `offset_changes`, or a part of it.
    """
    with scheduler.open(Run.begin(config, Report(layer="bronze"))) as run:
        tables = list(dict.fromkeys(change.table for change in changes))
        scheduler.each_table(run.report, tables, _Seek(run, changes), leases=run.leases)
    return run.report


@dataclass(frozen=True)
class _Seek(Work):
    run: OpenRun
    changes: Sequence[OffsetChange]

    def process_next(self, spark: SparkSession, report: TableReport) -> bool:
        table = self.run.lake.bronze(spark, report.table)
        progress = progress_of(table)
        changes = [change for change in self.changes if change.table == report.table]
        topic_id, position = list(progress.offsets.items())[-1]
        if any(position.get(change.partition, change.offset) != change.offset for change in changes):
            raise ConfigError(report.table, "bronze has read more records since the preview", "run the command again")
        report.version_before = table.version()
        # Lower offsets were read earlier, or are in a gap.
        read = {change.partition: max(change.offset, progress.reread_to.get(change.partition, 0)) for change in changes}
        reread_to = {**progress.reread_to, **read}
        to = {change.partition: change.new_offset for change in changes}
        following = progress.next(
            self.run.id,
            offsets={**progress.offsets, topic_id: position | to},
            gaps=tuple(
                Gap(topic_id=topic_id, partition=partition, start=read[partition], end=offset)
                for partition, offset in to.items()
                if offset > read[partition]
            ),
            last={partition: identity for partition, identity in progress.last.items() if partition not in to},
            reread_to={partition: end for partition, end in reread_to.items() if to.get(partition, -1) < end},
            sent=sent_after(self.run.config.dead_letter_topic(report.table), progress),
        )
        self.run.leases.check(report.table)
        table.advance(following)
        report.status, report.batches = "ok", 1
        report.consumed_from = {str(change.partition): change.offset for change in changes}
        report.consumed_to = {str(change.partition): change.new_offset for change in changes}
        report.version_after = table.version()
        return False
