"""Bronze told to read a topic on from another place: records skipped, or read again."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel
from pyspark.sql import SparkSession

from cdc_lake.bronze.adjacent_records import records_there
from cdc_lake.bronze.dead_letters import sent_by
from cdc_lake.bronze.log_ends import replaced
from cdc_lake.config import Config, StartPosition
from cdc_lake.errors import ConfigError, DataLossError
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.runs.context import Leases, end_report, lake_of, select_landed
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import Workers
from cdc_lake.sources import open_source
from cdc_lake.sources.logs import Span, TopicLog, TopicSource, offsets_of
from cdc_lake.storage.files import Storage
from cdc_lake.tables.contract import progress_of
from cdc_lake.tables.progress import BronzeProgress, Gap


class Move(BaseModel):
    """What it comes to for one partition that bronze reads it on from another place.

    Attributes:
        now: the next offset to read.
        then: the same afterwards.
        there: of the offsets to be read again, how many records are in bronze; they stay as they are.
    """

    table: str
    partition: int
    now: int
    then: int
    there: int = 0


def moves(
    config: Config, tables: Sequence[str], to: StartPosition, spark: SparkSession, *, source: TopicSource | None = None
) -> list[Move]:
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
        found += _moves(table, progress, log, offsets_of(to, log, source))
    return found


def _moves(table: BronzeTable, progress: BronzeProgress, log: TopicLog, to: dict[int, int]) -> list[Move]:
    position = {p: progress.position.get(p, span.start) for p, span in log.partitions.items()}
    back = {p: Span(then, position[p]) for p, then in to.items() if then < position[p]}
    counted = records_there(table, len(progress.offsets) - 1, back).groupBy("partition").count().collect()
    there = {row["partition"]: row["count"] for row in counted}
    return [
        Move(table=log.name, partition=p, now=position[p], then=then, there=there.get(p, 0))
        for p, then in to.items()
        if then != position[p]
    ]


def seek(config: Config, agreed: Sequence[Move], *, workers: Workers) -> Report:
    """Have bronze's next run read on from other places. One commit per table, without rows.

    What is skipped is recorded as a gap. What is read again and is not in bronze is landed at its place in the log,
    marked as replayed (`late`), and silver folds it there; what is in bronze stays as it is.

    Args:
        config: the settings.
        agreed: what `moves` said, for some partitions of some tables.
        workers: who does it.
    """
    report = Report(layer="bronze")
    storage = workers.lake(config, report)
    leases = Leases(config, storage, report.run_id, report.layer)
    work = _Seek(config, leases, report.run_id, agreed)
    workers.each_table(report, list(dict.fromkeys(move.table for move in agreed)), work, leases=leases)
    end_report(storage, config, report)
    return report


@dataclass(frozen=True)
class _Seek:
    """What is done to each table, in one turn."""

    config: Config
    leases: Leases
    run_id: str
    agreed: Sequence[Move]

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return None

    def turn(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        table = lake_of(self.config).bronze(spark, done.table)
        progress = progress_of(table)
        agreed = [move for move in self.agreed if move.table == done.table]
        topic_id, position = list(progress.offsets.items())[-1]
        if any(position.get(move.partition, move.now) != move.now for move in agreed):
            raise ConfigError(
                done.table, "bronze has read on since the consequences were shown", "give the same command again"
            )
        done.version_before = table.version()
        # Offsets below were read before, or are in a gap already.
        read = {move.partition: max(move.now, progress.again.get(move.partition, 0)) for move in agreed}
        again = {**progress.again, **read}
        to = {move.partition: move.then for move in agreed}
        following = progress.next(
            self.run_id,
            offsets={**progress.offsets, topic_id: position | to},
            gaps=tuple(
                Gap(topic_id=topic_id, partition=partition, start=read[partition], end=then)
                for partition, then in to.items()
                if then > read[partition]
            ),
            last={partition: one for partition, one in progress.last.items() if partition not in to},
            again={partition: end for partition, end in again.items() if to.get(partition, -1) < end},
            sent=sent_by(self.config.dead_letter_topic(done.table), progress),
        )
        self.leases.check(done.table)
        table.advance(following)
        done.status, done.batches = "ok", 1
        done.consumed_from = {str(move.partition): move.now for move in agreed}
        done.consumed_to = {str(move.partition): move.then for move in agreed}
        done.version_after = table.version()
        return False
