"""Iceberg tables whose commits have progress, of both types: pyiceberg reads the rows that were written."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import iceberg_rows
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from support.lake import one_winner, step

from cdc_lake.config import IcebergConfig, PartitionField, StorageConfig
from cdc_lake.demo.comparer import iceberg_table
from cdc_lake.errors import ConfigError, DamagedFileError, ExpiredError, InfrastructureError, TableLockedError
from cdc_lake.lake.lake import silver_table
from cdc_lake.spark.session import sibling
from cdc_lake.storage.files import LocalFiles
from cdc_lake.tables.contract import Changes, Commit
from cdc_lake.tables.damage import damage_error
from cdc_lake.tables.iceberg import IcebergTable
from cdc_lake.tables.iceberg_catalog import IcebergName
from cdc_lake.tables.iceberg_write import IcebergType
from cdc_lake.tables.newest import commit_ms_after, newest_commit
from cdc_lake.tables.progress import SilverProgress

CHANGE = "id int, n int, text string, __key string, __keep array<string>, __delete boolean"
Row = tuple[int, int | None, str | None, str, list[str], bool]


def row(number: int, n: int | None = 0, text: str | None = None, keep: tuple[str, ...] = ()) -> Row:
    return number, n, text, str(number), list(keep), False


def gone(number: int) -> Row:
    return number, None, None, str(number), [], True


def changes(spark: SparkSession, *rows: Row, are_inserts: bool = False) -> Changes:
    return Changes(spark.createDataFrame(list(rows), CHANGE), ["id"], are_inserts)


def held(table: IcebergTable) -> dict[int, tuple[Any, ...]]:
    """A table's rows, for Spark and for pyiceberg, which must be the same."""
    found = {row["id"]: (row["n"], row["text"]) for row in table.read().collect()}
    other = iceberg_rows(table.path)
    assert {row["id"]: (row["n"], row["text"]) for row in other} == found
    assert len(other) == len(found)
    return found


def newest(table: IcebergTable) -> SilverProgress:
    progress = table.progress()
    assert isinstance(progress, SilverProgress)
    return progress


def merge(spark: SparkSession, table: IcebergTable, *rows: Row, are_inserts: bool = False) -> Commit:
    """Merge rows as the next commit."""
    progress = newest(table).next("a run") if table.exists() else step(1)
    return table.merge(changes(spark, *rows, are_inserts=are_inserts), progress)


@pytest.fixture(params=["cow", "mor"])
def table_type(request: pytest.FixtureRequest) -> IcebergType:
    found: IcebergType = request.param
    return found


CORE_ON_COW = pytest.mark.parametrize("table_type", [pytest.param("cow", marks=pytest.mark.core), "mor"], indirect=True)


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path, table_type: IcebergType) -> Callable[..., IcebergTable]:
    """Open a table as another run does."""

    def another(session: SparkSession = spark, name: str = "film", **settings: Any) -> IcebergTable:
        root = str(tmp_path / "a lake's")
        in_catalog = IcebergName(IcebergConfig(), root, "pagila_silver", f"public_{name}")
        return IcebergTable(session, f"{root}/silver/{name}", in_catalog, table_type=table_type, **settings)

    return another


@pytest.fixture
def table(spark: SparkSession, opened: Callable[..., IcebergTable]) -> IcebergTable:
    """A table of three commits."""
    table = opened()
    merge(spark, table, row(1, 10, "a"), row(2, 20, "b"), row(3, 30, "c"), gone(9))
    merge(spark, table, row(1, 11, None, ("text",)), row(2, None, None), gone(3), row(4, 40), gone(8))
    merge(spark, table, row(5, 50, "e"), row(6, 60, "f"), are_inserts=True)
    return table


THREE_COMMITS = {1: (11, "a"), 2: (None, None), 4: (40, None), 5: (50, "e"), 6: (60, "f")}


