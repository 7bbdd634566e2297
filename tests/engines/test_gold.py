"""Gold: the results of models, read by delta-rs and compared with DuckDB, and the errors of invalid ones."""

import random
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from support import CHECKOUT

from cdc_lake.columns import BATCH, DELETED, SILVER_META
from cdc_lake.config import Config, GoldConfig, LakeConfig
from cdc_lake.errors import CdcLakeError, ModelError, UnknownTableError
from cdc_lake.failpoints import VARIABLE
from cdc_lake.gold.run import run_gold
from cdc_lake.lake.lease import Lease
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.progress import Progress, SilverProgress

SOURCE_TYPES = {
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "decimal(5,2)": pa.decimal128(5, 2),
}
META = pa.schema(
    {
        name: pa.bool_() if name == DELETED else pa.int64() if kind == "bigint" else pa.string()
        for name, kind in SILVER_META.items()
    }
)
"""Only `__deleted` and `__batch` are read: the others are null, of simpler types."""
THING = "shop.public.thing"
THINGS = "id int, kind string, price decimal(5,2)"
PER_KIND = "SELECT kind, count(*) AS things, sum(price) AS worth FROM thing GROUP BY kind"
JOINED = "SELECT one.id, `order`.kind FROM thing AS one JOIN `order` ON one.id = `order`.id"


class Lake:
    """A lake with handwritten silver, and a folder of models."""

    def __init__(self, spark: SparkSession, root: Path, models: Path | None = None) -> None:
        self.root = root / "lake"
        self.models = models or root / "gold"
        self.models.mkdir(exist_ok=True)
        self.config = Config(lake=LakeConfig(root=str(self.root)), gold=GoldConfig(models=str(self.models)))
        self._spark = spark

    def silver(self, topic: str) -> str:
        return f"{self.root}/silver/{topic.replace('.', '/')}"

    def fold(self, topic: str, columns: str, rows: Sequence[tuple[Any, ...]], deleted: Sequence[Any] = ()) -> None:
        """Commit rows to silver; those whose first column is in `deleted` are soft-deleted."""
        path = self.silver(topic)
        commit = DeltaTable(path).version() + 2 if DeltaTable.is_deltatable(path) else 1
        names = [column.split()[0] for column in columns.split(", ")]
        keys = tuple(names) if all(name.endswith("_id") for name in names) else (names[0],)
        progress = SilverProgress(run_id="by hand", commit=commit, keys=keys)
        source = pa.schema([(name, SOURCE_TYPES[kind]) for name, kind in map(str.split, columns.split(", "))])
        full = [
            dict.fromkeys(META.names)
            | dict(zip(source.names, row, strict=True))
            | {DELETED: row[0] in deleted, BATCH: commit}
            for row in rows
        ]
        write_deltalake(
            path,
            pa.Table.from_pylist(full, pa.schema([*source, *META])),
            mode="overwrite",
            commit_properties=CommitProperties(custom_metadata={"userMetadata": progress.to_metadata()}),
        )

    def model(self, name: str, sql: str, keys: str = "[kind]", sources: str = f"{{thing: {THING}}}") -> Path:
        file = self.models / f"{name}.sql"
        file.write_text(f"-- name: {name}\n-- keys: {keys}\n-- sources: {sources}\n{sql}\n")
        return file

    def refresh(self, *models: str) -> Report:
        return run_gold(self.config, models or ["*"], self._spark)

    def made(self, name: str) -> TableReport:
        """The report on one model."""
        (report,) = self.refresh(name).tables
        return report

    def gold(self, name: str, version: int | None = None) -> DeltaTable:
        return DeltaTable(str(self.root / "gold" / name), version=version)

    def rows(self, name: str, version: int | None = None) -> list[tuple[Any, ...]]:
        """Gold's rows without partition columns, read by delta-rs and sorted."""
        found = self.gold(name, version)
        columns = [field.name for field in found.schema().fields if not field.name.startswith("partition_")]
        return sorted_rows([tuple(row.values()) for row in found.to_pyarrow_table(columns=columns).to_pylist()])

    def duckdb(self, sql: str, **sources: str) -> list[tuple[Any, ...]]:
        """The sorted rows of a query on silver's tables, by delta-rs and DuckDB."""
        with duckdb.connect() as database:
            database.execute("SET TimeZone = 'UTC'")
            for alias, topic in sources.items():
                database.register(alias, DeltaTable(self.silver(topic)).to_pyarrow_table())
            return sorted_rows(database.execute(sql).fetchall())


