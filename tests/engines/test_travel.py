"""Time travel: at each point, a table equals the plain reference's fold of the log up to there."""

import os
import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import Row, SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, START_MS, Record, Topic
from support.lake import Lake, step

import cdc_lake
from cdc_lake import Offset, SourceTime
from cdc_lake.config import TABLE_TYPES, Config, GoldConfig, LakeConfig, StorageConfig, TableConfig, TableType
from cdc_lake.errors import ConfigError, ExpiredError, TimeTravelError, UnknownTableError
from cdc_lake.lake.lake import SilverTarget
from cdc_lake.points import Point, milliseconds
from cdc_lake.runs.context import lake_of
from cdc_lake.silver.run import run_silver
from cdc_lake.tables.contract import Changes
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import GoldProgress, Progress

COLUMNS = {"n": OPTIONAL_INT, "body": OPTIONAL_STRING}
TABLE = "pagila.public.thing"
Rows = dict[int, tuple[int | None, str | None]]
STATES: list[Rows] = [
    {1: (1, "one"), 2: (2, "two"), 3: (3, None)},
    {1: (10, "one"), 2: (2, "two"), 3: (3, None), 4: (4, "four")},
    {1: (10, "one"), 3: (30, "three"), 4: (4, "four")},
    {1: (10, "one"), 2: (20, None), 3: (31, "three"), 4: (4, "four")},
]
"""The rows after each commit."""


def config(root: Path, *silver: StorageConfig, **settings: Any) -> Config:
    tables = {"storage": silver} if silver else {}
    return Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(**tables, **settings))


def held(rows: Iterable[Mapping[str, Any]]) -> Rows:
    found = list(rows)
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: (row["n"], row["body"]) for row in found if not row["__deleted"]}


def at(spark: SparkSession, settings: Config, table: str, point: Any) -> Rows:
    rows = cdc_lake.read(spark, table, as_of=point, config=settings).collect()
    return held(row.asDict() for row in rows)


def written(spark: SparkSession, target: SilverTarget) -> tuple[list[int], list[datetime]]:
    """Commit the first three states to a table: its versions, and a time before, between and after them."""
    kind = "id int, n int, body string, __deleted boolean, __batch bigint, __source_ts_ms bigint"
    kind += ", __key string, __keep array<string>, __delete boolean"
    table, versions, times = target.open(spark), list[int](), [datetime.now(UTC)]
    progress: Progress | None = None
    for number, (before, after) in enumerate(pairwise([{}, *STATES[:3]]), 1):
        changed = {key: row for key, row in after.items() if before.get(key) != row}
        changed |= {key: (None, None) for key in before.keys() - after.keys()}
        rows = [(k, *row, False, number, 0, f"{k}", [], row == (None, None)) for k, row in changed.items()]
        progress = progress.next("a run") if progress else step(number, keys=("id",))
        versions.append(table.merge(Changes(spark.createDataFrame(rows, kind), ["id"]), progress).version)
        times.append(datetime.now(UTC))
    return versions, times


IN_DELTA = TABLE_TYPES["delta"].model_copy(
    update={"partition_by": ("body",), "properties": {"delta.deletedFileRetentionDuration": "interval 0 seconds"}}
)


@pytest.fixture(scope="module")
def in_delta(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], list[datetime]]:
    """A lake with the first three states in Delta, its versions and their times; nothing comes to it."""
    root = tmp_path_factory.mktemp("in delta")
    return root, *written(spark, lake_of(config(root, IN_DELTA)).silver(TABLE)[0])


def life(topic: Topic) -> list[list[Record]]:
    """The records before each of the states: a snapshot of three rows, and their changes."""

    def sent(op: str, key: int, n: int, body: str | None, second: float, marker: str | None = None) -> Record:
        ms = round(1000 * second)
        return topic.change(op, key, {"n": n, "body": body}, lsn=100 + ms, ts_ms=START_MS + ms, snapshot=marker)

    return [
        [sent("r", 1, 1, "one", 0, "first"), sent("r", 2, 2, "two", 0.5, "true"), sent("r", 3, 3, None, 1, "last")],
        [sent("u", 1, 10, PLACEHOLDER, 2), sent("c", 4, 4, "four", 3)],
        [sent("d", 2, 0, None, 4), topic.tombstone(2), sent("u", 3, 30, "three", 4)],
        [sent("c", 2, 20, None, 5), sent("u", 3, 31, PLACEHOLDER, 6)],
    ]


