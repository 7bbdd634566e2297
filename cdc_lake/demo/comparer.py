"""Compare a Postgres table with its lake table, row by row and by type.

The comparison must not share errors with the product, so this module imports nothing of cdc_lake. It reads the source
with psycopg, and the lake with delta-rs or hudi-rs and pyarrow, without Spark, Kafka and Avro.

    python -m cdc_lake.demo.comparer --dsn postgresql://… --table public.film --lake lake/silver/film [--json]

exits with 0 if both have the same rows, and with 1 if they differ.
"""

import argparse
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from psycopg import sql

Kind = Literal["missing", "extra", "cell", "column", "duplicate"]
Key = tuple[object, ...]
Row = tuple[object, ...]

DELETED = "__deleted"
ROWS_AT_ONCE = 5_000


@dataclass(frozen=True)
class Difference:
    """A difference between the lake and the source.

    Attributes:
        kind: `missing` (only in the source), `extra` (only in the lake), `duplicate` (once per surplus lake row),
            `cell` (one column of one row), `column` (missing on one side, or of the wrong type).
        key: the primary key's values; none for `column`.
        column: set for `cell` and `column`.
        source: the source's value, or the expected type.
        lake: the lake's value, or its type.
    """

    kind: Kind
    key: Key | None
    column: str | None
    source: object
    lake: object


Explain = Callable[[Difference], str | None]


def _no_explanation(_: Difference) -> None:
    return None


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        source_rows: rows of the source table.
        lake_rows: live rows of the lake table.
        differences: total number of unexplained differences.
        samples: the first of them.
        known: explanation -> number of explained differences.
    """

    source_rows: int
    lake_rows: int
    differences: int
    samples: tuple[Difference, ...]
    known: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Findings:
    """Counts differences, and keeps the first unexplained ones."""

    limit: int
    explain: Explain
    count: int = 0
    samples: list[Difference] = field(default_factory=list)
    known: Counter[str] = field(default_factory=Counter)

    def add(self, kind: Kind, key: Key | None, column: str | None, source: object, lake: object) -> None:
        difference = Difference(kind, key, column, source, lake)
        explanation = self.explain(difference)
        if explanation is not None:
            self.known[explanation] += 1
            return
        self.count += 1
        if len(self.samples) < self.limit:
            self.samples.append(difference)


def _same(value: Any) -> object:
    return value


@dataclass(frozen=True)
class _Rule:
    """Conversion of a Postgres type's values to a common form on both sides.

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


# `format`, because a cast to text adds a netmask to each address.
_TEXT = _Rule("string", _is_string, "CASE WHEN {c} IS NOT NULL THEN format('%s', {c}) END")
_NUMBER_TEXT = _Rule("string (plain number)", _is_string, read=_plain_number)
# Days and microseconds are compared as numbers: infinity, BC and the year 294276 have no Python date.
_MICROS = "extract(epoch FROM {c}) * 1000000"
_BITS = (
    "CASE WHEN {c} IS NOT NULL THEN (SELECT coalesce(sum(power(2::numeric, length({c}) - place)), 0)"
    " FROM generate_series(1, length({c})) AS place WHERE get_bit({c}, place - 1) = 1) END"
)
_RULES = {
    "int2": _Rule("short", pa.types.is_int16),
    "int4": _Rule("int", pa.types.is_int32),
    "int8": _Rule("long", pa.types.is_int64),
    "bool": _Rule("boolean", pa.types.is_boolean),
    # float8 keeps the binary value of a float4; its text would be read as the double nearest to the short decimal.
    "float4": _Rule("float", pa.types.is_float32, "{c}::float8"),
    "float8": _Rule("double", pa.types.is_float64),
    "bytea": _Rule("binary", _is_binary),
    "date": _Rule("date", pa.types.is_date32, "extract(epoch FROM {c}) / 86400", pa.int32(), show=_day),
    "time": _Rule("long (microseconds)", pa.types.is_int64, _MICROS),
    "timestamp": _Rule("timestamp (UTC wall clock)", _is_wall_clock, _MICROS, pa.int64(), show=_instant),
    "timestamptz": _Rule("timestamp (UTC)", _is_instant, _MICROS, pa.int64(), show=_instant),
    # Microseconds, or the source's text if the zone has seconds, for which Debezium sends null.
    "timetz": _Rule(
        "string (time in UTC)",
        _is_string,
        "CASE WHEN extract(timezone FROM {c})::int % 60 = 0"
        " THEN trunc(extract(epoch FROM {c} AT TIME ZONE 'UTC') * 1000000)::text ELSE {c}::text END",
        read=_time_of_day,
    ),
    # Debezium converts a month to a twelfth of 365.25 days.
    "interval": _Rule(
        "long (microseconds)",
        pa.types.is_int64,
        "((extract(year FROM {c}) * 12 + extract(month FROM {c})) * 30.4375 + extract(day FROM {c})) * 86400000000"
        " + extract(epoch FROM {c} - date_trunc('day', {c})) * 1000000",
    ),
    "oid": _Rule("long", pa.types.is_int64, "{c}::int8"),
    "money": replace(_NUMBER_TEXT, select="{c}::numeric"),
    "point": _Rule(
        "struct of x and y",
        pa.types.is_struct,
        "CASE WHEN {c} IS NOT NULL THEN ARRAY[({c})[0], ({c})[1]] END",
        read=_point,
    ),
    **dict.fromkeys(("bit", "varbit"), _Rule("binary", _is_binary, _BITS, read=_bits)),
    # A cast of char(n) to text would drop the padding.
    "bpchar": _Rule("string", _is_string, "textin(bpcharout({c}))"),
}


