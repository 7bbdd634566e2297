"""Many tables of mixed shapes in one application, and a broken one: it is named, and the others are correct."""

import random
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import silver_rows
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, START_MS, FakeRegistry, Topic
from support.fakes import FakeBroker

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver

COLUMNS = {"n": OPTIONAL_INT, "name": OPTIONAL_STRING}
BROKEN = "shop.public.broken"


class Table:
    """A topic that keeps changing, and its expected rows."""

    def __init__(self, number: int, registry: FakeRegistry, broker: FakeBroker) -> None:
        self.deletes = "hard" if number % 3 == 0 else "soft"
        self.rows: dict[int, dict[str, Any]] = {}
        self._topic = Topic(COLUMNS, flat=number % 2 == 0, registry=registry, table=f"shop.public.t{number}")
        self._broker = broker
        self._random = random.Random(number)
        self._events = 0

    @property
    def name(self) -> str:
        return self._topic.table

    def change(self, events: int) -> None:
        for _ in range(events):
            self._events += 1
            key = self._random.randrange(8)
            op = "d" if key in self.rows and self._random.random() < 0.3 else "u" if key in self.rows else "c"
            row = {"n": self._random.randrange(100), "name": self._random.choice(("a", "ü", None))}
            record = self._topic.change(op, key, row, lsn=self._events, ts_ms=START_MS + self._events)
            self._broker.append(record)
            if op == "d":
                del self.rows[key]
                self._broker.append(self._topic.tombstone(key))
            else:
                self.rows[key] = row

    def found(self, root: Path) -> dict[int, dict[str, Any]]:
        rows = silver_rows(root, self.name)
        return {row["id"]: {name: row[name] for name in COLUMNS} for row in rows if not row["__deleted"]}


@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.deep)])
def test_many_tables_are_correct_and_a_broken_one_is_named(spark: SparkSession, tmp_path: Path, count: int) -> None:
    registry, broker = FakeRegistry(), FakeBroker()
    tables = [Table(number, registry, broker) for number in range(count)]
    before, after = (Topic({"n": kind}, registry=registry, table=BROKEN) for kind in (OPTIONAL_INT, OPTIONAL_STRING))
    patches = {table.name: TableConfig(deletes={"mode": table.deletes}) for table in tables}  # type: ignore[arg-type]
    patches[BROKEN] = TableConfig(schema={"evolution": "freeze"})
    config = Config(lake=LakeConfig(root=str(tmp_path)), tables=patches)
    scheduler = TableScheduler(2, spark)
    for table in tables:
        table.change(10)
    broker.append(before.change("c", 1, {"n": 1}))
    for n in range(2):
        bronze = run_bronze(config, ["shop.*"], source=broker, registry=registry, scheduler=scheduler)
        silver = run_silver(config, ["*"], scheduler=scheduler)

        assert bronze.exit_code == 0
        assert len(silver.tables) == count + 1
        failed = {report.table: report.error.code for report in silver.tables if report.error}
        assert (silver.exit_code, failed) == ((2, {BROKEN: "CDC-210"}) if n else (0, {}))
        assert {table.name: table.found(tmp_path) for table in tables} == {table.name: table.rows for table in tables}

        for table in tables[::2]:
            table.change(5)
        broker.append(after.change("u", 1, {"n": "text"}, offset=n + 1))

    idle = {report.table for report in silver.tables if report.status == "unchanged"}
    assert idle == {table.name for table in tables[1::2]}
