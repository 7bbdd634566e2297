"""A user's dump: which tables can be replicated, and a workload that only knows Postgres' catalog."""

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cdc_lake.demo.dump import AnyChanges, LoadedDump, load_dump
from cdc_lake.demo.servers.postgres import program
from cdc_lake.demo.source import change, dump_source
from cdc_lake.errors import ConfigError
from cdc_lake.reconcile.postgres_catalog import SourceTable, read_tables

FOLDER = Path(__file__).with_name("dumps")
DUMPS = [FOLDER / "harbour.sql", FOLDER / "observatory.sql"]


@pytest.fixture(scope="module")
def dsn(stack: Any) -> Iterator[str]:
    """A database with all dumps, which tests do not change."""
    yield load_dump(stack.endpoints["postgres"], "dumps", DUMPS).dsn
    with psycopg.connect(stack.endpoints["postgres"], autocommit=True) as admin:
        admin.execute("DROP DATABASE dumps WITH (FORCE)")


@pytest.fixture
def copies(stack: Any, dsn: str) -> Iterator[tuple[str, str]]:
    """Two copies of it."""
    url, names = stack.endpoints["postgres"], ("dumps_a", "dumps_b")
    with psycopg.connect(url, autocommit=True) as admin:
        for name in names:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE dumps".encode())
        yield make_conninfo(url, dbname=names[0]), make_conninfo(url, dbname=names[1])
        for name in names:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def tables(dsn: str) -> dict[str, SourceTable]:
    with psycopg.connect(dsn) as source:
        return {table.place: table for table in read_tables(source)}


def contents(dsn: str) -> dict[str, Any]:
    with psycopg.connect(dsn) as source:
        return {
            place: source.execute(f"SELECT t::text FROM {table.qualified} t ORDER BY 1".encode()).fetchall()
            for place, table in tables(dsn).items()
        }


def test_tables_of_all_schemas_are_found_and_partitioned_once(dsn: str) -> None:
    assert {place: table.trouble for place, table in tables(dsn).items()} == {
        "Sky Survey.Star": None,
        "Sky Survey.Exposure 2024": None,
        "archive.plate": None,
        "archive.Observer's log": "it has no primary key",
        "public.Port": None,
        "public.Ship": None,
        "public.Call": None,
        "customs.Declaration.v2": None,
        "customs.empty": None,
        "customs.scratch": "it is not logged",
    }


def test_table_that_debezium_cannot_follow_gives_the_reason(copies: tuple[str, str]) -> None:
    with psycopg.connect(copies[0]) as source:
        source.execute('CREATE TABLE "a b" (id int PRIMARY KEY); CREATE TABLE "a_b" (id int PRIMARY KEY)')
        source.execute('CREATE TABLE twins (id int PRIMARY KEY, "x-y" int, "X_y" int)')
        source.execute("CREATE TABLE late (id int PRIMARY KEY DEFERRABLE)")
        source.execute("CREATE TABLE odd (id pg_lsn PRIMARY KEY)")

    troubles = {table.name: table.trouble for table in tables(copies[0]).values() if table.schema == "public"}

    assert troubles["a b"] == troubles["a_b"] == "another table has the same topic"
    assert troubles["twins"] == "two of its columns have the same name in the lake"
    assert troubles["late"] == "its primary key is deferrable"
    assert troubles["odd"] == "Debezium does not send the type of its primary key"


def test_catalog_describes_columns(dsn: str) -> None:
    star = {column.name: column for column in tables(dsn)["Sky Survey.Star"].columns}

    assert (star["Größe"].type, star["Größe"].lake_name) == ("numeric", "Gr__e")
    assert (star["bands"].type, star["bands"].typtype, star["bands"].is_array) == ("Band", "e", True)
    assert [name for name, column in star.items() if column.has_default] == ["Common Name", "best_band", "2nd name"]
    assert [name for name, column in star.items() if column.is_generated] == ["doubled"]
    assert [name for name, column in star.items() if column.is_key] == ["Id"]


def test_same_seed_makes_same_changes_of_every_kind(copies: tuple[str, str]) -> None:
    before = contents(copies[0])
    changes = partial(AnyChanges, [table for table in tables(copies[0]).values() if table.trouble is None])

    done = [change(dsn, changes, seed=5, transactions=1500) for dsn in copies]

    assert done[0] == done[1]
    assert contents(copies[0]) == contents(copies[1])
    assert set(done[0]) == {"update", "update_twice", "copy", "delete", "reinsert", "change_key", "refused"}
    assert done[0]["refused"] < 750
    after = contents(copies[0])
    assert {place for place, rows in after.items() if rows == before[place]} == {
        *("archive.Observer's log", "customs.scratch", "customs.empty")
    }
    assert [place for place, rows in after.items() if not rows and before[place]] == []


