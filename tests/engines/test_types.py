"""What becomes of each type of the source, from the connector's bytes to the table, read back by another reader."""

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import replace
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from support import wire
from support.events import Record, Topic, body, connect, decimal, framed
from support.lake import Lake, by_offset, decided
from support.source_types import DOUBLE_VECTOR, OTHERS, POINT, SOURCES, SPARSE, VARIABLE, any_precision

from cdc_lake.decode import types
from cdc_lake.decode.schemas import SchemaError, parse
from cdc_lake.decode.types import plain_type, type_mapping

NAMED = "io.debezium.time."
CONNECT = "org.apache.kafka.connect.data."
UTC = dt.UTC
LONG = Context(prec=200)


def at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def micros(moment: dt.datetime) -> int:
    return (moment - at(1970, 1, 1)) // dt.timedelta(microseconds=1)


def days(day: dt.date) -> int:
    return (day - dt.date(1970, 1, 1)).days


def unscaled(number: int) -> bytes:
    """A whole number as Java's BigInteger writes it."""
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def variable(number: int, scale: int) -> dict[str, Any]:
    return {"scale": scale, "value": unscaled(number)}


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
    (2**63 - 1, None),
    (-(2**63), None),
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
ISO_DATES = [
    ("2017-09-15Z", dt.date(2017, 9, 15)),
    ("2017-09-15", dt.date(2017, 9, 15)),
    ("0001-01-01Z", dt.date(1, 1, 1)),
    ("9999-12-31Z", dt.date(9999, 12, 31)),
    *((text, None) for text in ("+20000-01-01Z", "-0043-03-15Z", "0000-12-31Z", "+292278994-08-16Z", "2017-99-99", "")),
]
TIMES_OF_MILLIS = [(0, 0), (86_399_999, 86_399_999_000), (86_400_000, 86_400_000_000)]
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
    "numeric_50_5": (
        decimal(50, 5),
        [(unscaled(number), f"{LONG.scaleb(Decimal(number), -5):f}") for number in (0, -1, 10**49, -(10**49) - 7)],
    ),
    "money": (
        any_precision(2),
        [(unscaled(number), f"{Decimal(number).scaleb(-2):f}") for number in (2**63 - 1, -(2**63), 0, -5)],
    ),
    "bigint_unsigned": (any_precision(0), [(unscaled(2**64 - 1), str(2**64 - 1))]),
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
            (variable(2**63, 0), str(2**63)),
            (variable(-(2**63) - 1, 3), f"{Decimal(-(2**63) - 1).scaleb(-3):f}"),
            (variable(10**40 + 1, 2), f"{10**38}.01"),
            ({"scale": 0, "value": unscaled(-(7**900))}, str(-(7**900))),
            (variable(1 - 10**1000, 500), f"-{'9' * 500}.{'9' * 500}"),
            (variable(15, 2**31 - 1), "15E-2147483647"),
            (variable(15, -(2**31)), "15E2147483648"),
        ],
    ),
    "date": (connect("int", f"{NAMED}Date"), DATES),
    "connect_date": (connect("int", f"{CONNECT}Date", logicalType="date"), DATES),
    "timestamp_of_millis": (connect("long", f"{NAMED}Timestamp"), MILLIS),
    "connect_timestamp": (connect("long", f"{CONNECT}Timestamp", logicalType="timestamp-millis"), MILLIS),
    "timestamp_of_micros": (connect("long", f"{NAMED}MicroTimestamp"), MICROS),
    "timestamp_of_nanos": (connect("long", f"{NAMED}NanoTimestamp"), NANOS),
    "timestamp_with_zone": (connect("string", f"{NAMED}ZonedTimestamp"), ZONED),
    "date_of_text": (connect("string", f"{NAMED}IsoDate"), ISO_DATES),
    "timestamp_of_text": (connect("string", f"{NAMED}IsoTimestamp"), ZONED),
    "time_of_micros": (connect("long", f"{NAMED}MicroTime"), [(0, 0), (86_400_000_000, 86_400_000_000)]),
    "time_of_millis": (connect("int", f"{NAMED}Time"), TIMES_OF_MILLIS),
    "connect_time": (connect("int", f"{CONNECT}Time", logicalType="time-millis"), TIMES_OF_MILLIS),
    "time_of_nanos": (connect("long", f"{NAMED}NanoTime"), [(1_999, 1), (86_400_000_000_000, 86_400_000_000)]),
    "time_of_text": (
        connect("string", f"{NAMED}IsoTime"),
        [
            ("00:00:00Z", 0),
            ("12:34:56.5Z", 45_296_500_000),
            ("12:34:56.123456Z", 45_296_123_456),
            ("12:34:56.123456789Z", 45_296_123_456),
            ("23:59:59.999999Z", 86_399_999_999),
            ("24:00:00Z", 86_400_000_000),
            ("not a time", None),
        ],
    ),
    "time_with_zone": (connect("string", f"{NAMED}ZonedTime"), [("04:30:00.5Z", "04:30:00.5Z")]),
    "duration_of_micros": (connect("long", f"{NAMED}MicroDuration"), [(-2_629_800_000_000, -2_629_800_000_000)]),
    "duration_of_nanos": (connect("long", f"{NAMED}NanoDuration"), [(-1_001, -2), (1_999, 1)]),
    "interval": (connect("string", f"{NAMED}Interval"), [("P1Y2M0DT0H0M0S", "P1Y2M0DT0H0M0S")]),
    "year": (connect("int", f"{NAMED}Year"), [(2024, 2024), (0, 0)]),
    "set": (connect("string", "io.debezium.data.EnumSet"), [("a,b", "a,b"), ("", "")]),
    "xml": (connect("string", "io.debezium.data.Xml"), [("<a/>", "<a/>")]),
    "ltree": (connect("string", "io.debezium.data.Ltree"), [("a.b", "a.b")]),
    "tsvector": (connect("string", "io.debezium.data.Tsvector"), [("'a':1", "'a':1")]),
    "texts": (
        {"type": "array", "items": ["null", "string"]},
        [([], []), ([None, "a", ""], [None, "a", ""]), ([None], [None])],
    ),
    "decimals": (
        {"type": "array", "items": ["null", decimal(4, 2)]},
        [([None, Decimal("4.99")], [None, Decimal("4.99")])],
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
            ({"x": 1.5, "y": -2.0, "wkb": b"\1", "srid": None},) * 2,
            ({"x": 0.0, "y": 0.0, "wkb": None, "srid": 4326},) * 2,
        ],
    ),
    "vector": (DOUBLE_VECTOR, [([0.1, -1.0], [0.1, -1.0]), ([], [])]),
    "sparse_vector": (
        SPARSE,
        [({"dimensions": 5, "vector": [{"key": 1, "value": 1.5}]},) * 2, ({"dimensions": 5, "vector": []},) * 2],
    ),
}


