"""Hudi tables whose commits have progress, of both types: another engine reads the rows that were written."""

import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from conformance.by_lake import hudi_rows
from deltalake import write_deltalake
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from support.events import OPTIONAL_STRING, Topic
from support.lake import Lake, step

from cdc_lake.columns import DELETE, KEEP
from cdc_lake.config import Config, LakeConfig, StorageConfig, TableConfig
from cdc_lake.demo import comparer
from cdc_lake.errors import (
    ConfigError,
    DamagedFileError,
    ExpiredError,
    IncompleteWriteError,
    InfrastructureError,
    NoProgressError,
    TableLockedError,
    UnsupportedError,
)
from cdc_lake.lake.lake import silver_table
from cdc_lake.operations.status import status
from cdc_lake.runs.context import lake_of
from cdc_lake.tables.contract import Changes, Commit, Table
from cdc_lake.tables.hudi import HudiTable
from cdc_lake.tables.hudi_folder import MAX_SECONDS_AHEAD, milliseconds
from cdc_lake.tables.hudi_settings import HudiType

CHANGE = "id int, n int, text string, __key string, __keep array<string>, __delete boolean"
OFTEN = {"hoodie.compact.inline.max.delta.commits": "2"}
ACTIONS = ("compaction", "logcompaction", "clean", "clustering", "rollback", "restore")


def changes(spark: SparkSession, *rows: tuple[int, int | None, str | None, list[str], bool]) -> Changes:
    found = [(number, n, text, f'{{"id": {number}}}', keep, goes) for number, n, text, keep, goes in rows]
    return Changes(spark.createDataFrame(found, CHANGE), ["id"])


def row(number: int, n: int | None = 0, text: str | None = None) -> tuple[int, int | None, str | None, list[str], bool]:
    return number, n, text, [], False


def gone(number: int) -> tuple[int, int | None, str | None, list[str], bool]:
    return number, None, None, [], True


def held(table: Table, as_of: int | None = None) -> dict[int, tuple[Any, ...]]:
    return {row["id"]: (row["n"], row["text"]) for row in table.read(as_of).collect()}


def read_back(table: HudiTable) -> list[dict[str, Any]]:
    """The rows that hudi-rs reads."""
    return hudi_rows(table.path)


def assert_held(table: HudiTable, expected: dict[int, tuple[Any, ...]]) -> None:
    """Check a table's rows, read by Spark and hudi-rs."""
    assert held(table) == expected
    found = read_back(table)
    assert {row["id"]: (row["n"], row["text"]) for row in found} == expected
    assert len(found) == len(expected)


class Merged(NamedTuple):
    """A read-only table after two merges, and their progress."""

    table: HudiTable
    commits: list[Commit]
    persisted: set[int]


@pytest.fixture(scope="module", params=[pytest.param("cow", marks=pytest.mark.deep), "mor"])
def table_type(request: pytest.FixtureRequest) -> HudiType:
    found: HudiType = request.param
    return found


CORE_ON_MOR = pytest.mark.parametrize(
    "table_type",
    [pytest.param("cow", marks=pytest.mark.deep), pytest.param("mor", marks=pytest.mark.core)],
    indirect=True,
)


@pytest.fixture(scope="module")
def merged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, table_type: HudiType) -> Merged:
    table = HudiTable(spark, str(tmp_path_factory.mktemp("merged") / "table"), table_type=table_type)

    def persisted() -> set[int]:
        return set(spark.sparkContext._jsc.getPersistentRDDs().keySet())

    before = persisted()
    commits = [
        table.merge(changes(spark, row(1, 10, "a"), row(2, 20, "b"), row(3, 30, "c"), gone(9)), step(1)),
        table.merge(changes(spark, (1, 11, None, ["text"], False), gone(2), row(4, 40), gone(8)), step(2)),
    ]
    return Merged(table, commits, persisted() - before)


@pytest.fixture
def copied(spark: SparkSession, tmp_path: Path, merged: Merged, table_type: HudiType) -> HudiTable:
    """A copy of the merged table to change: it has 1, 3 and 4, and 2 is deleted."""
    path = tmp_path / "copy" / Path(merged.table.path).name  # Hudi's name of it, too
    return HudiTable(spark, str(shutil.copytree(merged.table.path, path)), table_type=table_type)


