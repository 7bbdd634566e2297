"""`cdc-lake reconcile`: silver compared with a real Postgres; it reports each difference, and nothing else."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from cdc_lake.cli.app import app
from cdc_lake.columns import SILVER_META
from cdc_lake.config import Config, load_config
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.errors import InfrastructureError
from cdc_lake.operations.reconcile import run_reconcile
from cdc_lake.reconcile import comparison, postgres_catalog
from cdc_lake.reconcile.comparison import NEVER_THERE
from cdc_lake.reconcile.sides import open_snapshot
from cdc_lake.runs.context import lake_of
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.tables.progress import SilverProgress

PREFIX = "reconciled"
THING = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE thing (
    region text, id int, PRIMARY KEY (region, id),
    "small one" smallint, big bigint, flag boolean, exact numeric(6,2), loose numeric, rate numeric, near real,
    far double precision, label text, code char(4), mood mood, ref uuid, doc jsonb, raw bytea, born date,
    seen timestamp, at timestamptz, clock time, span interval, tags text[], stamps timestamptz[], area polygon
)
"""
HELD = {
    "region": "string",
    "id": "int",
    "small_one": "smallint",
    "big": "bigint",
    "flag": "boolean",
    "exact": "decimal(6,2)",
    "loose": "string",
    "rate": "double",
    "near": "float",
    "far": "double",
    "label": "string",
    "code": "string",
    "mood": "string",
    "ref": "string",
    "doc": "string",
    "raw": "binary",
    "born": "date",
    "seen": "timestamp",
    "at": "timestamp",
    "clock": "bigint",
    "span": "bigint",
    "tags": "array<string>",
    "stamps": "array<timestamp>",
}
"""Silver's columns of it, with decimal.handling.mode=precise; `rate` with double."""
Row = dict[str, Any]
AT = datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
REGIONS = ("", " ", "B", "a", "a\x01,", "aa", "é", "\ufffd", "🎬")
"""Texts whose order depends on the comparison: by case, by bytes, by UTF-16."""


def row(number: int) -> Row:
    """A row as silver must store it."""
    return {
        "region": REGIONS[number % len(REGIONS)],
        "id": number,
        "small_one": -number,
        "big": 2**62 + number,
        "flag": number % 2 == 0,
        "exact": Decimal(number).scaleb(-2),
        "loose": f"{number}.5",
        "rate": number / 7,
        "near": number / 8,
        "far": number / 3,
        "label": f"Ærø\n'{number}' \\",
        "code": "ab  ",
        "mood": "happy",
        "ref": f"b68a35a7-17ad-35b3-af2a-ae46edb45{number:03}",
        "doc": f'{{"n": {number}, "list": [1, null]}}',
        "raw": bytes([0, 255, number]),
        "born": date(1905, 3, 1) + timedelta(days=number),
        "seen": AT - timedelta(microseconds=number),
        "at": AT,
        "clock": 86_399_000_001,
        "span": 90_000_001 * number,
        "tags": ["a", None, ""],
        "stamps": [AT, None],
    }


def rows() -> list[Row]:
    found = [row(number) for number in range(45)]
    found[3] |= {name: None for name in HELD if name not in ("region", "id")}
    found[4] |= {"tags": [], "stamps": [], "label": "", "raw": b"", "far": float("nan"), "near": float("-inf")}
    found[5] |= {"exact": Decimal("-9999.99"), "loose": "-12345678901234567890123456789012345678901234.000000001"}
    found += [row(number) | {"region": "m"} for number in range(45, 141)]
    found[6] |= {"born": date(1, 1, 1), "seen": datetime(9999, 12, 31, tzinfo=UTC), "far": -0.0, "span": -1}
    return found


def insert(source: psycopg.Connection[Any], given: Sequence[Row]) -> None:
    for one in given:
        values = {"small one" if name == "small_one" else name: value for name, value in one.items()}
        if values["seen"] is not None:
            values["rate"] = Decimal(repr(values["rate"]))
            values["seen"] = values["seen"].replace(tzinfo=None)
            values["clock"] = (datetime.min + timedelta(microseconds=values["clock"])).time()
            values["span"] = timedelta(microseconds=values["span"])
        columns, marks = ", ".join(f'"{name}"' for name in values), ", ".join(["%s"] * len(values))
        source.execute(f"INSERT INTO thing ({columns}) VALUES ({marks})".encode(), list(values.values()))


