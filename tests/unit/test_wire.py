"""The builder of records, compared with real converters' records: tests/fixtures/recorded, one recording for each."""

import json
import uuid
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import fastavro
import pytest
from support import wire
from support.recordings import (
    ADDED,
    AS_TOMBSTONES,
    AVRO,
    COLUMNS,
    FILES,
    ITEM,
    ITEM_LATER,
    JSON,
    LABEL,
    OF_THE_RUN,
    RECORDED,
    SHAPES,
    SIDES,
    UNWRAP,
    are_deletes_tombstones,
    built_schema,
    decoded,
    own_headers,
    resolved,
    row_of,
    told,
    value_of,
)
from support.wire import Frame, Unwrap

pytestmark = pytest.mark.core


def test_all_converters_framings_and_shapes_are_recorded() -> None:
    frames = {(recording["frame"], recording["shape"]) for recording in RECORDED.values()}

    assert frames == {(frame, shape) for frame in ("id4", "id8", "apicurio", "bare") for shape in SHAPES}
    assert {name.partition("-")[0] for name in RECORDED} == {"apicurio2", "apicurio3", "confluent", "json"}


@pytest.mark.parametrize("name", AVRO)
def test_recorded_avro_is_rebuilt_byte_for_byte(name: str) -> None:
    recording = RECORDED[name]
    built = 0
    for record in recording["records"]:
        for side in SIDES:
            if record[side] is None:
                continue
            data, headers, reference = bytes.fromhex(record[side]), own_headers(record, side), record[f"{side}_schema"]
            frame = recording["frame"]
            schema = resolved(recording, reference)

            body = wire.avro(schema, decoded(recording, record, side))

            assert wire.framed(frame, reference, body, side) == (data, headers), record["name"]
            assert wire.opened(data, headers, side, reference.partition(":")[0]) == (frame, reference, body)
            built += 1
    assert built > len(recording["records"])


@pytest.mark.parametrize("name", AVRO)
def test_builder_schemas_encode_to_the_recorded_bytes(name: str) -> None:
    recording = RECORDED[name]
    for record, table in told(recording):
        for side in SIDES:
            if record[side] is None:
                continue
            schema = built_schema(recording, record, table, side)
            frame, reference = recording["frame"], record[f"{side}_schema"]

            body = wire.avro_record(schema, decoded(recording, record, side))

            assert wire.framed(frame, reference, body, side)[0].hex() == record[side], record["name"]


@pytest.mark.parametrize("name", [name for name in AVRO if "references" not in name])
def test_builder_schemas_equal_the_registry_texts(name: str) -> None:
    recording = RECORDED[name]
    for record, table in told(recording):
        for side in SIDES:
            if record[side] is None:
                continue
            schema = wire.avro_schema(built_schema(recording, record, table, side))

            text = recording["schemas"][record[f"{side}_schema"]]["text"]
            assert wire.json_text(schema).decode() == text, record["name"]


@pytest.mark.parametrize("shape", SHAPES)
def test_schema_with_references_equals_the_builders_inline_one(shape: str) -> None:
    recording = RECORDED[f"apicurio3-references-{shape}"]
    for record, table in told(recording):
        if record["value"] is not None:
            named: dict[str, Any] = {}
            found = spelled_out(defined_text(recording, record["value_schema"], named), "", named)

            built = wire.avro_schema(built_schema(recording, record, table, "value"))
            assert found == spelled_out(built, "", {}), record["name"]


def defined_text(recording: Mapping[str, Any], reference: str, named: dict[str, Any]) -> Any:
    """A recorded schema, after all schemas that it refers to are in `named` by full name."""
    schema = recording["schemas"][reference]
    for name, other in schema["references"].items():
        named[name] = defined_text(recording, other, named)
    return json.loads(schema["text"])


def spelled_out(schema: Any, namespace: str, named: Mapping[str, Any]) -> Any:
    """A schema with full names, and with each name replaced by its definition."""
    known = dict(named)

    def of(part: Any, space: str) -> Any:
        if isinstance(part, list):
            return [of(one, space) for one in part]
        if isinstance(part, str):
            full = part if "." in part else f"{space}.{part}"
            return of(known[full], space) if full in known else part
        if part["type"] == "record":
            inner = part.get("namespace", space)
            known[f"{inner}.{part['name']}"] = {**part, "namespace": inner}
            fields = [{**field, "type": of(field["type"], inner)} for field in part["fields"]]
            return {**part, "namespace": inner, "fields": fields}
        return {**part, **{name: of(part[name], space) for name in ("items", "values") if name in part}}

    return of(schema, namespace)


