"""The comparer finds every kind of difference before it reports two tables as equal."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from cdc_lake.demo.comparer import Comparison, Difference, compare, main
from cdc_lake.demo.proof import compare_table, gold_result
from cdc_lake.reconcile.postgres_catalog import LIKE_PLACEHOLDER, QUARANTINED_KEY, ZONE_WITH_SECONDS, read_tables

pytestmark = pytest.mark.core


Row = dict[str, Any]
Change = Callable[[list[Row]], None]

TABLE = """
DROP SCHEMA IF EXISTS proof CASCADE;
CREATE SCHEMA proof;
SET search_path = proof;
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN price AS numeric(6,2);
CREATE TABLE thing (
    region text, id int, PRIMARY KEY (id, region),
    small smallint, big bigint, flag boolean, exact price, loose numeric, near real, far double precision,
    label varchar(40), code char(4), mood mood, ref uuid, doc jsonb, words tsvector, raw bytea, born date,
    seen timestamp, at timestamptz, clock time, tags text[], counts int[], stamps timestamptz[]
)
"""

SCHEMA = pa.schema(
    {
        "region": pa.string(),
        "id": pa.int32(),
        "small": pa.int16(),
        "big": pa.int64(),
        "flag": pa.bool_(),
        "exact": pa.decimal128(6, 2),
        "loose": pa.string(),
        "near": pa.float32(),
        "far": pa.float64(),
        "label": pa.string(),
        "code": pa.string(),
        "mood": pa.string(),
        "ref": pa.string(),
        "doc": pa.string(),
        "words": pa.string(),
        "raw": pa.binary(),
        "born": pa.date32(),
        "seen": pa.timestamp("us", "UTC"),
        "at": pa.timestamp("us", "UTC"),
        "clock": pa.int64(),
        "tags": pa.list_(pa.string()),
        "counts": pa.list_(pa.int32()),
        "stamps": pa.list_(pa.timestamp("us", "UTC")),
        "__op": pa.string(),
        "__deleted": pa.bool_(),
    }
)

AT = datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
KEY = (7, "north")  # in the order of the primary key, which is not the order of the columns


def lake_row(number: int) -> Row:
    """A row as the lake must store it."""
    return {
        "region": "north",
        "id": number,
        "small": -number,
        "big": 2**62 + number,
        "flag": number % 2 == 0,
        "exact": Decimal(f"{number}.50"),
        "loose": f"{number}.5",
        "near": 0.1,
        "far": 0.1 + number,
        "label": f"Ærø {number}",
        "code": "ab  ",
        "mood": "happy",
        "ref": f"b68a35a7-17ad-35b3-af2a-ae46edb45{number:03}",
        "doc": f'{{"n": {number}, "list": [1, null]}}',
        "words": f"'academi':1 'film{number}':2",
        "raw": bytes([0, 255, number]),
        "born": date(1905, 3, 1),
        "seen": AT,
        "at": AT,
        "clock": 86_399_000_001,
        "tags": ["a", None, ""],
        "counts": [1, None],
        "stamps": [AT, None],
        "__op": "r",
        "__deleted": False,
    }


ROWS = [lake_row(number) for number in range(1, 21)]
ROWS[3] |= {name: None for name in SCHEMA.names[2:-2]}
ROWS[4] |= {"tags": [], "counts": [], "stamps": [], "label": "", "raw": b""}
ROWS[5] |= {"exact": Decimal("-9999.99"), "loose": "12345678901234567890.123456789", "far": float("nan")}


def source_values(row: Row) -> dict[str, Any]:
    """The same row with psycopg's types."""
    values = {name: value for name, value in row.items() if not name.startswith("__")}
    if row["small"] is not None:
        values |= {
            "seen": row["seen"].replace(tzinfo=None),
            "clock": (datetime.min + timedelta(microseconds=row["clock"])).time(),
            "ref": UUID(row["ref"]),
            "doc": Jsonb(json.loads(row["doc"])),
            "code": row["code"].strip(),
            "loose": Decimal(row["loose"] + "00"),  # 1.500 and 1.5 are one number
        }
    return values


