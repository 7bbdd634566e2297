"""Topics whose names nest, such as `shop.orders` and `shop.orders.items`: no table's folder contains another table."""

import shutil
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support.events import OPTIONAL_STRING, START_MS, FakeRegistry, Topic
from support.fakes import FakeBroker

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, StorageConfig, TableConfig, TableType
from cdc_lake.errors import ConfigError
from cdc_lake.operations.maintain import Layer, run_maintain
from cdc_lake.operations.plan import plan
from cdc_lake.runs.context import lake_of, select_landed
from cdc_lake.runs.report import Report
from cdc_lake.silver.run import run_silver
from cdc_lake.storage.hadoop import HadoopFiles

OUTER, INNER = "shop.orders", "shop.orders.items"
AT_ONCE = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}


class Lake:
    """A lake below `root` for topics of one broker and one registry."""

    def __init__(self, spark: SparkSession, root: Path, *silver: StorageConfig) -> None:
        self.root = root
        self.spark = spark
        self.broker, self.registry = FakeBroker(), FakeRegistry()
        self.topics: dict[str, Topic] = {}
        self.config = Config(
            lake=LakeConfig(root=str(root)),
            defaults=TableConfig(storage=silver or (StorageConfig(properties=AT_ONCE),), deletes={"mode": "hard"}),
        )

    def copied(self, root: Path) -> "Lake":
        """A second lake in the same state."""
        shutil.copytree(self.root, root)
        return self.second(root)

    def second(self, root: Path) -> "Lake":
        """An empty lake of the same topics."""
        other = Lake(self.spark, root)
        other.registry, other.broker, other.topics = deepcopy((self.registry, self.broker, self.topics))
        return other

    def write(self, name: str, op: str, key: int, lsn: int) -> None:
        topic = self.topics.setdefault(
            name, Topic({"text": OPTIONAL_STRING}, registry=self.registry, table=name, flat=True)
        )
        self.broker.append(topic.change(op, key, {"text": f"{name} {lsn}"}, lsn=lsn, ts_ms=START_MS + lsn))

    def bronze(self, *names: str) -> Report:
        return run_bronze(self.config, names, self.spark, source=self.broker, registry=self.registry)

    def silver(self, *names: str) -> Report:
        return run_silver(self.config, names, self.spark)

    def maintain(self, layer: Layer, *names: str) -> Report:
        return run_maintain(self.config, names, self.spark, layer=layer)

    def rows(self, name: str) -> dict[int, str]:
        return {row["id"]: row["text"] for row in table_rows(str(self.root / "silver" / name.replace(".", "/")))}


def errors(report: Report) -> dict[str, str]:
    return {table_report.table: str(table_report.error.message) for table_report in report.tables if table_report.error}


def files(root: Path) -> set[Path]:
    return {file for file in root.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def apart(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lake]:
    """Two lakes of the same broker: one with the outer topic in bronze and silver, one with the inner topic."""
    root = tmp_path_factory.mktemp("apart")
    lakes = {OUTER: Lake(spark, root / "outer"), INNER: Lake(spark, root / "inner")}
    inner, outer = lakes[INNER], lakes[OUTER]
    inner.registry, inner.broker, inner.topics = outer.registry, outer.broker, outer.topics
    for name, lake in lakes.items():
        lake.write(name, "c", 1, lsn=1)
        assert lake.bronze(name).exit_code == 0
        assert lake.silver(name).exit_code == 0
    return lakes


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (INNER, OUTER),
        (OUTER, INNER),
        (INNER, "shop"),
    ],
)
def test_second_nested_topic_is_refused(
    spark: SparkSession, tmp_path: Path, apart: dict[str, Lake], first: str, second: str
) -> None:
    lake = apart[first].copied(tmp_path / "lake")
    lake.write(second, "c", 2, lsn=2)
    before = files(lake.root / "bronze")

    report = lake.bronze(first, second)

    assert report.exit_code == ConfigError.exit_code
    (message,) = errors(report).values()
    assert list(errors(report)) == [second]
    assert f"`{first}`" in message
    assert files(lake.root / "bronze") == before
    assert plan(lake.config, [second], spark, source=lake.broker).refused


