"""`cdc-lake doctor` with the real servers: each broken set-up shows exactly what is broken, and a good one nothing."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import requests
import yaml
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from cdc_lake.bronze.run import run_bronze
from cdc_lake.cli.app import app
from cdc_lake.config import load_config
from cdc_lake.demo import sample
from cdc_lake.demo.servers.connectors import check_connector, postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack

Found = set[tuple[str, str]]
WAIT_SECONDS = 60
UNWRAP = "transforms.unwrap"
FLATTENED = {
    "transforms": "unwrap",
    f"{UNWRAP}.type": "io.debezium.transforms.ExtractNewRecordState",
    f"{UNWRAP}.add.fields": "op,db,schema,table,lsn,source.ts_ms,source.snapshot,source.txId",
    f"{UNWRAP}.delete.tombstone.handling.mode": "rewrite",
}
FLATTENING: Found = {("warn", "operations")}
"""What a flattening connector loses in any case: TRUNCATE."""
DROPS_TOMBSTONES = {
    "transforms": "unwrap,live",
    f"{UNWRAP}.delete.tombstone.handling.mode": "tombstone",
    "transforms.live.type": "org.apache.kafka.connect.transforms.Filter",
    "transforms.live.predicate": "deleted",
    "predicates": "deleted",
    "predicates.deleted.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
}
PARTITIONED = """
CREATE TABLE payment (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE payment_2024 PARTITION OF payment FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
INSERT INTO payment VALUES (1, '2024-02-03')
"""


@dataclass
class SetUp:
    """A source database, its connector, and the settings for both.

    Attributes:
        name: the database, the connector, its slot and the prefix of its topics.
        folder: the folder of the settings and of the lake.
    """

    stack: Stack
    name: str
    folder: Path

    @property
    def connect(self) -> str:
        return self.stack.endpoints["connect"]

    @property
    def topic(self) -> str:
        return f"{self.name}.public.orders"

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as source:
            for statement in statements:
                source.execute(statement.encode())

    @property
    def dsn(self) -> str:
        return make_conninfo(self.stack.endpoints["postgres"], dbname=self.name)

    def put(self, options: Mapping[str, str | None]) -> None:
        """Create or change the connector. Without options, it loses nothing; None removes an option."""
        given = postgres_connector_config(
            self.stack.endpoints, database=self.name, topic_prefix=self.name, tables=["public.orders"]
        )
        complete = {name: value for name, value in given.items() if not name.startswith(("transforms", "predicates"))}
        config = complete | {"skipped.operations": "none"} | options
        put_connector(self.connect, self.name, {name: value for name, value in config.items() if value is not None})

    def wait(self) -> None:
        """Wait until all changes are in Kafka."""
        check = partial(check_connector, self.connect, self.name)
        sample.wait_until_sent(self.dsn, self.name, WAIT_SECONDS, check=check)

    def ask(self, method: str, path: str = "") -> None:
        requests.request(method, f"{self.connect}/connectors/{self.name}{path}", timeout=30).raise_for_status()

    def await_state(self, state: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait until the connector or one of its tasks has a state."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            meanwhile()
            status = requests.get(f"{self.connect}/connectors/{self.name}/status", timeout=30).json()
            if state in {part["state"] for part in (status["connector"], *status["tasks"])}:
                return
            time.sleep(0.1)
        raise AssertionError(f"the connector is not {state}: {status}")

    def settings(self, **other: Any) -> Path:
        file = self.folder / "cdc-lake.yml"
        databases = {self.name: {"url": "embedded"}}
        content = {"lake": {"root": "lake"}, "stack": {"folder": str(self.stack.folder)}, "databases": databases}
        file.write_text(yaml.safe_dump(content | other))
        return file

    def findings(self, **other: Any) -> list[dict[str, Any]]:
        """The warnings and failures, with settings that differ from the good ones."""
        asked = ["doctor", "--table", f"{self.name}.*", "--config", str(self.settings(**other)), "--json"]
        result = CliRunner().invoke(app, asked)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        findings = json.loads(result.stdout)["findings"]
        assert result.exit_code == (2 if any(one["status"] == "fail" for one in findings) else 0)
        assert "password" not in result.output
        return [one for one in findings if one["status"] not in ("ok", "skipped")]


def once_unused(do: Callable[[], object]) -> None:
    """Do it once the connector no longer uses its slot."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            do()
        except psycopg.errors.ObjectInUse:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


@pytest.fixture
def set_up(stack: Stack, tmp_path: Path) -> Iterator[SetUp]:
    """A database with one table and two rows, without a connector."""
    own = SetUp(stack, f"doctor_{uuid4().hex[:8]}", tmp_path)
    with psycopg.connect(stack.endpoints["postgres"], autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {own.name}".encode())
        own.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note text NOT NULL)",
            "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
        )
        yield own
        requests.delete(f"{own.connect}/connectors/{own.name}", timeout=30)
        once_unused(lambda: admin.execute(f"DROP DATABASE {own.name} WITH (FORCE)".encode()))