@pytest.fixture(scope="module")
def dsn(stack: Stack) -> Iterator[str]:
    """A separate database, which the settings find by its name."""
    url = stack.endpoints["postgres"]
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {PREFIX}".encode())
    own = make_conninfo(url, dbname=PREFIX)
    with psycopg.connect(own) as source:
        source.execute(THING)
        insert(source, rows())
    yield own
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {PREFIX} WITH (FORCE)".encode())


class Lake:
    """A lake whose silver tables a test writes.

    Args:
        defaults: see `TableConfig`.
    """

    def __init__(self, spark: SparkSession, folder: Path, stack: Stack, **defaults: Any) -> None:
        self._spark = spark
        self.file = folder / "cdc-lake.yml"
        settings = {"lake": {"root": "lake"}, "stack": {"folder": str(stack.folder)}, "defaults": defaults}
        self.file.write_text(yaml.safe_dump(settings))
        self.config: Config = load_config(self.file)

    def put(
        self,
        table: str,
        held: Mapping[str, str],
        keys: Sequence[str],
        given: Sequence[Row],
        commit: int = 1,
        **progress: Any,
    ) -> None:
        """One commit of silver, after which it has these rows."""
        topic = f"{PREFIX}.public.{table}"
        Path(lake_of(self.config).path("bronze", topic), "_delta_log").mkdir(parents=True, exist_ok=True)
        columns = {
            **held,
            "__deleted": "boolean",
            "__unavailable": "array<string>",
            "__source_position": "array<bigint>",
        }
        values = [
            tuple({"__deleted": False, "__source_position": [16 * commit], **one}.get(name) for name in columns)
            for one in given
        ]
        schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
        meta = (
            f"{name if name in columns else f'CAST(null AS {kind})'} AS {name}" for name, kind in SILVER_META.items()
        )
        key = f"to_json(struct({', '.join(keys)}), map('ignoreNullFields', 'false'))"
        (target,) = lake_of(self.config).silver(topic)
        frame = self._spark.createDataFrame(values, schema)
        rows = frame.selectExpr(*(f"`{name}`" for name in held), *meta, f"{key} AS __key")
        following = SilverProgress(run_id="by hand", commit=commit, keys=tuple(sorted(keys)), **progress)
        target.open(self._spark).overwrite(rows, following)

    def reconciled(self, table: str, **more: Any) -> TableReport:
        (report,) = run_reconcile(self.config, [f"{PREFIX}.public.{table}"], self._spark, **more).tables
        return report