def table_id(lake: Lake) -> str:
    return str(DeltaTable(lake.silver(THING)).metadata().id)


def sorted_rows(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def ok(report: TableReport) -> TableReport:
    assert report.error is None, report.error
    assert report.status == "ok"
    return report


def refusal(report: TableReport) -> tuple[str, int, str]:
    assert (report.status, report.rows) == ("failed", {})
    assert report.version_after == report.version_before
    assert report.error is not None
    return report.error.code, report.error.exit_code, report.error.message


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return lake_of_things(spark, tmp_path)


def lake_of_things(spark: SparkSession, root: Path) -> Lake:
    """A lake with one table of three rows, two kinds."""
    lake = Lake(spark, root)
    price = Decimal("1.50")
    lake.fold(THING, THINGS, [(1, "a", price), (2, "a", price), (3, "b", price)])
    return lake


@pytest.fixture(scope="module")
def first_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, Report]:
    """A read-only lake whose models were refreshed once; `per_kind` and `joined` have tables."""
    lake = lake_of_things(spark, tmp_path_factory.mktemp("first run"))
    lake.model("per_kind", PER_KIND)
    lake.model("joined", JOINED, keys="[id]", sources=f"{{thing: {THING}, order: {THING}}}")
    lake.model("twice", "SELECT kind, id FROM thing")
    lake.model("nulls", "SELECT nullif(kind, 'b') AS kind, id FROM thing", keys="[id, kind]")
    lake.model("lost", PER_KIND, sources="{thing: shop.public.thingy}")
    lake.model("fails", "SELECT kind, raise_error('no luck') AS x FROM thing WHERE id = 1")
    lake.model("blind", PER_KIND, sources=f"{{other: {THING}}}")
    return lake, lake.refresh()


@pytest.fixture
def made(spark: SparkSession, first_run: tuple[Lake, Report], tmp_path: Path) -> Lake:
    """A copy of that lake, without its models."""
    shutil.copytree(first_run[0].root, tmp_path / "lake")
    return Lake(spark, tmp_path)


def of_model(first_run: tuple[Lake, Report], name: str) -> TableReport:
    """The report on one model."""
    return next(report for report in first_run[1].tables if report.table == name)


PAGILA = {
    "film": "film_id int, title string, rating string, rental_rate decimal(5,2), replacement_cost decimal(5,2)",
    "film_category": "film_id int, category_id int",
    "category": "category_id int, name string",
    "inventory": "inventory_id int, film_id int, store_id int",
    "rental": "rental_id int, rental_date timestamp, inventory_id int, customer_id int",
    "payment": "payment_id int, customer_id int, rental_id int, amount decimal(5,2), payment_date timestamp",
    "customer": "customer_id int, address_id int",
    "address": "address_id int, city_id int",
    "city": "city_id int, country_id int",
    "country": "country_id int, country string",
}
TOPICS = {name: f"pagila.public.{name}" for name in PAGILA}


def pagila(seed: int) -> dict[str, list[tuple[Any, ...]]]:
    """Rows with all difficulties of a join: no match, several matches, dangling references."""
    chance = random.Random(seed)
    start = datetime(2005, 5, 24, 22, tzinfo=UTC)
    return {
        "film": [(film, f"film {film}", ("G", "PG-13", None)[film % 3], Decimal(film), None) for film in range(1, 13)],
        # film 1 has none, film 2 has two
        "film_category": [(film, chance.randint(1, 3)) for film in range(2, 13)] + [(2, 4)],
        "category": [(number, f"category {number}") for number in range(1, 5)],
        "inventory": [(copy, chance.randint(1, 11), chance.randint(1, 2)) for copy in range(1, 31)],
        "rental": [
            (number, start + timedelta(minutes=chance.randint(0, 5000)), chance.randint(1, 33), chance.randint(1, 8))
            for number in range(1, 61)
        ],
        "payment": [
            (
                *(number, 1, chance.choice([None, *range(1, 63)]), Decimal(chance.randint(0, 1199)) / 100),
                start + timedelta(seconds=chance.randint(0, 5000)),
            )
            for number in range(1, 81)
        ],
        "customer": [(number, chance.randint(1, 7)) for number in range(1, 21)],
        "address": [(number, chance.randint(1, 5)) for number in range(1, 7)],
        "city": [(number, number % 3 + 1) for number in range(1, 6)],
        "country": [(number, f"country {number}") for number in range(1, 5)],
    }


