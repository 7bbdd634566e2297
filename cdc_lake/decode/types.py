"""The table types of a change event's values: one mapping from (Avro type, Connect name) to a Spark type.

Only four Connect types have an Avro logical type; all of Debezium's own arrive as bare numbers and texts, with their
meaning in `connect.name`. `RULES` is the complete mapping except for types with parameters: decimals, small integers,
arrays, maps and records, which `type_mapping` builds. docs/reference/types.md is generated from it.
Sources: Debezium's type mappings; docs/explanation/bronze.md "Types".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.columns import quoted
from cdc_lake.decode import declared_types, scalars
from cdc_lake.decode.scalars import (
    MAX_DIGITS,
    decimal_of_bytes,
    decimal_of_text,
    is_too_long,
    plain_text,
    text_with_scale,
)
from cdc_lake.decode.schemas import (
    MAX_DECIMAL_PRECISION,
    SchemaError,
    Tree,
    connect_name,
    decimal_size,
    fields,
    is_decimal,
    non_null,
)

OUT_OF_CALENDAR = "infinities and years outside 1 to 9999 become null"
BEYOND_MICROSECONDS = "digits beyond microseconds are cut off"

_WHOLE = ("smallint", "int", "bigint")
_FLOATING = ("float", "double")


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
        problem: why a value does not fit `type`, string; null if it does, and for null. Its arguments are the value as
            `from_avro` returns it, and its path from the column on. None if every value fits.
    """

    type: str
    convert: Callable[[Column], Column] = _same
    losses: tuple[str, ...] = ()
    is_lossy: Callable[[Column], Column] = _never
    problem: Callable[[Column, str], Column] | None = None


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
    if kind == "text":
        return _declared(tree["declared"])
    raise SchemaError(f"a column cannot store values of several types (Avro type `{kind}`)")


def value_problem(columns: Iterable[tuple[str, Tree, Column]]) -> Column:
    """Why a value in columns does not fit its type, string; null if all do.

    Bronze quarantines such a record: silver converts by the same mapping, and would fail or store another value.

    Args:
        columns: name, type, and value as `from_avro` returns it.
    """
    mappings = ((name, type_mapping(tree), value) for name, tree, value in columns)
    problems = [stored.problem(value, name) for name, stored, value in mappings if stored.problem]
    return F.coalesce(*problems, F.lit(None).cast("string"))


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


def plain_type(spark_type: str) -> str:
    """A Spark type's name in comparable form: no spaces, no quotes."""
    return spark_type.replace(" ", "").replace("`", "")


def wider(spark_type: str, other: str) -> str | None:
    """The Spark type that represents every value of both; none if there is none without conversion."""
    if plain_type(spark_type) == plain_type(other):
        return spark_type
    for family in (_WHOLE, _FLOATING):
        if spark_type in family and other in family:
            return max(spark_type, other, key=family.index)
    sizes = [declared_types.DECIMAL.fullmatch(kind) for kind in (spark_type, other)]
    if not all(sizes):
        return None
    digits = [(int(size[1]) - int(size[2]), int(size[2])) for size in sizes if size]
    whole, scale = (max(parts) for parts in zip(*digits, strict=True))
    return f"decimal({whole + scale},{scale})" if whole + scale <= MAX_DECIMAL_PRECISION else None


def same_key(columns: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str] | None:
    """The columns, name to Spark type, of a primary key that both describe; none if they are two keys."""
    merged = {name: wide for name, spark_type in other.items() if (wide := wider(columns.get(name, ""), spark_type))}
    return merged if columns.keys() == other.keys() == merged.keys() else None


def stored_types(columns: Mapping[str, Tree]) -> dict[str, str]:
    """The Spark types in which a table holds columns."""
    return {name: type_mapping(tree).type for name, tree in columns.items()}


def _decimal(tree: Tree) -> TypeMapping:
    size, scale = decimal_size(tree), tree.get("scale", 0)
    if tree["type"] == "decimal":
        return _decimal_of_json(size, scale)
    if size is None:
        return TypeMapping(
            "string", lambda c: plain_text(c, F.lit(scale)), problem=lambda c, path: _unwritable(c, path, scale)
        )
    target = f"decimal({size[0]},{size[1]})"
    return TypeMapping(target, lambda c: c.cast(target), problem=_misfit(target, lambda c: c.cast(target)))


