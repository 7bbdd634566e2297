"""A run of bronze on one topic: its table, the progress from which it continues, and the offsets to read next.

Kafka may no longer have what bronze read: records are deleted after a while; an unclean leader election, or a disk that
was rolled back, removes records from the end of a log, and new records get their offsets.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from types import MappingProxyType

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.bronze.log_order import records_there
from cdc_lake.config import TableConfig
from cdc_lake.errors import DataLossError, NoProgressError
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.runs.context import OpenRun
from cdc_lake.runs.report import TableReport
from cdc_lake.sources.logs import Span, TopicLog, TopicSource, has_no_room_for_a_timestamp, offsets_of
from cdc_lake.tables.progress import BronzeProgress, Gap, identity

_NEAR_OFFSETS = 100_000
"""The last common record is searched in this many offsets first, then in 16 times as many."""


@dataclass(frozen=True)
class TopicRun:
    """A run of bronze on one topic.

    Attributes:
        spark: the session of the calling thread.
        schemas: the lake's schema files, with the registry.
        accept_loss, quarantine_unknown_ids: see `run_bronze`.
        same_name: tables with the same name in the catalog, see `check_catalog_name`.
        max_bytes: the maximum size of the records of a batch.
        is_continuous: whether more runs will follow in this process.
    """

    spark: SparkSession
    run: OpenRun
    source: TopicSource
    schemas: SchemaFiles
    log: TopicLog
    table: BronzeTable
    settings: TableConfig
    report: TableReport
    accept_loss: bool
    quarantine_unknown_ids: bool
    same_name: Mapping[str, str]
    max_bytes: int
    is_continuous: bool

    @property
    def dead_letters(self) -> str | None:
        return self.run.config.dead_letter_topic(self.log.name)


def stored_progress(topic: TopicRun) -> BronzeProgress | None:
    """The table's progress; derived from its rows if no remaining commit has it."""
    try:
        return topic.table.progress()
    except NoProgressError as exc:
        topic.report.warn(
            f"{exc.what}: it was derived from the rows; records are missing if the topic was re-created since"
        )
    rows = topic.table.read().groupBy("generation", "partition")
    maxima = rows.agg(F.max("offset").alias("offset"), F.max("log_ts").alias("log_ts"), F.max("batch").alias("batch"))
    ends = sorted(maxima.collect(), key=lambda end: (end["log_ts"], end["generation"]))
    newest = max((end["generation"] for end in ends), default=0)
    reached = {end["partition"]: end["offset"] + 1 for end in ends if end["generation"] == newest}
    return BronzeProgress(
        run_id=topic.run.id,
        epoch=1,
        commit=max((end["batch"] for end in ends), default=0),
        offsets={**{f"unknown-{generation}": {} for generation in range(newest)}, topic.log.id: reached},
        log_ts={end["partition"]: end["log_ts"] for end in ends},
    )


def rewritten(topic: TopicRun, progress: BronzeProgress | None) -> Mapping[int, int]:
    """See `rewritten_offsets`; checks the partitions whose end differs from bronze's position."""
    if progress is None or topic.log.id not in progress.offsets:
        return {}
    reached = progress.offsets[topic.log.id]
    news = [p for p, span in topic.log.partitions.items() if span.end != reached.get(p, span.start)]
    return rewritten_offsets(topic.spark, topic.table, progress, topic.log, topic.source, news)


def starting_progress(
    topic: TopicRun, progress: BronzeProgress | None, replaced: Mapping[int, int] = MappingProxyType({})
) -> BronzeProgress:
    """The progress to continue from: `offsets` of the topic's id are the next offsets to read.

    Args:
        progress: the progress of the table; None if it does not exist.
        replaced: see `rewritten_offsets`.

    Raises:
        DataLossError: records were deleted, and `accept_loss` is not set.
    """
    log = topic.log
    if progress is None:
        begin = offsets_of(topic.settings.read.start, log, topic.source)
        if skipped := sum(offset - log.partitions[partition].start for partition, offset in begin.items()):
            topic.report.warn(
                f"bronze starts at `read.start: {topic.settings.read.start}` and skips {skipped} offsets before it; "
                f"to read them, run `cdc-lake seek --table {log.name} --to earliest`"
            )
        return BronzeProgress(run_id=topic.run.id, commit=0, offsets={log.id: begin}, total_rows=0)
    offsets, gaps = continue_from(log, progress.offsets, replaced)
    losses = [describe_loss(log, gap, offsets[log.id]) for gap in gaps]
    if losses and not topic.accept_loss:
        raise DataLossError(
            log.name,
            "; ".join(losses),
            f"to continue and record the gap, run `cdc-lake run bronze --table {log.name} --accept-loss`; "
            "to lose nothing, move the table away and load it from a new snapshot",
        )
    for loss in losses:
        topic.report.warn(f"continued past a loss: {loss}")
    if losses:
        topic.report.warn(
            "silver keeps rows whose later changes or deletes were lost, such as the rows of a dropped table: take a "
            "new snapshot with a signal (docs/how-to/backfill.md). A snapshot of the whole table also deletes rows "
            "that the source no longer has, if `deletes.missing_after_snapshot` is true"
        )
    reread_to = progress.reread_to if list(offsets) == list(progress.offsets) else {}
    reached = progress.offsets.get(log.id, {})
    last = {p: record for p, record in progress.last.items() if offsets[log.id].get(p) == reached.get(p, -1)}
    return progress.model_copy(update={"offsets": offsets, "gaps": gaps, "reread_to": reread_to, "last": last})


