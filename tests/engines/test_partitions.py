"""Partitioned tables of every type: each row is in the partition of its values, once, with any names."""

import shutil
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support.events import OPTIONAL_STRING, PLACEHOLDER, START_MS, Record, Topic
from support.lake import MOVABLE_TYPES, Lake, step

from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, StorageConfig, TableConfig, TableType
from cdc_lake.errors import ConfigError
from cdc_lake.lake.lake import silver_table
from cdc_lake.runs.context import lake_of
from cdc_lake.silver.run import run_silver
from cdc_lake.tables.contract import Changes

CHANGE = "id int, text string, at timestamp, __key string, __keep array<string>, __delete boolean, __batch bigint, "
CHANGE += "__source_ts_ms bigint"
JANUARY, FEBRUARY = datetime(2026, 1, 15), datetime(2026, 2, 1)
TEXTS = ["a/b", "a=b", "%41", "", "..", None, "ü 日本", "x" * 300, "American"]
"""Values that cannot be a folder's name, or that a reader of the name may mistake for others."""

Held = dict[int, tuple[Any, ...]]


def changes(
    spark: SparkSession, *rows: tuple[int, str | None, datetime | None], keep: tuple[str, ...] = (), goes: bool = False
) -> Changes:
    found = [(number, text, at, f'{{"id": {number}}}', list(keep), goes, 1, 1) for number, text, at in rows]
    return Changes(spark.createDataFrame(found, CHANGE), ["id"])


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture(params=MOVABLE_TYPES)
def table_type(request: pytest.FixtureRequest) -> TableType:
    found: TableType = request.param
    return found


def partitioned(table_type: TableType, *expressions: str) -> StorageConfig:
    return TABLE_TYPES[table_type].model_copy(update={"partition_by": expressions})


Begun = Callable[..., Path]


