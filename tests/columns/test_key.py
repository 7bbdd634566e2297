"""The canonical text of a key depends on its values, not on its declared types."""

import datetime as dt
import json
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from support.columns import Case, evaluated
from support.events import Topic, connect, decimal, key_schema
from support.lake import by_offset, decided
from support.source_types import VARIABLE

from cdc_lake.decode.key import canonical_key, key_problem
from cdc_lake.decode.schemas import parse
from cdc_lake.decode.types import OUT_OF_CALENDAR, type_mapping

pytestmark = pytest.mark.core

EPOCH = dt.datetime(1970, 1, 1)
MILLIS = connect("long", "io.debezium.time.Timestamp")
MICROS = connect("long", "io.debezium.time.MicroTimestamp")
ZONED = connect("string", "io.debezium.time.ZonedTimestamp")
DATE = connect("int", "io.debezium.time.Date")
DECODED = {"int": "int", "long": "bigint", "string": "string", "boolean": "boolean", "bytes": "binary"}


def decoded_type(kind: Any) -> str:
    """The column that `from_avro` returns for a key."""
    if isinstance(kind, list):
        return decoded_type(kind[1])
    if isinstance(kind, dict) and kind["type"] == "record":
        parts = [f"{field['name']}: {decoded_type(field['type'])}" for field in kind["fields"]]
        return f"struct<{', '.join(parts)}>"
    if isinstance(kind, dict) and kind["type"] == "array":
        return f"array<{decoded_type(kind['items'])}>"
    if isinstance(kind, dict) and "logicalType" in kind and kind["precision"] <= 38:
        return type_mapping(parse(json.dumps(kind))).type
    return DECODED[kind["type"] if isinstance(kind, dict) else kind]


class Key(NamedTuple):
    """Keys with the same columns, name to Avro type, and the canonical text of each."""

    columns: dict[str, Any]
    texts: list[tuple[tuple[Any, ...], str]]

    @property
    def case(self) -> Case:
        """The expressions under test."""
        parts = ", ".join(f"`{name}`: {decoded_type(kind)}" for name, kind in self.columns.items())
        rule = partial(canonical_key, parse(key_schema(self.columns)))
        return Case(f"struct<{parts}>", rule, [values for values, _ in self.texts])


def ids(kind: Any, *texts: tuple[Any, str]) -> Key:
    """Keys of one column."""
    return Key({"id": kind}, [((value,), f'{{"id":{text}}}') for value, text in texts])


NUMBERS = [(0, "0"), (-1, "-1"), (32767, "32767")]
DECIMALS = [(Decimal(text), f'"{text}"') for text in ("0", "4.99", "-4.5", "10", "-20", "0.01")]
SMALL_DECIMALS = [(Decimal(text), f'"{text}"') for text in ("0", "0.0000001", "-0.0000012", "5")]
SMALL_DECIMALS.append((Decimal("0.00000010"), '"0.0000001"'))
MOMENTS = [
    (0, '"1970-01-01T00:00:00Z"'),
    (1_500, '"1970-01-01T00:00:01.5Z"'),
    (-1, '"1969-12-31T23:59:59.999Z"'),
    (-62_135_596_800_000, '"0001-01-01T00:00:00Z"'),
]
OF_TEXTS = [(b"\x01\xf3", '"4.99"'), (b"\xfe\x0c", '"-5"'), (b"\x03\xe8", '"10"')]
DECLARED = {
    "whole numbers of 32 bits are digits": ids("int", *NUMBERS),
    "whole numbers of 64 bits are digits": ids("long", *NUMBERS, (2**63 - 1, "9223372036854775807")),
    "whole numbers of 16 bits are digits": ids({"type": "int", "connect.type": "int16"}, *NUMBERS),
    "decimals of scale 2 are plain quoted texts": ids(decimal(4, 2), *DECIMALS),
    "decimals of scale 3 are the same texts": ids(decimal(6, 3), *DECIMALS),
    "decimals of 38 digits are the same texts": ids(decimal(38, 2), *DECIMALS),
    "small decimals are plain texts too": ids(decimal(12, 8), *SMALL_DECIMALS),
    "small decimals of a larger scale are the same texts": ids(decimal(20, 10), *SMALL_DECIMALS),
    "decimals held as texts are the same texts": ids(decimal(64, 2), *OF_TEXTS),
    "decimals of variable scale are the same texts": ids(VARIABLE, *(((2, value), text) for value, text in OF_TEXTS)),
    "timestamps of milliseconds are texts in UTC": ids(MILLIS, *MOMENTS),
    "timestamps of microseconds are the same texts": ids(MICROS, *((value * 1000, text) for value, text in MOMENTS)),
    "timestamps with a zone are the same texts": ids(
        ZONED, *((f"1970-01-01T00:00:01.{end}", MOMENTS[1][1]) for end in ("500000Z", "5Z"))
    ),
    "dates are ISO texts": ids(DATE, (0, '"1970-01-01"'), (-719_162, '"0001-01-01"'), (19_782, '"2024-02-29"')),
    "times of milliseconds are microseconds": ids(
        connect("int", "io.debezium.time.Time"), (1_500, "1500000"), (86_400_000, "86400000000")
    ),
    "times of microseconds are as they are": ids(
        connect("long", "io.debezium.time.MicroTime"), (1_500_000, "1500000"), (86_400_000_000, "86400000000")
    ),
    "times of nanoseconds are microseconds": ids(
        connect("long", "io.debezium.time.NanoTime"), (1_500_000_000, "1500000"), (86_400_000_000_000, "86400000000")
    ),
    "bytes are hexadecimal": ids("bytes", (b"", '""'), (b"\x0f\xff", '"0fff"')),
    "booleans are JSON": ids("boolean", (True, "true"), (False, "false")),
    "nulls are no texts": ids(["null", "string"], (None, "null"), ("null", '"null"'), ("", '""')),
    "columns are sorted and nulls are written": Key(
        {"film_id": ["null", "int"], "actor_id": "int", "Zeta": ["null", "string"]},
        [
            ((2, 1, "z"), '{"Zeta":"z","actor_id":1,"film_id":2}'),
            ((None, 1, None), '{"Zeta":null,"actor_id":1,"film_id":null}'),
        ],
    ),
    "the order of the columns does not matter": Key({"b": "string", "a": "long"}, [(("x", 1), '{"a":1,"b":"x"}')]),
    "the order of the columns does not matter the other way round": Key(
        {"a": "int", "b": "string"}, [((1, "x"), '{"a":1,"b":"x"}')]
    ),
}
DATE_OF_TEXT = connect("string", "io.debezium.time.IsoDate")
NANOS = connect("long", "io.debezium.time.NanoTimestamp")
LIMITED: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "dates": (DATE, [0, -719_162, None], [2**31 - 1, -719_163]),
    "dates of texts": (DATE_OF_TEXT, ["2017-09-15Z", None], ["+20000-01-01Z"]),
    "milliseconds": (MILLIS, [0, None], [2**60]),
    "microseconds": (MICROS, [0, None], [9223372036825200000, -9223372036832400000]),
    "nanoseconds": (NANOS, [1_000, -1_000, None], [1_001, 2**63 - 1, -(2**63)]),
    "zoned": (
        ZONED,
        ["2020-01-01T00:00:00.123456Z", "2020-01-01T00:00:00.1234560Z"],
        ["infinity", "2020-01-01T00:00:00.1234567Z"],
    ),
    "times of nanoseconds": (connect("long", "io.debezium.time.NanoTime"), [1_000], [1]),
    "times of texts": (connect("string", "io.debezium.time.IsoTime"), ["10:00:00.5Z"], ["10:00:00.0000001Z", "x"]),
    "arrays of dates": ({"type": "array", "items": ["null", DATE]}, [[0, None], [], None], [[0, 2**31 - 1]]),
    "texts": ("string", ["infinity", ""], []),
}
"""By name: a key column's type, values that it can have, and values that it cannot."""
BARE_NUMBER, BARE_DATE = "a bare number", "a bare date"


