"""Where bronze starts to read a topic of a real broker, and where it continues."""

from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, KafkaConfig, LakeConfig, RegistryConfig, StartPosition, TableConfig
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.operations.seek import offset_changes, seek
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.tables.delta import DeltaLakeTable

HOUR_MS = 3_600_000
NOON_MS = 1_700_049_600_000


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_start_time_becomes_an_offset_per_partition(spark: SparkSession, stack: Stack, tmp_path: Path) -> None:
    topic, servers = f"start.public.t{uuid4().hex[:8]}", stack.endpoints["kafka"]
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result()
    producer = Producer({"bootstrap.servers": servers})
    for partition, hours in enumerate(((0, 1, 2, 3), (0, 0, 3), (0, 1))):
        for hour in hours:
            producer.produce(topic, b"{}", b'{"id": 1}', partition=partition, timestamp=NOON_MS + hour * HOUR_MS)
    producer.flush()

    def config(start: StartPosition) -> Config:
        return Config(
            kafka=KafkaConfig(bootstrap_servers=servers, timeout_seconds=30),
            registry=RegistryConfig(url=stack.endpoints["registry"]),
            lake=LakeConfig(root=str(tmp_path)),
            defaults=TableConfig(read={"start": start}, key={"wire_format": "json"}, value={"wire_format": "json"}),
        )

    def places() -> list[tuple[int, int]]:
        table = DeltaLakeTable(spark, f"{tmp_path}/bronze/{topic.replace('.', '/')}")
        return sorted((row["partition"], row["offset"]) for row in table.read().collect())

    two = config(at(NOON_MS + 2 * HOUR_MS))
    (report,) = run_bronze(two, [topic], spark).tables
    assert report.error is None, report.error
    assert places() == [(0, 2), (0, 3), (1, 2)]  # partition 2 has no record as late as this

    back = offset_changes(two, [topic], at(NOON_MS + 1), spark)
    assert [(one.partition, one.offset, one.new_offset, one.landed) for one in back] == [
        (0, 4, 1, 2),
        (1, 3, 2, 1),
        (2, 2, 1, 0),
    ]
    seek(two, back, scheduler=TableScheduler(spark=spark))
    (report,) = run_bronze(two, [topic], spark).tables
    assert report.error is None, report.error
    assert places() == [(0, 1), (0, 2), (0, 3), (1, 2), (2, 1)]
