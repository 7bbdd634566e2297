"""The table types of a change event's values: one mapping from (Avro type, Connect name) to a Spark type.

Only four Connect types have an Avro logical type; all of Debezium's own arrive as bare numbers and texts, with their
meaning in `connect.name`. `RULES` is the complete mapping except for types with parameters: decimals, small integers,
arrays, maps and records, which `type_mapping` builds. docs/reference/types.md is generated from it.
Sources: Debezium's type mappings; docs/explanation/bronze.md "Types".
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.columns import quoted
from cdc_lake.decode.schemas import SchemaError
from cdc_lake.decode.trees import Tree, connect_name, decimal_size, fields, is_decimal, non_null
from cdc_lake.decode.unscaled import MAX_DIGITS, is_too_long, plain_text

OUT_OF_CALENDAR = "infinities and years outside 1 to 9999 become null"
BEYOND_MICROSECONDS = "digits beyond microseconds are cut off"

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 in days from 1970: what Spark, Parquet readers and Python hold alike."""
_DAY_MICROS = 86_400_000_000
_YEAR_IN_RANGE = r"^(?!0000)\d{4}-"
_TIME_OF_DAY = r"^\d{2}:\d{2}:\d{2}(\.\d+)?Z?$"

_WHOLE = ("smallint", "int", "bigint")
_FLOATING = ("float", "double")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MOST_DIGITS = 38
"""Of Spark's widest decimal."""


def _same(column: Column) -> Column:
    return column


def _never(_: Column) -> Column:
    return F.lit(False)


@dataclass(frozen=True)
class TypeMapping:
    """How a table stores a type.

    Attributes:
        type: Spark's name of the type in the table.
        convert: from the column as `from_avro` returns it to a column of `type`. Null stays null.
        losses: what a value can lose, as texts; empty if nothing.
        is_lossy: whether a non-null value does lose it.
        is_too_long: whether a value contains a number too long to write out; may be null if not.
    """

    type: str
    convert: Callable[[Column], Column] = _same
    losses: tuple[str, ...] = ()
    is_lossy: Callable[[Column], Column] = _never
    is_too_long: Callable[[Column], Column] = _never


def type_mapping(tree: Tree) -> TypeMapping:
    """How a table stores values of `tree`.

    Raises:
        SchemaError: a union of several types.
    """
    tree = non_null(tree)
    kind, name = tree["type"], connect_name(tree)
    if name is not None and (kind, name) in RULES:
        return RULES[kind, name]
    if is_decimal(tree):
        return _decimal(tree)
    if kind == "int" and tree.get("connect.type") in ("int8", "int16"):
        return _SMALL
    if kind == "array":
        return _array(type_mapping(tree["items"]))
    if kind == "map":
        return _map(type_mapping(tree["values"]))
    if kind == "record":
        return _struct({name: type_mapping(part) for name, part in fields(tree).items()})
    if (kind, None) in RULES:
        return RULES[kind, None]
    if kind == "spark":
        return TypeMapping(tree["spark.type"], _same)
    raise SchemaError(f"a column cannot store values of several types (Avro type `{kind}`)")


def number_problem(columns: Iterable[tuple[str, Tree, Column]]) -> Column:
    """Why numbers in columns cannot be written out, string; null if they can.

    Args:
        columns: name, type, and value as `from_avro` returns it.
    """
    what = f"has a number of more than {MAX_DIGITS} digits; set decimal.handling.mode=string on the connector"
    found = [
        F.when(stored.is_too_long(value), F.lit(f"the column `{name}` {what}"))
        for name, tree, value in columns
        if (stored := type_mapping(tree)).is_too_long is not _never
    ]
    return F.coalesce(*found, F.lit(None).cast("string"))


def is_garbled(tree: Tree, column: Column) -> Column | None:
    """Whether a text in a value of `tree`, as `from_avro` returns it, is not UTF-8; none if it has no text. Never null.

    Spark accepts any bytes as Avro text; other readers of the tables do not.
    """
    texts = list(_texts(tree, column))
    # One check of the joined texts is faster; the separator keeps two invalid ones from forming a valid character.
    joined = F.concat_ws(",", *texts)
    return joined.cast("binary") != F.encode(joined, "UTF-8") if texts else None


