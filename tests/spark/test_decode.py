"""Bytes that are not what they say: each becomes a quarantined row with the stage, and its neighbours stay whole."""

import json
from typing import Any

import pytest
from events import OPTIONAL_STRING, FakeRegistry, Record, Topic, body, framed, key_schema
from lake import by_offset, decided
from pyspark.sql import SparkSession

from cdc_lake.events.arrival import with_log_order

COLUMNS = {"name": "string", "note": OPTIONAL_STRING}
ROW = {"name": "a name", "note": "a note"}


def topic(columns: dict[str, Any] = COLUMNS, registry: FakeRegistry | None = None, **more: Any) -> Topic:
    return Topic(columns, registry=registry, **more)


def said(spark: SparkSession, registry: FakeRegistry, records: list[Record]) -> list[tuple[str, str | None]]:
    """Status and stage of each record."""
    return [
        (row["status"], row["error"] and row["error"]["stage"]) for row in by_offset(decided(spark, registry, records))
    ]


OK = ("ok", None)
UNDECODABLE = ("quarantined", "decode")
UNKNOWN = ("quarantined", "lookup")
UNFRAMED = ("quarantined", "frame")
UNTYPED = ("quarantined", "type")
CONTROL = ("control", None)


@pytest.mark.parametrize("flat", [False, True])
def test_a_body_that_its_schema_does_not_consume_exactly_is_quarantined_and_its_neighbours_are_not(
    spark: SparkSession, flat: bool
) -> None:
    now = topic(flat=flat)
    older = topic({"name": "string"}, now.registry, flat=flat)
    newer = topic({**COLUMNS, "extra": OPTIONAL_STRING}, now.registry, flat=flat)
    good = now.change("u", 1, ROW)
    assert good.value is not None
    whole = good.value[5:]
    bad = {
        "written by an older schema": older.change("u", 1, {"name": "a"}).value[5:],
        "written by a newer schema": newer.change("u", 1, ROW | {"extra": "x"}).value[5:],
        "one byte more": whole + b"\0",
        "garbage": b"\xff" * 40,
        "zeros": b"\0" * 40,
        "text": b'{"id": 1}',
        **{f"cut after {length} bytes": whole[:length] for length in range(1, len(whole))},
    }
    records = [good]
    for avro in bad.values():
        records += [now.record(good.key, framed(now.value_id, avro)), now.again(good)]

    found = by_offset(decided(spark, now.registry, records))

    outcome = {
        name: (r["status"], r["error"] and r["error"]["stage"]) for name, r in zip(bad, found[1::2], strict=True)
    }
    assert outcome == dict.fromkeys(bad, UNDECODABLE)
    assert {r["op"] for r in found[1::2]} == {None}
    assert {r["source_position"] for r in found[1::2]} == {None}
    assert {(r["status"], r["op"], r["canonical_key"]) for r in found[::2]} == {("ok", "u", '{"id":1}')}
    assert {r["canonical_key"] for r in found[1::2]} == {'{"id":1}'}


def test_a_wrong_schema_that_reads_the_bytes_by_chance_is_found_by_the_bytes_left_over(spark: SparkSession) -> None:
    wide = topic({"a": "int", "b": "int"}, flat=True)
    narrow = topic({"a": "int"}, wide.registry, flat=True)
    values = wide.change("u", 1, {"a": 2, "b": 0})

    found = said(
        spark,
        wide.registry,
        [values, wide.record(values.key, framed(narrow.value_id, values.value[5:]))],
    )

    assert found == [OK, UNDECODABLE]


def test_a_key_that_does_not_decode_quarantines_its_record(spark: SparkSession) -> None:
    here = topic()
    good = here.change("u", 1, ROW)
    keys = [good.key + b"\0", good.key[:-1] + b"\x80", framed(here.value_id, good.key[5:])]

    rows = by_offset(decided(spark, here.registry, [good, *(here.record(key, good.value) for key in keys)]))

    assert [(r["status"], r["error"] and r["error"]["stage"]) for r in rows] == [OK] + [UNDECODABLE] * 3
    assert all(r["error"]["message"].startswith("key: ") for r in rows[1:])
    assert [r["canonical_key"] for r in rows] == ['{"id":1}', None, None, None]


