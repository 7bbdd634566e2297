"""The bronze job with a fake broker and a fake registry, and poisonous records between good ones."""

import json
import sys
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import wire
from support.converters import ENVELOPE, KEY_TEXT, TABLE, VALUE_TEXT, AnyIdRegistry, event, row
from support.events import Record
from support.fakes import FakeBroker

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import load_config
from cdc_lake.registries.registry import RegisteredSchema

GOOD, EACH = 2_000, 3
"""Number of good records, and of poisonous records of each kind."""
KEY, VALUE = "contentId:1", "contentId:2"
_GLUE = "glue:00000000-0000-0000-0000-000000000001"
_NARROW = wire.Table(TABLE.name, {"id": wire.INT32, "name": wire.optional(wire.STRING)}, ["id"])
_OTHER = wire.Table("pagila.public.other", {"other_id": wire.INT32}, ["other_id"])
_TEXT_KEY = wire.Table(TABLE.name, {"id": wire.STRING}, ["id"])
_ARRAY = wire.Table(TABLE.name, {"id": wire.INT32, "tags": wire.array(wire.STRING)}, ["id"])
_MAP = wire.Table(
    TABLE.name,
    {"id": wire.INT32, "tags": {"type": "map", "keys": wire.STRING, "values": wire.STRING, "optional": False}},
    ["id"],
)
LENGTHS = (1_000_000_000, 2_000_000_000)
"""Claimed numbers of bytes or items: Java could allocate this many, but not the driver of a job."""

Sent = tuple[bytes | None, bytes | None, wire.Headers]


def _text(schema: Any) -> str:
    return wire.json_text(schema).decode()


def _nested(levels: int) -> str:
    return '{"type":"array","items":' * levels + '"int"' + "}" * levels


def _doubling(levels: int) -> str:
    """A small schema of few types, each of which contains the next one twice."""
    schema: Any = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "int"}]}
    for level in range(1, levels):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{level - 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return json.dumps(schema)


def _fixed(size: int) -> str:
    seal = {"type": "fixed", "name": "Seal", "size": size}
    return json.dumps({"type": "record", "name": f"{TABLE.name}.Value", "fields": [{"name": "seal", "type": seal}]})


def _length(number: int) -> bytes:
    """A length in Avro's encoding."""
    return wire.avro({"type": "long"}, number)


def _registry() -> AnyIdRegistry:
    registry = AnyIdRegistry()
    recursive = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}
    texts: dict[str, str | RegisteredSchema] = {
        KEY: KEY_TEXT,
        VALUE: VALUE_TEXT,
        "contentId:3": _text(wire.avro_schema(wire.envelope(_NARROW))),
        "contentId:4": _text(wire.avro_schema(wire.envelope(_OTHER))),
        "contentId:5": _text(wire.avro_schema(_OTHER.key)),
        "contentId:10": json.dumps(recursive),
        "contentId:11": _nested(65),
        "contentId:12": _nested(200_000),
        "contentId:13": json.dumps({"type": "record", "name": "R" * (1 << 20), "fields": []}),
        "contentId:14": '{"type":"array","items":"null"}',
        "contentId:15": "this is no schema",
        "contentId:17": _doubling(50),
        "contentId:16": RegisteredSchema('syntax = "proto3";', "PROTOBUF"),
        "contentId:18": _text(wire.avro_schema(_TEXT_KEY.key)),
        "contentId:19": _text(wire.avro_schema(wire.envelope(_ARRAY))),
        "contentId:20": _text(wire.avro_schema(wire.envelope(_MAP))),
        "contentId:21": _fixed(2_000_000_000),
        _GLUE: VALUE_TEXT,
    }
    for reference, text in texts.items():
        registry.put(reference, text)
    return registry