EXPECTED = {
    "film_revenue": """
        SELECT f.film_id, f.title, k.category,
            (SELECT count(*) FROM rental r WHERE NOT r.__deleted AND r.rental_id IN (SELECT p.rental_id FROM payment p
                WHERE NOT p.__deleted) AND r.inventory_id IN (SELECT i.inventory_id FROM inventory i
                WHERE NOT i.__deleted AND i.film_id = f.film_id)),
            coalesce((SELECT sum(p.amount) FROM payment p WHERE NOT p.__deleted AND p.rental_id IN
                (SELECT r.rental_id FROM rental r WHERE NOT r.__deleted AND r.inventory_id IN (SELECT i.inventory_id
                FROM inventory i WHERE NOT i.__deleted AND i.film_id = f.film_id))), 0)
        FROM film f, (
            SELECT fc.film_id, c.name AS category FROM film_category fc, category c
            WHERE fc.category_id = c.category_id AND NOT fc.__deleted AND NOT c.__deleted
            UNION ALL
            SELECT film_id, '(none)' FROM film WHERE film_id NOT IN (SELECT fc.film_id FROM film_category fc, category c
            WHERE fc.category_id = c.category_id AND NOT fc.__deleted AND NOT c.__deleted)
        ) k
        WHERE k.film_id = f.film_id AND NOT f.__deleted""",
    "rentals_per_store_day": """
        SELECT store_id, CAST(rental_date AS DATE), count(rental_id), count(DISTINCT customer_id)
        FROM inventory i, rental r
        WHERE i.inventory_id = r.inventory_id AND NOT i.__deleted AND NOT r.__deleted GROUP BY ALL""",
    "customers_by_country": """
        SELECT n.country_id, n.country, count(*) FROM country n
        SEMI JOIN city USING (country_id), customer c
        WHERE NOT n.__deleted AND NOT c.__deleted AND n.country_id = (SELECT t.country_id FROM city t, address a
            WHERE a.city_id = t.city_id AND a.address_id = c.address_id AND NOT t.__deleted AND NOT a.__deleted)
        GROUP BY ALL""",
    "films_by_rating": "SELECT film_id, title, rating, rental_rate, replacement_cost FROM film WHERE NOT __deleted",
    "sales_by_region": """
        SELECT region, opens, opens + INTERVAL 10 MINUTE, sum(amount), count(*) FROM (
            SELECT amount, payment_date, CASE WHEN (SELECT any_value(i.store_id) FROM rental r, inventory i
                WHERE r.rental_id = p.rental_id AND i.inventory_id = r.inventory_id AND NOT r.__deleted
                AND NOT i.__deleted) = 1 THEN 'Lethbridge' ELSE 'Unassigned' END AS region
            FROM payment p WHERE NOT p.__deleted
        ), (SELECT unnest(generate_series(TIMESTAMPTZ '2005-05-24 21:50Z', TIMESTAMPTZ '2005-05-25 01:00Z',
            INTERVAL 5 MINUTE)) AS opens)
        WHERE payment_date >= opens AND payment_date < opens + INTERVAL 10 MINUTE GROUP BY ALL""",
}
"""The expected results of the project's models, from other queries."""