def _texts(tree: Tree, column: Column) -> Iterator[Column]:
    """The texts in a value: string or array<string>."""
    tree = non_null(tree)
    match tree["type"]:
        case "string":
            yield column
        case "array":
            yield from _texts_of_items(tree["items"], column)
        case "map":
            yield F.map_keys(column)
            yield from _texts_of_items(tree["values"], F.map_values(column))
        case "record":
            for name, part in fields(tree).items():
                yield from _texts(part, column[name])


def _texts_of_items(tree: Tree, items: Column) -> Iterator[Column]:
    if non_null(tree)["type"] == "string":
        yield items
    elif any(True for _ in _texts(tree, F.lit(None))):
        yield F.transform(items, lambda item: F.concat_ws(",", *_texts(tree, item)))


def plain_type(kind: str) -> str:
    """A Spark type's name in comparable form: no spaces, no quotes."""
    return kind.replace(" ", "").replace("`", "")


def wider(one: str, other: str) -> str | None:
    """The Spark type that represents every value of both; none if there is none without conversion."""
    if plain_type(one) == plain_type(other):
        return one
    for family in (_WHOLE, _FLOATING):
        if one in family and other in family:
            return max(one, other, key=family.index)
    sizes = [_DECIMAL.fullmatch(kind) for kind in (one, other)]
    if not all(sizes):
        return None
    digits = [(int(size[1]) - int(size[2]), int(size[2])) for size in sizes if size]
    whole, scale = (max(parts) for parts in zip(*digits, strict=True))
    return f"decimal({whole + scale},{scale})" if whole + scale <= _MOST_DIGITS else None


def same_key(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str] | None:
    """The columns, name to Spark type, of a primary key that both describe; none if they are two keys."""
    merged = {name: wide for name, kind in other.items() if (wide := wider(one.get(name, ""), kind))}
    return merged if one.keys() == other.keys() == merged.keys() else None


def stored_types(columns: Mapping[str, Tree]) -> dict[str, str]:
    """The Spark types in which a table holds columns."""
    return {name: type_mapping(tree).type for name, tree in columns.items()}


def _decimal(tree: Tree) -> TypeMapping:
    size = decimal_size(tree)
    if size is None:
        scale = tree.get("scale", 0)
        return TypeMapping("string", lambda c: plain_text(c, F.lit(scale)), is_too_long=lambda c: is_too_long(c, scale))
    target = f"decimal({size[0]},{size[1]})"
    return TypeMapping(target, lambda c: c.cast(target))


def _array(items: TypeMapping) -> TypeMapping:
    convert = _same if items.convert is _same else lambda c: F.transform(c, items.convert)
    is_lossy = (
        _never if items.is_lossy is _never else lambda c: F.exists(c, lambda i: i.isNotNull() & items.is_lossy(i))
    )
    too_long = _never if items.is_too_long is _never else lambda c: F.exists(c, items.is_too_long)
    return TypeMapping(f"array<{items.type}>", convert, items.losses, is_lossy, too_long)


def _map(values: TypeMapping) -> TypeMapping:
    def convert(column: Column) -> Column:
        return F.transform_values(column, lambda _, value: values.convert(value))

    def is_lossy(column: Column) -> Column:
        return F.exists(F.map_values(column), lambda value: value.isNotNull() & values.is_lossy(value))

    inner = values.is_too_long
    too_long = _never if inner is _never else lambda c: F.exists(F.map_values(c), inner)
    return TypeMapping(f"map<string, {values.type}>", convert, values.losses, is_lossy, too_long)