@pytest.fixture(scope="module")
def dsn(stack: Any) -> Iterator[str]:
    """A separate database with the source table and its rows."""
    url = stack.endpoints["postgres"]
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS comparer_test")
        admin.execute("CREATE DATABASE comparer_test")
    own = make_conninfo(url, dbname="comparer_test")
    with psycopg.connect(own) as source:
        source.execute(TABLE)
        for row in ROWS:
            values = source_values(row)
            columns, marks = ", ".join(values), ", ".join(f"%({name})s" for name in values)
            source.execute(f"INSERT INTO thing ({columns}) VALUES ({marks})".encode(), values)
    yield own
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP DATABASE comparer_test")


@pytest.fixture
def compared(dsn: str, tmp_path: Path) -> Callable[..., Comparison]:
    """Writes the lake's table, changed by the test, and compares it with the source."""

    def run(change: Change = lambda rows: None, schema: pa.Schema = SCHEMA, **options: int) -> Comparison:
        rows = [dict(row) for row in ROWS]
        change(rows)
        write_deltalake(str(tmp_path / "lake"), pa.Table.from_pylist(rows, schema=schema))
        return compare(dsn, "proof", "thing", str(tmp_path / "lake"), **options)

    return run


def only(comparison: Comparison) -> Difference:
    """The single difference."""
    assert comparison.differences == len(comparison.samples) == 1, comparison
    return comparison.samples[0]


def test_equal_tables_have_no_difference(compared: Callable[..., Comparison]) -> None:
    assert compared() == Comparison(source_rows=20, lake_rows=20, differences=0, samples=())


CELLS = {
    "changed_text": ("label", "something else"),
    "trailing_space": ("label", "Ærø 7 "),
    "null_for_text": ("label", None),
    "padding_lost": ("code", "ab"),
    "upper_case_enum": ("mood", "HAPPY"),
    "upper_case_uuid": ("ref", "B68A35A7-17AD-35B3-AF2A-AE46EDB45007"),
    "json_spacing": ("doc", '{"n":7,"list":[1,null]}'),
    "tsvector_position": ("words", "'academi':2 'film7':2"),
    "decimal_digit": ("exact", Decimal("7.51")),
    "scaleless_digit": ("loose", "7.6"),
    "scaleless_exponent": ("loose", "75E-1"),
    "last_bit_of_a_float": ("near", 0.10000000894069672),
    "last_bit_of_a_double": ("far", 7.1 + 1e-15),
    "flipped_boolean": ("flag", True),
    "smallint": ("small", 7),
    "wrapped_bigint": ("big", 7),
    "bytea_byte": ("raw", b"\x00\xfe\x07"),
    "bytea_end": ("raw", b"\x00\xff\x07\x00"),
    "one_day": ("born", date(1905, 3, 2)),
    "microsecond": ("at", AT + timedelta(microseconds=1)),
    "wall_clock_hour": ("seen", AT - timedelta(hours=1)),
    "time_microsecond": ("clock", 86_399_000_000),
    "element_null_for_missing": ("tags", ["a", ""]),
    "element_text_for_null": ("tags", ["a", "", ""]),
    "element_order": ("tags", [None, "a", ""]),
    "empty_for_array": ("counts", []),
    "null_for_array": ("counts", None),
    "element_microsecond": ("stamps", [AT + timedelta(microseconds=1), None]),
}


@pytest.mark.parametrize(("column", "value"), CELLS.values(), ids=CELLS.keys())
def test_one_changed_cell_is_found_with_its_key_and_column(
    compared: Callable[..., Comparison], column: str, value: object
) -> None:
    def change(rows: list[Row]) -> None:
        rows[6][column] = value

    found = only(compared(change))

    assert (found.kind, found.key, found.column) == ("cell", KEY, column)
    assert found.source != found.lake


def test_difference_shows_both_values(compared: Callable[..., Comparison]) -> None:
    def change(rows: list[Row]) -> None:
        rows[6]["at"] = AT + timedelta(microseconds=1)

    found = only(compared(change))

    assert (found.source, found.lake) == (AT, AT + timedelta(microseconds=1))


@pytest.mark.parametrize(("real", "wrong"), [("", None), (None, "")])
def test_null_differs_from_empty_text(compared: Callable[..., Comparison], real: str | None, wrong: str | None) -> None:
    at = 4 if real == "" else 3

    def change(rows: list[Row]) -> None:
        assert rows[at]["label"] == real
        rows[at]["label"] = wrong

    found = only(compared(change))

    assert (found.kind, found.key, found.column) == ("cell", (at + 1, "north"), "label")


