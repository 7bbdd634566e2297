"""Kafka Connect is killed while it streams: it sends a part of the log again, and silver equals the source."""

import subprocess
import threading
import time
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.one_server import started

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import load_config
from cdc_lake.demo import sample
from cdc_lake.demo.comparer import compare
from cdc_lake.demo.hard_changes import HardChanges
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.servers.jvm_servers import Connect
from cdc_lake.demo.servers.server import Site, choose_ports
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.demo.source import change
from cdc_lake.silver.run import run_silver
from cdc_lake.spark.jars import EMBEDDED_PROFILE, cache_folder, lock_file, read_lock
from cdc_lake.spark.java import find_java

NAME = "killed"
TABLES = ("film", "customer")
TOPICS = [f"{NAME}.public.{table}" for table in TABLES]
MOST_KILLS = 4


class OwnConnect(Connect):
    """A second Connect worker that the test may kill, with its own group and topics."""

    def _settings(self, plugins: Path) -> dict[str, object]:
        topics = {f"{what}.storage.topic": f"_{NAME}_{what}" for what in ("config", "offset", "status")}
        return super()._settings(plugins) | {"group.id": NAME} | topics


@pytest.fixture
def connect(stack: Stack, tmp_path: Path) -> OwnConnect:
    kafka = int(stack.endpoints["kafka"].rpartition(":")[2])
    jars = read_lock(lock_file(EMBEDDED_PROFILE))
    return OwnConnect(Site(tmp_path, choose_ports(tmp_path) | {"kafka": kafka}, find_java(), jars, cache_folder()))


def test_silver_equals_source_after_a_killed_connect_worker(
    stack: Stack, connect: OwnConnect, spark: SparkSession, tmp_path: Path
) -> None:
    dsn = sample.create(stack.endpoints["postgres"], NAME)
    connector = postgres_connector_config(
        stack.endpoints,
        database=NAME,
        topic_prefix=NAME,
        tables=[f"public.{table}" for table in TABLES],
        envelope_tables=["public.customer"],
    )
    content = {
        "lake": {"root": "lake"},
        "stack": {"folder": str(stack.folder)},
        "tables": {TOPICS[1]: {"deletes": {"mode": "hard"}}},
    }
    (tmp_path / "cdc-lake.yml").write_text(yaml.safe_dump(content))
    config = load_config(tmp_path / "cdc-lake.yml")
    worker = started(connect)

    try:
        put_connector(connect.address, NAME, connector)
        sample.wait_until_sent(dsn, NAME, 60)
        for number in range(MOST_KILLS):
            changes = threading.Thread(
                target=change, args=(dsn, HardChanges), kwargs={"seed": number, "transactions": 300}
            )
            changes.start()
            time.sleep(0.7)
            end(worker)
            changes.join()
            worker = started(connect)
            sample.wait_until_sent(dsn, NAME, 90)
            assert run_bronze(config, TOPICS, spark).exit_code == 0
            if sum(map(sent_again, (tmp_path / "lake" / "bronze" / NAME / "public" / table for table in TABLES))):
                break
        silver = run_silver(config, TOPICS, spark)
    finally:
        end(worker)

    repeated = sum(report.rows["stale"] for report in silver.tables)
    assert silver.exit_code == 0
    assert repeated > 0, "no worker repeated itself, so nothing was shown"
    for table in TABLES:
        outcome = compare(dsn, "public", table, str(tmp_path / "lake" / "silver" / NAME / "public" / table))
        assert outcome.differences == 0, outcome
        assert outcome.source_rows == outcome.lake_rows > 0


def end(worker: "subprocess.Popen[bytes]") -> None:
    worker.kill()
    worker.wait(30)


def sent_again(bronze: Path) -> int:
    """Number of row changes that are in bronze more than once."""
    rows = DeltaTable(str(bronze)).to_pyarrow_table(columns=["key", "op", "source_position"]).to_pylist()
    streamed = [(row["key"], row["op"], *row["source_position"]) for row in rows if row["op"] in ("c", "u", "d")]
    return len(streamed) - len(set(streamed))
