"""Detects logs that no longer have the records that bronze read.

An unclean leader election, or a disk that was rolled back, removes records from the end of a log, and new records get
their offsets.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.bronze.adjacent_records import records_there
from cdc_lake.decode.identity import identity
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.sources.logs import Span, TopicLog, TopicSource, has_no_room_for_a_timestamp
from cdc_lake.tables.progress import BronzeProgress

_NEAR_OFFSETS = 100_000
"""The last common record is searched in this many offsets first, then in 16 times as many."""


def rewritten_offsets(
    spark: SparkSession,
    table: BronzeTable,
    progress: BronzeProgress,
    log: TopicLog,
    source: TopicSource,
    partitions: Collection[int],
) -> dict[int, int]:
    """By partition that lost records which bronze read: the first offset that now has another record, or none.

    Takes one fetch per partition. Records missing in the middle of the log (compaction, retention) are ignored.

    Args:
        spark: reads the logs of such partitions.
        table: the bronze table.
        progress: that of bronze.
        log: the topic.
        source: where the records are.
        partitions: those to check.

    Raises:
        ConfigError, InfrastructureError: see `TopicSource`.
    """
    reached = progress.offsets.get(log.id, {})
    cut = {p for p in partitions if log.partitions[p].end < reached.get(p, 0)}
    last = {p: progress.last[p] for p in partitions if p in progress.last and p in reached and p not in cut}
    asked = {p: one.offset for p, one in last.items() if one.offset >= log.partitions[p].start}
    there = source.first_records(log.name, asked) if asked else {}
    suspect = cut | {p for p, one in there.items() if one.offset == asked[p] and one != last[p]}
    spans = {p: Span(span.start, min(span.end, reached[p])) for p, span in log.partitions.items() if p in suspect}
    return _common_ends(spark, table, list(progress.offsets).index(log.id), log.name, source, spans)


def _common_ends(
    spark: SparkSession,
    table: BronzeTable,
    generation: int,
    topic: str,
    source: TopicSource,
    spans: Mapping[int, Span],
) -> dict[int, int]:
    """The offset after the last record of each span that bronze and the log have in common; else the end."""
    found = {partition: span.end for partition, span in spans.items()}
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
                found[partition] = same + 1
            elif same is None and row["known"]:
                found[partition] = near[partition].start
            if same is not None:
                del left[partition]
        left = {partition: span for partition, span in left.items() if near[partition].start > span.start}
        width *= 16
    return found


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