@CORE_ON_COW
def test_rows_and_progress_are_one_commit(table: IcebergTable) -> None:
    assert held(table) == THREE_COMMITS
    assert [(one.version, one.progress and one.progress.commit) for one in table.history()] == [(3, 3), (2, 2), (1, 1)]
    summary = iceberg_table(table.path).current_snapshot().summary
    assert json.loads(summary["cdc_lake"])["cdc_lake"]["nonce"] == newest(table).nonce
    assert {one["id"] for one in iceberg_rows(table.path, 1)} == {1, 2, 3}
    assert {one["id"] for one in table.read(2).collect()} == {1, 2, 4}


def test_newest_commit_is_read_without_spark(table: IcebergTable) -> None:
    name, progress = table._name, newest(table)

    found = newest_commit(LocalFiles(), table.path, "iceberg", SilverProgress, name)

    assert found is not None
    assert (found.progress, found.table_id, found.version, found.bytes) == (progress, table.id(), 3, table.size())
    times = [one.at_ms for one in reversed(table.history())]
    assert [commit_ms_after(LocalFiles(), table.path, "iceberg", since, name) for since in range(4)] == [*times, None]
    elsewhere = IcebergName(IcebergConfig(catalog="rest", uri="http://catalog"), name.root, name.database, name.table)
    assert newest_commit(LocalFiles(), table.path, "iceberg", SilverProgress, elsewhere) is None


@pytest.mark.parametrize("what", ["merge", "insert", "advance", "overwrite", "create"])
def test_second_driver_is_locked(
    spark: SparkSession, opened: Callable[..., IcebergTable], table: IcebergTable, what: str
) -> None:
    before = held(table)
    progress = newest(table)
    merge(spark, opened(), row(7, 70))

    late = {
        "merge": lambda one: one.merge(changes(spark, row(8, 80)), progress.next("late")),
        "insert": lambda one: one.merge(changes(spark, row(8, 80), are_inserts=True), progress.next("late")),
        "advance": lambda one: one.advance(progress.next("late")),
        "overwrite": lambda one: one.overwrite(one.read(), progress.next("late")),
        "create": lambda one: one.merge(changes(spark, row(8, 80)), step(1)),
    }[what]
    with pytest.raises(TableLockedError, match="run a run committed before batch"):
        late(table)

    assert held(table) == before | {7: (70, None)}
    assert newest(table).commit == 4


@CORE_ON_COW
@pytest.mark.parametrize("are_inserts", [False, True])
def test_commit_between_staging_and_publishing_is_noticed(
    spark: SparkSession,
    opened: Callable[..., IcebergTable],
    table: IcebergTable,
    monkeypatch: pytest.MonkeyPatch,
    are_inserts: bool,
) -> None:
    progress, publish, other = newest(table), IcebergTable._publish, opened()

    def late(self: IcebergTable, *staged: Any, **more: Any) -> None:
        monkeypatch.setattr(IcebergTable, "_publish", publish)
        merge(spark, other, row(7, 70))
        publish(self, *staged, **more)

    monkeypatch.setattr(IcebergTable, "_publish", late)
    with pytest.raises(TableLockedError, match="another run committed before batch 4"):
        table.merge(changes(spark, row(8, 80), are_inserts=are_inserts), progress.next("late"))

    assert held(table) == THREE_COMMITS | {7: (70, None)}
    assert [one.version for one in table.history()] == [5, 3, 2, 1]
    assert iceberg_table(table.path).metadata.refs.keys() == {"main", "cdc_lake"}


