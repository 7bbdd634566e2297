"""The first source: two tables of Pagila with hard values, and a workload that changes them in hard ways.

Everything but `last_update` follows from the seed, so that a failing run can be repeated.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

logger = logging.getLogger(__name__)

TRANSACTIONS: Final = 1_000
"""Enough for a demo: hundreds of updates, and dozens of deletes, ties, key changes and placeholders."""

QUIET_EVERY: Final = 10
"""Rows whose key is a multiple of this never change: what the snapshot said of them must stay."""

Generate = Callable[[Random], object]


def create(dsn_admin: str, database: str = "pagila") -> str:
    """Create the sample database and load it; one that is loaded already is left alone.

    Args:
        dsn_admin: libpq DSN or URL of any database of the server, of a user who may create databases.
        database: name of the database to create.

    Returns:
        The DSN of the sample database.
    """
    with psycopg.connect(dsn_admin, autocommit=True) as admin:
        known = admin.execute("SELECT FROM pg_database WHERE datname = %s", [database]).fetchone()
        if known is None:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    dsn = make_conninfo(dsn_admin, dbname=database)
    with psycopg.connect(dsn) as source:
        if source.execute("SELECT to_regclass('public.customer')").fetchone() == (None,):
            source.execute(Path(__file__).with_suffix(".sql").read_bytes())
            logger.info("database %s: created", database)
    return dsn


def wait_until_sent(dsn: str, slot: str, seconds: float) -> None:
    """Return when Kafka has acknowledged every change made so far.

    Connect confirms a place in the source's log only once all records before it are in Kafka, and it confirms the end
    of a transaction only when the next one follows; so messages of our own are written into the log behind the
    changes.

    Args:
        dsn: DSN of the source.
        slot: the connector's replication slot.
        seconds: how long to wait.

    Raises:
        TimeoutError: the connector does not keep up, or does not run.
    """
    deadline = time.monotonic() + seconds
    with psycopg.connect(dsn, autocommit=True) as source:
        reached = source.execute("SELECT pg_current_wal_lsn()").fetchone()
        asked = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        while time.monotonic() < deadline:
            source.execute("SELECT pg_logical_emit_message(true, 'cdc_lake', 'sent')")
            if source.execute(asked, [reached and reached[0], slot]).fetchone() == (True,):
                return
            time.sleep(0.2)
    raise TimeoutError(f"slot {slot}: Kafka does not have all changes after {seconds:.0f} s")


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
    """Text that cannot be compressed and is too long for the row itself."""
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
class _Table:
    """What the workload knows of a table: `narrow` and `wide` columns, and how to make their values."""

    name: str
    key: str
    narrow: Mapping[str, Generate]
    wide: Mapping[str, Generate]


_FILM: Final = _Table(
    "film",
    "film_id",
    {
        "title": _text,
        "release_year": _or_null(lambda random: random.randint(1901, 2155)),
        "language_id": lambda random: random.choice((-32768, 32767, 1, 2)),
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
_CUSTOMER: Final = _Table(
    "customer",
    "customer_id",
    {
        "store_id": lambda random: random.randrange(1, 3),
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


class _Player:
    """Plays transactions of every kind on one table."""

    def __init__(self, source: psycopg.Connection, table: _Table, random: Random) -> None:
        self.source = source
        self.table = table
        self.random = random
        found = source.execute(f"SELECT {table.key} FROM {table.name} ORDER BY 1".encode()).fetchall()
        self.keys: list[int] = [key for (key,) in found]
        self.next_key = self.keys[-1] + 1 if self.keys else 1
        self.keys = [key for key in self.keys if key % QUIET_EVERY]

    def insert(self) -> None:
        """One new row."""
        key = self._new_key()
        self._insert(key)
        self.keys.append(key)

    def update(self) -> None:
        """One to three columns, never a wide one: on a wide row this sends placeholders."""
        self._update(self._any_key(), self._some(self.table.narrow))

    def delete(self) -> None:
        """One row, for good."""
        key = self._any_key()
        self._delete(key)
        self.keys.remove(key)

    def reinsert(self) -> None:
        """A row is deleted and its key comes back with another row, in one transaction."""
        key = self._any_key()
        self._delete(key)
        self._insert(key)

    def key_change(self) -> None:
        """The primary key and little else: wide values that stay are not sent under the new key."""
        key, new = self._any_key(), self._new_key()
        self._update(key, {self.table.key: new, **self._some(self.table.narrow)})
        self.keys[self.keys.index(key)] = new

    def several(self) -> None:
        """Two to four updates of one row in one transaction: they share one commit time."""
        key = self._any_key()
        for _ in range(self.random.randrange(2, 5)):
            self._update(key, self._some(self.table.narrow))

    def wide(self) -> None:
        """A new value in a wide column."""
        self._update(self._any_key(), self._some(self.table.wide))

    def wide_then_narrow(self) -> None:
        """A new wide value, then another column: the placeholder comes after the value it stands for."""
        key = self._any_key()
        self._update(key, self._some(self.table.wide))
        self._update(key, self._some(self.table.narrow))

    def come_and_go(self) -> None:
        """A row that lives within one transaction."""
        key = self._new_key()
        self._insert(key)
        self._update(key, self._some(self.table.narrow))
        self._delete(key)

    def _any_key(self) -> int:
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
    _Player.update: 30,
    _Player.insert: 14,
    _Player.several: 12,
    _Player.wide_then_narrow: 10,
    _Player.delete: 9,
    _Player.wide: 8,
    _Player.reinsert: 7,
    _Player.key_change: 7,
    _Player.come_and_go: 3,
}


def workload(dsn: str, *, seed: int, transactions: int = TRANSACTIONS) -> Counter[str]:
    """Change the sample's tables in every way that has ever confused a consumer of change events.

    Args:
        dsn: DSN of the sample database.
        seed: decides everything; the same seed on the same rows makes the same changes.
        transactions: how many to commit; each is of one kind and holds one to four changes of one table.

    Returns:
        How many transactions of each kind were committed.
    """
    random = Random(seed)
    done: Counter[str] = Counter()
    with psycopg.connect(dsn, autocommit=True) as source:
        players = [_Player(source, table, random) for table in (_FILM, _CUSTOMER)]
        for play in random.choices(tuple(_SHARES), tuple(_SHARES.values()), k=transactions):
            with source.transaction():
                play(random.choice(players))
            done[play.__name__] += 1
    logger.info("workload: seed %d, %d transactions", seed, transactions)
    return done