def test_bundled_models_match_duckdb(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, models=CHECKOUT / "conf" / "gold")
    rows = pagila(seed=7)
    for name, columns in PAGILA.items():
        lake.fold(TOPICS[name], columns, rows[name], deleted=[5])

    first = lake.refresh()
    assert {report.table: report.status for report in first.tables} == dict.fromkeys(EXPECTED, "ok"), first
    for name, sql in EXPECTED.items():
        assert lake.rows(name) == lake.duckdb(sql, **TOPICS), name
        assert len(lake.rows(name)) >= 3

    assert {report.status for report in lake.refresh().tables} == {"unchanged"}

    lake.fold(TOPICS["film"], PAGILA["film"], rows["film"], deleted=[2, 3])
    again = {report.table: report.status for report in lake.refresh().tables}
    assert again == dict.fromkeys(EXPECTED, "unchanged") | dict.fromkeys(("film_revenue", "films_by_rating"), "ok")
    for name, sql in EXPECTED.items():
        assert lake.rows(name) == lake.duckdb(sql, **TOPICS), name


def test_model_result_and_source_versions_are_one_commit(first_run: tuple[Lake, Report]) -> None:
    lake, report = first_run[0], ok(of_model(first_run, "per_kind"))

    assert lake.rows("per_kind") == [("a", 2, Decimal("3.00")), ("b", 1, Decimal("1.50"))]
    assert (report.version_before, report.version_after, report.rows) == (None, 0, {"written": 2})
    assert (report.consumed_from, report.consumed_to) == ({}, {table_id(lake): 1})
    progress = Progress.from_metadata(lake.gold("per_kind").history(1)[0]["userMetadata"])
    assert progress is not None
    assert (progress.layer, progress.commit, progress.sources) == ("gold", 1, {table_id(lake): 1})


def test_new_and_restored_silver_versions_trigger_a_commit(made: Lake, spark: SparkSession) -> None:
    made.model("per_kind", PER_KIND)

    same = made.made("per_kind")
    assert (same.status, same.version_before, same.version_after, same.rows) == ("unchanged", 0, 0, {})
    assert same.consumed_to == {table_id(made): 1}

    made.fold(THING, THINGS, [(1, "c", None)])
    report = ok(made.made("per_kind"))
    assert (report.version_before, report.version_after) == (0, 1)
    assert made.rows("per_kind") == [("c", 1, None)]
    assert len(made.rows("per_kind", version=0)) == 2

    spark.sql(f"RESTORE delta.`{made.silver(THING)}` TO VERSION AS OF 0").collect()
    ok(made.made("per_kind"))
    assert [row[0] for row in made.rows("per_kind")] == ["a", "b"]
    assert made.made("per_kind").status == "unchanged"

    made.gold("per_kind").restore(1)
    assert [row[0] for row in made.rows("per_kind")] == ["c"]
    report = ok(made.made("per_kind"))
    assert (report.version_before, report.version_after) == (3, 4)
    assert [row[0] for row in made.rows("per_kind")] == ["a", "b"]


def test_changed_model_runs_on_unchanged_silver_and_may_evolve(made: Lake) -> None:
    made.model("per_kind", "SELECT upper(kind) AS name, max(id) AS newest FROM thing GROUP BY kind", keys="[name]")

    ok(made.made("per_kind"))

    assert made.rows("per_kind") == [("A", 2), ("B", 3)]
    assert made.rows("per_kind", version=0) == [("a", 2, Decimal("3.00")), ("b", 1, Decimal("1.50"))]
    assert made.made("per_kind").status == "unchanged"


def test_models_see_no_soft_deleted_rows_or_metadata_columns(lake: Lake) -> None:
    lake.fold(THING, THINGS, [(1, "a", None), (2, "b", None)], deleted=[2])
    lake.model("all_things", "SELECT * FROM thing", keys="[id]")
    lake.model("ops", "SELECT id, __op FROM thing", keys="[id]")

    reports = {report.table: report for report in lake.refresh().tables}

    ok(reports["all_things"])
    assert lake.gold("all_things").to_pyarrow_table().to_pylist() == [{"id": 1, "kind": "a", "price": None}]
    assert refusal(reports["ops"])[:2] == ("CDC-205", 2)


def test_empty_source_creates_an_empty_table_with_its_columns(lake: Lake) -> None:
    lake.fold(THING, THINGS, [(1, "a", None)], deleted=[1])
    lake.model("per_kind", PER_KIND)

    report = ok(lake.made("per_kind"))

    assert report.rows == {"written": 0}
    assert lake.rows("per_kind") == []
    assert lake.gold("per_kind").to_pyarrow_table().column_names == ["kind", "things", "worth"]


