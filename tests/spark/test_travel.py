"""Time travel: a table at each of its points is what the plain reference makes of the log up to there."""

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from conformance.by_lake import table_rows
from events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, START_MS, Record, Topic
from lake import Lake, step
from pyspark.sql import SparkSession

import cdc_lake
from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, SilverTable, TableConfig, TableType
from cdc_lake.errors import ExpiredError
from cdc_lake.layers.run import SilverTarget, silver_targets
from cdc_lake.layers.silver import run_silver

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


def config(root: Path, *silver: SilverTable, **settings: Any) -> Config:
    tables = {"silver": silver} if silver else {}
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
    for number, (before, after) in enumerate(pairwise([{}, *STATES[:3]]), 1):
        changed = {key: row for key, row in after.items() if before.get(key) != row}
        changed |= {key: (None, None) for key in before.keys() - after.keys()}
        rows = [(k, *row, False, number, 0, f"{k}", [], row == (None, None)) for k, row in changed.items()]
        progress = step(number, keys=("id",))
        versions.append(table.merge(spark.createDataFrame(rows, kind), ["id"], progress).version)
        times.append(datetime.now(UTC))
    return versions, times


@pytest.mark.parametrize("table_type", get_args(TableType))
def test_a_version_is_read_by_its_number_and_by_its_time(
    spark: SparkSession, tmp_path: Path, table_type: TableType
) -> None:
    settings = config(tmp_path, TABLE_TYPES[table_type])
    (target,) = silver_targets(settings, TABLE)
    versions, times = written(spark, target)

    assert [at(spark, settings, TABLE, version) for version in versions] == STATES[:3]
    assert [at(spark, settings, TABLE, point) for point in (times[1], times[2].isoformat(), None)] == STATES[:3]
    what = f"there are versions {versions[0]} .* to {versions[-1]} "
    for gone in (times[0], versions[0] - 1, versions[-1] + 1):
        with pytest.raises(ExpiredError, match=what):
            cdc_lake.read(spark, TABLE, as_of=gone, config=settings)


@pytest.mark.parametrize("how", ["vacuum", "log cleanup", "clean"])
def test_a_version_that_is_gone_is_an_error_at_once_and_says_what_is_there(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    properties = {
        "vacuum": {"delta.deletedFileRetentionDuration": "interval 0 seconds"},
        "log cleanup": {"delta.logRetentionDuration": "interval 1 days", "delta.checkpointInterval": "2"},
        "clean": {"hoodie.clean.commits.retained": "1"},
    }
    held_in = TABLE_TYPES["hudi-cow" if how == "clean" else "delta"].model_copy(update={"partition_by": ("body",)})
    settings = config(tmp_path, held_in.model_copy(update={"properties": properties[how]}))
    (target,) = silver_targets(settings, TABLE)
    versions, times = written(spark, target)
    table = target.open(spark)
    if how == "vacuum":
        table.maintain()
    elif how == "log cleanup":
        week = (datetime.now(UTC) - timedelta(days=7)).timestamp()
        for version in versions[:2]:
            os.utime(f"{target.path}/_delta_log/{version:020d}.json", (week, week))
        for number in (4, 5):
            table.advance(step(number, keys=("id",)))
    there = [version for version in versions if table.has(version)]

    assert 0 < len(there) < len(versions)
    assert [at(spark, settings, TABLE, version) for version in there] == STATES[3 - len(there) : 3]
    for point in (versions[0], times[1]):
        with pytest.raises(ExpiredError, match=rf"there are versions {there[0]} \(.*Z\) to .*SourceTime"):
            cdc_lake.read(spark, TABLE, as_of=point, config=settings)


def life(topic: Topic) -> list[list[Record]]:
    """What is sent before each of the states: a snapshot of three rows, and what became of them."""

    def sent(op: str, key: int, n: int, body: str | None, second: float, marker: str | None = None) -> Record:
        ms = round(1000 * second)
        return topic.change(op, key, {"n": n, "body": body}, lsn=100 + ms, ts_ms=START_MS + ms, snapshot=marker)

    return [
        [sent("r", 1, 1, "one", 0, "first"), sent("r", 2, 2, "two", 0.5, "true"), sent("r", 3, 3, None, 1, "last")],
        [sent("u", 1, 10, PLACEHOLDER, 2), sent("c", 4, 4, "four", 3)],
        [sent("d", 2, 0, None, 4), topic.tombstone(2), sent("u", 3, 30, "three", 4)],
        [sent("c", 2, 20, None, 5), sent("u", 3, 31, PLACEHOLDER, 6)],
    ]


@pytest.mark.deep
def test_every_commit_of_three_tables_side_by_side(spark: SparkSession, tmp_path: Path) -> None:
    topic = Topic(COLUMNS)
    settings = config(tmp_path, *TABLE_TYPES.values(), deletes="hard")
    lake, targets = Lake(spark, tmp_path, topic), silver_targets(settings, topic.table)
    versions: dict[str, list[int]] = {target.name: [] for target in targets}
    for records in life(topic):
        lake.land(records)
        assert run_silver(settings, [topic.table], spark).exit_code == 0
        for target in targets:
            versions[target.name].append(target.open(spark).version())

    assert list(versions) == [topic.table, f"{topic.table}@hudi_cow", f"{topic.table}@hudi_mor"]
    for target in targets:
        assert [at(spark, settings, target.name, version) for version in versions[target.name]] == STATES
        assert [held(table_rows(target.path, version)) for version in versions[target.name]] == STATES