def second(number: float) -> SourceTime:
    return SourceTime(datetime.fromtimestamp(START_MS / 1000 + number, UTC))


def applied(state: Rows, changes: Iterable[Row]) -> Rows:
    """Apply changes to a state, and check that each one fits."""
    found, seen = dict(state), set[tuple[int, str]]()
    for row in sorted(changes, key=lambda row: str(row["_change_type"]) == "update_postimage"):
        key, kind, values = row["id"], row["_change_type"], (row["n"], row["body"])
        assert (key, kind) not in seen
        seen.add((key, kind))
        if kind in ("delete", "update_preimage"):
            assert found.pop(key) == values
        else:
            assert kind in ("insert", "update_postimage") and key not in found
            assert (kind == "insert") is (key not in state)
            found[key] = values
    assert {key for key, kind in seen if kind == "update_preimage"} == {
        key for key, kind in seen if kind == "update_postimage"
    }
    assert all(state[key] != found[key] for key, kind in seen if kind == "update_postimage")
    return found


def changes(spark: SparkSession, settings: Config, since: Point, until: Point | None = None) -> list[Row]:
    return cdc_lake.changes(spark, TABLE, since=since, until=until, config=settings).collect()


def test_delta_versions_are_read_by_number_and_time(
    spark: SparkSession, in_delta: tuple[Path, list[int], list[datetime]]
) -> None:
    root, versions, times = in_delta
    check_versions(spark, config(root, IN_DELTA), versions, times)


@pytest.mark.parametrize(
    "table_type",
    ["iceberg-mor", *(pytest.param(name, marks=pytest.mark.deep) for name in ("hudi-cow", "hudi-mor", "iceberg-cow"))],
)
def test_versions_of_all_table_types_are_read_by_number_and_time(
    spark: SparkSession, tmp_path: Path, table_type: TableType
) -> None:
    settings = config(tmp_path, TABLE_TYPES[table_type])
    check_versions(spark, settings, *written(spark, lake_of(settings).silver(TABLE)[0]))


def check_versions(spark: SparkSession, settings: Config, versions: list[int], times: list[datetime]) -> None:
    assert [at(spark, settings, TABLE, version) for version in versions] == STATES[:3]
    assert [at(spark, settings, TABLE, point) for point in (times[1], times[2].isoformat(), None)] == STATES[:3]
    what = f"the table has versions {versions[0]} .* to {versions[-1]} "
    for gone in (times[0], versions[0] - 1, versions[-1] + 1):
        with pytest.raises(ExpiredError, match=what):
            cdc_lake.read(spark, TABLE, as_of=gone, config=settings)

    found = changes(spark, settings, versions[0])
    assert applied(STATES[0], found) == STATES[2]
    assert sorted((row["id"], row["_change_type"]) for row in found) == [
        *((1, "update_postimage"), (1, "update_preimage"), (2, "delete")),
        *((3, "update_postimage"), (3, "update_preimage"), (4, "insert")),
    ]
    assert applied(STATES[2], changes(spark, settings, versions[2], times[2])) == STATES[1]
    assert changes(spark, settings, times[3], versions[2]) == []


def test_vacuumed_version_fails_at_once_and_names_what_remains(
    spark: SparkSession, tmp_path: Path, in_delta: tuple[Path, list[int], list[datetime]]
) -> None:
    root, versions, times = in_delta
    settings = config(shutil.copytree(root, tmp_path / "lake"), IN_DELTA)
    lake_of(settings).silver(TABLE)[0].open(spark).maintain()
    check_gone(spark, settings, versions, times)


