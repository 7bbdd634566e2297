"""The sample source must be the same every time, and hard."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from cdc_lake.embedded import sample

HASHES = {
    table: "SELECT count(*), md5(string_agg((to_jsonb(t) - 'last_update')::text, '|' "
    f"ORDER BY {table}_id)) FROM {table} t"
    for table in ("film", "customer")
}
QUIET = (
    "SELECT md5(string_agg(t::text, '|' ORDER BY film_id)) FROM film t WHERE film_id % 10 = 0",
    "SELECT md5(string_agg(t::text, '|' ORDER BY customer_id)) FROM customer t WHERE customer_id % 10 = 0",
)


@pytest.fixture
def databases(stack: Any) -> Iterator[tuple[str, str]]:
    """Two fresh sample databases."""
    url = stack.endpoints["postgres"]
    names = ("sample_test_a", "sample_test_b")
    with psycopg.connect(url, autocommit=True) as admin:
        for name in names:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        yield sample.create(url, names[0]), sample.create(url, names[1])
        for name in names:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def rows(dsn: str, *queries: str) -> list[Any]:
    with psycopg.connect(dsn) as source:
        return [source.execute(query.encode()).fetchone() for query in queries]


def test_two_loads_are_equal(databases: tuple[str, str]) -> None:
    first, second = (rows(dsn, *HASHES.values()) for dsn in databases)

    assert first == second
    assert [count for count, _ in first] == [1000, 600]


def test_creating_it_again_leaves_it_alone(stack: Any, databases: tuple[str, str]) -> None:
    sample.workload(databases[0], seed=3, transactions=20)
    before = rows(databases[0], *HASHES.values())

    assert sample.create(stack.endpoints["postgres"], "sample_test_a") == databases[0]
    assert rows(databases[0], *HASHES.values()) == before


def test_the_same_seed_makes_the_same_changes(databases: tuple[str, str]) -> None:
    done = [sample.workload(dsn, seed=7, transactions=200) for dsn in databases]
    first, second = (rows(dsn, *HASHES.values()) for dsn in databases)

    assert done[0] == done[1]
    assert first == second


def test_quiet_rows_never_change(databases: tuple[str, str]) -> None:
    before = rows(databases[0], *QUIET)

    sample.workload(databases[0], seed=1)

    assert rows(databases[0], *QUIET) == before


def test_the_default_workload_holds_every_kind_of_transaction(databases: tuple[str, str]) -> None:
    done = sample.workload(databases[0], seed=1)

    assert done.total() == sample.TRANSACTIONS
    assert set(done) == {
        "come_and_go",
        "delete",
        "insert",
        "key_change",
        "reinsert",
        "several",
        "update",
        "wide",
        "wide_then_narrow",
    }
    assert min(done.values()) >= 20


def test_a_nullable_column_has_no_default(databases: tuple[str, str]) -> None:
    query = "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'public' AND is_nullable = 'YES'"

    assert rows(databases[0], f"{query} AND column_default IS NOT NULL") == [(0,)]


def test_wide_columns_of_every_type_are_stored_out_of_line(databases: tuple[str, str]) -> None:
    wide = {"film": ("description", "poster", "special_features", "attributes"), "customer": ("notes", "profile")}
    queries = [
        f"SELECT count(*) FILTER (WHERE pg_column_size({column}) > 2000) FROM {table}"
        for table, columns in wide.items()
        for column in columns
    ]

    assert min(count for (count,) in rows(databases[0], *queries)) >= 20