def kinds(findings: Sequence[Mapping[str, Any]]) -> Found:
    assert all(one["cure"] for one in findings)
    return {(one["status"], one["check"]) for one in findings}


@pytest.mark.core
def test_good_set_up_shows_nothing_until_it_breaks(set_up: SetUp) -> None:
    set_up.put({})
    set_up.wait()

    assert set_up.findings() == []

    set_up.put(FLATTENED | {f"{UNWRAP}.add.fields": "op,table"})
    deadline = time.monotonic() + WAIT_SECONDS
    while ("warn", "slot") in (found := kinds(set_up.findings())):  # until the connector has restarted
        assert time.monotonic() < deadline
    assert found == FLATTENING | {("warn", "position")}


@dataclass(frozen=True)
class BrokenSetUp:
    """What is broken.

    Attributes:
        options: the connector's, that differ from the good ones.
        before: SQL before the connector starts.
        found: what doctor must find, and nothing else.
        what: a part of the text.
    """

    found: Found
    what: str
    options: Mapping[str, str | None] = field(default_factory=dict)
    before: Sequence[str] = ()


LOST: Mapping[str, BrokenSetUp] = {
    "deletes are dropped": BrokenSetUp(
        FLATTENING | {("fail", "deletes")},
        "drops deletes",
        FLATTENED | {f"{UNWRAP}.delete.tombstone.handling.mode": "drop"},
    ),
    "tombstones are dropped": BrokenSetUp(
        FLATTENING | {("fail", "tombstones")}, "which the transform `live` drops", FLATTENED | DROPS_TOMBSTONES
    ),
    "updates are skipped": BrokenSetUp(  # Debezium also creates the publication without them
        {("fail", "operations"), ("fail", "publication")}, "updates are not sent", {"skipped.operations": "u"}
    ),
    "nulls have defaults": BrokenSetUp(
        {("warn", "null-defaults")},
        "null in rating arrives as the column's default",
        before=["ALTER TABLE orders ADD rating text DEFAULT 'G'"],
    ),
    "schemas are not dereferenced": BrokenSetUp(
        {("warn", "dereference")},
        "after an ALTER TABLE",
        {"value.converter.apicurio.registry.dereference-schema": "false"},
    ),
    "long values are cut": BrokenSetUp(
        {("warn", "record-size")},
        "rows above 900000 bytes",
        {
            "transforms": "cut",
            "transforms.cut.type": "io.debezium.transforms.EnforceRecordSize",
            "transforms.cut.max.bytes": "900000",
        },
    ),
    "a partitioned table arrives twice": BrokenSetUp(
        {("warn", "partitions")},
        "topics of partitions",
        {
            "publish.via.partition.root": "false",
            "table.include.list": "public.orders,public.payment,public.payment_2024",
        },
        before=[PARTITIONED],
    ),
    "a column is not sent": BrokenSetUp(
        {("warn", "tables")}, "the type of area", before=["ALTER TABLE orders ADD area polygon"]
    ),
    "errors are tolerated": BrokenSetUp({("fail", "errors")}, "are skipped", {"errors.tolerance": "all"}),
}


@pytest.mark.parametrize("broken", LOST.values(), ids=LOST.keys())
def test_lossy_connector_shows_exactly_its_loss(set_up: SetUp, broken: BrokenSetUp) -> None:
    set_up.execute(*broken.before)
    set_up.put(broken.options)
    set_up.wait()

    findings = set_up.findings()

    assert kinds(findings) == broken.found
    assert broken.what in " ".join(one["what"] for one in findings)