@pytest.mark.parametrize(
    "how", [pytest.param("clean", marks=pytest.mark.hudi), pytest.param("log cleanup", marks=pytest.mark.deep)]
)
def test_cleaned_up_version_fails_at_once_and_names_what_remains(spark: SparkSession, tmp_path: Path, how: str) -> None:
    properties = {
        "log cleanup": {"delta.logRetentionDuration": "interval 1 days", "delta.checkpointInterval": "2"},
        "clean": {"hoodie.clean.commits.retained": "1"},
    }
    held_in = TABLE_TYPES["hudi-cow" if how == "clean" else "delta"].model_copy(update={"partition_by": ("body",)})
    settings = config(tmp_path, held_in.model_copy(update={"properties": properties[how]}))
    (target,) = lake_of(settings).silver(TABLE)
    versions, times = written(spark, target)
    if how == "log cleanup":
        week = (datetime.now(UTC) - timedelta(days=7)).timestamp()
        for version in versions[:2]:
            os.utime(f"{target.path}/_delta_log/{version:020d}.json", (week, week))
        for number in (4, 5):
            target.open(spark).advance(step(number, keys=("id",)))
    check_gone(spark, settings, versions, times)


def check_gone(spark: SparkSession, settings: Config, versions: list[int], times: list[datetime]) -> None:
    """Some of the versions were removed."""
    table = lake_of(settings).silver(TABLE)[0].open(spark)
    there = [version for version in versions if table.has(version)]

    assert 0 < len(there) < len(versions)
    assert [at(spark, settings, TABLE, version) for version in there] == STATES[3 - len(there) : 3]
    for point in (versions[0], times[1]):
        with pytest.raises(ExpiredError, match=rf"the table has versions {there[0]} \(.*Z\) to .*SourceTime"):
            cdc_lake.read(spark, TABLE, as_of=point, config=settings)


@pytest.fixture(scope="module")
def landed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Topic, datetime]:
    """A lake with two batches in bronze, its topic, and a time between them; nothing comes to it."""
    root, topic = tmp_path_factory.mktemp("landed"), Topic(COLUMNS)
    lake, (first, *others) = Lake(spark, root, topic), life(topic)
    lake.land(first)
    between = datetime.now(UTC)
    lake.land([record for records in others for record in records])
    return root, topic, between


def test_points_between_versions_are_folded_from_bronze(
    spark: SparkSession, tmp_path: Path, landed: tuple[Path, Topic, datetime]
) -> None:
    landed_in, topic, _ = landed
    root = shutil.copytree(landed_in, tmp_path / "lake")
    lake, settings = Lake(spark, root, topic), config(root, deletes={"mode": "hard"})
    wanted = {
        "the snapshot's first row": (Offset({0: 1}), {1: STATES[0][1]}),
        "the delete, and not its tombstone": (Offset({0: 6}), {key: row for key, row in STATES[1].items() if key != 2}),
        "the snapshot's end": (second(1), STATES[0]),
        "of two in one second both": (second(4), STATES[2]),
        "one of two of a commit": (second(5), STATES[3] | {3: STATES[2][3]}),
    }

    found = {name: at(spark, settings, topic.table, point) for name, (point, _) in wanted.items()}

    assert found == {name: rows for name, (_, rows) in wanted.items()}
    rows = cdc_lake.read(spark, topic.table, as_of=second(2), config=settings)
    lake.fold()
    assert rows.dtypes == cdc_lake.read(spark, topic.table, config=settings).dtypes
    assert {row["__batch"] for row in rows.collect()} == {None}
    untold: list[tuple[SourceTime | Offset, str]] = [
        (second(0.999), r"it is complete from 2023-11-14T22:13:21.000Z on"),
        (Offset({0: 0}), "bronze has no row event up to"),
        (Offset({0: 11}), r"bronze's in each partition: \{0: 10\}"),
        (Offset({}), "name the next offset of every partition"),
        (Offset({0: 1, 1: 0}), "name the next offset of every partition"),
    ]
    for point, what in untold:
        with pytest.raises(TimeTravelError, match=what):
            cdc_lake.read(spark, topic.table, as_of=point, config=settings)