def _decimal_of_json(size: tuple[int, int] | None, scale: int) -> TypeMapping:
    """A decimal in JSON: a struct of its `unscaled` bytes and the text of its `number`, of which one is null."""
    if size is None:

        def written(column: Column) -> Column:
            unscaled, text = column["unscaled"], column["number"]
            return F.coalesce(plain_text(unscaled, F.lit(scale)), text_with_scale(text, scale))

        def unwritable(column: Column, path: str) -> Column:
            unscaled, text = column["unscaled"], column["number"]
            is_not_a_number = F.when(text.isNotNull(), text_with_scale(text, scale)).otherwise("").isNull()
            message = f"the column `{path}` has a value that is not a number with {scale} digits after the point"
            return F.coalesce(_unwritable(unscaled, path, scale), F.when(is_not_a_number, message))

        return TypeMapping("string", written, problem=unwritable)
    target = f"decimal({size[0]},{size[1]})"

    def convert(column: Column) -> Column:
        sent = decimal_of_bytes(column["unscaled"], size[1]).cast(target)
        return F.coalesce(sent, decimal_of_text(column["number"], *size))

    return TypeMapping(target, convert, problem=_misfit(target, convert))


def _misfit(spark_type: str, convert: Callable[[Column], Column]) -> Callable[[Column, str], Column]:
    """The problem that a value is null after it is converted."""

    def problem(column: Column, path: str) -> Column:
        message = f"the column `{path}` has a value that does not fit {spark_type}, its declared type"
        return F.when(column.isNotNull() & convert(column).isNull(), F.lit(message))

    return problem


def _unwritable(unscaled: Column, path: str, scale: int = 0) -> Column:
    """The problem that a number is too long to write out, or has no digits."""
    what = f"has a number of more than {MAX_DIGITS} digits; set decimal.handling.mode=string on the connector"
    return F.when(is_too_long(unscaled, scale), F.lit(f"the column `{path}` {what}")).when(
        F.length(unscaled) == 0, F.lit(f"the column `{path}` has a number without digits")
    )


def _declared(name: str) -> TypeMapping:
    can_be_finer = name in ("timestamp", "timestamp_s", "timestamp_ns")
    return TypeMapping(
        declared_types.spark_type(name),
        partial(declared_types.value_of, name),
        (BEYOND_MICROSECONDS,) if can_be_finer else (),
        partial(declared_types.has_digits_beyond_micros, name) if can_be_finer else _never,
        None if name in ("string", "binary") else partial(declared_types.why_not, name),
    )


def _array(items: TypeMapping) -> TypeMapping:
    convert = _same if items.convert is _same else lambda c: F.transform(c, items.convert)
    is_lossy = (
        _never if items.is_lossy is _never else lambda c: F.exists(c, lambda i: i.isNotNull() & items.is_lossy(i))
    )
    return TypeMapping(f"array<{items.type}>", convert, items.losses, is_lossy, _problem_of_items(items, _same))


def _map(values: TypeMapping) -> TypeMapping:
    def convert(column: Column) -> Column:
        return F.transform_values(column, lambda _, value: values.convert(value))

    def is_lossy(column: Column) -> Column:
        return F.exists(F.map_values(column), lambda value: value.isNotNull() & values.is_lossy(value))

    return TypeMapping(
        f"map<string, {values.type}>", convert, values.losses, is_lossy, _problem_of_items(values, F.map_values)
    )


def _problem_of_items(items: TypeMapping, of: Callable[[Column], Column]) -> Callable[[Column, str], Column] | None:
    """The first problem of the items of an array, which `of` makes of a value."""
    inner = items.problem
    if inner is None:
        return None
    return lambda column, path: F.element_at(
        F.filter(F.transform(of(column), lambda item: inner(item, path)), lambda problem: problem.isNotNull()), 1
    )


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

    problems = {name: part.problem for name, part in parts.items() if part.problem}

    def problem(column: Column, path: str) -> Column:
        return F.coalesce(*(field_problem(column[name], f"{path}.{name}") for name, field_problem in problems.items()))

    losses = dict.fromkeys(loss for part in parts.values() for loss in part.losses)
    return TypeMapping(f"struct<{inner}>", convert, tuple(losses), is_lossy, problem if problems else None)


