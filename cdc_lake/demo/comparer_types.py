"""The type that each Postgres type must have in the lake, and how the comparer reads its values on both sides.

Like `comparer.py`, this module imports nothing of cdc_lake.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa


def _same(value: Any) -> object:
    return value


@dataclass(frozen=True)
class TypeRule:
    """How values of a Postgres type are compared: both sides are converted to a common form.

    Attributes:
        lake_type: name of the expected type in the lake.
        accepts: whether an Arrow type is that type.
        select: SQL that reads the column `{c}`.
        cast: Arrow type with which to read the lake's column, if its own would lose or reject values.
        read: converts the lake's value to the form that psycopg returns for `select`.
        show: converts that form for display.
    """

    lake_type: str
    accepts: Callable[[pa.DataType], bool]
    select: str = "{c}"
    cast: pa.DataType | None = None
    read: Callable[[Any], object] = _same
    show: Callable[[Any], object] = _same


def _any_of(*checks: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda arrow: any(check(arrow) for check in checks)


_is_string = _any_of(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_is_binary = _any_of(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
_is_list = _any_of(pa.types.is_list, pa.types.is_large_list)
_UTC = ("UTC", "+00:00")


def _is_instant(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(arrow) and arrow.unit == "us" and arrow.tz in _UTC)


def _is_wall_clock(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(arrow) and arrow.unit == "us" and arrow.tz in (None, *_UTC))


def _plain_number(text: str | None) -> object:
    """The number in a decimal text; other texts stay unchanged, so they equal no number."""
    return Decimal(text) if text is not None and re.fullmatch(r"-?\d+(\.\d+)?", text) else text


def _day(days: Any) -> object:
    try:
        return date(1970, 1, 1) + timedelta(days=int(days))
    except (OverflowError, TypeError):
        return days


def _instant(micros: Any) -> object:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(micros))
    except (OverflowError, TypeError):
        return micros


def _bits(data: bytes | None) -> object:
    """Little-endian bits as a number; the column's type determines their count."""
    return None if data is None else int.from_bytes(data, "little")


def _time_of_day(text: str | None) -> object:
    """A time in UTC such as `10:00:00.5Z` as a text of microseconds."""
    if text is None:
        return None
    hours, minutes, seconds = text.removesuffix("Z").split(":")
    return str((int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000))


def _point(value: Mapping[str, float] | None) -> object:
    return None if value is None else (value["x"], value["y"])


BOOLEAN = TypeRule("boolean", pa.types.is_boolean)
# `format`, because a cast to text adds a netmask to each address.
_TEXT = TypeRule("string", _is_string, "CASE WHEN {c} IS NOT NULL THEN format('%s', {c}) END")
_NUMBER_TEXT = TypeRule("string (plain number)", _is_string, read=_plain_number)
# Days and microseconds are compared as numbers: infinity, BC and the year 294276 have no Python date.
_MICROS = "extract(epoch FROM {c}) * 1000000"
_BITS = (
    "CASE WHEN {c} IS NOT NULL THEN (SELECT coalesce(sum(power(2::numeric, length({c}) - place)), 0)"
    " FROM generate_series(1, length({c})) AS place WHERE get_bit({c}, place - 1) = 1) END"
)
_RULES = {
    "int2": TypeRule("short", pa.types.is_int16),
    "int4": TypeRule("int", pa.types.is_int32),
    "int8": TypeRule("long", pa.types.is_int64),
    "bool": BOOLEAN,
    # float8 keeps the binary value of a float4; its text would be read as the double nearest to the short decimal.
    "float4": TypeRule("float", pa.types.is_float32, "{c}::float8"),
    "float8": TypeRule("double", pa.types.is_float64),
    "bytea": TypeRule("binary", _is_binary),
    "date": TypeRule("date", pa.types.is_date32, "extract(epoch FROM {c}) / 86400", pa.int32(), show=_day),
    "time": TypeRule("long (microseconds)", pa.types.is_int64, _MICROS),
    "timestamp": TypeRule("timestamp (UTC wall clock)", _is_wall_clock, _MICROS, pa.int64(), show=_instant),
    "timestamptz": TypeRule("timestamp (UTC)", _is_instant, _MICROS, pa.int64(), show=_instant),
    # Microseconds, or the source's text if the zone has seconds, for which Debezium sends null.
    "timetz": TypeRule(
        "string (time in UTC)",
        _is_string,
        "CASE WHEN extract(timezone FROM {c})::int % 60 = 0"
        " THEN trunc(extract(epoch FROM {c} AT TIME ZONE 'UTC') * 1000000)::text ELSE {c}::text END",
        read=_time_of_day,
    ),
    # Debezium converts a month to a twelfth of 365.25 days.
    "interval": TypeRule(
        "long (microseconds)",
        pa.types.is_int64,
        "((extract(year FROM {c}) * 12 + extract(month FROM {c})) * 30.4375 + extract(day FROM {c})) * 86400000000"
        " + extract(epoch FROM {c} - date_trunc('day', {c})) * 1000000",
    ),
    "oid": TypeRule("long", pa.types.is_int64, "{c}::int8"),
    "money": replace(_NUMBER_TEXT, select="{c}::numeric"),
    "point": TypeRule(
        "struct of x and y",
        pa.types.is_struct,
        "CASE WHEN {c} IS NOT NULL THEN ARRAY[({c})[0], ({c})[1]] END",
        read=_point,
    ),
    **dict.fromkeys(("bit", "varbit"), TypeRule("binary", _is_binary, _BITS, read=_bits)),
    # A cast of char(n) to text would drop the padding.
    "bpchar": TypeRule("string", _is_string, "textin(bpcharout({c}))"),
}


def type_rule(type_name: str, modifier: int) -> TypeRule:
    """The rule of a base type; `modifier` is Postgres's type modifier, such as of `numeric(4,2)` or `bit(8)`."""
    if type_name == "numeric":
        return _decimal_rule(modifier)
    if type_name in ("bit", "varbit") and modifier == 1:
        return replace(BOOLEAN, select="({c})::bit(1)::int::bool")
    return _RULES.get(type_name, _TEXT)


def _decimal_rule(modifier: int) -> TypeRule:
    """The rule of `numeric` by its packed precision and scale; -1 without them."""
    if modifier < 0:
        return _NUMBER_TEXT
    precision, scale = (modifier - 4) >> 16, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    if precision > 38 or scale < 0:
        return _NUMBER_TEXT
    return TypeRule(
        f"decimal({precision},{scale})",
        # A lake column stays wide if the source's is narrowed, so more digits are correct, but not another scale.
        lambda arrow: bool(pa.types.is_decimal128(arrow) and arrow.scale == scale and arrow.precision >= precision),
    )


def array_rule(element: TypeRule) -> TypeRule:
    """The rule of an array; one of several dimensions is read as a nested array with all elements."""
    each = element.select.format(c="element")
    parts = f"ARRAY(SELECT {each} FROM unnest({{c}}) WITH ORDINALITY AS e(element, place) ORDER BY place)"

    def show(value: Any) -> object:
        return tuple(map(show, value)) if isinstance(value, tuple) else element.show(value)

    return TypeRule(
        f"array<{element.lake_type}>",
        lambda arrow: bool(_is_list(arrow) and element.accepts(arrow.value_type)),
        f"CASE WHEN array_ndims({{c}}) > 1 THEN ARRAY[{parts}] WHEN {{c}} IS NOT NULL THEN {parts} END",
        pa.list_(element.cast) if element.cast else None,
        lambda values: None if values is None else tuple(None if v is None else element.read(v) for v in values),
        lambda values: None if values is None else show(values),
    )
