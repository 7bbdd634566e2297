"""The quarantine: records that cannot be read, and events that silver rejected, until somebody mends or drops them.

Nothing is kept for it beside the tables: a record waits in bronze, and what silver rejected stands in its side table.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_, or_

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.bronze.decide import PAIR_STAGE
from cdc_lake.columns import KAFKA, REJECTED_ENTRY
from cdc_lake.config import Config
from cdc_lake.decode.envelope import is_snapshot_edge
from cdc_lake.errors import ConfigError
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.operations.story import position_text
from cdc_lake.points import milliseconds
from cdc_lake.runs.context import lake_of, select_landed, silver_targets
from cdc_lake.silver.events import place
from cdc_lake.spark.session import build_session
from cdc_lake.storage.files import Storage
from cdc_lake.tables.contract import progress_of

COORDINATES = ("topic", "generation", "partition", "offset")
REJECTED_STAGE = "expectation"
"""The stage of events that silver rejected."""
NOT_DROPPABLE = "stays"
"""Column of what waits: why it cannot be dropped; null if it can."""
_OFFSET_RANGE = re.compile(r"(?:(\d+)/)?(\d+)[@:](\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of one partition, from `first` to `last`, which is one of them."""

    generation: int
    partition: int
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "OffsetRange":
        """What a person writes: `0@120`, `0@120-180`; of a topic created again `1/0@120`. A colon does as well.

        Raises:
            ConfigError: it is none.
        """
        found = _OFFSET_RANGE.fullmatch(text)
        if not found:
            raise ConfigError(text, "this is no place", "write partition@offset, as in 0@120 or 0@120-180")
        generation, partition, first, last = found.groups()
        return cls(int(generation or 0), int(partition), int(first), int(last or first))


@dataclass(frozen=True)
class Selection:
    """Which records of a quarantine are meant: those that all of this is true of.

    Attributes:
        reasons: stages, codes and parts of messages; a record has any of them.
        since, until: when it was written to Kafka, ISO text with a zone; the second is not included.
        places: a record is in any of them.
        dropped: those that were dropped; else those that wait.

    Raises:
        ConfigError: a time is none, or has no zone.
    """

    reasons: Sequence[str] = ()
    since: str | None = None
    until: str | None = None
    places: Sequence[OffsetRange] = ()
    dropped: bool = False

    def __post_init__(self) -> None:
        for time in (self.since, self.until):
            if time is not None:
                milliseconds(time)

    def condition(self) -> Column:
        """Whether a record is meant. Columns in: `quarantined_rows`'s."""
        stage, code, message = (F.col(f"error.{name}") for name in ("stage", "code", "message"))
        named = [(stage == said) | (code == said) | message.contains(said) for said in self.reasons]
        within = [
            (F.col("generation") == one.generation)
            & (F.col("partition") == one.partition)
            & F.col("offset").between(one.first, one.last)
            for one in self.places
        ]
        parts = [reduce(or_, several) for several in (named, within) if several]
        written_ms = F.unix_millis("kafka_timestamp")
        if self.since is not None:
            parts.append(written_ms >= milliseconds(self.since))
        if self.until is not None:
            parts.append(written_ms < milliseconds(self.until))
        return reduce(and_, parts, F.lit(True))


ALL = Selection()
"""All that waits."""


def selected(config: Config, topic: str, spark: SparkSession, selection: Selection) -> DataFrame:
    """The records of a topic's quarantine that are meant.

    A tombstone that waits with its delete goes where that goes: if one of the two is meant, both are.

    Columns out: `quarantined_rows`'s.
    """
    in_partition = W.partitionBy("generation", "partition").orderBy("offset")
    is_named, is_with_last = selection.condition(), F.col("error.stage") == PAIR_STAGE
    is_of_last = is_with_last & F.lag(is_named).over(in_partition)
    is_of_next = F.lead(is_with_last & is_named).over(in_partition)
    is_meant = is_named | F.coalesce(is_of_last, F.lit(False)) | F.coalesce(is_of_next, F.lit(False))
    found = quarantined_rows(config, topic, spark, dropped=selection.dropped)
    return found.withColumn("is_meant", is_meant).where("is_meant").drop("is_meant")


def quarantined_rows(config: Config, topic: str, spark: SparkSession, *, dropped: bool) -> DataFrame:
    """What waits in a topic's quarantine, or was dropped from it.

    Columns out: bronze's, `error` telling of an event that silver rejected what it does not meet; `stays` string.
    """
    bronze = lake_of(config).bronze(spark, topic)
    rows = bronze.read().withColumn(NOT_DROPPABLE, F.lit(None).cast("string"))
    if dropped:
        return rows.where(F.col("status") == "dropped")
    waiting = rows.where(F.col("status") == "quarantined")
    rejected = _rejected(config, topic, spark, bronze)
    return waiting if rejected is None else waiting.unionByName(rejected)


