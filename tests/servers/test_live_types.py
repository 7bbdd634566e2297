"""Random rows of every Postgres type, from Postgres through the real servers into silver, in every mode.

Silver must equal Postgres except for the losses that docs/reference/types.md lists for the
type with the connector's settings, and each of these losses must occur. The code that checks the
values (`pg_values.py`) and the columns' types (`comparer.py`) shares no code with the mapping.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
import requests
import yaml
from deltalake import DeltaTable
from pg_values import KINDS, How, Kind, arrival, is_same
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from support import source_types as st

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, load_config
from cdc_lake.decode.schemas import fields, non_null, parse
from cdc_lake.decode.types import plain_type, type_mapping
from cdc_lake.demo import sample
from cdc_lake.demo.comparer import compare
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.operations.reconcile import run_reconcile
from cdc_lake.reconcile.postgres_catalog import NOT_SENT, read_tables
from cdc_lake.silver.run import run_silver

SMALL = {"types_small": {st.DECIMALS: "precise", st.TIMES: "adaptive"}}
LARGE = {
    "types_adaptive": {st.DECIMALS: "precise", st.TIMES: "adaptive"},
    "types_micro_time": {
        st.DECIMALS: "double",
        st.TIMES: "adaptive_time_microseconds",
        st.INTERVALS: "string",
        st.BINARIES: "base64",
    },
    "types_connect": {st.DECIMALS: "string", st.TIMES: "connect", st.UNKNOWN: "true"},
    "types_isostring": {
        st.DECIMALS: "precise",
        st.TIMES: "isostring",
        st.BINARIES: "hex",
        st.UNKNOWN: "true",
    },
    "types_microseconds": {st.DECIMALS: "double", st.TIMES: "microseconds"},
    "types_nanoseconds": {st.DECIMALS: "string", st.TIMES: "nanoseconds"},
}
"""Connectors by topic prefix: each decimal mode and each time mode, and other settings that change values."""
EDGES = max(len(kind.edges) for kind in KINDS)


def create(url: str, database: str) -> str:
    """A database with the table; its DSN."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {database}".encode())
    dsn = make_conninfo(url, dbname=database)
    columns = (f"{kind.column} {kind.declared or kind.type}" for kind in KINDS)
    with psycopg.connect(dsn, autocommit=True) as source:
        source.execute("CREATE EXTENSION vector")
        source.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE TYPE complex AS (r int, i int)")
        source.execute("CREATE DOMAIN whole AS int CHECK (value IS DISTINCT FROM 13); CREATE DOMAIN words AS text")
        # This Postgres cannot parse XML, but stores it.
        source.execute("CREATE CAST (bytea AS xml) WITHOUT FUNCTION")
        source.execute(f"CREATE TABLE thing (id int PRIMARY KEY, {', '.join(columns)})".encode())
        # Otherwise an update omits large unchanged arrays of most types without a placeholder.
        source.execute("ALTER TABLE thing REPLICA IDENTITY FULL")
    return dsn


def insert(dsn: str, ids: Sequence[int], random: Random) -> None:
    """Rows with these keys: all edges of every type in the first ones, then random values."""
    with psycopg.connect(dsn) as source:
        for place, row_id in enumerate(ids):
            literals = [
                kind.edges[place]
                if place < len(kind.edges)
                else "NULL"
                if place == len(kind.edges)
                else kind.literal(random)
                for kind in KINDS
            ]
            source.execute(f"INSERT INTO thing VALUES ({row_id}, {', '.join(literals)})".encode())


def update(dsn: str, ids: Sequence[int], random: Random) -> None:
    """New values in a few columns of these rows; large values do not change."""
    with psycopg.connect(dsn) as source:
        for row_id in ids:
            changed = random.sample(KINDS, 10)
            values = ", ".join(f"{kind.column} = {kind.literal(random)}" for kind in changed)
            source.execute(f"UPDATE thing SET {values} WHERE id = {row_id}".encode())


def source_rows(dsn: str) -> dict[int, dict[str, Any]]:
    """The rows in Postgres, by key."""
    expressions = ", ".join(kind.select.format(c=kind.column) for kind in KINDS)
    with psycopg.connect(dsn, options="-c timezone=UTC -c extra_float_digits=1") as source:
        rows = source.execute(f"SELECT id, {expressions} FROM thing".encode())
        return {row[0]: dict(zip((kind.column for kind in KINDS), row[1:], strict=True)) for row in rows}


