"""How each source's types arrive: for docs/reference/types.md, the decoder's fixtures and the live test.

The Postgres rows are what Debezium 3.6 really sends: tests/servers/test_live_types.py compares every one of them, and
sees each loss happen. The others are as their connectors' documentation declares them.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from cdc_lake.decode.types import OUT_OF_CALENDAR
from support.events import connect, decimal

NOT_FINITE = "NaN and infinities arrive as null"
NOT_FINITE_IN_ARRAY = "an array with NaN or an infinity arrives as null"
NOT_FINITE_AS_TEXT = "NaN and infinities arrive as the texts NAN, POSITIVE_INFINITY and NEGATIVE_INFINITY"
ZEROS = "trailing zeros of the fraction are removed: 10.500 is 10.5"
NEGATIVE_SCALE = "a negative scale arrives increased by 2048: the number is right, with that many zeros after the point"
DOUBLE = "rounded to the nearest double"
BITS = "the number of bits: leading zeros are removed to whole bytes"
ERA_IN_SNAPSHOT = "in a snapshot a date before Christ arrives as the same day after Christ"
ERA_IN_ARRAY = "a date before Christ arrives as the same day after Christ"
GAP_IN_SNAPSHOT = "in a snapshot the days from 1582-10-05 to 1582-10-14 arrive as ten days later"
GAP_IN_ARRAY = "the days from 1582-10-05 to 1582-10-14 arrive as ten days later"
JULIAN = "times before 1582-10-15 are read as Julian dates: up to 10 days off"
SECONDS = "digits beyond seconds are cut off"
MILLISECONDS = "digits beyond milliseconds are cut off"
MIDNIGHT = "24:00:00 arrives as 00:00:00"
ZONE = "the time zone: the time arrives in UTC"
NANO_RANGE = "before 1677-09-21 and after 2262-04-11 arrives as null"
SPLIT_SECOND = "the microsecond may be one less: seconds are converted through a double"
SPELLED_BY_JAVA = "numbers arrive in Java's notation: 1 as 1.0"
MONTHS = "a month counts as 30.4375 days"
NAME_IN_STREAM = "arrives as null, except in snapshots"
NULL_IN_ARRAY = "an array with a null arrives as null"
DIMENSIONS = "an array of several dimensions arrives as nulls, one for each element of the outermost dimension"
DIMENSIONS_OF_TEXT = "an array of several dimensions arrives as names of Java objects"
ALWAYS_NULL = "always arrives as null"
NOT_SENT = "the column is not sent"
NULL_AS_DEFAULT = "null arrives as the column's default"
WRAPPED = "numbers above 9223372036854775807 arrive as negative ones"
ZERO_DATES = "zero dates arrive as null, or as 1970-01-01 if the column may not be null"
DECIMALS, TIMES = "decimal.handling.mode", "time.precision.mode"
INTERVALS, BINARIES = "interval.handling.mode", "binary.handling.mode"
UNKNOWN, HSTORES, UNSIGNED = "include.unknown.datatypes", "hstore.handling.mode", "bigint.unsigned.handling.mode"
DEFAULTS = {
    DECIMALS: "precise",
    TIMES: "adaptive",
    INTERVALS: "numeric",
    BINARIES: "bytes",
    UNKNOWN: "false",
    HSTORES: "json",
    UNSIGNED: "long",
}
"""The connector's settings that determine how values arrive."""


@dataclass(frozen=True)
class Arrival:
    """How values of some types arrive with some settings.

    Attributes:
        types: as the source declares them.
        schema: the Avro type, the union with null left out; none if there is no column.
        settings: by name, the values under which they arrive so; any value of those that are not named.
        losses: what happens to some values before Kafka or on the way into the table.
        examples: values as `fastavro` takes them, and as the table then has them.
        is_live: whether the embedded Postgres has the types.
    """

    types: tuple[str, ...]
    schema: Any
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    losses: tuple[str, ...] = ()
    examples: tuple[tuple[Any, Any], ...] = ()
    is_live: bool = True

    def applies(self, settings: Mapping[str, str]) -> bool:
        """Whether values arrive in this form with the connector's settings."""
        return all(settings.get(name, DEFAULTS[name]) in values for name, values in self.settings.items())


def time(kind: str, name: str) -> dict[str, Any]:
    return connect(kind, f"io.debezium.time.{name}")


