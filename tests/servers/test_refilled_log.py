"""A real broker whose disk is rolled back: its log then has other records at offsets that bronze has read."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from support.events import OPTIONAL_STRING, Record, Topic
from support.one_server import started

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, KafkaConfig, LakeConfig
from cdc_lake.demo.servers.jvm_servers import Kafka
from cdc_lake.demo.servers.server import Site, choose_ports
from cdc_lake.runs.report import TableReport
from cdc_lake.spark.jars import EMBEDDED_PROFILE, cache_folder, lock_file, read_lock
from cdc_lake.spark.java import find_java
from cdc_lake.tables.delta import DeltaLakeTable


@pytest.fixture
def server(tmp_path: Path) -> Kafka:
    folder = tmp_path / "broker"
    folder.mkdir()
    jars = read_lock(lock_file(EMBEDDED_PROFILE))
    return Kafka(Site(folder, choose_ports(folder), find_java(), jars, cache_folder()))


@contextmanager
def running(server: Kafka) -> Iterator[None]:
    process = started(server)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def send(server: Kafka, records: Sequence[Record]) -> None:
    """In one transaction, whose marker takes the offset after them."""
    producer = Producer({"bootstrap.servers": server.address, "transactional.id": "one", "log_level": 0})
    producer.init_transactions()
    producer.begin_transaction()
    for one in records:
        producer.produce(one.topic, one.value, one.key)
    producer.commit_transaction()


def test_rolled_back_disk_stops_bronze_then_nothing_is_lost(spark: SparkSession, server: Kafka, tmp_path: Path) -> None:
    topic, disk, copy = Topic({"name": OPTIONAL_STRING}), server.site.folder / "kafka", tmp_path / "copy"
    kafka = KafkaConfig(bootstrap_servers=server.address)
    config = Config(kafka=kafka, lake=LakeConfig(root=str(tmp_path / "lake")))

    def land(*, accept_loss: bool = False) -> TableReport:
        (report,) = run_bronze(config, [topic.table], spark, registry=topic.registry, accept_loss=accept_loss).tables
        return report

    with running(server):
        send(server, [topic.change("c", 1), topic.change("d", 1), topic.tombstone(1)])
        assert land().error is None
    shutil.copytree(disk, copy)
    with running(server):
        send(server, [topic.change("c", 2)])
        same = land()
    shutil.rmtree(disk)
    shutil.copytree(copy, disk)
    with running(server):
        for key in (3, 4):
            send(server, [topic.change("c", key)])
        stopped, accepted, after = land(), land(accept_loss=True), land()

    said = f"{topic.table}[0]: the log lost its end, and offsets 3 to 5 now have other records"
    assert (same.error, same.warnings, same.rows["read"]) == (None, [], 1)
    assert stopped.error is not None and (stopped.error.exit_code, said in stopped.error.message) == (20, True)
    assert (accepted.error, accepted.rows["read"], after.status) == (None, 2, "unchanged")
    rows = DeltaLakeTable(spark, f"{config.lake.root}/bronze/{topic.table.replace('.', '/')}").read()
    found = rows.orderBy("generation", "offset").select("generation", "offset", "key").collect()
    keys = [f'{{"id":{n}}}' for n in (1, 1, 1, 2, 3, 4)]
    assert [tuple(row) for row in found] == list(zip((0, 0, 0, 0, 1, 1), (0, 1, 2, 4, 4, 6), keys, strict=True))