def _kinds() -> dict[str, tuple[Sent, str]]:
    """Each kind of poison: a record, and words in the reason of its quarantine."""
    key = wire.framed("id4", KEY, wire.avro(KEY_TEXT, {"id": 1}), "key")[0]
    change = wire.filled(ENVELOPE, event("c", row(1, "one"), 1))
    body = wire.avro(VALUE_TEXT, change)
    value = wire.framed("id4", VALUE, body, "value")[0]

    def of(schema_id: int, content: bytes = b"\x02") -> bytes:
        return wire.framed("id4", f"id:{schema_id}", content, "value")[0]

    def with_op(op: str) -> bytes:
        return of(2, wire.avro(VALUE_TEXT, change | {"op": op}))

    wide = change | {"after": change["after"] | {"rate": wire.unscaled(12345)}}
    narrow = wire.avro(
        wire.avro_schema(wire.envelope(_NARROW)),
        wire.filled(wire.envelope(_NARROW), event("c", {"id": 1, "name": "one"}, 1)),
    )
    start = b"\0\x02\x02"  # no `before`; an `after` with id 1
    claims: dict[str, tuple[Sent, str]] = {}
    for number in LENGTHS:
        length = _length(number)
        claims |= {
            f"a text of {number} bytes": ((key, of(2, start + b"\x02" + length), []), "value: the bytes"),
            f"{number} bytes": ((key, of(2, start + b"\0\0\x02" + length), []), "value: the bytes"),
            f"a key of {number} bytes": ((of(18, length), value, []), "key: the bytes"),
            f"an array of {number} items": ((key, of(19, start + length), []), "value: the bytes"),
            f"a map of {number} items": ((key, of(20, start + length + b"\x02a\x02b"), []), "value: the bytes"),
        }
    bomb = b"\x03\x05" + bytes(15) + b"\x01" + zlib.compress(bytes(100 << 20))
    return {
        "no bytes": ((key, b"", []), "value: there are no bytes"),
        "a byte that begins no frame": ((key, b"\x07" + value, []), "value: its first byte is 0x07"),
        "a frame cut short": ((key, value[:1], []), "value: 1 bytes are too few for the frame id4"),
        "a frame without a body": ((key, value[:5], []), "value: 5 bytes are too few for the frame id4"),
        "a body cut short": ((key, value[:-1], []), "value: the bytes end in the middle of the record"),
        "a byte too many": ((key, value + b"\0", []), "value: 1 bytes are left over after the record"),
        "garbage": ((key, of(2, b"\xff" * 40), []), "value: the bytes end in the middle"),
        "zeros": ((key, of(2, bytes(60)), []), "value: "),
        "the length of a text that is not there": (
            (key, of(2, b"\0\x02\x02\x02\xfe\xff\xff\xff\x0f"), []),
            "value: the bytes",
        ),
        **claims,
        "a value of fixed length": ((key, of(21), []), "schema id 21 is refused: "),
        "an unknown id": ((key, of(4711), []), "value: schema id 4711 is not in the registry"),
        "a schema that contains itself": ((key, of(10), []), "schema id 10 is refused: the type `R` contains itself"),
        "a deep schema": ((key, of(11), []), "schema id 11 is refused: the schema is nested deeper than 64 levels"),
        "a very deep schema": ((key, of(12), []), "schema id 12 is refused: the schema text is longer"),
        "a large schema": ((key, of(13), []), "schema id 13 is refused: the schema text is longer than 1048576 bytes"),
        "items without size": ((key, of(14, b"\xfe\xff\xff\xff\x0f\0"), []), "the items of an array have no size"),
        "a text that is no schema": ((key, of(15), []), "schema id 15 is refused: this is not an Avro schema"),
        "a schema that doubles": ((key, of(17), []), "id 17 is refused: written out, the schema has more than 20000"),
        "Protobuf": ((key, of(16), []), "the schema of schema id 16 is refused: Protobuf is not supported"),
        "an older schema's bytes": ((key, of(2, narrow), []), "value: "),
        "a newer schema's bytes": ((key, of(3, body), []), "value: "),
        "another table's schema": (
            (key, of(4, body), []),
            "`pagila.public.other.Envelope`, which belongs to another topic",
        ),
        "another table's key": ((of(5), value, []), "`pagila.public.other.Key`, which belongs to another topic"),
        "a key with a byte too many": ((key + b"\0", value, []), "key: 1 bytes are left over"),
        "a key that is text": ((b"one", value, []), "key: it is a bare value"),
        "no key": ((None, value, []), "the record has no key"),
        "nothing at all": ((None, None, []), "key and value are both null"),
        "an unknown op": ((key, with_op("x"), []), "op is not one of c, u, r, d, t"),
        "a number too large for its column": (
            (key, of(2, wire.avro(VALUE_TEXT, wide)), []),
            "the column `rate` has a value that does not fit",
        ),
        "JSON without a schema": ((key, b'{"id": 1}', []), "it is not a JSON object with a schema"),
        "JSON cut short": ((key, b'{"schema":{"type":"struct"},"payload":{', []), "it is not a JSON object"),
        "headers that name nothing": (
            (key, body, [("apicurio.value.encoding", b"BINARY"), ("apicurio.value.artifactId", b"x")]),
            "the headers of apicurio name no schema",
        ),
        "headers of an unknown schema": (
            (key, body, [("apicurio.value.globalId", bytes(8))]),
            "global id 0 is not in the registry",
        ),
        "a guid of no length": (
            (key, body, [("__value_schema_id", b"\x01\x02")]),
            "the headers of confluent name no schema",
        ),
        "compressed bytes that are not": ((key, b"\x03\x05" + bytes(15) + b"\x01" + b"not zlib", []), "value: "),
        "a body that unpacks to far too much": ((key, bomb, []), "value: "),
        "a record that is too large": (
            (key, value + bytes(1 << 20), []),
            "are more than `read.max_record_bytes`: 1000000",
        ),
    }


KINDS = _kinds()


def servers() -> tuple[FakeBroker, AnyIdRegistry]:
    """The good records, with the poisonous ones between them."""
    broker, offset = FakeBroker(), 0
    poison = [sent for sent, _ in KINDS.values()] * EACH
    step = GOOD // len(poison)

    def append(key: bytes | None, value: bytes | None, headers: wire.Headers) -> None:
        nonlocal offset
        at = datetime.fromtimestamp(1_700_000_000, UTC)
        broker.append(Record(key, value, TABLE.name, 0, offset, at, headers))
        offset += 1

    for number in range(GOOD):
        change = event("c", row(number, f"row {number}"), number + 1)
        append(
            wire.framed("id4", KEY, wire.avro(KEY_TEXT, {"id": number}), "key")[0],
            wire.framed("id4", VALUE, wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, change)), "value")[0],
            [],
        )
        if number % step == 0 and poison:
            append(*poison.pop(0))
    at = datetime.fromtimestamp(1_700_000_000, UTC)
    healthy = wire.filled(wire.envelope(_OTHER), event("c", {"other_id": 1}, 1))
    other = wire.framed("id4", "id:4", wire.avro_record(wire.envelope(_OTHER), healthy), "value")[0]
    other_key = wire.framed("id4", "id:5", wire.avro_record(_OTHER.key, {"other_id": 1}), "key")[0]
    broker.append(Record(other_key, other, _OTHER.name, 0, 0, at, []))
    return broker, _registry()


if __name__ == "__main__":
    broker, registry = servers()
    report = run_bronze(load_config(), [TABLE.name, _OTHER.name], source=broker, registry=registry)
    print(report.model_dump_json())
    sys.exit(report.exit_code)
