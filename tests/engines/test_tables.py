"""Delta tables whose commits have progress: changes by other programs, and a second writer."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.lake import one_winner

from cdc_lake.errors import NoProgressError, TableLockedError
from cdc_lake.tables.contract import Changes, Commit
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import BronzeProgress, Progress

SETTINGS = ("commitInfo.userMetadata", "write.txnAppId", "write.txnVersion")
CHANGE = "id int, n int, text string, __keep array<string>, __delete boolean"


def bronze(commit: int, **more: Any) -> Progress:
    return BronzeProgress(run_id="a run", commit=commit, offsets={"topic": {0: commit * 10}}, **more)


def rows(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(number, number * 10, None) for number in ids], "id int, n int, text string")


def held(table: DeltaLakeTable) -> dict[int, tuple[Any, ...]]:
    return {row["id"]: (row["n"], row["text"]) for row in table.read().collect()}


def settings_left(spark: SparkSession) -> list[str]:
    return [name for name in SETTINGS if spark.conf.get(f"spark.databricks.delta.{name}", None) is not None]


def next_of(progress: Progress | None) -> Progress:
    assert progress is not None
    return BronzeProgress(run_id="a run", epoch=progress.epoch, commit=progress.commit + 1)


def restore(table: DeltaLakeTable, to: str) -> None:
    SparkSession.active().sql(f"RESTORE delta.`{table.path}` TO {to}").collect()


def log_file(table: DeltaLakeTable, version: int) -> Path:
    return Path(table.path) / "_delta_log" / f"{version:020d}.json"


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> DeltaLakeTable:
    return DeltaLakeTable(spark, str(tmp_path / "table"), statistics=("id",))


class Appended(NamedTuple):
    """A read-only table of three commits with a row each, and the next progress."""

    table: DeltaLakeTable
    commits: list[Commit]
    given: list[Progress]


@pytest.fixture(scope="module")
def appended(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Appended:
    table = DeltaLakeTable(spark, str(tmp_path_factory.mktemp("appended") / "table"), statistics=("id",))
    given = [bronze(number) for number in (1, 2, 3)]
    return Appended(table, [table.append(rows(spark, each.commit), each) for each in given], given)


@pytest.fixture
def copied(spark: SparkSession, tmp_path: Path, appended: Appended) -> DeltaLakeTable:
    """A copy of it to change."""
    return DeltaLakeTable(spark, str(shutil.copytree(appended.table.path, tmp_path / "copy")), statistics=("id",))


def test_missing_table_has_no_progress(table: DeltaLakeTable) -> None:
    assert not table.exists()
    assert table.progress() is None


@pytest.mark.core
def test_rows_and_progress_are_one_commit(appended: Appended) -> None:
    table, commits, given = appended

    assert [(commit.version, commit.progress) for commit in commits] == list(enumerate(given))
    assert table.progress() == given[-1]
    assert held(table) == {1: (10, None), 2: (20, None), 3: (30, None)}
    for version, progress in enumerate(given):
        (infos,) = [
            json.loads(line)["commitInfo"]
            for line in log_file(table, version).read_text().splitlines()
            if "commitInfo" in line
        ]
        assert Progress.from_metadata(infos["userMetadata"]) == progress


def test_history_lists_all_versions(spark: SparkSession, appended: Appended, copied: DeltaLakeTable) -> None:
    spark.sql(f"OPTIMIZE delta.`{copied.path}`").collect()

    optimized, *ours = copied.history()

    assert (optimized.version, optimized.progress) == (3, None)
    assert [(one.version, one.progress) for one in reversed(ours)] == list(enumerate(appended.given))
    assert all(abs(one.at_ms / 1000 - datetime.now(UTC).timestamp()) < 600 for one in ours)


def test_progress_survives_commits_of_other_programs(
    spark: SparkSession, appended: Appended, copied: DeltaLakeTable
) -> None:
    ours = appended.given[-1]

    spark.sql(f"OPTIMIZE delta.`{copied.path}`").collect()
    assert (copied.version(), copied.progress()) == (3, ours)

    write_deltalake(copied.path, DeltaTable(copied.path).to_pyarrow_table(), mode="append")
    assert (copied.version(), copied.progress()) == (4, ours)
    assert copied.read().count() == 6

    DeltaTable(copied.path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    spark.sql(f"ALTER TABLE delta.`{copied.path}` SET TBLPROPERTIES ('a' = 'b')")
    assert copied.progress() == ours

    copied.append(rows(spark, 4), bronze(4))
    assert copied.progress().commit == 4  # type: ignore[union-attr]
    assert sorted(DeltaTable(copied.path).to_pyarrow_table()["id"].to_pylist()) == [1, 1, 2, 2, 3, 3, 4]


def test_table_without_any_progress_is_data_loss(spark: SparkSession, table: DeltaLakeTable) -> None:
    rows(spark, 1).write.format("delta").save(table.path)

    with pytest.raises(NoProgressError, match="none of its retained commits up to version") as caught:
        table.progress()
    assert caught.value.exit_code == 20


def test_table_whose_last_progress_was_cleaned_up_is_data_loss(spark: SparkSession, table: DeltaLakeTable) -> None:
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

    with pytest.raises(NoProgressError):
        table.progress()


@pytest.mark.core
def test_restore_recovers_progress_and_reuses_no_commit_number(spark: SparkSession, copied: DeltaLakeTable) -> None:
    restore(copied, "VERSION AS OF 0")
    spark.sql(f"ALTER TABLE delta.`{copied.path}` SET TBLPROPERTIES ('a' = 'b')")

    progress = copied.progress()
    assert progress == copied.progress()
    assert progress is not None
    assert (progress.offsets, progress.commit, progress.epoch) == ({"topic": {0: 10}}, 3, 1)

    copied.append(rows(spark, 4), next_of(progress))
    assert set(held(copied)) == {1, 4}
    found = copied.progress()
    assert found is not None
    assert (found.commit, found.epoch) == (4, 1)


def test_nonces_of_earlier_commits_are_found_by_number(spark: SparkSession, copied: DeltaLakeTable) -> None:
    progress = copied.progress()
    assert progress is not None
    found = {one.progress.commit: one.progress.nonce for one in copied.history() if one.progress}
    spark.sql(f"ALTER TABLE delta.`{copied.path}` SET TBLPROPERTIES ('a' = 'b')")
    following = progress.next("a run")
    copied.append(rows(spark, 4), following)
    copied.append(rows(spark, 5), following.next("a run"))

    assert {number: copied.nonce_of(number) for number in range(5)} == {0: None, **found, 4: following.nonce}
    restore(copied, "VERSION AS OF 0")
    restored = copied.progress()
    assert restored is not None and restored.commit == 5
    assert copied.nonce_of(5) == found[1]


def test_restore_keeps_delta_transactions_and_skips_old_numbers(spark: SparkSession, copied: DeltaLakeTable) -> None:
    restore(copied, "VERSION AS OF 0")

    with pytest.raises(TableLockedError):
        copied.append(rows(spark, 9), bronze(2))
    assert set(held(copied)) == {1}


def test_restores_of_restores_are_followed(copied: DeltaLakeTable) -> None:
    DeltaTable(copied.path).restore(1)  # version 3, holds 1 and 2
    DeltaTable(copied.path).restore(0)  # version 4, holds 1
    DeltaTable(copied.path).restore(3)  # version 5, holds 1 and 2 again

    progress = copied.progress()

    assert progress is not None
    assert set(held(copied)) == {1, 2}
    assert (progress.offsets, progress.commit, progress.epoch) == ({"topic": {0: 20}}, 3, 3)


def test_restore_by_time_from_spark_or_delta_rs_is_followed(spark: SparkSession, copied: DeltaLakeTable) -> None:
    made_ms = max(file.stat().st_mtime_ns for file in [log_file(copied, 0)]) // 1_000_000
    made = datetime.fromtimestamp(made_ms / 1000, UTC)

    restore(copied, f"TIMESTAMP AS OF '{made:%Y-%m-%d %H:%M:%S.%f}'")
    by_spark = copied.progress()
    DeltaTable(copied.path).restore(1)
    by_version = copied.progress()
    DeltaTable(copied.path).restore(made)
    by_time = copied.progress()

    found = [(p.offsets["topic"][0], p.epoch) for p in (by_spark, by_version, by_time) if p]
    assert found == [(10, 1), (20, 2), (10, 3)]


def test_restore_to_a_cleaned_up_commit_is_data_loss(spark: SparkSession, copied: DeltaLakeTable) -> None:
    restore(copied, "VERSION AS OF 0")
    log_file(copied, 0).unlink()

    with pytest.raises(NoProgressError, match="none of its retained commits up to version"):
        copied.progress()


def test_progress_is_found_on_any_line_of_a_commit(appended: Appended, copied: DeltaLakeTable) -> None:
    file = log_file(copied, 2)
    first, *others = file.read_text().splitlines()

    file.write_text("\n".join([*others, first]))
    (file.parent / f".{file.name}.crc").unlink()

    assert copied.progress() == appended.given[-1]


def test_concurrent_table_creation_has_one_winner(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")

    committed: dict[int, Progress] = {}

    def create(number: int) -> None:
        session = spark.newSession()
        committed[number] = DeltaLakeTable(session, path).append(rows(session, number), bronze(1)).progress

    winner = one_winner(create, (1, 2))

    assert DeltaLakeTable(spark, path).progress() == committed[winner]
    assert set(held(DeltaLakeTable(spark, path))) == {winner}


def test_commit_settings_do_not_leak_into_the_session(spark: SparkSession, table: DeltaLakeTable) -> None:
    table.append(rows(spark, 1), bronze(1))
    assert settings_left(spark) == []

    with pytest.raises(PySparkException):
        table.append(rows(spark, 2).withColumnRenamed("n", "another"), bronze(2))
    assert settings_left(spark) == []

    with pytest.raises(PySparkException):
        table.merge(Changes(spark.createDataFrame([(1, True)], "id int, other boolean"), ["id"]), bronze(2))
    assert settings_left(spark) == []
    assert table.progress().commit == 1  # type: ignore[union-attr]


@pytest.mark.core
def test_second_append_with_the_same_commit_number_is_locked(
    spark: SparkSession, appended: Appended, copied: DeltaLakeTable
) -> None:
    with pytest.raises(TableLockedError) as caught:
        copied.append(rows(spark, 9), bronze(3))

    assert caught.value.exit_code == 40
    assert copied.progress() == appended.given[-1]
    assert (copied.version(), set(held(copied))) == (2, {1, 2, 3})
    assert settings_left(spark) == []


@pytest.mark.core
def test_second_merge_with_the_same_commit_number_is_locked(spark: SparkSession, copied: DeltaLakeTable) -> None:
    change = spark.createDataFrame([(1, 11, "a", [], False)], CHANGE)
    other = spark.createDataFrame([(1, 99, "b", [], False)], CHANGE)
    copied.merge(Changes(change, ["id"]), bronze(4))

    with pytest.raises(TableLockedError):
        copied.merge(Changes(other, ["id"]), bronze(4))
    assert held(copied) == {1: (11, "a"), 2: (20, None), 3: (30, None)}


def test_append_with_an_old_commit_number_is_locked(spark: SparkSession, copied: DeltaLakeTable) -> None:
    with pytest.raises(TableLockedError):
        copied.append(rows(spark, 9), bronze(1))
    assert set(held(copied)) == {1, 2, 3}


@pytest.mark.core
def test_merge_updates_keeps_deletes_and_inserts_rows(spark: SparkSession, table: DeltaLakeTable) -> None:
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

    table.merge(Changes(spark.createDataFrame(changes, CHANGE), ["id"]), bronze(2))

    assert held(table) == {
        1: (11, "new"),
        2: (22, "text 2"),
        3: (None, None),
        5: (50, "text 5"),
        6: (66, "six"),
    }


def test_null_in_a_key_matches(spark: SparkSession, table: DeltaLakeTable) -> None:
    table.append(spark.createDataFrame([(1, None, "a")], "id int, n int, text string"), bronze(1))

    table.merge(Changes(spark.createDataFrame([(1, None, "b", [], False)], CHANGE), ["id", "n"]), bronze(2))

    assert held(table) == {1: (None, "b")}


@pytest.mark.core
def test_merge_adds_new_columns_in_its_own_commit(spark: SparkSession, copied: DeltaLakeTable) -> None:
    schema = CHANGE.replace("text string", "text string, `Order Date` int, deep array<struct<a: int>>").replace(
        "Order Date", "Order_Date"
    )
    changes = [(1, 11, "a", 5, [(1,)], [], False), (4, 44, "d", None, None, [], False)]

    commit = copied.merge(Changes(spark.createDataFrame(changes, schema), ["id"]), bronze(4))

    assert (commit.version, copied.progress()) == (3, commit.progress)
    assert copied.read().columns == ["id", "n", "text", "Order_Date", "deep"]
    found = sorted(DeltaTable(copied.path).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["Order_Date"], row["deep"]) for row in found] == [
        (1, 5, [{"a": 1}]),
        (2, None, None),
        (3, None, None),
        (4, None, None),
    ]


@pytest.mark.core
def test_overwrite_replaces_rows_and_schema_and_keeps_history(spark: SparkSession, copied: DeltaLakeTable) -> None:
    ours = bronze(4)

    commit = copied.overwrite(spark.createDataFrame([("a", 1.5)], "id string, ratio double"), ours)

    assert (commit.version, commit.progress, copied.progress()) == (3, ours, ours)
    assert DeltaTable(copied.path).to_pyarrow_table().to_pylist() == [{"id": "a", "ratio": 1.5}]
    before = DeltaTable(copied.path, version=2).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in before) == [1, 2, 3]
    assert settings_left(spark) == []


def test_overwrite_creates_the_table_with_its_properties(spark: SparkSession, table: DeltaLakeTable) -> None:
    assert table.overwrite(rows(spark), bronze(1)).version == 0
    table.overwrite(rows(spark, 1), bronze(2))

    assert DeltaTable(table.path).metadata().configuration["delta.enableDeletionVectors"] == "false"
    assert held(table) == {1: (10, None)}


BY_BOOLEAN = [("is_live", "=", True)]


def live_and_not(spark: SparkSession, **more: str) -> DataFrame:
    columns = "".join(f", '{value}' {name}" for name, value in more.items())
    return spark.sql(f"SELECT id, kind, id = 1 is_live{columns} FROM VALUES (1, 'a'), (2, 'a') AS (id, kind)")


def test_delta_rs_finds_rows_of_an_overwrite_by_a_boolean(spark: SparkSession, tmp_path: Path) -> None:
    table = DeltaLakeTable[BronzeProgress](spark, str(tmp_path / "table"), partition_by=("kind",))
    table.overwrite(live_and_not(spark), bronze(1))

    found = DeltaTable(table.path).to_pyarrow_table(filters=BY_BOOLEAN)

    assert found["id"].to_pylist() == [1]


@pytest.mark.parametrize("partition_by", [(), ("kind",), ("shade",)])
def test_overwrite_removes_statistics_of_booleans(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    path = str(tmp_path / "table")
    live_and_not(spark).write.format("delta").partitionBy("kind").save(path)
    session = spark.newSession()
    session.conf.set("spark.sql.runSQLOnFiles", "false")  # as in the session of a gold model
    table = DeltaLakeTable[BronzeProgress](session, path, partition_by=partition_by)
    table.overwrite(live_and_not(session, shade="red"), bronze(1))

    found = DeltaTable(path).to_pyarrow_table(filters=BY_BOOLEAN)

    assert found["id"].to_pylist() == [1]
    assert session.conf.get("spark.sql.runSQLOnFiles") == "false"


def test_overwrite_keeps_statistics_that_a_user_chose(spark: SparkSession, tmp_path: Path) -> None:
    path, chosen = str(tmp_path / "table"), {"delta.dataSkippingStatsColumns": "id"}
    live_and_not(spark).write.format("delta").options(**chosen).save(path)

    DeltaLakeTable[BronzeProgress](spark, path).overwrite(live_and_not(spark, shade="red"), bronze(1))

    assert DeltaTable(path).metadata().configuration.items() >= chosen.items()


def test_second_overwrite_with_the_same_commit_number_is_locked(spark: SparkSession, table: DeltaLakeTable) -> None:
    table.overwrite(rows(spark, 1), bronze(1))

    with pytest.raises(TableLockedError):
        table.overwrite(rows(spark, 9), bronze(1))
    assert (table.version(), set(held(table))) == (0, {1})


def test_recreated_table_has_another_id(spark: SparkSession, table: DeltaLakeTable, appended: Appended) -> None:
    table.append(rows(spark, 1), bronze(1))

    assert table.id() != appended.table.id()


def test_every_delta_reader_can_read_the_table(spark: SparkSession, copied: DeltaLakeTable) -> None:
    copied.merge(Changes(spark.createDataFrame([(1, None, None, [], True)], CHANGE), ["id"]), bronze(4))

    details = SparkDeltaTable.forPath(spark, copied.path).detail().collect()[0]

    assert details["properties"]["delta.enableDeletionVectors"] == "false"
    assert details["properties"]["delta.dataSkippingStatsColumns"] == "`id`"
    assert sorted(DeltaTable(copied.path).to_pyarrow_table()["id"].to_pylist()) == [2, 3]


def test_properties_override_defaults_and_follow_the_settings(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")

    def merged(commit: int, interval: str) -> dict[str, str]:
        table = DeltaLakeTable(spark, path, properties={"delta.checkpointInterval": interval})
        change = spark.createDataFrame([(1, commit, None, [], False)], CHANGE)
        table.merge(Changes(change, ["id"]), bronze(commit))
        properties: dict[str, str] = DeltaTable(path).metadata().configuration
        return properties

    first, second = merged(1, "7"), merged(2, "9")

    assert (first["delta.checkpointInterval"], second["delta.checkpointInterval"]) == ("7", "9")
    assert first["delta.enableDeletionVectors"] == second["delta.enableDeletionVectors"] == "false"
    progress = DeltaLakeTable(spark, path).progress()
    assert progress is not None and progress.commit == 2


@pytest.mark.core
def test_rows_of_the_newest_commit_are_read_from_its_files(copied: DeltaLakeTable) -> None:
    found = copied.added_by(3, copied.read())

    assert found is not None
    assert [row["id"] for row in found.collect()] == [3]
    assert copied.added_by(2, copied.read()) is None


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO {} VALUES (4, 40, 'by another')",
        "DELETE FROM {} WHERE id = 3",
        "OPTIMIZE {}",
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    ],
)
@pytest.mark.core
def test_rows_of_a_commit_before_changes_by_others_are_not(
    spark: SparkSession, copied: DeltaLakeTable, change: str
) -> None:
    spark.sql(change.format(f"delta.`{copied.path}`")).collect()

    assert copied.added_by(3, copied.read()) is None


def test_rows_of_a_commit_that_removes_rows_are_not(spark: SparkSession, copied: DeltaLakeTable) -> None:
    copied.overwrite(rows(spark, 3, 4), bronze(4))

    assert copied.added_by(4, copied.read()) is None


@pytest.mark.parametrize("has_checksum", [True, False])
def test_size_takes_jobs_only_without_a_checksum(
    spark: SparkSession, copied: DeltaLakeTable, has_checksum: bool
) -> None:
    folder = Path(copied.path)
    if not has_checksum:
        for file in (folder / "_delta_log").glob("*.crc"):
            file.unlink()
    spark.sparkContext.setJobGroup("size", "a table's size")
    try:
        size = copied.size()
    finally:
        cast(Any, spark.sparkContext)._jsc.clearJobGroup()

    assert size == sum(Path(file).stat().st_size for file in DeltaTable(copied.path).file_uris())
    assert bool(spark.sparkContext.statusTracker().getJobIdsForGroup("size")) is not has_checksum