def test_a_record_whose_schema_is_unknown_or_refused_is_quarantined_at_the_look_up(spark: SparkSession) -> None:
    here = topic()
    good = here.change("u", 1, ROW)
    hostile = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}
    refused = here.registry.add(json.dumps(hostile))

    rows = by_offset(
        decided(
            spark,
            here.registry,
            [
                good,
                here.record(good.key, framed(4711, good.value[5:])),
                here.record(good.key, framed(0xFFFFFFFF, good.value[5:])),
                here.record(good.key, framed(refused, b"\0")),
                here.record(framed(4711, b"\x02"), good.value),
                here.record(framed(4711, b"\x02"), None),
            ],
        )
    )

    assert [(r["status"], r["error"] and r["error"]["stage"]) for r in rows] == [OK] + [UNKNOWN] * 5
    assert "4711" in rows[1]["error"]["message"]
    assert "4294967295" in rows[2]["error"]["message"]
    assert "contains itself" in rows[3]["error"]["message"]
    assert rows[4]["error"]["message"].startswith("key: ")


def test_what_the_headers_say_comes_before_the_first_bytes(spark: SparkSession) -> None:
    """A bare envelope begins like a frame: with the zero byte of `before`'s null."""
    here = topic()
    good = here.change("u", 1, ROW)
    by_id = [("apicurio.value.contentId", here.value_id.to_bytes(8, "big")), ("apicurio.value.encoding", b"BINARY")]
    records = [
        here.record(good.key, good.value[5:], by_id),
        here.record(good.key, good.value, by_id),
        here.record(good.key, good.value, [("__debezium.newkey", b"{}"), ("apicurio.value.encoding", b"BINARY")]),
    ]

    assert said(spark, here.registry, records) == [OK, UNDECODABLE, OK]


@pytest.mark.parametrize("side", ["key", "value"])
def test_a_frame_without_a_body_is_quarantined(spark: SparkSession, side: str) -> None:
    here = topic()
    good = here.change("u", 1, ROW)
    empty = here.record(good.key[:5], good.value) if side == "key" else here.record(good.key, good.value[:5])

    ((status, _stage),) = said(spark, here.registry, [empty])

    assert status == "quarantined"


def test_an_op_that_is_not_known_is_kept_as_sent_and_quarantined(spark: SparkSession) -> None:
    here = topic()

    strange, upper, empty, good = by_offset(
        decided(
            spark,
            here.registry,
            [here.change("x", 1, ROW), here.change("U", 1, ROW), here.change("", 1, ROW), here.change("c", 1, ROW)],
        )
    )

    assert [(r["status"], r["error"]["stage"], r["op"]) for r in (strange, upper, empty)] == [
        (*UNTYPED, "x"),
        (*UNTYPED, "U"),
        (*UNTYPED, ""),
    ]
    assert (good["status"], good["op"]) == ("ok", "c")


def test_a_change_that_says_no_op_is_quarantined(spark: SparkSession) -> None:
    registry = FakeRegistry()
    here = topic(COLUMNS, registry)
    schema = json.loads(here.value_text)
    next(field for field in schema["fields"] if field["name"] == "op")["type"] = OPTIONAL_STRING
    text = json.dumps(schema)
    source = {**dict.fromkeys(("version", "connector", "name", "db", "schema", "table"), "x"), "ts_ms": 1}
    value = framed(registry.add(text), body(text, {"before": None, "after": None, "source": source, "op": None}))

    ((status, stage),) = said(spark, registry, [here.record(here.key(1), value)])

    assert (status, stage) == UNTYPED


def test_a_record_without_key_and_value_is_quarantined(spark: SparkSession) -> None:
    """Case F4."""
    here = topic()

    rows = by_offset(decided(spark, here.registry, [here.record(None, None), here.tombstone(1)]))

    assert [(r["status"], r["error"] and r["error"]["stage"]) for r in rows] == [UNTYPED, OK]