def _struct(parts: dict[str, TypeMapping]) -> TypeMapping:
    inner = ", ".join(f"{quoted(name)}: {part.type}" for name, part in parts.items())

    def convert(column: Column) -> Column:
        values = [part.convert(column[name]).alias(name) for name, part in parts.items()]
        return F.when(column.isNotNull(), F.struct(*values))

    def is_lossy(column: Column) -> Column:
        lost = F.lit(False)
        for name, part in parts.items():
            lost = lost | (column[name].isNotNull() & part.is_lossy(column[name]))
        return lost

    long = {name: part.is_too_long for name, part in parts.items() if part.is_too_long is not _never}

    def too_long(column: Column) -> Column:
        return reduce(or_, (F.coalesce(is_so(column[name]), F.lit(False)) for name, is_so in long.items()))

    losses = dict.fromkeys(loss for part in parts.values() for loss in part.losses)
    return TypeMapping(f"struct<{inner}>", convert, tuple(losses), is_lossy, too_long if long else _never)


def _date(days: Column) -> Column:
    return F.when(days.between(_FIRST_DAY, _LAST_DAY), F.date_add(F.lit("1970-01-01").cast("date"), days))


def _date_of_text(text: Column) -> Column:
    """An ISO date with or without a zone."""
    return F.when(text.rlike(_YEAR_IN_RANGE), F.try_to_timestamp(F.substring(text, 1, 10)).cast("date"))


def _timestamp(micros: Column) -> Column:
    in_range = micros.between(_FIRST_DAY * _DAY_MICROS, (_LAST_DAY + 1) * _DAY_MICROS - 1)
    return F.when(in_range, F.timestamp_micros(micros))


def _timestamp_of_millis(millis: Column) -> Column:
    limit = _DAY_MICROS // 1000
    return F.when(millis.between(_FIRST_DAY * limit, (_LAST_DAY + 1) * limit - 1), F.timestamp_millis(millis))


def _timestamp_of_nanos(nanos: Column) -> Column:
    # The largest and the smallest number are Postgres' infinities.
    return F.when(~nanos.isin(2**63 - 1, -(2**63)), _timestamp(_micros_of_nanos(nanos)))


def _timestamp_of_text(text: Column) -> Column:
    """ISO text; `infinity`, years of more than four digits and years before 1 are out of range."""
    return F.when(text.rlike(_YEAR_IN_RANGE), F.try_to_timestamp(text))


def _micros_of_millis(millis: Column) -> Column:
    return millis.cast("bigint") * 1000


def _micros_of_nanos(nanos: Column) -> Column:
    return F.call_function("div", nanos - F.pmod(nanos, F.lit(1000)), F.lit(1000))


def _micros_of_text(text: Column) -> Column:
    """Microseconds since midnight of an ISO time of day in UTC."""
    hours, minutes, seconds = (F.substring(text, start, 2).cast("bigint") for start in (1, 4, 7))
    fraction = F.rpad(F.regexp_extract(text, r"\.(\d{1,6})", 1), 6, "0").cast("bigint")
    return F.when(text.rlike(_TIME_OF_DAY), ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction)


def _has_nanos(nanos: Column) -> Column:
    return nanos % 1000 != 0


def _has_nanos_in_text(text: Column) -> Column:
    return text.rlike(r"\.\d{6}\d*[1-9]")


def _variable_scale(value: Column) -> Column:
    """The plain decimal text of a struct's `value` / 10^`scale`."""
    return F.when(value.isNotNull(), plain_text(value["value"], value["scale"]))


def _in_calendar(
    kind: str, convert: Callable[[Column], Column], is_finer: Callable[[Column], Column] | None = None
) -> TypeMapping:
    """A date or timestamp: null if `convert` returns null; `is_finer` if it has digits beyond microseconds."""
    if is_finer is None:
        return TypeMapping(kind, convert, (OUT_OF_CALENDAR,), lambda c: convert(c).isNull())
    losses = (OUT_OF_CALENDAR, BEYOND_MICROSECONDS)
    return TypeMapping(kind, convert, losses, lambda c: convert(c).isNull() | is_finer(c))


VARIABLE_SCALE = "io.debezium.data.VariableScaleDecimal"
_TIME = "io.debezium.time"
_DATA = "io.debezium.data"
_CONNECT = "org.apache.kafka.connect.data"

