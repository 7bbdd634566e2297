"""The broker: which topics there are, how far their logs reach, and a range of records as a DataFrame."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession

from cdc_lake.brokers import Admin, BrokerLogin
from cdc_lake.config import StartPosition
from cdc_lake.errors import CdcLakeError, ConfigError
from cdc_lake.points import milliseconds

_INTERNAL_PREFIXES = ("__", "_connect_", "_schemas")
_FETCH = {
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "10000",
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}


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
    """

    name: str
    id: str
    partitions: Mapping[int, Span]


class Kafka(Protocol):
    """What bronze asks of a Kafka cluster."""

    @property
    def bootstrap_servers(self) -> str:
        """Where it is, for messages."""

    def topics(self) -> list[str]:
        """The topics there are, without those that Kafka and Connect keep for themselves.

        Raises:
            InfrastructureError: the broker does not answer.
            ConfigError: it refuses the login.
        """

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        """What each of `topics` holds now, by one listing for all of them.

        Raises:
            InfrastructureError: the broker does not answer.
        """

    def read(self, spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        """The records of `spans`, committed ones only.

        Columns out: `key`, `value` binary, `topic`, `partition`, `offset`, `timestamp`, `headers`.
        """

    def offsets_at(self, log: TopicLog, timestamp_ms: int) -> dict[int, int]:
        """The first offset of each partition whose record was written then or later; the end where there is none.

        Raises:
            InfrastructureError: the broker does not answer.
        """

    def timestamps_ms(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """When the first record at or behind each offset was written, by partition; without those that have none.

        Raises:
            InfrastructureError: the broker does not answer.
        """


def offsets_of(place: StartPosition, log: TopicLog, broker: Kafka) -> dict[int, int]:
    """The offset that a place is, by partition.

    Raises:
        ConfigError: the topic has no such partition, or no such offset any more or yet.
        InfrastructureError: the broker does not answer.
    """
    match place:
        case "earliest":
            return {partition: span.start for partition, span in log.partitions.items()}
        case "latest":
            return {partition: span.end for partition, span in log.partitions.items()}
        case datetime():
            return broker.offsets_at(log, milliseconds(place))
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


class Broker:
    """A Kafka cluster.

    Args:
        bootstrap_servers: host:port, comma separated.
        timeout_seconds: for one question.
        login: how it knows who asks.
    """

    def __init__(self, bootstrap_servers: str, timeout_seconds: float, login: BrokerLogin | None = None) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._timeout = timeout_seconds
        self._login = login or BrokerLogin()
        self._admin = Admin(bootstrap_servers, self._login)

    def topics(self) -> list[str]:
        """See `Kafka`."""
        try:
            topics = self._admin.client.list_topics(timeout=self._timeout).topics
        except KafkaException as exc:
            raise self._down(exc) from exc
        return sorted(topic for topic in topics if not topic.startswith(_INTERNAL_PREFIXES))

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        """See `Kafka`."""
        try:
            described = {
                topic: future.result(self._timeout)
                for topic, future in self._admin.client.describe_topics(
                    TopicCollection(list(topics)), request_timeout=self._timeout
                ).items()
            }
            partitions = [
                TopicPartition(topic, info.id) for topic, known in described.items() for info in known.partitions
            ]
            starts = self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
            ends = self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        except (KafkaException, TimeoutError) as exc:
            raise self._down(exc) from exc
        return {
            topic: TopicLog(
                topic,
                str(known.topic_id),
                {p.id: Span(starts[topic, p.id], ends[topic, p.id]) for p in known.partitions},
            )
            for topic, known in described.items()
        }

    def read(self, spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        """See `Kafka`."""
        options = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "assign": json.dumps({topic: list(spans)}),  # `subscribe` wants a span of every partition
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "startingOffsets": json.dumps({topic: {str(p): span.start for p, span in spans.items()}}),
            "endingOffsets": json.dumps({topic: {str(p): span.end for p, span in spans.items()}}),
            **_FETCH,
            **self._login.options,
        }
        return spark.read.format("kafka").options(**options).load()

    def offsets_at(self, log: TopicLog, timestamp_ms: int) -> dict[int, int]:
        """See `Kafka`."""
        partitions = [TopicPartition(log.name, partition) for partition in log.partitions]
        try:
            found = self._offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))
        except (KafkaException, TimeoutError) as exc:
            raise self._down(exc) from exc
        ends = {partition: span.end for partition, span in log.partitions.items()}
        return {p: ends[p] if (offset := found[log.name, p]) < 0 else min(offset, ends[p]) for p in log.partitions}

    def timestamps_ms(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """See `Kafka`."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "cdc_lake-status",  # asked for by the client; nothing is ever committed in it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
                **self._login.client,
            }
        )
        found: dict[int, int] = {}
        try:
            consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
            while len(found) < len(offsets):
                record = consumer.poll(self._timeout)
                if record is None:
                    break
                if record.error():
                    raise KafkaException(record.error())
                partition = record.partition() or 0
                if partition not in found:
                    found[partition] = record.timestamp()[1]
                    consumer.pause([TopicPartition(topic, partition)])
        except KafkaException as exc:
            raise self._down(exc) from exc
        finally:
            consumer.close()
        return found

    def _offsets(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = self._admin.client.list_offsets(
            {partition: spec for partition in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._timeout,
        )
        return {(p.topic, p.partition): future.result(self._timeout).offset for p, future in asked.items()}

    def _down(self, exc: Exception) -> CdcLakeError:
        todo = "see that it runs and can be reached from here, then run again; nothing was committed"
        return self._admin.down(exc, todo)
