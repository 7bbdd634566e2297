"""The recordings of real converters (tests/fixtures/recorded), and their content."""

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro

from support import wire
from support.wire import Schema, Side, Table, Unwrap

FILES = sorted((Path(__file__).parents[1] / "fixtures" / "recorded").glob("*.json"))
RECORDED = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}
AVRO = [name for name, recording in RECORDED.items() if recording["format"] == "avro"]
JSON = [name for name in RECORDED if name not in AVRO]
SHAPES = ["envelope", "flattened"]
SIDES: tuple[Side, ...] = ("key", "value")

COLUMNS = {
    "id": wire.INT32,
    "name": wire.STRING,
    "kind": wire.defaulted(wire.enum("part", "tool"), "part"),
    "price": wire.defaulted(wire.decimal(6, 2), "AfM="),
    "discount": wire.optional(wire.decimal(4, 3)),
    "weight": wire.optional(wire.VARIABLE_SCALE_DECIMAL),
    "stock": wire.defaulted(wire.INT16, 3),
    "sold": wire.optional(wire.INT64),
    "ratio": wire.optional(wire.DOUBLE),
    "is_new": wire.defaulted(wire.BOOLEAN, True),
    "made_on": wire.optional(wire.DATE),
    "packed_at": wire.optional(wire.MICRO_TIMESTAMP),
    "checked_at": wire.optional(wire.TIMESTAMP),
    "seen_at": wire.defaulted(wire.ZONED_TIMESTAMP, "1970-01-01T00:00:00.000000Z"),
    "opens_at": wire.optional(wire.MICRO_TIME),
    "code": wire.optional(wire.UUID),
    "note": wire.optional(wire.STRING),
    "details": wire.optional(wire.JSON),
    "picture": wire.optional(wire.BYTES),
    "tags": wire.optional(wire.array(wire.optional(wire.STRING))),
}
ADDED = {"colour": wire.optional(wire.defaulted(wire.STRING, "none"))}
ITEM = Table("shop.public.item", COLUMNS, ["id"])
ITEM_LATER = Table(ITEM.name, {**COLUMNS, **ADDED}, ["id"])
LABEL_COLUMNS = {
    "item_id": wire.INT32,
    "language": wire.STRING,
    "text": wire.STRING,
    "kind": wire.enum("part", "tool"),
    "fee": wire.decimal(6, 2),
    "weight": wire.VARIABLE_SCALE_DECIMAL,
    "copies": wire.INT16,
    "views": wire.INT64,
    "share": wire.FLOAT,
    "rate": wire.DOUBLE,
    "is_old": wire.BOOLEAN,
    "printed_on": wire.DATE,
    "printed_at": wire.MICRO_TIMESTAMP,
    "seen_at": wire.ZONED_TIMESTAMP,
    "opens_at": wire.MICRO_TIME,
    "code": wire.UUID,
    "details": wire.JSON,
    "picture": wire.BYTES,
    "words": wire.array(wire.optional(wire.STRING)),
}
LABEL = Table("shop.public.label", LABEL_COLUMNS, ["item_id", "language"])
ADD_FIELDS = "op db schema table lsn ts_ms source.ts_ms source.ts_us source.txId source.snapshot source.sequence"
UNWRAP = Unwrap(ADD_FIELDS.split())
AS_TOMBSTONES = Unwrap(ADD_FIELDS.split(), deletes="tombstone")
OF_THE_RUN = {"__lsn", "__ts_ms", "__source_ts_ms", "__source_ts_us", "__source_txId", "__source_sequence"}
"""Values that differ between recordings."""


def told(recording: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Table]]:
    """The records, each with its table at that time."""
    item = ITEM
    for record in recording["records"]:
        if record["name"] == "insert with an added column":
            item = ITEM_LATER
        yield record, LABEL if record["topic"] == LABEL.name else item


def are_deletes_tombstones(recording: Mapping[str, Any]) -> bool:
    return recording["connector"].get("transforms.unwrap.delete.tombstone.handling.mode") == "tombstone"


def built_schema(recording: Mapping[str, Any], record: Mapping[str, Any], table: Table, side: Side) -> Schema:
    """The builder's schema for the key or value of a record."""
    if side == "key":
        return table.key
    whole = wire.envelope(table)
    if recording["shape"] == "envelope":
        return whole
    if not are_deletes_tombstones(recording):
        return UNWRAP.schema(whole)
    is_delete = record["name"].endswith("delete")
    return wire.fields_of(whole)["after"] if is_delete else AS_TOMBSTONES.schema(whole)


def own_headers(record: Mapping[str, Any], side: Side) -> wire.Headers:
    """The headers that are part of a frame."""
    starts = (f"apicurio.{side}.", f"__{side}_schema_id")
    return [(name, bytes.fromhex(value)) for name, value in record["headers"] if name.startswith(starts)]


def resolved(recording: Mapping[str, Any], reference: str) -> Any:
    """A recorded schema with the schemas that it refers to, ready for decoding."""
    named: dict[str, Any] = {}
    return fastavro.parse_schema(without_logical_types(defined(recording, reference, named)), named)


def defined(recording: Mapping[str, Any], reference: str, named: dict[str, Any]) -> Any:
    """A recorded schema, after all schemas that it refers to are among the named ones."""
    schema = recording["schemas"][reference]
    for name, other in schema["references"].items():
        if name not in named:
            fastavro.parse_schema(without_logical_types(defined(recording, other, named)), named)
    return json.loads(schema["text"])


def without_logical_types(schema: Any) -> Any:
    """Bytes are not converted."""
    if isinstance(schema, list):
        return [without_logical_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: without_logical_types(part) for name, part in schema.items() if name != "logicalType"}


def decoded(recording: Mapping[str, Any], record: Mapping[str, Any], side: Side) -> Any:
    """The decoded bytes of a converter; fastavro reads them with the recorded schema, to the last byte."""
    data, headers = bytes.fromhex(record[side]), own_headers(record, side)
    body = io.BytesIO(wire.opened(data, headers, side).body)
    value = fastavro.schemaless_reader(body, resolved(recording, record[f"{side}_schema"]), None)
    assert body.read() == b""
    return value


def value_of(recording: Mapping[str, Any], record: Mapping[str, Any], table: Table) -> Any:
    """A record's value, in any format."""
    if record["value"] is None:
        return None
    if recording["format"] == "avro":
        return decoded(recording, record, "value")
    content = json.loads(record["value"])
    payload = content["payload"] if recording["converter"]["schemas.enable"] == "true" else content
    return wire.from_json(built_schema(recording, record, table, "value"), payload)


def row_of(value: Mapping[str, Any] | None, table: Table) -> dict[str, Any] | None:
    """The row in a value of any shape; a deleted one's if there is no new one."""
    if value is None:
        return None
    row = (value["after"] or value["before"]) if "after" in value else value
    return row and {name: row[name] for name in table.columns}
