"""When a key is refolded from bronze, and when it is not; docs/explanation/silver.md."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, START_MS, Record, Topic
from support.lake import Lake

COLUMNS = {"n": OPTIONAL_INT, "body": OPTIONAL_STRING}
KEYS = 24


def change(topic: Topic, lsn: int, key: int, partition: int, *, op: str = "u", body: str = "") -> Record:
    """The change number `lsn` of the source, with this Kafka timestamp."""
    at = START_MS + lsn
    after = {"n": lsn, "body": body or f"body {lsn}"}
    return topic.change(op, key, after, lsn=lsn, ts_ms=at, partition=partition, timestamp_ms=at)


@pytest.fixture
def topic() -> Topic:
    return Topic(COLUMNS)


@pytest.mark.deep
def test_only_keys_out_of_order_are_refolded(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic)
    lake.land([change(topic, 1 + key, key, key % 4, op="c") for key in range(KEYS)])
    lake.land([change(topic, 100 + key, key, key % 4) for key in reversed(range(KEYS))])
    on_four = lake.fold()
    moved = {key: change(topic, 300 + key, key, key % 6) for key in range(KEYS) if key % 6 > 3}
    slow = [change(topic, 200 + key, key, key % 4) for key in (5, 11)]

    lake.land(list(moved.values()))
    in_order = lake.fold()
    lake.land(slow)
    out_of_order = lake.fold()

    assert on_four.rows["refolded"] == 0
    assert in_order.rows["refolded"] == 0
    assert out_of_order.rows["refolded"] == 2
    expected = {key: 100 + key for key in range(KEYS)} | {key: 300 + key for key in moved}
    assert {key: row["n"] for key, row in lake.rows().items()} == expected


def test_out_of_order_value_fills_later_unsent_values(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic)
    rows = lake.take(
        [change(topic, 1, 1, 0, op="c", body="old"), change(topic, 3, 1, 1, body=PLACEHOLDER)],
        [change(topic, 2, 1, 0, body="new")],
    )

    assert rows[1]["n"] == 3
    assert rows[1]["body"] == "new"


def test_recreated_bronze_is_compared_and_incomplete_rows_stay(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    lake = Lake(spark, tmp_path, topic)
    first = [change(topic, 1, 1, 0, op="c", body="one"), change(topic, 2, 2, 0, op="c", body="two")]
    lake.take(first, [change(topic, 3, 1, 0, body=PLACEHOLDER), change(topic, 4, 2, 0, body=PLACEHOLDER)])
    shutil.rmtree(tmp_path / "bronze")
    lake.broker.remove_before(topic.table, 0, 1)

    lake.land([change(topic, 5, 2, 0, body=PLACEHOLDER), change(topic, 6, 3, 0, op="c", body="three")])
    report = lake.fold()

    assert {key: (row["n"], row["body"]) for key, row in lake.rows().items()} == {
        1: (3, "one"),  # bronze has only its update, which does not have its body
        2: (5, "two"),
        3: (6, "three"),
    }
    assert report.rows["refolded"] == 1
    assert any("compared" in warning for warning in report.warnings)
    assert any("rows were kept: bronze has no event" in warning for warning in report.warnings)
    assert lake.fold().status == "unchanged"


def test_restored_bronze_that_lands_again_changes_nothing(spark: SparkSession, tmp_path: Path, topic: Topic) -> None:
    lake = Lake(spark, tmp_path, topic)
    lake.land([change(topic, 1, 1, 0, op="c")])
    version = lake.bronze.version()
    before = lake.take([change(topic, 2, 1, 0), change(topic, 3, 2, 0, op="c")])
    spark.sql(f"RESTORE TABLE delta.`{lake.bronze.path}` TO VERSION AS OF {version}").collect()

    lake.land([change(topic, 4, 3, 0, op="c")])
    lake.fold()

    after = lake.rows()
    assert {key: after[key]["n"] for key in after} == {1: 2, 2: 3, 3: 4}
    assert after[1]["__kafka"] == before[1]["__kafka"]
    assert lake.bronze.read().where("batch = 2").isEmpty()  # its number is never used twice


@pytest.mark.deep
def test_restored_silver_continues_without_reusing_batch_numbers(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    lake = Lake(spark, tmp_path, topic, deletes={"mode": "hard"})
    lake.take([change(topic, 1, 1, 0, op="c"), change(topic, 2, 2, 0, op="c")], [change(topic, 3, 1, 0, op="d")])
    version = lake.silver.version()
    lake.take([change(topic, 4, 2, 0, op="d")])
    spark.sql(f"RESTORE TABLE delta.`{lake.silver.path}` TO VERSION AS OF {version}").collect()

    restored = lake.silver.progress()
    rows = lake.take([change(topic, 1, 1, 0, op="c"), change(topic, 5, 3, 0, op="c")])

    assert restored is not None and restored.epoch == 1
    assert set(rows) == {3}
    assert rows[3]["__batch"] > restored.commit == 3
