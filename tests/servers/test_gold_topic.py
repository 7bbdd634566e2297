"""A gold table and its topic: if a run dies at any point, a consumer that upserts by key ends with the table's rows."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from support import CHECKOUT
from support.silver_writer import SilverWriter
from support.topics import SinkTopic

from cdc_lake.config import Config, GoldConfig, LakeConfig, StackConfig
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.failpoints import VARIABLE
from cdc_lake.gold.run import run_gold
from cdc_lake.runs.report import TableReport
from cdc_lake.tables.delta import DeltaLakeTable

SALE = "shop.public.sale"
COLUMNS = {SALE: "id int, store string, amount int"}


class Shop:
    """A lake with one silver table, and a model with its own topic."""

    def __init__(self, spark: SparkSession, stack: Stack, root: Path, refresh: str = "incremental") -> None:
        self.topic = f"gold.per_store-{uuid4().hex[:8]}"
        self.models = root / "gold"
        self.models.mkdir()
        touched = "-- touched: {sale: SELECT store FROM sale}\n" if refresh == "incremental" else ""
        (self.models / "per_store.sql").write_text(
            f"-- name: per_store\n-- keys: [store]\n-- sources: {{sale: {SALE}}}\n-- refresh: {refresh}\n{touched}"
            f"-- topic: {{topic: {self.topic}, partitions: 2}}\n"
            "SELECT store, sum(amount) AS amount, count(*) AS sales FROM sale GROUP BY store\n"
        )
        self.settings = {
            "CDC_LAKE__LAKE__ROOT": str(root / "lake"),
            "CDC_LAKE__GOLD__MODELS": str(self.models),
            "CDC_LAKE__STACK__FOLDER": str(stack.folder),
        }
        self.config = Config(
            lake=LakeConfig(root=str(root / "lake")),
            gold=GoldConfig(models=str(self.models), schemas=str(root / "schemas")),
            stack=StackConfig(folder=str(stack.folder)),
        )
        self.silver = SilverWriter(spark, self.config, COLUMNS)
        self.place = SinkTopic(stack, self.topic, root / "schemas")
        self._spark = spark

    def refresh(self) -> TableReport:
        (report,) = run_gold(self.config, ["per_store"], self._spark).tables
        return report

    def table(self) -> dict[Any, Any]:
        rows = DeltaLakeTable(self._spark, f"{self.config.lake.root}/gold/per_store").read().collect()
        return {(row["store"],): row.asDict() for row in rows}


def test_consumer_matches_the_gold_table_after_each_failpoint(
    spark: SparkSession, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(spark, stack, tmp_path)
    shop.silver.change(SALE, {1: (1, "a", 10), 2: (2, "a", 5), 3: (3, "b", 1)})
    monkeypatch.setenv(VARIABLE, "gold.after_overwrite:raise")
    assert shop.refresh().status == "failed"
    monkeypatch.setenv(VARIABLE, "gold.after_send:raise")
    assert shop.refresh().status == "failed"
    assert shop.place.upserted() == shop.table()

    shop.silver.change(SALE, {3: None})  # sent, and deleted before the sending was recorded
    monkeypatch.delenv(VARIABLE)
    assert shop.refresh().rows["sent"] == 2
    assert shop.place.upserted() == shop.table() == {("a",): {"store": "a", "amount": 15, "sales": 2}}

    shop.silver.change(SALE, {1: (1, "a", 99), 3: (3, "b", 1)})
    monkeypatch.setenv(VARIABLE, "gold.after_send:raise")
    assert shop.refresh().status == "failed"
    shop.silver.change(SALE, {1: (1, "a", 10), 3: None})  # and back: the table is as it was when it was recorded last
    monkeypatch.setenv(VARIABLE, "gold.after_merge:raise")
    assert shop.refresh().status == "failed"
    monkeypatch.delenv(VARIABLE)
    report = shop.refresh()

    assert (report.error, report.status, report.rows) == (None, "ok", {"sent": 2})
    assert shop.place.upserted() == shop.table() == {("a",): {"store": "a", "amount": 15, "sales": 2}}
    assert (shop.refresh().status, len(shop.place.records())) == ("unchanged", 8)


@pytest.mark.deep
@pytest.mark.parametrize("refresh", ["incremental", "full"])
def test_consumer_matches_the_gold_table_after_random_crashes(
    spark: SparkSession, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refresh: str
) -> None:
    rng = random.Random(8)
    shop = Shop(spark, stack, tmp_path, refresh)
    points = ("gold.after_plan", "gold.after_overwrite", "gold.after_merge", "gold.after_send", "")
    for _ in range(20):
        keys = rng.sample(range(12), 4)
        shop.silver.change(SALE, {n: rng.choice((None, (n, rng.choice("abcd"), rng.randrange(3)))) for n in keys})
        monkeypatch.setenv(VARIABLE, f"{point}:raise" if (point := rng.choice(points)) else "")
        shop.refresh()
    monkeypatch.delenv(VARIABLE)

    assert shop.refresh().error is None
    assert shop.place.upserted() == shop.table()


@pytest.mark.deep
@pytest.mark.parametrize("point", ["gold.after_overwrite", "gold.after_send"])
def test_killed_job_is_recovered_by_the_next_run(spark: SparkSession, stack: Stack, tmp_path: Path, point: str) -> None:
    shop = Shop(spark, stack, tmp_path)
    shop.silver.change(SALE, {1: (1, "a", 10), 2: (2, "b", 5)})
    programs = Path(sys.executable).parent
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CDC_LAKE")}
    path = f"{programs}{os.pathsep}{inherited['PATH']}"
    command = [str(programs / "spark-submit"), "--master", "local[2]", str(CHECKOUT / "jobs" / "gold.py")]
    killed = subprocess.run(
        [*command, "--model", "per_store"],
        env={**inherited, "PATH": path, **shop.settings, VARIABLE: f"{point}:kill9"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -9 or killed.returncode == 137, killed.stderr

    assert shop.refresh().status == "ok"
    assert shop.place.upserted() == shop.table()
    assert shop.refresh().status == "unchanged"