@dataclass
class Story:
    """The source, and the lake that replicated it through several connectors, by their topics' prefixes."""

    dsn: str
    config: Config
    endpoints: Mapping[str, str]
    connectors: Mapping[str, Mapping[str, str]]

    def table(self, prefix: str) -> DeltaTable:
        return DeltaTable(f"{self.config.lake.root}/silver/{prefix}/public/thing")

    def schemas(self, prefix: str) -> dict[str, Any]:
        """The newest schema of each column, without documentation, defaults and versions."""
        artifact = f"{self.endpoints['registry']}/apis/registry/v3/groups/default/artifacts/{prefix}.public.thing-value"
        answer = requests.get(f"{artifact}/versions/branch=latest/content", timeout=10)
        tree = parse(answer.text)
        if tree["name"].endswith(".Envelope"):
            tree = non_null(fields(tree)["after"])
        return {name: meaning(part) for name, part in fields(tree).items()}


def meaning(tree: Any) -> Any:
    """A schema without the parts that do not affect values."""
    if isinstance(tree, list):
        return [meaning(part) for part in tree]
    if isinstance(tree, dict):
        tree = non_null(tree) if "branches" in tree and len(tree["branches"]) == 2 else tree
        skipped = ("connect.doc", "connect.version", "default", "connect.default")
        return {key: meaning(part) for key, part in tree.items() if key not in skipped}
    return tree