def data(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return connect(kind, f"io.debezium.data.{name}", **more)


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": ["null", items]}


def bits(length: int) -> dict[str, Any]:
    return data("bytes", "Bits", **{"connect.parameters": {"length": str(length)}})


def record(name: str, *fields: tuple[str, Any], space: str = "io.debezium.data") -> dict[str, Any]:
    parts = [{"name": n, "type": t} | ({"default": None} if isinstance(t, list) else {}) for n, t in fields]
    return {"type": "record", "name": name, "namespace": space, "fields": parts, "connect.name": f"{space}.{name}"}


def enum(name: str, allowed: str) -> dict[str, Any]:
    return data("string", name, **{"connect.parameters": {"allowed": allowed}})


def any_precision(scale: int) -> dict[str, Any]:
    """A decimal of a column without a declared precision."""
    return {**decimal(64, scale), "connect.parameters": {"scale": str(scale)}}


SMALL = {"type": "int", "connect.type": "int16"}
VARIABLE = record("VariableScaleDecimal", ("scale", "int"), ("value", "bytes"))
CONNECT_DATE = connect("int", "org.apache.kafka.connect.data.Date", logicalType="date")
CONNECT_TIME = connect("int", "org.apache.kafka.connect.data.Time", logicalType="time-millis")
CONNECT_TIMESTAMP = connect("long", "org.apache.kafka.connect.data.Timestamp", logicalType="timestamp-millis")
POINT = record(
    *("Point", ("x", "double"), ("y", "double"), ("wkb", ["null", "bytes"]), ("srid", ["null", "int"])),
    space="io.debezium.data.geometry",
)
GEOMETRY = record("Geometry", ("wkb", "bytes"), ("srid", ["null", "int"]), space="io.debezium.data.geometry")
GEOGRAPHY = record("Geography", ("wkb", "bytes"), ("srid", ["null", "int"]), space="io.debezium.data.geometry")
_EXTENSIONS = ["null", {"type": "map", "values": "string"}]
# With own Avro names, because a schema defines each name once; the Connect names give the meaning.
SHAPE = {
    **record(
        "Geometry",
        *(("wkb", "bytes"), ("srid", ["null", "int"]), ("extensions", _EXTENSIONS)),
        space="io.debezium.data.geometry",
    ),
    "name": "Shape",
}
LINE = record("Line", *((name, "double") for name in "abc"), space="io.debezium.data.geometry")
CIRCLE = record("Circle", ("center", {**POINT, "name": "Center"}), ("radius", "double"), space=GEOGRAPHY["namespace"])
_TINY = ["null", {"type": "int", "connect.type": "int8"}]
_YEAR = ("year", ["null", "int"]), ("month", _TINY), ("day", _TINY)
_CLOCK = ("hour", _TINY), ("minute", _TINY), ("second", _TINY), ("nanos", ["null", "int"])
_OFFSET = (("offsetSeconds", ["null", "int"]),)
_SPECIAL, _PRECISION = ("specialValue", ["null", "string"]), ("precision", ["null", "int"])
STRUCTURED = {
    "date": ("StructuredDate", *_YEAR, _SPECIAL),
    "time": ("StructuredTime", *_CLOCK, _PRECISION),
    "timetz": ("StructuredZonedTime", *_CLOCK, *_OFFSET, _PRECISION),
    "timestamp": ("StructuredTimestamp", *_YEAR, *_CLOCK, _SPECIAL, _PRECISION),
    "timestamptz": (
        *("StructuredZonedTimestamp", *_YEAR, *_CLOCK, *_OFFSET),
        *(("zoneId", ["null", "string"]), _SPECIAL, _PRECISION),
    ),
    "interval": (
        *("StructuredDuration", *((name, ["null", "int"]) for name in ("years", "months", "days", "hours", "minutes"))),
        *(("seconds", ["null", "long"]), ("nanos", ["null", "int"]), _PRECISION),
    ),
}
"""Name and fields of the records that `time.precision.mode=structured` sends, by Postgres' type."""
DOUBLE_VECTOR = {"type": "array", "items": "double", "connect.name": "io.debezium.data.DoubleVector"}
FLOAT_VECTOR = {"type": "array", "items": "float", "connect.name": "io.debezium.data.FloatVector"}
ENTRY = record("MapEntry", ("key", SMALL), ("value", "double"), space="io.confluent.connect.avro")
del ENTRY["connect.name"]
SPARSE = record("SparseDoubleVector", ("dimensions", SMALL), ("vector", {"type": "array", "items": ENTRY}))
MAP = {"type": "map", "values": ["null", "string"]}


def _structured_examples(of_kind: tuple[Any, ...]) -> tuple[tuple[Any, Any], ...]:
    """A value, and an infinity if the type has one; both are stored as they are sent."""
    names = [name for name, _ in of_kind[1:]]
    values = {"year": -43, "month": 3, "day": 15, "zoneId": "Europe/Paris", "nanos": 123_456_789, "specialValue": None}
    value = {name: values.get(name, 7) for name in names}
    infinity = {**dict.fromkeys(names), "specialValue": "POSITIVE_INFINITY"}
    return ((value, value), *([(infinity, infinity)] if "specialValue" in names else []))


PRECISE, AS_DOUBLE, AS_STRING = ({DECIMALS: (mode,)} for mode in ("precise", "double", "string"))
ISO, NANO = {TIMES: ("isostring",)}, {TIMES: ("nanoseconds",)}
IN_CONNECT, ADAPTIVE = {TIMES: ("connect",)}, {TIMES: ("adaptive",)}
_MICRO = ("adaptive_time_microseconds", "microseconds")
IN_MICROS, ADAPTIVE_OR_MICROS = {TIMES: _MICRO}, {TIMES: ("adaptive", *_MICRO)}
EPOCH_DAYS = {TIMES: ("adaptive", *_MICRO, "nanoseconds")}

AS_TEXT = ("hex", "base64", "base64-url-safe")
_DATE_LOSES = (OUT_OF_CALENDAR, ERA_IN_SNAPSHOT, GAP_IN_SNAPSHOT)
_DATES_LOSES = (OUT_OF_CALENDAR, ERA_IN_ARRAY, GAP_IN_ARRAY)
_SENT_AS_TEXT = (
    *('"char"', "char(5)", "varchar(20)", "text", "inet", "cidr", "macaddr", "macaddr8", "int4range"),
    *("int8range", "numrange", "tsrange", "tstzrange", "daterange", "domain over text"),
)
_ARRAYS_OF_TEXT = ("char(5)[]", "varchar(20)[]", "inet[]", "cidr[]", "macaddr[]", "int4range[]", "tsrange[]")
_SHAPES = ("line", "lseg", "box", "path", "polygon", "circle")
_UNKNOWN = ("tsquery", "pg_lsn", "txid_snapshot", "int4multirange", "composite")
_NEVER_SENT = ("money[]", "name[]", "interval[]", "point[]", "varbit[]", "xml[]")

POSTGRES = (
    Arrival(("smallint",), SMALL),
    Arrival(("integer", "domain over integer"), "int"),
    Arrival(("bigint", "oid"), "long"),
    Arrival(("real",), "float"),
    Arrival(("double precision",), "double"),
    Arrival(("boolean", "bit(1)"), "boolean"),
    Arrival(("numeric(4,2)",), decimal(4, 2), PRECISE, (NOT_FINITE,)),
    Arrival(("numeric(38,10)",), decimal(38, 10), PRECISE, (NOT_FINITE,)),
    Arrival(("numeric(50,5)",), decimal(50, 5), PRECISE, (NOT_FINITE,)),
    Arrival(("numeric(3,5)",), decimal(3, 5), PRECISE, (NOT_FINITE,)),
    Arrival(("numeric(5,-2)",), decimal(5, 2046), PRECISE, (NOT_FINITE, NEGATIVE_SCALE)),
    Arrival(("numeric",), VARIABLE, PRECISE, (NOT_FINITE, ZEROS)),
    Arrival(("money",), any_precision(2), PRECISE),
    Arrival(
        ("numeric(4,2)", "numeric(38,10)", "numeric(50,5)", "numeric(3,5)", "numeric", "money"),
        "double",
        AS_DOUBLE,
        (DOUBLE,),
    ),
    Arrival(("numeric(5,-2)",), "double", AS_DOUBLE),
    Arrival(("numeric(5,-2)",), "string", AS_STRING, (NOT_FINITE_AS_TEXT, NEGATIVE_SCALE)),
    Arrival(
        ("numeric(4,2)", "numeric(38,10)", "numeric(50,5)", "numeric(3,5)", "numeric"),
        "string",
        AS_STRING,
        (NOT_FINITE_AS_TEXT,),
    ),
    Arrival(("money",), "string", AS_STRING),
    Arrival(("bit(5)",), bits(5)),
    Arrival(("bit(16)",), bits(16)),
    Arrival(("varbit(12)",), bits(12), {}, (BITS,)),
    Arrival(("varbit",), bits(2**31 - 1), {}, (BITS,)),
    Arrival(_SENT_AS_TEXT, "string"),
    Arrival(("name",), "string", {UNKNOWN: ("false",)}, (NAME_IN_STREAM,)),
    Arrival(("name",), "string", {UNKNOWN: ("true",)}),
    Arrival(("any type, nullable, with a default",), "string", {}, (NULL_AS_DEFAULT,)),
    Arrival(("bytea",), "bytes", {BINARIES: ("bytes",)}),
    Arrival(("bytea",), "string", {BINARIES: AS_TEXT}),
    Arrival(("uuid",), data("string", "Uuid")),
    Arrival(("json", "jsonb"), data("string", "Json")),
    Arrival(("xml",), data("string", "Xml")),
    Arrival(("enum",), enum("Enum", "sad,ok,happy")),
    Arrival(("tsvector",), data("string", "Tsvector")),
    Arrival(("date",), time("int", "Date"), EPOCH_DAYS, _DATE_LOSES),
    Arrival(("date",), CONNECT_DATE, IN_CONNECT, _DATE_LOSES),
    Arrival(("date",), time("string", "IsoDate"), ISO, _DATE_LOSES),
    Arrival(("time",), time("long", "MicroTime"), ADAPTIVE_OR_MICROS),
    Arrival(("time(3)",), time("int", "Time"), ADAPTIVE),
    Arrival(("time(3)",), time("long", "MicroTime"), IN_MICROS),
    Arrival(("time", "time(3)"), time("long", "NanoTime"), NANO),
    Arrival(("time",), CONNECT_TIME, IN_CONNECT, (MILLISECONDS,)),
    Arrival(("time(3)",), CONNECT_TIME, IN_CONNECT),
    Arrival(("time", "time(3)"), time("string", "IsoTime"), ISO, (MIDNIGHT,)),
    Arrival(("timetz",), time("string", "ZonedTime"), {}, (ZONE, MIDNIGHT)),
    Arrival(("timestamp",), time("long", "MicroTimestamp"), ADAPTIVE_OR_MICROS, (OUT_OF_CALENDAR,)),
    Arrival(
        ("timestamp(3)",),
        time("long", "Timestamp"),
        {TIMES: ("adaptive", "adaptive_time_microseconds")},
        (OUT_OF_CALENDAR,),
    ),
    Arrival(("timestamp(3)",), time("long", "MicroTimestamp"), {TIMES: ("microseconds",)}, (OUT_OF_CALENDAR,)),
    Arrival(("timestamp", "timestamp(3)"), time("long", "NanoTimestamp"), NANO, (OUT_OF_CALENDAR, NANO_RANGE)),
    Arrival(("timestamp",), CONNECT_TIMESTAMP, IN_CONNECT, (OUT_OF_CALENDAR, MILLISECONDS)),
    Arrival(("timestamp(3)",), CONNECT_TIMESTAMP, IN_CONNECT, (OUT_OF_CALENDAR,)),
    Arrival(("timestamp", "timestamp(3)"), time("string", "IsoTimestamp"), ISO, (OUT_OF_CALENDAR,)),
    Arrival(("timestamptz", "timestamptz(0)"), time("string", "ZonedTimestamp"), {}, (OUT_OF_CALENDAR,)),
    Arrival(("interval",), time("long", "MicroDuration"), {INTERVALS: ("numeric",)}, (MONTHS, SPLIT_SECOND)),
    Arrival(("interval",), time("string", "Interval"), {INTERVALS: ("string",)}, (SPLIT_SECOND,)),
    Arrival(("point",), POINT),
    Arrival(("vector(3)",), DOUBLE_VECTOR),
    Arrival(("halfvec(3)",), FLOAT_VECTOR),
    Arrival(("sparsevec(5)",), SPARSE),
    Arrival((*_SHAPES, *_UNKNOWN), None, {UNKNOWN: ("false",)}, (NOT_SENT,)),
    Arrival(_SHAPES, "bytes", {UNKNOWN: ("true",), BINARIES: ("bytes",)}, (SPELLED_BY_JAVA,)),
    Arrival(_SHAPES, "string", {UNKNOWN: ("true",), BINARIES: AS_TEXT}, (SPELLED_BY_JAVA,)),
    Arrival(_UNKNOWN, "bytes", {UNKNOWN: ("true",), BINARIES: ("bytes",)}),
    Arrival(_UNKNOWN, "string", {UNKNOWN: ("true",), BINARIES: AS_TEXT}),
    Arrival(_NEVER_SENT, None, {}, (NOT_SENT,)),
    Arrival(("bit(5)[]",), bits(5), {}, (ALWAYS_NULL,)),
    Arrival(("smallint[]",), array(SMALL)),
    Arrival(("integer[]",), array("int"), {}, (DIMENSIONS,)),
    Arrival(("bigint[]", "oid[]"), array("long")),
    Arrival(("real[]",), array("float")),
    Arrival(("double precision[]",), array("double")),
    Arrival(("boolean[]",), array("boolean")),
    Arrival(("numeric(4,2)[]",), array(decimal(4, 2)), PRECISE, (NOT_FINITE_IN_ARRAY,)),
    Arrival(("numeric(50,5)[]",), array(decimal(50, 5)), PRECISE, (NOT_FINITE_IN_ARRAY,)),
    Arrival(("numeric[]",), array(VARIABLE), PRECISE, (NOT_FINITE_IN_ARRAY, ZEROS)),
    Arrival(
        ("numeric(4,2)[]", "numeric(50,5)[]", "numeric[]"), array("double"), AS_DOUBLE, (NOT_FINITE_IN_ARRAY, DOUBLE)
    ),
    Arrival(("numeric(4,2)[]", "numeric(50,5)[]", "numeric[]"), array("string"), AS_STRING, (NOT_FINITE_IN_ARRAY,)),
    Arrival(("text[]",), array("string"), {}, (DIMENSIONS_OF_TEXT,)),
    Arrival(_ARRAYS_OF_TEXT, array("string")),
    Arrival(("bytea[]",), array("bytes"), {BINARIES: ("bytes",)}),
    Arrival(("bytea[]",), array("string"), {BINARIES: AS_TEXT}),
    Arrival(("uuid[]",), array(data("string", "Uuid"))),
    Arrival(("json[]", "jsonb[]"), array(data("string", "Json"))),
    Arrival(("tsvector[]",), {"type": "array", "items": data("string", "Tsvector")}, {}, (NULL_IN_ARRAY,)),
    Arrival(("enum[]",), {"type": "array", "items": enum("Enum", "sad,ok,happy")}, {}, (NULL_IN_ARRAY,)),
    Arrival(("date[]",), array(time("int", "Date")), EPOCH_DAYS, _DATES_LOSES),
    Arrival(("date[]",), array(CONNECT_DATE), IN_CONNECT, _DATES_LOSES),
    Arrival(("date[]",), array(time("string", "IsoDate")), ISO, _DATES_LOSES),
    Arrival(("time[]",), array(time("long", "MicroTime")), ADAPTIVE_OR_MICROS, (MIDNIGHT, MILLISECONDS)),
    Arrival(("time[]",), array(time("long", "NanoTime")), NANO, (MIDNIGHT, MILLISECONDS)),
    Arrival(("time[]",), array(CONNECT_TIME), IN_CONNECT, (MIDNIGHT, MILLISECONDS)),
    Arrival(("time[]",), array(time("string", "IsoTime")), ISO, (MIDNIGHT, MILLISECONDS)),
    Arrival(("timetz[]",), array(time("string", "ZonedTime")), {}, (ZONE, MIDNIGHT, SECONDS)),
    Arrival(("timestamp[]",), array(time("long", "MicroTimestamp")), ADAPTIVE_OR_MICROS, (OUT_OF_CALENDAR, JULIAN)),
    Arrival(("timestamp[]",), array(time("long", "NanoTimestamp")), NANO, (OUT_OF_CALENDAR, NANO_RANGE)),
    Arrival(("timestamp[]",), array(CONNECT_TIMESTAMP), IN_CONNECT, (OUT_OF_CALENDAR, JULIAN, MILLISECONDS)),
    Arrival(("timestamp[]",), array(time("string", "IsoTimestamp")), ISO, (OUT_OF_CALENDAR, JULIAN)),
    Arrival(
        ("timestamptz[]",), array(time("string", "ZonedTimestamp")), {}, (OUT_OF_CALENDAR, ERA_IN_ARRAY, GAP_IN_ARRAY)
    ),
    Arrival(("vector(3)[]",), {"type": "array", "items": DOUBLE_VECTOR}, {}, (NULL_IN_ARRAY,)),
    # What Debezium 3.7 sends, from its documentation and sources.
    Arrival(
        tuple(f"{name} since Debezium 3.7" for name in ("lseg", "box", "path", "polygon")),
        SHAPE,
        examples=(
            (
                {"wkb": b"\1", "srid": None, "extensions": {"type": "box"}},
                {"wkb": b"\1", "srid": None, "extensions": [("type", "box")]},
            ),
        ),
        is_live=False,
    ),
    Arrival(("line since Debezium 3.7",), LINE, examples=(({"a": 1.5, "b": -2.0, "c": 0.0},) * 2,), is_live=False),
    Arrival(
        ("circle since Debezium 3.7",),
        CIRCLE,
        examples=(({"center": {"x": 0.1, "y": 2.0, "wkb": b"\1", "srid": None}, "radius": 0.5},) * 2,),
        is_live=False,
    ),
    *(
        Arrival((kind,), record(*of_kind, space="io.debezium.time"), {TIMES: ("structured",)}, (), examples, False)
        for kind, of_kind in STRUCTURED.items()
        for examples in [_structured_examples(of_kind)]
    ),
    # Extensions that the embedded Postgres does not have.
    Arrival(("citext", "isbn"), "string", examples=(("A", "A"),), is_live=False),
    Arrival(("ltree",), data("string", "Ltree"), examples=(("a.b", "a.b"),), is_live=False),
    Arrival(("ltree[]",), array(data("string", "Ltree")), examples=((["a.b", None], ["a.b", None]),), is_live=False),
    Arrival(
        ("hstore",),
        data("string", "Json"),
        {HSTORES: ("json",)},
        examples=(('{"a":null}', '{"a":null}'),),
        is_live=False,
    ),
    Arrival(
        ("hstore",),
        MAP,
        {HSTORES: ("map",)},
        examples=(({"a": "1", "b": None}, [("a", "1"), ("b", None)]), ({}, [])),
        is_live=False,
    ),
    Arrival(
        ("geometry",),
        GEOMETRY,
        examples=tuple(({"wkb": b"\1", "srid": srid},) * 2 for srid in (4326, None)),
        is_live=False,
    ),
    Arrival(("geography",), GEOGRAPHY, examples=(({"wkb": b"\1", "srid": None},) * 2,), is_live=False),
)


def _at(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[arg-type,misc]


def same(*values: Any) -> tuple[tuple[Any, Any], ...]:
    """Examples that are stored as they are sent."""
    return tuple((value, value) for value in values)


DAYS = ((19_782, dt.date(2024, 2, 29)), (2**31 - 1, None))
MILLIS = ((1_500, _at(1970, 1, 1, 0, 0, 1, 500_000)), (-1, _at(1969, 12, 31, 23, 59, 59, 999_000)), (2**60, None))
MICROS = ((1_000_001, _at(1970, 1, 1, 0, 0, 1, 1)), (2**62, None))
NANOS = ((1_000_001_999, _at(1970, 1, 1, 0, 0, 1, 1)), (2**63 - 1, None), (-1, _at(1969, 12, 31, 23, 59, 59, 999_999)))
ZONED = (("2024-02-29T01:02:03.1234567+05:30", _at(2024, 2, 28, 19, 32, 3, 123_456)), ("-4712-01-01T00:00:00Z", None))
TEXT = same("", "東京 🎬", " padded ")
AMOUNT = same(Decimal("-99.99"), Decimal("0.00"))
FROM_MILLIS = ((86_399_999, 86_399_999_000),)

MYSQL = (
    Arrival(("TINYINT", "TINYINT(1)", "BOOLEAN", "SMALLINT"), SMALL, examples=same(0, 1, -32768)),
    Arrival(("SMALLINT UNSIGNED", "MEDIUMINT", "MEDIUMINT UNSIGNED", "INT"), "int", examples=same(65535, -(2**31))),
    Arrival(("INT UNSIGNED", "BIGINT"), "long", examples=same(2**32 - 1, -(2**63))),
    Arrival(("BIGINT UNSIGNED",), "long", {UNSIGNED: ("long",)}, (WRAPPED,), same(-1, 2**63 - 1)),
    Arrival(
        ("BIGINT UNSIGNED",),
        any_precision(0),
        {UNSIGNED: ("precise",)},
        examples=(((2**64 - 1).to_bytes(9, "big"), str(2**64 - 1)), (b"\0", "0")),
    ),
    Arrival(("BIT(1)",), "boolean", examples=same(True)),
    Arrival(("BIT(16)",), bits(16), examples=same(b"\1\x80")),
    Arrival(("FLOAT",), "float", examples=same(0.5)),
    Arrival(("DOUBLE", "REAL"), "double", examples=same(0.1)),
    Arrival(("DECIMAL(4,2)",), decimal(4, 2), PRECISE, examples=AMOUNT),
    Arrival(
        ("DECIMAL(65,2)",),
        decimal(65, 2),
        PRECISE,
        examples=(((-(10**64)).to_bytes(27, "big", signed=True), f"-1{'0' * 62}.00"),),
    ),
    Arrival(("DECIMAL(4,2)", "DECIMAL(65,2)"), "double", AS_DOUBLE, (DOUBLE,), same(4.99)),
    Arrival(("DECIMAL(4,2)", "DECIMAL(65,2)"), "string", AS_STRING, (), same("4.90")),
    Arrival(("CHAR", "VARCHAR", "TEXT", "LONGTEXT"), "string", examples=TEXT),
    Arrival(("BINARY", "VARBINARY", "BLOB"), "bytes", {BINARIES: ("bytes",)}, examples=same(b"", b"\xff\0")),
    Arrival(("BINARY", "VARBINARY", "BLOB"), "string", {BINARIES: AS_TEXT}, (), same("ff00")),
    Arrival(("JSON",), data("string", "Json"), examples=same('{"a": 1.50}', "7", "null")),
    Arrival(("ENUM",), enum("Enum", "a,b"), examples=same("a", "", "not allowed")),
    Arrival(("SET",), enum("EnumSet", "a,b"), examples=same("a,b", "")),
    Arrival(("YEAR",), time("int", "Year"), examples=same(2024, 0)),
    Arrival(("DATE",), time("int", "Date"), EPOCH_DAYS, (ZERO_DATES,), DAYS),
    Arrival(("DATE",), CONNECT_DATE, IN_CONNECT, (ZERO_DATES,), DAYS),
    Arrival(
        ("TIME",),
        time("long", "MicroTime"),
        ADAPTIVE_OR_MICROS,
        # A MySQL time is a duration: from -838:59:59 to 838:59:59.
        examples=same(86_400_000_000, -3_020_399_000_000, 3_020_399_000_000),
    ),
    Arrival(("TIME",), CONNECT_TIME, IN_CONNECT, (MILLISECONDS,), FROM_MILLIS),
    Arrival(
        ("DATETIME", "DATETIME(3)"),
        time("long", "Timestamp"),
        {TIMES: ("adaptive", "adaptive_time_microseconds")},
        (ZERO_DATES,),
        MILLIS,
    ),
    Arrival(("DATETIME(6)",), time("long", "MicroTimestamp"), ADAPTIVE_OR_MICROS, (ZERO_DATES,), MICROS),
    Arrival(("DATETIME(6)",), CONNECT_TIMESTAMP, IN_CONNECT, (ZERO_DATES, MILLISECONDS), MILLIS),
    Arrival(("TIMESTAMP", "TIMESTAMP(6)"), time("string", "ZonedTimestamp"), {}, (ZERO_DATES,), ZONED),
    Arrival(("GEOMETRY", "POINT", "POLYGON", "…"), GEOMETRY, examples=same({"wkb": b"\1\2", "srid": None})),
    Arrival(("VECTOR",), FLOAT_VECTOR, examples=same([0.5, -1.0], [])),
)

SQL_SERVER = (
    Arrival(("BIT",), "boolean", examples=same(False)),
    Arrival(("TINYINT", "SMALLINT"), SMALL, examples=same(255, -32768)),
    Arrival(("INT",), "int", examples=same(-1)),
    Arrival(("BIGINT",), "long", examples=same(-(2**63))),
    Arrival(("REAL",), "float", examples=same(0.5)),
    Arrival(("FLOAT",), "double", examples=same(0.1)),
    Arrival(("NUMERIC(4,2)", "DECIMAL(4,2)"), decimal(4, 2), PRECISE, examples=AMOUNT),
    Arrival(("MONEY",), decimal(19, 4), PRECISE, examples=same(Decimal("-922337203685477.5808"))),
    Arrival(("SMALLMONEY",), decimal(10, 4), PRECISE, examples=same(Decimal("214748.3647"))),
    Arrival(("NUMERIC(4,2)", "MONEY", "SMALLMONEY"), "double", AS_DOUBLE, (DOUBLE,), same(4.99)),
    Arrival(("NUMERIC(4,2)", "MONEY", "SMALLMONEY"), "string", AS_STRING, (), same("4.90")),
    Arrival(("CHAR", "NVARCHAR", "NTEXT", "UNIQUEIDENTIFIER"), "string", examples=TEXT),
    Arrival(("XML",), data("string", "Xml"), examples=same("<a/>")),
    Arrival(("BINARY", "VARBINARY", "IMAGE", "ROWVERSION"), "bytes", {BINARIES: ("bytes",)}, examples=same(b"\0\7")),
    Arrival(("DATE",), time("int", "Date"), EPOCH_DAYS, (), DAYS),
    Arrival(("TIME(3)",), time("int", "Time"), ADAPTIVE, examples=FROM_MILLIS),
    Arrival(("TIME(6)",), time("long", "MicroTime"), ADAPTIVE_OR_MICROS, examples=same(1)),
    Arrival(
        ("TIME(7)",), time("long", "NanoTime"), ADAPTIVE, examples=((1_999, 1), (86_399_999_999_900, 86_399_999_999))
    ),
    Arrival(("DATETIME", "SMALLDATETIME", "DATETIME2(3)"), time("long", "Timestamp"), ADAPTIVE, (), MILLIS),
    Arrival(("DATETIME2(6)",), time("long", "MicroTimestamp"), ADAPTIVE, (), MICROS),
    Arrival(("DATETIME2(7)",), time("long", "NanoTimestamp"), ADAPTIVE, (NANO_RANGE,), NANOS),
    Arrival(("DATE",), CONNECT_DATE, IN_CONNECT, (), DAYS),
    Arrival(("TIME(7)",), CONNECT_TIME, IN_CONNECT, (MILLISECONDS,), FROM_MILLIS),
    Arrival(("DATETIME2(7)",), CONNECT_TIMESTAMP, IN_CONNECT, (MILLISECONDS,), MILLIS),
    Arrival(("DATETIMEOFFSET",), time("string", "ZonedTimestamp"), {}, (ZONE,), ZONED),
)

ORACLE = (
    Arrival(("CHAR", "VARCHAR2", "NVARCHAR2", "CLOB"), "string", examples=TEXT),
    Arrival(("RAW", "BLOB"), "bytes", {BINARIES: ("bytes",)}, examples=same(b"\0\7")),
    Arrival(("XMLTYPE",), data("string", "Xml"), examples=same("<a/>")),
    Arrival(("BINARY_FLOAT",), "float", examples=same(0.5)),
    Arrival(("BINARY_DOUBLE",), "double", examples=same(0.1, float("inf"))),
    Arrival(("NUMBER(2)",), {"type": "int", "connect.type": "int8"}, examples=same(-99)),
    Arrival(("NUMBER(4)",), SMALL, examples=same(9999)),
    Arrival(("NUMBER(9)",), "int", examples=same(-999_999_999)),
    Arrival(("NUMBER(18)",), "long", examples=same(10**18 - 1)),
    Arrival(("NUMBER(38)",), decimal(38, 0), PRECISE, examples=same(Decimal("9" * 38), Decimal("-" + "9" * 38))),
    Arrival(("NUMBER(4,2)",), decimal(4, 2), PRECISE, examples=AMOUNT),
    Arrival(
        ("NUMBER", "FLOAT"),
        VARIABLE,
        PRECISE,
        (ZEROS,),
        (
            ({"scale": 1, "value": b"\x69"}, "10.5"),
            ({"scale": -2, "value": b"\xff"}, "-100"),
            ({"scale": 130, "value": b"\1"}, f"0.{'0' * 129}1"),
        ),
    ),
    Arrival(("NUMBER", "NUMBER(4,2)"), "double", AS_DOUBLE, (DOUBLE,), same(4.99)),
    Arrival(("NUMBER", "NUMBER(4,2)"), "string", AS_STRING, (), same("4.9")),
    Arrival(("DATE", "TIMESTAMP(3)"), time("long", "Timestamp"), ADAPTIVE, (), MILLIS),
    Arrival(("TIMESTAMP(6)",), time("long", "MicroTimestamp"), ADAPTIVE, (), MICROS),
    Arrival(("TIMESTAMP(9)",), time("long", "NanoTimestamp"), ADAPTIVE, (NANO_RANGE,), NANOS),
    Arrival(("DATE", "TIMESTAMP(9)"), CONNECT_TIMESTAMP, IN_CONNECT, (MILLISECONDS,), MILLIS),
    Arrival(("TIMESTAMP WITH (LOCAL) TIME ZONE",), time("string", "ZonedTimestamp"), {}, (ZONE,), ZONED),
    Arrival(
        ("INTERVAL",), time("long", "MicroDuration"), {INTERVALS: ("numeric",)}, (MONTHS,), same(-2_629_800_000_000)
    ),
    Arrival(("INTERVAL",), time("string", "Interval"), {INTERVALS: ("string",)}, (), same("P-1Y2M3DT4H5M6.78S")),
)

MONGODB = (Arrival(("a whole document",), data("string", "Json"), examples=same('{"_id": {"$oid": "64b"}, "n": 1.0}')),)
SOURCES = {
    "Postgres": POSTGRES,
    "MySQL and MariaDB": MYSQL,
    "SQL Server": SQL_SERVER,
    "Oracle": ORACLE,
    "MongoDB": MONGODB,
}

# Types that no connector above sends, but that a setting or another connector may send.
OTHERS = (
    Arrival(("a duration in nanoseconds",), time("long", "NanoDuration"), examples=((-1_001, -2), (1_999, 1))),
    Arrival(
        ("an ISO date",),
        time("string", "IsoDate"),
        examples=(("2017-09-15Z", dt.date(2017, 9, 15)), ("+20000-01-01Z", None)),
    ),
)
