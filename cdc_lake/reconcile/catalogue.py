"""What Postgres' catalogue says of a database: which tables can be followed, under which names, and what gets lost.

Some values never reach Kafka as they are: nothing behind it can bring them back. They are recognised by what the
catalogue says of their column, so that they can be told from a difference that somebody is to blame for.
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
NOT_SENT: Final = "values of types that Debezium does not send, or not whole"
GENERATED: Final = "values of generated columns, which Postgres does not log"
NULL_IN_ARRAY: Final = "arrays with a null in them, of types whose arrays may have none"
LARGE_ARRAY: Final = "large arrays left alone, of types without a placeholder"
SEVERAL_DIMENSIONS: Final = "arrays of several dimensions, of which nothing arrives"
OTHER_CALENDAR: Final = "dates before 15 October 1582, taken for another calendar's"
CUT_TIME: Final = "times in arrays, which are cut to milliseconds"
ZONE_WITH_SECONDS: Final = "times in a zone with seconds, which arrive as null"
LIKE_PLACEHOLDER: Final = "values that equal the placeholder of values that were not sent"
QUARANTINED_KEY: Final = "rows with a date before the year 1 or after 9999 in their key, which bronze quarantines"
ROUNDED_INTERVAL: Final = "the last microsecond of intervals, whose seconds go through a double"

_SENT = frozenset(
    (
        *("int2", "int4", "int8", "oid", "float4", "float8", "numeric", "money", "bool", "bit", "varbit"),
        *("char", "bpchar", "varchar", "text", "citext", "bytea", "uuid", "json", "jsonb", "xml", "ltree"),
        *("date", "time", "timetz", "timestamp", "timestamptz", "interval", "tsvector", "hstore", "point"),
        *("inet", "cidr", "macaddr", "macaddr8"),
        *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
    )
)
"""Base types that Debezium 3.6 sends unless told otherwise, as seen; and enums. `name` is sent in snapshots only."""
_SENT_ARRAYS = _SENT - {"money", "timetz", "interval", "bit", "varbit", "xml", "point"}
_ARRAY_PLACEHOLDERS = frozenset(
    ("int4", "int8", "date", "bpchar", "varchar", "text", "bytea", "uuid", "json", "jsonb", "citext")
)
"""Types whose arrays have one: the other arrays arrive as null when they were too large to be logged again."""
_PLACEHOLDER = "__debezium_unavailable_value"
_BYTES = (_PLACEHOLDER.encode(), _PLACEHOLDER.encode().hex())
_PLACEHOLDERS = {
    **dict.fromkeys(("bpchar", "varchar", "text", "citext"), (_PLACEHOLDER, (_PLACEHOLDER,))),
    "bytea": (*_BYTES, *((value,) for value in _BYTES)),
}
"""By type what a value that was not sent arrives as, alone and in an array."""
_SECONDS_OF_ZONE = re.compile(r".*[+-]\d\d:\d\d:\d\d")
_OUR_CALENDAR = date(1582, 10, 15)
_DAY_MICROS = 86_400_000_000


class Difference(Protocol):
    """Where a table of the lake is not the source's, as whoever compared them says it.

    Attributes:
        kind: `cell`: one column of one row; `column`: one that is absent on one side; `missing`: a row that only the
            source has. Others have no excuse.
        key: of a row, in the order of the primary key.
        source, lake: the values. A moment that Python has no date for is a number, of days or microseconds; a tuple is
            an array, and one in a tuple an array of several dimensions.
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
    """What a column of that name is called in records and tables: what Avro allows, as Debezium brings it about.

    Source: `field.name.adjustment.mode=avro`.
    """
    plain = re.sub(r"[^a-zA-Z0-9_]", "_", column)
    return f"_{plain}" if plain[0].isdigit() else plain


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        type: name of its base type, domains followed to theirs; of its elements for an array.
        kind: Postgres' letter for the kind of that type: `b` base, `e` enum, `c` composite, `r` range, ….
        key_place: its place in the primary key, from 0; none outside it.
        is_unique: whether it is a part of any unique index.
        is_reference: whether it is a part of a foreign key.
    """

    name: str
    type: str
    kind: str
    is_array: bool
    is_nullable: bool
    has_default: bool
    is_generated: bool
    key_place: int | None
    is_unique: bool
    is_reference: bool

    @property
    def is_key(self) -> bool:
        """Whether it is a part of the primary key."""
        return self.key_place is not None

    @property
    def is_sent(self) -> bool:
        """Whether Debezium sends columns of this type at all."""
        return self.kind == "e" or self.type in (_SENT_ARRAYS if self.is_array else _SENT)

    @property
    def lake_name(self) -> str:
        """Its name in the records and in the lake."""
        return in_the_lake(self.name)


@dataclass(frozen=True)
class Table:
    """A table, a partitioned one as a whole.

    Attributes:
        trouble: why it cannot be followed, if so.
    """

    schema: str
    name: str
    columns: tuple[Column, ...]
    trouble: str | None = None

    @property
    def place(self) -> str:
        """Its name as Debezium has it."""
        return f"{self.schema}.{self.name}"

    @property
    def qualified(self) -> str:
        """Its name as SQL has it."""
        return sql.Identifier(self.schema, self.name).as_string()

    def topic(self, prefix: str) -> str:
        """Where Debezium sends its records: whatever Kafka does not allow in a name becomes `_`."""
        return re.sub(r"[^a-zA-Z0-9._-]", "_", f"{prefix}.{self.schema}.{self.name}")

    def loss(self, difference: Difference) -> str | None:
        """The kind of loss before Kafka that explains a difference; none if the catalogue has no excuse for it."""
        if difference.kind == "missing":
            key = sorted((c for c in self.columns if c.is_key), key=lambda c: c.key_place or 0)
            return loss_of_key(zip(key, difference.key or (), strict=True))
        column = next((column for column in self.columns if column.name == difference.column), None)
        if column is None:
            return None
        if difference.kind == "column":
            return None if column.is_sent else NOT_SENT
        return _lost(column, difference.source, difference.lake) if difference.kind == "cell" else None


def _lost(column: Column, source: object, lake: object) -> str | None:
    """The kind of loss that made a value another one."""
    if not column.is_sent:
        return NOT_SENT
    if source in _PLACEHOLDERS.get(column.type, ()):
        return LIKE_PLACEHOLDER
    bent = None if source is None or lake is None else _bent(column, source, lake)
    if bent is not None:
        return bent
    # What else is lost arrives as null, and a null as the column's default, if it has one.
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
    # The comparer shows a moment that Python has no date for as a number.
    if numbers and column.type in ("date", "timestamp", "timestamptz"):
        return OUT_OF_CALENDAR
    if column.type == "timetz" and isinstance(source, str) and _SECONDS_OF_ZONE.fullmatch(source):
        return ZONE_WITH_SECONDS
    if column.is_array and None in parts and (column.kind == "e" or column.type == "tsvector"):
        return NULL_IN_ARRAY
    return LARGE_ARRAY if column.is_array and source != () and column.type not in _ARRAY_PLACEHOLDERS else None


def _bent(column: Column, source: Any, lake: Any) -> str | None:
    """The kind of loss that made a value another one that is no null."""
    if not column.is_array:
        return _bent_part(column.type, source, lake, in_array=False)
    if any(isinstance(part, tuple) for part in source):
        return SEVERAL_DIMENSIONS if all(part is None or str(part).startswith("[L") for part in lake) else None
    if len(lake) != len(source):
        return None
    parts = [(here, there) for here, there in zip(source, lake, strict=True) if here != there]
    found = [_bent_part(column.type, here, there, in_array=True) for here, there in parts]
    return found[0] if found and None not in found else None


def _bent_part(kind: str, source: Any, lake: Any, *, in_array: bool) -> str | None:
    if kind == "date" or (in_array and kind in ("timestamp", "timestamptz")):
        return _bent_day(source, lake)
    if lake is None or source is None:
        return None
    if kind == "time" and in_array:
        return CUT_TIME if lake == (0 if source == _DAY_MICROS else source - source % 1000) else None
    return ROUNDED_INTERVAL if kind == "interval" and abs(source - lake) == 1 else None


def _bent_day(source: Any, lake: Any) -> str | None:
    """The same of a day, or of a moment; the comparer shows one that Python has no date for as a number."""
    if isinstance(source, Decimal):
        if lake is None:
            return OUT_OF_CALENDAR if source.is_finite() else NOT_FINITE
        # A day before Christ arrives as the same day after.
        return OTHER_CALENDAR if source < 0 and isinstance(lake, date) else None
    if not isinstance(source, date) or not isinstance(lake, date):
        return None
    day = source.date() if isinstance(source, datetime) else source
    return OTHER_CALENDAR if day < _OUR_CALENDAR and abs(lake - source) <= timedelta(days=10) else None


def is_of_other_calendar(column: Column, value: object) -> bool:
    """Whether a date of the source may arrive as another one; a number is one that Python has no date for."""
    if column.type != "date" or column.is_array:
        return False
    if isinstance(value, Decimal):
        return value.is_finite() and value < 0
    return isinstance(value, date) and value < _OUR_CALENDAR


def loss_of_key(parts: Iterable[tuple[Column, object]]) -> str | None:
    """The kind of loss that explains why silver has no row of a key, of its columns and their values."""
    for column, value in parts:
        is_moment = column.type in ("date", "timestamp", "timestamptz") and not column.is_array
        if is_moment and isinstance(value, Decimal) and not is_of_other_calendar(column, value):
            return QUARANTINED_KEY
    return None


# A domain is followed to its base type. Of a foreign key that is inherited from a partitioned table's root one is seen.
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


def read_tables(source: psycopg.Connection) -> list[Table]:
    """Read all tables of a database, of all schemas, those that cannot be followed with the reason."""
    columns: dict[tuple[str, str], list[Column]] = {}
    troubles: dict[tuple[str, str], str | None] = {}
    for schema, name, is_logged, is_immediate, *column in source.execute(_TABLES):
        columns.setdefault((schema, name), []).append(Column(*column))
        troubles[schema, name] = (
            "it is not logged" if not is_logged else None if is_immediate else "its primary key is deferrable"
        )
    tables = [Table(*place, tuple(found), _trouble(found, troubles[place])) for place, found in columns.items()]
    topics = Counter(table.topic("") for table in tables)
    return [
        replace(table, trouble="another table's topic has the same name") if topics[table.topic("")] > 1 else table
        for table in tables
    ]


def _trouble(columns: Sequence[Column], known: str | None) -> str | None:
    if not any(column.is_key for column in columns):
        return "it has no primary key"
    if len({column.lake_name.lower() for column in columns}) < len(columns):
        return "two of its columns have the same name in the lake"
    if any(column.is_key and not column.is_sent for column in columns):
        return "its primary key has a type that Debezium does not send"
    return known