@pytest.mark.parametrize("name", JSON)
def test_recorded_json_is_rebuilt_byte_for_byte(name: str) -> None:
    recording = RECORDED[name]
    with_schemas = recording["converter"]["schemas.enable"] == "true"
    for record, table in told(recording):
        for side in SIDES:
            if record[side] is None:
                continue
            schema = built_schema(recording, record, table, side)
            content = json.loads(record[side])
            value = wire.from_json(schema, content["payload"] if with_schemas else content)

            assert wire.json_record(schema, value, schemas=with_schemas).decode() == record[side], record["name"]


@pytest.mark.parametrize("name", [name for name in RECORDED if "envelope" not in name or "id4" not in name])
def test_every_recording_contains_the_same_rows(name: str) -> None:
    recording, whole = RECORDED[name], RECORDED["apicurio3-id4-envelope"]
    told_whole = [(record["name"], row_of(value_of(whole, record, table), table)) for record, table in told(whole)]

    found = [(record["name"], row_of(value_of(recording, record, table), table)) for record, table in told(recording)]

    if recording["shape"] == "flattened":
        told_whole = [(name, row) for name, row in told_whole if name.split()[-1] not in ("tombstone", "truncate")]
    if are_deletes_tombstones(recording):
        told_whole = [(name, None if name.endswith("delete") else row) for name, row in told_whole]
    assert found == told_whole


@pytest.mark.parametrize(("name", "transform"), [("json-schemas", UNWRAP), ("json-schemas-tombstones", AS_TOMBSTONES)])
def test_unwrapped_events_equal_the_recorded_flattened_records(name: str, transform: Unwrap) -> None:
    whole, flattened = RECORDED["json-schemas-envelope"], RECORDED[f"{name}-flattened"]
    made = []
    for record, table in told(whole):
        schema, event = wire.envelope(table), value_of(whole, record, table)
        if event is not None and event["source"]["snapshot"] == "false":
            event["source"]["snapshot"] = None  # the converter set the default, after the transform
        made += [(record["name"], value) for value in transform.values(schema, event)]

    recorded = [(record["name"], value_of(flattened, record, table)) for record, table in told(flattened)]

    assert [(name, of_any_run(value)) for name, value in made] == [
        (name, of_any_run(value)) for name, value in recorded
    ]


def test_built_events_equal_the_recorded_ones() -> None:
    recording = RECORDED["confluent-id4-envelope"]
    of_the_run = ("ts_ms", "ts_us", "ts_ns", "txId", "lsn", "sequence", "snapshot")
    for record, table in told(recording):
        if record["value"] is not None:
            value = value_of(recording, record, table)
            source = {name: value["source"][name] for name in of_the_run}

            built = wire.event(
                table, value["op"], before=value["before"], after=value["after"], ts_ms=value["ts_ms"], source=source
            )

            stamps = {"ts_us": value["ts_us"], "ts_ns": value["ts_ns"]}
            assert wire.filled(wire.envelope(table), {**built, **stamps}) == value, record["name"]


def test_missing_field_is_null_and_null_becomes_the_default() -> None:
    row = wire.filled(ITEM_LATER.row, {"id": 1, "name": "a", "stock": None, "seen_at": "x"})

    assert (row["price"], row["stock"], row["colour"], row["note"]) == (b"\1\xf3", 3, "none", None)
    assert wire.avro_record(LABEL.key, {"item_id": 1, "language": "en"}) == b"\2\4en"
    assert wire.avro_record(wire.struct("a.B", ADDED), {"colour": None}) == b"\0\x08none"
    with pytest.raises(AssertionError, match="nmae"):
        wire.filled(ITEM.row, {"id": 1, "nmae": "a"})


