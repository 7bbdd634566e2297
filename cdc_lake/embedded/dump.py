"""A person's own database, from the SQL files that pg_dump or anybody writes."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc_lake.embedded.postgres import program
from cdc_lake.errors import ConfigError


def load_dump(dsn_admin: str, database: str, files: Sequence[Path]) -> str:
    """Load SQL files, one after another, into a new database.

    Args:
        dsn_admin: libpq DSN or URL of any database of the server, of a user who may create databases.
        database: name of the database to create.
        files: as psql reads them; custom and directory formats of pg_dump are not.

    Returns:
        The DSN of the new database.

    Raises:
        ConfigError: psql refuses a file; holds what it said.
    """
    with psycopg.connect(dsn_admin, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    dsn = make_conninfo(dsn_admin, dbname=database)
    for file in files:
        command = [str(program("psql")), "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", str(file), dsn]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = "\n".join(done.stderr.strip().splitlines()[-5:])
            todo = "mend the file; `pg_dump --format=plain --no-owner --no-privileges` writes one that loads anywhere"
            raise ConfigError(str(file), f"psql refuses it: {said}", todo)
    return dsn