def test_a_change_without_a_key_is_quarantined_and_a_truncate_is_not(spark: SparkSession) -> None:
    here = topic()
    change, truncate = here.record(None, here.change("c", 1, ROW).value), here.change("t", lsn=5, ts_ms=7)

    rows = by_offset(decided(spark, here.registry, [change, truncate]))

    assert truncate.key is None
    assert [(r["status"], r["error"] and r["error"]["code"], r["op"], r["canonical_key"]) for r in rows] == [
        ("quarantined", "no_key", "c", None),
        ("ok", None, "t", None),
    ]
    assert (rows[1]["source_position"], rows[1]["source_ts_ms"]) == ([5], 7)


def control_records(here: Topic) -> dict[str, Record]:
    """What a connector sends beside the changes of tables, by its name."""
    key_id = here.registry.add(key_schema({"serverName": "string"}, "io.debezium.connector.common"))
    key = framed(key_id, body(here.registry.texts[key_id], {"serverName": "pagila"}))
    values = {
        "common.Heartbeat": {"ts_ms": 1},
        "common.TransactionMetadataValue": {"status": "BEGIN", "id": "1:2"},
        "common.Notification": {"id": "x", "type": "COMPLETED"},
        "mysql.SchemaChangeValue": {"ddl": "x"},
        "sqlserver.SchemaChangeValue": {"ddl": "x"},
        "oracle.SchemaChangeValue": {"ddl": "x"},
        "postgresql.MessageValue": {"op": "m", "ts_ms": 1},
    }
    found = {}
    for name, value in values.items():
        fields = [{"name": f, "type": "long" if isinstance(v, int) else "string"} for f, v in value.items()]
        text = json.dumps({"type": "record", "name": f"io.debezium.connector.{name}", "fields": fields})
        found[name] = here.record(key, framed(here.registry.add(text), body(text, value)))
    return found


@pytest.mark.parametrize("flat", [False, True])
def test_records_that_concern_no_table_are_control_records_in_both_shapes(spark: SparkSession, flat: bool) -> None:
    """Case F3."""
    here = topic(flat=flat)
    first, control, last = here.change("u", 1, ROW), control_records(here), here.change("u", 2, ROW)

    rows = by_offset(decided(spark, here.registry, [first, *control.values(), last]))

    assert [(r["status"], r["error"]) for r in rows] == [OK, *[CONTROL] * len(control), OK]
    assert [r["op"] for r in rows] == ["u", *[None] * (len(control) - 1), "m", "u"]
    assert {r["source_ts_ms"] for r in rows[1:-1]} == {None}


def test_a_control_record_that_its_schema_does_not_consume_exactly_is_quarantined(spark: SparkSession) -> None:
    here = topic()
    change = here.change("u", 1, ROW)
    records = [
        here.record(change.key, framed(int.from_bytes(control.value[1:5], "big"), change.value[5:]))
        for control in control_records(here).values()
    ]

    found = said(spark, here.registry, records)

    assert found == [UNDECODABLE] * len(records)


@pytest.mark.parametrize("flat", [False, True])
def test_rows_of_the_signal_table_are_control_records_with_the_op_they_have(spark: SparkSession, flat: bool) -> None:
    signals = topic({"type": "string"}, table="pagila.public.debezium_signal", keys={"id": "string"}, flat=flat)
    window = {"type": "snapshot-window-open"}
    records = [signals.change("c", "a", window), signals.change("d", "a", window), signals.tombstone("a")]

    rows = by_offset(decided(spark, signals.registry, records))

    assert [(r["status"], r["error"], r["op"]) for r in rows] == [
        (*CONTROL, "c"),
        (*CONTROL, "d"),
        (*CONTROL, "tombstone"),
    ]


def test_a_table_in_a_schema_named_like_the_signal_table_is_a_table(spark: SparkSession) -> None:
    here = topic(table="pagila.debezium_signal.thing")

    assert said(spark, here.registry, [here.change("c", 1, ROW), here.tombstone(1)]) == [OK, OK]


