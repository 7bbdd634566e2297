"""Fakes of the servers that bronze reads from: small classes in memory with only what the tests need."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from cdc_lake.sources.logs import RECORD_COLUMNS, Span, TopicLog
from cdc_lake.spark.arrow_stage import from_rows
from cdc_lake.tables.progress import Identity
from support.events import Record


def kafka(spark: SparkSession, records: Iterable[Record]) -> DataFrame:
    """Records as Spark's Kafka source gives them."""
    rows = [(r.key, r.value, r.topic, r.partition, r.offset, r.timestamp, r.headers) for r in records]
    return from_rows(spark, rows, RECORD_COLUMNS)


@dataclass
class _Partition:
    """The log of one partition: its first offset and its records."""

    start: int = 0
    end: int = 0
    records: list[Record] = field(default_factory=list)


class FakeBroker:
    """A fake: a Kafka cluster in memory with the interface of `cdc_lake.sources.logs.TopicSource`.

    Topics and partitions come with their first record. A topic's ids are the same in every FakeBroker: its name and how
    often it was created again.
    """

    name = "a fake broker"

    def __init__(self) -> None:
        self._partitions: dict[str, dict[int, _Partition]] = {}
        self._recreated: dict[str, int] = {}

    def append(self, record: Record) -> None:
        """Add a record at its own offset, which may leave a gap before it."""
        missing = record.partition + 1 - len(self._partitions.get(record.topic, {}))
        if missing > 0:
            self.add_partitions(record.topic, missing)
        log = self._partitions[record.topic][record.partition]
        assert record.offset >= log.end, f"offset {record.offset} is behind the log's end {log.end}"
        log.records.append(record)
        log.end = record.offset + 1

    def add_partitions(self, topic: str, more: int) -> None:
        """Give a topic more empty partitions; one that does not exist is created."""
        there = self._partitions.setdefault(topic, {})
        there.update({partition: _Partition() for partition in range(len(there), len(there) + more)})

    def recreate(self, topic: str, partitions: int | None = None) -> None:
        """Delete a topic and create it again: another id, no records, offsets from 0."""
        count = partitions or len(self._partitions[topic])
        self._partitions[topic] = {}
        self._recreated[topic] = self._recreated.get(topic, 0) + 1
        self.add_partitions(topic, count)

    def remove_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset, like a topic's retention."""
        log = self._partitions[topic][partition]
        log.start, log.end = offset, max(offset, log.end)
        log.records = [record for record in log.records if record.offset >= offset]

    def cut_off(self, topic: str, partition: int, offset: int) -> None:
        """Lose the records from an offset on, like an unclean leader election."""
        log = self._partitions[topic][partition]
        log.start, log.end = min(offset, log.start), offset
        log.records = [record for record in log.records if record.offset < offset]

    def compact_away(self, topic: str, partition: int, offset: int) -> None:
        """Delete one record, like compaction: the log's ends do not change."""
        log = self._partitions[topic][partition]
        log.records = [record for record in log.records if record.offset != offset]

    def warnings(self, topic: str) -> list[str]:
        """See `TopicSource`."""
        return []

    def topics(self) -> list[str]:
        """See `TopicSource`."""
        return sorted(self._partitions)

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        """See `TopicSource`."""
        return {
            topic: TopicLog(
                topic,
                f"{topic}#{self._recreated.get(topic, 0)}",
                {number: Span(log.start, log.end) for number, log in self._partitions[topic].items()},
            )
            for topic in topics
        }

    def read(self, spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        """See `TopicSource`."""
        found: list[Record] = []
        for partition, span in spans.items():
            log = self._partitions[topic][partition]
            assert log.start <= span.start <= span.end <= log.end, f"{topic}[{partition}] holds no {span}"
            found += [record for record in log.records if span.start <= record.offset < span.end]
        return kafka(spark, found)

    def read_around(
        self, spark: SparkSession, topic: str, spans: Mapping[int, Span]
    ) -> tuple[Mapping[int, Span], DataFrame]:
        """See `TopicSource`."""
        return spans, self.read(spark, topic, spans)

    def offsets_at(self, log: TopicLog, timestamp_ms: int) -> dict[int, int]:
        """See `TopicSource`."""
        found = {partition: span.end for partition, span in log.partitions.items()}
        for partition, behind in self._partitions[log.name].items():
            at = (r.offset for r in behind.records if r.timestamp.timestamp() * 1000 >= timestamp_ms)
            found[partition] = next(at, found[partition])
        return found

    def timestamps_ms(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        """See `TopicSource`."""
        return {partition: one.timestamp_ms for partition, one in self.first_records(topic, offsets).items()}

    def first_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Identity]:
        """See `TopicSource`."""
        found = {}
        for partition, offset in offsets.items():
            behind = (r for r in self._partitions[topic][partition].records if r.offset >= offset)
            if r := next(behind, None):
                found[partition] = Identity.of(r.offset, round(r.timestamp.timestamp() * 1000), r.key, r.value)
        return found

    def skipped_records(self, spans: Mapping[int, Span], records: int) -> int:
        """See `TopicSource`."""
        return 0