def test_duplicate_and_null_keys_exit_30_and_write_nothing(
    first_run: tuple[Lake, Report],
) -> None:
    code, exit_code, said = refusal(of_model(first_run, "twice"))

    assert (code, exit_code) == ("CDC-501", 30)
    assert "twice: of 3 rows 0 have a null in their key (kind), and 1 keys are in several rows" in said
    assert (
        "of 3 rows 1 have a null in their key (id, kind), and 0 keys are in several rows"
        in (refusal(of_model(first_run, "nulls"))[2])
    )
    assert sorted(folder.name for folder in (first_run[0].root / "gold").iterdir()) == ["joined", "per_kind"]


def test_rejected_result_leaves_the_table_unchanged(made: Lake) -> None:
    made.model("joined", JOINED, keys="[id]", sources=f"{{thing: {THING}, order: {THING}}}")
    made.fold(THING, THINGS, [(1, "a", None), (1, "b", None)])

    assert refusal(made.made("joined"))[0] == "CDC-501"

    assert made.gold("joined").version() == 0
    made.fold(THING, THINGS, [(1, "c", None)])
    ok(made.made("joined"))
    assert made.rows("joined") == [(1, "c")]


def test_missing_source_exits_2_and_other_models_continue(
    first_run: tuple[Lake, Report],
) -> None:
    code, exit_code, said = refusal(of_model(first_run, "lost"))

    assert (code, exit_code) == ("CDC-201", 2)
    assert "shop.public.thingy: there is no such table" in said
    file = first_run[0].models / "lost.sql"
    assert f"similar names: {THING}; run the silver job first, or correct `sources` in {file}" in said
    ok(of_model(first_run, "per_kind"))


def test_statements_other_than_queries_are_refused(lake: Lake) -> None:
    there = lake.silver(THING)
    statements = {
        "insert": f"INSERT INTO delta.`{there}` SELECT * FROM thing",
        "insert_behind_with": f"WITH new AS (SELECT * FROM thing) INSERT INTO delta.`{there}` SELECT * FROM new",
        "insert_behind_from": f"FROM thing INSERT INTO delta.`{there}` SELECT *",
        "to_files": f"INSERT OVERWRITE DIRECTORY '{lake.root}/out' USING parquet SELECT * FROM thing",
        "create": "CREATE TABLE stolen AS SELECT * FROM thing",
        "merge": f"MERGE INTO delta.`{there}` USING thing ON true WHEN MATCHED THEN DELETE",
        "delete": f"DELETE FROM delta.`{there}`",
        "restore": f"RESTORE delta.`{there}` TO VERSION AS OF 0",
        "drop": "DROP VIEW thing",
        "set": "SET spark.sql.runSQLOnFiles = true",
        "show": "SHOW TABLES",
    }
    for name, sql in statements.items():
        lake.model(name, sql)

    for report in lake.refresh().tables:
        code, exit_code, said = refusal(report)
        assert (code, exit_code) == ("CDC-205", 2)
        assert f"{report.table}.sql: its SQL is a statement that is not a query; a model is one SELECT" in said
    assert DeltaTable(there).version() == 0
    assert sorted(folder.name for folder in lake.root.iterdir() if folder.name[0] != "_") == ["silver"]


def test_invalid_sql_names_the_file_and_sparks_first_line(lake: Lake) -> None:
    wrong = {
        "two": (f"{PER_KIND}; DROP VIEW thing", "Syntax error at or near 'DROP'"),
        "none": ("", "Syntax error at or near end of input"),
        "typing": (PER_KIND.replace("FROM", "FORM"), "[PARSE_SYNTAX_ERROR]"),
        "column": (PER_KIND.replace("sum(price)", "sum(prize)"), "`prize` cannot be resolved. Did you mean one of"),
        "table": (PER_KIND.replace("FROM thing", "FROM things"), "table or view `things` cannot be found"),
        "path": (
            f"SELECT * FROM delta.`{lake.silver(THING)}`",
            f"table or view `delta`.`{lake.silver(THING)}` cannot be found",
        ),
        "lacking": (
            "SELECT kind AS kinds, id FROM thing",
            "`keys`: the result has no column `kind`; the nearest: kinds",
        ),
        "unnamed": ("SELECT kind, count(*) FROM thing GROUP BY kind", "need a name of letters and digits: count(1); "),
    }
    for name, (sql, _) in wrong.items():
        lake.model(name, sql)

    refusals = {report.table: refusal(report) for report in lake.refresh().tables}

    for name, (_, said) in wrong.items():
        assert refusals[name][:2] == ("CDC-205", 2)
        assert refusals[name][2].startswith(f"{lake.models / name}.sql: ")
        assert said in refusals[name][2], refusals[name]
        assert "\n" not in refusals[name][2]
    assert not (lake.root / "gold").exists()


