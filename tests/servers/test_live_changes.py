"""A table is altered while it is written: silver keeps following the source, or stops and names the reason."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg.rows import dict_row
from pyspark.sql import SparkSession
from support.setting_groups import patched

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, LakeConfig, StackConfig, TableConfig
from cdc_lake.demo import sample
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.operations.reconcile import run_reconcile
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.run import run_silver

NAME = "altered"
TOPIC = f"{NAME}.public.thing"
SIGNALS = "public.debezium_signal"
CREATED = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE thing (id serial PRIMARY KEY, n int NOT NULL DEFAULT 0, dropped int, old_name text, whole int,
    floating real, digits numeric(4,2), to_number text, mood mood);
CREATE TABLE debezium_signal (id text PRIMARY KEY, type text, data text);
INSERT INTO thing (dropped, old_name, whole, floating, digits, to_number, mood)
    SELECT i, 'name ' || i, i, i / 4.0, i / 100.0, i::text, 'ok' FROM generate_series(1, 40) i;
"""
BEFORE = "(dropped, old_name, whole, floating, digits, to_number, mood) VALUES (1, 'x', 1, 0.5, 4.99, '7', 'sad')"
ALTERED = """
ALTER TABLE thing ADD COLUMN added int;
ALTER TABLE thing ADD COLUMN filled text DEFAULT 'x';
ALTER TABLE thing DROP COLUMN dropped;
ALTER TABLE thing RENAME COLUMN old_name TO new_name;
ALTER TABLE thing ALTER COLUMN whole TYPE bigint;
ALTER TABLE thing ALTER COLUMN floating TYPE double precision;
ALTER TABLE thing ALTER COLUMN digits TYPE numeric(6,3);
ALTER TABLE thing ALTER COLUMN to_number TYPE int USING to_number::int;
"""
AFTER = (
    "(added, new_name, whole, floating, digits, to_number, mood, filled) "
    "VALUES (7, 'y', 1::bigint << 40, 0.1, 123.456, 8, 'happy', 'own')"
)
HELD_IN = {"new_name": ("old_name",), "to_number": ("to_number__int", "to_number")}
"""The silver columns of each source column, after a rename and a changed type; the first that is not null counts."""


@dataclass
class Story:
    """The source, its connector, and the lake."""

    stack: Stack
    dsn: str
    root: Path
    spark: SparkSession

    def config(self, **settings: Any) -> Config:
        return Config(
            lake=LakeConfig(root=str(self.root)),
            stack=StackConfig(folder=str(self.stack.folder)),
            defaults=TableConfig(
                **patched({"schema": {"rename": {"new_name": "old_name"}}, "deletes": {"mode": "hard"}}, settings)
            ),
        )

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as source:
            for statement in statements:
                source.execute(statement.encode())

    def follow(self, **settings: Any) -> TableReport:
        """Land and fold all changes of the source."""
        sample.wait_until_sent(self.dsn, NAME, 60, signal_table=SIGNALS)
        landed = run_bronze(self.config(), [TOPIC], self.spark)
        assert landed.exit_code == 0, landed.model_dump_json(indent=2)
        assert landed.tables[0].rows.get("quarantined", 0) == 0
        (report,) = run_silver(self.config(**settings), [TOPIC], self.spark).tables
        return report

    def reconciled(self) -> TableReport:
        (report,) = run_reconcile(self.config(), [TOPIC], self.spark).tables
        return report

    def source(self) -> dict[int, dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as source:
            return {
                row["id"]: row | {"to_number": int(row["to_number"] or 0)}
                for row in source.execute("SELECT * FROM thing")
            }

    def silver(self, columns: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Silver's rows in the columns of the source, read by delta-rs."""
        rows = DeltaTable(str(self.root / "silver" / TOPIC.replace(".", "/"))).to_pyarrow_table().to_pylist()
        return {row["id"]: {name: value_of(row, name) for name in columns} for row in rows}

    def differing(self) -> list[tuple[int, str]]:
        """Keys and columns in which silver differs from the source, and keys that only one of them has."""
        source = self.source()
        silver = self.silver(list(next(iter(source.values()))))
        alone = [(key, "id") for key in source.keys() ^ silver.keys()]
        both = source.keys() & silver.keys()
        return alone + [(key, name) for key in both for name in source[key] if source[key][name] != silver[key][name]]


def value_of(row: dict[str, Any], name: str) -> Any:
    found = next((row[held] for held in HELD_IN.get(name, (name,)) if row.get(held) is not None), None)
    if name == "to_number":
        return int(found or 0)
    return Decimal(found) if name == "digits" and found is not None else found


@pytest.fixture
def story(stack: Stack, spark: SparkSession, tmp_path: Path) -> Iterator[Story]:
    with psycopg.connect(stack.endpoints["postgres"], autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {NAME}".encode())
    dsn = psycopg.conninfo.make_conninfo(stack.endpoints["postgres"], dbname=NAME)
    story = Story(stack, dsn, tmp_path, spark)
    story.run(CREATED)
    connector = postgres_connector_config(
        stack.endpoints, database=NAME, topic_prefix=NAME, tables=["public.thing"], signal_table=SIGNALS
    )
    put_connector(stack.endpoints["connect"], NAME, connector)
    yield story


def writing(story: Story) -> Callable[[], None]:
    """Write continuously to columns that stay, until the returned function is called."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(story.dsn, autocommit=True) as source:
            for number in count():
                if stop.is_set():
                    return
                source.execute("UPDATE thing SET n = n + 1 WHERE id = %s", [number % 20 + 1])
                source.execute("INSERT INTO thing (n) VALUES (%s)", [number])
                source.execute("DELETE FROM thing WHERE id = %s", [60 + number * 2])
                stop.wait(0.01)

    thread = threading.Thread(target=write)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end


@pytest.mark.deep
def test_table_altered_under_load_equals_the_source(story: Story) -> None:
    assert story.follow().error is None
    assert story.differing() == []

    end = writing(story)
    try:
        story.run(f"INSERT INTO thing {BEFORE}")
        for statement in filter(str.strip, ALTERED.split(";")):
            story.run(statement, "UPDATE thing SET n = n + 1 WHERE id = 39")
        story.run("ALTER TYPE mood ADD VALUE 'happy'", f"INSERT INTO thing {AFTER}")
    finally:
        end()
    stopped = story.follow(schema={"evolution": "add_only"})

    assert stopped.error is not None
    assert (stopped.error.code, stopped.error.exit_code) == ("CDC-210", 2)
    for words in (
        "`whole` int becomes bigint",
        "`floating` float becomes double",
        "`digits` decimal(4,2) becomes decimal(6,3)",
        "`to_number` changed from string to int: such values go to `to_number__int`",
    ):
        assert words in stopped.error.message

    report = story.follow()

    assert report.error is None
    assert any("`dropped` is no longer sent" in warning for warning in report.warnings)
    unannounced = story.differing()
    assert unannounced, "the default of the new column was announced"
    assert {name for _, name in unannounced} == {"filled"}
    told = story.reconciled()
    assert told.error is not None and told.error.exit_code == 30
    assert (told.rows["changed"], told.rows.get("missing", 0), told.rows.get("extra", 0)) == (len(unannounced), 0, 0)
    assert told.reconciled is not None
    assert {column for row in told.reconciled.first for column in row.columns} == {"filled"}

    order = json.dumps({"data-collections": ["public.thing"], "type": "incremental"})
    story.run(f"INSERT INTO debezium_signal VALUES ('again', 'execute-snapshot', '{order}')")
    assert story.follow().error is None
    assert story.differing() == []
    assert story.reconciled().error is None
