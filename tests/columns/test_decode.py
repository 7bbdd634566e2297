"""Records that cannot be decoded: each is quarantined with its stage, and adjacent records are not affected."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from support import wire
from support.events import OPTIONAL_STRING, FakeRegistry, Record, Topic, body, control, framed
from support.lake import Cases

pytestmark = pytest.mark.core

COLUMNS = {"name": "string", "note": OPTIONAL_STRING}
ROW = {"name": "a name", "note": "a note"}
OK = ("ok", None)
UNDECODABLE = ("quarantined", "decode")
UNKNOWN = ("quarantined", "lookup")
UNTYPED = ("quarantined", "type")
CONTROL = ("control", None)
CASES = Cases()

Found = Callable[..., list[Row]]


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Found:
    return CASES.decided(spark)


def said(rows: list[Row]) -> list[tuple[str, str | None]]:
    """Status and stage of each record."""
    return [(row["status"], row["error"] and row["error"]["stage"]) for row in rows]


def broken_bodies(registry: FakeRegistry, flat: bool) -> dict[str, bytes]:
    """Records that are not a row of the first schema, by the reason."""
    now = Topic(COLUMNS, registry=registry, flat=flat)
    older = Topic({"name": "string"}, registry=registry, flat=flat)
    newer = Topic({**COLUMNS, "extra": OPTIONAL_STRING}, registry=registry, flat=flat)
    whole = now.change("u", 1, ROW).value[5:]
    return {
        "written by an older schema": older.change("u", 1, {"name": "a"}).value[5:],
        "written by a newer schema": newer.change("u", 1, ROW | {"extra": "x"}).value[5:],
        "one byte more": whole + b"\0",
        "garbage": b"\xff" * 40,
        "zeros": b"\0" * 40,
        "text": b'{"id": 1}',
        **{f"cut after {length} bytes": whole[:length] for length in range(1, len(whole))},
    }


@CASES.of(False, True)
def a_broken_body_behind_each_whole_one(registry: FakeRegistry, flat: bool) -> list[Record]:
    here = Topic(COLUMNS, registry=registry, flat=flat)
    good = here.change("u", 1, ROW)
    broken = [here.record(good.key, framed(here.value_id, avro)) for avro in broken_bodies(registry, flat).values()]
    return [good, *(record for bad in broken for record in (bad, good))]


@pytest.mark.parametrize("flat", [False, True])
def test_body_with_trailing_bytes_quarantines_only_that_record(found: Found, flat: bool) -> None:
    rows = found(a_broken_body_behind_each_whole_one, flat)
    bad = broken_bodies(FakeRegistry(), flat)

    assert dict(zip(bad, said(rows[1::2]), strict=True)) == dict.fromkeys(bad, UNDECODABLE)
    assert {r["op"] for r in rows[1::2]} == {None}
    assert {r["source_position"] for r in rows[1::2]} == {None}
    assert {(r["status"], r["op"], r["canonical_key"]) for r in rows[::2]} == {("ok", "u", '{"id":1}')}
    assert {r["canonical_key"] for r in rows[1::2]} == {'{"id":1}'}


@CASES.of()
def a_wrong_schema(registry: FakeRegistry) -> list[Record]:
    wide = Topic({"a": "int", "b": "int"}, registry=registry, flat=True)
    narrow = Topic({"a": "int"}, registry=registry, flat=True)
    values = wide.change("u", 1, {"a": 2, "b": 0})
    return [values, wide.record(values.key, framed(narrow.value_id, values.value[5:]))]


def test_wrong_schema_that_decodes_is_found_by_trailing_bytes(found: Found) -> None:
    assert said(found(a_wrong_schema)) == [OK, UNDECODABLE]


@CASES.of()
def broken_keys(registry: FakeRegistry) -> list[Record]:
    here = Topic(COLUMNS, registry=registry)
    good = here.change("u", 1, ROW)
    keys = [good.key + b"\0", good.key[:-1] + b"\x80", framed(here.value_id, good.key[5:])]
    return [good, *(here.record(key, good.value) for key in keys)]


def test_undecodable_key_quarantines_its_record(found: Found) -> None:
    rows = found(broken_keys)

    assert said(rows) == [OK] + [UNDECODABLE] * 3
    assert all(r["error"]["message"].startswith("key: ") for r in rows[1:])
    assert [r["canonical_key"] for r in rows] == ['{"id":1}', None, None, None]


@CASES.of()
def unknown_schemas(registry: FakeRegistry) -> list[Record]:
    here = Topic(COLUMNS, registry=registry)
    good = here.change("u", 1, ROW)
    hostile = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}
    return [
        good,
        here.record(good.key, framed(4711, good.value[5:])),
        here.record(good.key, framed(0xFFFFFFFF, good.value[5:])),
        here.record(good.key, framed(registry.add(json.dumps(hostile)), b"\0")),
        here.record(framed(4711, b"\x02"), good.value),
        here.record(framed(4711, b"\x02"), None),
    ]


def test_record_with_unknown_or_refused_schema_is_quarantined(found: Found) -> None:
    rows = found(unknown_schemas)

    assert said(rows) == [OK] + [UNKNOWN] * 5
    assert "4711" in rows[1]["error"]["message"]
    assert "4294967295" in rows[2]["error"]["message"]
    assert "contains itself" in rows[3]["error"]["message"]
    assert rows[4]["error"]["message"].startswith("key: ")


@CASES.of()
def headers_that_name_the_schema(registry: FakeRegistry) -> list[Record]:
    here = Topic(COLUMNS, registry=registry)
    good = here.change("u", 1, ROW)
    by_id = [("apicurio.value.contentId", here.value_id.to_bytes(8, "big")), ("apicurio.value.encoding", b"BINARY")]
    return [
        here.record(good.key, good.value[5:], by_id),
        here.record(good.key, good.value, by_id),
        here.record(good.key, good.value, [("__debezium.newkey", b"{}"), ("apicurio.value.encoding", b"BINARY")]),
    ]


def test_headers_take_precedence_over_the_first_bytes(found: Found) -> None:
    """A bare envelope begins like a frame: with the zero byte of `before`'s null."""
    assert said(found(headers_that_name_the_schema)) == [OK, UNDECODABLE, OK]


