"""Read Postgres's catalog: which tables Debezium can capture, their names, and which values are lost on the way.

Some values never reach Kafka unchanged. They are recognized by the type of their column, and reported separately from
real differences.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol

import psycopg
from psycopg import sql

NULL_AS_DEFAULT: Final = "nulls that arrive as their column's default"
NOT_FINITE: Final = "NaN and infinity"
OUT_OF_CALENDAR: Final = "dates before the year 1 or after 9999"
NOT_SENT: Final = "values of types that Debezium does not send, or sends incompletely"
GENERATED: Final = "values of generated columns, which Postgres does not log"
NULL_IN_ARRAY: Final = "arrays that contain null, of types whose arrays Debezium sends without nulls"
LARGE_ARRAY: Final = "unchanged large arrays of types without a placeholder"
SEVERAL_DIMENSIONS: Final = "arrays of several dimensions, which Debezium does not send"
OTHER_CALENDAR: Final = "dates before 15 October 1582, read in the Julian calendar"
CUT_TIME: Final = "times in arrays, which are truncated to milliseconds"
ZONE_WITH_SECONDS: Final = "times in a zone with seconds, which arrive as null"
LIKE_PLACEHOLDER: Final = "values that equal the placeholder of unchanged values"
QUARANTINED_KEY: Final = "rows with a date before the year 1 or after 9999 in their key, which bronze quarantines"
ROUNDED_INTERVAL: Final = "the last microsecond of intervals, which Debezium rounds"

_SENT = frozenset(
    (
        *("int2", "int4", "int8", "oid", "float4", "float8", "numeric", "money", "bool", "bit", "varbit"),
        *("char", "bpchar", "varchar", "text", "citext", "bytea", "uuid", "json", "jsonb", "xml", "ltree"),
        *("date", "time", "timetz", "timestamp", "timestamptz", "interval", "tsvector", "hstore", "point"),
        *("inet", "cidr", "macaddr", "macaddr8"),
        *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
    )
)
"""Base types that Debezium 3.6 sends by default, like enums. `name` is sent in snapshots only."""
_SENT_ARRAYS = _SENT - {"money", "timetz", "interval", "bit", "varbit", "xml", "point"}
_ARRAY_PLACEHOLDERS = frozenset(
    ("int4", "int8", "date", "bpchar", "varchar", "text", "bytea", "uuid", "json", "jsonb", "citext")
)
"""Types whose arrays have a placeholder. Other unchanged large arrays arrive as null."""
_PLACEHOLDER = "__debezium_unavailable_value"
_BYTES = (_PLACEHOLDER.encode(), _PLACEHOLDER.encode().hex())
_PLACEHOLDERS = {
    **dict.fromkeys(("bpchar", "varchar", "text", "citext"), (_PLACEHOLDER, (_PLACEHOLDER,))),
    "bytea": (*_BYTES, *((value,) for value in _BYTES)),
}
"""The placeholders by type, as a value and in an array."""
_SECONDS_OF_ZONE = re.compile(r".*[+-]\d\d:\d\d:\d\d")
_GREGORIAN_CALENDAR = date(1582, 10, 15)
_DAY_MICROS = 86_400_000_000


class LossCandidate(Protocol):
    """A difference between a table of the lake and the source's.

    Attributes:
        kind: `cell`: one column of one row; `column`: missing on one side; `missing`: a row that only the source has.
            Other kinds have no known loss.
        key: the row's key, in the order of the primary key.
        source, lake: the values. A time outside Python's range is a number of days or microseconds; a tuple is an
            array, and a tuple in a tuple an array of several dimensions.
    """

    @property
    def kind(self) -> str: ...
    @property
    def key(self) -> Sequence[object] | None: ...
    @property
    def column(self) -> str | None: ...
    @property
    def source(self) -> object: ...
    @property
    def lake(self) -> object: ...


def in_the_lake(column: str) -> str:
    """A column's name in records and tables: Debezium replaces characters that Avro does not allow.

    Source: `field.name.adjustment.mode=avro`.
    """
    plain = re.sub(r"[^a-zA-Z0-9_]", "_", column)
    return f"_{plain}" if plain[0].isdigit() else plain


@dataclass(frozen=True)
class SourceColumn:
    """A column of a table.

    Attributes:
        type: name of its base type, with domains resolved; for an array, the type of its elements.
        typtype: Postgres's letter for the kind of that type: `b` base, `e` enum, `c` composite, `r` range, ….
        key_place: its position in the primary key, from 0; none if it is not a key column.
        is_unique: whether it is part of a unique index.
        is_reference: whether it is part of a foreign key.
    """

    name: str
    type: str
    typtype: str
    is_array: bool
    is_nullable: bool
    has_default: bool
    is_generated: bool
    key_place: int | None
    is_unique: bool
    is_reference: bool

    @property
    def is_key(self) -> bool:
        return self.key_place is not None

    @property
    def is_sent(self) -> bool:
        """Whether Debezium sends columns of this type."""
        return self.typtype == "e" or self.type in (_SENT_ARRAYS if self.is_array else _SENT)

    @property
    def loses_unchanged(self) -> bool:
        """Whether large values that an update does not change arrive as null, without a placeholder."""
        return self.is_sent and self.is_array and self.type not in _ARRAY_PLACEHOLDERS

    @property
    def lake_name(self) -> str:
        """Its name in records and in the lake."""
        return in_the_lake(self.name)


@dataclass(frozen=True)
class SourceTable:
    """A table; a partitioned table counts as one.

    Attributes:
        trouble: why Debezium cannot capture it, if so.
    """

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    trouble: str | None = None

    @property
    def place(self) -> str:
        """Its name in Debezium's settings."""
        return f"{self.schema}.{self.name}"

    @property
    def qualified(self) -> str:
        return sql.Identifier(self.schema, self.name).as_string()

    def topic(self, prefix: str) -> str:
        """The topic of its records; Debezium replaces characters that Kafka does not allow by `_`."""
        return re.sub(r"[^a-zA-Z0-9._-]", "_", f"{prefix}.{self.schema}.{self.name}")

    def loss(self, difference: LossCandidate) -> str | None:
        """The kind of loss before Kafka that explains a difference; none for a real difference."""
        if difference.kind == "missing":
            key = sorted((c for c in self.columns if c.is_key), key=lambda c: c.key_place or 0)
            return loss_of_key(zip(key, difference.key or (), strict=True))
        column = next((column for column in self.columns if column.name == difference.column), None)
        if column is None:
            return None
        if difference.kind == "column":
            return None if column.is_sent else NOT_SENT
        return _cell_loss(column, difference.source, difference.lake) if difference.kind == "cell" else None