@pytest.mark.parametrize("flat", [False, True])
def test_a_snapshot_marker_is_kept_as_sent_and_false_and_null_are_streaming(spark: SparkSession, flat: bool) -> None:
    here = topic(flat=flat)
    markers = [
        "true",
        "last",
        "first",
        "first_in_data_collection",
        "last_in_data_collection",
        "incremental",
        "invented",
    ]
    records = [here.change(op, 1, ROW, snapshot=marker) for marker in markers for op in ("r", "c", "u")]
    streaming = [here.change("u", 1, ROW, snapshot=marker) for marker in ("false", None)]

    rows = by_offset(decided(spark, here.registry, records + streaming))

    assert [(r["op"], r["snapshot"]) for r in rows[:-2]] == [(op, m) for m in markers for op in ("r", "c", "u")]
    assert [r["snapshot"] for r in rows[-2:]] == [None, None]


def test_a_delete_sent_as_two_empty_values_is_two_lone_tombstones(spark: SparkSession) -> None:
    """Case F2: the transform's own null value, then the connector's tombstone."""
    here = topic(flat=True)
    records = [here.change("c", 1, ROW), here.tombstone(1), here.tombstone(1), here.change("c", 1, ROW)]

    rows = by_offset(with_log_order(decided(spark, here.registry, records), {}))

    assert [(r["status"], r["op"], r["tombstone_of"]) for r in rows] == [
        ("ok", "c", None),
        ("ok", "tombstone", None),
        ("ok", "tombstone", None),
        ("ok", "c", None),
    ]


def test_a_flat_table_with_columns_named_like_an_envelope_s_is_a_flat_table(spark: SparkSession) -> None:
    """Case N14."""
    columns = {name: OPTIONAL_STRING for name in ("op", "source", "before", "after", "ts_ms", "transaction")}
    here = topic(columns, flat=True)

    change, delete = by_offset(
        decided(
            spark,
            here.registry,
            [here.change("u", 1, {"op": "d", "source": "s", "before": "b"}, lsn=5, ts_ms=7), here.change("d", 1)],
        )
    )

    assert (change["status"], change["op"], change["source_ts_ms"], change["source_position"]) == ("ok", "u", 7, [5])
    assert (delete["status"], delete["op"]) == ("ok", "d")


def test_a_flat_row_without_any_added_field_is_an_update_with_no_order_of_its_own(spark: SparkSession) -> None:
    """Case F5."""
    registry = FakeRegistry()
    here = topic(COLUMNS, registry)
    text = json.dumps(
        {
            "type": "record",
            "name": "pagila.public.thing.Value",
            "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}],
        }
    )
    value = framed(registry.add(text), body(text, {"id": 1, "name": "x"}))

    (row,) = by_offset(decided(spark, registry, [here.record(here.key(1), value)]))

    assert (row["status"], row["op"], row["source_ts_ms"], row["source_position"]) == ("ok", "u", None, None)


@pytest.mark.parametrize(
    ("kind", "sent", "op"),
    [
        ("string", "true", "d"),
        ("string", "TRUE", "d"),
        ("string", "false", "u"),
        ("boolean", True, "d"),
        ("boolean", False, "u"),
        (OPTIONAL_STRING, None, "u"),
    ],
)
def test_a_flat_delete_is_told_by_its_mark_whatever_its_type(
    spark: SparkSession, kind: Any, sent: Any, op: str
) -> None:
    registry = FakeRegistry()
    here = topic(COLUMNS, registry)
    text = json.dumps(
        {
            "type": "record",
            "name": "pagila.public.thing.Value",
            "fields": [{"name": "id", "type": "int"}, {"name": "__deleted", "type": kind}],
        }
    )
    value = framed(registry.add(text), body(text, {"id": 1, "__deleted": sent}))

    (row,) = by_offset(decided(spark, registry, [here.record(here.key(1), value)]))

    assert (row["status"], row["op"]) == ("ok", op)