@pytest.mark.parametrize(("real", "wrong"), [([], None), (None, [])])
def test_null_differs_from_empty_array(compared: Callable[..., Comparison], real: Any, wrong: Any) -> None:
    at = 4 if real == [] else 3

    def change(rows: list[Row]) -> None:
        assert rows[at]["tags"] == real
        rows[at]["tags"] = wrong

    assert only(compared(change)).column == "tags"


def test_a_missing_row_is_found(compared: Callable[..., Comparison]) -> None:
    found = only(compared(lambda rows: rows.pop(6)))

    assert (found.kind, found.key, found.lake) == ("missing", KEY, None)


def test_an_extra_row_is_found(compared: Callable[..., Comparison]) -> None:
    found = only(compared(lambda rows: rows.append(lake_row(99))))

    assert (found.kind, found.key, found.source) == ("extra", (99, "north"), None)


def test_a_duplicate_row_is_found(compared: Callable[..., Comparison]) -> None:
    outcome = compared(lambda rows: rows.append(dict(rows[6])))

    assert (only(outcome).kind, only(outcome).key) == ("duplicate", KEY)
    assert (outcome.source_rows, outcome.lake_rows) == (20, 21)


def test_swapped_keys_of_two_rows_are_found(compared: Callable[..., Comparison]) -> None:
    def swap(rows: list[Row]) -> None:
        rows[6]["id"], rows[8]["id"] = 9, 7

    outcome = compared(swap, limit=100)

    assert {sample.key for sample in outcome.samples} == {KEY, (9, "north")}
    assert {"label", "exact", "raw"} <= {sample.column for sample in outcome.samples}
    assert {sample.kind for sample in outcome.samples} == {"cell"}


def test_changed_second_key_column_is_missing_and_extra(compared: Callable[..., Comparison]) -> None:
    def change(rows: list[Row]) -> None:
        rows[6]["region"] = "south"

    outcome = compared(change)

    assert {(s.kind, s.key) for s in outcome.samples} == {("missing", KEY), ("extra", (7, "south"))}


def without(name: str) -> pa.Schema:
    return SCHEMA.remove(SCHEMA.get_field_index(name))


def retyped(name: str, arrow: pa.DataType) -> pa.Schema:
    return SCHEMA.set(SCHEMA.get_field_index(name), pa.field(name, arrow))


def test_column_missing_in_the_lake_is_found(compared: Callable[..., Comparison]) -> None:
    found = only(compared(schema=without("label")))

    assert found == Difference("column", None, "label", "string", None)


def test_extra_column_in_the_lake_is_found(compared: Callable[..., Comparison]) -> None:
    found = only(compared(schema=SCHEMA.append(pa.field("surplus", pa.int32()))))

    assert found == Difference("column", None, "surplus", None, "int32")


@pytest.mark.parametrize(
    ("name", "arrow", "change"),
    [
        ("exact", pa.decimal128(7, 3), None),
        ("exact", pa.decimal128(5, 2), lambda rows: rows[5].update(exact=None)),
        ("big", pa.int32(), lambda rows: [row.update(big=None) for row in rows]),
        ("small", pa.int32(), None),
        ("far", pa.float32(), None),
        ("born", pa.timestamp("us", "UTC"), lambda rows: [row.update(born=None) for row in rows]),
        ("at", pa.timestamp("us"), None),
        ("label", pa.binary(), lambda rows: [row.update(label=None) for row in rows]),
        ("counts", pa.list_(pa.int64()), None),
    ],
    ids=lambda value: "cast" if callable(value) else str(value),
)
def test_a_column_of_the_wrong_type_is_found(
    compared: Callable[..., Comparison], name: str, arrow: pa.DataType, change: Change | None
) -> None:
    outcome = compared(change or (lambda rows: None), schema=retyped(name, arrow))

    assert (only(outcome).kind, only(outcome).column) == ("column", name)
    assert outcome.lake_rows == 20


def test_wider_decimal_of_same_scale_is_equal(compared: Callable[..., Comparison]) -> None:
    assert compared(schema=retyped("exact", pa.decimal128(9, 2))).differences == 0


def test_missing_key_column_is_one_difference_and_skips_rows(
    compared: Callable[..., Comparison],
) -> None:
    assert compared(schema=without("id")) == Comparison(0, 0, 1, (Difference("column", None, "id", "int", None),))


