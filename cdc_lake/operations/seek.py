"""Bronze told to read a topic on from another place: records skipped, or read again."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from pyspark.sql import SparkSession

from cdc_lake.bronze.adjacent_records import records_there
from cdc_lake.bronze.dead_letters import dead_letter_topic, sent_by
from cdc_lake.bronze.log_ends import replaced
from cdc_lake.config import Config, StartPosition
from cdc_lake.errors import ConfigError, DataLossError
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.runs.context import Leases, end_report, lake_of, select_landed
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.sources import open_source
from cdc_lake.sources.logs import Span, TopicLog, TopicSource, offsets_of
from cdc_lake.storage.files import Storage
from cdc_lake.tables.contract import progress_of
from cdc_lake.tables.progress import BronzeProgress, Gap


class OffsetChange(BaseModel):
    """What it comes to for one partition that bronze reads it on from another place.

    Attributes:
        now: the next offset to read.
        then: the same afterwards.
        there: of the offsets to be read again, how many records are in bronze; they stay as they are.
    """

    table: str
    partition: int
    offset: int
    new_offset: int
    landed: int = 0


def offset_changes(
    config: Config, tables: Sequence[str], to: StartPosition, spark: SparkSession, *, source: TopicSource | None = None
) -> list[OffsetChange]:
    """What `seek` would do: the partitions that have another place. Nothing is written.

    Args:
        config: the settings.
        tables: topic names or globs.
        to: the place.
        spark: the session.
        source: asked what the topics hold; the settings' when there is none.

    Raises:
        UnknownTableError: a name or glob fits no bronze table.
        ConfigError: a topic has no such place.
        DataLossError: a topic was created again, or lost what bronze had read of it.
        InfrastructureError: the source does not answer.
    """
    source = source or open_source(config, lambda: spark)
    topics = select_landed(config, Storage(spark), tables)
    logs = source.logs(topics)
    found = []
    for topic in topics:
        table = lake_of(config).bronze(spark, topic)
        progress = progress_of(table)
        if problem := logs[topic].problem:
            raise problem
        log = logs[topic]
        if log.id not in progress.offsets or replaced(spark, table, progress, log, source, log.partitions):
            raise DataLossError(
                topic,
                "since bronze read it, the topic was created again or lost the end of its log: its offsets are others",
                f"first have that recorded: `cdc-lake run bronze --table {topic} --accept-loss`",
            )
        found += _offset_changes(table, progress, log, offsets_of(to, log, source))
    return found


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
    """Have bronze's next run read on from other places. One commit per table, without rows.

    What is skipped is recorded as a gap. What is read again and is not in bronze is landed at its place in the log,
    marked as replayed (`late`), and silver folds it there; what is in bronze stays as it is.

    Args:
        config: the settings.
        changes: what `offset_changes` said, for some partitions of some tables.
        scheduler: who does it.
    """
    report = Report(layer="bronze")
    storage = scheduler.open_storage(config, report)
    leases = Leases(config, storage, report.run_id, report.layer)
    work = _Seek(config, leases, report.run_id, changes)
    scheduler.each_table(report, list(dict.fromkeys(change.table for change in changes)), work, leases=leases)
    end_report(storage, config, report)
    return report


@dataclass(frozen=True)
class _Seek:
    """What is done to each table, in one turn."""

    config: Config
    leases: Leases
    run_id: str
    changes: Sequence[OffsetChange]

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return None

    def process_next(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        table = lake_of(self.config).bronze(spark, done.table)
        progress = progress_of(table)
        changes = [change for change in self.changes if change.table == done.table]
        topic_id, position = list(progress.offsets.items())[-1]
        if any(position.get(change.partition, change.offset) != change.offset for change in changes):
            raise ConfigError(
                done.table, "bronze has read on since the consequences were shown", "give the same command again"
            )
        done.version_before = table.version()
        # Offsets below were read before, or are in a gap already.
        read = {change.partition: max(change.offset, progress.again.get(change.partition, 0)) for change in changes}
        again = {**progress.again, **read}
        to = {change.partition: change.new_offset for change in changes}
        following = progress.next(
            self.run_id,
            offsets={**progress.offsets, topic_id: position | to},
            gaps=tuple(
                Gap(topic_id=topic_id, partition=partition, start=read[partition], end=offset)
                for partition, offset in to.items()
                if offset > read[partition]
            ),
            last={partition: one for partition, one in progress.last.items() if partition not in to},
            again={partition: end for partition, end in again.items() if to.get(partition, -1) < end},
            sent=sent_by(dead_letter_topic(self.config, done.table), progress),
        )
        self.leases.check(done.table)
        table.advance(following)
        done.status, done.batches = "ok", 1
        done.consumed_from = {str(change.partition): change.offset for change in changes}
        done.consumed_to = {str(change.partition): change.new_offset for change in changes}
        done.version_after = table.version()
        return False
