"""A Delta table whose commits carry progress: what others do to the table, and what a second writer can do to it."""

import json
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cdc_lake.errors import DataLossError, TableLockedError
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Progress

SETTINGS = ("commitInfo.userMetadata", "write.txnAppId", "write.txnVersion")
CHANGE = "id int, n int, text string, __keep array<string>, __delete boolean"


def bronze(commit: int, **more: Any) -> Progress:
    return Progress(layer="bronze", run_id="a run", commit=commit, offsets={"topic": {0: commit * 10}}, **more)


def rows(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(number, number * 10, None) for number in ids], "id int, n int, text string")


def held(table: DeltaLakeTable) -> dict[int, tuple[Any, ...]]:
    return {row["id"]: (row["n"], row["text"]) for row in table.read().collect()}


def settings_left(spark: SparkSession) -> list[str]:
    return [name for name in SETTINGS if spark.conf.get(f"spark.databricks.delta.{name}", None) is not None]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> DeltaLakeTable:
    return DeltaLakeTable(spark, str(tmp_path / "table"), statistics=("id",))


def test_a_table_that_does_not_exist_has_no_progress(table: DeltaLakeTable) -> None:
    assert not table.exists()
    assert table.progress() is None


def test_rows_and_progress_are_one_commit(spark: SparkSession, table: DeltaLakeTable) -> None:
    first, second = bronze(1), bronze(2)

    assert table.append(rows(spark, 1), first).version == 0
    commit = table.append(rows(spark, 2), second)

    assert (commit.version, commit.progress) == (1, second)
    assert table.progress() == second
    assert held(table) == {1: (10, None), 2: (20, None)}
    (infos,) = [
        json.loads(line)["commitInfo"]
        for line in (Path(table.path) / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
        if "commitInfo" in line
    ]
    assert Progress.from_metadata(infos["userMetadata"]) == second


def test_progress_survives_the_commits_of_others(spark: SparkSession, table: DeltaLakeTable) -> None:
    table.append(rows(spark, 1), bronze(1))
    ours = bronze(2)
    table.append(rows(spark, 2), ours)

    spark.sql(f"OPTIMIZE delta.`{table.path}`").collect()
    assert (table.version(), table.progress()) == (2, ours)

    write_deltalake(table.path, DeltaTable(table.path).to_pyarrow_table(), mode="append")
    assert (table.version(), table.progress()) == (3, ours)
    assert table.read().count() == 4

    DeltaTable(table.path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('a' = 'b')")
    assert table.progress() == ours

    table.append(rows(spark, 3), bronze(3))
    assert table.progress().commit == 3  # type: ignore[union-attr]
    assert sorted(DeltaTable(table.path).to_pyarrow_table()["id"].to_pylist()) == [1, 1, 2, 2, 3]


def test_a_table_without_any_progress_is_data_loss(spark: SparkSession, table: DeltaLakeTable) -> None:
    rows(spark, 1).write.format("delta").save(table.path)

    with pytest.raises(DataLossError, match="none of the commits left") as caught:
        table.progress()
    assert caught.value.exit_code == 20


def test_a_table_whose_last_progress_was_cleaned_away_is_data_loss(spark: SparkSession, table: DeltaLakeTable) -> None:
    table.append(rows(spark, 1), bronze(1))
    for number in range(3):
        spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('a' = '{number}')")
    DeltaTable(table.path).create_checkpoint()
    log = Path(table.path) / "_delta_log"
    for number in range(2):
        (log / f"{number:020d}.json").unlink()
        (log / f".{number:020d}.json.crc").unlink(missing_ok=True)
    # Spark keeps the log in memory; a new run would not.
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    with pytest.raises(DataLossError):
        table.progress()


def test_no_setting_of_a_commit_outlives_it(spark: SparkSession, table: DeltaLakeTable) -> None:
    table.append(rows(spark, 1), bronze(1))
    assert settings_left(spark) == []

    with pytest.raises(PySparkException):
        table.append(rows(spark, 2).withColumnRenamed("n", "another"), bronze(2))
    assert settings_left(spark) == []

    with pytest.raises(PySparkException):
        table.merge(spark.createDataFrame([(1, True)], "id int, other boolean"), ["id"], bronze(2))
    assert settings_left(spark) == []
    assert table.progress().commit == 1  # type: ignore[union-attr]


def test_a_second_writer_of_the_same_commit_number_writes_nothing(spark: SparkSession, table: DeltaLakeTable) -> None:
    winner = bronze(1)
    table.append(rows(spark, 1), winner)

    with pytest.raises(TableLockedError) as caught:
        table.append(rows(spark, 2), bronze(1))

    assert caught.value.exit_code == 40
    assert table.progress() == winner
    assert (table.version(), set(held(table))) == (0, {1})
    assert settings_left(spark) == []


def test_a_second_merge_of_the_same_commit_number_changes_nothing(spark: SparkSession, table: DeltaLakeTable) -> None:
    table.append(rows(spark, 1), bronze(1))
    change = spark.createDataFrame([(1, 11, "a", [], False)], CHANGE)
    other = spark.createDataFrame([(1, 99, "b", [], False)], CHANGE)
    table.merge(change, ["id"], bronze(2))

    with pytest.raises(TableLockedError):
        table.merge(other, ["id"], bronze(2))
    assert held(table) == {1: (11, "a")}


def test_a_writer_that_is_behind_by_several_commits_writes_nothing(spark: SparkSession, table: DeltaLakeTable) -> None:
    for number in (1, 2, 3):
        table.append(rows(spark, number), bronze(number))

    with pytest.raises(TableLockedError):
        table.append(rows(spark, 9), bronze(2))
    assert set(held(table)) == {1, 2, 3}


def test_a_merge_updates_keeps_deletes_inserts_and_leaves_alone(spark: SparkSession, table: DeltaLakeTable) -> None:
    stored = [(number, number * 10, f"text {number}") for number in range(1, 6)]
    table.append(spark.createDataFrame(stored, "id int, n int, text string"), bronze(1))
    changes = [
        (1, 11, "new", [], False),
        (2, 22, None, ["text"], False),
        (3, None, None, [], False),
        (4, None, None, [], True),
        (6, 66, "six", [], False),
        (7, None, None, ["text"], True),
    ]

    table.merge(spark.createDataFrame(changes, CHANGE), ["id"], bronze(2))

    assert held(table) == {
        1: (11, "new"),
        2: (22, "text 2"),
        3: (None, None),
        5: (50, "text 5"),
        6: (66, "six"),
    }


def test_a_null_in_a_key_is_matched(spark: SparkSession, table: DeltaLakeTable) -> None:
    table.append(spark.createDataFrame([(1, None, "a")], "id int, n int, text string"), bronze(1))

    table.merge(spark.createDataFrame([(1, None, "b", [], False)], CHANGE), ["id", "n"], bronze(2))

    assert held(table) == {1: (None, "b")}


def test_a_merge_adds_the_columns_that_are_new_in_its_own_commit(spark: SparkSession, table: DeltaLakeTable) -> None:
    table.append(rows(spark, 1, 2), bronze(1))
    schema = CHANGE.replace("text string", "text string, `Order Date` int, deep array<struct<a: int>>").replace(
        "Order Date", "Order_Date"
    )
    changes = [(1, 11, "a", 5, [(1,)], [], False), (3, 33, "c", None, None, [], False)]

    commit = table.merge(spark.createDataFrame(changes, schema), ["id"], bronze(2))

    assert (commit.version, table.progress()) == (1, commit.progress)
    assert table.read().columns == ["id", "n", "text", "Order_Date", "deep"]
    found = sorted(DeltaTable(table.path).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["Order_Date"], row["deep"]) for row in found] == [
        (1, 5, [{"a": 1}]),
        (2, None, None),
        (3, None, None),
    ]


def test_a_table_made_anew_has_another_id(spark: SparkSession, tmp_path: Path) -> None:
    ids = set()
    for name in "ab":
        table = DeltaLakeTable(spark, str(tmp_path / name))
        table.append(rows(spark, 1), bronze(1))
        ids.add(table.id())

    assert len(ids) == 2


def test_every_reader_of_delta_can_read_the_table(spark: SparkSession, table: DeltaLakeTable) -> None:
    table.append(rows(spark, 1, 2), bronze(1))
    table.merge(spark.createDataFrame([(1, None, None, [], True)], CHANGE), ["id"], bronze(2))

    details = SparkDeltaTable.forPath(spark, table.path).detail().collect()[0]

    assert details["properties"]["delta.enableDeletionVectors"] == "false"
    assert details["properties"]["delta.dataSkippingStatsColumns"] == "`id`"
    assert DeltaTable(table.path).to_pyarrow_table()["id"].to_pylist() == [2]
