"""Read records from Kafka."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import takewhile

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession

from cdc_lake.brokers import Admin, BrokerLogin, permanent_error
from cdc_lake.sources.logs import RECORD_COLUMNS, Span, TopicLog
from cdc_lake.spark.arrow_stage import from_rows
from cdc_lake.tables.progress import NO_TIMESTAMP_MS, Identity

_INTERNAL_PREFIXES = ("__", "_connect_", "_schemas")
_FETCH = {
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "10000",
    # A task that has read its records waits this long for more; by default half a second.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
_LATEST_MS = ((1 << 63) - 1) // 1000
"""Spark stores timestamps in microseconds."""
_CURE = "check that it runs and is reachable from this machine, then run again"
_FEW_RECORDS, _FEW_BYTES = 1000, 16 << 20
_SMALL_QUEUE = {"queued.max.messages.kbytes": _FEW_BYTES >> 10}


class Broker:
    """A Kafka cluster.

    Args:
        bootstrap_servers: host:port, comma separated.
        timeout_seconds: for one request.
        warnings: warnings about the settings, for each report.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        timeout_seconds: float,
        login: BrokerLogin | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self.name = f"Kafka at {bootstrap_servers}"
        self._warnings = warnings
        self._bootstrap_servers = bootstrap_servers
        self._timeout = timeout_seconds
        self._login = login or BrokerLogin()
        self._admin = Admin(bootstrap_servers, self._login)

    def warnings(self, topic: str) -> Sequence[str]:
        return self._warnings

    def topics(self) -> list[str]:
        self._admin.check_reachable(self._timeout, _CURE)
        with self._translated():
            topics = self._admin.client.list_topics(timeout=self._timeout).topics
        return sorted(topic for topic in topics if not topic.startswith(_INTERNAL_PREFIXES))

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        self._admin.check_reachable(self._timeout, _CURE)
        with self._translated():
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
        return {
            topic: TopicLog(
                topic,
                str(known.topic_id),
                {p.id: Span(starts[topic, p.id], ends[topic, p.id]) for p in known.partitions},
            )
            for topic, known in described.items()
        }

    def read(self, spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self._bootstrap_servers,
            "assign": json.dumps({topic: list(spans)}),  # `subscribe` requires offsets of all partitions
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "startingOffsets": json.dumps({topic: {str(p): span.start for p, span in spans.items()}}),
            "endingOffsets": json.dumps({topic: {str(p): span.end for p, span in spans.items()}}),
            **_FETCH,
            **self._login.options,
        }
        return spark.read.format("kafka").options(**options).load()

    def read_around(
        self, spark: SparkSession, topic: str, spans: Mapping[int, Span]
    ) -> tuple[Mapping[int, Span], DataFrame]:
        """See `TopicSource`. librdkafka finds the records, which takes as long as fetching `spans`."""
        ends = {
            partition: next((_offset(r) for r in self._records(topic, partition, span) if not _fits(r)), span.end)
            for partition, span in spans.items()
        }
        if before := {p: Span(spans[p].start, end) for p, end in ends.items() if spans[p].start < end}:
            return before, self.read(spark, topic, before)
        few, rows, left_bytes = dict[int, Span](), list[tuple[object, ...]](), _FEW_BYTES
        for partition, span in spans.items():
            for r in takewhile(lambda r: not _fits(r), self._records(topic, partition, span)):
                key, value = r.key(), r.value()
                rows.append((key, value, topic, partition, _offset(r), None, r.headers()))
                few[partition] = Span(span.start, _offset(r) + 1)
                left_bytes -= len(key or b"") + len(value or b"")
                if left_bytes <= 0 or len(rows) == _FEW_RECORDS:
                    return few, from_rows(spark, rows, RECORD_COLUMNS)
        return few, from_rows(spark, rows, RECORD_COLUMNS)

    def offsets_at(self, log: TopicLog, timestamp_ms: int) -> dict[int, int]:
        partitions = [TopicPartition(log.name, partition) for partition in log.partitions]
        with self._translated():
            offsets = self._offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))
        ends = {partition: span.end for partition, span in log.partitions.items()}
        return {p: ends[p] if (offset := offsets[log.name, p]) < 0 else min(offset, ends[p]) for p in log.partitions}

    def timestamps_ms(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        return {partition: identity.timestamp_ms for partition, identity in self.first_records(topic, offsets).items()}

    def first_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Identity]:
        starts = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        identities: dict[int, Identity] = {}
        left = set(offsets)
        with self._consuming(starts, {"queued.min.messages": 1}) as consumer:  # one fetch per partition is enough
            while left:
                record = consumer.poll(self._timeout)
                if record is None:
                    break
                error, partition = record.error(), record.partition() or 0
                if error and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if partition not in left:
                    continue
                if not error:
                    timestamp_ms = record.timestamp()[1] if _fits(record) else NO_TIMESTAMP_MS
                    identities[partition] = Identity.of(_offset(record), timestamp_ms, record.key(), record.value())
                left.remove(partition)
                consumer.pause([TopicPartition(topic, partition)])
        return identities

    def newest_records(self, logs: Sequence[TopicLog], most: int) -> dict[str, list[Message]]:
        """The newest retained records of each topic, at most `most` of a partition, without those of open transactions.

        Raises:
            ConfigError: this login may not read a topic.
        """
        ends = {(log.name, p): span for log in logs for p, span in log.partitions.items() if span.start < span.end}
        starts = [TopicPartition(*place, max(span.start, span.end - most)) for place, span in ends.items()]
        records: dict[str, list[Message]] = {log.name: [] for log in logs}
        with self._consuming(starts, _SMALL_QUEUE) as consumer:
            while ends and (record := consumer.poll(self._timeout)) is not None:
                error, place = record.error(), (record.topic() or "", record.partition() or 0)
                if error and error.code() != KafkaError._PARTITION_EOF:
                    raise permanent_error(place[0] or self.name, str(error)) or KafkaException(error)
                if not error:
                    records[place[0]].append(record)
                if place in ends and (error or _offset(record) >= ends[place].end - 1):
                    del ends[place]
        return records

    def topic_settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """The brokers' settings of each topic, such as `retention.ms`.

        Raises:
            ConfigError: this login may not describe a topic's settings.
        """
        asked = self._admin.client.describe_configs(
            [ConfigResource(ResourceType.TOPIC, topic) for topic in topics], request_timeout=self._timeout
        )
        with self._translated():
            found = {resource.name: future.result(self._timeout) for resource, future in asked.items()}
        return {topic: {name: str(entry.value) for name, entry in found[topic].items()} for topic in topics}

    def skipped_records(self, spans: Mapping[int, Span], records: int) -> int:
        """See `TopicSource`. Gaps in Kafka's offsets are transaction markers and compacted records."""
        return 0

    @contextmanager
    def _consuming(self, starts: list[TopicPartition], settings: Mapping[str, object]) -> Iterator[Consumer]:
        """A consumer of the partitions from these offsets on."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "cdc_lake-status",  # required by the client; offsets are never committed
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 0,
                **settings,
                **self._login.client,
            }
        )
        with closing(consumer), self._translated():
            consumer.assign(starts)
            yield consumer

    def _records(self, topic: str, partition: int, span: Span) -> Iterator[Message]:
        with self._consuming([TopicPartition(topic, partition, span.start)], _SMALL_QUEUE) as consumer:
            while (record := consumer.poll(self._timeout)) is not None:
                error = record.error()
                if error and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if error or _offset(record) >= span.end:
                    return
                yield record
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _offsets(self, partitions: Sequence[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = self._admin.client.list_offsets(
            {partition: spec for partition in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._timeout,
        )
        return {(p.topic, p.partition): future.result(self._timeout).offset for p, future in asked.items()}

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (KafkaException, TimeoutError) as exc:
            raise permanent_error(self.name, str(exc)) or self._admin.unavailable_error(exc, _CURE) from exc


def _offset(record: Message) -> int:
    return record.offset() or 0


def _fits(record: Message) -> bool:
    """Whether the record's timestamp is in Spark's range."""
    return -_LATEST_MS <= record.timestamp()[1] <= _LATEST_MS