OF_CONNECTORS = {
    f"{source.replace(' ', '_')}_{number}": (row.schema, list(row.examples))
    for source, rows in {**SOURCES, "others": OTHERS}.items()
    if source != "MongoDB"
    for number, row in enumerate(rows)
    if row.examples
}
"""What other connectors declare."""
MEANINGLESS: dict[str, tuple[Any, list[tuple[Any, Any]]]] = {
    "day": ("int", [(19_782, 19_782)]),
    "at": ("long", [(5, 5)]),
    "amount": (
        {"type": "bytes", "scale": 2, "precision": 4, "logicalType": "decimal"},
        [(Decimal("4.99"), Decimal("4.99"))],
    ),
}
"""A connector that sends no meaning leaves the plain values."""
COLUMNS = CASES | OF_CONNECTORS | MEANINGLESS
LENGTH = 1 + max(len(values) for _, values in COLUMNS.values())
"""Each column's values, and then nulls."""
VALUES = {name: [*values, *[(None, None)] * (LENGTH - len(values))] for name, (_, values) in COLUMNS.items()}
FLAT = 1000
"""The key of the first flattened row."""
DEFAULTED = 2000


def declared_once(kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Optional columns of these types; what a record is, is said where it comes first."""
    found, seen = {}, set[str]()
    for column, kind in kinds.items():
        name = f"{kind['namespace']}.{kind['name']}" if isinstance(kind, dict) and kind["type"] == "record" else None
        found[column] = ["null", name if name in seen else kind]
        seen |= {name} - {None}
    return found


def with_a_default(topic: Topic) -> Record:
    """A null where the schema has a default."""
    rated = Topic({"rating": "string"}, registry=topic.registry)
    schema = json.loads(rated.value_text)
    row = schema["fields"][0]["type"][1]
    row["fields"][1] |= {"type": ["string", "null"], "default": "G"}
    text = json.dumps(schema)
    source = {**wire.postgres_values(topic.table), "ts_ms": 1}
    value = wire.whole_event("c", None, {"id": DEFAULTED, "rating": None}, source, 1)
    return topic.record(topic.key(DEFAULTED), framed(topic.registry.add(text), body(text, value)))


@pytest.fixture(scope="module")
def silver(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """By key, the rows of a table with every type, as another reader finds them; each value came in both shapes."""
    columns = declared_once({name: kind for name, (kind, _) in COLUMNS.items()})
    topic = Topic(columns)
    flat = Topic(columns, flat=True, registry=topic.registry)
    rows = [{name: values[place][0] for name, values in VALUES.items()} for place in range(LENGTH)]
    changes = [topic.change("c", place, row) for place, row in enumerate(rows)]
    changes += [flat.change("c", FLAT + place, row) for place, row in enumerate(rows)]
    lake = Lake(spark, tmp_path_factory.mktemp("types"), topic)
    lake.land([replace(change, offset=offset) for offset, change in enumerate([*changes, with_a_default(topic)])])
    assert lake.fold().rows["applied"] == 2 * LENGTH + 1
    return {row["id"]: row for row in DeltaTable(lake.silver.path).to_pyarrow_table().to_pylist()}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("first", [pytest.param(0, id="enveloped"), pytest.param(FLAT, id="flat")])
def test_every_type_reaches_delta_and_is_read_by_delta_rs(
    silver: dict[int, dict[str, Any]], first: int, name: str
) -> None:
    assert [silver[first + place][name] for place in range(LENGTH)] == [expected for _, expected in VALUES[name]]


def test_null_with_a_schema_default_stays_null(silver: dict[int, dict[str, Any]]) -> None:
    assert silver[DEFAULTED]["rating"] is None


@pytest.mark.parametrize(
    ("kind", "spark_type"),
    [
        ("int", "int"),
        ({"type": "int", "connect.type": "int16"}, "smallint"),
        ({"type": "int", "connect.type": "int8"}, "smallint"),
        (["null", "long"], "bigint"),
        (["boolean", "null"], "boolean"),
        (decimal(4, 2), "decimal(4,2)"),
        (decimal(38, 38), "decimal(38,38)"),
        (decimal(3, 5), "decimal(5,5)"),
        (decimal(39, 2), "string"),
        (decimal(64, 2), "string"),
        (decimal(5, 2046), "string"),
        (decimal(5, -2), "string"),
        ({"type": "bytes", "logicalType": "decimal"}, "binary"),
        (connect("string", f"{NAMED}Date"), "string"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "array", "items": ["null", connect("int", f"{NAMED}Date")]}, "array<date>"),
        ({"type": "map", "values": "long"}, "map<string, bigint>"),
    ],
)
def test_column_type_follows_from_its_schema(kind: Any, spark_type: str) -> None:
    assert type_mapping(parse(json.dumps(kind))).type == spark_type


@pytest.mark.parametrize("kind", [["int", "string"], ["null", "int", "string"], "null"])
def test_union_of_several_types_is_refused(kind: Any) -> None:
    with pytest.raises(SchemaError):
        type_mapping(parse(json.dumps(kind)))


@pytest.mark.core
def test_number_out_of_range_quarantines_only_its_record(spark: SparkSession) -> None:
    topic = Topic({"narrow": ["null", decimal(4, 2)], "wide": ["null", decimal(64, 0)], "variable": ["null", VARIABLE]})
    changes = [
        topic.change("c", 1, {"narrow": (10_000).to_bytes(2, "big")}),
        topic.change("c", 1, {"wide": unscaled(10**99)}),
        topic.change("c", 1, {"variable": variable(10**99, 0)}),
        topic.change("c", 1, {"narrow": Decimal("99.99"), "wide": unscaled(0)}),
    ]

    rows = by_offset(decided(spark, topic.registry, changes))

    assert [(row["status"], row["error"] and row["error"]["stage"]) for row in rows] == [
        ("quarantined", "type"),
        ("ok", None),
        ("ok", None),
        ("ok", None),
    ]


@pytest.mark.core
def test_number_with_too_many_digits_quarantines_its_record(spark: SparkSession) -> None:
    wide = decimal(64, 0)
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "wide", "type": ["null", wide]}]}
    kinds = {
        "wide": wide,
        "variable": VARIABLE,
        "several": {"type": "array", "items": ["null", f"{VARIABLE['namespace']}.{VARIABLE['name']}"]},
        "inner": inner,
        "map": {"type": "map", "values": ["null", wide]},
    }
    topic = Topic({name: ["null", kind] for name, kind in kinds.items()})
    changes = []
    for digits in (1_000, 1_002, 131_072):
        number = 10**digits - 1
        held = {"wide": unscaled(number), "variable": variable(-number, 3), "several": [None, variable(number, 0)]}
        held |= {"inner": {"wide": unscaled(-number)}, "map": {"a": None, "b": unscaled(number)}}
        changes += [topic.change("c", 1, {name: value}) for name, value in held.items()]
    changes.append(topic.change("c", 2, {}))

    rows = by_offset(decided(spark, topic.registry, changes))

    assert [row["status"] for row in rows] == ["ok"] * 5 + ["quarantined"] * 10 + ["ok"]
    what = "has a number of more than 1000 digits; set decimal.handling.mode=string on the connector"
    assert [row["error"].asDict() for row in rows[5:15]] == 2 * [
        {"stage": "type", "code": "unfit_value", "message": f"the column `{path}` {what}"}
        for path in ("wide", "variable", "several", "inner.wide", "map")
    ]


def test_long_number_is_written_out_once(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = spark.sparkContext.accumulator(0)

    def text_of(unscaled: bytes | None) -> str | None:
        written.add(0 if unscaled is None else 1)
        return None if unscaled is None else str(int.from_bytes(unscaled, "big", signed=True))

    monkeypatch.setattr(types, "plain_text", lambda unscaled, scale: F.udf(text_of, "string")(unscaled))
    topic = Topic({"wide": ["null", decimal(64, 0)]})
    lake = Lake(spark, tmp_path, topic)
    numbers = {key: 10**99 + key for key in range(5)}

    rows = lake.take([topic.change("c", key, {"wide": unscaled(number)}) for key, number in numbers.items()])

    assert {key: int(row["wide"]) for key, row in rows.items()} == numbers
    assert written.value == len(numbers)


def test_key_with_too_many_digits_quarantines_its_record(spark: SparkSession) -> None:
    topic = Topic({}, keys={"id": VARIABLE})
    keys = [variable(10**1_000 - 1, 0), variable(1, 20_000), variable(10**999, 999), variable(10**4_000, 0)]

    rows = by_offset(decided(spark, topic.registry, [topic.change("c", {"id": key}) for key in keys]))

    texts = ["9" * 1_000, f"0.{'0' * 19_999}1", "1"]
    assert [row["canonical_key"] for row in rows] == [*(f'{{"id":"{text}"}}' for text in texts), None]
    assert rows[3]["error"]["code"] == "key_out_of_range"


def test_a_structured_date_stays_a_struct() -> None:
    parts = [{"name": name, "type": ["null", "int"]} for name in ("year", "month", "day")]
    special = {"name": "specialValue", "type": ["null", "string"]}
    date = {"type": "record", "name": "io.debezium.time.StructuredDate", "fields": [*parts, special]}

    assert (
        plain_type(type_mapping(parse(json.dumps(date))).type)
        == "struct<year:int,month:int,day:int,specialValue:string>"
    )


def test_invalid_unicode_text_does_not_stop_the_batch(spark: SparkSession) -> None:
    topic = Topic({"name": "string"}, flat=True)
    good = topic.change("c", 1, {"name": "ab"})
    broken = good.value.replace(b"\x04ab", b"\x04\xff\xfe")
    assert broken != good.value

    rows = by_offset(decided(spark, topic.registry, [good, topic.record(good.key, broken)]))

    assert rows[0]["status"] == "ok"
    assert rows[1]["status"] in ("ok", "quarantined")
