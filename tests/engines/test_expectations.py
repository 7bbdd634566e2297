"""Expectations: each event is checked by itself, so the result does not depend on how the log is cut."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, START_MS, Record, Topic
from support.lake import Lake

from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.errors import ExpectationError
from cdc_lake.operations.story import story
from cdc_lake.silver.run import run_silver

COLUMNS = {"n": OPTIONAL_INT, "body": OPTIONAL_STRING}
POSITIVE = {"name": "positive", "holds": "n > 0", "on_fail": "reject"}
WITH_BODY = {"name": "with_body", "holds": "body IS NOT NULL", "on_fail": "reject"}


@pytest.fixture
def topic() -> Topic:
    return Topic(COLUMNS)


def change(topic: Topic, lsn: int, key: int, n: int | None, body: str | None = "x", **more: Any) -> Record:
    op = more.pop("op", "u")
    return topic.change(op, key, {"n": n, "body": body}, lsn=lsn, ts_ms=START_MS + lsn, **more)


def rejected(root: Path, topic: Topic) -> dict[int, list[str]]:
    """By offset: the unmet expectations in the side table."""
    entries = DeltaTable(str(root / "side" / topic.table.replace(".", "/"))).to_pyarrow_table().to_pylist()
    return {row["__kafka"]["offset"]: json.loads(row["image"]) for row in entries if row["kind"] == "rejected"}


@pytest.mark.parametrize("cuts", [(0, 9), (0, 4, 9), pytest.param((0, 4, 8, 9), marks=pytest.mark.deep)])
def test_rejected_event_has_no_effect_in_any_cut(
    spark: SparkSession, tmp_path: Path, topic: Topic, cuts: tuple[int, ...]
) -> None:
    records = [
        change(topic, 1, 1, 10, op="c"),
        change(topic, 2, 1, -1),  # 1@1 is rejected: the row does not change
        change(topic, 3, 2, -5, op="c"),  # so is the insert: there is no row
        change(topic, 4, 1, None),  # a null is not false
        change(topic, 5, 1, 12, PLACEHOLDER),  # a value that was not sent meets any expectation
        change(topic, 6, 3, -1, None, op="c"),  # fails both
        change(topic, 7, 2, 6),
        topic.change("d", 1, None, lsn=8, ts_ms=START_MS + 8),  # deletes are not checked
        change(topic, 9, 1, 1, "again", op="c"),
    ]
    lake = Lake(spark, tmp_path, topic, quality={"expectations": (POSITIVE, WITH_BODY)}, deletes={"mode": "hard"})

    rows = lake.take(*(records[start:end] for start, end in pairwise(cuts)))

    assert {key: (row["n"], row["body"]) for key, row in rows.items()} == {1: (1, "again"), 2: (6, "x")}
    assert rejected(tmp_path, topic) == {1: ["positive"], 2: ["positive"], 5: ["positive", "with_body"]}


def test_report_counts_unmet_expectations_and_its_sum_closes(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic, quality={"expectations": (POSITIVE, {"name": "small", "holds": "n < 100"})})
    lake.land([change(topic, 1, 1, 1000, op="c"), change(topic, 2, 1, -1), change(topic, 3, 2, 5, op="c")])

    report = lake.fold()

    assert report.rows["events"] == 3 == report.rows["applied"] + report.rows["superseded"] + report.rows["rejected"]
    assert (report.rows["rejected"], report.unmet) == (1, {"positive": 1, "small": 1})
    assert report.warnings == [
        "1 rows do not meet the expectation `positive`: n > 0; they are rejected",
        "1 rows do not meet the expectation `small`: n < 100",
    ]
    assert lake.rows()[1]["n"] == 1000


def test_refolded_key_excludes_rejected_events(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic, quality={"expectations": (POSITIVE,)})
    at = [{"timestamp_ms": START_MS + number} for number in range(9)]
    lake.take(
        [
            change(topic, 1, 1, 10, op="c", **at[1]),
            change(topic, 4, 1, -4, partition=1, **at[4]),
            change(topic, 5, 1, 50, PLACEHOLDER, **at[5]),
        ]
    )
    lake.land([change(topic, 3, 1, 30, "late", partition=1, **at[3])])

    report = lake.fold()

    assert report.rows["refolded"] == 1
    assert (lake.rows()[1]["n"], lake.rows()[1]["body"]) == (50, "late")
    config = Config(lake=LakeConfig(root=str(tmp_path)), defaults=TableConfig(quality={"expectations": (POSITIVE,)}))
    told = {event.source_ts_ms: event for event in story(config, topic.table, "1", spark).events}
    assert (told[START_MS + 4].verdict, told[START_MS + 4].why) == ("rejected", "does not meet positive")
    assert [told[START_MS + lsn].verdict for lsn in (1, 3, 5)] == ["counts", "counts", "decides"]


@pytest.fixture(scope="module")
def waiting(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Path]:
    """A lake with a row in silver, and newer records in bronze; runs on it fail."""
    root, topic = tmp_path_factory.mktemp("waiting"), Topic(COLUMNS)
    lake = Lake(spark, root, topic)
    lake.take([change(topic, 1, 1, 10, op="c")])
    lake.land([change(topic, 2, 1, -1), change(topic, 3, 1, 5)])
    return lake, root


def test_on_fail_stop_exits_30_and_leaves_the_table_unchanged(
    spark: SparkSession, waiting: tuple[Lake, Path], topic: Topic
) -> None:
    lake, root = waiting
    stopping = {"name": "positive", "holds": "n > 0", "on_fail": "stop"}
    config = Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(quality={"expectations": (stopping,)}))

    (report,) = run_silver(config, [topic.table], spark).tables

    assert report.error is not None
    assert (report.error.code, report.error.exit_code) == (ExpectationError.code, 30)
    assert (
        f"{topic.table}: 1 rows do not meet the expectation `positive`: n > 0; the commit was aborted"
        in report.error.message
    )
    assert lake.silver.version() == 0
    assert lake.rows()[1]["n"] == 10


def test_expectation_on_unknown_column_exits_2(spark: SparkSession, waiting: tuple[Lake, Path], topic: Topic) -> None:
    _, root = waiting
    wrong = {"name": "big", "holds": "nn > 0"}
    config = Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(quality={"expectations": (wrong,)}))

    (report,) = run_silver(config, [topic.table], spark).tables

    assert report.error is not None
    assert (report.error.code, report.error.exit_code) == ("CDC-200", 2)
    assert f"{topic.table}: big: Spark says: [UNRESOLVED_COLUMN" in report.error.message
