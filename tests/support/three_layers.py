"""A topic in all three layers of a lake, and its source."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.by_lake import table_rows
from pyspark.sql import SparkSession

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, GoldConfig, LakeConfig, StorageConfig, TableConfig
from cdc_lake.gold.run import run_gold
from cdc_lake.lake.lake import SilverTarget
from cdc_lake.runs.context import lake_of
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
        root: its folder, which also has its gold model.
        silver: formats and types of its silver tables.
        settings: more of `TableConfig`'s.
    """

    def __init__(self, spark: SparkSession, root: Path, *silver: StorageConfig, **settings: Any) -> None:
        self.spark, self.root = spark, root
        self.topic, self.broker, self.source = Topic({"n": OPTIONAL_INT}), FakeBroker(), dict[int, int]()
        self._models.mkdir(parents=True)
        (self._models / "per_half.sql").write_text(MODEL.format(table=self.topic.table))
        self._settings, self._lsn = TableConfig(storage=silver, **settings), 0

    @property
    def _models(self) -> Path:
        return self.root / "_models"

    @property
    def config(self) -> Config:
        return Config(
            lake=LakeConfig(root=str(self.root)), gold=GoldConfig(models=str(self._models)), defaults=self._settings
        )

    @property
    def targets(self) -> list[SilverTarget]:
        """The silver tables."""
        return lake_of(self.config).silver(self.topic.table)

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
        (report,) = succeeded(self.run_bronze())
        return report

    def run_bronze(self) -> Report:
        return run_bronze(self.config, ["*"], self.spark, source=self.broker, registry=self.topic.registry)

    def fold(self) -> list[TableReport]:
        """A run of silver, which must succeed."""
        return succeeded(self.run_silver())

    def run_silver(self) -> Report:
        return run_silver(self.config, ["*"], self.spark)

    def refresh(self) -> TableReport:
        """A run of gold, which must succeed."""
        (report,) = succeeded(self.run_gold())
        return report

    def run_gold(self) -> Report:
        return run_gold(self.config, ["*"], self.spark)

    def take(self, *keys: int) -> None:
        self.change(*keys)
        self.land()
        self.fold()
        self.refresh()

    def check(self) -> None:
        """Check that silver and gold equal the source, read by delta-rs or hudi-rs."""
        for target in self.targets:
            rows = sorted((row["id"], row["n"]) for row in table_rows(target.path))
            assert rows == sorted(self.source.items()), target.name
        halves = [(half, [n for key, n in self.source.items() if key % 2 == half]) for half in (0, 1)]
        gold = table_rows(lake_of(self.config).path("gold", "per_half"))
        found = sorted((row["half"], row["things"], row["n"]) for row in gold)
        assert found == [(half, len(those), sum(those)) for half, those in halves]

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
    assert [table_report.error for table_report in report.tables if table_report.error] == []
    return report.tables
