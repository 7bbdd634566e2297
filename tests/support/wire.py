"""What comes over the wire: Avro and JSON as Kafka Connect's converters write them, in any frame.

The model is Connect's own. A *schema* is a Connect schema in the form that Connect's JsonConverter writes; the Avro one
is made from it by the rules of Connect's `AvroData`. A *value* is a dict for a struct, a list for an array, bytes for
bytes and for decimals (the unscaled number), else a number, text, truth value or None.

A record's bytes name their schema by a *frame*:

- `id4`, `id8`: a zero byte and an id of four or eight bytes, big endian.
- `glue`, `glue-zlib`: 03, then 00 or 05 (compressed), and the UUID of a schema version of AWS Glue.
- `single-object`: C3 01 and the CRC-64-AVRO fingerprint of the schema, little endian.
- `apicurio`, `confluent`: nothing before the body; the schema is named in the record's headers.
- `bare`: nothing at all.

A *reference* to a schema is a text, `<kind>:<id>`: `contentId`, `globalId` and `id` (Confluent's) with a number,
`contentHash`, `artifact` with `group/artifact/version` (each percent-encoded), `guid` and `glue` with a UUID, `crc`
with the fingerprint in hex, as in the frame.

test_wire.py compares all of this with the records of real converters (tests/fixtures/recorded).
"""

import base64
import io
import json
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote, unquote

import fastavro

Frame = Literal["id4", "id8", "apicurio", "confluent", "glue", "glue-zlib", "single-object", "bare"]
Side = Literal["key", "value"]
Headers = list[tuple[str, bytes]]
Schema = dict[str, Any]
Fields = Mapping[str, Schema]

PLACEHOLDER: Final = "__debezium_unavailable_value"
_ID_BYTES: Final = {"id4": 4, "id8": 8}
_GLUE_STARTS: Final = {"glue": b"\x03\x00", "glue-zlib": b"\x03\x05"}
_SINGLE_OBJECT_START: Final = b"\xc3\x01"
_APICURIO_IDS: Final = ("globalId", "contentId")
_APICURIO_ARTIFACT: Final = ("groupId", "artifactId", "version")
_CONFLUENT_GUID_START: Final = b"\x01"


class Opened(NamedTuple):
    """A record's key or value, taken out of its frame."""

    frame: Frame
    reference: str | None
    body: bytes


def framed(
    frame: Frame, reference: str | None, body: bytes, side: Side, *, encoding: str = "BINARY"
) -> tuple[bytes, Headers]:
    """Put a body into a frame.

    Args:
        reference: the body's schema; of a kind that the frame can carry. A bare body needs none.
        body: Avro, or JSON text.
        encoding: what Apicurio's header of that name says; JSON for Avro's own JSON.

    Returns:
        The bytes, and the headers that go with them.
    """
    kind, _, name = (reference or ":").partition(":")
    match frame:
        case "id4" | "id8":
            return b"\0" + int(name).to_bytes(_ID_BYTES[frame], "big") + body, []
        case "glue" | "glue-zlib":
            content = zlib.compress(body) if frame == "glue-zlib" else body
            return _GLUE_STARTS[frame] + uuid.UUID(name).bytes + content, []
        case "single-object":
            return _SINGLE_OBJECT_START + bytes.fromhex(name) + body, []
        case "confluent":
            return body, [(f"__{side}_schema_id", _CONFLUENT_GUID_START + uuid.UUID(name).bytes)]
        case "apicurio":
            own = [*_apicurio_headers(kind, name), ("encoding", encoding.encode())]
            return body, [(f"apicurio.{side}.{header}", value) for header, value in own]
        case "bare":
            return body, []