def test_broken_source_shows_exactly_its_loss(set_up: SetUp) -> None:
    """One connector, broken in one way after the other."""
    set_up.put({})
    set_up.wait()

    set_up.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    assert kinds(set_up.findings()) == {("fail", "replica-identity")}
    set_up.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")

    set_up.execute(f"ALTER PUBLICATION {set_up.name} SET (publish = 'insert, update')")
    assert kinds(set_up.findings()) == {("fail", "publication")}
    set_up.execute(f"ALTER PUBLICATION {set_up.name} SET (publish = 'insert, update, delete, truncate')")

    set_up.execute(f"ALTER PUBLICATION {set_up.name} DROP TABLE orders")
    (unpublished,) = set_up.findings()
    assert (unpublished["check"], unpublished["where"]) == ("publication", [set_up.topic])
    set_up.execute(f"ALTER PUBLICATION {set_up.name} ADD TABLE orders")

    assert set_up.findings() == []
    set_up.ask("PUT", "/pause")
    set_up.await_state("PAUSED")
    assert kinds(set_up.findings()) == {("warn", "tasks")}
    set_up.ask("PUT", "/resume")
    set_up.await_state("RUNNING")

    extract = {"transforms": "field", "transforms.field.type": "org.apache.kafka.connect.transforms.ExtractField$Value"}
    set_up.put(extract | {"transforms.field.field": "absent"})
    insert = "INSERT INTO orders SELECT max(id) + 1, 'c' FROM orders"
    set_up.await_state("FAILED", lambda: set_up.execute(insert))  # the task before may still send the first of them
    (failed,) = set_up.findings()
    assert (failed["check"], failed["where"]) == ("tasks", [set_up.name])
    assert "task 0 failed (IllegalArgumentException)" in failed["what"]

    set_up.ask("DELETE")
    (idle,) = set_up.findings()
    assert (idle["status"], idle["check"], idle["where"]) == ("warn", "slot", [set_up.name])
    set_up.execute(f"SELECT pg_drop_replication_slot('{set_up.name}')")
    assert set_up.findings() == []


def test_missing_slot_of_a_stopped_connector_is_found(set_up: SetUp) -> None:
    set_up.put({})
    set_up.wait()
    set_up.ask("PUT", "/stop")
    set_up.await_state("STOPPED")
    once_unused(lambda: set_up.execute(f"SELECT pg_drop_replication_slot('{set_up.name}')"))

    assert kinds(set_up.findings()) == {("fail", "slot"), ("warn", "tasks")}


def test_records_that_bronze_cannot_use_are_found(set_up: SetUp, spark: SparkSession) -> None:
    set_up.put({})
    set_up.wait()
    kafka = set_up.stack.endpoints["kafka"]
    admin, log = AdminClient({"bootstrap.servers": kafka}), [TopicPartition(set_up.topic, 0, OFFSET_END)]

    def delete_records() -> None:
        for deleted in admin.delete_records(log).values():
            deleted.result(30)

    delete_records()
    (never_read,) = set_up.findings()
    assert (never_read["status"], never_read["check"]) == ("warn", "retention")
    assert "already deleted the first records" in never_read["what"]

    set_up.execute("INSERT INTO orders VALUES (3, 'c')")
    set_up.wait()
    by_size = ConfigEntry("retention.bytes", "1000000000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, set_up.topic, incremental_configs=[by_size])
    for altered in admin.incremental_alter_configs([topic]).values():
        altered.result(30)
    assert "or raise retention.bytes of the topic" in [one["cure"].partition(", ")[2] for one in set_up.findings()]
    (done,) = run_bronze(load_config(set_up.settings()), [set_up.topic], spark).tables
    assert (done.error, done.rows["ok"]) == (None, 1)
    assert set_up.findings() == []

    set_up.execute("INSERT INTO orders VALUES (4, 'd')")
    set_up.wait()
    delete_records()
    (lost,) = set_up.findings()
    assert (lost["status"], lost["check"]) == ("fail", "retention")
    assert "Kafka deleted offsets 3 to 3 before bronze read them" in lost["what"]

    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(set_up.topic, b"\0\x7f\xff\xff\xf0body")
    assert producer.flush(30) == 0
    assert kinds(set_up.findings()) == {("fail", "retention"), ("warn", "retention"), ("fail", "schema-ids")}


def test_wrong_addresses_are_found_without_hiding_the_rest(set_up: SetUp) -> None:
    set_up.put({})
    set_up.wait()
    registry = {"type": "confluent", "url": set_up.stack.endpoints["registry"]}

    assert kinds(set_up.findings(registry=registry)) == {("fail", "registry")}
    assert kinds(set_up.findings(kafka={"bootstrap_servers": "127.0.0.1:1"})) == {("fail", "kafka")}
    assert kinds(set_up.findings(lake={"root": "cdc-lake.yml/lake"})) == {("fail", "lake")}
    databases = {set_up.name: {"url": "env:ABSENT_URL"}}
    assert kinds(set_up.findings(databases=databases)) == {("fail", "database")}