def _variable_scale(value: Column) -> Column:
    """The plain decimal text of a struct's `value` / 10^`scale`."""
    return F.when(value.isNotNull(), plain_text(value["value"], value["scale"]))


def _variable_scale_problem(value: Column, path: str) -> Column:
    is_incomplete = value.isNotNull() & (value["value"].isNull() | value["scale"].isNull())
    message = F.lit(f"the column `{path}` has a number without digits or without a scale")
    return F.coalesce(_unwritable(value["value"], path), F.when(is_incomplete, message))


def _small(column: Column) -> Column:
    return F.when(column.between(-(2**15), 2**15 - 1), column.cast("smallint"))


def _in_calendar(
    spark_type: str, convert: Callable[[Column], Column], is_finer: Callable[[Column], Column] | None = None
) -> TypeMapping:
    """A date or timestamp: null if `convert` returns null; `is_finer` if it has digits beyond microseconds."""
    if is_finer is None:
        return TypeMapping(spark_type, convert, (OUT_OF_CALENDAR,), lambda c: convert(c).isNull())
    losses = (OUT_OF_CALENDAR, BEYOND_MICROSECONDS)
    return TypeMapping(spark_type, convert, losses, lambda c: convert(c).isNull() | is_finer(c))


VARIABLE_SCALE = "io.debezium.data.VariableScaleDecimal"
_TIME = "io.debezium.time"
_DATA = "io.debezium.data"
_CONNECT = "org.apache.kafka.connect.data"

_SMALL = TypeMapping("smallint", _small, problem=_misfit("smallint", _small))
_TEXT = TypeMapping("string")
_BINARY = TypeMapping("binary")
_DATE = _in_calendar("date", scalars.date)
_MILLIS = _in_calendar("timestamp", scalars.timestamp_of_millis)
_ISO_TIMESTAMP = _in_calendar("timestamp", scalars.timestamp_of_text, scalars.has_nanos_in_text)
_TIME_OF_MILLIS = TypeMapping("bigint", scalars.micros_of_millis)
_NANOS = TypeMapping("bigint", scalars.micros_of_nanos, (BEYOND_MICROSECONDS,), scalars.has_nanos)

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
    ("string", f"{_TIME}.IsoDate"): _in_calendar("date", scalars.date_of_text),
    ("long", f"{_TIME}.Timestamp"): _MILLIS,
    ("long", f"{_CONNECT}.Timestamp"): _MILLIS,
    ("long", f"{_TIME}.MicroTimestamp"): _in_calendar("timestamp", scalars.timestamp),
    ("long", f"{_TIME}.NanoTimestamp"): _in_calendar("timestamp", scalars.timestamp_of_nanos, scalars.has_nanos),
    ("string", f"{_TIME}.IsoTimestamp"): _ISO_TIMESTAMP,
    ("string", f"{_TIME}.ZonedTimestamp"): _ISO_TIMESTAMP,
    # Times of day, in microseconds since midnight for any unit: 24:00:00 is 86400000000.
    ("int", f"{_TIME}.Time"): _TIME_OF_MILLIS,
    ("int", f"{_CONNECT}.Time"): _TIME_OF_MILLIS,
    ("long", f"{_TIME}.MicroTime"): TypeMapping("bigint"),
    ("long", f"{_TIME}.NanoTime"): _NANOS,
    ("string", f"{_TIME}.IsoTime"): TypeMapping(
        "bigint",
        scalars.micros_of_text,
        (BEYOND_MICROSECONDS,),
        lambda c: scalars.micros_of_text(c).isNull() | scalars.has_nanos_in_text(c),
    ),
    ("string", f"{_TIME}.ZonedTime"): _TEXT,
    # Durations, in microseconds, and years.
    ("long", f"{_TIME}.MicroDuration"): TypeMapping("bigint"),
    ("long", f"{_TIME}.NanoDuration"): _NANOS,
    ("string", f"{_TIME}.Interval"): _TEXT,
    ("int", f"{_TIME}.Year"): TypeMapping("int"),
    # A decimal with a scale per value.
    ("record", VARIABLE_SCALE): TypeMapping("string", _variable_scale, problem=_variable_scale_problem),
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