def test_missing_deleted_column_is_a_difference(compared: Callable[..., Comparison]) -> None:
    found = only(compared(schema=without("__deleted")))

    assert (found.kind, found.column) == ("column", "__deleted")


def test_soft_deleted_row_is_ignored(compared: Callable[..., Comparison]) -> None:
    def change(rows: list[Row]) -> None:
        rows.append(lake_row(99) | {"__deleted": True})
        rows.append(dict(rows[6]) | {"__deleted": True})

    assert compared(change) == Comparison(20, 20, 0, ())


def test_row_with_null_deleted_column_is_missing(compared: Callable[..., Comparison]) -> None:
    def change(rows: list[Row]) -> None:
        rows[6]["__deleted"] = None

    assert only(compared(change)).kind == "missing"


def test_cdc_lake_columns_are_not_compared(compared: Callable[..., Comparison]) -> None:
    def change(rows: list[Row]) -> None:
        rows[6]["__op"] = "anything"

    assert compared(change).differences == 0


def test_all_differences_are_counted_when_few_are_shown(compared: Callable[..., Comparison]) -> None:
    outcome = compared(lambda rows: rows.clear(), limit=3)

    assert (outcome.differences, len(outcome.samples)) == (20, 3)


def test_source_table_without_primary_key_is_refused(
    dsn: str, compared: Callable[..., Comparison], tmp_path: Path
) -> None:
    compared()
    with psycopg.connect(dsn) as source:
        source.execute("CREATE TABLE IF NOT EXISTS proof.keyless (id int)")

    with pytest.raises(ValueError, match="has no primary key"):
        compare(dsn, "proof", "keyless", str(tmp_path / "lake"))


def test_values_outside_python_date_range_are_compared(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn) as source:
        source.execute(
            "DROP TABLE IF EXISTS proof.far; CREATE TABLE proof.far (id int PRIMARY KEY, at timestamp, d date)"
        )
        source.execute("INSERT INTO proof.far VALUES (1, '10000-01-01 00:00:00.000001', '0044-03-15 BC')")
        source.execute("INSERT INTO proof.far VALUES (2, 'infinity', '-infinity')")
    lake = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "at": pa.array([253402300800000001, None], pa.timestamp("us", "UTC")),
            "d": pa.array([None, None], pa.date32()),
            "__deleted": pa.array([False, False]),
        }
    )
    write_deltalake(str(tmp_path / "far"), lake)

    outcome = compare(dsn, "proof", "far", str(tmp_path / "far"))

    assert {(s.key, s.column) for s in outcome.samples} == {((1,), "d"), ((2,), "at"), ((2,), "d")}


@pytest.fixture
def compare_keys(dsn: str, tmp_path: Path) -> Callable[[list[Row]], Comparison]:
    """Compare rows with NaN or a date beyond 9999 in their key, like the demo."""
    with psycopg.connect(dsn) as source:
        source.execute("DROP TABLE IF EXISTS proof.keys")
        source.execute("CREATE TABLE proof.keys (far float8, day date, note text, PRIMARY KEY (day, far))")
        source.execute("INSERT INTO proof.keys VALUES ('NaN', '2024-01-01', 'a'), (1, '2024-01-01', 'b')")
        source.execute("INSERT INTO proof.keys VALUES ('NaN', '10000-01-01', 'c'), (1, 'infinity', 'd')")
        (table,) = (table for table in read_tables(source) if table.name == "keys")
    schema = {"far": pa.float64(), "day": pa.date32(), "note": pa.string(), "__deleted": pa.bool_()}

    def run(rows: list[Row]) -> Comparison:
        held = [{"day": date(2024, 1, 1), "__deleted": False, **row} for row in rows]
        write_deltalake(str(tmp_path / "keys"), pa.Table.from_pylist(held, schema=pa.schema(schema)))
        return compare(dsn, "proof", "keys", str(tmp_path / "keys"), explain=table.loss)

    return run


NAN: Row = {"far": float("nan"), "note": "a"}
ONE: Row = {"far": 1.0, "note": "b"}