def rewritten_offsets(
    spark: SparkSession,
    table: BronzeTable,
    progress: BronzeProgress,
    log: TopicLog,
    source: TopicSource,
    partitions: Collection[int],
) -> dict[int, int]:
    """By partition that lost records which bronze read: the offset after the last one that the log still has.

    Takes one fetch per partition. Records missing in the middle of the log (compaction, retention) are ignored.

    Raises:
        ConfigError, InfrastructureError: see `TopicSource`.
    """
    spans = _changed_spans(progress, log, source, partitions)
    topic, generation = log.name, list(progress.offsets).index(log.id)
    offsets = {partition: span.end for partition, span in spans.items()}
    left = {partition: span for partition, span in spans.items() if span.start < span.end}
    width = _NEAR_OFFSETS
    while left:
        near = {p: replace(span, start=max(span.start, span.end - width)) for p, span in left.items()}
        known = records_there(table, generation, near)
        try:
            ends = _compare(known, source.read(spark, topic, near))
        except (PySparkException, Py4JJavaError) as exc:
            if not has_no_room_for_a_timestamp(exc):
                raise
            ends = _compare(known, _read_around(spark, topic, source, near))
        for row in ends:
            partition, same = row["partition"], row["same"]
            if same is not None and (row["other"] or 0) > same:
                offsets[partition] = same + 1
            elif same is None and row["known"]:
                offsets[partition] = near[partition].start
            if same is not None:
                del left[partition]
        left = {partition: span for partition, span in left.items() if near[partition].start > span.start}
        width *= 16
    return offsets


def _changed_spans(
    progress: BronzeProgress, log: TopicLog, source: TopicSource, partitions: Collection[int]
) -> dict[int, Span]:
    """What bronze read of the partitions whose last record is another now, or no longer exists."""
    reached = progress.offsets.get(log.id, {})
    cut = {p for p in partitions if log.partitions[p].end < reached.get(p, 0)}
    last = {p: progress.last[p] for p in partitions if p in progress.last and p in reached and p not in cut}
    asked = {p: record.offset for p, record in last.items() if record.offset >= log.partitions[p].start}
    records = source.first_records(log.name, asked) if asked else {}
    suspect = cut | {p for p, record in records.items() if record.offset == asked[p] and record != last[p]}
    return {p: Span(span.start, min(span.end, reached[p])) for p, span in log.partitions.items() if p in suspect}


def _compare(known: DataFrame, records: DataFrame) -> Sequence[Row]:
    """By partition: the last offset with the `same` record in bronze and in the log, the last one with an `other`
    record, and the number of records in bronze (`known`).
    """
    of_bronze = identity("kafka_timestamp", "raw_key", "raw_value").alias("was")
    of_log = identity("timestamp", "key", "value").alias("now")
    at = ["partition", "offset"]
    both = records.select(*at, of_log).join(known.select(*at, of_bronze), at, "left")
    is_same = F.coalesce(F.col("was") == F.col("now"), F.lit(False))
    ends = both.groupBy("partition").agg(
        F.max(F.when(is_same, F.col("offset"))).alias("same"),
        F.max(F.when(~is_same, F.col("offset"))).alias("other"),
        F.count("was").alias("known"),
    )
    return ends.collect()


