"""A topic in all three layers of a lake, and its source."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, GoldConfig, LakeConfig, StorageConfig, TableConfig
from cdc_lake.gold.run import run_gold
from cdc_lake.runs.context import lake_of, open_gold
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.silver.run import run_silver
from support.events import OPTIONAL_INT, Topic
from support.fakes import FakeBroker

MODEL = """\
-- name: per_half
-- keys: [half]
-- sources: {{thing: {table}}}
-- refresh: incremental
-- touched: {{thing: SELECT id % 2 AS half FROM thing}}
SELECT id % 2 AS half, count(*) AS things, sum(n) AS n FROM thing GROUP BY 1
"""


class Lake:
    """A topic in all three layers, and its source: the newest `n` of each key.

    Args:
        root: has the lake, and copies of it.
        silver: formats and types of its silver tables.
        settings: more of `TableConfig`'s.
    """

    def __init__(self, spark: SparkSession, root: Path, *silver: StorageConfig, **settings: Any) -> None:
        self.spark, self.root = spark, root / "lake"
        self.topic, self.broker, self.source = Topic({"n": OPTIONAL_INT}), FakeBroker(), dict[int, int]()
        (root / "models").mkdir()
        (root / "models" / "per_half.sql").write_text(MODEL.format(table=self.topic.table))
        self.config = Config(
            lake=LakeConfig(root=str(self.root)),
            gold=GoldConfig(models=str(root / "models")),
            defaults=TableConfig(storage=silver, **settings),
        )
        self.targets = lake_of(self.config).silver(self.topic.table)
        self._lsn = 0

    def change(self, *keys: int) -> None:
        """Set `n` of each key in the source, and send the changes to Kafka."""
        for key in keys:
            self._lsn += 1
            op = "u" if key in self.source else "c"
            self.source[key] = self._lsn
            self.broker.append(self.topic.change(op, key, {"n": self._lsn}, lsn=self._lsn))

    def delete(self, *keys: int) -> None:
        """Delete keys in the source."""
        for key in keys:
            self._lsn += 1
            del self.source[key]
            self.broker.append(self.topic.change("d", key, lsn=self._lsn))

    def land(self) -> TableReport:
        """A run of bronze, which must succeed."""
        (done,) = succeeded(self.run_bronze())
        return done

    def run_bronze(self) -> Report:
        return run_bronze(self.config, ["*"], self.spark, source=self.broker, registry=self.topic.registry)

    def fold(self) -> list[TableReport]:
        """A run of silver, which must succeed."""
        return succeeded(self.run_silver())

    def run_silver(self) -> Report:
        return run_silver(self.config, ["*"], self.spark)

    def refresh(self) -> TableReport:
        """A run of gold, which must succeed."""
        (done,) = succeeded(self.run_gold())
        return done

    def run_gold(self) -> Report:
        return run_gold(self.config, ["*"], self.spark)

    def take(self, *keys: int) -> None:
        self.change(*keys)
        self.land()
        self.fold()
        self.refresh()

    def check(self) -> None:
        """Check that silver and gold equal the source."""
        for target in self.targets:
            rows = target.open(self.spark).read().select("id", "n").collect()
            assert sorted(map(tuple, rows)) == sorted(self.source.items()), target.name
        halves = [(half, [n for key, n in self.source.items() if key % 2 == half]) for half in (0, 1)]
        gold = open_gold(lake_of(self.config), self.config.gold.models, "per_half", self.spark)
        found = gold.read().select("half", "things", "n").collect()
        assert sorted(map(tuple, found)) == [(half, len(those), sum(those)) for half, those in halves]

    def back_up(self, *layers: str) -> Callable[[], None]:
        """Copy the folders of layers; returns a function that restores the copies."""
        kept = self.root.parent / f"backup {'-'.join(layers)} {self._lsn}"
        for layer in layers:
            shutil.copytree(self.root / layer, kept / layer)

        def put_back() -> None:
            for layer in layers:
                shutil.rmtree(self.root / layer)
                shutil.copytree(kept / layer, self.root / layer)

        return put_back


def succeeded(report: Report) -> list[TableReport]:
    assert [done.error for done in report.tables if done.error] == []
    return report.tables