def test_nan_keys_match_and_quarantined_dates_are_known_losses(compare_keys: Callable[..., Comparison]) -> None:
    assert compare_keys([NAN, ONE]) == Comparison(4, 2, 0, (), {QUARANTINED_KEY: 2})


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([NAN], "missing"),
        ([ONE], "missing"),
        ([NAN, ONE, NAN], "duplicate"),
        ([NAN, ONE, {**ONE, "far": 2.0}], "extra"),
        ([{**NAN, "note": "b"}, ONE], "cell"),
    ],
    ids=["nan_missing", "one_missing", "nan_twice", "extra", "cell_of_nan"],
)
def test_difference_among_nan_and_quarantined_keys_is_found(
    compare_keys: Callable[..., Comparison], rows: list[Row], kind: str
) -> None:
    outcome = compare_keys(rows)

    assert only(outcome).kind == kind
    assert outcome.known == {QUARANTINED_KEY: 2}


def test_text_equal_to_the_placeholder_is_a_known_loss(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn) as source:
        source.execute("DROP TABLE IF EXISTS proof.said")
        source.execute("CREATE TABLE proof.said (id int PRIMARY KEY, note text, rise timetz)")
        source.execute("INSERT INTO proof.said VALUES (1, '__debezium_unavailable_value', '10:00:00+01:00:30')")
        source.execute("INSERT INTO proof.said VALUES (2, 'said', '10:00:00+01')")
        (table,) = (table for table in read_tables(source) if table.name == "said")
    schema = {"id": pa.int32(), "note": pa.string(), "rise": pa.string(), "__deleted": pa.bool_()}
    rows = [{"id": 1, "__deleted": False}, {"id": 2, "__deleted": False}]
    write_deltalake(str(tmp_path / "said"), pa.Table.from_pylist(rows, schema=pa.schema(schema)))

    outcome = compare(dsn, "proof", "said", str(tmp_path / "said"), explain=table.loss)

    assert {(sample.key, sample.column) for sample in outcome.samples} == {((2,), "note"), ((2,), "rise")}
    assert outcome.known == {LIKE_PLACEHOLDER: 1, ZONE_WITH_SECONDS: 1}


def test_table_without_silver_has_all_its_rows_missing(dsn: str, tmp_path: Path) -> None:
    """Bronze quarantined all of its records."""
    with psycopg.connect(dsn) as source:
        (table,) = (table for table in read_tables(source) if table.name == "thing")

    outcome = compare_table(dsn, table, tmp_path / "no silver")

    assert (outcome.source_rows, outcome.lake_rows, outcome.differences) == (len(ROWS), 0, len(ROWS))


def test_nested_array_differs_from_flat_array(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn) as source:
        source.execute("DROP TABLE IF EXISTS proof.deep; CREATE TABLE proof.deep (id int PRIMARY KEY, grid int[])")
        source.execute("INSERT INTO proof.deep VALUES (1, '{{7},{8}}'), (2, '{7,8}')")
    lake = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "grid": pa.array([[7, 8], [7, 8]], pa.list_(pa.int32())),
            "__deleted": pa.array([False, False]),
        }
    )
    write_deltalake(str(tmp_path / "deep"), lake)

    found = only(compare(dsn, "proof", "deep", str(tmp_path / "deep")))

    assert (found.key, found.source, found.lake) == ((1,), ((7, 8),), (7, 8))


ODD = {
    "rise": ("timetz", "'10:00:00.5+02'", pa.string(), "08:00:00.5Z", "10:00:00.5Z"),
    "coarse": ("time(0)", "'10:00:00'", pa.int64(), 36_000_000_000, 36_000_000_001),
    "stay": ("interval", "'1 year 2 mons 3 days 00:00:04.5'", pa.int64(), 37_076_404_500_000, 37_076_404_500_001),
    "ref": ("oid", "4000000000", pa.int64(), 4_000_000_000, 1),
    "price": ("money", "'-$0.01'", pa.string(), "-0.01", "0.01"),
    "spot": ("point", "'(1,-2.5)'", pa.struct({"x": pa.float64(), "y": pa.float64()}), {"x": 1, "y": -2.5}, None),
    "is_off": ("varbit(1)", "B'1'", pa.bool_(), True, False),
    "is_on": ("bit", "B'1'", pa.bool_(), True, False),
    "mask": ("bit(10)", "B'1000000011'", pa.binary(), b"\x03\x02", b"\x02\x03"),
    "mask2": ("varbit", "B'0111'", pa.binary(), b"\x07", b"\x0f"),
    "host": ("inet", "'10.0.0.1'", pa.string(), "10.0.0.1", "10.0.0.1/32"),
}
"""By column: its type, the source's value, and the lake's type, correct value and wrong one."""


