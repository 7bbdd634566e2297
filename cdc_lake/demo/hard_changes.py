"""Difficult changes to the sample's tables film and customer, which often break consumers of change events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Final
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

QUIET_EVERY: Final = 10
"""Rows whose key is a multiple of this never change, so silver must keep their snapshot values."""

Generate = Callable[[Random], object]

_TEXTS: Final = (
    "",
    " ",
    "trailing space ",
    "O'Brien",
    'say "no"',
    "back\\slash",
    "tab\tline\nreturn\r",
    "NULL",
    "null",
    "{1,NULL}",
    "Ærøskøbing",
    "東京 🎬",
    "e\u0301 is not \u00e9",
    "עברית",
    "0",
)


def _text(random: Random) -> str:
    return f"{random.choice(_TEXTS)}{random.choice(('', random.randrange(1000)))}"


def _wide(random: Random) -> str:
    """Incompressible text that Postgres stores outside the row."""
    return " ".join(f"{random.getrandbits(128):032x}" for _ in range(random.randrange(90, 150)))


def _number(digits: int) -> Generate:
    limit = 10**digits - 1
    return lambda random: Decimal(random.choice((0, 1, -1, limit, -limit, random.randint(-limit, limit)))).scaleb(-2)


def _date(random: Random) -> date:
    return random.choice((date(1905, 2, 28), date(2024, 2, 29), date(1905, 1, 1) + timedelta(random.randrange(50_000))))


def _moment(random: Random) -> datetime:
    return datetime(1905, 1, 1) + timedelta(random.randrange(50_000), microseconds=random.randrange(86_400_000_000))


def _json(random: Random) -> Jsonb:
    value = {"text": _text(random), "number": random.randint(-(2**60), 2**60), "list": [None, True, 1.5, {}]}
    return Jsonb(random.choice((value, {}, [], None, "text", -0.25)))


def _features(random: Random) -> list[str | None]:
    return [random.choice((None, _text(random))) for _ in range(random.randrange(4))]


def _or_null(generate: Generate) -> Generate:
    return lambda random: None if random.random() < 0.2 else generate(random)


@dataclass(frozen=True)
class WorkloadTable:
    """A table for the workload: `narrow` and `wide` columns, with generators of their values."""

    name: str
    key: str
    narrow: Mapping[str, Generate]
    wide: Mapping[str, Generate]


FILM: Final = WorkloadTable(
    "film",
    "film_id",
    {
        "title": _text,
        "release_year": _or_null(lambda random: random.randint(1901, 2155)),
        "language_id": lambda random: random.randrange(1, 7),
        "rental_duration": lambda random: random.randrange(3, 8),
        "rental_rate": _number(4),
        "length": _or_null(lambda random: random.randrange(-32768, 32768)),
        "replacement_cost": _or_null(_number(5)),
        "rating": _or_null(lambda random: random.choice(("G", "PG", "PG-13", "R", "NC-17"))),
        "premiere": _or_null(_date),
        "shown_at": _or_null(_moment),
        "attributes": _or_null(_json),
        "ext_id": _or_null(lambda random: UUID(int=random.getrandbits(128))),
    },
    {
        "description": lambda random: random.choice((None, "", _text(random), *[_wide(random)] * 5)),
        "poster": lambda random: random.choice((None, b"", random.randbytes(10), *[random.randbytes(3_000)] * 3)),
        "special_features": lambda random: random.choice((None, _features(random), [None, *_wide(random).split()])),
    },
)
CUSTOMER: Final = WorkloadTable(
    "customer",
    "customer_id",
    {
        "store_id": lambda random: random.randrange(1, 3),
        "address_id": lambda random: random.randrange(1, 603),
        "first_name": _text,
        "last_name": _text,
        "email": _or_null(lambda random: f"{random.randrange(10**6)}@example.org"),
        "activebool": lambda random: random.random() < 0.5,
        "create_date": _date,
        "active": _or_null(lambda random: random.randint(-(2**31), 2**31 - 1)),
    },
    {
        "notes": lambda random: random.choice((None, "", _text(random), *[_wide(random)] * 5)),
        "profile": lambda random: random.choice((None, _json(random), Jsonb({"wide": _wide(random)}))),
    },
)


class Player:
    """Makes transactions of every kind on one table."""

    def __init__(self, source: psycopg.Connection, table: WorkloadTable, random: Random) -> None:
        self.source = source
        self.table = table
        self.random = random
        rows = source.execute(f"SELECT {table.key} FROM {table.name} ORDER BY 1".encode()).fetchall()
        self.keys: list[int] = [key for (key,) in rows]
        self.next_key = self.keys[-1] + 1 if self.keys else 1
        self.keys = [key for key in self.keys if key % QUIET_EVERY]

    def insert(self) -> None:
        key = self._new_key()
        self._insert(key)
        self.keys.append(key)

    def update(self) -> None:
        """Update one to three narrow columns; for rows with wide values this sends placeholders."""
        self._update(self.any_key(), self._some(self.table.narrow))

    def delete(self) -> None:
        key = self.any_key()
        self._delete(key)
        self.keys.remove(key)

    def reinsert(self) -> None:
        """Delete a row and insert another one with the same key, in one transaction."""
        key = self.any_key()
        self._delete(key)
        self._insert(key)

    def key_change(self) -> None:
        """Change the primary key and few other columns; unchanged wide values are not sent under the new key."""
        key, new = self.any_key(), self._new_key()
        self._update(key, {self.table.key: new, **self._some(self.table.narrow)})
        self.keys[self.keys.index(key)] = new

    def several(self) -> None:
        """Update a row two to four times in one transaction, with one commit time."""
        key = self.any_key()
        for _ in range(self.random.randrange(2, 5)):
            self._update(key, self._some(self.table.narrow))

    def wide(self) -> None:
        """Update a wide column."""
        self._update(self.any_key(), self._some(self.table.wide))

    def wide_then_narrow(self) -> None:
        """Update a wide column, then a narrow one: the placeholder arrives after the value."""
        key = self.any_key()
        self._update(key, self._some(self.table.wide))
        self._update(key, self._some(self.table.narrow))

    def come_and_go(self) -> None:
        """Insert, update and delete a row in one transaction."""
        key = self._new_key()
        self._insert(key)
        self._update(key, self._some(self.table.narrow))
        self._delete(key)

    def any_key(self) -> int:
        """The key of a row that may change."""
        return self.random.choice(self.keys)

    def _new_key(self) -> int:
        key = self.next_key + (self.next_key % QUIET_EVERY == 0)
        self.next_key = key + 1
        return key

    def _some(self, columns: Mapping[str, Generate]) -> dict[str, object]:
        names = self.random.sample(sorted(columns), self.random.randint(1, min(3, len(columns))))
        return {name: columns[name](self.random) for name in names}

    def _row(self) -> dict[str, object]:
        return {name: make(self.random) for name, make in {**self.table.narrow, **self.table.wide}.items()}

    def _insert(self, key: int) -> None:
        row = self._row()
        columns, marks = ", ".join(row), ", ".join(["%s"] * len(row))
        statement = f"INSERT INTO {self.table.name} ({self.table.key}, {columns}) VALUES (%s, {marks})"
        self.source.execute(statement.encode(), [key, *row.values()])

    def _update(self, key: int, values: Mapping[str, object]) -> None:
        assignments = ", ".join(f"{name} = %s" for name in values)
        statement = f"UPDATE {self.table.name} SET {assignments} WHERE {self.table.key} = %s"
        self.source.execute(statement.encode(), [*values.values(), key])

    def _delete(self, key: int) -> None:
        self.source.execute(f"DELETE FROM {self.table.name} WHERE {self.table.key} = %s".encode(), [key])


_SHARES: Final = {
    Player.update: 30,
    Player.insert: 14,
    Player.several: 12,
    Player.wide_then_narrow: 10,
    Player.delete: 9,
    Player.wide: 8,
    Player.reinsert: 7,
    Player.key_change: 7,
    Player.come_and_go: 3,
}


class HardChanges:
    """Transactions that each make one kind of change to one table.

    Args:
        random: determines all changes.
    """

    def __init__(self, source: psycopg.Connection, random: Random) -> None:
        self.random = random
        self.film = Player(source, FILM, random)
        self.customer = Player(source, CUSTOMER, random)

    def make(self) -> str:
        (change,) = self.random.choices(tuple(_SHARES), tuple(_SHARES.values()))
        change(self.random.choice((self.film, self.customer)))
        return change.__name__