def opened(data: bytes, headers: Iterable[tuple[str, bytes]], side: Side, id_kind: str = "contentId") -> Opened:
    """Take a body out of its frame, by the order in which a reader must look: headers first, then the first byte.

    Args:
        id_kind: what the number in a frame with an id is; nothing in the record says it.
    """
    named = dict(headers)
    guid = named.get(f"__{side}_schema_id")
    if guid is not None:
        return Opened("confluent", f"guid:{uuid.UUID(bytes=guid[1:])}", data)
    start = f"apicurio.{side}."
    by_apicurio = {name.removeprefix(start): value for name, value in named.items() if name.startswith(start)}
    if by_apicurio:
        return Opened("apicurio", _apicurio_reference(by_apicurio), data)
    for glue, marker in _GLUE_STARTS.items():
        if data.startswith(marker):
            body = zlib.decompress(data[18:]) if glue == "glue-zlib" else data[18:]
            return Opened("glue-zlib" if glue == "glue-zlib" else "glue", f"glue:{uuid.UUID(bytes=data[2:18])}", body)
    if data.startswith(_SINGLE_OBJECT_START):
        return Opened("single-object", f"crc:{data[2:10].hex()}", data[10:])
    if data.startswith(b"\0"):
        frame: Frame = "id8" if data[1:5] == bytes(4) else "id4"
        end = 1 + _ID_BYTES[frame]
        return Opened(frame, f"{id_kind}:{int.from_bytes(data[1:end], 'big')}", data[end:])
    return Opened("bare", None, data)


def artifact_reference(group: str, artifact: str, version: str) -> str:
    """A reference to a version of an artifact of Apicurio's."""
    return "artifact:" + "/".join(quote(part, safe="") for part in (group, artifact, version))


def crc_reference(avro_schema: Any) -> str:
    """A reference to an Avro schema by its fingerprint."""
    form = fastavro.schema.to_parsing_canonical_form(avro_schema)
    return f"crc:{fastavro.schema.fingerprint(form, 'CRC-64-AVRO')}"


def _apicurio_headers(kind: str, name: str) -> Headers:
    if kind in _APICURIO_IDS:
        return [(kind, int(name).to_bytes(8, "big"))]
    if kind == "contentHash":
        return [(kind, name.encode())]
    parts = [unquote(part).encode() for part in name.split("/")]
    return list(zip(_APICURIO_ARTIFACT, parts, strict=True))


def _apicurio_reference(headers: Mapping[str, bytes]) -> str:
    for kind in _APICURIO_IDS:
        if kind in headers:
            return f"{kind}:{int.from_bytes(headers[kind], 'big')}"
    if "contentHash" in headers:
        return f"contentHash:{headers['contentHash'].decode()}"
    group, artifact, version = (headers[name].decode() for name in _APICURIO_ARTIFACT)
    return artifact_reference(group, artifact, version)


def primitive(kind: str, name: str | None = None, **more: Any) -> Schema:
    """A schema that is no struct, required.

    Args:
        kind: int8 to int64, float, double, boolean, string or bytes.
        name: what it means, such as `io.debezium.time.Date`; it is then of version 1.
        more: `doc` and `parameters`.
    """
    named = {"name": name, "version": 1} if name else {}
    return {"type": kind, "optional": False, **named, **more}


def optional(schema: Schema) -> Schema:
    """The same, with null allowed."""
    return {**schema, "optional": True}


def defaulted(schema: Schema, default: Any) -> Schema:
    """The same with a default, in the form that JSON has it: bytes in base64."""
    return {**schema, "default": default}


def array(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items, "optional": False}


def struct(name: str | None, fields: Fields, *, version: int | None = None, doc: str | None = None) -> Schema:
    """A struct with these fields, in this order."""
    described = {"name": name, "version": version, "doc": doc}
    return {
        "type": "struct",
        "fields": [{**schema, "field": field} for field, schema in fields.items()],
        "optional": False,
        **{key: value for key, value in described.items() if value is not None},
    }


def fields_of(schema: Schema) -> dict[str, Schema]:
    """A struct's fields by name."""
    return {one["field"]: {key: value for key, value in one.items() if key != "field"} for one in schema["fields"]}


def decimal(precision: int, scale: int) -> Schema:
    """`numeric(precision, scale)`."""
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return primitive("bytes", _DECIMAL, parameters=parameters)


def enum(*allowed: str) -> Schema:
    """An enum of the database's."""
    return primitive("string", "io.debezium.data.Enum", parameters={"allowed": ",".join(allowed)})