Load = Callable[[Path], LoadedDump]


@pytest.fixture
def load(stack: Any) -> Iterator[Load]:
    """Load one dump into a separate database."""
    url = stack.endpoints["postgres"]
    yield lambda file: load_dump(url, "dump_of_one", [file])
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP DATABASE dump_of_one WITH (FORCE)")


def test_dump_that_creates_its_database_is_followed(load: Load) -> None:
    dsn, skipped = load(FOLDER / "created.sql")

    assert {place: table.trouble for place, table in tables(dsn).items()} == {"public.sack": None}
    with psycopg.connect(dsn) as source:
        assert source.execute("SELECT * FROM sack ORDER BY id").fetchall() == [
            (1, "DROP TABLE public.sack;"),
            (2, "\\connect elsewhere"),
            (3, None),
            (4, "two lines\n\\connect elsewhere"),
        ]
    assert skipped == {
        'unrecognized configuration parameter "transaction_timeout"': 1,
        'schema "public" already exists': 1,
        'role "miller" does not exist': 4,
        'extension "plpgsql" already exists': 1,
        'extension "citext" is not available': 1,
        'extension "hstore" is not available': 1,
        'type "public.citext" does not exist': 1,
        'relation "public.farmer" does not exist': 2,
    }


@pytest.mark.parametrize("extension", ["citext", "hstore", "ltree", "pgcrypto", "uuid-ossp"])
def test_extension_missing_on_the_server_is_named(load: Load, tmp_path: Path, extension: str) -> None:
    file = tmp_path / "dump.sql"
    file.write_text(f'CREATE EXTENSION "{extension}"; CREATE TABLE fine (id int PRIMARY KEY);')

    dsn, skipped = load(file)

    assert (list(tables(dsn)), list(skipped)) == (["public.fine"], [f'extension "{extension}" is not available'])


@pytest.mark.parametrize("form", ["custom", "directory", "tar"])
def test_archives_of_pg_dump_are_loaded(dsn: str, load: Load, tmp_path: Path, form: str) -> None:
    file = tmp_path / "archive"
    subprocess.run([program("pg_dump"), "--create", "--format", form, "--file", file, dsn], check=True)

    loaded = load(file)

    assert loaded.skipped == {}
    assert contents(loaded.dsn) == contents(dsn)
    assert set(contents(dsn)) >= {"Sky Survey.Star", "public.Port"}


def test_latin_1_file_keeps_its_characters(load: Load) -> None:
    dsn, skipped = load(FOLDER / "latin1.sql")

    with psycopg.connect(dsn) as source:
        assert source.execute("SELECT name FROM bakery ORDER BY id").fetchall() == [("Bäckerei Müßig",), ("Crêperie",)]
    assert not skipped


def test_failed_statement_keeps_the_rest_of_its_transaction(load: Load, tmp_path: Path) -> None:
    broken = tmp_path / "broken.sql"
    broken.write_text("BEGIN;\nCREATE TABLE fine (id int PRIMARY KEY);\nSELECT * FROM absent;\nCOMMIT;\n")

    dsn, skipped = load(broken)

    assert (list(tables(dsn)), list(skipped.values())) == (["public.fine"], [1])


def test_dump_of_several_databases_is_refused(load: Load, tmp_path: Path) -> None:
    file = tmp_path / "all.sql"
    file.write_text("\\connect template1\n\\c shop;\n\\connect -reuse-previous=on \"dbname='mill'\"\n")

    with pytest.raises(ConfigError, match=r"all\.sql: it contains several databases \(.*mill.*, shop\)"):
        load(file)


@pytest.mark.parametrize("name", ["a_folder", "cut"])
def test_unreadable_archive_is_a_config_error(load: Load, tmp_path: Path, name: str) -> None:
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "cut").write_bytes(b"PGDMP\x01")

    with pytest.raises(ConfigError, match="pg_restore cannot load it"):
        load(tmp_path / name)


def test_dump_without_usable_tables_names_the_failed_statement(stack: Any, tmp_path: Path) -> None:
    file = tmp_path / "broken.sql"
    file.write_text("CREATE TABLE lost (name citext PRIMARY KEY);")

    with pytest.raises(ConfigError, match=r'usable primary key.*type "citext" does not exist'):
        dump_source(stack.endpoints["postgres"], [file])
    with psycopg.connect(stack.endpoints["postgres"], autocommit=True) as admin:
        admin.execute("DROP DATABASE dump WITH (FORCE)")