def found(report: TableReport) -> set[tuple[str, str, tuple[str, ...]]]:
    """The keys that differ, with the kind of difference, the values and the columns."""
    assert report.reconciled is not None, report.error
    return {(one.kind, "|".join(one.key.values()), one.columns) for one in report.reconciled.first}


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows are many ranges, and ranges that differ are split again."""
    monkeypatch.setattr(comparison, "ROWS_PER_RANGE", 2)
    monkeypatch.setattr(comparison, "MAX_RANGES", 8)


CELLS: dict[int, tuple[str, Any]] = {
    7: ("label", "Ærø\n'7' \\ "),
    8: ("label", None),
    9: ("code", "ab"),
    10: ("exact", Decimal("0.11")),
    11: ("loose", "11.50000000000000000001"),
    12: ("rate", 12 / 7 + 2**-52),
    13: ("near", 13 / 8 + 2**-22),
    14: ("far", 14 / 3 + 2**-51),
    15: ("mood", "HAPPY"),
    16: ("doc", '{"n":16,"list":[1,null]}'),
    17: ("raw", bytes([0, 255, 17, 0])),
    18: ("born", date(1905, 3, 20)),
    19: ("seen", AT),
    20: ("at", AT + timedelta(microseconds=1)),
    21: ("clock", 86_399_000_000),
    22: ("span", 90_000_001 * 22 + 1000),
    23: ("tags", ["a", "", ""]),
    24: ("tags", ["a", None, "", None]),
    25: ("stamps", [AT + timedelta(microseconds=1), None]),
    26: ("big", 26),
    27: ("flag", None),
    4: ("label", None),
    3: ("label", ""),
}


def changed(given: list[Row]) -> set[tuple[str, str, tuple[str, ...]]]:
    """Change silver: one cell of many rows, one row missing, one extra, one repeated.

    Returns:
        What has to be found.
    """
    for number, (name, value) in CELLS.items():
        given[number][name] = value
    del given[30]
    given.append({**row(31), "region": "z"})
    given.append({**row(32), "id": 1000, "__deleted": True})
    given[33] |= {"label": None, "doc": None, "__unavailable": ["label"]}
    expected = {("changed", f"{given[number]['region']}|{number}", (name,)) for number, (name, _) in CELLS.items()}
    return expected | {
        ("missing", f"{row(30)['region']}|30", ()),
        ("extra", "z|31", ()),
        ("changed", f"{row(34)['region']}|34", ("doc",)),
    }


@pytest.mark.parametrize(
    "held_in",
    [
        {"format": "delta"},
        {"format": "hudi", "type": "mor"},
        pytest.param({"format": "hudi", "type": "cow"}, marks=pytest.mark.deep),
    ],
    ids=lambda held_in: "_".join(held_in.values()),
)
def test_only_differing_rows_of_many_types_are_named(
    stack: Stack, spark: SparkSession, tmp_path: Path, dsn: str, small_ranges: None, held_in: dict[str, str]
) -> None:
    lake = Lake(spark, tmp_path, stack, storage=[held_in])
    other = rows()
    expected = changed(other)
    if held_in["format"] == "hudi":
        held = HELD | {"small_one": "int"}
    else:
        held = HELD
        other.append(row(35))  # Hudi has each key once
        expected.add(("repeated", f"{row(35)['region']}|35", ()))
    lake.put("thing", held, ["region", "id"], other)

    report = lake.reconciled("thing", keys=100)

    assert found(report) == expected
    assert report.reconciled is not None
    assert report.reconciled.columns == {"area": postgres_catalog.NOT_SENT}
    assert report.reconciled.losses == {NEVER_THERE: 1}
    assert (report.reconciled.silver_lsn, report.rows["changed"]) == ("0/10", len(CELLS) + 1)
    assert (report.rows["ranges"], report.rows["ranges_differing"]) == (16, 6)
    assert report.error is not None
    assert (report.error.code, report.error.exit_code) == ("CDC-504", 30)
    assert row(30)["label"] not in report.error.message


def test_lost_values_and_quarantined_keys_are_known_losses(
    stack: Stack, spark: SparkSession, tmp_path: Path, dsn: str
) -> None:
    held = {"day": "date", "far": "double", "rise": "string", "is_on": "boolean", "note": "string"}
    lake = Lake(spark, tmp_path, stack)
    with psycopg.connect(dsn) as source:
        source.execute(
            "CREATE TABLE odd (day date, far float8, rise timetz, is_on varbit(1), note text, PRIMARY KEY (day, far))"
        )
        source.execute(
            "INSERT INTO odd (day, far) VALUES ('10000-01-01', 1), ('-infinity', 1), ('2024-01-03', 1);"
            " INSERT INTO odd VALUES ('2024-01-01', 'NaN', '10:00:00+01:00:30', B'1', '__debezium_unavailable_value'),"
            " ('2024-01-02', 'NaN', '10:00:00+01', B'0', 'x')"
        )
    kept = {"day": date(2024, 1, 1), "far": float("nan"), "is_on": True}
    lake.put("odd", held, ["day", "far"], [kept, kept | {"day": date(2024, 1, 2)}])

    report = lake.reconciled("odd")

    assert found(report) == {
        ("changed", "2024-01-02|0000000000008ff7", ("rise", "is_on", "note")),
        ("missing", "2024-01-03|0000000000000ff3", ()),
    }
    assert report.reconciled is not None
    assert report.reconciled.losses == {
        postgres_catalog.QUARANTINED_KEY: 2,
        postgres_catalog.ZONE_WITH_SECONDS: 1,
        postgres_catalog.LIKE_PLACEHOLDER: 1,
    }


def test_changes_in_flight_are_equal_once_silver_has_them(
    stack: Stack, spark: SparkSession, tmp_path: Path, dsn: str
) -> None:
    held = {"id": "int", "note": "string", "gone": "string", "price": "string", "price__int": "int"}
    variants = {"price__int": "price"}
    lake = Lake(spark, tmp_path, stack, schema={"rename": {"amount": "price"}})
    with psycopg.connect(dsn) as source:
        source.execute("CREATE TABLE late (id int PRIMARY KEY, note text, added int, amount int)")
        source.execute("INSERT INTO late VALUES (1, 'new', 0, 1), (2, 'b', 0, 2), (3, 'never', 0, 3)")
    second = {"id": 2, "note": "b", "gone": "x", "price": "2"}
    lake.put("late", held, ["id"], [{"id": 1, "note": "old", "price__int": 1}, second], variants=variants)

    class SilverGoesOn(TableScheduler):
        """Silver merges one of the two changes during the wait."""

        def wait(self, seconds: float) -> bool:
            first = {"id": 1, "note": "new", "price__int": 1}
            lake.put("late", held, ["id"], [first, second], commit=2, variants=variants)
            return False

    report = lake.reconciled("late", wait_seconds=0.001, scheduler=SilverGoesOn(spark=spark))

    assert found(report) == {("missing", "3", ())}
    assert report.rows == {"source": 3, "silver": 2, "ranges": 1, "ranges_differing": 1, "missing": 1}
    assert report.reconciled is not None
    assert report.reconciled.columns == {"added": "silver does not have it", "gone": "the source does not have it"}
    assert any("in flight" in warning for warning in report.warnings)


@pytest.mark.parametrize("rows", [(0, 0), (0, 3), (3, 0)], ids=["both_empty", "source_empty", "silver_empty"])
def test_empty_side_is_compared_like_any_other(
    stack: Stack, spark: SparkSession, tmp_path: Path, dsn: str, rows: tuple[int, int]
) -> None:
    table = f"empty_{rows[0]}_{rows[1]}"
    in_source, in_silver = rows
    lake = Lake(spark, tmp_path, stack)
    with psycopg.connect(dsn) as source:
        source.execute(f"CREATE TABLE {table} (code text PRIMARY KEY)".encode())
        source.execute(f"INSERT INTO {table} SELECT n::text FROM generate_series(1, {in_source}) n".encode())
    lake.put(table, {"code": "string"}, ["code"], [{"code": str(number)} for number in range(1, in_silver + 1)])

    report = lake.reconciled(table)

    kind = "extra" if in_silver else "missing"
    assert found(report) == {(kind, str(number), ()) for number in range(1, in_source + in_silver + 1)}
    assert (report.rows["source"], report.rows["silver"]) == rows


@pytest.mark.core
def test_command_prints_differences_and_exits_30(stack: Stack, spark: SparkSession, tmp_path: Path, dsn: str) -> None:
    topic = f"{PREFIX}.public.told"
    lake = Lake(spark, tmp_path, stack)
    with psycopg.connect(dsn) as source:
        source.execute("CREATE TABLE told (shop int, sku text, price numeric DEFAULT 1, PRIMARY KEY (shop, sku))")
        source.execute("INSERT INTO told VALUES (1, 'a', NULL), (1, 'b', 2)")
    held = {"shop": "int", "sku": "string", "price": "string"}
    lake.put(
        "told", held, ["shop", "sku"], [{"shop": 1, "sku": "a", "price": "1"}, {"shop": 1, "sku": "b", "price": "3"}]
    )

    def said(*more: str) -> str:
        command = ["reconcile", "--table", topic, "--config", str(lake.file), *more]
        outcome = CliRunner().invoke(app, command, env={"COLUMNS": "80"})
        assert outcome.exit_code == 30, outcome.output
        return outcome.stdout

    shown = said()
    assert max(map(len, shown.splitlines())) <= 80
    assert "changed shop=1,sku=b: price" in shown
    assert f"known loss, 1 value: {postgres_catalog.NULL_AS_DEFAULT}" in shown
    (line,) = said("--json", "--keys", "0").splitlines()
    assert json.loads(line)["tables"][0]["reconciled"]["first"] == []


def test_reconcile_removes_expired_reports(stack: Stack, spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, stack)
    (tmp_path / "lake" / "bronze" / PREFIX / "public" / "unmerged" / "_delta_log").mkdir(parents=True)
    expired = tmp_path / "lake" / "_runs" / Report(layer="reconcile", started_at=AT).file_name
    expired.parent.mkdir()
    expired.touch()

    table_report = lake.reconciled("unmerged")

    assert table_report.error is not None and "the silver table does not exist yet" in table_report.error.message
    (report,) = expired.parent.glob("*.json")
    assert report != expired


def test_reconcile_calls_no_function_and_writes_nothing(dsn: str) -> None:
    hostile = "format(text, character varying)"
    with psycopg.connect(dsn, autocommit=True) as source:
        source.execute(f"CREATE FUNCTION {hostile} RETURNS text LANGUAGE sql AS $$ SELECT 'owned' $$".encode())
        try:
            assert source.execute("SELECT format('%s', 'a'::varchar)").fetchall() == [("owned",)]
            with open_snapshot(SecretStr(dsn), "databases.x") as connection:
                assert connection.execute("SELECT format('%s', 'a'::varchar)").fetchall() == [("a",)]
            with (
                pytest.raises(InfrastructureError, match=r"ReadOnlySqlTransaction"),
                open_snapshot(SecretStr(dsn), "databases.x") as connection,
            ):
                connection.execute("CREATE TABLE public.written ()")
        finally:
            source.execute(f"DROP FUNCTION {hostile}".encode())
