"""A workload for any database, which only uses the database's catalog."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

import psycopg
from psycopg import sql

from cdc_lake.reconcile.postgres_catalog import SourceColumn, SourceTable

_KEYS_AT_MOST: Final = 2_000
"""Maximum number of rows per table that the workload changes."""
Key = tuple[str, ...]


class AnyChanges:
    """Transactions that each make one kind of change to one table.

    Changes that the database rejects by a foreign key, check or trigger are rolled back and counted as `refused`, and
    so are changes that would empty a table.

    Args:
        tables: the tables to change.
        source: their database.
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
        self.keys: list[Key] = source.execute(rows.encode(), ()).fetchall()

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

    def _any_key(self) -> Key:
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

    def _update(self, key: Key) -> None:
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

    def _run(self, statement: str, *values: str) -> Key | None:
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
