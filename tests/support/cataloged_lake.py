"""A lake whose tables are registered in a catalog: one topic, silver in each of the three types, and a gold model."""

from pathlib import Path
from typing import Any

from conformance.by_lake import silver_rows
from pyspark.sql import SparkSession

from cdc_lake.bronze.run import run_bronze
from cdc_lake.catalogs.catalog import Entry
from cdc_lake.config import CatalogConfig, Config, GoldConfig, LakeConfig, StorageConfig, TableConfig
from cdc_lake.gold.run import run_gold
from cdc_lake.runs.catalog_sync import _CatalogComparison
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.silver.run import run_silver
from support.events import OPTIONAL_INT, START_MS, Topic
from support.fakes import FakeBroker

COMMENTED = ["null", {"type": "string", "connect.doc": "what it is"}]
SILVER = {
    "delta": StorageConfig(partition_by=("kind",)),
    "hudi_cow": StorageConfig(format="hudi", type="cow"),
    "hudi_mor": StorageConfig(format="hudi", type="mor", partition_by=("kind",)),
}
DATABASES = {kind: "pagila_silver" if kind == "delta" else f"pagila_silver_{kind}" for kind in SILVER}
"""The names in the catalog, by type of silver."""
GOLD = "-- name: per_kind\n-- keys: [kind]\n-- sources: {thing: pagila.public.thing}\n"


class CatalogedLake:
    """The lake.

    Args:
        root: its folder, and that of the model.
    """

    def __init__(self, spark: SparkSession, root: Path, catalog: CatalogConfig, **settings: Any) -> None:
        self._spark = spark
        self._topics = [Topic({"n": OPTIONAL_INT, "kind": COMMENTED})]
        self._broker = FakeBroker()
        self._sent = 0
        self.root = root / "lake"
        self._models = root / "models"
        self._models.mkdir(parents=True)
        self.model("SELECT kind, count(*) AS things FROM thing GROUP BY kind")
        self.config = Config(
            lake=LakeConfig(root=str(self.root)),
            gold=GoldConfig(models=str(self._models)),
            catalog=catalog,
            defaults=TableConfig(**{"storage": tuple(SILVER.values()), **settings}),
        )

    @property
    def topic(self) -> str:
        return self._topics[0].table

    def model(self, sql: str) -> None:
        """The source of the gold table."""
        (self._models / "per_kind.sql").write_text(f"{GOLD}{sql}\n")

    def add_column(self, name: str) -> None:
        """Add a column to later records."""
        columns = {"n": OPTIONAL_INT, "kind": COMMENTED, name: ["null", "long"]}
        self._topics.append(Topic(columns, registry=self._topics[0].registry))

    def send(self, key: int, **after: Any) -> None:
        """A change of a row."""
        self._sent += 1
        moment = {"lsn": self._sent, "ts_ms": START_MS + self._sent, "offset": self._sent - 1}
        self._broker.append(self._topics[-1].change("u", key, after, **moment))

    def run(self, *layers: str) -> dict[str, TableReport]:
        """Run layers, each of which must succeed; the last one's reports by table."""
        for layer in layers or ("bronze", "silver", "gold"):
            report = self._run(layer)
            assert not [table_report.error for table_report in report.tables if table_report.error]
        return {table_report.table: table_report for table_report in report.tables}

    def _run(self, layer: str) -> Report:
        if layer == "bronze":
            registry = self._topics[0].registry
            return run_bronze(self.config, ["*"], self._spark, source=self._broker, registry=registry)
        return (
            run_gold(self.config, ["*"], self._spark)
            if layer == "gold"
            else run_silver(self.config, ["*"], self._spark)
        )

    def rows(self, kind: str) -> dict[int, dict[str, Any]]:
        """Silver's rows by key, read by delta-rs or hudi-rs."""
        layer = "silver" if kind == "delta" else f"silver_{kind}"
        return {row["id"]: row for row in silver_rows(self.root, self.topic, layer)}


def entries(spark: SparkSession | None, lake: CatalogedLake, config: Config | None = None) -> list[Entry]:
    """The catalog entries of the lake's tables."""
    return _CatalogComparison(config or lake.config, ["*"], (), spark).entries
