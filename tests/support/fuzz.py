"""Hostile records: random and mutated bytes, headers, schemas and names, from one seed."""

import copy
import json
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from support import wire

TABLE = wire.Table(
    "pagila.public.thing",
    {
        "id": wire.INT32,
        "name": wire.optional(wire.STRING),
        "rate": wire.optional(wire.decimal(4, 2)),
        "tags": wire.optional(wire.array(wire.STRING)),
    },
    ["id"],
)
ENVELOPE = wire.envelope(TABLE)
FLAT = wire.Unwrap(("op", "source.ts_ms", "lsn"))
TREES = {
    "key": wire.avro_schema(TABLE.key),
    "value": wire.avro_schema(ENVELOPE),
    "flat": wire.avro_schema(FLAT.schema(ENVELOPE)),
}
TEXTS = {name: wire.json_text(tree).decode() for name, tree in TREES.items()}
REGISTRIES: dict[str, tuple[tuple[str, ...], Sequence[tuple[wire.Frame, str]]]] = {
    "apicurio": (
        ("contentId", "globalId"),
        [
            ("id4", "contentId"),
            ("id8", "contentId"),
            *(("apicurio", kind) for kind in ("contentId", "globalId", "contentHash", "artifact")),
        ],
    ),
    "confluent": (("id",), [("id4", "id"), ("confluent", "guid")]),
    "glue": ((), [("glue", "glue"), ("glue-zlib", "glue")]),
}
"""By kind of registry: the kinds of its bare numbers, and the frames of its converters with their kinds of id."""
DECLARED = {
    "bare": {"key": {"wire_format": "bare"}, "value": {"wire_format": "bare"}},
    "csv": {
        "key": {"wire_format": "string", "columns": ("id",)},
        "value": {"wire_format": "csv", "columns": {"id": "int", "name": "string"}},
    },
    "string": {"key": {"wire_format": "string"}, "value": {"wire_format": "string", "columns": {"name": "string"}}},
    "json": {
        "key": {"wire_format": "json"},
        "value": {"wire_format": "json", "columns": {"id": "int", "tags": "array<string>"}},
    },
}
"""By frame: the settings of topics whose records name no schema."""
HOSTILE_SCHEMAS = 24
"""Number of hostile texts in a registry: each accepted one is a layout, and so an expression of the batch."""
FIRST_GOOD_KEY = 1_000_000
_NUMBERS = {"key": 1, "value": 2, "flat": 3}
_NAMES = ("", ".", "..", "../..", "/etc/passwd", "%2e%2e", "a\0b", "a/b?c#d", "x" * 300, "\u00fc", "1", "latest", "\n")
_ODD: Sequence[Any] = (
    *(None, True, 0, -1, 3, 1 << 70, 1e308, "", "abc", "int", "null", "..", "a\0", "\ud800", " ,;{}()\n\t=", "x" * 300),
    *(
        [],
        {},
        ["null"],
        ["null", "null"],
        {"type": "int"},
        {"type": "record"},
        {"type": "array", "items": "null"},
        [[["int"]]],
    ),
)
_OTHER_KEYS: Sequence[tuple[wire.Schema, dict[str, Any]]] = (
    (wire.Table(TABLE.name, {"name": wire.STRING}, ["name"]).key, {"name": "x"}),
    (wire.Table(TABLE.name, {"id": wire.INT32, "name": wire.STRING}, ["id", "name"]).key, {"id": 1, "name": "x"}),
    (wire.Table(TABLE.name, {"id": wire.STRING}, ["id"]).key, {"id": "1"}),
)
"""Well-formed keys that are not the table's."""


@dataclass(frozen=True)
class Sent:
    """A record, and whether it must land as a row."""

    key: bytes | None
    value: bytes | None
    headers: wire.Headers
    good_key: int | None = None


def reference(kind: str, number: int) -> str:
    """A reference of a kind, one for each number."""
    match kind:
        case "contentHash":
            return f"contentHash:{number:064x}"
        case "artifact":
            return wire.artifact_reference("default", f"thing-{number}", "1")
        case "guid" | "glue":
            return f"{kind}:{uuid.UUID(int=(1 << 100) + number)}"
    return f"{kind}:{number + 100 * (kind == 'globalId')}"


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Bytes with a few changes."""
    for _ in range(rng.choice((1, 1, 2, 8))):
        at, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
        noise = rng.randbytes(rng.choice((0, 1, 1, 2, 9, 40)))
        match rng.randrange(6):
            case 0:
                data = data[:at] + noise + data[at + len(noise) :]
            case 1:
                data = data[:at] + noise + data[at:]
            case 2:
                data = data[:at] + data[end:]
            case 3:
                data = data[:at]
            case 4:
                data = data + data[at:end]
            case 5:
                data = (
                    data[:at]
                    + rng.choice((b"\xff" * 9 + b"\x01", b"\x80" * 4, b"\0" * 5, b"\x03\x05", b"{", b'"'))
                    + data[at:]
                )
    return data


def odd(rng: random.Random, tree: Any) -> Any:
    """JSON with a few of its parts replaced, removed, duplicated or moved."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(tree))
        holder, name = rng.choice(places)
        other, other_name = rng.choice(places)
        match rng.randrange(5):
            case 0 | 1:
                holder[name] = copy.deepcopy(rng.choice(_ODD))
            case 2:
                holder[name] = copy.deepcopy(other[other_name])
            case 3 if isinstance(holder, dict):
                del holder[name]
            case 4 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[name]))
        if not list(_places(tree)):
            return tree
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, part in parts:
        yield tree, name
        yield from _places(part)