def take(
    stack: Stack, spark: SparkSession, folder: Path, connectors: Mapping[str, Mapping[str, str]], rows: int
) -> Story:
    """Fill the source, wait for the connectors' snapshots, change the source, and replicate it into silver."""
    database = next(iter(connectors))
    dsn = create(stack.endpoints["postgres"], database)
    random = Random(7)
    insert(dsn, range(EDGES + rows), random)
    for number, (prefix, settings) in enumerate(connectors.items()):
        config = postgres_connector_config(
            stack.endpoints,
            database=database,
            topic_prefix=prefix,
            tables=["public.thing"],
            envelope_tables=["public.thing"] if number % 2 else [],
        )
        put_connector(stack.endpoints["connect"], prefix, config | dict(settings))
        sample.wait_until_sent(dsn, prefix, 120)
    insert(dsn, range(10_000, 10_000 + EDGES + rows), random)
    update(dsn, range(EDGES, EDGES + rows // 2), random)
    for prefix in connectors:
        sample.wait_until_sent(dsn, prefix, 120)
    content = {"lake": {"root": "lake"}, "stack": {"folder": str(stack.folder)}}
    (folder / "cdc-lake.yml").write_text(yaml.safe_dump(content))
    lake = load_config(folder / "cdc-lake.yml")
    topics = [f"{prefix}.public.thing" for prefix in connectors]
    for report in (run_bronze(lake, topics, spark), run_silver(lake, topics, spark)):
        assert report.exit_code == 0, report.model_dump_json(indent=2)
        quarantined = [table_report.rows.get("quarantined") for table_report in report.tables]
        assert not any(quarantined), report.model_dump_json(indent=2)
    return Story(dsn, lake, stack.endpoints, connectors)


def problems(story: Story, prefix: str) -> Iterator[str]:
    """The differences of one connector's table from Postgres and docs/reference/types.md."""
    settings = st.DEFAULTS | story.connectors[prefix]
    table, sent = story.table(prefix), story.schemas(prefix)
    types = {name: plain_type(kind) for name, kind in spark_types(table).items()}
    lake = {row["id"]: row for row in table.to_pyarrow_table().to_pylist()}
    source = source_rows(story.dsn)
    assert lake.keys() == source.keys()
    assert {row["__op"] for row in lake.values()} == {"r", "c", "u"}
    for kind in KINDS:
        stated = arrival(kind.type, settings)
        if stated.schema is None:
            if kind.column in sent or kind.column in types:
                yield f"{kind.type}: it is sent"
            continue
        declared = parse(json.dumps(stated.schema))
        if sent.get(kind.column) != meaning(declared):
            yield f"{kind.type}: it is sent as {sent.get(kind.column)}, not {meaning(declared)}"
            continue
        if types[kind.column] != plain_type(type_mapping(declared).type):
            yield f"{kind.type}: it is held as {types[kind.column]}"
        lost = set()
        for row_id, row in source.items():
            how = How(settings, lake[row_id]["__op"] == "r")
            expected = held(kind, row[kind.column], how)
            found = kind.read(lake[row_id][kind.column])
            lost |= how.lost
            if not is_same(expected, found):
                phase = "snapshot" if how.is_snapshot else "stream"
                yield (
                    f"{kind.type} in the {phase}, row {row_id}: Postgres has {row[kind.column]!r:.120}, "
                    f"silver {found!r:.120}, expected {expected!r:.120}"
                )
        if lost != set(stated.losses):
            yield f"{kind.type}: it lost {lost}, docs/reference/types.md states {stated.losses}"


def held(kind: Kind, value: Any, how: How) -> Any:
    if value is not None:
        return kind.held(value, how)
    return how.loses(st.NULL_AS_DEFAULT, "none") if "DEFAULT" in kind.declared else None


def spark_types(table: DeltaTable) -> dict[str, str]:
    """The types of a Delta table's columns, in Spark's names."""
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    return {column.name: column.dataType.simpleString() for column in schema}


def assert_right(story: Story, prefix: str) -> None:
    found = list(problems(story, prefix))
    assert not found, f"{len(found)} problems under {dict(story.connectors[prefix])}:\n" + "\n".join(found[:60])


def columns_of_other_types(story: Story, prefix: str) -> set[str | None]:
    """The columns that are missing or have other types than the comparer expects; it does not know vectors."""
    outcome = compare(story.dsn, "public", "thing", story.table(prefix).table_uri, limit=1_000_000)
    return {sample.column for sample in outcome.samples if sample.kind == "column"}


def assert_reconciled_like_the_comparer(story: Story, prefix: str, spark: SparkSession) -> None:
    """Check that `cdc-lake reconcile` and the independent comparer find the same, including known losses."""
    with psycopg.connect(story.dsn) as source:
        (table,) = (table for table in read_tables(source) if table.name == "thing")
    proof = compare(story.dsn, "public", "thing", story.table(prefix).table_uri, limit=1_000_000, explain=table.loss)
    columns = {one.column for one in proof.samples if one.kind == "column"}

    (report,) = run_reconcile(story.config, [f"{prefix}.public.thing"], spark, keys=1_000_000).tables

    assert report.reconciled is not None, report.error
    assert {
        (one.key["id"], name) for one in report.reconciled.first for name in one.columns if name not in columns
    } == {(str(one.key[0]), one.column) for one in proof.samples if one.kind == "cell" and one.key}
    assert {one.kind for one in report.reconciled.first} <= {"changed"}
    assert set(report.reconciled.columns) >= columns
    assert Counter(report.reconciled.losses) == Counter(
        {loss: number for loss, number in proof.known.items() if loss != NOT_SENT}
    )
    assert len(report.reconciled.losses) > 5


def leave(story: Story) -> None:
    """Release the connectors' resources on the servers, which other tests use too."""
    for prefix in story.connectors:
        requests.delete(f"{story.endpoints['connect']}/connectors/{prefix}", timeout=30).raise_for_status()
    slots = "FROM pg_replication_slots WHERE slot_name = ANY(%s)"
    deadline = time.monotonic() + 60
    with psycopg.connect(story.endpoints["postgres"], autocommit=True) as admin:
        while admin.execute(f"SELECT {slots}".encode(), [list(story.connectors)]).fetchone() is not None:
            assert time.monotonic() < deadline, "the connectors go on reading"
            admin.execute(
                f"SELECT pg_drop_replication_slot(slot_name) {slots} AND NOT active".encode(), [list(story.connectors)]
            )
            time.sleep(0.1)


def test_few_rows_of_every_type_reach_silver_as_documented(stack: Stack, spark: SparkSession, tmp_path: Path) -> None:
    story = take(stack, spark, tmp_path, SMALL, rows=4)
    (prefix,) = SMALL

    assert_right(story, prefix)
    assert columns_of_other_types(story, prefix) == {
        *(kind.column for kind in KINDS if arrival(kind.type, st.DEFAULTS).schema is None),
        *("c_bit_5_array", "c_vector_3", "c_halfvec_3", "c_sparsevec_5", "c_vector_3_array"),
    }
    assert_reconciled_like_the_comparer(story, prefix, spark)
    leave(story)


@pytest.fixture(scope="module")
def large(stack: Stack, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    story = take(stack, spark, tmp_path_factory.mktemp("types"), LARGE, rows=200)
    yield story
    leave(story)


@pytest.mark.deep
@pytest.mark.parametrize("prefix", LARGE)
def test_random_rows_of_every_type_reach_silver_as_documented(large: Story, prefix: str) -> None:
    assert_right(large, prefix)


@pytest.mark.core
def test_every_documented_type_is_in_the_source() -> None:
    stated = {kind for row in st.POSTGRES if row.is_live for kind in row.types}

    assert {kind.type for kind in KINDS} == stated


@pytest.mark.core
def test_every_documented_setting_is_tested() -> None:
    tried = [st.DEFAULTS | settings for settings in LARGE.values()]

    assert [row for row in st.POSTGRES if row.is_live and not any(map(row.applies, tried))] == []