def _cell_loss(column: SourceColumn, source: object, lake: object) -> str | None:
    """The kind of loss that explains a different value."""
    if not column.is_sent:
        return NOT_SENT
    if source in _PLACEHOLDERS.get(column.type, ()):
        return LIKE_PLACEHOLDER
    changed = None if source is None or lake is None else _changed_value_loss(column, source, lake)
    if changed is not None:
        return changed
    # Other lost values arrive as null, and nulls as the column's default, if it has one.
    if lake is not None and not (column.is_nullable and column.has_default):
        return None
    if column.is_generated:
        return GENERATED
    if source is None:
        return NULL_AS_DEFAULT
    parts = source if isinstance(source, tuple) else (source,)
    numbers = [part for part in parts if isinstance(part, Decimal)]
    if any(not number.is_finite() for number in numbers):
        return NOT_FINITE
    # A time outside Python's range is a number.
    if numbers and column.type in ("date", "timestamp", "timestamptz"):
        return OUT_OF_CALENDAR
    if column.type == "timetz" and isinstance(source, str) and _SECONDS_OF_ZONE.fullmatch(source):
        return ZONE_WITH_SECONDS
    if column.is_array and None in parts and (column.typtype == "e" or column.type == "tsvector"):
        return NULL_IN_ARRAY
    return LARGE_ARRAY if column.loses_unchanged and source != () else None


def _changed_value_loss(column: SourceColumn, source: Any, lake: Any) -> str | None:
    """The kind of loss that explains a different value, if neither is null."""
    if not column.is_array:
        return _changed_element_loss(column.type, source, lake, in_array=False)
    if any(isinstance(part, tuple) for part in source):
        return SEVERAL_DIMENSIONS if all(part is None or str(part).startswith("[L") for part in lake) else None
    if len(lake) != len(source):
        return None
    parts = [(here, there) for here, there in zip(source, lake, strict=True) if here != there]
    losses = [_changed_element_loss(column.type, here, there, in_array=True) for here, there in parts]
    return losses[0] if losses and None not in losses else None


