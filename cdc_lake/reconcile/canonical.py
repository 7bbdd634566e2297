"""Canonical texts of values, which Postgres and Spark compute alike: texts are equal exactly if values are equal.

Each side computes checksums of these texts, and only ranges with different checksums are compared value by value. A
rule belongs to a Postgres type and a type in silver; columns without a rule cannot be compared (`shared_columns`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from cdc_lake.columns import SILVER_META
from cdc_lake.errors import UnsupportedError
from cdc_lake.reconcile.postgres_catalog import SourceColumn, SourceTable, is_of_other_calendar, loss_of_key

Key = int | str
"""A key: an integer if the key is a single integer, else a text that both sides order by bytes."""
SilverColumns = Callable[[str], Sequence[str]]
"""Source column, by its name in the lake -> its columns in silver: several with variant columns, none if it is excluded
or has not arrived yet."""

_MARK = "\x01"
_END, _ESCAPED = f"{_MARK},", f"{_MARK}."
_DIMENSIONS = "#"
"""Prefix of arrays with several dimensions, which silver never has."""


@dataclass(frozen=True)
class Rule:
    """Conversion of a type's values to canonical texts. Null stays null.

    Attributes:
        source: Postgres SQL for the text of `{c}`.
        silver: Spark expression for the text of a column.
        read: converts the text to the value for `SourceTable.loss`.
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
    """A decimal text without trailing zeros; Debezium's texts for NaN and infinity as Postgres's."""
    stripped = F.regexp_replace(F.regexp_replace(text, r"(\.\d*?)0+$", "$1"), r"\.$", "")
    return (
        F.when(text == "NAN", "NaN")
        .when(text == "POSITIVE_INFINITY", "Infinity")
        .when(text == "NEGATIVE_INFINITY", "-Infinity")
        .otherwise(stripped)
    )


def _bits_of(avro_type: str) -> Callable[[Column], Column]:
    """The bits of a floating-point number as hex, because its shortest decimal text differs between Java and Postgres.

    Avro writes little-endian bytes, so the digits are in reverse order.
    """
    return lambda column: F.regexp_replace(_hex(to_avro(column, f'"{avro_type}"')), "(.)(.)", "$2$1")


def _binary_digits(data: Column) -> Column:
    """The binary digits of little-endian bytes, without leading zeros."""
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
# Debezium converts a month to a twelfth of 365.25 days.
_INTERVAL = Rule(
    "trunc(((extract(year FROM {c}) * 12 + extract(month FROM {c})) * 30.4375 + extract(day FROM {c})) * 86400000000"
    " + extract(epoch FROM {c} - date_trunc('day', {c})) * 1000000)::text",
    _cast,
    int,
)
# `format`, because a cast to text adds a netmask to each address.
_TEXT = Rule("CASE WHEN {c} IS NOT NULL THEN format('%s', {c}) END", _same)

