"""What the values of a change event become in a table: one mapping from (Avro type, Connect name) to a Spark type.

Only four Connect types carry an Avro logical type; all of Debezium's own arrive as bare numbers and texts, and the
meaning stands in `connect.name`. Sources: Debezium's type mapping for Postgres; docs/design.md "Types".
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.columns import quoted
from cdc_lake.events.schemas import (
    MAX_DECIMAL_PRECISION,
    SchemaError,
    Tree,
    connect_name,
    fields,
    fixed,
    is_decimal,
    non_null,
    record,
)

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 in days from 1970: what Spark, Parquet readers and Python hold alike."""
_DAY_MICROS = 86_400_000_000

_PLAIN = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "enum": "string",
    "bytes": "binary",
    "fixed": "binary",
}


@dataclass(frozen=True)
class Mapping:
    """One type's way into a table.

    Attributes:
        type: Spark's name of the type in the table.
        convert: from the column as `from_avro` gives it to a column of `type`. Null stays null.
    """

    type: str
    convert: Callable[[Column], Column]


def mapping(tree: Tree) -> Mapping:
    """How values of `tree` are held in a table.

    Dates and times outside the years 1 to 9999, Postgres' infinities among them, become null: no reader of the tables
    holds them. Timestamps without a zone are the UTC wall clock.

    Raises:
        SchemaError: a union of several types.
    """
    tree = non_null(tree)
    named = _BY_CONNECT_NAME.get(connect_name(tree) or "")
    if named is not None:
        return named
    kind = tree["type"]
    if is_decimal(tree):
        return _decimal(tree)
    if kind == "int" and tree.get("connect.type") in ("int8", "int16"):
        return Mapping("smallint", lambda c: c.cast("smallint"))
    if kind == "array":
        items = mapping(tree["items"])
        convert = _same if items.convert is _same else lambda c: F.transform(c, items.convert)
        return Mapping(f"array<{items.type}>", convert)
    if kind == "map":
        values = mapping(tree["values"])
        return Mapping(f"map<string, {values.type}>", lambda c: F.transform_values(c, lambda _, v: values.convert(v)))
    if kind == "record":
        return _struct(tree)
    if kind in _PLAIN:
        return Mapping(_PLAIN[kind], _same)
    raise SchemaError(f"a value of Avro type `{kind}` with several meanings cannot become a column")


def readable(tree: Tree) -> Tree:
    """The tree to decode `tree`'s bytes with: a decimal of variable scale is read as a number, not as bytes."""
    if connect_name(tree) == _VARIABLE_SCALE:
        unscaled = {"type": "bytes", "logicalType": "decimal", "precision": MAX_DECIMAL_PRECISION, "scale": 0}
        return record(tree["name"], {"scale": {"type": "int"}, "value": unscaled}) | {"connect.name": _VARIABLE_SCALE}
    match tree["type"]:
        case "union":
            return {**tree, "branches": [readable(branch) for branch in tree["branches"]]}
        case "array":
            return {**tree, "items": readable(tree["items"])}
        case "map":
            return {**tree, "values": readable(tree["values"])}
        case "record":
            return {**tree, **record(tree["name"], {n: readable(t) for n, t in fields(tree).items()})}
        case "fixed" if not is_decimal(tree):
            return fixed(tree["name"], tree["size"])
    return tree


def plain_type(kind: str) -> str:
    """A Spark type's name in the form that compares: no spaces, no quotes."""
    return kind.replace(" ", "").replace("`", "")


def _same(column: Column) -> Column:
    return column


def _struct(tree: Tree) -> Mapping:
    parts = {name: mapping(part) for name, part in fields(tree).items()}
    inner = ", ".join(f"{quoted(name)}: {part.type}" for name, part in parts.items())

    def convert(column: Column) -> Column:
        values = [part.convert(column[name]).alias(name) for name, part in parts.items()]
        return F.when(column.isNotNull(), F.struct(*values))

    return Mapping(f"struct<{inner}>", convert)


def _decimal(tree: Tree) -> Mapping:
    scale = tree.get("scale", 0)
    declared = int((tree.get("connect.parameters") or {}).get("connect.decimal.precision") or tree["precision"])
    precision = max(min(declared, MAX_DECIMAL_PRECISION), scale)
    target = f"decimal({precision},{scale})"
    return Mapping(target, lambda c: c.cast(target))


def _date(days: Column) -> Column:
    return F.when(days.between(_FIRST_DAY, _LAST_DAY), F.date_add(F.lit("1970-01-01").cast("date"), days))


def _timestamp(micros: Column) -> Column:
    in_range = micros.between(_FIRST_DAY * _DAY_MICROS, (_LAST_DAY + 1) * _DAY_MICROS - 1)
    return F.when(in_range, F.timestamp_micros(micros))


def _timestamp_of_millis(millis: Column) -> Column:
    limit = _DAY_MICROS // 1000
    return F.when(millis.between(_FIRST_DAY * limit, (_LAST_DAY + 1) * limit - 1), F.timestamp_millis(millis))


def _zoned_timestamp(text: Column) -> Column:
    """ISO text in UTC; `infinity`, years of more than four digits and years before 1 are out of range."""
    in_range = text.rlike(r"^(?!0000)\d{4}-")
    return F.when(in_range, text.cast("timestamp"))


def _variable_scale(value: Column) -> Column:
    """The plain decimal text of `value.value` / 10^`value.scale`."""
    unscaled, scale = value["value"], value["scale"]
    digits = F.abs(unscaled).cast("string")
    padded = F.call_function("lpad", digits, F.greatest(F.length(digits), scale + 1), F.lit("0"))
    with_point = F.regexp_replace(padded, F.concat(F.lit(r"(\d{"), scale, F.lit("})$")), F.lit(".$1"))
    with_zeros = F.call_function("rpad", digits, F.length(digits) - scale, F.lit("0"))
    text = F.when(scale > 0, with_point).when((scale == 0) | (unscaled == 0), digits).otherwise(with_zeros)
    return F.concat(F.when(unscaled < 0, "-").otherwise(""), text)


def _timestamp_of_nanos(nanos: Column) -> Column:
    return _timestamp(F.call_function("div", nanos - F.pmod(nanos, F.lit(1000)), F.lit(1000)))


_VARIABLE_SCALE = "io.debezium.data.VariableScaleDecimal"
_DATE = Mapping("date", _date)
_MILLIS = Mapping("timestamp", _timestamp_of_millis)
_BY_CONNECT_NAME = {
    "io.debezium.time.Date": _DATE,
    "org.apache.kafka.connect.data.Date": _DATE,
    "io.debezium.time.Timestamp": _MILLIS,
    "org.apache.kafka.connect.data.Timestamp": _MILLIS,
    "io.debezium.time.MicroTimestamp": Mapping("timestamp", _timestamp),
    "io.debezium.time.NanoTimestamp": Mapping("timestamp", _timestamp_of_nanos),
    "io.debezium.time.ZonedTimestamp": Mapping("timestamp", _zoned_timestamp),
    _VARIABLE_SCALE: Mapping("string", _variable_scale),
}