_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
BOOLEAN: Final = primitive("boolean")
INT16: Final = primitive("int16")
INT32: Final = primitive("int32")
INT64: Final = primitive("int64")
FLOAT: Final = primitive("float")
DOUBLE: Final = primitive("double")
STRING: Final = primitive("string")
BYTES: Final = primitive("bytes")
DATE: Final = primitive("int32", "io.debezium.time.Date")
TIMESTAMP: Final = primitive("int64", "io.debezium.time.Timestamp")
"""`timestamp(0)` to `timestamp(3)`."""
MICRO_TIMESTAMP: Final = primitive("int64", "io.debezium.time.MicroTimestamp")
MICRO_TIME: Final = primitive("int64", "io.debezium.time.MicroTime")
ZONED_TIMESTAMP: Final = primitive("string", "io.debezium.time.ZonedTimestamp")
UUID: Final = primitive("string", "io.debezium.data.Uuid")
JSON: Final = primitive("string", "io.debezium.data.Json")
VARIABLE_SCALE_DECIMAL: Final = struct(
    "io.debezium.data.VariableScaleDecimal",
    {"scale": INT32, "value": BYTES},
    version=1,
    doc="Variable scaled decimal",
)
"""`numeric` without a precision."""


def unscaled(number: int) -> bytes:
    """A whole number as a decimal has it: two's complement in as few bytes as will do."""
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


def unavailable(schema: Schema) -> Any:
    """What Debezium sends for a value that Postgres did not log, as it was too large and left alone."""
    match schema["type"]:
        case "bytes":
            return PLACEHOLDER.encode()
        case "array":
            return [unavailable(schema["items"])]
        case _:
            return PLACEHOLDER


def filled(schema: Schema, value: Any) -> Any:
    """What a converter makes of a value: a field that is missing is null, and a null where there is a default is that.

    Real nulls become defaults too. Source: Connect's `Struct.get`.
    """
    if value is None:
        return from_json(schema, schema["default"]) if "default" in schema else None
    match schema["type"]:
        case "struct":
            unknown = set(value) - {field["field"] for field in schema["fields"]}
            assert not unknown, f"{schema.get('name')} has no fields {sorted(unknown)}"
            return {field["field"]: filled(field, value.get(field["field"])) for field in schema["fields"]}
        case "array":
            return [filled(schema["items"], item) for item in value]
        case _:
            return value


_AVRO_TYPES: Final = {
    **dict.fromkeys(("int8", "int16", "int32"), "int"),
    "int64": "long",
    **{kind: kind for kind in ("float", "double", "boolean", "string", "bytes")},
}
_UNNAMED: Final = "io.confluent.connect.avro.ConnectDefault"


def avro_schema(schema: Schema) -> Any:
    """The Avro schema that converters make of Connect's, parsed.

    Source: `AvroData.fromConnectSchema`, which Apicurio took over from Confluent.
    """
    return _avro(schema, "", set())


def avro_record(schema: Schema, value: Any) -> bytes:
    """A value as an AvroConverter writes it, without a frame."""
    return avro(avro_schema(schema), filled(schema, value))


def avro(schema: Any, value: Any) -> bytes:
    """A value in Avro, without a frame, as it is.

    Args:
        schema: Avro's, parsed or as text.
    """
    out = io.BytesIO()
    parsed = json.loads(schema) if isinstance(schema, str) else schema
    fastavro.schemaless_writer(out, fastavro.parse_schema(parsed), value)
    return out.getvalue()


def _avro(schema: Schema, namespace: str, seen: set[str]) -> Any:
    made = _avro_type(schema, namespace, seen)
    if not schema["optional"]:
        return made
    return [made, "null"] if "default" in schema else ["null", made]


def _avro_type(schema: Schema, namespace: str, seen: set[str]) -> Any:
    """The type without the union that makes it optional; a name alone if it is a record that was defined before."""
    match schema["type"]:
        case "struct":
            space, _, name = schema.get("name", _UNNAMED).rpartition(".")
            if f"{space}.{name}" in seen:
                return name if space == namespace else f"{space}.{name}"
            seen.add(f"{space}.{name}")
            own: Any = {"type": "record", "name": name} | ({"namespace": space} if space != namespace else {})
            own["fields"] = [_avro_field(field, space, seen) for field in schema["fields"]]
        case "array":
            own = {"type": "array", "items": _avro(schema["items"], namespace, seen)}
        case "map":
            own = {"type": "map", "values": _avro(schema["values"], namespace, seen)}
        case kind:
            own = {"type": _AVRO_TYPES[kind]}
    return _simple(own | _connect_properties(schema))