@CORE_ON_COW
@pytest.mark.parametrize("is_committed", [True, False])
def test_lost_answer_of_the_catalog_is_looked_up(
    spark: SparkSession, table: IcebergTable, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    publish = IcebergTable._publish

    def lost(self: IcebergTable, *staged: Any, **more: Any) -> None:
        if is_committed:
            publish(self, *staged, **more)
        raise Py4JError("CommitStateUnknownException: no answer")

    monkeypatch.setattr(IcebergTable, "_publish", lost)
    if is_committed:
        assert merge(spark, table, row(7, 70)).version == 4
        assert held(table) == THREE_COMMITS | {7: (70, None)}
    else:
        with pytest.raises(InfrastructureError, match="the catalog's answer was lost"):
            merge(spark, table, row(7, 70))
        assert held(table) == THREE_COMMITS


def test_concurrent_table_creation_has_one_winner(spark: SparkSession, opened: Callable[..., IcebergTable]) -> None:
    def create(number: int) -> None:
        session = sibling(spark)
        merge(session, opened(session, "created"), row(number))

    winner = one_winner(create, (1, 2))

    assert held(opened(name="created")) == {winner: (0, None)}


@CORE_ON_COW
def test_rollback_returns_progress_and_reuses_no_commit_number(spark: SparkSession, table: IcebergTable) -> None:
    first = next(one for one in iceberg_table(table.path).metadata.snapshots if one.sequence_number == 1)
    table._load().manageSnapshots().rollbackTo(first.snapshot_id).commit()

    progress = newest(table)
    assert (progress.commit, progress.epoch, table.version()) == (3, 1, 1)
    assert newest_commit(LocalFiles(), table.path, "iceberg", SilverProgress, table._name) is None
    assert merge(spark, table, row(7, 70)).version == 4
    assert (newest(table).commit, newest(table).epoch) == (4, 1)
    assert held(table) == {1: (10, "a"), 2: (20, "b"), 3: (30, "c"), 7: (70, None)}


def test_dropped_and_renamed_columns_are_noticed(spark: SparkSession, table: IcebergTable) -> None:
    assert (table.progress(), table.lost_columns())[1] == {}

    spark.sql(f"ALTER TABLE {table.sql_name} RENAME COLUMN text TO words")
    spark.sql(f"ALTER TABLE {table.sql_name} DROP COLUMN n")

    assert (table.progress(), table.lost_columns())[1] == {"text": "words", "n": None}


def test_added_columns_and_overwrites_keep_field_ids(spark: SparkSession, table: IcebergTable) -> None:
    ids = {field.name: field.field_id for field in iceberg_table(table.path).schema().fields}
    wider = changes(spark, row(1, 1, "a"))
    more = Changes(wider.rows.selectExpr("*", "named_struct('a', 1, 'b', array('x')) more"), ["id"])

    table.merge(more, newest(table).next("a run"))
    table.overwrite(table.read().selectExpr("id", "cast(n as bigint) n", "text", "more"), newest(table).next("a run"))

    fields = iceberg_table(table.path).schema().fields
    assert {field.name: field.field_id for field in fields if field.name in ids} == ids
    assert [str(field.field_type) for field in fields[:3]] == ["int", "long", "string"]
    assert [one["more"] for one in iceberg_rows(table.path) if one["id"] == 1] == [{"a": 1, "b": ["x"]}]
    assert {one["id"] for one in table.read(2).collect()} == {1, 2, 4}
    assert table.id() == newest_commit(LocalFiles(), table.path, "iceberg", SilverProgress, table._name).table_id  # type: ignore[union-attr]


def test_advance_commits_progress_without_rows(table: IcebergTable) -> None:
    before = newest(table)

    commit = table.advance(before.next("a run"))

    assert (commit.version, commit.progress.commit, newest(table)) == (4, 4, commit.progress)
    assert held(table) == THREE_COMMITS


def test_maintenance_compacts_expires_and_keeps_progress(
    spark: SparkSession, table: IcebergTable, table_type: IcebergType
) -> None:
    for number in range(10, 15):
        merge(spark, table, row(number), gone(1))
    before, progress = held(table), newest(table)
    snapshots = iceberg_table(table.path).metadata.snapshots
    table._load().updateProperties().set("history.expire.max-snapshot-age-ms", "1").commit()

    done = table.maintain()

    assert done["files_written"] > 0
    assert (held(table), newest(table)) == (before, progress)
    kept = iceberg_table(table.path).metadata
    assert len(kept.snapshots) < len(snapshots)
    assert not table.has(1)
    with pytest.raises(ExpiredError, match="version 1 can no longer be read"):
        table.read(1)
    assert merge(spark, table, row(20)).progress.commit == progress.commit + 1


def test_files_that_differ_have_the_rows_that_differ(spark: SparkSession, table: IcebergTable) -> None:
    merge(spark, table, row(7, 70))

    before, after = table.differing(3, 4)
    assert [one["id"] for one in before.collect()] == []
    assert [one["id"] for one in after.collect()] == [7]

    before, after = table.differing(1, 2)
    assert {one["id"] for one in before.collect()} == {1, 2, 3}
    assert {one["id"]: one["n"] for one in after.collect()} == {1: 11, 2: None, 4: 40}


def test_hidden_partitions_follow_the_settings(spark: SparkSession, opened: Callable[..., IcebergTable]) -> None:
    fields = tuple(map(PartitionField.parse, ("bucket(4, id)", "truncate(1, text)", "n")))
    partitioned = opened(name="parts", partitions=fields)
    merge(spark, partitioned, row(1, 1, "ab"), row(2, 2, ""), row(3, 3, None))
    merge(spark, partitioned, row(1, 9, "bc"), gone(3))
    partitioned.overwrite(partitioned.read(), newest(partitioned).next("a run"))
    merge(spark, partitioned, row(1, 9, "bd"))

    spec = iceberg_table(partitioned.path).spec()
    assert [(str(field.transform), field.name) for field in spec.fields] == [
        ("bucket[4]", "id_bucket"),
        ("truncate[1]", "text_trunc"),
        ("identity", "n"),
    ]
    assert {file.parent.name for file in Path(partitioned.path).glob("*/text_trunc=b/*")} == {"text_trunc=b"}
    assert held(partitioned) == {1: (9, "bd"), 2: (2, "")}
    assert opened(name="parts", partitions=fields).differing_settings() is None
    assert opened(name="parts").differing_settings() == "partitions are (bucket[4](id), truncate[1](text), identity(n))"


def test_other_tables_at_the_name_or_folder_are_refused(
    spark: SparkSession, tmp_path: Path, table: IcebergTable, table_type: IcebergType
) -> None:
    wanted = StorageConfig(format="iceberg", type=table_type)
    other = "mor" if table_type == "cow" else "cow"

    with pytest.raises(ConfigError, match=r"the Iceberg catalog has .*/silver/film under this name, not"):
        silver_table(spark, str(tmp_path / "silver" / "other"), wanted, table._name)
    with pytest.raises(ConfigError, match=r"the folder has an iceberg table whose write\.merge\.mode is"):
        silver_table(spark, table.path, wanted.model_copy(update={"type": other}), table._name)
    with pytest.raises(ConfigError, match="the folder has a iceberg table, but the settings ask for delta"):
        silver_table(spark, table.path, StorageConfig())


def test_clock_far_behind_the_last_commit_is_an_error(spark: SparkSession, table: IcebergTable) -> None:
    later_ms = 7200 * 1000
    with sqlite3.connect(f"{table._name.root}/_iceberg/catalog.db") as catalog:
        ((file,),) = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    metadata = json.loads(Path(file).read_text())
    metadata["last-updated-ms"] += later_ms
    metadata["snapshots"][-1]["timestamp-ms"] += later_ms
    metadata["snapshot-log"][-1]["timestamp-ms"] += later_ms
    Path(file).write_text(json.dumps(metadata))
    Path(file).with_name(f".{Path(file).name}.crc").unlink(missing_ok=True)

    with pytest.raises(InfrastructureError, match="this machine's clock is more than a minute behind"):
        merge(spark, table, row(7, 70))
    assert held(table) == THREE_COMMITS


@pytest.mark.parametrize("what", ["data", "manifest"])
def test_missing_file_is_named(table: IcebergTable, what: str) -> None:
    folder = Path(table.path) if what == "data" else Path(table.path, "_iceberg")
    for file in folder.glob("*.parquet" if what == "data" else "*-m*.avro"):
        file.unlink()

    with pytest.raises(Exception) as caught:
        table.read().collect()
    error = damage_error(caught.value, table.path)
    assert isinstance(error, DamagedFileError)
    assert error.where.startswith(table.path)
    assert "missing" in error.what


def test_recreated_table_has_another_id(spark: SparkSession, table: IcebergTable) -> None:
    before = table.id()
    spark.sql(f"DROP TABLE {table.sql_name}")
    assert table.progress() is None

    merge(spark, table, row(1))

    assert table.id() != before
