"""Where the records of topics are: which topics there are, how far their logs reach, and ranges of records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from cdc_lake.config import StartPosition
from cdc_lake.decode.identity import Identity
from cdc_lake.errors import CdcLakeError, ConfigError
from cdc_lake.points import milliseconds

_OVERFLOW = "java.lang.ArithmeticException: long overflow"
"""What Spark says of a Kafka timestamp that is not within its microseconds."""


@dataclass(frozen=True)
class Span:
    """Offsets of one partition: from `start`, up to and without `end`. They may have holes, so it is no row count."""

    start: int
    end: int


@dataclass(frozen=True)
class TopicLog:
    """What a topic holds now.

    Attributes:
        name: the topic.
        id: Kafka's own id of it, another one once the topic is deleted and created again.
        partitions: what can be read of each: up to the last stable offset.
        problem: why nothing can be said of it, and nothing be read.
        cuts: by partition the offsets, rising, at which a range that is read should end, if not at the log's end; where
            there are none it may end anywhere.
    """

    name: str
    id: str
    partitions: Mapping[int, Span]
    problem: CdcLakeError | None = None
    cuts: Mapping[int, Sequence[int]] = field(default_factory=dict)


class TopicSource(Protocol):
    """What bronze asks of a Kafka cluster, or of the files that a sink connector wrote.

    Each of these raises `InfrastructureError` when nobody answers, and `ConfigError` when the login is refused.
    """

    @property
    def name(self) -> str:
        """What and where it is, for messages."""

    def warnings(self, topic: str) -> Sequence[str]:
        """What each report has to say of a topic that was listed."""

    def topics(self) -> list[str]:
        """The topics there are, without those that Kafka and Connect keep for themselves."""

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        """What each of `topics` holds now, by one listing for all of them."""

    def read(self, spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        """The records of `spans`, committed ones only.

        Columns out: `key`, `value` binary, `topic`, `partition`, `offset`, `timestamp`, `headers`.
        """

    def read_around(
        self, spark: SparkSession, topic: str, spans: Mapping[int, Span]
    ) -> tuple[Mapping[int, Span], DataFrame]:
        """The first part of `spans`, where Spark fails to `read` them for a timestamp that it cannot hold.

        A part ends before such a record, or is a few of them, whose `timestamp` is null.
        """

    def offsets_at(self, log: TopicLog, timestamp_ms: int) -> dict[int, int]:
        """The first offset of each partition whose record was written then or later; the end where there is none."""

    def timestamps_ms(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """When the first record at or behind each offset was written, by partition; without those that have none."""

    def first_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Identity]:
        """The first record at or behind each offset, by partition; without those that have none, and without partitions
        that never give an offset out twice.
        """

    def left_out(self, spans: Mapping[int, Span], records: int) -> int:
        """How many records of `spans` did not get into the source, of which `records` were read."""


def has_no_room_for_a_timestamp(error: Exception) -> bool:
    """Whether Spark failed to `read` for a timestamp that it cannot hold."""
    return _OVERFLOW in str(error)


def offsets_of(place: StartPosition, log: TopicLog, source: TopicSource) -> dict[int, int]:
    """The offset that a place is, by partition.

    Raises:
        ConfigError: the topic has no such partition, or no such offset any more or yet.
        InfrastructureError: nobody answers.
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
            there = f"it has partitions 0 to {max(log.partitions)}"
            raise ConfigError(f"{log.name}[{partition}]", "the topic has no such partition", there)
        if not span.start <= offset <= span.end:
            raise ConfigError(
                f"{log.name}[{partition}]",
                f"there is no offset {offset}: the log begins at {span.start} and ends before {span.end}",
                "name an offset that is there, a time, `earliest` or `latest`",
            )
    return {partition: place.get(partition, span.start) for partition, span in log.partitions.items()}