def _avro_field(field: Schema, namespace: str, seen: set[str]) -> dict[str, Any]:
    made = {"name": field["field"], "type": _avro(field, namespace, seen)}
    if "default" in field:
        return {**made, "default": _avro_default(field)}
    return {**made, "default": None} if field["optional"] else made


def _connect_properties(schema: Schema) -> dict[str, Any]:
    is_decimal = schema.get("name") == _DECIMAL
    own: dict[str, Any] = {}
    if is_decimal:
        parameters = schema["parameters"]
        own |= {"scale": int(parameters["scale"]), "precision": int(parameters["connect.decimal.precision"])}
    own |= {f"connect.{key}": schema[key] for key in ("doc", "version", "parameters") if key in schema}
    if "default" in schema:
        own["connect.default"] = _avro_default(schema)
    if "name" in schema:
        own["connect.name"] = schema["name"]
    if schema["type"] in ("int8", "int16"):
        own["connect.type"] = schema["type"]
    return own | ({"logicalType": "decimal"} if is_decimal else {})


def _simple(made: dict[str, Any]) -> Any:
    """A type that is nothing but a type is written as its name."""
    return made["type"] if list(made) == ["type"] else made


def _avro_default(schema: Schema) -> Any:
    """Avro writes the bytes of a default as the characters of the same numbers."""
    default = from_json(schema, schema["default"])
    return default.decode("latin-1") if isinstance(default, bytes) else default


def json_record(schema: Schema, value: Any, *, schemas: bool = True) -> bytes:
    """A record as Connect's JsonConverter writes it, byte for byte.

    A null value with a schema is no tombstone: it is `{"schema":…,"payload":null}`, or the text `null` in four bytes.
    Of floating-point numbers, those are written alike that Java and Python write alike.

    Args:
        schemas: whether the schema goes along with each record (`schemas.enable`).
    """
    payload = _to_json(schema, filled(schema, value))
    return json_text({"schema": schema, "payload": payload} if schemas else payload)


def json_text(content: Any) -> bytes:
    """JSON as Jackson writes it to bytes: compact, and what is beyond Unicode's first plane as two escapes."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return "".join(char if ord(char) < 0x10000 else _surrogates(char) for char in text).encode()


def _surrogates(char: str) -> str:
    high, low = char.encode("utf-16-be")[:2].hex(), char.encode("utf-16-be")[2:].hex()
    return rf"\u{high.upper()}\u{low.upper()}"


def _to_json(schema: Schema, value: Any) -> Any:
    if value is None:
        return None
    match schema["type"]:
        case "bytes":
            return base64.b64encode(value).decode()
        case "array":
            return [_to_json(schema["items"], item) for item in value]
        case "struct":
            return {field["field"]: _to_json(field, value[field["field"]]) for field in schema["fields"]}
        case _:
            return value


def from_json(schema: Schema, payload: Any) -> Any:
    """The value that a payload stands for."""
    if payload is None:
        return None
    match schema["type"]:
        case "bytes":
            return base64.b64decode(payload)
        case "array":
            return [from_json(schema["items"], item) for item in payload]
        case "struct":
            return {field["field"]: from_json(field, payload[field["field"]]) for field in schema["fields"]}
        case _:
            return payload


Version = tuple[int, int]
LATEST: Final[Version] = (3, 6)
"""The Debezium of the recordings."""


@dataclass(frozen=True)
class Table:
    """A table, as a connector announces it.

    Args:
        name: the topic's: `<prefix>.<schema>.<table>`.
        columns: all of them, in order.
        keys: the names of the primary key's.
    """

    name: str
    columns: Fields
    keys: Sequence[str]

    @property
    def key(self) -> Schema:
        """The schema of record keys."""
        return struct(f"{self.name}.Key", {name: self.columns[name] for name in self.keys})

    @property
    def row(self) -> Schema:
        """The schema of a row."""
        return struct(f"{self.name}.Value", self.columns)

    def deleted(self, **key: Any) -> dict[str, Any]:
        """The row of a delete under REPLICA IDENTITY DEFAULT: its key, and what fills the columns that have no null.

        Source: `JdbcValueConverters.convertValue`.
        """
        return {name: key.get(name, _fallback(schema)) for name, schema in self.columns.items()}


def envelope(table: Table, debezium: Version = LATEST, source: Schema | None = None) -> Schema:
    """The schema of a whole change event.

    Args:
        debezium: whose order of fields, and whose versions.
        source: of another connector than Postgres'.
    """
    block = optional(_block(debezium))
    stamps = dict.fromkeys(("ts_ms", "ts_us", "ts_ns") if debezium >= (2, 6) else ("ts_ms",), optional(INT64))
    end: Fields = {"op": STRING, **stamps}
    if debezium >= (2, 7):
        end = {"transaction": block, **end}
    elif debezium >= (1, 1):
        end = {**end, "transaction": block}
    row = optional(table.row)
    return struct(
        f"{table.name}.Envelope",
        {"before": row, "after": row, "source": source or postgres_source(debezium), **end},
        version=None if debezium < (2, 0) else 1 if debezium < (2, 6) else 2,
    )


def event(
    table: Table,
    op: str,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    ts_ms: int = 0,
    source: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The value of a whole change event of Postgres' connector.

    Args:
        source: further fields of the block, such as `lsn`, or others than those that follow from the rest.
    """
    block = {**postgres_values(table.name), "ts_ms": ts_ms, **(source or {})}
    return whole_event(op, before, after, block, ts_ms)