@CASES.of()
def frames_without_a_body(registry: FakeRegistry) -> list[Record]:
    here = Topic(COLUMNS, registry=registry)
    good = here.change("u", 1, ROW)
    return [here.record(good.key[:5], good.value), here.record(good.key, good.value[:5])]


def test_frame_without_body_is_quarantined(found: Found) -> None:
    assert [row["status"] for row in found(frames_without_a_body)] == ["quarantined"] * 2


@CASES.of()
def strange_ops(registry: FakeRegistry) -> list[Record]:
    here = Topic(COLUMNS, registry=registry)
    return [here.change(op, 1, ROW) for op in ("x", "U", "", "c")]


def test_unknown_op_is_kept_and_quarantined(found: Found) -> None:
    rows = found(strange_ops)

    assert said(rows) == [UNTYPED, UNTYPED, UNTYPED, OK]
    assert [row["op"] for row in rows] == ["x", "U", "", "c"]


@CASES.of()
def an_event_without_op(registry: FakeRegistry) -> list[Record]:
    here = Topic(COLUMNS, registry=registry)
    schema = json.loads(here.value_text)
    next(field for field in schema["fields"] if field["name"] == "op")["type"] = OPTIONAL_STRING
    text = json.dumps(schema)
    source = {**wire.postgres_values(here.table), "ts_ms": 1}
    value = body(text, wire.whole_event(None, None, None, source, None))
    return [here.record(here.key(1), framed(registry.add(text), value))]


def test_change_without_op_is_quarantined(found: Found) -> None:
    assert said(found(an_event_without_op)) == [UNTYPED]