@pytest.fixture(scope="module")
def texts(spark: SparkSession) -> dict[str, list[str]]:
    """The canonical texts of all keys."""
    bare = Case("int", partial(canonical_key, parse('"int"')), [5])
    return evaluated(spark, {name: key.case for name, key in DECLARED.items()} | {BARE_NUMBER: bare})


@pytest.fixture(scope="module")
def problems(spark: SparkSession) -> dict[str, list[str | None]]:
    """The problem of each value that cannot be in a key."""
    cases = {BARE_DATE: Case("int", partial(key_problem, parse(json.dumps(DATE))), [0, 2**31 - 1])}
    for name, (kind, held, lost) in LIMITED.items():
        tree = parse(key_schema({"id": ["null", kind], "name": "string"}))
        values = [(value, "x") for value in (*held, *lost)]
        cases[name] = Case(f"struct<id: {decoded_type(kind)}, name: string>", partial(key_problem, tree), values)
    return evaluated(spark, cases)


@pytest.mark.parametrize("name", DECLARED)
def test_key_text_depends_on_the_value_not_on_the_declaration(texts: dict[str, list[str]], name: str) -> None:
    assert texts[name] == [text for _, text in DECLARED[name].texts]


def test_non_record_key_is_one_column(texts: dict[str, list[str]]) -> None:
    assert texts[BARE_NUMBER] == ['{"key":5}']


@pytest.mark.parametrize("name", LIMITED)
def test_key_out_of_range_of_its_type_is_a_problem(problems: dict[str, list[str | None]], name: str) -> None:
    _, held, lost = LIMITED[name]
    found = problems[name]

    assert found[: len(held)] == [None] * len(held)
    assert len(found) == len(held) + len(lost)
    for problem in found[len(held) :]:
        assert problem is not None and problem.startswith("the key's column `id` has a value that a ")


def test_bare_key_out_of_range_of_its_type_is_a_problem(problems: dict[str, list[str | None]]) -> None:
    expected = "the key's column `key` has a value that a date cannot hold: " + OUT_OF_CALENDAR

    assert problems[BARE_DATE] == [None, expected]


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
def test_key_text_matches_the_reference(spark: SparkSession, rows: list[tuple[Any, ...]]) -> None:
    found = evaluated(spark, {"keys": Key(KEY_COLUMNS, [(row, "") for row in rows]).case})["keys"]

    for text, (name, number, amount, micros, data) in zip(found, rows, strict=True):
        assert json.loads(text, object_pairs_hook=list) == [
            ("amount", plain(amount)),
            ("at", iso(micros)),
            ("data", data.hex()),
            ("n", number),
            ("text", name),
        ]


def test_key_out_of_range_is_quarantined_and_replaces_no_row(
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
