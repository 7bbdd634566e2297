"""The sample source is the same every time, and has difficult changes."""

import threading
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc_lake.demo import sample
from cdc_lake.demo.hard_changes import HardChanges
from cdc_lake.demo.source import WorkloadOn, change, changing

ROWS = {
    "language": 6,
    "category": 16,
    "actor": 200,
    "country": 25,
    "city": 300,
    "address": 602,
    "store": 2,
    "film": 1000,
    "film_actor": 5252,
    "film_category": 1000,
    "customer": 600,
    "inventory": 4500,
    "rental": 16000,
    "payment": 15680,
}
QUIET = (
    "SELECT md5(string_agg(t::text, '|' ORDER BY film_id)) FROM film t WHERE film_id % 10 = 0",
    "SELECT md5(string_agg(t::text, '|' ORDER BY customer_id)) FROM customer t WHERE customer_id % 10 = 0",
)


@pytest.fixture(scope="module")
def loaded(stack: Any) -> Iterator[str]:
    """The name of a sample database that tests do not change."""
    with psycopg.connect(stack.endpoints["postgres"], autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS sample_test WITH (FORCE)")
        sample.create(stack.endpoints["postgres"], "sample_test")
        yield "sample_test"
        admin.execute("DROP DATABASE sample_test WITH (FORCE)")


@pytest.fixture
def unchanged(stack: Any, loaded: str) -> str:
    """Its DSN, for reads only."""
    return make_conninfo(stack.endpoints["postgres"], dbname=loaded)


@pytest.fixture
def databases(stack: Any, loaded: str) -> Iterator[tuple[str, str]]:
    """Two copies of it."""
    url = stack.endpoints["postgres"]
    names = ("sample_test_a", "sample_test_b")
    with psycopg.connect(url, autocommit=True) as admin:
        for name in names:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {loaded}".encode())
        yield make_conninfo(url, dbname=names[0]), make_conninfo(url, dbname=names[1])
        for name in names:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def rows(dsn: str, *queries: str) -> list[Any]:
    with psycopg.connect(dsn) as source:
        return [source.execute(query.encode()).fetchone() for query in queries]


def contents(dsn: str, *clocks: str) -> dict[str, Any]:
    """The number of rows and a hash of every table, without columns with clock times."""
    row = f"(to_jsonb(t) - '{{{','.join(clocks)}}}'::text[])::text"
    queries = [f"SELECT count(*), md5(string_agg({row}, '|' ORDER BY {row})) FROM {table} t" for table in ROWS]
    return dict(zip(ROWS, rows(dsn, *queries), strict=True))


def test_two_loads_are_equal(stack: Any, databases: tuple[str, str]) -> None:
    with psycopg.connect(stack.endpoints["postgres"], autocommit=True) as admin:
        admin.execute("DROP DATABASE sample_test_b WITH (FORCE)")
    again = sample.create(stack.endpoints["postgres"], "sample_test_b")

    first, second = contents(databases[0]), contents(again)

    assert first == second
    assert {table: count for table, (count, _) in first.items()} == ROWS
    assert set(sample.TABLES) == set(ROWS)


def test_second_create_keeps_existing_data(stack: Any, databases: tuple[str, str]) -> None:
    change(databases[0], sample.Shop, seed=3, transactions=20)
    before = contents(databases[0])

    assert sample.create(stack.endpoints["postgres"], "sample_test_a") == databases[0]
    assert contents(databases[0]) == before


@pytest.mark.parametrize("changes_to", [HardChanges, sample.Shop])
def test_same_seed_makes_same_changes(databases: tuple[str, str], changes_to: WorkloadOn) -> None:
    done = [change(dsn, changes_to, seed=7, transactions=300) for dsn in databases]
    first, second = (contents(dsn, "last_update") for dsn in databases)

    assert done[0] == done[1]
    assert first == second


def test_workload_has_every_kind_and_keeps_quiet_rows(databases: tuple[str, str]) -> None:
    before = rows(databases[0], *QUIET)

    done = change(databases[0], sample.Shop, seed=1, transactions=sample.ENOUGH)

    hard = {
        *("come_and_go", "delete", "insert", "key_change", "reinsert", "several", "update", "wide", "wide_then_narrow")
    }
    shop = {
        *(
            "rent",
            "give_back",
            "correct",
            "rent_another",
            "pay_late_fee",
            "refund",
            "postpone",
            "reprice",
            "move_house",
        ),
        *("cast", "reclassify", "renumber_actor", "rename_actor", "buy", "discard", "incremental_snapshot"),
    }
    assert done.total() == sample.ENOUGH
    assert set(done) == hard | shop
    assert rows(databases[0], *QUIET) == before


def test_background_workload_runs_until_its_body_ends(databases: tuple[str, str]) -> None:
    with changing(databases[0], sample.Shop, seed=1, at_least=0) as done:
        while done.total() < 10:
            threading.Event().wait(0.01)
    assert done.total() >= 10
    with changing(databases[0], sample.Shop, seed=2, at_least=30) as done:
        pass
    assert done.total() == 30


class Broken:
    """A user who cannot change anything."""

    def __init__(self, source: psycopg.Connection, random: Random) -> None:
        self.source = source

    def make(self) -> str:
        self.source.execute("SELECT 1 / 0")
        return "never"


def test_failure_of_background_workload_is_raised(databases: tuple[str, str]) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero), changing(databases[0], Broken, seed=1, at_least=1) as done:
        assert done == Counter()


def test_every_customer_lives_in_a_country(unchanged: str) -> None:
    joined = "FROM customer JOIN address USING (address_id) JOIN city USING (city_id) JOIN country USING (country_id)"

    assert rows(unchanged, f"SELECT count(*), count(DISTINCT country) {joined}") == [(600, 25)]


def test_nullable_columns_have_no_default(unchanged: str) -> None:
    query = "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'public' AND is_nullable = 'YES'"

    assert rows(unchanged, f"{query} AND column_default IS NOT NULL") == [(0,)]


def test_wide_columns_of_every_type_are_stored_out_of_line(unchanged: str) -> None:
    wide = {"film": ("description", "poster", "special_features", "attributes"), "customer": ("notes", "profile")}
    queries = [
        f"SELECT count(*) FILTER (WHERE pg_column_size({column}) > 2000) FROM {table}"
        for table, columns in wide.items()
        for column in columns
    ]

    assert min(count for (count,) in rows(unchanged, *queries)) >= 20