@pytest.fixture(scope="module")
def begun(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """The folder of a table with a row of each text, by type and expressions, made once, to copy."""

    @cache
    def made(table_type: TableType, *expressions: str) -> Path:
        path = tmp_path_factory.mktemp("begun") / "table"
        table = silver_table(spark, str(path), partitioned(table_type, *expressions))
        table.merge(changes(spark, *((number, text, JANUARY) for number, text in enumerate(TEXTS))), step(1))
        return path

    return made


BY_BOTH = ("text", "month(at)")


@pytest.mark.parametrize(
    "expressions",
    [BY_BOTH, *(pytest.param((one,), marks=pytest.mark.deep) for one in ("text", "bucket(3, id)"))],
)
def test_each_row_exists_once_in_the_partition_of_its_values(
    spark: SparkSession, begun: Begun, path: str, table_type: TableType, expressions: tuple[str, ...]
) -> None:
    shutil.copytree(begun(table_type, *expressions), path)
    table = silver_table(spark, path, partitioned(table_type, *expressions))
    rows = changes(spark, (8, "Swiss", FEBRUARY), (9, "new", None)).rows
    rows = rows.union(changes(spark, (0, None, FEBRUARY), keep=("text",)).rows)
    rows = rows.union(changes(spark, (1, None, None), (77, None, None), goes=True).rows)
    table.merge(Changes(rows, ["id"]), step(2))
    table.advance(step(3))

    expected = {number: (text, JANUARY) for number, text in enumerate(TEXTS)}
    expected |= {8: ("Swiss", FEBRUARY), 9: ("new", None), 0: ("a/b", FEBRUARY)}
    del expected[1]
    rows = table.read()
    found = rows.collect()
    assert {row["id"]: (row["text"], row["at"]) for row in found} == expected
    assert len(found) == len(expected)
    assert rows.columns == ["id", "text", "at", "__batch", "__source_ts_ms"]
    others = table_rows(path)
    assert {row["id"]: (row["text"], row["at"] and row["at"].replace(tzinfo=None)) for row in others} == expected
    assert len(others) == len(expected)


@pytest.mark.hudi
@pytest.mark.parametrize("kind", ["cow", "mor"])
def test_rows_can_be_bucketed_by_key_only(spark: SparkSession, path: str, kind: Any) -> None:
    wanted = StorageConfig(format="hudi", type=kind, buckets=2)
    table = silver_table(spark, path, wanted)
    table.merge(changes(spark, *((number, "a", JANUARY) for number in range(8))), step(1))
    table.merge(changes(spark, (0, "b", JANUARY), (8, "c", None)), step(2))
    table.merge(changes(spark, (1, None, None), (77, None, None), goes=True), step(3))
    table.advance(step(4))

    expected = {number: "a" for number in range(8)} | {0: "b", 8: "c"}
    del expected[1]
    for rows in (table.read().collect(), table_rows(path)):
        assert {row["id"]: row["text"] for row in rows} == expected
        assert len(rows) == len(expected)
    assert {file.name[:8] for file in Path(path).glob("*.parquet")} == {"00000000", "00000001"}
    for others in (3, None):
        other = silver_table(spark, path, wanted.model_copy(update={"buckets": others}))
        with pytest.raises(ConfigError, match=f"has 2 buckets, but the settings ask for {others or 'none'}"):
            other.merge(changes(spark, (0, "d", None)), step(5))
    assert {row["id"]: row["text"] for row in table.read().collect()} == expected


def test_delta_prunes_files_by_the_source_column(spark: SparkSession, path: str) -> None:
    table = silver_table(spark, path, partitioned("delta", "month(at)"))
    table.merge(changes(spark, (1, "a", JANUARY), (2, "b", FEBRUARY), (3, "c", None)), step(1))

    (file,) = table.read().where("at > '2026-01-31'").inputFiles()

    assert "partition_at_month=2026-02" in file


def test_changed_partitioning_is_refused_and_overwrite_keeps_it(
    spark: SparkSession, begun: Begun, path: str, table_type: TableType
) -> None:
    shutil.copytree(begun(table_type, *BY_BOTH), path)
    table = silver_table(spark, path, partitioned(table_type, *BY_BOTH))
    before = table.version()
    for others in ((), ("text",)):
        with pytest.raises(ConfigError, match=r"_at_month\)?, but the settings ask for"):
            silver_table(spark, path, partitioned(table_type, *others))

    table.overwrite(changes(spark, (2, "c", FEBRUARY)).upserts(), step(2))
    table = silver_table(spark, path, partitioned(table_type, *BY_BOTH))
    table.merge(changes(spark, (2, "d", FEBRUARY)), step(3))

    assert [(row["id"], row["text"]) for row in table.read().collect()] == [(2, "d")]
    assert [(row["id"], row["text"]) for row in table_rows(path)] == [(2, "d")]
    assert {row["id"]: row["text"] for row in table.read(before).collect()} == dict(enumerate(TEXTS))


ARTIST = 299


def story(topic: Topic) -> list[Record]:
    """All changes of one artist: read by a snapshot, updated three times, the third into another partition, and so on.

    Values that were not sent stay, also after the move. Of the removed row, the connector only knows the key.
    """
    states = [
        ("r", "Wols", "German", "a painter"),
        ("u", "Wols", "German", PLACEHOLDER),
        ("u", "Wols", "German", "a painter and photographer"),
        ("u", "Wols", "French", PLACEHOLDER),
        ("u", "Alfred Otto Wolfgang Schulze", "French", PLACEHOLDER),
        ("d", "", "", ""),
    ]
    return [
        topic.change(
            op, ARTIST, {"name": name, "nationality": nationality, "bio": bio}, lsn=place, ts_ms=START_MS + place
        )
        for place, (op, name, nationality, bio) in enumerate(states, 1)
    ]


LIVES = [
    ("Wols", "German", "a painter"),
    ("Wols", "German", "a painter"),
    ("Wols", "German", "a painter and photographer"),
    ("Wols", "French", "a painter and photographer"),
    ("Alfred Otto Wolfgang Schulze", "French", "a painter and photographer"),
]
OTHER = ("Zao", "Chinese", "another")


@pytest.mark.parametrize(
    ("settings", "at_last"),
    [
        pytest.param({"deletes": {"mode": "hard"}}, None, id="hard", marks=pytest.mark.deep),
        pytest.param({"deletes": {"mode": "soft"}}, LIVES[-1], id="soft", marks=pytest.mark.deep),
        pytest.param(
            {"deletes": {"mode": "soft", "keep_values": False}},
            (None, None, None),
            id="soft-null",
            marks=pytest.mark.deep,
        ),
    ],
)
def test_artist_changing_partitions_is_right_in_each_version(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], at_last: tuple[str | None, ...] | None
) -> None:
    topic = Topic(dict.fromkeys(("name", "nationality", "bio"), OPTIONAL_STRING))
    tables = tuple(partitioned(table_type, "nationality") for table_type in TABLE_TYPES)
    config = Config(lake=LakeConfig(root=str(tmp_path)), defaults=TableConfig(storage=tables, **settings))
    targets = dict(zip(TABLE_TYPES, lake_of(config).silver(topic.table), strict=True))
    lake = Lake(spark, tmp_path, topic)
    versions: dict[str, list[int]] = {table_type: [] for table_type in TABLE_TYPES}
    other = topic.change("r", 300, dict(zip(("name", "nationality", "bio"), OTHER, strict=True)), lsn=0)
    for number, record in enumerate(story(topic)):
        lake.land([other, record] if number == 0 else [record])
        report = run_silver(config, [topic.table], spark)
        assert report.exit_code == 0
        for table_type, target in targets.items():
            versions[table_type].append(target.open(spark).version())

    def lives(snapshots: Iterable[list[dict[str, Any]]]) -> list[tuple[Any, ...] | None]:
        found = []
        for rows in snapshots:
            values = {row["id"]: (row["name"], row["nationality"], row["bio"]) for row in rows}
            assert len(values) == len(rows)
            assert values.pop(300) == OTHER
            found.append(values.pop(ARTIST, None))
            assert not values
        return found

    expected = [*LIVES, at_last]
    for table_type, target in targets.items():
        table, instants = target.open(spark), versions[table_type]
        assert lives([row.asDict() for row in table.read(at).collect()] for at in instants) == expected
        by_others = [table_rows(target.path, at) for at in instants]
        assert lives(by_others) == expected
        if target.storage.format != "iceberg":  # its partitions are hidden
            places = {row["id"]: row["partition_nationality"] for row in by_others[-1]}
            assert places.get(ARTIST) == (at_last and at_last[1])
