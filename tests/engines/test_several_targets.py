"""One topic with several silver tables: the same rows in each, each with its own progress and side table."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import silver_rows
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, START_MS, Record, Topic
from support.lake import MOVABLE_TYPES, Lake

from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.operations.status import status
from cdc_lake.runs.report import Report
from cdc_lake.silver.run import run_silver

pytestmark = pytest.mark.hudi

FIRST = {1: "one", 2: "two", 3: "three"}
LAYERS = {"": "silver", "@hudi_cow": "silver_hudi_cow", "@hudi_mor": "silver_hudi_mor"}


def config(root: Path) -> Config:
    return Config(
        lake=LakeConfig(root=str(root)),
        defaults=TableConfig(storage=tuple(MOVABLE_TYPES.values()), deletes={"mode": "hard"}),
    )


def change(topic: Topic, lsn: int, op: str, key: int, body: str | None = None) -> Record:
    return topic.change(op, key, {"n": lsn, "body": body}, lsn=lsn, ts_ms=START_MS + lsn)


def rows(root: Path, topic: Topic, layer: str) -> dict[int, tuple[Any, ...]]:
    return {row["id"]: (row["n"], row["body"], row["__op"]) for row in silver_rows(root, topic.table, layer)}


def unchanged() -> dict[int, tuple[Any, ...]]:
    return {key: (key, body, "c") for key, body in FIRST.items()}


def outcomes(report: Report) -> dict[str, str | None]:
    return {
        table_report.table: table_report.error.code if table_report.error else None for table_report in report.tables
    }


@pytest.fixture(scope="module")
def topic() -> Topic:
    return Topic({"n": OPTIONAL_INT, "body": OPTIONAL_STRING})


@pytest.fixture(scope="module")
def folded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, topic: Topic) -> Path:
    """A lake after one batch, which all three tables have merged."""
    root = tmp_path_factory.mktemp("lake") / "folded"
    Lake(spark, root, topic).land(
        [
            *(change(topic, lsn, "c", lsn, body) for lsn, body in FIRST.items()),
            change(topic, 4, "c", 4, "four"),
            change(topic, 5, "d", 4),
        ]
    )
    assert outcomes(run_silver(config(root), [topic.table], spark)) == {f"{topic.table}{kind}": None for kind in LAYERS}
    return root


@pytest.fixture
def root(tmp_path: Path, folded: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(folded, tmp_path / "lake"))


def test_every_table_has_the_same_rows(spark: SparkSession, root: Path, topic: Topic) -> None:
    """A record without a key, and one whose key is not Avro, change none of them."""
    lake, good = Lake(spark, root, topic), change(topic, 9, "u", 1, "bad")
    landed = lake.land(
        [
            change(topic, 6, "u", 1, PLACEHOLDER),
            change(topic, 7, "d", 2),
            change(topic, 4, "u", 4, "sent again, behind its delete"),
            change(topic, 8, "c", 5, "five"),
            topic.record(None, good.value),
            topic.record(b"\0\0", good.value),
        ]
    )

    report = run_silver(config(root), [topic.table], spark)

    assert landed.rows["quarantined"] == 2
    assert outcomes(report) == {f"{topic.table}{kind}": None for kind in LAYERS}
    expected = {1: (6, "one", "u"), 3: (3, "three", "c"), 5: (8, "five", "c")}
    assert {layer: rows(root, topic, layer) for layer in LAYERS.values()} == dict.fromkeys(LAYERS.values(), expected)
    found = status(config(root), ["*"], spark, source=lake.broker).tables
    assert [one.table for one in found] == [topic.table, *(f"{topic.table}{kind}" for kind in LAYERS)]
    assert {one.behind_records for one in found} == {0}


def test_changed_key_columns_stop_every_table_without_changes(spark: SparkSession, root: Path, topic: Topic) -> None:
    other = Topic({"n": OPTIONAL_INT, "body": OPTIONAL_STRING}, keys={"code": "int"}, registry=topic.registry)
    Lake(spark, root, topic).land([replace(change(other, 6, "u", 1, "two"), offset=100)])

    report = run_silver(config(root), [topic.table], spark)

    assert outcomes(report) == {f"{topic.table}{kind}": "CDC-203" for kind in LAYERS}
    assert all(table_report.error and "primary key" in table_report.error.message for table_report in report.tables)
    assert [rows(root, topic, layer) for layer in LAYERS.values()] == [unchanged()] * len(LAYERS)


def test_failing_table_does_not_affect_the_others(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    Lake(spark, tmp_path, topic).land([change(topic, 1, "c", 1, "one")])
    theirs = tmp_path / "silver_hudi_mor" / topic.table.replace(".", "/")
    spark.range(1).write.format("delta").save(str(theirs))

    report = run_silver(config(tmp_path), [topic.table], spark)

    assert outcomes(report) == {
        topic.table: None,
        f"{topic.table}@hudi_cow": None,
        f"{topic.table}@hudi_mor": "CDC-200",
    }
    assert report.exit_code == 2
    assert rows(tmp_path, topic, "silver") == rows(tmp_path, topic, "silver_hudi_cow") == {1: (1, "one", "c")}