@CASES.of()
def neither_key_nor_value(registry: FakeRegistry) -> list[Record]:
    here = Topic(COLUMNS, registry=registry)
    return [here.record(None, None), here.tombstone(1)]


def test_record_without_key_and_value_is_quarantined(found: Found) -> None:
    """Case F4."""
    assert said(found(neither_key_nor_value)) == [UNTYPED, OK]


@CASES.of()
def no_keys(registry: FakeRegistry) -> list[Record]:
    here = Topic(COLUMNS, registry=registry)
    return [here.record(None, here.change("c", 1, ROW).value), here.change("t", lsn=5, ts_ms=7)]


def test_change_without_key_is_quarantined_but_truncate_is_not(found: Found) -> None:
    rows = found(no_keys)

    assert [r["key"] for r in rows] == [None, None]
    assert [(r["status"], r["error"] and r["error"]["code"], r["op"], r["canonical_key"]) for r in rows] == [
        ("quarantined", "no_key", "c", None),
        ("ok", None, "t", None),
    ]
    assert (rows[1]["source_position"], rows[1]["source_ts_ms"]) == ([5], 7)


CONTROLS: dict[str, dict[str, Any]] = {
    "common.Heartbeat": {"ts_ms": 1},
    "common.TransactionMetadataValue": {"status": "BEGIN", "id": "1:2"},
    "common.Notification": {"id": "x", "type": "COMPLETED"},
    "mysql.SchemaChangeValue": {"ddl": "x"},
    "sqlserver.SchemaChangeValue": {"ddl": "x"},
    "oracle.SchemaChangeValue": {"ddl": "x"},
    "postgresql.MessageValue": {"op": "m", "ts_ms": 1},
}
"""Records of a connector that are not changes of a table."""


def controls(here: Topic) -> list[Record]:
    """One record of each kind."""
    return [here.record(*control(here.registry, name, content)) for name, content in CONTROLS.items()]


@CASES.of(False, True)
def controls_between_changes(registry: FakeRegistry, flat: bool) -> list[Record]:
    here = Topic(COLUMNS, registry=registry, flat=flat)
    return [here.change("u", 1, ROW), *controls(here), here.change("u", 2, ROW)]


@pytest.mark.parametrize("flat", [False, True])
def test_records_of_no_table_are_control_records_in_both_shapes(found: Found, flat: bool) -> None:
    """Case F3."""
    rows = found(controls_between_changes, flat)

    assert [(r["status"], r["error"]) for r in rows] == [OK, *[CONTROL] * len(CONTROLS), OK]
    assert [r["op"] for r in rows] == ["u", *[None] * (len(CONTROLS) - 1), "m", "u"]
    assert {r["source_ts_ms"] for r in rows[1:-1]} == {None}


@CASES.of()
def broken_controls(registry: FakeRegistry) -> list[Record]:
    here = Topic(COLUMNS, registry=registry)
    change = here.change("u", 1, ROW)
    ids = [int.from_bytes(control.value[1:5], "big") for control in controls(here)]
    return [here.record(change.key, framed(schema_id, change.value[5:])) for schema_id in ids]


def test_control_record_with_trailing_bytes_is_quarantined(found: Found) -> None:
    assert said(found(broken_controls)) == [UNDECODABLE] * len(CONTROLS)


@CASES.of(False, True)
def signals(registry: FakeRegistry, flat: bool) -> list[Record]:
    table = {"table": "pagila.public.debezium_signal", "keys": {"id": "string"}}
    here = Topic({"type": "string"}, registry=registry, flat=flat, **table)
    window = {"type": "snapshot-window-open"}
    return [here.change("c", "a", window), here.change("d", "a", window), here.tombstone("a")]


@pytest.mark.parametrize("flat", [False, True])
def test_rows_of_signal_table_are_control_records_with_their_op(found: Found, flat: bool) -> None:
    assert [(r["status"], r["error"], r["op"]) for r in found(signals, flat)] == [
        (*CONTROL, "c"),
        (*CONTROL, "d"),
        (*CONTROL, "tombstone"),
    ]


