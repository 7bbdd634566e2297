"""Values that other software wraps in a JSON object: decoded, or quarantined with the format's name; never a row."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support import wire
from support.converters import ENVELOPE, TABLE, AnyIdRegistry, Lake, event, row

from cdc_lake.registries.registry import RegisteredSchema

SOURCE = {"connector": "postgresql", "name": "pg", "db": "shop", "ts_ms": 1_700_000_000_000}
CLOUD_EVENT = {"id": "name:pg;lsn:1", "source": "/debezium/postgresql/pg", "specversion": "1.0", "type": "DataChange"}


def change(op: str, key: int, name: str, lsn: int) -> dict[str, Any]:
    content = {"id": key, "name": name}
    before, after = (content, None) if op == "d" else (None, content)
    return {"before": before, "after": after, "source": {**SOURCE, "lsn": lsn}, "op": op, "ts_ms": 1}


def ext_json(number: int, payload: Any) -> bytes:
    return f'{{"schemaId":{number},"payload":{json.dumps(payload)}}}'.encode()


def connect(schema: wire.Schema) -> RegisteredSchema:
    """A schema as Apicurio's ExtJsonConverter registers it."""
    return RegisteredSchema(json.dumps(json.loads(wire.json_record(schema, {}))["schema"]))


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    registry = AnyIdRegistry()
    registry.put("contentId:1", connect(TABLE.key))
    registry.put("contentId:2", connect(ENVELOPE))
    lake = Lake(
        spark,
        tmp_path_factory.mktemp("wrapped"),
        registry,
        key={"wire_format": "json"},
        value={"wire_format": "json", "columns": {"id": "int"}},
    )

    def send(key: Any, value: Any) -> None:
        sides = [side if isinstance(side, bytes) else json.dumps(side, indent=1).encode() for side in (key, value)]
        lake.send((sides[0], []), (sides[1], []))

    send({"payload": {"id": 1}}, {"payload": change("c", 1, "a", 1)})
    send({"payload": {"id": 1}}, {"schema": None, "payload": change("u", 1, "żółw", 2)})
    send({"id": 2}, {"payload": {"id": 2, "name": "flat"}})
    send({"id": 3}, {"payload": change("c", 3, "c", 4)})
    send({"id": 3}, {"payload": change("d", 3, "c", 5)})
    send({"id": 3}, {"payload": None})
    value = wire.json_record(ENVELOPE, event("c", row(4, "ext"), 6))
    send(ext_json(1, {"id": 4}), ext_json(2, json.loads(value)["payload"]))
    send({"id": 5}, {"id": 5, "payload": {"no": "wrapper"}})
    for bad in (
        ext_json(3, {"id": 6}),
        {**CLOUD_EVENT, "iodebeziumop": "c", "data": {"before": None, "after": {"id": 6}}},
        {"specversion": "1.0", "data": {"id": 6}},
        json.dumps(json.dumps({"id": 6})).encode(),
        {"schema": None, "payload": "a text"},
        b'{"payload": {"id": 6}, "payload": {"id": 7}}',
    ):
        send({"id": 6}, bad)
    assert lake.land().error is None
    return lake


def test_wrapped_values_become_the_rows_inside(lake: Lake) -> None:
    rows = lake.fold()

    assert {key: (found["name"], found["__deleted"]) for key, found in rows.items()} == {
        1: ("żółw", False),
        2: ("flat", False),
        3: ("c", True),
        4: ("ext", False),
        5: (None, False),
    }
    assert rows[4]["picture"] == bytearray(b"\0\x01\xff")
    assert rows[5]["payload"] == '{"no":"wrapper"}'
    bronze = lake.bronze()
    assert [found["source_position"] for found in bronze[:5]] == [[1], [2], None, [4], [5]]
    assert [found["framing"]["value"] for found in bronze[:8]] == [*["json-payload"] * 6, "ext-json", "json"]


def test_other_wrapped_values_are_quarantined_by_format(lake: Lake) -> None:
    parts = (
        "ExtJsonConverter wrapped the record: its schemaId 3 is not in the registry: check registry.url",
        "it is a CloudEvent in structured mode",
        "it is a CloudEvent in structured mode",
        "it was encoded twice",
        "it is not a JSON object",
        "not one JSON value",
    )
    reasons = lake.problems()
    assert {at: part if part in reasons.get(at, "") else reasons.get(at) for at, part in enumerate(parts, 8)} == (
        dict(enumerate(parts, 8))
    )
    assert len(reasons) == len(parts)


def test_declared_content_of_a_wrapper_makes_it_a_row(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"id": "string", "data": "struct<total:int>", "payload": "string"}
    lake = Lake(
        spark, tmp_path, AnyIdRegistry(), value={"wire_format": "json", "columns": columns}, merge={"mode": "append"}
    )
    for value in ({**CLOUD_EVENT, "data": {"total": 5}}, {"payload": {"a": 1}}):
        lake.send((None, []), (wire.json_text(value), []))

    assert (lake.land().error, lake.problems()) == (None, {})
    assert [found["framing"]["value"] for found in lake.bronze()] == ["json", "json"]