@pytest.fixture
def compare_odd(dsn: str, tmp_path: Path) -> Callable[..., Comparison]:
    """Compares a table of rare types and odd names, whose lake row the test changes."""
    with psycopg.connect(dsn) as source:
        columns = ", ".join(f'"Odd {name}" {kind}' for name, (kind, *_) in ODD.items())
        values = ", ".join(value for _, value, *_ in ODD.values())
        source.execute("DROP TABLE IF EXISTS proof.odd")
        source.execute(f"CREATE TABLE proof.odd (id int PRIMARY KEY, {columns})".encode())
        source.execute(f"INSERT INTO proof.odd VALUES (1, {values}); INSERT INTO proof.odd VALUES (2)".encode())
    schema = {
        "id": pa.int32(),
        "__deleted": pa.bool_(),
        **{f"Odd_{name}": arrow for name, (_, _, arrow, *_) in ODD.items()},
    }

    def run(changed: dict[str, object], **options: Any) -> Comparison:
        full = {f"Odd_{name}": changed.get(name, right) for name, (_, _, _, right, _) in ODD.items()}
        rows = [{"id": 1, "__deleted": False, **full}, {"id": 2, "__deleted": False}]
        write_deltalake(str(tmp_path / "odd"), pa.Table.from_pylist(rows, schema=pa.schema(schema)))
        name = str(tmp_path / "odd")
        return compare(dsn, "proof", "odd", name, lake_name=lambda column: column.replace(" ", "_"), **options)

    return run


def test_rare_types_are_compared_by_their_lake_names(compare_odd: Callable[..., Comparison]) -> None:
    assert compare_odd({}) == Comparison(source_rows=2, lake_rows=2, differences=0, samples=())


@pytest.mark.parametrize("column", ODD)
def test_changed_cell_of_rare_type_is_found_by_source_name(compare_odd: Callable[..., Comparison], column: str) -> None:
    found = only(compare_odd({column: ODD[column][-1]}))

    assert (found.kind, found.key, found.column) == ("cell", (1,), f"Odd {column}")


def test_explained_difference_is_counted_separately(compare_odd: Callable[..., Comparison]) -> None:
    outcome = compare_odd(
        {"ref": 1, "host": None},
        explain=lambda difference: "it is lost" if difference.lake is None else None,
    )

    assert only(outcome).column == "Odd ref"
    assert outcome.known == {"it is lost": 1}


def test_command_prints_differences_and_exits_1(
    dsn: str, compared: Callable[..., Comparison], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(rows: list[Row]) -> None:
        rows[6]["raw"] = b"\xff"

    compared(change)
    command = ["--dsn", dsn, "--table", "proof.thing", "--lake", str(tmp_path / "lake")]

    assert main(command) == 1
    assert "cell (7, 'north') raw" in capsys.readouterr().out
    assert main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["samples"] == [
        {"kind": "cell", "key": [7, "north"], "column": "raw", "source": "00ff07", "lake": "ff"}
    ]


def test_command_exits_0_for_equal_tables(dsn: str, compared: Callable[..., Comparison], tmp_path: Path) -> None:
    compared()
    command = [sys.executable, "-m", "cdc_lake.demo.comparer", "--dsn", dsn, "--table", "proof.thing"]

    done = subprocess.run([*command, "--lake", str(tmp_path / "lake")], capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (
        0,
        "proof.thing: 20 rows in the source, 20 in the lake, 0 differences\n",
    )


def test_gold_rows_that_differ_from_postgres_are_counted(dsn: str, tmp_path: Path) -> None:
    held = pa.table({"day": pa.array([1, 2, 2], pa.int32()), "sales": pa.array([10, 20, 20], pa.int32())})
    write_deltalake(tmp_path / "gold" / "per_day", held)

    def differences(*rows: str) -> int:
        query = f"SELECT sales, day FROM (VALUES {', '.join(rows)}) AS asked (day, sales)"
        return gold_result(dsn, "per_day", query, tmp_path, 1.0).differences

    assert differences("(1, 10)", "(2, 20)", "(2, 20)") == 0
    assert differences("(1, 10)", "(2, 20)") == 1
    assert differences("(1, 11)", "(2, 20)", "(2, 20)") == 2
