"""Read the source: a snapshot of a Postgres database in one read-only transaction."""

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
from cdc_lake.reconcile.canonical import Key, Shared, SharedColumn, join_in_source
from cdc_lake.reconcile.comparison import RangeBuckets, Summary, TextRow

_OLDEST = 140_000
_ROWS_AT_ONCE = 500
_CONNECT_SECONDS = 10
_SUMS = ", ".join(f"sum(('x' || substr(digest, {at}, 8))::bit(32)::bigint)::bigint" for at in (1, 9, 17, 25))


@contextmanager
def open_snapshot(url: SecretStr, where: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection with a snapshot of the database, which stays the same inside the context.

    Args:
        url: libpq URL or `host=…` string. Messages never include it, nor libpq's errors about it.
        where: the database's name in messages.

    Raises:
        InfrastructureError: the database does not respond, rejects the login, or the connection breaks.
        ConfigError: the user may not read the table.
        UnsupportedError: the database is older than Postgres 14, or its encoding is not UTF-8.
    """
    tls = dict[str, Any]()
    try:
        tls = _required_tls(conninfo_to_dict(url.get_secret_value()))
        connection = psycopg.connect(url.get_secret_value(), connect_timeout=_CONNECT_SECONDS, **tls)
    except psycopg.Error as exc:
        todo = "check that it runs, and check host, user, password and database, then run again"
        if tls:
            todo += ". TLS is required for other hosts, unless the URL sets `sslmode`"
        raise InfrastructureError(where, f"cannot connect ({type(exc).__name__})", todo) from None
    try:
        with connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            # Otherwise operators and functions that users defined could replace Postgres's own.
            connection.execute("SET TIME ZONE 'UTC'; SET DATESTYLE = 'ISO'; SET search_path = pg_catalog")
            _check(connection, where)
            yield connection
    except psycopg.errors.InsufficientPrivilege as exc:
        raise ConfigError(where, "the user may not read the table", "grant the user SELECT") from exc
    except psycopg.Error as exc:
        what = f"a query failed with {type(exc).__name__} ({exc.sqlstate or 'connection lost'})"
        raise InfrastructureError(where, what, "check the database's log, then run again") from exc


def _required_tls(address: Mapping[str, Any]) -> dict[str, Any]:
    """libpq settings that require TLS for other hosts, unless address, environment or service file set a mode.

    Args:
        address: libpq's parameters.
    """
    is_set = {"sslmode", "service"} & address.keys() or {"PGSSLMODE", "PGSERVICE"} & os.environ.keys()
    hosts = address.get("hostaddr") or address.get("host") or os.environ.get("PGHOSTADDR") or os.environ.get("PGHOST")
    is_local = all(not host or host.startswith(("/", "@")) or is_loopback(host) for host in (hosts or "").split(","))
    return {} if is_set or is_local else {"sslmode": "require"}


def _check(connection: psycopg.Connection[Any], where: str) -> None:
    if connection.info.server_version < _OLDEST:
        raise UnsupportedError(where, "it is older than Postgres 14", "upgrade it to compare its tables")
    if connection.info.parameter_status("server_encoding") != "UTF8":
        raise UnsupportedError(where, "its encoding is not UTF-8", "use a database in UTF-8, which Debezium requires")


def lsn(connection: psycopg.Connection[Any]) -> int:
    """The current end of the database's log; all changes in the snapshot are before it."""
    query = (
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
        " - '0/0'::pg_lsn"
    )
    ((found,),) = connection.execute(query).fetchall()
    return int(found)


class SourceRows:
    """A table's rows as canonical texts, in the transaction of a connection.

    Args:
        connection: a connection in a transaction.
        shared: the columns to compare.
    """

    def __init__(self, connection: psycopg.Connection[Any], shared: Shared) -> None:
        self._connection = connection
        self._table = _escaped(shared.table.qualified)
        key = [_text(one) for one in shared.key]
        self._texts = [_text(one) for one in shared.others]
        if shared.has_number_as_key:
            self._key, self._type = _escaped(sql.Identifier(shared.key[0].column.name).as_string()), "int8[]"
        else:
            self._key = f'({join_in_source(key) if len(key) > 1 else key[0]}) COLLATE "C"'
            self._type = "text[]"
        self._digest = f"md5({join_in_source([*key, *self._texts])})"

    def count(self) -> int:
        """The number of rows."""
        ((rows,),) = self._stream(f"SELECT count(*) FROM {self._table}", {})
        return int(rows)

    def split(self, buckets: RangeBuckets, size: int) -> Mapping[int, Sequence[tuple[Key, Summary]]]:
        """See `comparison.SplitSource`."""
        query = f"""
            SELECT bucket, min(key), count(*), {_SUMS}
            FROM (
                SELECT
                    bucket, key, digest,
                    (row_number() OVER (PARTITION BY bucket ORDER BY key) - 1) / %(size)s AS part
                FROM (
                    SELECT {self._key} AS key, {self._digest} AS digest, {self._bucket} AS bucket FROM {self._table}
                ) AS whole
                WHERE bucket = ANY(%(numbers)s)
            ) AS numbered
            GROUP BY bucket, part ORDER BY bucket, part"""
        found: dict[int, list[tuple[Key, Summary]]] = {}
        for number, low, rows, *sums in self._stream(query, {"size": size, **_parameters(buckets)}):
            found.setdefault(number, []).append((low, Summary(rows, tuple(sums))))
        return found

    def rows(self, buckets: RangeBuckets) -> Iterator[TextRow]:
        """Stream the rows of some ranges in key order."""
        return self._rows(f"{self._bucket} = ANY(%(numbers)s)", _parameters(buckets))

    def rows_of(self, keys: Sequence[Key]) -> Iterator[TextRow]:
        """Stream the rows of these keys in key order."""
        return self._rows(f"{self._key} = ANY(%(keys)s::{self._type})", {"keys": list(keys)})

    @property
    def _bucket(self) -> str:
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


def _parameters(buckets: RangeBuckets) -> dict[str, Any]:
    return {"bounds": list(buckets.bounds), "numbers": list(buckets.numbers)}


def _text(one: SharedColumn) -> str:
    return _escaped(one.rule.source.replace("{c}", sql.Identifier(one.column.name).as_string()))


def _escaped(text: str) -> str:
    """Escape SQL for psycopg, which replaces parameters."""
    return text.replace("%", "%%")
