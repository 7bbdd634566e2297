"""What becomes of each type of the source, from the connector's bytes to the table, read back by another reader."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from events import Topic, body, connect, decimal, framed
from lake import Lake, by_offset, decided
from pyspark.sql import SparkSession

from cdc_lake.events.schemas import SchemaError, parse
from cdc_lake.events.types import mapping

NAMED = "io.debezium.time."
CONNECT = "org.apache.kafka.connect.data."
UTC = dt.UTC
VARIABLE = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}
POINT = {
    "type": "record",
    "name": "Point",
    "namespace": "io.debezium.data.geometry",
    "fields": [
        {"name": "x", "type": "double"},
        {"name": "wkb", "type": ["null", "bytes"]},
        {"name": "srid", "type": ["null", "int"]},
    ],
    "connect.name": "io.debezium.data.geometry.Point",
}


def at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def micros(moment: dt.datetime) -> int:
    return (moment - at(1970, 1, 1)) // dt.timedelta(microseconds=1)


def days(day: dt.date) -> int:
    return (day - dt.date(1970, 1, 1)).days


def variable(unscaled: int, scale: int) -> dict[str, Any]:
    return {"scale": scale, "value": unscaled.to_bytes(17, "big", signed=True)}


MOMENTS = [
    at(1970, 1, 1),
    at(2000, 2, 29, 23, 59, 59, 500_000),
    at(1969, 12, 31, 23, 59, 59, 999_000),
    at(1899, 12, 31, 12, 0, 0, 1_000),
    at(1582, 10, 4, 1, 2, 3),
    at(1582, 10, 15),
    at(1, 1, 1),
    at(9999, 12, 31, 23, 59, 59, 999_000),
    at(2500, 1, 1),
]
DAYS = [moment.date() for moment in MOMENTS] + [dt.date(1900, 2, 28), dt.date(1582, 10, 10)]
OUT_OF_RANGE_DAYS = [-719_163, 2_932_897, 2**31 - 1, -(2**31), -2147472692, -2147472691, -622191234, -625821272]
FIRST, LAST = micros(at(1, 1, 1)), micros(at(9999, 12, 31, 23, 59, 59, 999_999))
INFINITIES = [9223372036825200000, -9223372036832400000, 2**63 - 1, -(2**63)]
DATES = [(days(day), day) for day in DAYS] + [(day, None) for day in OUT_OF_RANGE_DAYS]
MILLIS = [(micros(m) // 1000, m) for m in MOMENTS] + [
    (millis, None) for millis in (FIRST // 1000 - 1, LAST // 1000 + 1, *INFINITIES)
]
EXACT = [at(2001, 2, 3, 4, 5, 6, 123_456), at(1, 1, 1, 0, 0, 0, 1), at(9999, 12, 31, 23, 59, 59, 999_999)]
MICROS = [(micros(m), m) for m in MOMENTS + EXACT] + [(micro, None) for micro in (FIRST - 1, LAST + 1, *INFINITIES)]
NANOS = [
    (0, at(1970, 1, 1)),
    (1_999, at(1970, 1, 1, 0, 0, 0, 1)),
    (-1, at(1969, 12, 31, 23, 59, 59, 999_999)),
    (-1_000, at(1969, 12, 31, 23, 59, 59, 999_999)),
    (-1_001, at(1969, 12, 31, 23, 59, 59, 999_998)),
    (micros(at(2261, 1, 1)) * 1000, at(2261, 1, 1)),
    (micros(at(1678, 1, 1)) * 1000, at(1678, 1, 1)),
]
ZONED = [
    ("2022-09-10T16:46:03.905795Z", at(2022, 9, 10, 16, 46, 3, 905_795)),
    ("2022-09-10T16:46:03Z", at(2022, 9, 10, 16, 46, 3)),
    ("2022-09-10T16:46:03.5Z", at(2022, 9, 10, 16, 46, 3, 500_000)),
    ("2022-09-10T16:46:03.123456789Z", at(2022, 9, 10, 16, 46, 3, 123_456)),
    ("2022-09-10T16:46:03+05:30", at(2022, 9, 10, 11, 16, 3)),
    ("1582-10-04T00:00:00.000001Z", at(1582, 10, 4, 0, 0, 0, 1)),
    ("0001-01-01T00:00:00Z", at(1, 1, 1)),
    ("9999-12-31T23:59:59.999999Z", at(9999, 12, 31, 23, 59, 59, 999_999)),
    ("infinity", None),
    ("-infinity", None),
    ("+21016-11-04T06:51:30.123456Z", None),
    ("-4713-11-24T00:00:00Z", None),
    ("0000-01-01T00:00:00Z", None),
    ("", None),
]
TEXTS = ["", "plain", " padded ", "東京 🎬 é", "line\nbreak", '"quoted"', "\x00", "NaN", "null"]
WIDEST = "9" * 38


CASES: dict[str, tuple[Any, list[tuple[Any, Any]]]] = {
    "boolean": ("boolean", [(True, True), (False, False)]),
    "int16": ({"type": "int", "connect.type": "int16"}, [(n, n) for n in (0, -32768, 32767)]),
    "int": ("int", [(n, n) for n in (0, -(2**31), 2**31 - 1)]),
    "long": ("long", [(n, n) for n in (0, -(2**63), 2**63 - 1)]),
    "float": ("float", [(n, n) for n in (0.5, -1.25, float("inf"))]),
    "double": ("double", [(n, n) for n in (0.1, -1e300, float("inf"), float("-inf"))]),
    "string": ("string", [(text, text) for text in TEXTS]),
    "bytes": ("bytes", [(data, data) for data in (b"", b"\0", b"\xff\0\x80")]),
    "enum": (connect("string", "io.debezium.data.Enum"), [("PG-13", "PG-13"), ("not allowed", "not allowed")]),
    "json": (connect("string", "io.debezium.data.Json"), [("7", "7"), ('{"a": 1.50}', '{"a": 1.50}')]),
    "uuid": (connect("string", "io.debezium.data.Uuid"), [("6ba7b810-9dad-11d1-80b4-00c04fd430c8",) * 2]),
    "bits": (connect("bytes", "io.debezium.data.Bits"), [(b"\x05\x01", b"\x05\x01")]),
    "numeric_4_2": (
        decimal(4, 2),
        [(Decimal(text), Decimal(text)) for text in ("4.99", "0.00", "-0.01", "-99.99", "99.99", "0.10")],
    ),
    "numeric_38_0": (decimal(38, 0), [(Decimal(text), Decimal(text)) for text in (WIDEST, f"-{WIDEST}", "0")]),
    "numeric_38_38": (
        decimal(38, 38),
        [(Decimal(text), Decimal(text)) for text in (f"0.{WIDEST}", "-0." + "0" * 37 + "1")],
    ),
    "money": (decimal(64, 2), [(Decimal("922337203685477.58"),) * 2]),
    "variable_scale": (
        VARIABLE,
        [
            (variable(0, 0), "0"),
            (variable(0, 3), "0.000"),
            (variable(0, -3), "0"),
            (variable(5, 0), "5"),
            (variable(-5, 0), "-5"),
            (variable(5, 2), "0.05"),
            (variable(-5, 2), "-0.05"),
            (variable(12345, 2), "123.45"),
            (variable(-12345, 5), "-0.12345"),
            (variable(12, -3), "12000"),
            (variable(-12, -1), "-120"),
            (variable(int(WIDEST), 10), f"{WIDEST[:28]}.{WIDEST[:10]}"),
            (variable(1, 38), "0." + "0" * 37 + "1"),
            (variable(1, -40), "1" + "0" * 40),
        ],
    ),
    "date": (connect("int", f"{NAMED}Date"), DATES),
    "connect_date": (connect("int", f"{CONNECT}Date", logicalType="date"), DATES),
    "timestamp_of_millis": (connect("long", f"{NAMED}Timestamp"), MILLIS),
    "connect_timestamp": (connect("long", f"{CONNECT}Timestamp", logicalType="timestamp-millis"), MILLIS),
    "timestamp_of_micros": (connect("long", f"{NAMED}MicroTimestamp"), MICROS),
    "timestamp_of_nanos": (connect("long", f"{NAMED}NanoTimestamp"), NANOS),
    "timestamp_with_zone": (connect("string", f"{NAMED}ZonedTimestamp"), ZONED),
    "time_of_micros": (connect("long", f"{NAMED}MicroTime"), [(86_400_000_000, 86_400_000_000)]),
    "time_of_millis": (connect("int", f"{CONNECT}Time", logicalType="time-millis"), [(86_400_000, 86_400_000)]),
    "texts": (
        {"type": "array", "items": ["null", "string"]},
        [([], []), ([None, "a", ""], [None, "a", ""]), ([None], [None])],
    ),
    "dates": (
        {"type": "array", "items": ["null", connect("int", f"{NAMED}Date")]},
        [([None, 0, 2**31 - 1, -719_162], [None, dt.date(1970, 1, 1), None, dt.date(1, 1, 1)])],
    ),
    "map": (
        {"type": "map", "values": ["null", "string"]},
        [({"a": "1", "b": None}, [("a", "1"), ("b", None)]), ({}, [])],
    ),
    "point": (
        POINT,
        [
            ({"x": 1.5, "wkb": b"\1", "srid": None}, {"x": 1.5, "wkb": b"\1", "srid": None}),
            ({"x": 0.0, "wkb": None, "srid": 4326}, {"x": 0.0, "wkb": None, "srid": 4326}),
        ],
    ),
}


@pytest.mark.parametrize("flat", [False, True])
def test_every_type_comes_through_to_delta_and_back_by_another_reader(
    spark: SparkSession, tmp_path: Path, flat: bool
) -> None:
    topic = Topic({name: ["null", kind] for name, (kind, _) in CASES.items()}, flat=flat)
    longest = max(len(values) for _, values in CASES.values())
    padded = {name: [*values, *[(None, None)] * (longest + 1 - len(values))] for name, (_, values) in CASES.items()}
    records = [
        topic.change("c", place, {name: values[place][0] for name, values in padded.items()})
        for place in range(longest + 1)
    ]
    lake = Lake(spark, tmp_path, topic)
    lake.land(records)
    assert lake.fold().rows["applied"] == longest + 1

    table = DeltaTable(lake.silver.path).to_pyarrow_table()
    rows = sorted(table.select(["id", *CASES]).to_pylist(), key=lambda row: row["id"])

    for name, values in padded.items():
        assert [row[name] for row in rows] == [expected for _, expected in values], name


def test_an_array_of_decimals_comes_through(spark: SparkSession, tmp_path: Path) -> None:
    topic = Topic({"rates": ["null", {"type": "array", "items": ["null", decimal(4, 2)]}]})

    rows = Lake(spark, tmp_path, topic).take([topic.change("c", 1, {"rates": [None, Decimal("4.99")]})])

    assert rows[1]["rates"] == [None, Decimal("4.99")]


@pytest.mark.parametrize(
    ("kind", "spark_type"),
    [
        ("int", "int"),
        ({"type": "int", "connect.type": "int16"}, "smallint"),
        ({"type": "int", "connect.type": "int8"}, "smallint"),
        (["null", "long"], "bigint"),
        (["boolean", "null"], "boolean"),
        (decimal(4, 2), "decimal(4,2)"),
        (decimal(64, 2), "decimal(38,2)"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "array", "items": ["null", connect("int", f"{NAMED}Date")]}, "array<date>"),
        ({"type": "map", "values": "long"}, "map<string, bigint>"),
    ],
)
def test_a_column_s_type_follows_from_its_schema(kind: Any, spark_type: str) -> None:
    assert mapping(parse(json.dumps(kind))).type == spark_type


@pytest.mark.parametrize("kind", [["int", "string"], ["null", "int", "string"], "null"])
def test_a_value_of_several_types_is_refused(kind: Any) -> None:
    with pytest.raises(SchemaError):
        mapping(parse(json.dumps(kind)))


def test_a_number_that_its_column_cannot_hold_quarantines_its_record_and_no_other(spark: SparkSession) -> None:
    topic = Topic({"narrow": ["null", decimal(4, 2)], "wide": ["null", decimal(64, 0)], "variable": ["null", VARIABLE]})
    too_long = 10**38
    changes = [
        topic.change("c", 1, {"narrow": (10_000).to_bytes(2, "big")}),
        topic.change("c", 1, {"wide": too_long.to_bytes(17, "big")}),
        topic.change("c", 1, {"variable": variable(too_long, 0)}),
        topic.change("c", 1, {"narrow": Decimal("99.99"), "wide": (too_long - 1).to_bytes(17, "big")}),
    ]

    rows = by_offset(decided(spark, topic.registry, changes))

    assert [(row["status"], row["error"] and row["error"]["stage"]) for row in rows] == [
        ("quarantined", "decode"),
        ("quarantined", "decode"),
        ("quarantined", "decode"),
        ("ok", None),
    ]


def test_a_text_that_is_not_unicode_does_not_stop_the_batch(spark: SparkSession) -> None:
    topic = Topic({"name": "string"}, flat=True)
    good = topic.change("c", 1, {"name": "ab"})
    broken = good.value.replace(b"\x04ab", b"\x04\xff\xfe")
    assert broken != good.value

    rows = by_offset(decided(spark, topic.registry, [good, topic.record(good.key, broken)]))

    assert rows[0]["status"] == "ok"
    assert rows[1]["status"] in ("ok", "quarantined")


def test_a_null_where_the_schema_has_a_default_stays_null(spark: SparkSession, tmp_path: Path) -> None:
    topic = Topic({"rating": "string"})
    schema = json.loads(topic.value_text)
    row = schema["fields"][0]["type"][1]
    row["fields"][1] |= {"type": ["string", "null"], "default": "G"}
    text = json.dumps(schema)
    change = topic.change("c", 1, {"rating": "x"})
    source = {
        **dict.fromkeys(("version", "connector", "schema", "table"), "x"),
        **dict.fromkeys(("name", "db"), "pagila"),
        "ts_ms": 1,
    }
    value = {"before": None, "after": {"id": 1, "rating": None}, "source": source, "op": "c", "ts_ms": 1}
    record = topic.record(change.key, framed(topic.registry.add(text), body(text, value)))

    rows = Lake(spark, tmp_path, topic).take([record])

    assert rows[1]["rating"] is None
