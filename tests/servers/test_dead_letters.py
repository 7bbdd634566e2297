"""Quarantined records are sent to a topic of the real broker: each of them, with Connect's headers."""

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, Topic
from support.fakes import FakeBroker

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, KafkaConfig, LakeConfig, TableConfig
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.failpoints import VARIABLE
from cdc_lake.runs.report import TableReport
from cdc_lake.tables.delta import DeltaLakeTable

DOWN = "127.0.0.1:9"


class Source:
    """A topic in memory, whose dead letters go to a real one."""

    def __init__(self, spark: SparkSession, stack: Stack, root: Path) -> None:
        self.letters = f"dead-{uuid4().hex[:8]}"
        self.servers = stack.endpoints["kafka"]
        self.topic, self.broker = Topic({"n": OPTIONAL_INT}), FakeBroker()
        self._spark, self._root = spark, root

    def land(self, *offsets: int, bad: bool = True, to: str | None = None, servers: str = "") -> TableReport:
        """One run of bronze, after these records have arrived."""
        for offset in offsets:
            record = self.topic.change("u", 1, {"n": offset}, offset=offset, headers=[("trace", b"\xff")])
            self.broker.append(replace(record, value=record.value + b"\0") if bad else record)
        config = Config(
            kafka=KafkaConfig(bootstrap_servers=servers or self.servers, timeout_seconds=3 if servers else 30),
            lake=LakeConfig(root=str(self._root)),
            defaults=TableConfig(quality={"dead_letter_topic": to or self.letters, "on_unusable_records": "warn"}),
        )
        report = run_bronze(config, [self.topic.table], self._spark, source=self.broker, registry=self.topic.registry)
        return report.tables[0]

    def version(self) -> int:
        return DeltaLakeTable(self._spark, f"{self._root}/bronze/{self.topic.table.replace('.', '/')}").version()

    def sent(self) -> list[Message]:
        """The records that a consumer reads from the topic."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": uuid4().hex, "enable.auto.commit": False})
        _, end = consumer.get_watermark_offsets(TopicPartition(self.letters, 0), 10)
        consumer.assign([TopicPartition(self.letters, 0, 0)])
        found = consumer.consume(end, 30) if end else []
        consumer.close()
        assert len(found) == end
        return found


def offsets(found: list[Message]) -> list[int]:
    return sorted(int(dict(record.headers())["__connect.errors.offset"]) for record in found)


def test_each_quarantined_record_is_sent_despite_crashes(
    spark: SparkSession, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(spark, stack, tmp_path)
    monkeypatch.setenv(VARIABLE, "bronze.after_append:raise")
    assert source.land(3).status == "failed"
    monkeypatch.delenv(VARIABLE)
    down = source.land(4, servers=DOWN)
    assert (down.status, down.error, down.rows["quarantined"]) == ("ok", None, 1)
    told, _ = down.warnings
    assert told.startswith("dead letters were not sent; the next run tries again: ") and DOWN in told
    monkeypatch.setenv(VARIABLE, "bronze.after_send:raise")
    assert source.land().status == "failed"
    monkeypatch.delenv(VARIABLE)

    again = source.land()

    assert (again.status, again.rows) == ("ok", {"dead_letters": 2})
    assert offsets(source.sent()) == [3, 3, 4, 4]
    assert source.land().status == "unchanged"
    assert source.land(5, bad=False).rows == {"read": 1, "ok": 1, "quarantined": 0, "control": 0}
    before = source.version()
    assert source.land(6, 7).rows["dead_letters"] == 2
    assert source.version() == before + 2  # the batch, and the commit that it was sent
    assert offsets(source.sent()) == [3, 3, 4, 4, 6, 7]

    first = next(record for record in source.sent() if offsets([record]) == [3])
    assert (first.key(), first.value()[-1:]) == (source.topic.key(1), b"\0")
    assert first.headers() == [
        ("trace", b"\xff"),
        ("__connect.errors.topic", source.topic.table.encode()),
        ("__connect.errors.partition", b"0"),
        ("__connect.errors.offset", b"3"),
        ("__connect.errors.connector.name", b"cdc_lake"),
        ("__connect.errors.task.id", b"0"),
        ("__connect.errors.stage", b"VALUE_CONVERTER"),
        ("__connect.errors.class.name", b"cdc_lake.layers.bronze"),
        ("__connect.errors.exception.class.name", b"cdc_lake.decode.undecodable"),
        ("__connect.errors.exception.message", b"value: 1 bytes are left over after the record"),
    ]


def test_dead_letter_topic_itself_sends_no_dead_letters(spark: SparkSession, stack: Stack, tmp_path: Path) -> None:
    source = Source(spark, stack, tmp_path)

    report = source.land(0, to=source.topic.table, servers=DOWN)

    (unusable,) = report.warnings
    assert (report.status, unusable[:4], report.rows["quarantined"]) == ("ok", "none", 1)


def test_oversize_dead_letter_is_marked_and_the_others_are_sent(
    spark: SparkSession, stack: Stack, tmp_path: Path
) -> None:
    source = Source(spark, stack, tmp_path)
    large = source.topic.change("u", 1, {"n": 1}, offset=0, headers=[("trace", b"\xff")])
    source.broker.append(replace(large, value=large.value + bytes(1_100_000)))

    report = source.land(1)

    assert (report.status, report.rows["dead_letters"]) == ("ok", 2)
    told, _ = report.warnings
    assert told.startswith("dead letters of more than 1048576 bytes were sent without key, value and headers")
    assert "raise max.request.size in kafka.java" in told
    first, second = sorted(source.sent(), key=lambda letter: offsets([letter]))
    assert (first.key(), first.value(), first.headers()[0][0]) == (None, None, "cdc_lake.left_out.bytes")
    assert 1_100_000 < int(first.headers()[0][1]) < 1_101_000
    assert (second.value()[-1:], second.headers()[0]) == (b"\0", ("trace", b"\xff"))
    assert source.land().status == "unchanged"
