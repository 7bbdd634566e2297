"""One topic's silver in several tables: the same rows in each, each with progress and a memory of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import silver_rows
from events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, START_MS, Record, Topic
from lake import Lake
from pyspark.sql import SparkSession

from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, TableConfig
from cdc_lake.layers.silver import run_silver
from cdc_lake.layers.status import status
from cdc_lake.metrics.report import Report

pytestmark = pytest.mark.hudi

LAYERS = {"": "silver", "@hudi_cow": "silver_hudi_cow", "@hudi_mor": "silver_hudi_mor"}


@pytest.fixture
def topic() -> Topic:
    return Topic({"n": OPTIONAL_INT, "body": OPTIONAL_STRING})


def config(root: Path) -> Config:
    return Config(
        lake=LakeConfig(root=str(root)), defaults=TableConfig(silver=tuple(TABLE_TYPES.values()), deletes="hard")
    )


def change(topic: Topic, lsn: int, op: str, key: int, body: str | None = None) -> Record:
    return topic.change(op, key, {"n": lsn, "body": body}, lsn=lsn, ts_ms=START_MS + lsn)


def rows(root: Path, topic: Topic, layer: str) -> dict[int, tuple[Any, ...]]:
    return {row["id"]: (row["n"], row["body"], row["__op"]) for row in silver_rows(root, topic.table, layer)}


def outcomes(report: Report) -> dict[str, str | None]:
    return {done.table: done.error.code if done.error else None for done in report.tables}


def test_each_table_holds_the_same_rows(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic)
    batches = [
        [change(topic, 1, "c", 1, "one"), change(topic, 2, "c", 2, "two"), change(topic, 3, "c", 3, "three")],
        [change(topic, 4, "u", 1, PLACEHOLDER), change(topic, 5, "d", 2)],
        [change(topic, 2, "u", 2, "sent again, behind its delete"), change(topic, 6, "c", 4, "four")],
    ]
    for batch in batches:
        lake.land(batch)
        report = run_silver(config(tmp_path), [topic.table], spark)
        assert outcomes(report) == {f"{topic.table}{kind}": None for kind in LAYERS}

    expected = {1: (4, "one", "u"), 3: (3, "three", "c"), 4: (6, "four", "c")}
    assert {layer: rows(tmp_path, topic, layer) for layer in LAYERS.values()} == dict.fromkeys(
        LAYERS.values(), expected
    )
    found = status(config(tmp_path), ["*"], spark, source=lake.broker).tables
    assert [one.table for one in found] == [topic.table, *(f"{topic.table}{kind}" for kind in LAYERS)]
    assert {one.behind_records for one in found} == {0}


def test_a_record_that_cannot_be_placed_changes_no_table(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    """No key at all, and one that is no Avro."""
    lake = Lake(spark, tmp_path, topic)
    lake.land([change(topic, 1, "c", 1, "one")])
    run_silver(config(tmp_path), [topic.table], spark)
    good = change(topic, 2, "u", 1, "bad")
    landed = lake.land([topic.record(None, good.value), topic.record(b"\0\0", good.value)])

    report = run_silver(config(tmp_path), [topic.table], spark)

    assert landed.rows["quarantined"] == 2
    assert outcomes(report) == {f"{topic.table}{kind}": None for kind in LAYERS}
    assert [rows(tmp_path, topic, layer) for layer in LAYERS.values()] == [{1: (1, "one", "c")}] * len(LAYERS)


def test_a_key_of_other_columns_stops_each_table_and_changes_none(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    lake = Lake(spark, tmp_path, topic)
    lake.land([change(topic, 1, "c", 1, "one")])
    run_silver(config(tmp_path), [topic.table], spark)
    other = Topic({"n": OPTIONAL_INT, "body": OPTIONAL_STRING}, keys={"code": "int"}, registry=topic.registry)
    lake.land([replace(change(other, 2, "u", 1, "two"), offset=1)])

    report = run_silver(config(tmp_path), [topic.table], spark)

    assert outcomes(report) == {f"{topic.table}{kind}": "CDC-203" for kind in LAYERS}
    assert all(done.error and "primary key" in done.error.message for done in report.tables)
    assert [rows(tmp_path, topic, layer) for layer in LAYERS.values()] == [{1: (1, "one", "c")}] * len(LAYERS)


def test_a_table_that_fails_leaves_the_others_alone(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
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