def _rejected(config: Config, topic: str, spark: SparkSession, bronze: BronzeTable) -> DataFrame | None:
    """The events that a silver table of the topic rejected and nobody brought back since; none if there are none.

    Columns out: `quarantined_rows`'s.
    """
    landed = progress_of(bronze)
    verdicts: list[DataFrame] = []
    reached: list[int] = []
    may_be = False
    for target in silver_targets(config, topic):
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
    rows = bronze.read().where(F.col("status") == "ok").withColumn(KAFKA, place())
    rows = rows.join(F.broadcast(places), KAFKA, "left_semi")
    judged, took = [], F.lit(False)
    for number, entries in enumerate(verdicts):
        rows = rows.join(F.broadcast(entries), KAFKA, "left")
        # One that was brought back since waits for silver, not for anybody else.
        has_judged, unmet = F.col("batch") <= reached[number], F.col(f"unmet_{number}")
        judged.append(F.when(has_judged, unmet))
        took = took | (has_judged & unmet.isNull())
    rows = rows.withColumn("unmet", F.array_distinct(F.flatten(F.array_compact(F.array(*judged)))))
    error = F.struct(
        F.lit(REJECTED_STAGE).alias("stage"),
        F.lit("unmet").alias("code"),
        F.concat(F.lit("it does not meet "), F.array_join("unmet", ", ")).alias("message"),
    )
    stays = F.when(took, "one of the tables that silver is held in has taken it").when(
        is_snapshot_edge(F.col("snapshot")), "it begins or ends a snapshot, which counts"
    )
    return (
        rows.where(F.size("unmet") > 0)
        .withColumns({"error": error, NOT_DROPPABLE: stays})
        .drop(KAFKA, "unmet", *(f"unmet_{number}" for number in range(len(verdicts))))
    )


class ReasonGroup(BaseModel):
    """Records of a table that are in quarantine for the same reason.

    Attributes:
        reason: the message; never a record's values.
        first, last: when the oldest and the newest of them were written to Kafka.
        example: the place of the first in the log, as `OffsetRange.parse` takes it.
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
    """A record in quarantine.

    Attributes:
        place: as `OffsetRange.parse` takes it.
        written_at: to Kafka.
        batch: the bronze commit that brought it.
    """

    table: str
    place: str
    written_at: datetime
    batch: int
    stage: str
    code: str
    reason: str


class Listing(BaseModel):
    """What is in quarantine.

    Attributes:
        groups: by table and reason, the largest of a table first.
        records: one by one, in the order of the log, if that was asked for.
        left_out: how many groups, or records, there are beside these.
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
) -> Listing:
    """What is in quarantine, without a word of what the records hold.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session; made when there is none.
        selection: which records.
        each: one by one, not by reason.
        limit: so many groups or records of a table at most.

    Raises:
        UnknownTableError: a name or glob fits no bronze table.
        InstallationError: Spark cannot be started with what is installed.
    """
    spark = spark or build_session("cdc_lake quarantine", config.max_record_bytes)
    found = Listing()
    for topic in select_landed(config, Storage(spark), tables):
        rows = selected(config, topic, spark, selection).select(
            F.struct(*COORDINATES).alias("at"),
            place().alias("place"),
            F.unix_millis("kafka_timestamp").alias("written_ms"),
            "first_batch",
            *("error.stage", "error.code", F.col("error.message").alias("reason")),
        )
        if each:
            shown = rows.orderBy("place").limit(limit).collect()
            found.records += [_listed_record(topic, row) for row in shown]
        else:
            rows = rows.groupBy("stage", "code", "reason").agg(
                F.count("*").alias("records"),
                F.min("written_ms").alias("first"),
                F.max("written_ms").alias("last"),
                F.min_by("at", "place").alias("at"),
            )
            shown = rows.orderBy(F.desc("records"), "stage", "code", "reason").limit(limit).collect()
            found.groups += [_reason_group(topic, row) for row in shown]
        if len(shown) == limit:
            found.left_out += rows.count() - limit
    return found


def _listed_record(topic: str, row: Row) -> ListedRecord:
    return ListedRecord(
        table=topic,
        place=position_text(row["at"]),
        written_at=moment(row["written_ms"]),
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
        first=moment(row["first"]),
        last=moment(row["last"]),
        example=position_text(row["at"]),
    )


def moment(ms: int) -> datetime:
    """A time of Kafka's, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