def _changed_element_loss(element_type: str, source: Any, lake: Any, *, in_array: bool) -> str | None:
    if element_type == "date" or (in_array and element_type in ("timestamp", "timestamptz")):
        return _changed_day_loss(source, lake)
    if lake is None or source is None:
        return None
    if element_type == "time" and in_array:
        return CUT_TIME if lake == (0 if source == _DAY_MICROS else source - source % 1000) else None
    return ROUNDED_INTERVAL if element_type == "interval" and abs(source - lake) == 1 else None


def _changed_day_loss(source: Any, lake: Any) -> str | None:
    """The kind of loss of a date or time; one outside Python's range is a number."""
    if isinstance(source, Decimal):
        if lake is None:
            return OUT_OF_CALENDAR if source.is_finite() else NOT_FINITE
        # A date BC arrives as the same date AD.
        return OTHER_CALENDAR if source < 0 and isinstance(lake, date) else None
    if not isinstance(source, date) or not isinstance(lake, date):
        return None
    day = source.date() if isinstance(source, datetime) else source
    return OTHER_CALENDAR if day < _GREGORIAN_CALENDAR and abs(lake - source) <= timedelta(days=10) else None


def is_of_other_calendar(column: SourceColumn, value: object) -> bool:
    """Whether a date may arrive as another date; a number is one outside Python's range."""
    if column.type != "date" or column.is_array:
        return False
    if isinstance(value, Decimal):
        return value.is_finite() and value < 0
    return isinstance(value, date) and value < _GREGORIAN_CALENDAR


def loss_of_key(parts: Iterable[tuple[SourceColumn, object]]) -> str | None:
    """The kind of loss that explains a missing key.

    Args:
        parts: the key's columns and values.
    """
    for column, value in parts:
        is_moment = column.type in ("date", "timestamp", "timestamptz") and not column.is_array
        if is_moment and isinstance(value, Decimal) and not is_of_other_calendar(column, value):
            return QUARANTINED_KEY
    return None


# Domains are resolved to base types.
_TABLES = """
WITH RECURSIVE resolved AS (
    SELECT attrelid, attnum, atttypid AS type
    FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT r.attrelid, r.attnum, t.typbasetype
    FROM resolved r JOIN pg_type t ON t.oid = r.type AND t.typtype = 'd'
)
SELECT n.nspname, c.relname, c.relpersistence = 'p', coalesce(i.indimmediate, false),
    a.attname, coalesce(e.typname, t.typname), coalesce(e.typtype, t.typtype)::text, e.oid IS NOT NULL,
    NOT a.attnotnull, a.atthasdef AND a.attgenerated = '', a.attgenerated <> '',
    array_position(i.indkey, a.attnum),
    EXISTS (SELECT FROM pg_index u WHERE u.indrelid = c.oid AND u.indisunique AND a.attnum = ANY(u.indkey)),
    EXISTS (SELECT FROM pg_constraint f WHERE f.conrelid = c.oid AND f.contype = 'f' AND a.attnum = ANY(f.conkey))
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN resolved r ON r.attrelid = c.oid AND r.attnum = a.attnum
JOIN pg_type t ON t.oid = r.type AND t.typtype <> 'd'
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY n.nspname, c.relname, a.attnum
"""


def read_tables(source: psycopg.Connection) -> list[SourceTable]:
    """Read all tables in all schemas of a database, with the `trouble` of tables that cannot be captured."""
    by_table: dict[tuple[str, str], list[SourceColumn]] = {}
    problems: dict[tuple[str, str], str | None] = {}
    for schema, name, is_logged, is_immediate, *column in source.execute(_TABLES):
        by_table.setdefault((schema, name), []).append(SourceColumn(*column))
        problems[schema, name] = (
            "it is not logged" if not is_logged else None if is_immediate else "its primary key is deferrable"
        )
    tables = [SourceTable(*key, tuple(columns), _problem(columns, problems[key])) for key, columns in by_table.items()]
    topics = Counter(table.topic("") for table in tables)
    return [
        replace(table, trouble="another table has the same topic") if topics[table.topic("")] > 1 else table
        for table in tables
    ]


def _problem(columns: Sequence[SourceColumn], known: str | None) -> str | None:
    if not any(column.is_key for column in columns):
        return "it has no primary key"
    if len({column.lake_name.lower() for column in columns}) < len(columns):
        return "two of its columns have the same name in the lake"
    if any(column.is_key and not column.is_sent for column in columns):
        return "Debezium does not send the type of its primary key"
    return known
