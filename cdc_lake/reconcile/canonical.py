"""One text for a value, made alike by Postgres and by Spark: equal texts are equal values, and no others are.

So both sides can be compared where they are, by checksums of these texts, and value by value where those differ. A rule
is for a type of Postgres and the type that silver holds it in; where there is none, the column cannot be compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.types import ArrayType, DataType

from cdc_lake.reconcile import catalogue

Key = int | str
"""A key: the number, where it is one whole number; else a text that is in the order of its bytes on both sides."""

_MARK = "\x01"
_END, _ESCAPED = f"{_MARK},", f"{_MARK}."
_DIMENSIONS = "#"
"""Before the elements of an array of several dimensions, which silver never holds as it is."""


@dataclass(frozen=True)
class Rule:
    """How the values of one type become texts. Null stays null.

    Attributes:
        source: SQL of Postgres that makes the text of `{c}`.
        silver: makes it of silver's column.
        read: from the text to the value as `catalogue.Table.loss` takes it.
    """

    source: str
    silver: Callable[[Column], Column]
    read: Callable[[str], object] = str


def _cast(column: Column) -> Column:
    return column.cast("string")


def _same(column: Column) -> Column:
    return column


def _hex(column: Column) -> Column:
    return F.lower(F.hex(column))


def _digits(column: Column) -> Column:
    return F.call_function("format_number", column, F.lit("0." + "#" * 38))


def _plain_number(text: Column) -> Column:
    """A plain decimal text without zeros at its end, and Debezium's words for what is no number in Postgres'."""
    stripped = F.regexp_replace(F.regexp_replace(text, r"(\.\d*?)0+$", "$1"), r"\.$", "")
    return (
        F.when(text == "NAN", "NaN")
        .when(text == "POSITIVE_INFINITY", "Infinity")
        .when(text == "NEGATIVE_INFINITY", "-Infinity")
        .otherwise(stripped)
    )


def _bits_of(kind: str) -> Callable[[Column], Column]:
    """The bits of a floating-point number: its shortest decimal text is not the same in Java and Postgres.

    Avro writes them with the last byte first, so the text has its digits in reverse order.
    """
    return lambda column: F.regexp_replace(_hex(to_avro(column, f'"{kind}"')), "(.)(.)", "$2$1")


def _binary_digits(data: Column) -> Column:
    """Of bits that come with the last byte first, without leading zeros."""
    places = F.reverse(F.sequence(F.lit(1), F.length(data)))
    each = F.transform(places, lambda place: F.lpad(F.conv(F.hex(F.substr(data, place, F.lit(1))), 16, 2), 8, "0"))
    return F.when(F.length(data) == 0, "").otherwise(F.regexp_replace(F.array_join(each, ""), "^0+", ""))


def _point(column: Column) -> Column:
    bits = _bits_of("double")
    return F.concat(bits(column["x"]), F.lit(" "), bits(column["y"]))


def _number(text: str) -> object:
    return Decimal(text)


def _day(text: str) -> object:
    try:
        return date(1970, 1, 1) + timedelta(days=int(text))
    except (OverflowError, ValueError):
        return Decimal(text)


def _moment(text: str) -> object:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(text))
    except (OverflowError, ValueError):
        return Decimal(text)


_BITS_OF_DOUBLE = "reverse(encode(float8send({c}), 'hex'))"
_WHOLE = Rule("{c}::text", _cast, int)
_BOOLEAN = Rule("{c}::int::bool::text", _cast)
_BIT = Rule("{c}::bit(1)::int::bool::text", _cast)
_DOUBLE = Rule(_BITS_OF_DOUBLE, _bits_of("double"))
_NUMBER = Rule("trim_scale({c}::numeric)::text", _digits, _number)
_NUMBER_AS_TEXT = Rule(_NUMBER.source, _plain_number, _number)
_NUMBER_AS_DOUBLE = Rule(_BITS_OF_DOUBLE.format(c="{c}::numeric::float8"), _DOUBLE.silver)
_DAYS = Rule(
    "CASE WHEN isfinite({c}) THEN ({c} - date '1970-01-01')::text ELSE {c}::text END",
    lambda column: _cast(F.unix_date(column)),
    _day,
)
_MOMENT = Rule(
    "CASE WHEN isfinite({c}) THEN trunc(extract(epoch FROM {c}) * 1000000)::text ELSE {c}::text END",
    lambda column: _cast(F.unix_micros(column)),
    _moment,
)
_TIME = Rule("trunc(extract(epoch FROM {c}) * 1000000)::text", _cast, int)
# Debezium counts a month as the twelfth part of 365.25 days.
_INTERVAL = Rule(
    "trunc(((extract(year FROM {c}) * 12 + extract(month FROM {c})) * 30.4375 + extract(day FROM {c})) * 86400000000"
    " + extract(epoch FROM {c} - date_trunc('day', {c})) * 1000000)::text",
    _cast,
    int,
)
# What a client sees: a cast to text adds a netmask to every address.
_TEXT = Rule("CASE WHEN {c} IS NOT NULL THEN format('%s', {c}) END", _same)

_WHOLE_TYPES = ("byte", "short", "integer", "long")
_TEXT_TYPES = (
    *("char", "varchar", "text", "citext", "uuid", "json", "jsonb", "xml", "ltree", "tsvector"),
    *("inet", "cidr", "macaddr", "macaddr8"),
    *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
)
_RULES = {
    **{(kind, held): _WHOLE for kind in ("int2", "int4", "int8", "oid") for held in _WHOLE_TYPES},
    # Where the column's type changed, silver may hold whole numbers as texts, and the other way round.
    **{(kind, "string"): Rule(_WHOLE.source, _same, int) for kind in ("int2", "int4", "int8")},
    **{(kind, held): Rule(_TEXT.source, _cast) for kind in ("text", "varchar") for held in _WHOLE_TYPES},
    ("bool", "boolean"): _BOOLEAN,
    **{(kind, "boolean"): _BIT for kind in ("bit", "varbit")},
    ("float4", "float"): Rule("reverse(encode(float4send({c}), 'hex'))", _bits_of("float")),
    # A column of silver stays wide when the source's becomes narrower.
    ("float4", "double"): Rule(_BITS_OF_DOUBLE.replace("{c}", "{c}::float8"), _DOUBLE.silver),
    ("float8", "double"): _DOUBLE,
    **{(kind, "decimal"): _NUMBER for kind in ("numeric", "money")},
    **{(kind, "string"): _NUMBER_AS_TEXT for kind in ("numeric", "money")},
    **{(kind, "double"): _NUMBER_AS_DOUBLE for kind in ("numeric", "money")},
    ("date", "date"): _DAYS,
    **{(kind, "timestamp"): _MOMENT for kind in ("timestamp", "timestamptz")},
    **{("time", held): _TIME for held in _WHOLE_TYPES},
    # With its zone, by which `catalogue` knows the loss, where Debezium sends null.
    ("timetz", "string"): Rule(
        "CASE WHEN extract(timezone FROM {c})::int % 60 = 0 THEN ({c} AT TIME ZONE 'UTC')::time::text || 'Z'"
        " ELSE {c}::text END",
        _same,
    ),
    ("interval", "long"): _INTERVAL,
    ("bytea", "binary"): Rule("encode({c}, 'hex')", _hex),
    **{(kind, "binary"): Rule("ltrim({c}::text, '0')", _binary_digits) for kind in ("bit", "varbit")},
    ("point", "struct"): Rule(
        f"{_BITS_OF_DOUBLE.format(c='({c})[0]')} || ' ' || {_BITS_OF_DOUBLE.format(c='({c})[1]')}", _point
    ),
    # Padded, as a client sees it: a cast to text would drop the padding.
    ("bpchar", "string"): Rule("textin(bpcharout({c}))", _same),
    **{(kind, "string"): _TEXT for kind in _TEXT_TYPES},
}
"""By Postgres' name of the type, domains followed to theirs, and Spark's of the one that silver has."""


def rule(column: catalogue.Column, held: DataType) -> Rule | None:
    """How the values of a column become texts; none where nothing is known that is alike on both sides.

    Args:
        column: of the source.
        held: its type in silver.
    """
    if column.is_array != isinstance(held, ArrayType):
        return None
    element = held.elementType if isinstance(held, ArrayType) else held
    is_enum = column.kind == "e" and element.typeName() == "string"
    found = _TEXT if is_enum else _RULES.get((column.type, element.typeName()))
    return _array(found) if found and column.is_array else found


def _array(element: Rule) -> Rule:
    each = joined_in_source([element.source.replace("{c}", "element")])
    parts = (
        f"(SELECT coalesce(string_agg({each}, '' ORDER BY place), '')"
        " FROM unnest({c}) WITH ORDINALITY AS e(element, place))"
    )

    def read(text: str) -> object:
        several = text.startswith(_DIMENSIONS)
        values = tuple(None if part is None else element.read(part) for part in split(text.removeprefix(_DIMENSIONS)))
        return (values,) if several else values

    return Rule(
        f"CASE WHEN array_ndims({{c}}) > 1 THEN '{_DIMENSIONS}' || {parts} WHEN {{c}} IS NOT NULL THEN {parts} END",
        lambda column: F.array_join(F.transform(column, lambda each: joined_in_silver([element.silver(each)])), ""),
        read,
    )


def joined_in_source(texts: Sequence[str]) -> str:
    """SQL of Postgres for several texts as one, from which each can be told again; null is not the empty text."""
    return " || ".join(
        f"coalesce('+' || replace({text}, chr(1), chr(1) || '.'), '-') || chr(1) || ','" for text in texts
    )


def joined_in_silver(texts: Sequence[Column]) -> Column:
    """The same of Spark's columns, string."""
    escaped = (F.replace(text, F.lit(_MARK), F.lit(_ESCAPED)) for text in texts)
    return F.concat(*(F.concat(F.coalesce(F.concat(F.lit("+"), text), F.lit("-")), F.lit(_END)) for text in escaped))


def split(text: str) -> tuple[str | None, ...]:
    """The texts that were joined."""
    parts = text.split(_END)[:-1]
    return tuple(None if part == "-" else part[1:].replace(_ESCAPED, _MARK) for part in parts)