def test_topic_with_a_delta_log_segment_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path)
    lake.write("pagila.public.film._delta_log", "c", 1, lsn=1)

    report = lake.bronze("*")

    assert report.exit_code == ConfigError.exit_code
    assert "_delta_log" in errors(report)["pagila.public.film._delta_log"]
    assert not (tmp_path / "bronze").exists()


@pytest.mark.hudi
@pytest.mark.parametrize("kinds", [("delta", "hudi-mor"), pytest.param(("hudi-cow",), marks=pytest.mark.deep)])
def test_segments_with_a_leading_underscore_work(
    spark: SparkSession, tmp_path: Path, kinds: Sequence[TableType]
) -> None:
    name = "_shop.public._prisma_migrations"
    lake = Lake(spark, tmp_path, *(TABLE_TYPES[kind] for kind in kinds))
    for lsn, op in ((1, "c"), (2, "u")):
        lake.write(name, op, 1, lsn=lsn)
        assert lake.bronze(name).exit_code == 0
        assert lake.silver("*").exit_code == 0

    targets = lake_of(lake.config).silver(name)
    assert len(targets) == len(kinds)
    for target in targets:
        assert [row["text"] for row in table_rows(target.path)] == [f"{name} 2"]


def test_silver_refuses_to_nest_its_tables(tmp_path: Path, apart: dict[str, Lake]) -> None:
    lake = apart[OUTER].copied(tmp_path / "lake")
    shutil.rmtree(lake.root / "bronze")
    shutil.copytree(apart[INNER].root / "bronze", lake.root / "bronze")
    shutil.copytree(apart[INNER].root / "_schemas", lake.root / "_schemas", dirs_exist_ok=True)

    report = lake.silver("*")

    assert list(errors(report)) == [INNER]
    assert f"`{OUTER}`" in errors(report)[INNER]
    assert not (lake.root / "silver" / "shop" / "orders" / "items").exists()


def move_inner(source: Lake, target: Lake) -> None:
    """Move the inner topic's tables to another lake, and copy the schemas."""
    for layer in ("bronze", "silver"):
        folder = target.root / layer / INNER.replace(".", "/")
        folder.parent.mkdir(parents=True, exist_ok=True)
        (source.root / layer / INNER.replace(".", "/")).rename(folder)
    shutil.copytree(source.root / "_schemas", target.root / "_schemas", dirs_exist_ok=True)


def test_nested_lake_is_refused_until_inner_moves_out(
    spark: SparkSession, tmp_path: Path, apart: dict[str, Lake]
) -> None:
    """Someone moved the inner topic's folders into those of the outer topic."""
    lake = apart[OUTER].copied(tmp_path / "lake")
    move_inner(apart[INNER].copied(tmp_path / "other"), lake)
    layers: tuple[Layer, ...] = ("bronze", "silver")
    before = {layer: files(lake.root / layer) for layer in layers}

    for layer in layers:
        report = lake.maintain(layer, OUTER)
        assert list(errors(report)) == [OUTER]
        assert f"`{INNER}`" in errors(report)[OUTER]
        assert files(lake.root / layer) == before[layer]
    lake.write(INNER, "u", 1, lsn=2)
    assert list(errors(lake.bronze("*"))) == [INNER]
    with pytest.raises(ConfigError, match=f"`{OUTER}`"):
        select_landed(lake_of(lake.config), HadoopFiles(spark), [INNER])

    cured = lake.second(tmp_path / "lake-of-items")
    move_inner(lake, cured)

    for one, name in ((lake, OUTER), (cured, INNER)):
        one.write(name, "u", 1, lsn=3)
        assert one.bronze(name).exit_code == 0
        assert one.silver("*").exit_code == 0
        assert one.maintain("silver", "*").exit_code == 0
        assert one.rows(name) == {1: f"{name} 3"}
