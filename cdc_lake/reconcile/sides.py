"""Read both sides of a comparison: a Postgres database and a silver table.

The source is read in a snapshot, in one read-only transaction, and the live rows of silver from one version.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import DELETED, UNAVAILABLE, quoted
from cdc_lake.config import is_loopback
from cdc_lake.errors import ConfigError, InfrastructureError, UnsupportedError
from cdc_lake.reconcile.canonical import Key, Shared, SharedColumn, join_in_silver, join_in_source
from cdc_lake.reconcile.comparison import RangeBuckets, Summary, TextRow

_OLDEST = 140_000
_SOURCE_ROWS_AT_ONCE, _SILVER_ROWS_AT_ONCE = 500, 1_000
_CONNECT_SECONDS = 10
_SUMS = ", ".join(f"sum(('x' || substr(digest, {at}, 8))::bit(32)::bigint)::bigint" for at in (1, 9, 17, 25))
_POSITION = "__source_position"


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
        cure = "check that it runs, and check host, user, password and database, then run again"
        if tls:
            cure += ". TLS is required for other hosts, unless the URL sets `sslmode`"
        raise InfrastructureError(where, f"cannot connect ({type(exc).__name__})", cure) from None
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


def lsn_of_source(connection: psycopg.Connection[Any]) -> int:
    """The current end of the database's log; all changes in the snapshot are before it."""
    query = (
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END"
        " - '0/0'::pg_lsn"
    )
    ((lsn,),) = connection.execute(query).fetchall()
    return int(lsn)


class SourceRows:
    """A table's rows as canonical texts, in the transaction of a connection."""

    def __init__(self, connection: psycopg.Connection[Any], shared: Shared) -> None:
        self._connection = connection
        self._table = _escaped(shared.table.qualified)
        key = [_text_in_source(shared_column) for shared_column in shared.key]
        self._texts = [_text_in_source(shared_column) for shared_column in shared.others]
        if shared.has_number_as_key:
            self._key, self._type = _escaped(sql.Identifier(shared.key[0].column.name).as_string()), "int8[]"
        else:
            self._key = f'({join_in_source(key) if len(key) > 1 else key[0]}) COLLATE "C"'
            self._type = "text[]"
        self._digest = f"md5({join_in_source([*key, *self._texts])})"

    def count(self) -> int:
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
        parts: dict[int, list[tuple[Key, Summary]]] = {}
        for number, low, rows, *sums in self._stream(query, {"size": size, **_parameters(buckets)}):
            parts.setdefault(number, []).append((low, Summary(rows, tuple(sums))))
        return parts

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
            cursor.itersize = _SOURCE_ROWS_AT_ONCE
            yield from cursor.execute(query.encode(), parameters)


def _parameters(buckets: RangeBuckets) -> dict[str, Any]:
    return {"bounds": list(buckets.bounds), "numbers": list(buckets.numbers)}


def _text_in_source(shared_column: SharedColumn) -> str:
    return _escaped(shared_column.rule.source.replace("{c}", sql.Identifier(shared_column.column.name).as_string()))


def _escaped(text: str) -> str:
    """Escape SQL for psycopg, which replaces parameters."""
    return text.replace("%", "%%")


def lsn_of_silver(rows: DataFrame) -> int | None:
    """The highest position in Postgres's log of the changes in a silver table, including deletes."""
    ((lsn,),) = rows.agg(F.max(F.col(_POSITION)[0])).collect()
    return None if lsn is None else int(lsn)


class SilverRows:
    """A table's rows as canonical texts.

    Args:
        rows: the rows of one version, including silver's own columns.
    """

    def __init__(self, rows: DataFrame, shared: Shared) -> None:
        live = rows.where(~F.col(DELETED).eqNullSafe(True))
        key, texts = ([_text_in_silver(one) for one in columns] for columns in (shared.key, shared.others))
        self._type = "bigint" if shared.has_number_as_key else "string"
        one_key = key[0].cast(self._type) if len(key) == 1 else join_in_silver(key)
        self._digests = live.select(one_key.alias("key"), F.md5(join_in_silver([*key, *texts])).alias("digest"))
        names = [text.alias(f"_{number}") for number, text in enumerate(texts)]
        self._texts = live.select(one_key.alias("key"), F.col(UNAVAILABLE).alias("unavailable"), *names)

    def sum(self, buckets: RangeBuckets) -> Mapping[int, Summary]:
        """See `comparison.SumSilver`."""
        parts = (F.conv(F.substring("digest", at, 8), 16, 10).cast("bigint") for at in (1, 9, 17, 25))
        by_bucket = self._in(self._digests, buckets).groupBy("bucket").agg(F.count("*"), *map(F.sum, parts))
        return {number: Summary(rows, tuple(sums)) for number, rows, *sums in by_bucket.collect()}

    def rows(self, buckets: RangeBuckets, number: int) -> Iterator[TextRow]:
        """Stream the rows of some ranges in key order, about a thousand at a time.

        Args:
            number: estimated number of rows.
        """
        rows = self._in(self._texts, buckets).drop("bucket")
        partitions = max(math.ceil(number / _SILVER_ROWS_AT_ONCE), 1)
        ordered = rows.repartitionByRange(partitions, "key").sortWithinPartitions("key")
        return map(_text_row, ordered.toLocalIterator())

    def rows_of(self, keys: Sequence[Key]) -> Iterator[TextRow]:
        """The rows of these keys, in key order."""
        rows = self._texts.where(F.col("key").isin(list(keys))).collect()
        return iter(sorted(map(_text_row, rows), key=lambda row: row.key))

    def _in(self, rows: DataFrame, buckets: RangeBuckets) -> DataFrame:
        numbered = rows.withColumn("bucket", self._bucket(buckets.bounds))
        is_all = len(buckets.numbers) > len(buckets.bounds)
        return numbered if is_all else numbered.where(F.col("bucket").isin(list(buckets.numbers)))

    def _bucket(self, bounds: Sequence[Key]) -> Column:
        """The number of a key's bucket, int, by binary search in `bounds`."""
        if not bounds:
            return F.lit(0)
        # One JSON literal: Spark takes long to plan a thousand literals.
        sorted_bounds = F.from_json(F.lit(json.dumps(list(bounds))), f"array<{self._type}>")
        steps = F.array(*(F.lit(1 << bit) for bit in reversed(range(len(bounds).bit_length()))))
        return F.aggregate(
            steps,
            F.lit(0),
            lambda at, step: F.when(F.get(sorted_bounds, at + step - 1) <= F.col("key"), at + step).otherwise(at),
        )


def _text_in_silver(shared_column: SharedColumn) -> Column:
    return F.coalesce(*(rule.silver(F.col(quoted(name))) for name, rule in shared_column.rules.items()))


def _text_row(row: Sequence[object]) -> TextRow:
    key, unavailable, *texts = row
    return TextRow(key, tuple(texts), tuple(unavailable or ()))  # type: ignore[arg-type]
