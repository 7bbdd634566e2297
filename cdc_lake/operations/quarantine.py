"""The quarantine: records that failed to decode, and events that silver rejected, until they are replayed or dropped.

It has no storage of its own: quarantined records are rows of bronze, and rejections are in silver's side table.
"""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, reduce
from operator import and_, or_

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.bronze.decide import PAIR_STAGE
from cdc_lake.columns import KAFKA, REJECTED_ENTRY, REJECTED_STAGE
from cdc_lake.config import Config
from cdc_lake.decode.envelope import is_snapshot_edge
from cdc_lake.errors import ConfigError
from cdc_lake.lake.lake import BronzeTable, Lake
from cdc_lake.lake.readers import FilesReader, without_spark
from cdc_lake.operations.story import position_text
from cdc_lake.points import milliseconds
from cdc_lake.runs.context import PARALLEL_READS, files_of, lake_of, select_landed
from cdc_lake.silver.events import kafka_position
from cdc_lake.spark.session import build_session
from cdc_lake.storage.files import Files
from cdc_lake.tables.contract import progress_of

COORDINATES = ("topic", "generation", "partition", "offset")
NOT_DROPPABLE = "stays"
"""The column with the reason why a record cannot be dropped; null if it can."""
_OFFSET_RANGE = re.compile(r"(?:(\d+)/)?(\d+)[@:](\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of one partition, from `first` to `last`, both included."""

    generation: int
    partition: int
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "OffsetRange":
        """Parse `0@120`, `0@120-180` or, for a re-created topic, `1/0@120`. A colon works in place of `@`.

        Raises:
            ConfigError: the text is not an offset range.
        """
        match = _OFFSET_RANGE.fullmatch(text)
        if not match:
            raise ConfigError(text, "invalid offset range", "write partition@offset, for example 0@120 or 0@120-180")
        generation, partition, first, last = match.groups()
        return cls(int(generation or 0), int(partition), int(first), int(last or first))


@dataclass(frozen=True)
class Selection:
    """Selects quarantined records; all conditions must hold.

    Attributes:
        reasons: stages, codes and parts of messages; one of them must match.
        since, until: when the record was written to Kafka, ISO text with a zone; `until` is excluded.
        offsets: offset ranges; one of them must match.
        dropped: select dropped records instead of quarantined ones.

    Raises:
        ConfigError: a text is not a time, or has no zone.
    """

    reasons: Sequence[str] = ()
    since: str | None = None
    until: str | None = None
    offsets: Sequence[OffsetRange] = ()
    dropped: bool = False

    def __post_init__(self) -> None:
        for time in (self.since, self.until):
            if time is not None:
                milliseconds(time)

    def condition(self) -> Column:
        """Whether a record is selected. Columns in: those of `quarantined_rows`."""
        stage, code, message = (F.col(f"error.{name}") for name in ("stage", "code", "message"))
        named = [(stage == text) | (code == text) | message.contains(text) for text in self.reasons]
        within = [
            (F.col("generation") == offset_range.generation)
            & (F.col("partition") == offset_range.partition)
            & F.col("offset").between(offset_range.first, offset_range.last)
            for offset_range in self.offsets
        ]
        parts = [reduce(or_, alternatives) for alternatives in (named, within) if alternatives]
        written_ms = F.unix_millis("kafka_timestamp")
        if self.since is not None:
            parts.append(written_ms >= milliseconds(self.since))
        if self.until is not None:
            parts.append(written_ms < milliseconds(self.until))
        return reduce(and_, parts, F.lit(True))


ALL = Selection()
"""Selects all quarantined records."""


def selected(lake: Lake, topic: str, spark: SparkSession, selection: Selection) -> DataFrame:
    """The selected records of a topic's quarantine.

    A tombstone that is quarantined with its delete is selected with it, and selects it.

    Columns out: those of `quarantined_rows`.
    """
    in_partition = W.partitionBy("generation", "partition").orderBy("offset")
    is_named, is_with_last = selection.condition(), F.col("error.stage") == PAIR_STAGE
    is_of_last = is_with_last & F.lag(is_named).over(in_partition)
    is_of_next = F.lead(is_with_last & is_named).over(in_partition)
    is_selected = is_named | F.coalesce(is_of_last, F.lit(False)) | F.coalesce(is_of_next, F.lit(False))
    rows = quarantined_rows(lake, topic, spark, dropped=selection.dropped)
    return rows.withColumn("is_selected", is_selected).where("is_selected").drop("is_selected")


def quarantined_rows(lake: Lake, topic: str, spark: SparkSession, *, dropped: bool) -> DataFrame:
    """The quarantined records of a topic, or the dropped ones.

    Columns out: those of bronze, where `error` of a rejected event names the unmet expectations; `stays` string,
    see `NOT_DROPPABLE`.
    """
    bronze = lake.bronze(spark, topic)
    rows = bronze.read().withColumn(NOT_DROPPABLE, F.lit(None).cast("string"))
    if dropped:
        return rows.where(F.col("status") == "dropped")
    waiting = rows.where(F.col("status") == "quarantined")
    rejected = _rejected(lake, topic, spark, bronze)
    return waiting if rejected is None else waiting.unionByName(rejected)


def _rejected(lake: Lake, topic: str, spark: SparkSession, bronze: BronzeTable) -> DataFrame | None:
    """The events that silver rejected and that were not replayed; None if there are none.

    Columns out: `quarantined_rows`'s.
    """
    landed = progress_of(bronze)
    verdicts: list[DataFrame] = []
    reached: list[int] = []
    may_be = False
    for target in lake.silver(topic):
        progress = target.open(spark).progress()
        if progress is None:
            continue
        may_be = may_be or (progress.side is not None and REJECTED_ENTRY in progress.side.kinds)
        entries = target.open_side(spark).read(progress.side).where(F.col("kind") == REJECTED_ENTRY)
        verdicts.append(entries.select(KAFKA, F.from_json("image", "array<string>").alias(f"unmet_{len(verdicts)}")))
        reached.append(bronze.reached_by(progress, landed) or 0)
    if not may_be:
        return None
    places = reduce(DataFrame.unionByName, (one.select(KAFKA) for one in verdicts)).distinct()
    rows = bronze.read().where(F.col("status") == "ok").withColumn(KAFKA, kafka_position())
    rows = rows.join(F.broadcast(places), KAFKA, "left_semi")
    judged, took = [], F.lit(False)
    for number, entries in enumerate(verdicts):
        rows = rows.join(F.broadcast(entries), KAFKA, "left")
        # A replayed event is checked again in silver's next run.
        has_judged, unmet = F.col("batch") <= reached[number], F.col(f"unmet_{number}")
        judged.append(F.when(has_judged, unmet))
        took = took | (has_judged & unmet.isNull())
    rows = rows.withColumn("unmet", F.array_distinct(F.flatten(F.array_compact(F.array(*judged)))))
    error = F.struct(
        F.lit(REJECTED_STAGE).alias("stage"),
        F.lit("unmet").alias("code"),
        F.concat(F.lit("it does not meet "), F.array_join("unmet", ", ")).alias("message"),
    )
    stays = F.when(took, "another silver table of the topic has merged it").when(
        is_snapshot_edge(F.col("snapshot")), "it begins or ends a snapshot, which silver needs"
    )
    return (
        rows.where(F.size("unmet") > 0)
        .withColumns({"error": error, NOT_DROPPABLE: stays})
        .drop(KAFKA, "unmet", *(f"unmet_{number}" for number in range(len(verdicts))))
    )


class ReasonGroup(BaseModel):
    """The records of a table that are quarantined for the same reason.

    Attributes:
        reason: the message, which never contains values of records.
        first, last: when the oldest and the newest of them were written to Kafka.
        example: the Kafka position of the first, in the form of `OffsetRange.parse`.
    """

    table: str
    stage: str
    code: str
    reason: str
    records: int
    first: datetime
    last: datetime
    example: str


class ListedRecord(BaseModel):
    """A quarantined record in a list.

    Attributes:
        place: its Kafka position, in the form of `OffsetRange.parse`.
        written_at: when it was written to Kafka.
        batch: the bronze commit that landed it.
    """

    table: str
    place: str
    written_at: datetime
    batch: int
    stage: str
    code: str
    reason: str


class QuarantineListing(BaseModel):
    """Quarantined records.

    Attributes:
        groups: groups by table and reason, the largest of a table first.
        records: single records in log order, with `each`.
        left_out: how many groups or records are beyond the limit.
    """

    groups: list[ReasonGroup] = []
    records: list[ListedRecord] = []
    left_out: int = 0


def list_quarantined(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    selection: Selection = ALL,
    each: bool = False,
    limit: int = 20,
) -> QuarantineListing:
    """List quarantined records, without their values.

    Args:
        tables: topic names or globs.
        each: list single records instead of reasons.
        limit: maximum number of groups or records per table.

    Raises:
        UnknownTableError: a name or glob matches no bronze table.
    """
    listing, lake = QuarantineListing(), lake_of(config)
    files = files_of(lake, spark)
    topics = select_landed(lake, files, tables)
    if not selection.dropped:
        topics = _with_quarantine(lake, files, topics)
    for topic in topics:
        spark = spark or build_session("cdc_lake quarantine", config.max_record_bytes)
        rows = selected(lake, topic, spark, selection).select(
            F.struct(*COORDINATES).alias("at"),
            kafka_position().alias("place"),
            F.unix_millis("kafka_timestamp").alias("written_ms"),
            "first_batch",
            *("error.stage", "error.code", F.col("error.message").alias("reason")),
        )
        if each:
            shown = rows.orderBy("place").limit(limit).collect()
            listing.records += [_listed_record(topic, row) for row in shown]
        else:
            rows = rows.groupBy("stage", "code", "reason").agg(
                F.count("*").alias("records"),
                F.min("written_ms").alias("first"),
                F.max("written_ms").alias("last"),
                F.min_by("at", "place").alias("at"),
            )
            shown = rows.orderBy(F.desc("records"), "stage", "code", "reason").limit(limit).collect()
            listing.groups += [_reason_group(topic, row) for row in shown]
        if len(shown) == limit:
            listing.left_out += rows.count() - limit
    return listing


def _with_quarantine(lake: Lake, files: Files, topics: Sequence[str]) -> list[str]:
    """The topics that have quarantined records or rejected events, and those that only Spark can read."""
    reader = FilesReader(lake, files)

    def is_empty(topic: str) -> bool:
        silver = ((target, reader.silver(target)) for target in lake.silver(topic))
        rejected = (reader.rejected(target, newest.progress) for target, newest in silver if newest)
        return not (reader.bronze(topic).rows.quarantined() or any(rejected))

    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        found = pool.map(lambda topic: without_spark(partial(is_empty, topic)), topics)
        return [topic for topic, known in zip(topics, found, strict=True) if known != (True,)]


def _listed_record(topic: str, row: Row) -> ListedRecord:
    return ListedRecord(
        table=topic,
        place=position_text(row["at"]),
        written_at=utc_time(row["written_ms"]),
        batch=row["first_batch"],
        stage=row["stage"],
        code=row["code"],
        reason=row["reason"],
    )


def _reason_group(topic: str, row: Row) -> ReasonGroup:
    return ReasonGroup(
        table=topic,
        stage=row["stage"],
        code=row["code"],
        reason=row["reason"],
        records=row["records"],
        first=utc_time(row["first"]),
        last=utc_time(row["last"]),
        example=position_text(row["at"]),
    )


def utc_time(ms: int) -> datetime:
    """A Kafka timestamp as UTC time."""
    return datetime.fromtimestamp(ms / 1000, UTC)