def _read_around(spark: SparkSession, topic: str, source: TopicSource, spans: Mapping[int, Span]) -> DataFrame:
    """All records of spans in which Spark's reader fails on a timestamp."""
    parts, left = list[DataFrame](), dict(spans)
    while left:
        read, records = source.read_around(spark, topic, left)
        parts.append(records)
        rest = {p: replace(span, start=read[p].end) if p in read else span for p, span in left.items()}
        left = {p: span for p, span in rest.items() if span.start < span.end}
    return reduce(
        DataFrame.unionByName, (part.select("key", "value", "partition", "offset", "timestamp") for part in parts)
    )


def continue_from(
    log: TopicLog, offsets: Mapping[str, dict[int, int]], replaced: Mapping[int, int] = MappingProxyType({})
) -> tuple[dict[str, dict[int, int]], tuple[Gap, ...]]:
    """`offsets` with the next offset of each partition of `log` under its id, and the gaps.

    A log that lost its end assigns the same offsets to other records, so what was read becomes a generation of its own.
    """
    if log.id not in offsets:
        lost, ended = list(offsets.items())[-1]
        gone = (
            Gap(topic_id=lost, partition=partition, start=reached, end=None) for partition, reached in ended.items()
        )
        return {**offsets, log.id: _starts(log)}, tuple(gone)
    reached = _starts(log) | offsets[log.id]
    position = {p: min(max(reached[p], span.start), span.end) for p, span in log.partitions.items()} | {**replaced}
    gaps = tuple(
        Gap(topic_id=log.id, partition=p, start=reached[p], end=offset if offset > reached[p] else None)
        for p, offset in position.items()
        if offset != reached[p]
    )
    known_as = f"{log.id}~{len(offsets)}" if any(gap.end is None for gap in gaps) else log.id
    before = {known_as if known == log.id else known: ends for known, ends in offsets.items()}
    return {**before, log.id: position}, gaps


def _starts(log: TopicLog) -> dict[int, int]:
    return {partition: span.start for partition, span in log.partitions.items()}


def describe_loss(log: TopicLog, gap: Gap, position: Mapping[int, int]) -> str:
    """The message about a gap."""
    where = f"{log.name}[{gap.partition}]"
    if gap.end is not None:
        return f"{where}: Kafka deleted offsets {gap.start} to {gap.end - 1} before bronze read them"
    if gap.topic_id == log.id and (first := position[gap.partition]) < log.partitions[gap.partition].end:
        return (
            f"{where}: the log lost its end, and offsets {first} to {gap.start - 1} now have other records than bronze "
            f"read; bronze keeps what it read and continues from {first}"
        )
    if gap.topic_id == log.id:
        return f"{where}: the next offset is {gap.start}, but the log now ends at {log.partitions[gap.partition].end}"
    return (
        f"{where}: the topic was re-created (its id was {gap.topic_id}, now {log.id}), "
        f"and all records from offset {gap.start} on are gone"
    )


def batch_spans(
    log: TopicLog, position: Mapping[int, int], reread_to: Mapping[int, int], max_rows: int
) -> Mapping[int, Span]:
    """The next ranges, in total at most `max_rows` offsets, divided evenly; empty if everything is read. With fewer
    offsets than partitions, later batches read the others.

    Offsets that are read again come first, in batches of their own. If the log has offsets at which a range should end,
    a range extends at least to the next of them.
    """
    left = unread(log, position)
    reread_spans = {
        p: Span(span.start, min(span.end, reread_to[p])) for p, span in left.items() if span.start < reread_to.get(p, 0)
    }
    left = dict(islice((reread_spans or left).items(), max_rows))
    share = max_rows // len(left) if left else 0
    return {p: Span(span.start, _end_of_batch(span, share, log.cuts.get(p, ()))) for p, span in left.items()}


def _end_of_batch(span: Span, share: int, cuts: Sequence[int]) -> int:
    wanted = min(span.end, span.start + share)
    if wanted == span.end or not cuts:
        return wanted
    behind = bisect_right(cuts, wanted)
    if cuts[behind - 1] > span.start:
        return cuts[behind - 1]
    return min(cuts[behind], span.end) if behind < len(cuts) else span.end


def lag_by_partition(log: TopicLog, position: Mapping[int, int]) -> dict[str, int]:
    """The number of offsets after `position`, by partition as text."""
    return {str(p): max(span.end - position.get(p, span.start), 0) for p, span in log.partitions.items()}


def unread(log: TopicLog, position: Mapping[int, int]) -> Mapping[int, Span]:
    """The unread offsets of each partition; partitions without any are omitted."""
    left = {p: Span(max(position.get(p, s.start), s.start), s.end) for p, s in log.partitions.items()}
    return {p: span for p, span in left.items() if span.start < span.end}