_WHOLE_TYPES = ("byte", "short", "integer", "long")
_TEXT_TYPES = (
    *("char", "varchar", "text", "citext", "uuid", "json", "jsonb", "xml", "ltree", "tsvector"),
    *("inet", "cidr", "macaddr", "macaddr8"),
    *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
)
_RULES = {
    **dict.fromkeys(product(("int2", "int4", "int8", "oid"), _WHOLE_TYPES), _WHOLE),
    # After a change of the column's type, silver may have integers as texts, or texts as integers.
    **{(source_type, "string"): Rule(_WHOLE.source, _same, int) for source_type in ("int2", "int4", "int8")},
    **dict.fromkeys(product(("text", "varchar"), _WHOLE_TYPES), Rule(_TEXT.source, _cast)),
    ("bool", "boolean"): _BOOLEAN,
    **{(source_type, "boolean"): _BIT for source_type in ("bit", "varbit")},
    ("float4", "float"): Rule("reverse(encode(float4send({c}), 'hex'))", _bits_of("float")),
    # Silver's column stays wide if the source's is narrowed.
    ("float4", "double"): Rule(_BITS_OF_DOUBLE.replace("{c}", "{c}::float8"), _DOUBLE.silver),
    ("float8", "double"): _DOUBLE,
    **{(source_type, "decimal"): _NUMBER for source_type in ("numeric", "money")},
    **{(source_type, "string"): _NUMBER_AS_TEXT for source_type in ("numeric", "money")},
    **{(source_type, "double"): _NUMBER_AS_DOUBLE for source_type in ("numeric", "money")},
    ("date", "date"): _DAYS,
    **{(source_type, "timestamp"): _MOMENT for source_type in ("timestamp", "timestamptz")},
    **dict.fromkeys(product(("time",), _WHOLE_TYPES), _TIME),
    # With its zone if Debezium sends null, so that `postgres_catalog` recognizes the loss.
    ("timetz", "string"): Rule(
        "CASE WHEN extract(timezone FROM {c})::int % 60 = 0 THEN ({c} AT TIME ZONE 'UTC')::time::text || 'Z'"
        " ELSE {c}::text END",
        _same,
    ),
    ("interval", "long"): _INTERVAL,
    ("bytea", "binary"): Rule("encode({c}, 'hex')", _hex),
    **{(source_type, "binary"): Rule("ltrim({c}::text, '0')", _binary_digits) for source_type in ("bit", "varbit")},
    ("point", "struct"): Rule(
        f"{_BITS_OF_DOUBLE.format(c='({c})[0]')} || ' ' || {_BITS_OF_DOUBLE.format(c='({c})[1]')}", _point
    ),
    # A cast to text would drop the padding.
    ("bpchar", "string"): Rule("textin(bpcharout({c}))", _same),
    **{(source_type, "string"): _TEXT for source_type in _TEXT_TYPES},
}
"""Rules by Postgres base type and Spark type in silver."""


def rule(column: SourceColumn, stored: DataType) -> Rule | None:
    """The rule for a column; none if it cannot be compared.

    Args:
        column: the source's column.
        stored: its type in silver.
    """
    if column.is_array != isinstance(stored, ArrayType):
        return None
    element = stored.elementType if isinstance(stored, ArrayType) else stored
    is_enum = column.typtype == "e" and element.typeName() == "string"
    element_rule = _TEXT if is_enum else _RULES.get((column.type, element.typeName()))
    return _array(element_rule) if element_rule and column.is_array else element_rule


def _array(element: Rule) -> Rule:
    each = join_in_source([element.source.replace("{c}", "element")])
    parts = (
        f"(SELECT coalesce(string_agg({each}, '' ORDER BY place), '')"
        " FROM unnest({c}) WITH ORDINALITY AS e(element, place))"
    )

    def read(text: str) -> object:
        has_dimensions = text.startswith(_DIMENSIONS)
        values = tuple(
            None if part is None else element.read(part) for part in split_texts(text.removeprefix(_DIMENSIONS))
        )
        return (values,) if has_dimensions else values

    return Rule(
        f"CASE WHEN array_ndims({{c}}) > 1 THEN '{_DIMENSIONS}' || {parts} WHEN {{c}} IS NOT NULL THEN {parts} END",
        lambda column: F.array_join(F.transform(column, lambda each: join_in_silver([element.silver(each)])), ""),
        read,
    )


def join_in_source(texts: Sequence[str]) -> str:
    """Postgres SQL that joins texts reversibly; null differs from the empty text."""
    return " || ".join(
        f"coalesce('+' || replace({text}, chr(1), chr(1) || '.'), '-') || chr(1) || ','" for text in texts
    )


def join_in_silver(texts: Sequence[Column]) -> Column:
    """A Spark expression, string, that joins texts like `join_in_source`."""
    escaped = (F.replace(text, F.lit(_MARK), F.lit(_ESCAPED)) for text in texts)
    return F.concat(*(F.concat(F.coalesce(F.concat(F.lit("+"), text), F.lit("-")), F.lit(_END)) for text in escaped))


