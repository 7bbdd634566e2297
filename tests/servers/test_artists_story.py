"""The artists example: Postgres, Debezium, Kafka, Avro files, Hudi tables partitioned by nationality."""

from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from conformance.by_lake import table_rows
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession
from support.sink_files import FakeSink

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import load_config
from cdc_lake.demo import sample
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.runs.context import lake_of
from cdc_lake.silver.run import run_silver
from cdc_lake.tables.hudi import HudiTable

NAME = "momastory"
TOPIC = f"{NAME}.public.artists"
ARTISTS = [
    (1, "Robert Arneson", "American", 1930, 1992),
    (2, "Doroteo Arnaiz", "Spanish", 1936, None),
    (3, "Bill Arnold", "American", 1941, None),
    (4, "Charles Arnoldi", "American", 1946, None),
    (5, "Per Arnoldi", "Danish", 1941, None),
    (6, "Danilo Aroldi", "Italian", 1925, None),
    (299, "Wols (A. O. Wolfgang Schulze)", "German", 1913, 1951),
]
"""Rows like those of the Museum of Modern Art's collection, whose data are in the public domain (CC0)."""
LIFE = [
    "UPDATE artists SET name = 'Wols' WHERE id = 299",
    "UPDATE artists SET ended = 1952 WHERE id = 299",
    "UPDATE artists SET nationality = 'French' WHERE id = 299",
    "UPDATE artists SET ended = 1951 WHERE id = 299",
    "DELETE FROM artists WHERE id = 299",
]
LIVES: list[tuple[Any, ...] | None] = [
    ("Wols (A. O. Wolfgang Schulze)", "German", 1951),
    ("Wols", "German", 1951),
    ("Wols", "German", 1952),
    ("Wols", "French", 1952),
    ("Wols", "French", 1951),
    None,
]


@pytest.mark.deep
@pytest.mark.hudi
def test_artists_landed_as_avro_files(spark: SparkSession, stack: Stack, tmp_path: Path) -> None:
    dsn = make_conninfo(sample.create(stack.endpoints["postgres"], NAME))
    with psycopg.connect(dsn, autocommit=True) as source:
        source.execute("CREATE TABLE artists (id int PRIMARY KEY, name text, nationality text, began int, ended int)")
        source.cursor().executemany("INSERT INTO artists VALUES (%s, %s, %s, %s, %s)", ARTISTS)
    held_in = [{"format": "hudi", "type": kind, "partition_by": ["nationality"]} for kind in ("cow", "mor")]
    content = {
        "lake": {"root": "lake"},
        "stack": {"folder": str(stack.folder)},
        "files": {"root": "landing"},
        "tables": {TOPIC: {"storage": held_in, "deletes": {"mode": "hard"}}},
    }
    (tmp_path / "cdc-lake.yml").write_text(yaml.safe_dump(content))
    config = load_config(tmp_path / "cdc-lake.yml")
    wanted = postgres_connector_config(
        stack.endpoints, database=NAME, topic_prefix=NAME, tables=["public.artists"], envelope_tables=["public.artists"]
    )
    put_connector(stack.endpoints["connect"], NAME, wanted)
    sink = FakeSink(stack.endpoints["kafka"], config, tmp_path / "landing")
    targets = [(target, target.open(spark)) for target in lake_of(config).silver(TOPIC)]
    instants: list[list[int]] = []

    left_out = 0
    for change in (None, *LIFE):
        if change:
            with psycopg.connect(dsn, autocommit=True) as source:
                source.execute(change)
        sample.wait_until_sent(dsn, NAME, 60)
        left_out += sink.write(TOPIC)
        for report in (run_bronze(config, [TOPIC], spark), run_silver(config, [TOPIC], spark)):
            assert report.exit_code == 0, report.model_dump_json(indent=2)
        instants.append([table.version() for _, table in targets])
    sink.close()

    others = {row[0]: (row[1], row[2], row[4]) for row in ARTISTS[:-1]}
    for number, (target, table) in enumerate(targets):
        found = []
        for at in (several[number] for several in instants):
            rows = {row["id"]: (row["name"], row["nationality"], row["ended"]) for row in table_rows(target.path, at)}
            found.append(rows.pop(299, None))
            assert rows == others
        assert found == LIVES
        folders = {path.parent.name for path in Path(target.path).rglob("*.parquet") if ".hoodie" not in path.parts}
        assert {name.partition("=")[2] for name in folders} >= {"American", "Danish", "German", "French"}
        assert isinstance(table, HudiTable)
        real_time = {row["id"] for row in table.read().collect()}
        assert real_time == set(others)
        first, *_ = sorted(Path(target.path, ".hoodie").rglob("*commit"))
        assert b"BULK_INSERT" in first.read_bytes()
    (_, mor) = targets[1]
    assert isinstance(mor, HudiTable)
    # Later changes of its two partitions are in log files, which this view omits.
    artist = [row for row in mor.read_optimized().collect() if row["id"] == 299]
    assert sorted((row["name"], row["nationality"], row["ended"]) for row in artist) == [LIVES[3], LIVES[0]]
    assert left_out == 1  # the tombstone after the delete
