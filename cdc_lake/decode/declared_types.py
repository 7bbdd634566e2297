"""The types that `value.columns` declares for records without a schema, and how the text of a value becomes one.

Spark's own readers of JSON and CSV round decimals, take any number as the seconds of a timestamp, and read 200 as a
tinyint of -56. So they read texts, and these conversions decide: a text that does not give exactly one value of its
type becomes null, and `why_not` says why.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.decode import scalars
from cdc_lake.decode.scalars import NUMBER, decimal_of_text
from cdc_lake.decode.schemas import MAX_DECIMAL_PRECISION, SchemaError, Tree, optional

_WHOLE = r"^[-+]?\d+$"
_SECONDS = r"^-?\d{1,12}(\.\d{1,9})?$"
_NOT_FINITE = ("NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF")

_OTHER_NAMES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
}
_NESTED = re.compile(r"(array|map|struct)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_FIELD = re.compile(r"(?P<name>`(?:[^`]|``)+`|[^\s:`]+)\s*(?::|\s)\s*(?P<type>.+)", re.DOTALL)
_SIZE = re.compile(r"\((\d+)(?:,(\d+))?\)")
DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def declared_tree(kind: str, leaf: Callable[[str], Tree]) -> Tree:
    """The tree of a declared type, in which every part may be null.

    Args:
        kind: as the settings spell it, for example `array<struct<at: timestamp_ms>>`.
        leaf: makes the tree of a type that is not nested from its name.

    Raises:
        SchemaError: there is no such type.
    """
    nested = _NESTED.fullmatch(kind.strip())
    if nested is None:
        return leaf(_type_name(kind))
    parts = list(_parts(nested[2]))
    match nested[1].lower():
        case "array" if len(parts) == 1:
            return {"type": "array", "items": optional(declared_tree(parts[0], leaf))}
        case "map" if len(parts) == 2 and parts[0].strip().lower() == "string":
            return {"type": "map", "values": optional(declared_tree(parts[1], leaf))}
        case "struct" if all(fields := [_FIELD.fullmatch(part.strip()) for part in parts]):
            named = [(f["name"].removeprefix("`").removesuffix("`").replace("``", "`"), f["type"]) for f in fields if f]
            inner = [{"name": name, "type": optional(declared_tree(of, leaf))} for name, of in named]
            return {"type": "record", "name": "json.Struct", "fields": inner}
    raise _unknown(kind)


def text_tree(name: str) -> Tree:
    """The tree of a text that stands for a value of a declared type."""
    return {"type": "text", "declared": name}


def spark_type(name: str) -> str:
    """The Spark type of a declared type that is not nested."""
    return name.partition("_")[0] if name in _UNITS else name


def value_of(name: str, text: Column) -> Column:
    """The value of a declared type that a text stands for; null if it stands for none."""
    if name in _UNITS:
        return _UNITS[name](text)
    if size := DECIMAL.fullmatch(name):
        return decimal_of_text(text, int(size[1]), int(size[2]))
    return _CONVERSIONS[name](text)


def why_not(name: str, text: Column, path: str) -> Column:
    """Why a text does not stand for a value of a declared type, string; null if it does.

    Args:
        path: the column, and the fields inside it.
    """
    kind = f"`{name}`"
    if spark_type(name) in ("date", "timestamp"):
        kind = f"`{name}` of the years 1 to 9999"
    message = F.lit(f"the column `{path}` has a value that is not a {kind}")
    if name in _UNITS_FOR:
        units = f"a number, but a `{name}` is ISO text; declare {_UNITS_FOR[name]} in `value.columns`"
        message = F.when(text.rlike(NUMBER), f"the column `{path}` has {units}").otherwise(message)
    return F.when(text.isNotNull() & value_of(name, text).isNull(), message)


def has_digits_beyond_micros(name: str, text: Column) -> Column:
    """Whether the text of a timestamp has digits that no timestamp can store."""
    return text.rlike(r"[1-9]\d{0,2}$") if name == "timestamp_ns" else scalars.has_nanos_in_text(text)


def _type_name(kind: str) -> str:
    """A type's name as in `_CONVERSIONS` and `_UNITS`, or `decimal(<precision>,<scale>)`."""
    start, bracket, rest = re.sub(r"\s+", "", kind).lower().partition("(")
    name = _OTHER_NAMES.get(start, start)
    if name == "decimal" and (size := _SIZE.fullmatch(f"{bracket}{rest}" or "(10)")):
        precision, scale = int(size[1]), int(size[2] or 0)
        if scale <= precision <= MAX_DECIMAL_PRECISION and precision > 0:
            return f"decimal({precision},{scale})"
    if bracket or (name not in _CONVERSIONS and name not in _UNITS):
        raise _unknown(kind)
    return name


def _unknown(kind: str) -> SchemaError:
    names = ", ".join((*_CONVERSIONS, "decimal(p,s)", *_UNITS))
    return SchemaError(f"`value.columns` declares the type `{kind.strip()}`, which is none of {names} or a nested one")


def _parts(text: str) -> Iterator[str]:
    """The parts of a text between commas that are not in brackets."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _whole(kind: str) -> Callable[[Column], Column]:
    return lambda text: F.when(text.rlike(_WHOLE), text.cast(kind))


def _floating(kind: str) -> Callable[[Column], Column]:
    def convert(text: Column) -> Column:
        number = text.cast(kind)
        is_finite = ~number.isin(float("inf"), float("-inf"))
        return F.when(text.isin(*_NOT_FINITE) | (text.rlike(NUMBER) & is_finite), number)

    return convert


def _boolean(text: Column) -> Column:
    lower = F.lower(text)
    return F.when(lower.isin("true", "false"), lower == "true")


def _seconds(text: Column) -> Column:
    micros = F.floor(text.cast("decimal(21,9)") * 1_000_000).cast("bigint")
    return scalars.timestamp(F.when(text.rlike(_SECONDS), micros))


_CONVERSIONS: Mapping[str, Callable[[Column], Column]] = {
    "string": lambda text: text,
    "boolean": _boolean,
    **{kind: _whole(kind) for kind in ("tinyint", "smallint", "int", "bigint")},
    **{kind: _floating(kind) for kind in ("float", "double")},
    "binary": lambda text: text.cast("binary"),
    "date": scalars.date_of_text,
    "timestamp": scalars.timestamp_of_text,
}
_UNITS: Mapping[str, Callable[[Column], Column]] = {
    "date_days": lambda text: scalars.date(_whole("bigint")(text)),
    "timestamp_s": _seconds,
    "timestamp_ms": lambda text: scalars.timestamp_of_millis(_whole("bigint")(text)),
    "timestamp_us": lambda text: scalars.timestamp(_whole("bigint")(text)),
    "timestamp_ns": lambda text: scalars.timestamp_of_nanos(_whole("bigint")(text)),
}
"""Numbers of units since 1970-01-01T00:00:00Z."""
_UNITS_FOR = {
    "date": "date_days, or, for a time, one of timestamp_s, timestamp_ms, timestamp_us and timestamp_ns",
    "timestamp": "its unit: timestamp_s, timestamp_ms, timestamp_us or timestamp_ns",
}
