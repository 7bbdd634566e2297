"""Compare a Postgres table with its lake table, row by row and by type.

The comparison must not share errors with the product, so it shares no code with it: only `comparer_types.py`, which has
the rules of types, is imported from cdc_lake. It reads the source with psycopg, or its recorded rows without, and the
lake with delta-rs, hudi-rs or pyiceberg and pyarrow, without Spark, Kafka and Avro.

    python -m cdc_lake.demo.comparer --dsn postgresql://… --table public.film --lake lake/silver/film [--json]

exits with 0 if both have the same rows, and with 1 if they differ.
"""

import argparse
import dataclasses
import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from cdc_lake.demo.comparer_types import BOOLEAN, TypeRule, array_rule, type_rule

if TYPE_CHECKING:
    import psycopg
    from pyiceberg.table import StaticTable

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


@dataclass(frozen=True)
class ComparedColumn:
    """A column of the source table; `key_place` is its position in the primary key, from 1, or none."""

    name: str
    lake_name: str
    rule: TypeRule
    key_place: int | None


# Domains are resolved to base types; the modifier, as in numeric(4,2), is the domain's.
CATALOG = """
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
"""Query of Postgres' catalog for the columns of `table`: name, type, whether it is an array, type modifier, place in
the primary key.
"""


def columns_of(
    catalog: Iterable[Sequence[Any]], lake_name: Callable[[str], str] = str, *, has_smallint: bool = True
) -> list[ComparedColumn]:
    """The columns of a source table, from the rows of `CATALOG`."""
    columns = []
    for name, type_name, is_array, modifier, place in catalog:
        # The smallest integer type of Hudi and Iceberg is int.
        rule = type_rule("int4" if type_name == "int2" and not has_smallint else type_name, modifier)
        columns.append(ComparedColumn(name, lake_name(name), array_rule(rule) if is_array else rule, place))
    return columns


def _comparable(columns: Sequence[ComparedColumn], lake: pa.Schema, findings: _Findings) -> list[ComparedColumn]:
    """The columns that both sides have with the expected type; others are differences."""
    types = dict(zip(lake.names, lake.types, strict=True))
    comparable = []
    for column in (*columns, ComparedColumn(DELETED, DELETED, BOOLEAN, None)):
        stored = types.pop(column.lake_name, None)
        if stored is not None and column.rule.accepts(stored):
            comparable.append(column)
        else:
            findings.add("column", None, column.name, column.rule.lake_type, None if stored is None else str(stored))
    for name, stored in types.items():
        if not name.startswith("__"):
            findings.add("column", None, name, None, str(stored))
    return [column for column in comparable if column.name != DELETED]


def _source_rows(source: "psycopg.Connection", table: str, columns: Sequence[ComparedColumn]) -> Iterator[Row]:
    from psycopg import sql  # imported here: recorded rows are compared without it

    expressions = (column.rule.select.format(c=sql.Identifier(column.name).as_string()) for column in columns)
    with source.cursor(name="comparer") as cursor:
        cursor.itersize = ROWS_AT_ONCE
        for row in cursor.execute(f"SELECT {', '.join(expressions)} FROM {table}".encode()):
            yield frozen(row)


def frozen(values: Iterable[object]) -> Row:
    """The values, with lists for arrays converted to tuples, which can be part of a key."""
    return tuple(frozen(value) if isinstance(value, list) else value for value in values)


def _lake_rows(lake: ds.Dataset, columns: Sequence[ComparedColumn]) -> Iterator[Row]:
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


def _match_rows(
    source: Iterator[Row], lake: Iterator[Row], columns: Sequence[ComparedColumn], findings: _Findings
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
        table: name of the source table; it needs a primary key.
        lake_path: folder of the Delta, Hudi or Iceberg table.
        limit: maximum number of samples; all differences are counted.
        lake_name: maps a column's name to its name in the lake.
        explain: returns the explanation of a known difference, which is then counted separately.

    Returns:
        The result. If a key column or `__deleted` differs, rows are not compared and their numbers are 0.

    Raises:
        ValueError: the source table has no primary key.
    """
    import psycopg  # imported here: recorded rows are compared without it
    from psycopg import sql

    name = sql.Identifier(schema, table).as_string()
    with psycopg.connect(dsn, options="-c timezone=UTC -c extra_float_digits=1") as source:
        source.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        source.read_only = True
        catalog = source.execute(CATALOG, {"table": name}).fetchall()
        columns = columns_of(catalog, lake_name, has_smallint=DeltaTable.is_deltatable(lake_path))
        if not any(column.key_place is not None for column in columns):
            raise ValueError(f"{name}: it has no primary key, so rows cannot be matched")
        return compare_rows(columns, partial(_source_rows, source, name), lake_path, limit=limit, explain=explain)


def compare_rows(
    columns: Sequence[ComparedColumn],
    source_rows: Callable[[Sequence[ComparedColumn]], Iterator[Row]],
    lake_path: str,
    *,
    limit: int = 20,
    explain: Explain = _no_explanation,
) -> Comparison:
    """Compare rows of a source table with the live rows of its lake table; see `compare`.

    Args:
        columns: all columns of the source table.
        source_rows: returns the values of some of its columns, as psycopg returns them for the columns' `select`.
    """
    findings = _Findings(limit, explain)
    lake = _lake(lake_path)
    comparable = _comparable(columns, lake.schema, findings)
    keys = {column.name for column in columns if column.key_place is not None}
    rows = (0, 0)
    if keys <= {column.name for column in comparable} and BOOLEAN.accepts(_type_of(lake.schema, DELETED)):
        rows = _match_rows(source_rows(comparable), _lake_rows(lake, comparable), comparable, findings)
    return Comparison(*rows, findings.count, tuple(findings.samples), dict(findings.known))


def count_differences(expected: Iterable[Hashable], actual: Iterable[Hashable]) -> int:
    """How many values only one of both has; equal values count each time."""
    expected_counts, actual_counts = Counter(expected), Counter(actual)
    return ((expected_counts - actual_counts) + (actual_counts - expected_counts)).total()


def _is_hudi(path: str) -> bool:
    return Path(path, ".hoodie").is_dir()


def iceberg_table(path: str) -> "StaticTable":
    """The Iceberg table in a folder of a lake whose catalog is its own SQLite file, as pyiceberg reads it."""
    from pyiceberg.table import StaticTable

    catalogs = (Path(folder, "_iceberg", "catalog.db") for folder in Path(path).parents)
    file = next(file for file in catalogs if file.is_file())
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as catalog:
        files = [row[0] for row in catalog.execute("SELECT metadata_location FROM iceberg_tables")]
    (newest,) = (one for one in files if Path(one.removeprefix("file:")).parents[1] == Path(path))
    return StaticTable.from_metadata(newest)


def _lake(path: str) -> ds.Dataset:
    if _is_hudi(path):
        return _hudi_rows(path)
    if Path(path, "_iceberg").is_dir():
        return ds.dataset(iceberg_table(path).scan().to_arrow())
    return DeltaTable(path).to_pyarrow_dataset()


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
    parser.add_argument("--lake", required=True, help="folder of the Delta, Hudi or Iceberg table")
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