def of_any_run(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return value and {name: None if name in OF_THE_RUN else field for name, field in value.items()}


def test_deleted_row_is_filled_as_recorded() -> None:
    recording = RECORDED["apicurio3-id4-envelope"]
    deletes = {
        (record["topic"], record["name"]): (value["before"], table)
        for record, table in told(recording)
        if (value := value_of(recording, record, table)) and value["op"] == "d"
    }

    assert len(deletes) == 3
    for before, table in deletes.values():
        built = table.deleted(**{name: before[name] for name in table.keys})
        assert wire.filled(table.row, built) == before


def test_unsent_values_have_the_recorded_placeholders() -> None:
    recording = RECORDED["confluent-id4-envelope"]
    (after,) = (
        value_of(recording, record, table)["after"]
        for record, table in told(recording)
        if record["name"] == "update that leaves large values alone"
    )

    large = ("note", "details", "picture", "tags")
    assert {name: after[name] for name in large} == {name: wire.unavailable(COLUMNS[name]) for name in large}


def test_recordings_contain_no_local_addresses_or_paths() -> None:
    for file in FILES:
        recording = RECORDED[file.stem]
        in_hex = [value for record in recording["records"] for _, value in record["headers"]]
        if recording["format"] == "avro":
            in_hex += [record[side] or "" for record in recording["records"] for side in SIDES]
        hidden = "".join(bytes.fromhex(part).decode("latin-1") for part in in_hex)

        text = file.read_text(encoding="utf-8").replace("{registry}", "") + hidden
        assert [word for word in ("127.0.0.1", "localhost", "://", "/tmp", "/root") if word in text] == [], file.name


BODY = b"\x00\x02body"
GUID = "00112233-4455-6677-8899-aabbccddeeff"
GUID_BYTES = uuid.UUID(GUID).bytes
BY_HAND: list[tuple[Frame, str | None, bytes, wire.Headers]] = [
    ("id4", "contentId:258", b"\0\0\0\1\2" + BODY, []),
    ("id4", "id:4294967295", b"\0\xff\xff\xff\xff" + BODY, []),
    ("id8", "globalId:258", b"\0\0\0\0\0\0\0\1\2" + BODY, []),
    ("confluent", f"guid:{GUID}", BODY, [("__value_schema_id", b"\1" + GUID_BYTES)]),
    ("glue", f"glue:{GUID}", b"\3\0" + GUID_BYTES + BODY, []),
    ("glue-zlib", f"glue:{GUID}", b"\3\5" + GUID_BYTES + zlib.compress(BODY), []),
    ("single-object", "crc:8f5c393f1ad57572", b"\xc3\1\x8f\x5c\x39\x3f\x1a\xd5\x75\x72" + BODY, []),
    (
        "apicurio",
        "globalId:258",
        BODY,
        [("apicurio.value.globalId", b"\0\0\0\0\0\0\1\2"), ("apicurio.value.encoding", b"BINARY")],
    ),
    (
        "apicurio",
        "contentHash:0a1b",
        BODY,
        [("apicurio.value.contentHash", b"0a1b"), ("apicurio.value.encoding", b"BINARY")],
    ),
    (
        "apicurio",
        "artifact:a%2Fb/shop.public.item-value/1%3A2",
        BODY,
        [
            ("apicurio.value.groupId", b"a/b"),
            ("apicurio.value.artifactId", b"shop.public.item-value"),
            ("apicurio.value.version", b"1:2"),
            ("apicurio.value.encoding", b"BINARY"),
        ],
    ),
    ("bare", None, b"\2body", []),
]


@pytest.mark.parametrize(("frame", "reference", "data", "headers"), BY_HAND)
def test_frames_match_their_specifications(
    frame: Frame, reference: str | None, data: bytes, headers: wire.Headers
) -> None:
    body = data if frame == "bare" else BODY
    kind = (reference or "").partition(":")[0]

    assert wire.framed(frame, reference, body, "value") == (data, headers)
    assert wire.opened(data, headers, "value", kind) == (frame, reference, body)


def test_every_frame_is_tested() -> None:
    assert {frame for frame, *_ in BY_HAND} == set(get_args(Frame))


def test_headers_of_the_other_side_name_no_schema() -> None:
    _, headers = wire.framed("apicurio", "contentId:1", BODY, "key")

    assert [name for name, _ in headers] == ["apicurio.key.contentId", "apicurio.key.encoding"]
    assert wire.opened(b"\2body", headers, "value").frame == "bare"


def test_fingerprint_matches_the_avro_specification() -> None:
    assert wire.crc_reference("int") == "crc:8f5c393f1ad57572"
    assert wire.crc_reference({"type": "int", "connect.default": 0}) == "crc:8f5c393f1ad57572"


@pytest.mark.parametrize(
    ("debezium", "fields", "version"),
    [
        ((1, 0), "before after source op ts_ms", None),
        ((1, 9), "before after source op ts_ms transaction", None),
        ((2, 5), "before after source op ts_ms transaction", 1),
        ((2, 6), "before after source op ts_ms ts_us ts_ns transaction", 2),
        ((2, 7), "before after source transaction op ts_ms ts_us ts_ns", 2),
        ((3, 6), "before after source transaction op ts_ms ts_us ts_ns", 2),
    ],
)
def test_envelopes_have_the_fields_of_their_debezium_version(
    debezium: wire.Version, fields: str, version: int | None
) -> None:
    schema = wire.envelope(LABEL, debezium)

    assert list(wire.fields_of(schema)) == fields.split()
    assert schema.get("version") == version
    fastavro.parse_schema(wire.avro_schema(schema))


@pytest.mark.parametrize(
    ("debezium", "fields", "markers"),
    [
        ((1, 4), "schema table txId lsn xmin", "true,last,false"),
        ((1, 6), "sequence schema table txId lsn xmin", "true,last,false,incremental"),
        ((2, 7), "sequence ts_us ts_ns schema table txId lsn xmin", "true,last,false,incremental"),
        ((3, 5), "sequence ts_us ts_ns schema table txId lsn xmin origin origin_lsn", None),
    ],
)
def test_source_block_has_the_fields_of_its_debezium_version(
    debezium: wire.Version, fields: str, markers: str | None
) -> None:
    schema = wire.fields_of(wire.postgres_source(debezium))

    assert list(schema) == ["version", "connector", "name", "ts_ms", "snapshot", "db", *fields.split()]
    assert markers in (None, schema["snapshot"]["parameters"]["allowed"])


@pytest.mark.parametrize(
    ("debezium", "name", "version"),
    [((1, 9), "io.confluent.connect.avro.ConnectDefault", None), ((2, 0), "event.block", 1)],
)
def test_transaction_block_has_the_name_of_its_version(debezium: wire.Version, name: str, version: int | None) -> None:
    block = wire.fields_of(wire.envelope(LABEL, debezium))["transaction"]
    avro = wire.avro_schema(block)[1]

    assert f"{avro['namespace']}.{avro['name']}" == name
    assert avro.get("connect.version") == version


def flattened_names(transform: Unwrap) -> Sequence[str]:
    return list(wire.fields_of(transform.schema(wire.envelope(LABEL, transform.debezium))))[len(LABEL.columns) :]


@pytest.mark.parametrize(
    ("transform", "names"),
    [
        (Unwrap(), "__deleted"),
        (Unwrap(["op", "lsn"]), "__deleted __op __lsn"),
        (Unwrap(["op", "lsn"], debezium=(2, 4)), "__op __lsn __deleted"),
        (Unwrap(["op", "source.ts_ms", "ts_ms"], deletes="drop"), "__op __source_ts_ms __ts_ms"),
        (Unwrap(["op", "source.lsn:position"], prefix="", deletes="tombstone"), "op position"),
        (Unwrap(["total_order", "transaction.id"], prefix="cdc."), "__deleted cdc.total_order cdc.transaction_id"),
        (Unwrap(["op", "ts_ns", "nothing"], debezium=(2, 5)), "__deleted __op"),
    ],
)
def test_transform_adds_the_configured_fields(transform: Unwrap, names: str) -> None:
    assert flattened_names(transform) == names.split()


@pytest.mark.parametrize(
    ("transform", "delete", "tombstone"),
    [
        (Unwrap(deletes="drop"), [], []),
        (Unwrap(deletes="tombstone"), [None], []),
        (Unwrap(deletes="rewrite"), [{"item_id": 1, "__deleted": "true"}], []),
        (Unwrap(deletes="rewrite", tombstones=True), [{"item_id": 1, "__deleted": "true"}], [None]),
    ],
)
def test_deletes_follow_the_transform_settings(transform: Unwrap, delete: list[Any], tombstone: list[Any]) -> None:
    schema = wire.envelope(LABEL)

    assert transform.values(schema, {"before": {"item_id": 1}, "after": None, "op": "d"}) == delete
    assert transform.values(schema, None) == tombstone
    assert transform.values(schema, {"before": None, "after": None, "op": "t"}) == []


@pytest.mark.parametrize(
    ("number", "data"), [(0, b"\0"), (127, b"\x7f"), (128, b"\0\x80"), (-1, b"\xff"), (-128, b"\x80"), (499, b"\1\xf3")]
)
def test_unscaled_number_uses_as_few_bytes_as_java(number: int, data: bytes) -> None:
    assert wire.unscaled(number) == data
