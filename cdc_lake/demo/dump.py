"""Load a user's own database from files of pg_dump or other SQL files."""

import codecs
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cdc_lake.demo.servers.postgres import program
from cdc_lake.errors import ConfigError

_CONNECT: Final = re.compile(rb"\\c(?:onnect)?\s+(?:-reuse-previous=\S+\s+)?(\"[^\"]*\"|[^\s;]+)")
_DATABASE: Final = re.compile(rb"(?:CREATE|DROP) DATABASE .*;", re.IGNORECASE)
_RESTRICT: Final = re.compile(rb"\\(un)?restrict (\S+)")
_COPY: Final = re.compile(rb"COPY (.+) FROM stdin(.*);", re.IGNORECASE)
_ERROR: Final = re.compile(r"psql:.*?: (?:ERROR|FATAL|error): +(.*?)(?: at character \d+)?")
_OTHERS: Final = frozenset((b"template1", b"postgres", b"-"))
"""System databases to which pg_dumpall connects, and psql's name for the current one."""
_ARCHIVES: Final = (b"PGDMP", b"toc.dat")
"""First bytes of pg_dump's custom and tar formats."""


class LoadedDump(NamedTuple):
    """The result of loading dumps.

    Attributes:
        dsn: the address of the new database.
        skipped: Postgres's errors of failed statements -> their numbers.
    """

    dsn: str
    skipped: Mapping[str, int]


def load_dump(dsn_admin: str, database: str, files: Sequence[Path]) -> LoadedDump:
    """Load dumps into a new database, one after another, and skip statements that fail.

    Everything is loaded into this database, even if the dump creates and connects to another one.

    Args:
        dsn_admin: libpq DSN or URL of any database of the server, with a user who may create databases.
        database: name of the database to create.
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
    return (found[1] for found in map(_ERROR.fullmatch, output.splitlines()) if found)


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
        if starts and (found := _CONNECT.match(text)):
            databases.add(found[1])
        elif starts and (found := _COPY.fullmatch(text)):
            number += 1
            data = folder / f"{number}.data"
            rows = takewhile(lambda row: row.rstrip(b"\r\n") != b"\\.", lines)
            with data.open("wb") as out:
                out.writelines(rows)
            name = os.fsencode(data).replace(b"'", b"''")
            command = b"\\copy %s FROM '%s'%s\n" % (found[1], name, found[2])
            yield b"\\unrestrict %s\n%s\\restrict %s\n" % (key, command, key) if key else command
        elif not starts or not _DATABASE.fullmatch(text):
            if starts and (found := _RESTRICT.match(text)):
                key = b"" if found[1] else found[2]
            yield line
        if text:
            starts = text.startswith((b"--", b"\\")) or text.endswith((b";", b"*/"))
    if len(databases - _OTHERS) > 1:
        names = ", ".join(sorted(name.decode(errors="replace") for name in databases - _OTHERS))
        raise ConfigError(str(file), f"it contains several databases ({names})", "use a dump of one of them")


def _run(file: Path, command: Sequence[str], folder: Path, stdin: BinaryIO | None = None, **variables: str) -> str:
    """Run a program of Postgres, and return its stderr.

    Raises:
        ConfigError: it failed.
    """
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
        todo = "create a portable file with `pg_dump --format=plain --no-owner --no-privileges`"
        raise ConfigError(str(file), f"{Path(command[0]).name} cannot load it: {output}", todo)
    return done.stderr
