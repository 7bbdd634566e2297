"""The canonical text of a key: it depends on what the key is, not on how it was declared."""

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from events import Topic, connect, decimal, key_schema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lake import by_offset, decided
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from source_types import VARIABLE

from cdc_lake.events.key import canonical_key, key_problem
from cdc_lake.events.schemas import parse
from cdc_lake.events.types import OUT_OF_CALENDAR, mapping

EPOCH = dt.datetime(1970, 1, 1)
MILLIS = connect("long", "io.debezium.time.Timestamp")
MICROS = connect("long", "io.debezium.time.MicroTimestamp")
ZONED = connect("string", "io.debezium.time.ZonedTimestamp")
DATE = connect("int", "io.debezium.time.Date")
DECODED = {"int": "int", "long": "bigint", "string": "string", "boolean": "boolean", "bytes": "binary"}


def decoded_type(kind: Any) -> str:
    """What `from_avro` gives for a key's column."""
    if isinstance(kind, list):
        return decoded_type(kind[1])
    if isinstance(kind, dict) and kind["type"] == "record":
        parts = [f"{field['name']}: {decoded_type(field['type'])}" for field in kind["fields"]]
        return f"struct<{', '.join(parts)}>"
    if isinstance(kind, dict) and kind["type"] == "array":
        return f"array<{decoded_type(kind['items'])}>"
    if isinstance(kind, dict) and "logicalType" in kind and kind["precision"] <= 38:
        return mapping(parse(json.dumps(kind))).type
    return DECODED[kind["type"] if isinstance(kind, dict) else kind]


def texts(spark: SparkSession, columns: dict[str, Any], rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """The canonical texts of keys with these columns, in the order of the rows."""
    tree = parse(key_schema(columns))
    schema = ", ".join(f"`{name}` {decoded_type(kind)}" for name, kind in columns.items())
    frame = spark.createDataFrame([(place, row) for place, row in enumerate(rows)], f"place int, k struct<{schema}>")
    found = frame.select("place", canonical_key(tree, F.col("k")).alias("text")).collect()
    return [text for _, text in sorted(found)]


def one(spark: SparkSession, kind: Any, *values: Any) -> list[str]:
    return texts(spark, {"id": kind}, [(value,) for value in values])


def test_whole_numbers_are_digits_whatever_their_width(spark: SparkSession) -> None:
    values = (0, -1, 32767)
    expected = ['{"id":0}', '{"id":-1}', '{"id":32767}']

    assert one(spark, "int", *values) == expected
    assert one(spark, "long", *values) == expected
    assert one(spark, {"type": "int", "connect.type": "int16"}, *values) == expected
    assert one(spark, "long", 2**63 - 1) == ['{"id":9223372036854775807}']


def test_decimals_are_plain_quoted_texts_whatever_their_scale(spark: SparkSession) -> None:
    values = [Decimal(text) for text in ("0", "4.99", "-4.5", "10", "-20", "0.01")]
    expected = [f'{{"id":"{text}"}}' for text in ("0", "4.99", "-4.5", "10", "-20", "0.01")]

    assert one(spark, decimal(4, 2), *values) == expected
    assert one(spark, decimal(6, 3), *values) == expected
    assert one(spark, decimal(38, 2), *values) == expected


def test_small_decimals_are_plain_texts_too(spark: SparkSession) -> None:
    values = [Decimal(text) for text in ("0", "0.0000001", "-0.0000012", "0.00000010", "5")]
    expected = [f'{{"id":"{text}"}}' for text in ("0", "0.0000001", "-0.0000012", "0.0000001", "5")]

    assert one(spark, decimal(12, 8), *values) == expected
    assert one(spark, decimal(20, 10), *values) == expected


def test_timestamps_are_utc_texts_whatever_their_unit(spark: SparkSession) -> None:
    millis = (0, 1_500, -1, -62_135_596_800_000)
    expected = [
        '{"id":"1970-01-01T00:00:00Z"}',
        '{"id":"1970-01-01T00:00:01.5Z"}',
        '{"id":"1969-12-31T23:59:59.999Z"}',
        '{"id":"0001-01-01T00:00:00Z"}',
    ]

    assert one(spark, MILLIS, *millis) == expected
    assert one(spark, MICROS, *(value * 1000 for value in millis)) == expected
    assert one(spark, ZONED, "1970-01-01T00:00:01.500000Z", "1970-01-01T00:00:01.5Z") == [expected[1]] * 2


def test_dates_are_iso_texts(spark: SparkSession) -> None:
    assert one(spark, DATE, 0, -719_162, 19_782) == [
        '{"id":"1970-01-01"}',
        '{"id":"0001-01-01"}',
        '{"id":"2024-02-29"}',
    ]


def test_times_of_day_are_microseconds_whatever_their_unit(spark: SparkSession) -> None:
    expected = ['{"id":1500000}', '{"id":86400000000}']

    assert one(spark, connect("int", "io.debezium.time.Time"), 1_500, 86_400_000) == expected
    assert one(spark, connect("long", "io.debezium.time.MicroTime"), 1_500_000, 86_400_000_000) == expected
    assert one(spark, connect("long", "io.debezium.time.NanoTime"), 1_500_000_000, 86_400_000_000_000) == expected


def test_decimals_that_are_held_as_texts_have_the_same_text_as_others(spark: SparkSession) -> None:
    values = [b"\x01\xf3", b"\xfe\x0c", b"\x03\xe8"]
    expected = ['{"id":"4.99"}', '{"id":"-5"}', '{"id":"10"}']

    assert one(spark, decimal(64, 2), *values) == expected
    assert one(spark, VARIABLE, *((2, value) for value in values)) == expected


DATE_OF_TEXT = connect("string", "io.debezium.time.IsoDate")
NANOS = connect("long", "io.debezium.time.NanoTimestamp")


@pytest.mark.parametrize(
    ("kind", "held", "lost"),
    [
        (DATE, [0, -719_162, None], [2**31 - 1, -719_163]),
        (DATE_OF_TEXT, ["2017-09-15Z", None], ["+20000-01-01Z"]),
        (MILLIS, [0, None], [2**60]),
        (MICROS, [0, None], [9223372036825200000, -9223372036832400000]),
        (NANOS, [1_000, -1_000, None], [1_001, 2**63 - 1, -(2**63)]),
        (
            ZONED,
            ["2020-01-01T00:00:00.123456Z", "2020-01-01T00:00:00.1234560Z"],
            ["infinity", "2020-01-01T00:00:00.1234567Z"],
        ),
        (connect("long", "io.debezium.time.NanoTime"), [1_000], [1]),
        (connect("string", "io.debezium.time.IsoTime"), ["10:00:00.5Z"], ["10:00:00.0000001Z", "x"]),
        ({"type": "array", "items": ["null", DATE]}, [[0, None], [], None], [[0, 2**31 - 1]]),
        ("string", ["infinity", ""], []),
    ],
)
def test_a_key_that_its_type_cannot_hold_is_a_problem(
    spark: SparkSession, kind: Any, held: list[Any], lost: list[Any]
) -> None:
    rows = [(place, (value, "x")) for place, value in enumerate([*held, *lost])]
    frame = spark.createDataFrame(rows, f"place int, k struct<id: {decoded_type(kind)}, name: string>")
    tree = parse(key_schema({"id": ["null", kind], "name": "string"}))

    found = [row["p"] for row in frame.orderBy("place").select(key_problem(tree, F.col("k")).alias("p")).collect()]

    assert found[: len(held)] == [None] * len(held)
    assert all(problem.startswith("the key's column `id` has a value that a ") for problem in found[len(held) :])


def test_a_bare_key_that_its_type_cannot_hold_is_a_problem(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(0,), (2**31 - 1,)], "k int")
    found = [row["p"] for row in frame.select(key_problem(parse(json.dumps(DATE)), F.col("k")).alias("p")).collect()]

    assert found == [None, "the key's column `key` has a value that a date cannot hold: " + OUT_OF_CALENDAR]