def hostile_texts(rng: random.Random) -> list[str]:
    """Texts of schemas, most of them almost valid."""
    return [_hostile_text(rng) for _ in range(HOSTILE_SCHEMAS)]


def _hostile_text(rng: random.Random) -> str:
    tree = TREES[rng.choice(("key", "value", "flat"))]
    if rng.random() < 0.2:
        return mutated(rng, json.dumps(tree).encode()).decode(errors="replace")
    return json.dumps(odd(rng, tree))


def records(rng: random.Random, number: int, registry: str) -> Iterator[Sent]:
    """Records of a topic whose schemas are in a registry; every second one is good.

    Hostile schemas have the numbers from 10 on.
    """
    _, frames = REGISTRIES[registry]
    embedded = [odd(rng, ENVELOPE) for _ in range(HOSTILE_SCHEMAS // 2)]
    spoiled = [mutated(rng, wire.json_record(ENVELOPE, _event(one, one))) for one in range(HOSTILE_SCHEMAS // 2)]
    keys = [json.dumps({"schema": odd(rng, TABLE.key), "payload": {"id": 1}}) for _ in range(HOSTILE_SCHEMAS // 2)]
    keys += [wire.json_record(schema, key).decode() for schema, key in _OTHER_KEYS]
    for count in range(number):
        frame, kind = rng.choice(frames)
        if count % 2 == 0:
            yield _framed(frame, kind, FIRST_GOOD_KEY + count, count)
            continue
        good = _framed(frame, kind, rng.randrange(1000), count)
        key, value, headers = good.key, good.value, good.headers
        match rng.randrange(9):
            case 0:
                value = rng.randbytes(rng.randrange(60))
            case 1:
                key = mutated(rng, key or b"")
            case 2 | 3:
                value = mutated(rng, value or b"")
            case 4:
                headers = [_hostile_header(rng, *header) for header in headers] + [
                    _hostile_header(rng, *header) for header in _OUR_HEADERS
                ]
            case 5:
                other = _framed(frame, kind, 1, count, number=10 + rng.randrange(HOSTILE_SCHEMAS))
                value, headers = other.value, other.headers
            case 6:
                schema, payload = rng.choice(embedded), wire.filled(ENVELOPE, _event(1, count))
                value, headers = json.dumps({"schema": schema, "payload": _plain(payload)}).encode(), []
            case 7:
                value, headers = rng.choice(spoiled), []
            case 8:
                key = rng.choice(keys).encode()
                headers = [header for header in headers if "key" not in header[0]]
        yield Sent(key, value, headers)


def declared_records(rng: random.Random, number: int, frame: str) -> Iterator[Sent]:
    """Records of a topic whose settings name a frame; every second one is good."""
    spoiled = [mutated(rng, part) for part in _declared(frame, 1, 1) for _ in range(HOSTILE_SCHEMAS)]
    for count in range(number):
        is_good = count % 2 == 0
        key = FIRST_GOOD_KEY + count if is_good else rng.randrange(1000)
        sides = _declared(frame, key, count)
        if is_good:
            yield Sent(*sides, [], key)
            continue
        which, parts = rng.randrange(2), list(sides)
        changed = [rng.choice(spoiled) if frame == "json" else mutated(rng, parts[which])]
        if frame == "json" and which == 0:
            changed += [wire.json_text(rng.choice(_OTHER_KEYS)[1])]
        parts[which] = rng.choice((*changed, rng.randbytes(rng.randrange(40))))
        yield Sent(parts[0], parts[1], [_hostile_header(rng, *header) for header in _OUR_HEADERS[: rng.randrange(3)]])


_OUR_HEADERS = [("cdc_lake.value.schema", b".."), ("apicurio.value.contentHash", b".."), ("__key_schema_id", b"\0")]


def _declared(frame: str, key: int, count: int) -> tuple[bytes, bytes]:
    match frame:
        case "bare":
            return wire.avro(TREES["key"], {"id": key}), wire.avro(
                TREES["value"], wire.filled(ENVELOPE, _event(key, count))
            )
        case "csv":
            return str(key).encode(), f"{key},name {count}".encode()
        case "string":
            return str(key).encode(), f"name {count}".encode()
    return wire.json_text({"id": key}), wire.json_text({"id": key, "tags": ["a", "b"]})


def _framed(frame: wire.Frame, kind: str, key: int, count: int, *, number: int | None = None) -> Sent:
    side_bodies = {
        "key": wire.avro(TREES["key"], {"id": key}),
        "value": wire.avro(TREES["value"], wire.filled(ENVELOPE, _event(key, count))),
    }
    numbers = _NUMBERS | ({"value": number} if number else {})
    key_bytes, key_headers = wire.framed(frame, reference(kind, numbers["key"]), side_bodies["key"], "key")
    value, headers = wire.framed(frame, reference(kind, numbers["value"]), side_bodies["value"], "value")
    return Sent(key_bytes, value, [*key_headers, *headers], key)


def _event(key: int, count: int) -> dict[str, Any]:
    source = {
        **wire.postgres_values(TABLE.name),
        "ts_ms": 1_700_000_000_000 + count,
        "lsn": count + 1,
        "txId": count + 1,
    }
    row = {"id": key, "name": f"name {count}", "rate": wire.unscaled(499), "tags": ["a"]}
    return wire.whole_event("c", None, row, source, 1)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return "AfM=" if isinstance(value, bytes) else value


def _hostile_header(rng: random.Random, name: str, value: bytes) -> tuple[str, bytes]:
    match rng.randrange(4):
        case 0:
            return name, rng.choice(_NAMES).encode()
        case 1:
            return name, mutated(rng, value)
        case 2:
            return rng.choice(("", "apicurio.value.", "__debezium.newkey", "x" * 300, name.upper())), value
    return name, value
