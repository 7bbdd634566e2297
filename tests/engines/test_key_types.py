"""A primary key of each type of docs/reference/types.md, alone and with all others, in each table type."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.events import OPTIONAL_STRING, Topic
from support.fakes import FakeBroker
from support.source_types import OTHERS, SOURCES

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, TableConfig
from cdc_lake.decode.schemas import parse
from cdc_lake.decode.types import type_mapping
from cdc_lake.runs.context import lake_of
from cdc_lake.silver.run import run_silver

_ISO = {"IsoDate": "2024-02-0{}", "IsoTime": "0{}:00:00", "IsoTimestamp": "2024-02-0{}T00:00:00"}
_ISO["ZonedTimestamp"] = f"{_ISO['IsoTimestamp']}Z"


def sample(schema: Any, number: int) -> Any:
    """A value of an Avro type, different for each number."""
    if isinstance(schema, list):
        return sample(schema[-1], number)
    kind, name = (schema["type"], schema.get("connect.name", "")) if isinstance(schema, dict) else (schema, "")
    match kind:
        case "array":
            return [sample(schema["items"], number)]
        case "map":
            return {"a": sample(schema["values"], number)}
        case "record":
            return {field["name"]: sample(field["type"], number) for field in schema["fields"]}
        case "boolean":
            return number % 2 == 1
        case "bytes" | "fixed":
            return bytes([number])
        case "string" | "enum":
            return _ISO.get(name.rpartition(".")[2], "{}").format(number)
    return number * 1_000 if kind in ("int", "long") else number + 0.5  # nanoseconds are cut to microseconds


def types() -> list[Any]:
    """The Avro types, each once, without maps, which are rejected (tests/unit/test_layout.py)."""
    arrivals = chain(chain.from_iterable(SOURCES.values()), OTHERS)
    texts = dict.fromkeys(json.dumps(one.schema) for one in arrivals if one.schema is not None)
    found = map(json.loads, texts)
    return [schema for schema in found if "map<" not in type_mapping(parse(json.dumps(schema))).type]


def renamed(schema: Any, number: int) -> Any:
    """The same with a separate name for each record, because Avro defines a name once."""
    if isinstance(schema, list):
        return [renamed(one, number) for one in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: renamed(schema[name], number) for name in ("items", "values") if name in schema}
    if "fields" in schema:
        fields = [{**one, "type": renamed(one["type"], number)} for one in schema["fields"]]
        parts |= {"name": f"{schema['name']}{number}", "fields": fields}
    said = {**schema, **parts}
    if said.get("scale", 0) > said.get("precision", 0):
        del said["logicalType"]  # a converter sends it anyway, but fastavro rejects such a schema
    return said


TYPES = [renamed(schema, number) for number, schema in enumerate(types())]
TOGETHER = list({type_mapping(parse(json.dumps(kind))).type: kind for kind in TYPES}.values())
WITHOUT_STATISTICS = ["boolean", "bytes", {"type": "array", "items": ["null", "int"]}]


def check_keys(spark: SparkSession, root: Path, kinds: tuple[str, ...], keys: list[dict[str, Any]]) -> None:
    """Two rows of each key are created, then one is changed and one deleted."""
    silver = tuple(TABLE_TYPES[kind] for kind in kinds)
    config = Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(storage=silver, deletes={"mode": "hard"}))
    broker, topics = FakeBroker(), []
    for number, columns in enumerate(keys):
        registry = topics[0].registry if topics else None
        table = f"pagila.public.t{number}"
        topics.append(Topic({"text": OPTIONAL_STRING}, keys=columns, table=table, registry=registry))

    def send(op: str, key: int, text: str) -> None:
        for topic, columns in zip(topics, keys, strict=True):
            values = {name: sample(kind, key) for name, kind in columns.items()}
            broker.append(topic.change(op, values, {"text": text}, lsn=len(text)))

    def fold() -> list[list[str]]:
        landed = run_bronze(config, ["*"], spark, source=broker, registry=topics[0].registry)
        assert [(report.rows.get("quarantined"), report.error) for report in landed.tables] == [(0, None)] * len(keys)
        assert [report.error for report in run_silver(config, ["*"], spark).tables] == [None] * len(keys) * len(kinds)
        # Read by Spark: hudi-rs cannot read arrays of timestamps that two commits wrote.
        tables = [target.open(spark) for topic in topics for target in lake_of(config).silver(topic.table)]
        return [sorted(row["text"] for row in table.read().select("text").collect()) for table in tables]

    send("c", 1, "a")
    send("c", 2, "b")
    assert fold() == [["a", "b"]] * len(keys) * len(kinds)
    send("u", 1, "later")
    send("d", 2, "deleted")
    assert fold() == [["later"]] * len(keys) * len(kinds)


@pytest.mark.hudi
def test_key_of_every_silver_type_together(spark: SparkSession, tmp_path: Path) -> None:
    check_keys(spark, tmp_path, tuple(TABLE_TYPES), [{f"k{number}": kind for number, kind in enumerate(TOGETHER)}])


def test_key_of_type_without_statistics(spark: SparkSession, tmp_path: Path) -> None:
    """No column of the key has any, so Delta cannot skip a file by it."""
    columns = {f"k{number}": kind for number, kind in enumerate(WITHOUT_STATISTICS)}
    check_keys(spark, tmp_path, ("delta",), [columns])


@pytest.mark.deep
@pytest.mark.hudi
def test_key_of_each_type_alone(spark: SparkSession, tmp_path: Path) -> None:
    check_keys(spark, tmp_path, tuple(TABLE_TYPES), [{"k": kind} for kind in TYPES])
