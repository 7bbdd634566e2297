"""The contract of a source: list topics, their logs, and read ranges of records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from cdc_lake.config import StartPosition
from cdc_lake.errors import CdcLakeError, ConfigError
from cdc_lake.points import milliseconds
from cdc_lake.tables.progress import Identity

RECORD_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
"""Spark's schema of the records that a source reads."""
_OVERFLOW = "java.lang.ArithmeticException: long overflow"
"""What Spark says of a Kafka timestamp that is not within its microseconds."""


@dataclass(frozen=True)
class Span:
    """A range of offsets of one partition, `end` exclusive. It may have gaps, so it is not a number of records."""

    start: int
    end: int


def count_offsets(spans: Mapping[int, Span]) -> int:
    """The number of offsets in the spans of all partitions; see `Span`."""
    return sum(span.end - span.start for span in spans.values())


@dataclass(frozen=True)
class TopicLog:
    """The current log of a topic.

    Attributes:
        id: Kafka's topic id, which changes if the topic is deleted and re-created.
        partitions: the readable offsets of each partition, up to the last stable offset.
        problem: why the topic cannot be listed or read.
        cuts: partition -> increasing offsets at which a range should end, unless at the log's end; without cuts it may
            end anywhere.
    """

    name: str
    id: str
    partitions: Mapping[int, Span]
    problem: CdcLakeError | None = None
    cuts: Mapping[int, Sequence[int]] = field(default_factory=dict)


class TopicSource(Protocol):
    """A Kafka cluster, or files that a sink connector wrote.

    Each method raises `InfrastructureError` if the source does not respond, and `ConfigError` if it rejects the login.
    """

    @property
    def name(self) -> str:
        """Its kind and address, for messages."""

    def warnings(self, topic: str) -> Sequence[str]:
        """Warnings about a listed topic, for each report."""

    def topics(self) -> list[str]:
        """All topics except internal ones of Kafka and Connect."""

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        """The current logs of `topics`, from one listing."""

    def read(self, spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        """The committed records of `spans`.

        Columns out: `RECORD_COLUMNS`.
        """

    def read_around(
        self, spark: SparkSession, topic: str, spans: Mapping[int, Span]
    ) -> tuple[Mapping[int, Span], DataFrame]:
        """The first part of `spans`, if Spark fails to `read` them because of a timestamp outside its range.

        The part ends before such a record, or consists of some of them, whose `timestamp` is null.
        """

    def offsets_at(self, log: TopicLog, timestamp_ms: int) -> dict[int, int]:
        """The first offset of each partition with a record at or after a time; the log's end if there is none."""

    def timestamps_ms(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """The timestamp of the first record at or after each offset, by partition; omitted if there is none."""

    def first_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Identity]:
        """The first record at or after each offset, by partition; omitted if there is none, or if the source never
        reuses an offset.
        """

    def skipped_records(self, spans: Mapping[int, Span], records: int) -> int:
        """How many records of `spans` are missing in the source, of which `records` were read."""


def has_no_room_for_a_timestamp(error: Exception) -> bool:
    """Whether Spark failed to `read` for a timestamp that it cannot hold."""
    return _OVERFLOW in str(error)


def offsets_of(place: StartPosition, log: TopicLog, source: TopicSource) -> dict[int, int]:
    """The offsets of a start position, by partition.

    Raises:
        ConfigError: the topic does not have such a partition or offset.
        InfrastructureError: the source does not respond.
    """
    match place:
        case "earliest":
            return {partition: span.start for partition, span in log.partitions.items()}
        case "latest":
            return {partition: span.end for partition, span in log.partitions.items()}
        case datetime():
            return source.offsets_at(log, milliseconds(place))
    for partition, offset in place.items():
        span = log.partitions.get(partition)
        if span is None:
            cure = f"use one of the partitions 0 to {max(log.partitions)}"
            raise ConfigError(f"{log.name}[{partition}]", "the topic does not have this partition", cure)
        if not span.start <= offset <= span.end:
            raise ConfigError(
                f"{log.name}[{partition}]",
                f"offset {offset} is outside the log, which begins at {span.start} and ends before {span.end}",
                "use an offset in this range, a time, `earliest` or `latest`",
            )
    return {partition: place.get(partition, span.start) for partition, span in log.partitions.items()}