@pytest.mark.deep
def test_changes_between_points_without_versions(spark: SparkSession, tmp_path: Path) -> None:
    """Soft deletes are deletes; rows that were rewritten without changes, maps included, are not changes."""
    topic = Topic(COLUMNS | {"extra": ["null", {"type": "map", "values": "string"}]})
    lake, settings = Lake(spark, tmp_path, topic), config(tmp_path, deletes={"mode": "soft"})
    records = [record for records in life(topic) for record in records]
    again = {"n": 4, "body": "four", "extra": {"a": "1", "b": "2"}}
    turned = again | {"extra": {"b": "2", "a": "1"}}
    for number, row in enumerate((again, turned, turned | {"extra": {"a": "2", "b": "1"}})):
        records.append(topic.change("u", 4, row, lsn=9000 + number, ts_ms=START_MS + 9000))
    lake.land(records)

    assert applied(STATES[1], changes(spark, settings, second(3), Offset({0: 10}))) == STATES[3]
    assert changes(spark, settings, Offset({0: 11}), Offset({0: 12})) == []
    extra = [row["extra"] for row in changes(spark, settings, Offset({0: 12}), second(9))]
    assert extra == [{"a": "1", "b": "2"}, {"a": "2", "b": "1"}]


def test_bronze_and_gold_are_read_at_earlier_versions(
    spark: SparkSession, tmp_path: Path, landed: tuple[Path, Topic, datetime]
) -> None:
    landed_in, _, between = landed
    root = shutil.copytree(landed_in, tmp_path / "lake")
    (tmp_path / "revenue.sql").write_text(
        f"-- name: revenue\n-- keys: [id]\n-- sources: {{t: {TABLE}}}\nSELECT id FROM t"
    )
    settings = config(root).model_copy(update={"gold": GoldConfig(models=str(tmp_path))})
    gold = DeltaLakeTable(spark, f"{root}/gold/revenue")
    for number in (1, 2):
        gold.overwrite(spark.range(number), GoldProgress(run_id="", commit=number))

    def count(name: str, layer: Any, as_of: Point | None) -> int:
        return cdc_lake.read(spark, name, layer=layer, as_of=as_of, config=settings).count()

    assert [count(TABLE, "bronze", point) for point in (0, between, 1, None)] == [3, 3, 10, 10]
    assert [count("revenue", "gold", point) for point in (0, None)] == [1, 2]
    with pytest.raises(ConfigError, match="gold cannot be read as of a SourceTime"):
        count("revenue", "gold", second(1))
    for name, layer, what in (
        ("pagila.public.thin", "bronze", f"similar names: {TABLE}"),
        ("pagila.public.thin", "silver", f"similar names: {TABLE}"),
        (TABLE, "silver", "the silver table does not exist yet"),
        (f"{TABLE}@hudi_mor", "silver", f"its silver tables in the settings are {TABLE}"),
    ):
        with pytest.raises(UnknownTableError, match=what):
            count(name, layer, None)


@pytest.mark.hudi
@pytest.mark.deep
def test_every_commit_of_all_table_types_is_readable(spark: SparkSession, tmp_path: Path) -> None:
    topic = Topic(COLUMNS)
    settings = config(tmp_path, *TABLE_TYPES.values(), deletes={"mode": "hard"})
    lake, targets = Lake(spark, tmp_path, topic), lake_of(settings).silver(topic.table)
    versions: dict[str, list[int]] = {target.name: [] for target in targets}
    for records in life(topic):
        lake.land(records)
        assert run_silver(settings, [topic.table], spark).exit_code == 0
        for target in targets:
            versions[target.name].append(target.open(spark).version())

    others = ("hudi_cow", "hudi_mor", "iceberg_cow", "iceberg_mor")
    assert list(versions) == [topic.table, *(f"{topic.table}@{name}" for name in others)]
    for target in targets:
        assert [at(spark, settings, target.name, version) for version in versions[target.name]] == STATES
        assert [held(table_rows(target.path, version)) for version in versions[target.name]] == STATES


@pytest.mark.deep
def test_version_time_of_hudi_table_version_6(spark: SparkSession, tmp_path: Path) -> None:
    settings = config(tmp_path, TABLE_TYPES["hudi-mor"].model_copy(update={"table_version": 6}))
    (target,) = lake_of(settings).silver(TABLE)
    versions, times = written(spark, target)

    found = [target.open(spark).version_at(milliseconds(time)) for time in times]

    assert found == [None, *versions]
