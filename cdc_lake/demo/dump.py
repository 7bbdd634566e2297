"""A user's own database: load it from files of pg_dump or other SQL files, and change rows of its tables."""

import codecs
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc_lake.demo.servers.postgres import program
from cdc_lake.errors import ConfigError
from cdc_lake.reconcile.postgres_catalog import SourceColumn, SourceTable

_CONNECT: Final = re.compile(rb"\\c(?:onnect)?\s+(?:-reuse-previous=\S+\s+)?(\"[^\"]*\"|[^\s;]+)")
_DATABASE: Final = re.compile(rb"(?:CREATE|DROP) DATABASE .*;", re.IGNORECASE)
_RESTRICT: Final = re.compile(rb"\\(un)?restrict (\S+)")
_COPY: Final = re.compile(rb"COPY (.+) FROM stdin(.*);", re.IGNORECASE)
_ERROR: Final = re.compile(r"psql:.*?: (?:ERROR|FATAL|error): +(.*?)(?: at character \d+)?")
_OTHERS: Final = frozenset((b"template1", b"postgres", b"-"))
"""System databases to which pg_dumpall connects, and psql's name for the current one."""
_ARCHIVES: Final = (b"PGDMP", b"toc.dat")
"""First bytes of pg_dump's custom and tar formats."""
_KEYS_AT_MOST: Final = 2_000
"""Maximum number of rows per table that the workload changes."""
_Key = tuple[str, ...]


class LoadedDump(NamedTuple):
    """The result of loading dumps.

    Attributes:
        skipped: Postgres's errors of failed statements -> their numbers.
    """

    dsn: str
    skipped: Mapping[str, int]


