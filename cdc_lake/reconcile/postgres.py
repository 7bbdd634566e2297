"""The source's side: a Postgres database as it is at one moment, in one transaction that only reads."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from cdc_lake.errors import ConfigError, InfrastructureError, UnsupportedError
from cdc_lake.privacy import is_loopback
from cdc_lake.reconcile.canonical import Key, joined_in_source
from cdc_lake.reconcile.columns import Shared, SharedColumn
from cdc_lake.reconcile.ranges import Places, Summary
from cdc_lake.reconcile.rows import TextRow

_OLDEST = 140_000
_ROWS_AT_ONCE = 500
_CONNECT_SECONDS = 10
_SUMS = ", ".join(f"sum(('x' || substr(digest, {at}, 8))::bit(32)::bigint)::bigint" for at in (1, 9, 17, 25))


@contextmanager
def open_snapshot(url: SecretStr, where: str) -> Iterator[psycopg.Connection[Any]]:
    """A database as it is now; it stays like this inside.

    Args:
        url: libpq's, or its words `host=…`. It is never shown, and neither is what libpq says of it.
        where: what an error calls the database.

    Raises:
        InfrastructureError: it does not answer, or refuses the login; or it stops answering inside.
        ConfigError: its user may not read what is asked for.
        UnsupportedError: it is older than Postgres 14, or its encoding is not UTF-8.
    """
    tls = dict[str, Any]()
    try:
        tls = _required_tls(conninfo_to_dict(url.get_secret_value()))
        connection = psycopg.connect(url.get_secret_value(), connect_timeout=_CONNECT_SECONDS, **tls)
    except psycopg.Error as exc:
        todo = "see that it runs, and that address, user, password and database are right; then run again"
        if tls:
            todo += ". TLS is required, because it is not on this machine and its address has no `sslmode`"
        raise InfrastructureError(where, f"it cannot be connected to ({type(exc).__name__})", todo) from None
    try:
        with connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            # Without a search path, an operator or function of the source's would be called as one of Postgres' own.
            connection.execute("SET TIME ZONE 'UTC'; SET DATESTYLE = 'ISO'; SET search_path = pg_catalog")
            _check(connection, where)
            yield connection
    except psycopg.errors.InsufficientPrivilege as exc:
        raise ConfigError(where, "its user may not read the table", "grant it SELECT") from exc
    except psycopg.Error as exc:
        what = f"it failed with {type(exc).__name__} ({exc.sqlstate or 'the connection is gone'})"
        raise InfrastructureError(where, what, "see its log; nothing was changed, run again") from exc


def _required_tls(address: Mapping[str, Any]) -> dict[str, Any]:
    """What libpq has to be told so that rows and password go to another machine by TLS only.

    Args:
        address: libpq's words; if they, the environment or a service's file choose a mode, that counts.
    """
    is_told = {"sslmode", "service"} & address.keys() or {"PGSSLMODE", "PGSERVICE"} & os.environ.keys()
    hosts = address.get("hostaddr") or address.get("host") or os.environ.get("PGHOSTADDR") or os.environ.get("PGHOST")
    is_here = all(not host or host.startswith(("/", "@")) or is_loopback(host) for host in (hosts or "").split(","))
    return {} if is_told or is_here else {"sslmode": "require"}


def _check(connection: psycopg.Connection[Any], where: str) -> None:
    if connection.info.server_version < _OLDEST:
        raise UnsupportedError(where, "it is older than Postgres 14", "compare with a newer Postgres")
    if connection.info.parameter_status("server_encoding") != "UTF8":
        raise UnsupportedError(where, "its encoding is not UTF-8, which is all that Debezium reads", "compare another")


def lsn(connection: psycopg.Connection[Any]) -> int:
    """How far the database's log reaches; every change that the snapshot shows is before this."""
    query = (
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
        " - '0/0'::pg_lsn"
    )
    ((found,),) = connection.execute(query).fetchall()
    return int(found)


class SourceRows:
    """A table's rows as canonical texts, as its connection's transaction sees them.

    Args:
        connection: inside its transaction.
        shared: what of the table is compared.
    """

    def __init__(self, connection: psycopg.Connection[Any], shared: Shared) -> None:
        self._connection = connection
        self._table = _escaped(shared.table.qualified)
        key = [_text(one) for one in shared.key]
        self._texts = [_text(one) for one in shared.others]
        if shared.has_number_as_key:
            self._key, self._type = _escaped(sql.Identifier(shared.key[0].column.name).as_string()), "int8[]"
        else:
            self._key = f'({joined_in_source(key) if len(key) > 1 else key[0]}) COLLATE "C"'
            self._type = "text[]"
        self._digest = f"md5({joined_in_source([*key, *self._texts])})"

    def count(self) -> int:
        """The number of rows."""
        ((rows,),) = self._stream(f"SELECT count(*) FROM {self._table}", {})
        return int(rows)

    def split(self, places: Places, size: int) -> Mapping[int, Sequence[tuple[Key, Summary]]]:
        """See `ranges.SplitSource`."""
        query = f"""
            SELECT stretch, min(key), count(*), {_SUMS}
            FROM (
                SELECT
                    stretch, key, digest,
                    (row_number() OVER (PARTITION BY stretch ORDER BY key) - 1) / %(size)s AS part
                FROM (
                    SELECT {self._key} AS key, {self._digest} AS digest, {self._stretch} AS stretch FROM {self._table}
                ) AS whole
                WHERE stretch = ANY(%(numbers)s)
            ) AS numbered
            GROUP BY stretch, part ORDER BY stretch, part"""
        found: dict[int, list[tuple[Key, Summary]]] = {}
        for number, low, rows, *sums in self._stream(query, {"size": size, **_parameters(places)}):
            found.setdefault(number, []).append((low, Summary(rows, tuple(sums))))
        return found

    def rows(self, places: Places) -> Iterator[TextRow]:
        """The rows of some ranges, in the order of their keys; a few of them are in memory."""
        return self._rows(f"{self._stretch} = ANY(%(numbers)s)", _parameters(places))

    def rows_of(self, keys: Sequence[Key]) -> Iterator[TextRow]:
        """The rows of these keys, likewise."""
        return self._rows(f"{self._key} = ANY(%(keys)s::{self._type})", {"keys": list(keys)})

    @property
    def _stretch(self) -> str:
        return f"width_bucket({self._key}, %(bounds)s::{self._type})"

    def _rows(self, condition: str, parameters: Mapping[str, Any]) -> Iterator[TextRow]:
        columns = ", ".join([self._key, *self._texts])
        query = f"SELECT {columns} FROM {self._table} WHERE {condition} ORDER BY 1"
        for key, *texts in self._stream(query, parameters):
            yield TextRow(key, tuple(texts))

    def _stream(self, query: str, parameters: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        with self._connection.cursor(name="reconcile") as cursor:
            cursor.itersize = _ROWS_AT_ONCE
            yield from cursor.execute(query.encode(), parameters)


def _parameters(places: Places) -> dict[str, Any]:
    return {"bounds": list(places.bounds), "numbers": list(places.numbers)}


def _text(one: SharedColumn) -> str:
    return _escaped(one.rule.source.replace("{c}", sql.Identifier(one.column.name).as_string()))


def _escaped(text: str) -> str:
    """SQL that psycopg fills parameters in."""
    return text.replace("%", "%%")