def _rule(type_name: str, modifier: int) -> _Rule:
    """The rule of a base type; `modifier` is Postgres's type modifier, such as of `numeric(4,2)` or `bit(8)`."""
    if type_name == "numeric":
        return _decimal_rule(modifier)
    if type_name in ("bit", "varbit") and modifier == 1:
        return _Rule("boolean", pa.types.is_boolean, "({c})::bit(1)::int::bool")
    return _RULES.get(type_name, _TEXT)


def _decimal_rule(modifier: int) -> _Rule:
    """The rule of `numeric` by its packed precision and scale; -1 without them."""
    if modifier < 0:
        return _NUMBER_TEXT
    precision, scale = (modifier - 4) >> 16, ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    if precision > 38 or scale < 0:
        return _NUMBER_TEXT
    return _Rule(
        f"decimal({precision},{scale})",
        # A lake column stays wide if the source's is narrowed, so more digits are correct, but not another scale.
        lambda arrow: bool(pa.types.is_decimal128(arrow) and arrow.scale == scale and arrow.precision >= precision),
    )


def _array_rule(element: _Rule) -> _Rule:
    """The rule of an array; one of several dimensions is read as a nested array with all elements."""
    each = element.select.format(c="element")
    parts = f"ARRAY(SELECT {each} FROM unnest({{c}}) WITH ORDINALITY AS e(element, place) ORDER BY place)"

    def show(value: Any) -> object:
        return tuple(map(show, value)) if isinstance(value, tuple) else element.show(value)

    return _Rule(
        f"array<{element.lake_type}>",
        lambda arrow: bool(_is_list(arrow) and element.accepts(arrow.value_type)),
        f"CASE WHEN array_ndims({{c}}) > 1 THEN ARRAY[{parts}] WHEN {{c}} IS NOT NULL THEN {parts} END",
        pa.list_(element.cast) if element.cast else None,
        lambda values: None if values is None else tuple(None if v is None else element.read(v) for v in values),
        lambda values: None if values is None else show(values),
    )


@dataclass(frozen=True)
class _Column:
    """A column of the source table; `key_place` is its position in the primary key, from 1, or none."""

    name: str
    lake_name: str
    rule: _Rule
    key_place: int | None


# Domains are resolved to base types; the modifier, as in numeric(4,2), is the domain's.
_CATALOGUE = """
WITH RECURSIVE resolved AS (
    SELECT attnum, attname, atttypid AS type, atttypmod AS modifier
    FROM pg_attribute
    WHERE attrelid = %(table)s::regclass AND attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT r.attnum, r.attname, t.typbasetype, t.typtypmod
    FROM resolved r JOIN pg_type t ON t.oid = r.type AND t.typtype = 'd'
)
SELECT r.attname, coalesce(e.typname, t.typname), e.oid IS NOT NULL, r.modifier, array_position(i.indkey, r.attnum)
FROM resolved r
JOIN pg_type t ON t.oid = r.type AND t.typtype <> 'd'
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_index i ON i.indrelid = %(table)s::regclass AND i.indisprimary
ORDER BY r.attnum
"""