def test_bytes_booleans_and_nulls(spark: SparkSession) -> None:
    assert one(spark, "bytes", b"", b"\x0f\xff") == ['{"id":""}', '{"id":"0fff"}']
    assert one(spark, "boolean", True, False) == ['{"id":true}', '{"id":false}']
    assert one(spark, ["null", "string"], None, "null", "") == ['{"id":null}', '{"id":"null"}', '{"id":""}']


def test_the_columns_of_a_key_are_sorted_and_nulls_are_written(spark: SparkSession) -> None:
    columns = {"film_id": ["null", "int"], "actor_id": "int", "Zeta": ["null", "string"]}

    assert texts(spark, columns, [(2, 1, "z"), (None, 1, None)]) == [
        '{"Zeta":"z","actor_id":1,"film_id":2}',
        '{"Zeta":null,"actor_id":1,"film_id":null}',
    ]


def test_the_order_of_the_key_s_columns_does_not_matter(spark: SparkSession) -> None:
    forth = texts(spark, {"a": "int", "b": "string"}, [(1, "x")])

    assert texts(spark, {"b": "string", "a": "long"}, [("x", 1)]) == forth


def test_a_key_that_is_no_record_is_one_column(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(5,)], "k int").select(canonical_key(parse('"int"'), F.col("k")).alias("text"))

    assert frame.collect()[0]["text"] == '{"key":5}'


def plain(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def iso(micros: int) -> str:
    moment = EPOCH + dt.timedelta(microseconds=micros)
    return moment.isoformat(timespec="microseconds").rstrip("0").rstrip(".") + "Z"


FIRST = (dt.datetime.min - EPOCH) // dt.timedelta(microseconds=1)
LAST = (dt.datetime.max - EPOCH) // dt.timedelta(microseconds=1)
KEYS = st.tuples(
    st.none() | st.text(),
    st.integers(-(2**63), 2**63 - 1),
    st.decimals(-999_999, 999_999, places=3).map(lambda d: d + 0),
    st.integers(FIRST, LAST),
    st.binary(max_size=8),
)
KEY_COLUMNS = {"text": ["null", "string"], "n": "long", "amount": decimal(9, 3), "at": MICROS, "data": "bytes"}


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(KEYS, min_size=150, max_size=150))
def test_a_key_s_text_is_what_the_reference_says(spark: SparkSession, rows: list[tuple[Any, ...]]) -> None:
    found = texts(spark, KEY_COLUMNS, rows)

    for text, (name, number, amount, micros, data) in zip(found, rows, strict=True):
        assert json.loads(text, object_pairs_hook=list) == [
            ("amount", plain(amount)),
            ("at", iso(micros)),
            ("data", data.hex()),
            ("n", number),
            ("text", name),
        ]


def test_a_record_whose_key_cannot_be_held_is_quarantined_and_never_takes_another_row_s_place(
    spark: SparkSession,
) -> None:
    topic = Topic({"name": ["null", "string"]}, keys={"on": DATE})
    infinities = (-2147472692, -622191234)  # of the stream, and of a snapshot
    records = [topic.change("c", {"on": day}, {"name": "x"}) for day in (20_000, *infinities)]

    rows = by_offset(decided(spark, topic.registry, records))

    assert [(r["status"], r["canonical_key"]) for r in rows] == [
        ("ok", '{"on":"2024-10-04"}'),
        ("quarantined", None),
        ("quarantined", None),
    ]
    assert "the key's column `on` has a value that a date cannot hold" in rows[1]["error"]["message"]