_SMALL = TypeMapping("smallint", lambda c: c.cast("smallint"))
_TEXT = TypeMapping("string")
_BINARY = TypeMapping("binary")
_DATE = _in_calendar("date", _date)
_MILLIS = _in_calendar("timestamp", _timestamp_of_millis)
_TIME_OF_MILLIS = TypeMapping("bigint", _micros_of_millis)
_NANOS = TypeMapping("bigint", _micros_of_nanos, (BEYOND_MICROSECONDS,), _has_nanos)

RULES: dict[tuple[str, str | None], TypeMapping] = {
    # Numbers, texts and bytes without a name.
    ("boolean", None): TypeMapping("boolean"),
    ("int", None): TypeMapping("int"),
    ("long", None): TypeMapping("bigint"),
    ("float", None): TypeMapping("float"),
    ("double", None): TypeMapping("double"),
    ("string", None): _TEXT,
    ("enum", None): _TEXT,
    ("bytes", None): _BINARY,
    ("fixed", None): _BINARY,
    # Dates, and timestamps in UTC; those without a zone as wall-clock time.
    ("int", f"{_TIME}.Date"): _DATE,
    ("int", f"{_CONNECT}.Date"): _DATE,
    ("string", f"{_TIME}.IsoDate"): _in_calendar("date", _date_of_text),
    ("long", f"{_TIME}.Timestamp"): _MILLIS,
    ("long", f"{_CONNECT}.Timestamp"): _MILLIS,
    ("long", f"{_TIME}.MicroTimestamp"): _in_calendar("timestamp", _timestamp),
    ("long", f"{_TIME}.NanoTimestamp"): _in_calendar("timestamp", _timestamp_of_nanos, _has_nanos),
    ("string", f"{_TIME}.IsoTimestamp"): _in_calendar("timestamp", _timestamp_of_text, _has_nanos_in_text),
    ("string", f"{_TIME}.ZonedTimestamp"): _in_calendar("timestamp", _timestamp_of_text, _has_nanos_in_text),
    # Times of day, in microseconds since midnight for any unit: 24:00:00 is 86400000000.
    ("int", f"{_TIME}.Time"): _TIME_OF_MILLIS,
    ("int", f"{_CONNECT}.Time"): _TIME_OF_MILLIS,
    ("long", f"{_TIME}.MicroTime"): TypeMapping("bigint"),
    ("long", f"{_TIME}.NanoTime"): _NANOS,
    ("string", f"{_TIME}.IsoTime"): TypeMapping(
        "bigint", _micros_of_text, (BEYOND_MICROSECONDS,), lambda c: _micros_of_text(c).isNull() | _has_nanos_in_text(c)
    ),
    ("string", f"{_TIME}.ZonedTime"): _TEXT,
    # Durations, in microseconds, and years.
    ("long", f"{_TIME}.MicroDuration"): TypeMapping("bigint"),
    ("long", f"{_TIME}.NanoDuration"): _NANOS,
    ("string", f"{_TIME}.Interval"): _TEXT,
    ("int", f"{_TIME}.Year"): TypeMapping("int"),
    # A decimal with a scale per value.
    ("record", VARIABLE_SCALE): TypeMapping("string", _variable_scale, is_too_long=lambda c: is_too_long(c["value"])),
    # Texts and bytes with a known meaning, stored as sent.
    ("string", f"{_DATA}.Json"): _TEXT,
    ("string", f"{_DATA}.Xml"): _TEXT,
    ("string", f"{_DATA}.Uuid"): _TEXT,
    ("string", f"{_DATA}.Enum"): _TEXT,
    ("string", f"{_DATA}.EnumSet"): _TEXT,
    ("string", f"{_DATA}.Ltree"): _TEXT,
    ("string", f"{_DATA}.Tsvector"): _TEXT,
    ("bytes", f"{_DATA}.Bits"): _BINARY,
}
"""(Avro type, Connect name) -> how a table stores it. For names not listed, the Avro type decides."""