@CASES.of()
def a_schema_called_like_signals(registry: FakeRegistry) -> list[Record]:
    here = Topic(COLUMNS, registry=registry, table="pagila.debezium_signal.thing")
    return [here.change("c", 1, ROW), here.tombstone(1)]


def test_table_in_schema_named_like_signal_table_is_a_table(found: Found) -> None:
    assert said(found(a_schema_called_like_signals)) == [OK, OK]


MARKERS = ("true", "last", "first", "first_in_data_collection", "last_in_data_collection", "incremental", "invented")


@CASES.of(False, True)
def marked(registry: FakeRegistry, flat: bool) -> list[Record]:
    here = Topic(COLUMNS, registry=registry, flat=flat)
    records = [here.change(op, 1, ROW, snapshot=marker) for marker in MARKERS for op in ("r", "c", "u")]
    return records + [here.change("u", 1, ROW, snapshot=marker) for marker in ("false", None)]


@pytest.mark.parametrize("flat", [False, True])
def test_snapshot_marker_is_kept_and_false_or_null_is_streaming(found: Found, flat: bool) -> None:
    rows = found(marked, flat)

    assert [(r["op"], r["snapshot"]) for r in rows[:-2]] == [(op, m) for m in MARKERS for op in ("r", "c", "u")]
    assert [r["snapshot"] for r in rows[-2:]] == [None, None]


@CASES.of()
def a_flat_table_like_an_envelope(registry: FakeRegistry) -> list[Record]:
    columns = {name: OPTIONAL_STRING for name in ("op", "source", "before", "after", "ts_ms", "transaction")}
    here = Topic(columns, registry=registry, flat=True)
    return [here.change("u", 1, {"op": "d", "source": "s", "before": "b"}, lsn=5, ts_ms=7), here.change("d", 1)]


def test_flat_table_with_envelope_column_names_stays_flat(found: Found) -> None:
    """Case N14."""
    change, delete = found(a_flat_table_like_an_envelope)

    assert (change["status"], change["op"], change["source_ts_ms"], change["source_position"]) == ("ok", "u", 7, [5])
    assert (delete["status"], delete["op"]) == ("ok", "d")


def flat_row(registry: FakeRegistry, name: str, kind: Any, value: Any) -> Record:
    """A row of an id and one other column, without fields of a transform."""
    here = Topic(COLUMNS, registry=registry)
    fields = [{"name": "id", "type": "int"}, {"name": name, "type": kind}]
    text = json.dumps({"type": "record", "name": "pagila.public.thing.Value", "fields": fields})
    return here.record(here.key(1), framed(registry.add(text), body(text, {"id": 1, name: value})))


@CASES.of()
def without_added_fields(registry: FakeRegistry) -> list[Record]:
    return [flat_row(registry, "name", "string", "x")]


def test_flat_row_without_added_fields_is_update_without_order(found: Found) -> None:
    """Case F5."""
    (row,) = found(without_added_fields)

    assert (row["status"], row["op"], row["source_ts_ms"], row["source_position"]) == ("ok", "u", None, None)


DELETE_MARKS = [
    ("string", "true", "d"),
    ("string", "TRUE", "d"),
    ("string", "false", "u"),
    ("boolean", True, "d"),
    ("boolean", False, "u"),
    (OPTIONAL_STRING, None, "u"),
]


@CASES.of()
def marked_as_deleted(registry: FakeRegistry) -> list[Record]:
    return [flat_row(registry, "__deleted", kind, mark) for kind, mark, _ in DELETE_MARKS]


def test_flat_delete_is_recognized_by_any_delete_mark_type(found: Found) -> None:
    assert [(row["status"], row["op"]) for row in found(marked_as_deleted)] == [("ok", op) for *_, op in DELETE_MARKS]
