"""Kafka Connect is killed while it streams: it sends a stretch of the log again, and silver equals the source."""

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_lake.config import load_config
from cdc_lake.embedded import sample
from cdc_lake.embedded.comparer import compare
from cdc_lake.embedded.connectors import postgres_connector_config, put_connector
from cdc_lake.embedded.hard_changes import HardChanges
from cdc_lake.embedded.stack import Stack
from cdc_lake.embedded.workload import change
from cdc_lake.layers.bronze import run_bronze
from cdc_lake.layers.silver import run_silver

NAME = "killed"
TABLES = ("film", "customer")
TOPICS = [f"{NAME}.public.{table}" for table in TABLES]
MOST_KILLS = 4


class Connect:
    """The stack's Connect worker, which can be killed and started again."""

    def __init__(self, stack: Stack) -> None:
        (server,) = (server for server in stack.status() if server.name == "connect")
        self._process = psutil.Process(server.pid)
        self._command = self._process.cmdline()
        self._own: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        self._process.kill()
        (self._own or self._process).wait(30)

    def start(self, log: Path) -> None:
        with log.open("ab") as out:
            self._own = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/")
        self._process = psutil.Process(self._own.pid)

    def end(self) -> None:
        if self._own:
            self.kill()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Servers of its own: a killed worker would disturb the other tests."""
    stack = Stack(tmp_path_factory.mktemp("killed"))
    stack.start(detach=False)
    yield stack
    stack.delete()


def test_a_connect_worker_that_is_killed_repeats_itself_and_silver_still_equals_the_source(
    stack: Stack, spark: SparkSession, tmp_path: Path
) -> None:
    dsn = sample.create(stack.endpoints["postgres"], NAME)
    connector = postgres_connector_config(
        stack.endpoints,
        database=NAME,
        topic_prefix=NAME,
        tables=[f"public.{table}" for table in TABLES],
        envelope_tables=["public.customer"],
    )
    put_connector(stack.endpoints["connect"], NAME, connector)
    sample.wait_until_sent(dsn, NAME, 60)
    content = {
        "lake": {"root": "lake"},
        "stack": {"folder": str(stack.folder)},
        "tables": {TOPICS[1]: {"deletes": "hard"}},
    }
    (tmp_path / "cdc-lake.yml").write_text(yaml.safe_dump(content))
    config = load_config(tmp_path / "cdc-lake.yml")
    connect = Connect(stack)

    try:
        for number in range(MOST_KILLS):
            changes = threading.Thread(
                target=change, args=(dsn, HardChanges), kwargs={"seed": number, "transactions": 300}
            )
            changes.start()
            time.sleep(0.7)
            connect.kill()
            changes.join()
            connect.start(tmp_path / "connect.log")
            sample.wait_until_sent(dsn, NAME, 90)
            assert run_bronze(config, TOPICS, spark).exit_code == 0
            if sum(map(sent_again, (tmp_path / "lake" / "bronze" / NAME / "public" / table for table in TABLES))):
                break
        silver = run_silver(config, TOPICS, spark)
    finally:
        connect.end()

    repeated = sum(done.rows["stale"] for done in silver.tables)
    assert silver.exit_code == 0
    assert repeated > 0, "no worker repeated itself, so nothing was shown"
    for table in TABLES:
        outcome = compare(dsn, "public", table, str(tmp_path / "lake" / "silver" / NAME / "public" / table))
        assert outcome.differences == 0, outcome
        assert outcome.source_rows == outcome.lake_rows > 0


def sent_again(bronze: Path) -> int:
    """How many changes of rows are in bronze more than once."""
    rows = DeltaTable(str(bronze)).to_pyarrow_table(columns=["key", "op", "source_position"]).to_pylist()
    streamed = [(row["key"], row["op"], *row["source_position"]) for row in rows if row["op"] in ("c", "u", "d")]
    return len(streamed) - len(set(streamed))