def split_texts(text: str) -> tuple[str | None, ...]:
    """Split a joined text into its parts."""
    parts = text.split(_END)[:-1]
    return tuple(None if part == "-" else part[1:].replace(_ESCAPED, _MARK) for part in parts)


class Cell(NamedTuple):
    """A value that differs in silver; see `postgres_catalog.LossCandidate`."""

    column: str
    source: object
    lake: object
    kind: str = "cell"
    key: None = None


@dataclass(frozen=True)
class SharedColumn:
    """A column that both sides have.

    Attributes:
        rules: its columns in silver -> the rules for their values. Each value is in one of them.
    """

    column: SourceColumn
    rules: Mapping[str, Rule]

    @property
    def rule(self) -> Rule:
        """The rule for the source's values, which is the same for all columns of silver."""
        return next(iter(self.rules.values()))


@dataclass(frozen=True)
class Shared:
    """The columns of a table that are compared."""

    table: SourceTable
    key: Sequence[SharedColumn]
    others: Sequence[SharedColumn]

    @property
    def has_number_as_key(self) -> bool:
        """Whether keys are single integers, which are compared as numbers."""
        (first, *more) = (part.column for part in self.key)
        return not more and not first.is_array and first.type in ("int2", "int4", "int8")

    def key_values(self, key: Key) -> dict[str, str]:
        """A key for display: column -> text of its value."""
        return {column.name: "null" if value is None else str(value) for column, value in self._parts(key)}

    def may_be_another_key(self, key: Key) -> bool:
        """Whether a key may be sent as another row's key."""
        return any(is_of_other_calendar(column, value) for column, value in self._parts(key))

    def loss_of(self, key: Key) -> str | None:
        """The kind of loss that explains a missing key."""
        return loss_of_key(self._parts(key))

    def _parts(self, key: Key) -> Iterator[tuple[SourceColumn, object]]:
        texts = split_texts(key) if len(self.key) > 1 and isinstance(key, str) else (str(key),)
        for part, text in zip(self.key, texts, strict=True):
            yield part.column, None if text is None else part.rule.read(text)


def shared_columns(
    table: SourceTable, silver: StructType, keys: Collection[str], columns_in_silver: SilverColumns
) -> tuple[Shared, Mapping[str, str]]:
    """The columns to compare, and why others are not compared, by name.

    Args:
        keys: names of the key columns in silver.
        columns_in_silver: maps a source column to its columns in silver.

    Raises:
        UnsupportedError: a key column cannot be compared.
    """
    compared: list[SharedColumn] = []
    reasons: dict[str, str] = {}
    unmatched = {field.name for field in silver} - SILVER_META.keys()
    for column in table.columns:
        fields = [silver[name] for name in columns_in_silver(column.lake_name)]
        unmatched.difference_update(field.name for field in fields)
        rules = {field.name: rule(column, field.dataType) for field in fields if column.is_sent}
        known = {name: column_rule for name, column_rule in rules.items() if column_rule}
        # The source's text of a value must not depend on the column of silver that has it.
        if known and len(known) == len(fields) and len({column_rule.source for column_rule in known.values()}) == 1:
            compared.append(SharedColumn(column, known))
        else:
            reasons[column.name] = _reason(table, column, fields)
    reasons |= dict.fromkeys(sorted(unmatched), "the source does not have it")
    key = [shared_column for shared_column in compared if not shared_column.rules.keys().isdisjoint(keys)]
    if not key or len(key) < len(keys):
        raise UnsupportedError(
            table.place,
            f"a column of silver's key ({', '.join(sorted(keys))}) cannot be compared",
            "exclude this table from the comparison",
        )
    return Shared(table, key, [one for one in compared if one not in key]), reasons


def _reason(table: SourceTable, column: SourceColumn, fields: Sequence[StructField]) -> str:
    loss = table.loss(Cell(column.name, None, None, kind="column"))
    if loss or not fields:
        return loss or "silver does not have it"
    source_type = f"{column.type}[]" if column.is_array else column.type
    types = " and ".join(field.dataType.simpleString() for field in fields)
    return f"silver stores it as {types}, the source as {source_type}"