def _columns(
    source: psycopg.Connection, table: str, lake_name: Callable[[str], str], *, is_hudi: bool
) -> list[_Column]:
    """The columns of a source table from Postgres's catalog."""
    columns = []
    for name, type_name, is_array, modifier, place in source.execute(_CATALOGUE, {"table": table}):
        # Hudi's smallest integer type is int.
        rule = _rule("int4" if is_hudi and type_name == "int2" else type_name, modifier)
        columns.append(_Column(name, lake_name(name), _array_rule(rule) if is_array else rule, place))
    if not any(column.key_place is not None for column in columns):
        raise ValueError(f"{table}: it has no primary key, so rows cannot be matched")
    return columns


def _comparable(columns: Sequence[_Column], lake: pa.Schema, findings: _Findings) -> list[_Column]:
    """The columns that both sides have with the expected type; others are differences."""
    types = dict(zip(lake.names, lake.types, strict=True))
    comparable = []
    for column in (*columns, _Column(DELETED, DELETED, _RULES["bool"], None)):
        found = types.pop(column.lake_name, None)
        if found is not None and column.rule.accepts(found):
            comparable.append(column)
        else:
            findings.add("column", None, column.name, column.rule.lake_type, None if found is None else str(found))
    for name, found in types.items():
        if not name.startswith("__"):
            findings.add("column", None, name, None, str(found))
    return [column for column in comparable if column.name != DELETED]


def _source_rows(source: psycopg.Connection, table: str, columns: Sequence[_Column]) -> Iterator[Row]:
    """Stream the source's rows."""
    expressions = (column.rule.select.format(c=sql.Identifier(column.name).as_string()) for column in columns)
    with source.cursor(name="comparer") as cursor:
        cursor.itersize = ROWS_AT_ONCE
        for row in cursor.execute(f"SELECT {', '.join(expressions)} FROM {table}".encode()):
            yield tuple(map(_frozen, row))


def _frozen(value: object) -> object:
    """Convert psycopg's lists for arrays to tuples, which can be part of a key."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _lake_rows(lake: ds.Dataset, columns: Sequence[_Column]) -> Iterator[Row]:
    """Stream the lake's live rows."""
    for batch in lake.to_batches(columns=[column.lake_name for column in columns], filter=~pc.field(DELETED)):
        cells = []
        for column, values in zip(columns, batch.columns, strict=True):
            if column.rule.cast is not None:
                values = values.cast(column.rule.cast)
            cells.append([column.rule.read(value) for value in values.to_pylist()])
        yield from zip(*cells, strict=True)


def _matching(values: Iterable[object]) -> Key:
    """A comparable key: replaces NaN, which does not equal itself."""
    return tuple(_matching(v) if isinstance(v, tuple) else v if v == v else "NaN" for v in values)


def _compare_rows(
    source: Iterator[Row], lake: Iterator[Row], columns: Sequence[_Column], findings: _Findings
) -> tuple[int, int]:
    """Match rows by key and compare them cell by cell.

    Returns:
        The numbers of rows in the source and the lake.
    """
    key_columns = sorted((c.key_place, at) for at, c in enumerate(columns) if c.key_place is not None)
    key_at = [at for _, at in key_columns]

    def shown(row: Row) -> Row:
        return tuple(column.rule.show(value) for column, value in zip(columns, row, strict=True))

    def shown_key(row: Row) -> Key:
        return tuple(columns[at].rule.show(row[at]) for at in key_at)

    lake_count = source_count = 0
    unmatched: dict[Key, Row] = {}
    for row in lake:
        lake_count += 1
        key = _matching(row[at] for at in key_at)
        if key in unmatched:
            findings.add("duplicate", shown_key(row), None, None, shown(row))
        else:
            unmatched[key] = row
    for row in source:
        source_count += 1
        other = unmatched.pop(_matching(row[at] for at in key_at), None)
        if other is None:
            findings.add("missing", shown_key(row), None, shown(row), None)
        elif row != other:
            for column, here, there in zip(columns, row, other, strict=True):
                # NaN does not equal itself.
                if here != there and repr(here) != repr(there):
                    show = column.rule.show
                    findings.add("cell", shown_key(row), column.name, show(here), show(there))
    for row in unmatched.values():
        findings.add("extra", shown_key(row), None, None, shown(row))
    return source_count, lake_count