def load_dump(dsn_admin: str, database: str, files: Sequence[Path]) -> LoadedDump:
    """Load dumps into a new database, one after another, and skip statements that fail.

    Everything is loaded into this database, even if the dump creates and connects to another one.

    Args:
        dsn_admin: libpq DSN or URL of any database of the server, with a user who may create databases.
        files: SQL, or pg_dump's custom, directory or tar formats.

    Raises:
        ConfigError: a file cannot be read, or contains several databases.
    """
    with psycopg.connect(dsn_admin, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    dsn = make_conninfo(dsn_admin, dbname=database)
    skipped: Counter[str] = Counter()
    for file in files:
        with TemporaryDirectory() as folder:
            skipped.update(_load(dsn, file, Path(folder)))
    return LoadedDump(dsn, skipped)


def _load(dsn: str, file: Path, folder: Path) -> Iterator[str]:
    """Load a file, and return the errors of skipped statements."""
    plain, script = _as_sql(file, folder / "restored.sql"), folder / "script.sql"
    with plain.open("rb") as lines, script.open("wb") as out:
        out.writelines(_adapted(file, lines, folder))
    command = [str(program("psql")), "--no-psqlrc", "--quiet", "--set", "VERBOSITY=terse"]
    # ON_ERROR_ROLLBACK continues a transaction after a failed statement.
    server = conninfo_to_dict(dsn)
    password = str(server.pop("password", ""))  # in the environment, because all users can see arguments
    command += ["--set", "ON_ERROR_ROLLBACK=on", "--file", "-", make_conninfo("", **server)]
    with script.open("rb") as statements:
        output = _run(file, command, file.parent, statements, PGPASSWORD=password, PGCLIENTENCODING=_encoding(plain))
    return (error[1] for error in map(_ERROR.fullmatch, output.splitlines()) if error)


def _as_sql(file: Path, restored: Path) -> Path:
    """The file if it is SQL, else the SQL that pg_restore extracts from it."""
    if file.is_file():
        with file.open("rb") as opened:
            if not opened.read(8).startswith(_ARCHIVES):
                return file
    options = ["--no-owner", "--no-privileges", "--file", str(restored)]
    _run(file, [str(program("pg_restore")), *options, str(file)], file.parent)
    return restored


def _encoding(file: Path) -> str:
    """The encoding with which psql reads a file, until the file sets `client_encoding`."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with file.open("rb") as lines:
            for line in lines:
                decoder.decode(line)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "LATIN1"
    return "UTF8"


def _adapted(file: Path, lines: Iterator[bytes], folder: Path) -> Iterator[bytes]:
    """The lines of a script without those that create databases and connect to them.

    The data of COPY is moved to files, because psql would run data lines as statements if COPY fails.
    """
    databases, key, starts, number = set(), b"", True, 0
    for line in lines:
        text = line.strip()
        if starts and (match := _CONNECT.match(text)):
            databases.add(match[1])
        elif starts and (match := _COPY.fullmatch(text)):
            number += 1
            data = folder / f"{number}.data"
            rows = takewhile(lambda row: row.rstrip(b"\r\n") != b"\\.", lines)
            with data.open("wb") as out:
                out.writelines(rows)
            name = os.fsencode(data).replace(b"'", b"''")
            command = b"\\copy %s FROM '%s'%s\n" % (match[1], name, match[2])
            yield b"\\unrestrict %s\n%s\\restrict %s\n" % (key, command, key) if key else command
        elif not starts or not _DATABASE.fullmatch(text):
            if starts and (match := _RESTRICT.match(text)):
                key = b"" if match[1] else match[2]
            yield line
        if text:
            starts = text.startswith((b"--", b"\\")) or text.endswith((b";", b"*/"))
    if len(databases - _OTHERS) > 1:
        names = ", ".join(sorted(name.decode(errors="replace") for name in databases - _OTHERS))
        raise ConfigError(str(file), f"it contains several databases ({names})", "use a dump of one of them")


def _run(file: Path, command: Sequence[str], folder: Path, stdin: BinaryIO | None = None, **variables: str) -> str:
    """Run a program of Postgres, and return its stderr."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | variables,
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        output = "\n".join(done.stderr.strip().splitlines()[-5:])
        cure = "create a portable file with `pg_dump --format=plain --no-owner --no-privileges`"
        raise ConfigError(str(file), f"{Path(command[0]).name} cannot load it: {output}", cure)
    return done.stderr


class AnyChanges:
    """Transactions that each make one kind of change to one table.

    Changes that the database rejects by a foreign key, check or trigger are rolled back and counted as `refused`, and
    so are changes that would empty a table.

    Args:
        random: determines all changes.
    """

    def __init__(self, tables: Sequence[SourceTable], source: psycopg.Connection, random: Random) -> None:
        self.source = source
        self.random = random
        self.players = [player for table in tables if (player := _Player(source, table, random)).keys]

    def make(self) -> str:
        players = [player for player in self.players if player.keys]
        if not players:
            return "nothing"
        (change,) = self.random.choices(tuple(_SHARES), tuple(_SHARES.values()))
        player = self.random.choice(players)
        keys = list(player.keys)
        try:
            with self.source.transaction():
                change(player)
                self.source.execute("SET CONSTRAINTS ALL IMMEDIATE")
                self._check_none_is_empty()
        except psycopg.Error:
            if self.source.broken:
                raise
            player.keys = keys
            return "refused"
        return str(change.__name__)

    def _check_none_is_empty(self) -> None:
        """Check that cascading deletes have not emptied a table, which could not be compared."""
        checks = " AND ".join(f"EXISTS (SELECT FROM {player.table.qualified})" for player in self.players)
        if self.source.execute(f"SELECT {checks}".encode()).fetchone() != (True,):
            raise psycopg.DataError("a table would be empty")


class _Player:
    """Changes one table. Keys are texts, which Postgres converts to the columns' types."""

    def __init__(self, source: psycopg.Connection, table: SourceTable, random: Random) -> None:
        self.source = source
        self.table = table
        self.random = random
        self.made = 0
        self.name = table.qualified.replace("%", "%%")
        self.key = [column for column in table.columns if column.is_key]
        self.others = [column for column in table.columns if not column.is_key and not column.is_generated]
        names = ", ".join(f"{_quoted(column)}::text" for column in self.key)
        places = ", ".join(str(place) for place in range(1, len(self.key) + 1))
        rows = f"SELECT {names} FROM {self.name} ORDER BY {places} LIMIT {_KEYS_AT_MOST}"
        self.keys: list[_Key] = source.execute(rows.encode(), ()).fetchall()

    def update(self) -> None:
        """Update a few columns of a row."""
        self._update(self._any_key())

    def update_twice(self) -> None:
        """Update a row twice in one transaction."""
        key = self._any_key()
        self._update(key)
        self._update(key)

    def copy(self) -> None:
        """Insert a copy of a row with a new key."""
        columns = [*self.key, *self.others]
        values = [self._new(column) if column.is_unique else _quoted(column) for column in columns]
        names = ", ".join(map(_quoted, columns))
        key = self._run(
            f"INSERT INTO {self.name} ({names}) OVERRIDING SYSTEM VALUE"
            f" SELECT {', '.join(values)} FROM {self.name} WHERE {self._is_key}",
            *self._any_key(),
        )
        if key:
            self.keys.append(key)

    def delete(self) -> None:
        """Delete a row."""
        key = self._any_key()
        self._run(f"DELETE FROM {self.name} WHERE {self._is_key}", *key)
        self.keys.remove(key)

    def reinsert(self) -> None:
        """Delete and reinsert a row in one transaction."""
        key = self._any_key()
        asked = f"SELECT t::text FROM {self.name} t WHERE {self._is_key}"
        ((row,),) = self.source.execute(asked.encode(), key).fetchall()
        self._run(f"DELETE FROM {self.name} WHERE {self._is_key}", *key)
        columns = [_quoted(column) for column in (*self.key, *self.others)]
        values = ", ".join(f"(r).{column}" for column in columns)
        self._run(
            f"INSERT INTO {self.name} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE"
            f" SELECT {values} FROM (SELECT %s::{self.name} AS r) s",
            row,
        )

    def change_key(self) -> None:
        """Change one column of the primary key."""
        key, column = self._any_key(), self.random.choice(self.key)
        new = self._run(f"UPDATE {self.name} SET {_quoted(column)} = {self._new(column)} WHERE {self._is_key}", *key)
        if new:
            self.keys[self.keys.index(key)] = new

    @property
    def _is_key(self) -> str:
        return " AND ".join(f"{_quoted(column)} = %s" for column in self.key)

    def _any_key(self) -> _Key:
        """The key of an existing row; others were deleted or changed by cascading changes."""
        while self.keys:
            key = self.random.choice(self.keys)
            if (
                self.source.execute(f"SELECT FROM {self.name} WHERE {self._is_key}".encode(), key).fetchone()
                is not None
            ):
                return key
            self.keys.remove(key)
        raise psycopg.DataError("no row is left that this knows of")

    def _update(self, key: _Key) -> None:
        free = [column for column in self.others if not column.is_unique]
        if not free:
            raise psycopg.DataError("nothing but unique columns")
        columns = self.random.sample(free, self.random.randint(1, min(3, len(free))))
        assignments = ", ".join(f"{_quoted(column)} = {self._other(column)}" for column in columns)
        self._run(f"UPDATE {self.name} SET {assignments} WHERE {self._is_key}", *key)

    def _other(self, column: SourceColumn) -> str:
        """An SQL expression for another value of a column: null, a modified one, or that of another row."""
        dice = self.random.random()
        if column.is_nullable and dice < 0.15:
            return "NULL"
        if dice < 0.5 and not column.is_reference and not column.is_array and column.type in _CHANGED:
            return _CHANGED[column.type].format(c=_quoted(column), n=self.random.randrange(1, 100))
        parts = zip(self.key, self._any_key(), strict=True)
        same = " AND ".join(f"{_quoted(key)} = {sql.quote(part).replace('%', '%%')}" for key, part in parts)
        return f"(SELECT {_quoted(column)} FROM {self.name} WHERE {same})"

    def _new(self, column: SourceColumn) -> str:
        """An SQL expression for a value that no row has yet; for a reference, for one that probably exists."""
        self.made += 1
        if column.is_reference:
            return self._other(column) if not column.is_nullable else _quoted(column)
        if not column.is_array and column.type in _NUMBERS:
            return f"(SELECT max({_quoted(column)}) + 1 FROM {self.name})"
        if not column.is_array and column.type in _CHANGED:
            return _CHANGED[column.type].format(c=_quoted(column), n=1_000 + self.made)
        return "NULL" if column.is_nullable and not column.is_key else _quoted(column)

    def _run(self, statement: str, *values: str) -> _Key | None:
        """Run a statement that changes a row, and return the row's new key."""
        returning = ", ".join(f"{_quoted(column)}::text" for column in self.key)
        return self.source.execute(f"{statement} RETURNING {returning}".encode(), values).fetchone()


def _quoted(column: SourceColumn) -> str:
    return sql.Identifier(column.name).as_string().replace("%", "%%")


_TEXT = "left(md5({c}::text || {n}), greatest(length({c}::text), 3))"
_NUMBERS: Final = ("int2", "int4", "int8", "numeric", "float4", "float8", "date")
_CHANGED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("text", "varchar", "bpchar", "citext"), _TEXT),
    **dict.fromkeys(_NUMBERS, "{c} + {n}"),
    "bool": "NOT {c}",
    "uuid": "md5({c}::text || {n})::uuid",
    **dict.fromkeys(("timestamp", "timestamptz"), "{c} + {n} * interval '1000001 microseconds'"),
    "time": "{c} + {n} * interval '1000001 microseconds'",
    "bytea": "decode(md5({c}::text || {n}), 'hex')",
}
"""Type -> SQL expression that modifies the value of the column `c` by a number `n`."""
_SHARES: Final[Mapping[Callable[[_Player], None], int]] = {
    _Player.update: 40,
    _Player.update_twice: 15,
    _Player.copy: 20,
    _Player.delete: 10,
    _Player.reinsert: 8,
    _Player.change_key: 7,
}
