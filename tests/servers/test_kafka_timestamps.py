"""Timestamps in topics of a real broker that producers may write and Spark's Kafka reader does not support."""

from pathlib import Path
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, KafkaConfig, LakeConfig, RegistryConfig, TableConfig
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.tables.delta import DeltaLakeTable

NOON_MS = 1_700_049_600_000
NANOSECONDS = NOON_MS * 1_000_000


def test_timestamps_beyond_spark_are_quarantined(spark: SparkSession, stack: Stack, tmp_path: Path) -> None:
    topic, servers = f"strange.public.t{uuid4().hex[:8]}", stack.endpoints["kafka"]
    any_time = {"message.timestamp.before.max.ms": str(2**63 - 1), "message.timestamp.after.max.ms": str(2**63 - 1)}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 2, 1, config=any_time)])[topic].result()
    producer = Producer({"bootstrap.servers": servers})

    def send(partition: int, *timestamps: int) -> None:
        for timestamp in timestamps:
            producer.produce(topic, b'{"id": 1}', b'{"id": 1}', partition, timestamp=timestamp, headers={"a": b"b"})
        producer.flush()

    send(0, NOON_MS, NOON_MS, NANOSECONDS, NOON_MS, 2**62)
    send(1, NOON_MS, NOON_MS + 1)
    config = Config(
        kafka=KafkaConfig(bootstrap_servers=servers, timeout_seconds=30),
        registry=RegistryConfig(url=stack.endpoints["registry"]),
        lake=LakeConfig(root=str(tmp_path)),
        defaults=TableConfig(key={"wire_format": "json"}, value={"wire_format": "json"}),
    )

    (report,) = run_bronze(config, [topic], spark).tables
    assert report.error is None, report.error
    assert report.rows == {"read": 7, "ok": 5, "quarantined": 2, "control": 0}
    table = DeltaLakeTable(spark, f"{tmp_path}/bronze/{topic.replace('.', '/')}")
    bad = table.read().where("status = 'quarantined'").orderBy("offset").collect()
    assert [(row["partition"], row["offset"], row["error"]["code"]) for row in bad] == [
        (0, 2, "no_timestamp"),
        (0, 4, "no_timestamp"),
    ]
    assert {(bytes(row["raw_value"]), row["headers"][0]["key"], row["log_ts"]) for row in bad} == {
        (b'{"id": 1}', "a", NOON_MS)
    }
    assert {row["log_ts"] for row in table.read().collect()} == {NOON_MS, NOON_MS + 1}

    (report,) = run_bronze(config, [topic], spark).tables
    assert (report.status, report.error) == ("unchanged", None)
    send(0, NOON_MS)
    (report,) = run_bronze(config, [topic], spark).tables  # the log's end is known again by its last record
    assert (report.warnings, report.error, report.rows) == (
        [],
        None,
        {"read": 1, "ok": 1, "quarantined": 0, "control": 0},
    )

    (report,) = replay_quarantined(config, [topic], spark).tables
    assert (report.error, report.rows) == (None, {"replayed": 2, "still_quarantined": 0})