def whole_event(
    op: str | None, before: Any, after: Any, source: Mapping[str, Any], ts_ms: int | None
) -> dict[str, Any]:
    """The value of a whole change event of any connector."""
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": ts_ms}


def postgres_values(table: str) -> dict[str, Any]:
    """What Postgres' `source` block says in all events of a table."""
    prefix, schema, name = table.split(".")
    where = {"version": "3.6.3.Final", "connector": "postgresql", "name": prefix, "db": prefix, "schema": schema}
    return {**where, "table": name}


def source_values(of: Schema, connector: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a `source` block: what is said, and something in those other fields that must not be null.

    Args:
        of: the event's schema.
    """
    block = fields_of(of)["source"]
    kinds = {name: schema["type"] for name, schema in fields_of(block).items() if not schema["optional"]}
    required = {name: "x" if kind == "string" else 0 for name, kind in kinds.items()}
    filled_in: dict[str, Any] = filled(block, {**required, "connector": connector, **said})
    return filled_in


def source_block(connector: str, own: Fields, debezium: Version = LATEST) -> Schema:
    """The schema of the `source` block.

    Args:
        own: the connector's own fields, behind those that all connectors have.
    """
    fields = {
        **dict.fromkeys(("version", "connector", "name"), STRING),
        "ts_ms": INT64,
        "snapshot": optional(defaulted(enum(*_snapshot_markers(debezium)), "false")),
        "db": STRING,
    }
    if debezium >= (1, 5):
        fields["sequence"] = optional(STRING)
    if debezium >= (2, 6):
        fields |= dict.fromkeys(("ts_us", "ts_ns"), optional(INT64))
    name = f"io.debezium.connector.{connector}.Source"
    return struct(name, {**fields, **own}, version=1 if debezium >= (3, 1) else None)


def postgres_source(debezium: Version = LATEST) -> Schema:
    """The `source` block of Postgres' connector."""
    own = {"schema": STRING, "table": STRING, **dict.fromkeys(("txId", "lsn", "xmin"), optional(INT64))}
    if debezium >= (3, 5):
        own |= {"origin": optional(STRING), "origin_lsn": optional(INT64)}
    return source_block("postgresql", own, debezium)


@dataclass(frozen=True)
class Unwrap:
    """The transform ExtractNewRecordState: from whole change events to flattened rows.

    Args:
        add_fields: as in its setting; `source.ts_ms`, `op`, `lsn:position`.
        prefix: of the fields that it adds; may be empty.
        deletes: what becomes of a delete. `drop` and `rewrite` are of all generations, `tombstone` is `none` in those
            before 2.5.
        tombstones: whether the tombstone behind a delete stays.
        debezium: up to 2.4 `__deleted` comes last.
    """

    add_fields: Sequence[str] = ()
    prefix: str = "__"
    deletes: Literal["drop", "rewrite", "tombstone"] = "rewrite"
    tombstones: bool = False
    debezium: Version = LATEST

    def schema(self, of: Schema) -> Schema:
        """The schema of the rows that events of a schema become; what they do not have is not added."""
        whole = fields_of(of)
        row = whole["after"]
        added = {
            name: optional({key: value for key, value in schema.items() if key != "default"})
            for name, (holder, field) in self._added.items()
            if (schema := _member(whole, holder, field)) is not None
        }
        deleted = {_DELETED: optional(STRING)} if self.deletes == "rewrite" else {}
        extra = {**added, **deleted} if self.debezium < (2, 5) else {**deleted, **added}
        return struct(row["name"], {**fields_of(row), **extra}, version=row.get("version"))

    def values(self, of: Schema, event: Mapping[str, Any] | None) -> list[dict[str, Any] | None]:
        """The values of the records that one event becomes: at most one.

        A delete that becomes a tombstone keeps the schema of `after`, which JSON shows and Avro does not.

        Args:
            of: the event's schema.
            event: None for a tombstone.
        """
        if event is None:
            return [None] if self.tombstones else []
        row = event.get("after") or event.get("before")
        is_delete = event.get("after") is None
        if row is None or (is_delete and self.deletes == "drop"):
            return []
        if is_delete and self.deletes == "tombstone":
            return [None]
        whole = fields_of(of)
        added = {
            name: (event.get(holder) or {}).get(field) if holder else event.get(field)
            for name, (holder, field) in self._added.items()
            if _member(whole, holder, field) is not None
        }
        deleted = {_DELETED: str(is_delete).lower()} if self.deletes == "rewrite" else {}
        return [{**row, **added, **deleted}]

    @property
    def _added(self) -> dict[str, tuple[str | None, str]]:
        """The fields that are added, with where they come from."""
        found = {}
        for setting in self.add_fields:
            path, _, renamed = setting.partition(":")
            holder, _, field = path.rpartition(".")
            where = holder or _HOLDERS.get(field, "source")
            found[self.prefix + (renamed or path.replace(".", "_"))] = (where or None, field)
        return found


_DELETED: Final = "__deleted"
_HOLDERS: Final = {
    **dict.fromkeys(("op", "ts_ms", "ts_us", "ts_ns"), ""),
    **dict.fromkeys(("id", "total_order", "data_collection_order"), "transaction"),
}
"""Where the transform looks for a field that is named alone; any other is the source block's."""
_FALLBACKS: Final = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), 0),
    **dict.fromkeys(("float", "double"), 0.0),
    "boolean": False,
    "string": "",
    "bytes": b"",
    "array": [],
}
_NAMED_FALLBACKS: Final = {_DECIMAL: b"\0", ZONED_TIMESTAMP["name"]: "1970-01-01T00:00:00Z"}


def _member(whole: Fields, holder: str | None, field: str) -> Schema | None:
    if holder is None:
        return whole.get(field)
    return fields_of(whole[holder]).get(field) if holder in whole else None


def _block(debezium: Version) -> Schema:
    fields = {"id": STRING, "total_order": INT64, "data_collection_order": INT64}
    return struct("event.block", fields, version=1) if debezium >= (2, 0) else struct(None, fields)


def _snapshot_markers(debezium: Version) -> list[str]:
    if debezium < (1, 6):
        return ["true", "last", "false"]
    if debezium < (3, 0):
        return ["true", "last", "false", "incremental"]
    return ["true", "first", "first_in_data_collection", "last_in_data_collection", "last", "false", "incremental"]


def _fallback(schema: Schema) -> Any:
    """What fills a column of a deleted row."""
    if schema["optional"] or "default" in schema:
        return None
    if schema["type"] == "struct":
        return {field["field"]: b"\0" if field["type"] == "bytes" else 0 for field in schema["fields"]}
    return _NAMED_FALLBACKS.get(schema.get("name"), _FALLBACKS[schema["type"]])