@pytest.fixture(scope="module")
def foreign(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that another program wrote."""
    path = tmp_path_factory.mktemp("foreign") / "table"
    options = {"hoodie.table.name": "foreign", "hoodie.datasource.write.recordkey.field": "id"}
    spark.range(3).write.format("hudi").options(**options).mode("append").save(str(path))
    return path


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path, table_type: HudiType) -> HudiTable:
    return HudiTable(spark, str(tmp_path / "table"), table_type=table_type)


def test_missing_table_has_no_progress(table: HudiTable) -> None:
    assert not table.exists()
    assert table.progress() is None


@pytest.mark.core
@pytest.mark.parametrize("table_type", ["cow", "mor"], indirect=True)
def test_merge_creates_updates_keeps_deletes_and_inserts(merged: Merged) -> None:
    table, (first, second), _ = merged

    assert_held(table, {1: (11, "a"), 3: (30, "c"), 4: (40, None)})
    assert held(table, as_of=first.version) == {1: (10, "a"), 2: (20, "b"), 3: (30, "c")}
    assert table.progress() == second.progress == step(2, nonce=second.progress.nonce)
    assert table.version() == second.version > first.version
    assert table.read().columns == ["id", "n", "text"]


def test_merge_leaves_no_cached_changes(merged: Merged) -> None:
    assert merged.persisted == set()


def test_deleted_key_reappears_only_with_newly_written_values(
    spark: SparkSession, copied: HudiTable, table_type: HudiType
) -> None:
    table = HudiTable(spark, copied.path, table_type=table_type, properties=OFTEN)
    table.merge(changes(spark, row(2, 5)), step(3))
    assert held(table)[2] == (5, None)
    for commit in (4, 5):
        table.merge(changes(spark, gone(2), row(3, commit)), step(commit))

    if table_type == "mor":
        assert max(timeline(table).glob("*.compaction.requested")).name > str(table.version())
    assert held(table) == {1: (11, "a"), 3: (5, None), 4: (40, None)}
    assert sorted(row["n"] for row in read_back(table)) == [5, 11, 40]
    assert table.progress() is not None


def test_table_without_rows_reads_as_empty(spark: SparkSession, copied: HudiTable) -> None:
    copied.merge(changes(spark, gone(1), gone(3), gone(4)), step(3))

    assert (held(copied), read_back(copied)) == ({}, [])
    assert set(comparer._hudi_rows(copied.path).schema.names) >= {"id", "n", "text"}
    assert comparer._hudi_rows(copied.path).count_rows() == 0


def test_progress_advances_without_rows(copied: HudiTable) -> None:
    rows, table_id = held(copied), copied.id()

    copied.advance(step(3))

    progress = copied.progress()
    assert progress is not None and progress.commit == 3
    assert held(copied) == rows != {}
    assert copied.id() == table_id


def test_similar_keys_each_have_their_own_row(spark: SparkSession, table: HudiTable) -> None:
    """Hudi's own text of (a, b) is the same for some of these, and it rejects an empty key."""
    keys = [("", ""), ("1,b:2", "3"), ("1", "2,b:3"), ("__null__", "__empty__"), (None, "x")]
    rows = [(a, b, 0, f'{{"a":"{a}","b":"{b}"}}', [], False) for a, b in keys]
    schema = "a string, b string, n int, __key string, __keep array<string>, __delete boolean"

    for commit in (1, 2):
        table.merge(Changes(spark.createDataFrame(rows, schema), ["a", "b"]), step(commit))

    assert {(row["a"], row["b"]) for row in table.read().collect()} == set(keys)
    assert table.read().count() == len(read_back(table)) == len(keys)


def test_new_columns_are_added_in_the_first_commit_with_them(spark: SparkSession, copied: HudiTable) -> None:
    wider = changes(spark, row(3, 20)).rows.selectExpr("id", "n", "text", "7 AS added", "__key", "__keep", "__delete")

    copied.merge(Changes(wider, ["id"]), step(3))

    assert {row["id"]: row["added"] for row in copied.read().collect()} == {1: None, 3: 7, 4: None}
    assert {row["id"]: row["added"] for row in read_back(copied)} == {1: None, 3: 7, 4: None}


@CORE_ON_MOR
def test_values_of_every_type_round_trip(spark: SparkSession, table: HudiTable) -> None:
    """Written by bulk insert, and copied to another file by the upsert of another row, which are two code paths."""
    made = """
        cast(1 AS smallint) AS small, cast('NaN' AS double) AS nan, cast('-Infinity' AS float) AS infinite,
        timestamp'1500-01-01 00:00:00.123456' AS early, timestamp'9999-12-31 23:59:59.999999' AS late,
        date'0001-01-01' AS first_day, date'9999-12-31' AS last_day,
        cast('99999999999999999999999999999999999999' AS decimal(38,0)) AS wide, cast(1.5 AS decimal(4,2)) AS price,
        array('a', null) AS texts, array(cast(1.5 AS decimal(10,2)), null) AS decimals,
        array(timestamp'1500-01-01 00:00:00.123456') AS times, map('a', 1, 'b', null) AS counts,
        unhex('00ff') AS bytes, named_struct('x', 1, 'y', cast(null AS string)) AS nested
    """
    first, second = (
        spark.sql(f"SELECT {number} AS id, {made}, '{number}' AS __key, array() AS __keep, false AS __delete")
        for number in (1, 2)
    )
    table.merge(Changes(first, ["id"]), step(1))
    table.merge(Changes(second, ["id"]), step(2))
    rows = first.union(second)

    # As texts: Python has no year 0001 in every zone, and NaN is not equal to NaN.
    names = [name for name in rows.columns if not name.startswith("__")]
    texts = [f"to_json(struct({name})) AS {name}" for name in names]
    assert_df_equality(
        table.read().selectExpr(*texts), rows.selectExpr(*texts), ignore_nullable=True, ignore_row_order=True
    )
    types = {field.name: field.dataType.simpleString() for field in table.read().schema}
    assert types == {f.name: table.stored_type(f.dataType.simpleString()) for f in rows.schema if f.name in names}
    if any(Path(table.path).glob("*.log.*")):  # hudi-rs cannot read timestamps in their arrays
        table.overwrite(rows.drop("times", "__keep", "__delete"), step(3))
    for found in read_back(table):
        assert (found["small"], found["last_day"], found["texts"]) == (1, date(9999, 12, 31), ["a", None])


def test_overwrite_repairs_arrays_of_tables_from_older_versions(
    spark: SparkSession, table: HudiTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions created tables with short decimals by the row writer; `cdc-lake rebuild` overwrites them."""
    first, second = (
        spark.sql(
            f"SELECT {number} AS id, cast(1.5 AS decimal(4,2)) AS price, array('a', null) AS texts, "
            f"'{number}' AS __key, array() AS __keep, false AS __delete"
        )
        for number in (1, 2)
    )
    with monkeypatch.context() as patch:
        patch.setattr("cdc_lake.tables.hudi.has_short_decimals", lambda schema: False)
        patch.setattr("cdc_lake.tables.hudi_commits._ARE_SAFE", "")
        table.merge(Changes(first, ["id"]), step(1))
    with pytest.raises(UnsupportedError, match=r"may lose its arrays.*cdc-lake rebuild"):
        table.merge(Changes(second, ["id"]), step(2))
    table.overwrite(first.drop("__keep", "__delete"), step(2))
    table.merge(Changes(second, ["id"]), step(3))

    assert sorted((row["id"], row["texts"]) for row in read_back(table)) == [(1, ["a", None]), (2, ["a", None])]


@pytest.mark.parametrize(
    ("given", "stored_type"),
    [
        ("smallint", "int"),
        ("array<tinyint>", "array<int>"),
        ("struct<smallint: smallint, b: bigint>", "struct<smallint: int, b: bigint>"),
        ("decimal(4,2)", "decimal(4,2)"),
    ],
)
def test_small_integers_are_stored_as_int(table: HudiTable, given: str, stored_type: str) -> None:
    assert table.stored_type(given) == stored_type


def test_overwrite_is_one_commit_and_keeps_earlier_versions(spark: SparkSession, copied: HudiTable) -> None:
    before, rows_before = copied.version(), held(copied)
    rows = spark.createDataFrame([(7, "seven", '{"id": 7}')], "id int, other string, __key string")

    after = copied.overwrite(rows, step(3))

    assert_df_equality(copied.read().select("id", "other"), rows.select("id", "other"))
    assert held(copied, as_of=before) == rows_before != {}
    assert copied.progress() == after.progress


def test_unsupported_hudi_column_name_is_refused_before_writing(spark: SparkSession, table: HudiTable) -> None:
    odd = changes(spark, row(1)).rows.withColumnRenamed("text", "a text")

    with pytest.raises(UnsupportedError, match=r"`a text`.*field\.name\.adjustment\.mode"):
        table.merge(Changes(odd, ["id"]), step(1))

    assert not table.exists()


def test_commit_of_another_run_is_detected(spark: SparkSession, merged: Merged) -> None:
    late = HudiTable(spark, merged.table.path, table_type="cow")
    late.progress = lambda: step(7)  # type: ignore[method-assign]

    with pytest.raises(TableLockedError, match="run a run committed during batch 2"):
        late._committed(step(2))


@CORE_ON_MOR
@pytest.mark.parametrize("ahead", [2.0, 7200.0])
def test_write_delays_for_its_clock_or_exits_10(
    spark: SparkSession, copied: HudiTable, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """A commit before the newest one would be hidden behind it."""
    waited, before = list[float](), copied.version()
    newest_s = milliseconds(str(before)) / 1000
    clock = SimpleNamespace(time=lambda: newest_s - ahead, sleep=waited.append)
    monkeypatch.setattr("cdc_lake.tables.hudi_folder.time", clock)

    if ahead > MAX_SECONDS_AHEAD:
        with pytest.raises(InfrastructureError, match=r"its newest commit is of .*Z, but this machine's clock is at"):
            copied.advance(step(3))
        assert copied.version() == before
    else:
        copied.advance(step(3))
        assert waited == [pytest.approx(ahead, abs=0.1)]


@CORE_ON_MOR
def test_write_that_loses_a_race_exits_40(
    spark: SparkSession, copied: HudiTable, table_type: HudiType, tmp_path: Path
) -> None:
    """The winner rolls back the loser's commit while the loser's rows are being computed."""
    begun, released = str(tmp_path / "begun"), tmp_path / "released"

    def waiting(value: int) -> int:
        Path(begun).touch()
        while not released.exists():
            time.sleep(0.1)
        return value

    slow = changes(spark, row(5, 50)).rows.withColumn("n", F.udf(waiting, "int")("n"))
    rows = slow.withColumn("_hoodie_is_deleted", F.lit(False)).drop(KEEP, DELETE)
    winner = HudiTable(spark, copied.path, table_type=table_type)
    with ThreadPoolExecutor(1) as pool:
        losing = pool.submit(copied._save, rows, "upsert", step(3), keys=["id"])
        while not Path(begun).exists() and not losing.done():
            time.sleep(0.1)
        try:
            winner.merge(changes(spark, row(6, 60)), step(3))
        finally:
            released.touch()
        lost = losing.exception()

    assert isinstance(lost, TableLockedError) and "rolled this one back" in str(lost)
    assert 5 not in held(winner) and 6 in held(winner)


def test_table_without_any_progress_is_data_loss(spark: SparkSession, foreign: Path) -> None:
    with pytest.raises(NoProgressError, match="none of the commits on its timeline has progress"):
        HudiTable(spark, str(foreign)).progress()


@pytest.mark.parametrize("is_first", [True, False])
def test_failed_write_leaves_nothing_and_the_next_succeeds(
    spark: SparkSession, table: HudiTable, copied: HudiTable, is_first: bool
) -> None:
    if not is_first:
        table = copied
    before = table.progress()
    some = changes(spark, *(row(number) for number in range(1, 40))).rows.repartition(4)
    failing = some.withColumn("n", F.when(F.col("id") == 7, F.raise_error("no disk").cast("int")).otherwise(1))

    with pytest.raises(Py4JJavaError, match="no disk"):
        table.merge(Changes(failing, ["id"]), step(3))

    assert table.progress() == before
    assert table.exists() is not is_first
    table.merge(changes(spark, row(1, 20), row(2)), step(3))
    assert_held(table, {1: (20, None), 2: (0, None)} | ({} if is_first else {3: (30, "c"), 4: (40, None)}))


def test_table_of_another_format_or_type_is_refused(
    spark: SparkSession, tmp_path: Path, merged: Merged, table_type: HudiType
) -> None:
    hudi, delta = merged.table.path, str(tmp_path / "delta")
    write_deltalake(delta, pa.table({"id": [1]}))
    is_held, other = ("COPY_ON_WRITE", "mor") if table_type == "cow" else ("MERGE_ON_READ", "cow")

    with pytest.raises(ConfigError, match="the folder has a hudi table, but the settings ask for delta"):
        silver_table(spark, hudi, StorageConfig())
    with pytest.raises(ConfigError, match="the folder has a delta table, but the settings ask for hudi"):
        silver_table(spark, delta, StorageConfig(format="hudi"))
    with pytest.raises(ConfigError, match=rf"hoodie.table.type is {is_held}, but the settings ask for hudi {other}"):
        silver_table(spark, hudi, StorageConfig(format="hudi", type=other))


def test_table_of_a_newer_hudi_version_is_refused_before_reading(
    spark: SparkSession, copied: HudiTable, table_type: HudiType
) -> None:
    properties = Path(copied.path, ".hoodie", "hoodie.properties")
    newer, replaced = re.subn(r"(?m)^(hoodie\.table\.version)=\d+$", r"\1=99", properties.read_text())
    assert replaced == 1
    properties.write_text(newer)
    properties.with_name(f".{properties.name}.crc").unlink(missing_ok=True)

    with pytest.raises(
        UnsupportedError, match=r"the table has version 99, but this Hudi release supports versions up to [89];"
    ):
        silver_table(spark, copied.path, StorageConfig(format="hudi", type=table_type))


def test_foreign_hudi_table_is_refused(spark: SparkSession, tmp_path: Path, foreign: Path) -> None:
    path = shutil.copytree(foreign, tmp_path / "theirs")

    with pytest.raises(ConfigError, match=r"whose hoodie\.\S+ is \w+, but the settings ask for hudi"):
        silver_table(spark, str(path), StorageConfig(format="hudi"))
    properties = path / ".hoodie" / "hoodie.properties"
    properties.write_text(re.sub(r"(?m)^hoodie\.table\.checksum=.*\n", "", properties.read_text()))  # as before 0.11
    properties.with_name(f".{properties.name}.crc").unlink()
    with pytest.raises(ConfigError, match=r"whose hoodie\.table\.type is None, but the settings ask for hudi"):
        silver_table(spark, str(path), StorageConfig(format="hudi"))


def test_table_version_6_stores_the_same_rows(spark: SparkSession, tmp_path: Path, table_type: HudiType) -> None:
    path = str(tmp_path / "table")
    wanted = StorageConfig(format="hudi", type=table_type, table_version=6, properties=OFTEN)
    table = silver_table(spark, path, wanted)
    assert isinstance(table, HudiTable)
    table.merge(changes(spark, row(1, 10, "a"), row(2), row(3)), step(1))
    for commit in (2, 3):
        table.merge(changes(spark, (1, commit, None, ["text"], False), gone(2), row(4)), step(commit))
    if table_type == "mor":
        assert list(timeline(table).glob("*.compaction.requested"))
    table.merge(changes(spark, row(2, 7)), step(4))

    again = silver_table(spark, path, wanted)
    assert isinstance(again, HudiTable)
    assert_held(again, {1: (3, "a"), 2: (7, None), 3: (0, None), 4: (0, None)})
    assert "hoodie.table.version=6" in Path(path, ".hoodie", "hoodie.properties").read_text().splitlines()
    with pytest.raises(ConfigError, match=r"hoodie.record.merge.mode is None, but the settings ask for hudi"):
        silver_table(spark, path, wanted.model_copy(update={"table_version": None}))


def test_history_lists_the_readable_versions(spark: SparkSession, tmp_path: Path) -> None:
    few = {"hoodie.clean.commits.retained": "2", "hoodie.keep.min.commits": "3", "hoodie.keep.max.commits": "4"}
    table = HudiTable(spark, str(tmp_path / "table"), table_type="cow", properties=few)
    commits = [table.merge(changes(spark, row(1, number)), step(number)) for number in range(1, 6)]

    known = table.history()

    assert [(one.version, one.progress) for one in known] == [
        (one.version, one.progress) for one in reversed(commits[-len(known) :])
    ]
    assert len(known) == 2
    assert {one.version: held(table, one.version) for one in known} == {
        commits[-1].version: {1: (5, None)},
        commits[-2].version: {1: (4, None)},
    }
    assert all(abs(one.at_ms / 1000 - time.time()) < 600 for one in known)
    with pytest.raises(IllegalArgumentException, match="Cleaner cleaned up the timestamp"):
        held(table, commits[0].version)


@pytest.mark.parametrize("version", [None, pytest.param(6, marks=pytest.mark.deep)])
def test_read_since_returns_only_later_writes(
    spark: SparkSession, tmp_path: Path, table_type: HudiType, version: Any
) -> None:
    often = {"hoodie.compact.inline.max.delta.commits": "4"}
    table = HudiTable(spark, str(tmp_path / "table"), table_type=table_type, table_version=version, properties=often)

    def since(version: int) -> dict[int, int]:
        return {row["id"]: row["n"] for row in table.read_since(version).collect()}

    versions = [
        table.merge(changes(spark, row(1, 1), row(2, 1), row(3, 1)), step(1)).version,
        table.merge(changes(spark, row(1, 2), row(4, 2)), step(2)).version,
        table.merge(changes(spark, gone(2), row(5, 3)), step(3)).version,
        table.merge(changes(spark, row(4, 4)), step(4)).version,  # and a compaction
        table.advance(step(5)).version,
    ]

    assert [since(version) for version in versions] == [{1: 2, 4: 4, 5: 3}, {4: 4, 5: 3}, {4: 4}, {}, {}]
    assert table.read_since(versions[0]).columns == ["id", "n", "text"]
    assert {row["id"]: row["n"] for row in table.read_optimized().collect()} == {1: 2, 3: 1, 4: 4, 5: 3}
    with pytest.raises(ExpiredError, match=f"the versions from {versions[0]} to {versions[-1]} can be read"):
        table.read_since(versions[0] - 1)


def test_restore_recovers_progress_in_a_new_epoch(spark: SparkSession, copied: HudiTable) -> None:
    version, rows = copied.version(), held(copied)
    hudi: Any = spark._jvm.org.apache.hudi  # type: ignore[union-attr]
    settings = hudi.config.HoodieWriteConfig.newBuilder().withPath(copied.path).build()
    client = hudi.client.SparkRDDWriteClient(
        hudi.client.common.HoodieSparkEngineContext(spark.sparkContext._jsc), settings
    )
    client.savepoint(str(version), "somebody", "before the change")
    copied.merge(changes(spark, row(1, 20)), step(3))
    client.restoreToSavepoint(str(version))
    client.close()

    progress = copied.progress()
    assert progress is not None
    assert (progress.commit, progress.epoch) == (2, 1)
    assert held(copied) == rows != {}
    copied.merge(changes(spark, row(1, 50)), step(3, epoch=1))
    assert held(copied) == rows | {1: (50, None)}
    assert sorted(row["n"] for row in read_back(copied)) == [30, 40, 50]


def test_clustering_keeps_rows_and_progress(spark: SparkSession, tmp_path: Path, table_type: HudiType) -> None:
    often = {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "2"}
    table = HudiTable(spark, str(tmp_path / "table"), table_type=table_type, properties=often)
    for commit in range(1, 4):
        known = table.merge(changes(spark, row(1, commit), row(10 + commit, commit)), step(commit)).progress
        assert known.commit == commit
    table.merge(changes(spark, gone(11)), step(4))

    assert [one.progress is None for one in table.history()].count(True) == 2
    assert held(table) == {1: (3, None), 12: (2, None), 13: (3, None)}
    assert {row["id"]: row["n"] for row in read_back(table)} == {1: 3, 12: 2, 13: 3}


@pytest.mark.parametrize("table_type", ["mor"], indirect=True)
def test_properties_win_over_our_defaults(spark: SparkSession, copied: HudiTable) -> None:
    wanted = StorageConfig(format="hudi", type="mor", properties={**OFTEN, "hoodie.parquet.compression.codec": "zstd"})
    rows = held(copied)
    assert not list(timeline(copied).glob("*.compaction.requested"))

    silver_table(spark, copied.path, wanted).merge(changes(spark, row(1, 3)), step(3))

    assert len(list(timeline(copied).glob("*.compaction.requested"))) == 1
    assert held(copied) == rows | {1: (3, None)}


EACH_TIME = {"hoodie.compact.inline.max.delta.commits": "1"}


def timeline(table: HudiTable) -> Path:
    """The folder of its instants: in version 6, `.hoodie` itself."""
    folder = Path(table.path, ".hoodie")
    return folder / "timeline" if (folder / "timeline").is_dir() else folder


def kill_in(table: HudiTable, kind: str, *, left: float = 0.0) -> str:
    """Change the table to the state after a kill during its last write, in the middle of a file of the timeline.

    Args:
        kind: the file's name without its times.
        left: the part of the file that was written.

    Returns:
        The file's name.
    """
    cut = max(file for file in timeline(table).iterdir() if re.fullmatch(rf"\d+(_\d+)?\.{re.escape(kind)}", file.name))
    since = cut.stat().st_mtime_ns
    later = {file for file in Path(table.path).rglob("*") if file.is_file() and file.stat().st_mtime_ns > since}
    if cut.suffix == ".requested":  # created within the same tick of the file system's clock, which takes milliseconds
        later |= {file for file in [cut.with_suffix(".inflight")] if file.exists()}
    for file in later:
        if file.name != "hoodie.properties":
            file.unlink()
    cut.write_bytes(cut.read_bytes()[: int(cut.stat().st_size * left)])
    cut.with_name(f".{cut.name}.crc").write_bytes(b"")
    return cut.name


@pytest.mark.parametrize("left", [0.0, pytest.param(0.5, marks=pytest.mark.deep)])
@pytest.mark.parametrize("version", [None, pytest.param(6, marks=pytest.mark.deep)])
def test_killed_compaction_plan_is_removed_by_next_run(
    spark: SparkSession, tmp_path: Path, left: float, version: Any
) -> None:
    topic = Topic({"text": OPTIONAL_STRING})
    wanted = StorageConfig(format="hudi", type="mor", table_version=version, properties=EACH_TIME)
    config = Config(lake=LakeConfig(root=str(tmp_path)), defaults=TableConfig(storage=(wanted,)))
    lake = Lake(spark, tmp_path, topic, storage=(wanted,))
    for lsn, text in enumerate(("first", "second")):
        lake.land([topic.change("u", key, {"text": text}, lsn=lsn) for key in (1, 2, 3)])
        lake.fold()
    (target,) = lake_of(config).silver(topic.table)
    table = target.open(spark)
    assert isinstance(table, HudiTable)
    before = sorted((row["id"], row["text"]) for row in table.read().collect())
    cut = kill_in(table, "compaction.requested", left=left)
    with pytest.raises(IncompleteWriteError, match=rf"{cut} is incomplete.* run the job that writes this table"):
        target.open(spark).read()
    assert f"{cut} is incomplete" in str(status(config, ["*"], spark, source=lake.broker).tables[1].error)

    report = lake.fold()

    assert before == [(key, "second") for key in (1, 2, 3)]
    assert report.warnings == [f"removed {cut}: a killed run had not finished writing it"]
    assert sorted((row["id"], row["text"]) for row in target.open(spark).read().collect()) == before
    assert sorted((row["id"], row["text"]) for row in read_back(table)) == before
    lake.land([topic.change("u", 2, {"text": "third"}, lsn=3)])
    assert lake.fold().warnings == []
    assert {row["id"]: row["text"] for row in read_back(table)} == {1: "second", 2: "third", 3: "second"}
    assert [file.name for file in timeline(table).glob("*.compaction.requested") if file.name > cut]


def test_empty_plan_of_any_action_is_removed(spark: SparkSession, copied: HudiTable, table_type: HudiType) -> None:
    later, rows = copied.version() + 1000, held(copied)
    plans = [timeline(copied) / f"{later + number}.{action}.requested" for number, action in enumerate(ACTIONS)]
    for plan in plans:
        plan.touch()

    again = HudiTable(spark, copied.path, table_type=table_type)

    assert sorted(again.recover()) == [f"removed {p.name}: a killed run had not finished writing it" for p in plans]
    assert again.recover() == []
    again.merge(changes(spark, row(1, 3)), step(3))
    assert held(again) == rows | {1: (3, None)}


@pytest.mark.parametrize("version", [None, pytest.param(6, marks=pytest.mark.deep)])
@pytest.mark.parametrize("left", [0.0, pytest.param(0.5, marks=pytest.mark.deep)])
def test_killed_overwrite_leaves_each_row_once(
    spark: SparkSession, tmp_path: Path, table_type: HudiType, version: Any, left: float
) -> None:
    """Without recovery, Hudi treats an empty commit as one that replaced no files."""
    settings: dict[str, Any] = {"table_type": table_type, "table_version": version}
    table = HudiTable(spark, str(tmp_path / "table"), **settings)
    rows = spark.createDataFrame([(1, 2, None, '{"id": 1}')], "id int, n int, text string, __key string")
    table.merge(changes(spark, row(1, 1)), step(1))
    table.overwrite(rows, step(2))
    cut = kill_in(table, "replacecommit", left=left)

    again = HudiTable(spark, table.path, **settings)

    assert again.recover() == [f"removed {cut}: a killed run had not finished writing it"]
    assert [(row["n"]) for row in again.read().collect()] == [row["n"] for row in read_back(again)] == [1]
    progress = again.progress()
    assert progress is not None and progress.commit == 1
    again.overwrite(rows, step(2))
    assert [(row["n"]) for row in again.read().collect()] == [row["n"] for row in read_back(again)] == [2]


def test_incomplete_commit_below_later_ones_is_kept(spark: SparkSession, copied: HudiTable) -> None:
    copied.read()  # it is complete, and is not checked again
    _, newest = sorted(file for file in timeline(copied).iterdir() if re.fullmatch(r"\d+_\d+\.\w+", file.name))
    cut = kill_in(copied, newest.suffix[1:])
    copied.merge(changes(spark, row(2)), step(2))  # like a release without recovery

    with pytest.raises(DamagedFileError, match=rf"{cut}: the file is incomplete, and later commits build on it"):
        HudiTable(spark, copied.path).recover()

    assert Path(timeline(copied), cut).exists()


def test_killed_change_of_settings_is_undone(spark: SparkSession, copied: HudiTable, table_type: HudiType) -> None:
    """Without recovery, the table counts as new, and all rows are inserted a second time."""
    properties = Path(copied.path, ".hoodie", "hoodie.properties")
    before = properties.read_text()
    for left in ("nothing", "an empty file"):
        properties.rename(f"{properties}.backup")
        properties.with_name(f".{properties.name}.crc").unlink(missing_ok=True)
        if left == "an empty file":
            properties.touch()
        again = HudiTable(spark, copied.path, table_type=table_type)
        with pytest.raises(IncompleteWriteError, match=r"hoodie\.properties is incomplete"):
            again.exists()

        assert again.differing_settings() is None
        undone = "restored .hoodie/hoodie.properties from Hudi's backup: a killed run was changing it"
        assert again.recover() == [undone], left
        assert properties.read_text() == before

    again.merge(changes(spark, row(1, 2)), step(3))
    assert_held(again, {1: (2, None), 3: (30, "c"), 4: (40, None)})


def test_killed_creation_is_started_over(spark: SparkSession, table: HudiTable) -> None:
    folder = Path(table.path, ".hoodie")
    for left in ("a folder", "an empty file"):
        (folder / "timeline").mkdir(parents=True)
        if left == "an empty file":
            (folder / "hoodie.properties").touch()

        assert table.differing_settings() is None
        assert not table.exists()
        assert table.recover() == ["removed .hoodie: a killed run had not finished creating the table"], left
        assert not folder.exists()

    table.merge(changes(spark, row(1, 1)), step(1))
    assert held(table) == {1: (1, None)}