def test_failing_query_names_the_file_and_the_reason(first_run: tuple[Lake, Report]) -> None:
    code, exit_code, said = refusal(of_model(first_run, "fails"))

    assert (code, exit_code, first_run[1].exit_code) == ("CDC-100", 1, 1)
    assert said.startswith(f"{first_run[0].models / 'fails.sql'}: Spark failed: ")
    assert "no luck" in said


def test_models_see_only_their_own_sources(first_run: tuple[Lake, Report]) -> None:
    assert "`thing` cannot be found" in refusal(of_model(first_run, "blind"))[2]


def test_source_can_have_two_names_and_quoted_names(first_run: tuple[Lake, Report]) -> None:
    lake, report = first_run[0], ok(of_model(first_run, "joined"))

    assert lake.rows("joined") == [(1, "a"), (2, "a"), (3, "b")]
    assert report.consumed_to == {table_id(lake): 1}


def test_gold_table_without_progress_is_refreshed_with_a_warning(lake: Lake) -> None:
    lake.model("per_kind", PER_KIND)
    write_deltalake(lake.root / "gold" / "per_kind", pa.table({"id": [0, 1, 2]}))

    report = ok(lake.made("per_kind"))

    assert "none of its retained commits" in report.warnings[0]
    assert [row[0] for row in lake.rows("per_kind")] == ["a", "b"]
    assert lake.made("per_kind").status == "unchanged"


def test_model_locked_by_another_run_exits_40(lake: Lake, spark: SparkSession) -> None:
    lake.model("per_kind", PER_KIND)

    with Lease(HadoopFiles(spark), f"{lake.root}/_leases/gold/per_kind", "per_kind", "theirs", 60):
        code, exit_code, said = refusal(lake.made("per_kind"))

    assert (code, exit_code) == ("CDC-600", 40)
    assert "run theirs" in said


def test_next_run_recovers_a_crashed_gold_run(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.model("per_kind", PER_KIND)
    for point, is_made in (("after_plan", False), ("after_overwrite", True)):
        monkeypatch.setenv(VARIABLE, f"gold.{point}:batch=1:raise")
        assert refusal(lake.made("per_kind"))[0] == CdcLakeError.code
        assert (lake.root / "gold" / "per_kind").exists() is is_made

    monkeypatch.delenv(VARIABLE)

    assert lake.made("per_kind").status == "unchanged"
    assert [row[0] for row in lake.rows("per_kind")] == ["a", "b"]
    assert lake.gold("per_kind").version() == 0


def test_unknown_model_names_the_nearest_before_any_model_runs(lake: Lake) -> None:
    lake.model("per_kind", PER_KIND)

    with pytest.raises(UnknownTableError, match=r"per_knd: there is no such model .*similar names: per_kind"):
        lake.refresh("per_kind", "per_knd")
    assert not (lake.root / "gold").exists()


def test_invalid_header_stops_the_run_before_any_model_runs(lake: Lake) -> None:
    lake.model("fine", PER_KIND)
    (lake.models / "bare.sql").write_text(PER_KIND)

    with pytest.raises(ModelError, match=r"bare\.sql: the header is missing"):
        lake.refresh()
    assert not (lake.root / "gold").exists()


def test_report_is_stored_with_the_lake(first_run: tuple[Lake, Report]) -> None:
    lake, report = first_run

    (kept,) = (lake.root / "_runs").glob("*-gold-*.json")
    assert Report.model_validate_json(kept.read_text()) == report