def compare(
    dsn: str,
    schema: str,
    table: str,
    lake_path: str,
    *,
    limit: int = 20,
    lake_name: Callable[[str], str] = str,
    explain: Explain = _no_explanation,
) -> Comparison:
    """Compare a source table with the live rows of its lake table.

    Tables are equal if they have the same keys, each once, and the same type and value in every column, including
    trailing spaces, microseconds, the scale of decimals, and null against empty text. Columns that begin with `__` are
    cdc_lake's own.

    Args:
        dsn: libpq DSN or URL of the source database.
        schema: schema of the source table.
        table: name of the source table; it needs a primary key.
        lake_path: folder of the Delta or Hudi table.
        limit: maximum number of samples; all differences are counted.
        lake_name: maps a column's name to its name in the lake.
        explain: returns the explanation of a known difference, which is then counted separately.

    Returns:
        The result. If a key column or `__deleted` differs, rows are not compared and their numbers are 0.

    Raises:
        ValueError: the source table has no primary key.
    """
    findings = _Findings(limit, explain)
    is_hudi = Path(lake_path, ".hoodie").is_dir()
    lake = _hudi_rows(lake_path) if is_hudi else DeltaTable(lake_path).to_pyarrow_dataset()
    name = sql.Identifier(schema, table).as_string()
    with psycopg.connect(dsn, options="-c timezone=UTC -c extra_float_digits=1") as source:
        source.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        source.read_only = True
        columns = _columns(source, name, lake_name, is_hudi=is_hudi)
        comparable = _comparable(columns, lake.schema, findings)
        keys = {column.name for column in columns if column.key_place is not None}
        rows = (0, 0)
        if keys <= {column.name for column in comparable} and _RULES["bool"].accepts(_type_of(lake.schema, DELETED)):
            lake_rows = _lake_rows(lake, comparable)
            rows = _compare_rows(_source_rows(source, name, comparable), lake_rows, comparable, findings)
    return Comparison(*rows, findings.count, tuple(findings.samples), dict(findings.known))


def _hudi_rows(path: str) -> ds.Dataset:
    """All rows of a Hudi table, without Hudi's columns."""
    from hudi import HudiTableBuilder

    table = HudiTableBuilder.from_base_uri(path).build()
    batches = table.read()
    rows = pa.Table.from_batches(batches) if batches else table.get_schema_with_meta_fields().empty_table()
    return ds.dataset(rows.select([name for name in rows.column_names if not name.startswith("_hoodie_")]))


def _type_of(lake: pa.Schema, name: str) -> pa.DataType:
    return lake.field(name).type if name in lake.names else pa.null()


def _as_json(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two tables from the command line and print the result.

    Returns:
        The exit code: 0 if they are equal, 1 if they differ.
    """
    parser = argparse.ArgumentParser(prog="comparer", description="Compare a Postgres table with its lake table.")
    parser.add_argument("--dsn", required=True, help="libpq DSN or URL of the source database")
    parser.add_argument("--table", required=True, help="schema.table")
    parser.add_argument("--lake", required=True, help="folder of the Delta or Hudi table")
    parser.add_argument("--limit", type=int, default=20, help="maximum number of differences to print")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    schema, _, table = options.table.rpartition(".")
    outcome = compare(options.dsn, schema or "public", table, options.lake, limit=options.limit)
    if options.json:
        print(json.dumps(dataclasses.asdict(outcome), default=_as_json))
    else:
        print(
            f"{options.table}: {outcome.source_rows} rows in the source, {outcome.lake_rows} in the lake, "
            f"{outcome.differences} differences"
        )
        for sample in outcome.samples:
            where = " ".join(str(part) for part in (sample.kind, sample.key, sample.column) if part is not None)
            print(f"  {where}: source {sample.source!r:.200}, lake {sample.lake!r:.200}")
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main())
