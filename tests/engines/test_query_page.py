"""docs/how-to/query.md: the lines for engines that can be had here return the live rows of a small lake."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support import CHECKOUT
from support.events import START_MS, Topic, connect, decimal
from support.fakes import FakeBroker
from support.iceberg_rest import rest_catalog
from support.three_layers import succeeded

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, GoldConfig, IcebergConfig, LakeConfig, StorageConfig, TableConfig
from cdc_lake.gold.run import run_gold
from cdc_lake.silver.run import run_silver
from cdc_lake.spark.session import active_session, sibling

PAGE = (CHECKOUT / "docs" / "how-to" / "query.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROOT, CATALOG = "/data/lake", "http://catalog.internal:8181"
TABLE, MODEL = "shop.public.orders", "revenue"
COLUMNS = {
    "amount": ["null", decimal(10, 2)],
    "placed_at": ["null", connect("long", "io.debezium.time.MicroTimestamp")],
}
PLACED_AT = datetime(2026, 11, 28, 12, 30, 0, 250_001, tzinfo=UTC)
LIVE = [(1, Decimal("19.90"), PLACED_AT), (3, Decimal("-0.05"), PLACED_AT)]
REVENUE = Decimal("19.85")
QUERY = f"""\
-- name: {MODEL}
-- keys: [id]
-- sources: {{orders: {TABLE}}}
SELECT 1 AS id, sum(amount) AS amount FROM orders
"""


def make_lake(spark: SparkSession, root: Path, storage: StorageConfig, **settings: Any) -> str:
    """A lake with two live orders and a deleted one, and a gold table with their sum; returns its root.

    Args:
        settings: more of `LakeConfig`'s.
    """
    topic, broker, models = Topic(COLUMNS, table=TABLE), FakeBroker(), root / "models"
    micros = int(PLACED_AT.timestamp() * 1_000_000)
    for key, amount in enumerate(("19.90", "5.00", "-0.05"), 1):
        broker.append(topic.change("c", key, {"amount": Decimal(amount), "placed_at": micros}, lsn=key))
    broker.append(topic.change("d", 2, lsn=4, ts_ms=START_MS + 4))
    models.mkdir()
    gold = "delta" if storage.format == "hudi" else storage.format
    (models / f"{MODEL}.sql").write_text(f"-- table: {{format: {gold}}}\n{QUERY}", encoding="utf-8")
    config = Config(
        lake=LakeConfig(root=str(root / "lake"), **settings),
        gold=GoldConfig(models=str(models)),
        defaults=TableConfig(storage=(storage,)),
    )
    succeeded(run_bronze(config, ["*"], spark, source=broker, registry=topic.registry))
    succeeded(run_silver(config, ["*"], spark))
    succeeded(run_gold(config, ["*"], spark))
    return str(root / "lake")


@pytest.fixture(scope="module")
def delta(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_lake(spark, tmp_path_factory.mktemp("delta"), StorageConfig())


def blocks(heading: str, kind: str, root: str) -> list[str]:
    """The code of a section of the page, with this lake's root."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [text.replace(ROOT, root) for language, text in BLOCK.findall(section) if language == kind]
    assert found, f"the page has no {kind} for {heading}"
    return found


def as_rows(value: Any) -> list[tuple[Any, ...]]:
    """The rows of an engine's result by id."""
    if not isinstance(value, list):
        value = [row.values() for row in pa.table(value).to_pylist()]
    return sorted(tuple(row) for row in value)


def run_python(text: str, **names: Any) -> Mapping[str, Any]:
    exec(text, names)
    return names


@pytest.mark.parametrize("heading", ["deltalake", "DuckDB", "Polars"])
def test_python_lines_return_live_rows_of_delta(heading: str, delta: str) -> None:
    found = [run_python(text) for text in blocks(heading, "python", delta)]

    assert [as_rows(names["live"]) for names in found] == [LIVE] * len(found)
    assert [as_rows(names["revenue"]) for names in found if "revenue" in names] in ([], [[(1, REVENUE)]])
    duckdb.sql("DROP VIEW IF EXISTS orders")


def test_spark_lines_return_live_rows_of_delta(spark: SparkSession, delta: str) -> None:
    spark.sql(blocks("Spark", "sql", delta)[0])

    assert as_rows(spark.table("orders").collect()) == spark_rows()


@pytest.mark.hudi
def test_hudi_lines_return_live_rows(spark: SparkSession, tmp_path: Path) -> None:
    root = make_lake(spark, tmp_path, StorageConfig(format="hudi"))

    for statement in blocks("Spark", "sql", root)[1:]:
        spark.sql(statement)
    (python,) = blocks("hudi-rs", "python", root)

    assert as_rows(spark.table("orders").collect()) == spark_rows()
    assert as_rows(run_python(python)["live"]) == LIVE


def test_iceberg_lines_return_live_rows(spark: SparkSession, tmp_path: Path) -> None:
    with rest_catalog(tmp_path / "catalog") as address:
        storage, catalog = StorageConfig(format="iceberg", type="mor"), IcebergConfig(catalog="rest", uri=address)
        root = make_lake(spark, tmp_path, storage, iceberg=catalog)
        (_, by_pyiceberg), (by_spark,) = (blocks(heading, "python", root) for heading in ("pyiceberg", "Spark"))

        found = run_python(by_pyiceberg.replace(CATALOG, address))
        session = sibling(spark)
        with active_session(session):
            in_spark = run_python(by_spark.replace(CATALOG, address), spark=session)["live"].collect()

    assert as_rows(in_spark) == spark_rows()
    assert (as_rows(found["live"]), as_rows(found["revenue"])) == (LIVE, [(1, REVENUE)])


def test_iceberg_lines_with_the_default_catalog_return_live_rows(spark: SparkSession, tmp_path: Path) -> None:
    root = make_lake(spark, tmp_path, StorageConfig(format="iceberg", type="mor"))

    found = run_python(blocks("pyiceberg", "python", root)[0])

    assert (as_rows(found["live"]), as_rows(found["revenue"])) == (LIVE, [(1, REVENUE)])


def spark_rows() -> list[tuple[Any, ...]]:
    """The live rows as PySpark returns them: times without a zone, in that of the machine."""
    local = PLACED_AT.astimezone().replace(tzinfo=None)
    return [(*row[:2], local) for row in LIVE]
