"""Recordings of real converters through bronze and silver: the same rows for every converter, frame and shape."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support import wire
from support.converters import AnyIdRegistry, Lake
from support.recordings import RECORDED, row_of, told, value_of

from cdc_lake.decode.schema_texts import inline
from cdc_lake.registries.registry import RegisteredSchema

TOPIC = "shop.public.item"
COLUMNS = ("id", "name", "kind", "price", "stock", "sold", "is_new", "code", "note", "tags")
DECLARED = {"id": "int", "stock": "smallint", "sold": "bigint", "is_new": "boolean", "tags": "array<string>"}
"""Of JSON without schemas."""


def shelf_of(recording: dict[str, Any]) -> AnyIdRegistry:
    """The registry of the recording."""
    registry = AnyIdRegistry()
    if recording["converter"]["class"].startswith("io.confluent."):
        registry.namespaces = ("id",)

    def texts(reference: str) -> list[str]:
        schema = recording["schemas"][reference]
        return [schema["text"], *(text for other in schema["references"].values() for text in texts(other))]

    for reference in recording["schemas"]:
        text, *referenced = texts(reference)
        registry.put(reference, RegisteredSchema(inline(text, referenced)))
    return registry


def expected(recording: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The rows after the recorded changes, from a fold that is as simple as possible."""
    rows: dict[int, dict[str, Any]] = {}
    for record, table in told(recording):
        if record["topic"] != TOPIC:
            continue
        value = value_of(recording, record, table)
        op = value and (value.get("op") or value.get("__op"))
        if op == "t":
            rows.clear()
            continue
        row, key = row_of(value, table), key_of(recording, record)
        if row is None or op == "d" or value.get("__deleted") == "true":
            rows.pop(key, None)
        else:
            before = rows.get(key, {})
            rows[key] = {n: before.get(n) if v == wire.unavailable(table.columns[n]) else v for n, v in row.items()}
    return {key: {name: plain(name, row[name]) for name in COLUMNS} for key, row in rows.items()}


def key_of(recording: dict[str, Any], record: dict[str, Any]) -> int:
    if recording["format"] == "avro":
        body = wire.opened(bytes.fromhex(record["key"]), headers_of(record), "key").body
        return int(wire_int(body))
    content = json.loads(record["key"])
    return int(content.get("payload", content)["id"])


def wire_int(body: bytes) -> int:
    """Avro's zigzag encoding."""
    number = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(body))
    return (number >> 1) ^ -(number & 1)


def headers_of(record: dict[str, Any]) -> wire.Headers:
    return [(name, bytes.fromhex(value)) for name, value in record["headers"]]


def plain(name: str, value: Any) -> Any:
    if name == "price" and isinstance(value, bytes):
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-2)
    return value


def sent_bytes(recording: dict[str, Any], text: str | None) -> bytes | None:
    if text is None:
        return None
    return bytes.fromhex(text) if recording["format"] == "avro" else text.encode()


QUICK = (
    "apicurio3-references-envelope",
    "confluent-id4-flattened",
    "json-schemas-envelope",
)
"""Converters of each registry, and JSON whose deletes are not null values; `make test-deep` tests all."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.deep) for name in RECORDED]
)
def test_recorded_story_reaches_silver_unchanged(spark: SparkSession, tmp_path: Path, name: str) -> None:
    recording = RECORDED[name]
    is_plain = name.startswith("json-bare")
    settings = (
        {"key": {"wire_format": "json"}, "value": {"wire_format": "json", "columns": DECLARED}} if is_plain else {}
    )
    lake = Lake(spark, tmp_path, shelf_of(recording), topic=TOPIC, **settings)
    for record in recording["records"]:
        if record["topic"] == TOPIC:
            key, value = (sent_bytes(recording, record[side]) for side in ("key", "value"))
            lake.send((key, headers_of(record)), (value, []))

    report = lake.land()
    rows = {key: row for key, row in lake.fold().items() if not row["__deleted"]}

    assert (report.error, report.rows["quarantined"], report.rows["control"]) == (None, 0, 0)
    told_as = expected(recording)
    columns = [
        column for column in COLUMNS if not (is_plain and column == "price")
    ]  # base64, because JSON has no type for bytes
    assert {k: {c: row[c] for c in columns} for k, row in rows.items()} == {
        k: {c: row[c] for c in columns} for k, row in told_as.items()
    }
    assert told_as
