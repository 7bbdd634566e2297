"""The sample database, a DVD rental shop like Pagila with difficult values, and the workload on it."""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc_lake.demo.hard_changes import HardChanges
from cdc_lake.errors import InfrastructureError

logger = logging.getLogger(__name__)

Check = Callable[[], object]
_CHECK_SECONDS = 1.0

TABLES: Final = (
    *("language", "category", "actor", "country", "city", "address", "store"),
    *("film", "film_actor", "film_category", "customer", "inventory", "rental", "payment"),
)
ENVELOPE_TABLES: Final = ("customer", "rental")
"""Tables whose records are complete change events; those of others are flattened."""
SIGNAL_TABLE: Final = "debezium_signal"
GOLD: Final = {
    "film_revenue": """
        SELECT f.film_id, f.title, coalesce(c.name, '(none)') AS category,
            (SELECT count(DISTINCT r.rental_id) FROM inventory i JOIN rental r USING (inventory_id)
                JOIN payment p USING (rental_id) WHERE i.film_id = f.film_id) AS paid_rentals,
            (SELECT coalesce(sum(p.amount), 0) FROM inventory i JOIN rental r USING (inventory_id)
                JOIN payment p USING (rental_id) WHERE i.film_id = f.film_id) AS revenue
        FROM film f LEFT JOIN film_category USING (film_id) LEFT JOIN category c USING (category_id)""",
    "rentals_per_store_day": """
        SELECT store_id, (rental_date AT TIME ZONE 'UTC')::date AS day, count(*) AS rentals,
            count(DISTINCT customer_id) AS customers
        FROM rental JOIN inventory USING (inventory_id) GROUP BY 1, 2""",
    "customers_by_country": """
        SELECT country_id, country, (SELECT count(*) FROM customer JOIN address USING (address_id)
            JOIN city USING (city_id) WHERE city.country_id = country.country_id) AS customers
        FROM country WHERE country_id IN (SELECT country_id FROM city JOIN address USING (city_id)
            JOIN customer USING (address_id))""",
    "films_by_rating": "SELECT film_id, title, rating::text, rental_rate, replacement_cost FROM film",
    "sales_by_region": """
        SELECT CASE store_id WHEN 1 THEN 'Lethbridge' ELSE 'Unassigned' END AS region, window_start,
            window_start + interval '10 min' AS window_end, sum(amount) AS amount, count(*) AS payments
        FROM payment JOIN rental USING (rental_id) JOIN inventory USING (inventory_id), LATERAL (VALUES
            (date_bin('5 min', payment_date, '2022-01-01 UTC')),
            (date_bin('5 min', payment_date, '2022-01-01 UTC') - interval '5 min')) AS windows (window_start)
        GROUP BY 1, 2""",
}
"""Queries of the source for the expected content of the models in conf/gold."""

ENOUGH: Final = 1_500
"""Transactions after which the stream holds more than enough of every hard case."""

_SNAPSHOT_EVERY: Final = 500
"""Transactions between two incremental snapshots."""
_SNAPSHOT_TABLES: Final = ("film", "customer", "inventory", "film_actor")


def create(dsn_admin: str, database: str = "pagila", *, one_in: int = 1) -> str:
    """Create and load the sample database, unless it exists.

    Args:
        dsn_admin: libpq DSN or URL of any database of the server, with a user who may create databases.
        one_in: load one in this many rows of the large tables.

    Returns:
        The DSN of the sample database.
    """
    with psycopg.connect(dsn_admin, autocommit=True) as admin:
        known = admin.execute("SELECT FROM pg_database WHERE datname = %s", [database]).fetchone()
        if known is None:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    dsn = make_conninfo(dsn_admin, dbname=database)
    with psycopg.connect(dsn) as source:
        if source.execute("SELECT to_regclass('public.debezium_signal')").fetchone() == (None,):
            source.execute("SELECT set_config('demo.one_in', %s, false)", [str(one_in)])
            source.execute(Path(__file__).with_suffix(".sql").read_bytes())
            logger.info("database %s: created", database)
    return dsn


def wait_until_sent(
    dsn: str, slot: str, seconds: float, *, signal_table: str | None = None, check: Check = lambda: None
) -> None:
    """Wait until Kafka has acknowledged all changes made so far.

    Connect confirms a position in the source's log only when all records before it are in Kafka, and the end of a
    transaction only when another one follows. So this writes messages into the log after the changes.

    Args:
        slot: the connector's replication slot.
        signal_table: `<schema>.<table>`, to wait also for incremental snapshots, whose windows are written there.
        check: called once per second; its errors end the wait.

    Raises:
        InfrastructureError: the connector is too slow or not running.
    """
    deadline = time.monotonic() + seconds
    with psycopg.connect(dsn, autocommit=True) as source:
        _wait_for_slot(source, slot, deadline, check)
        windows = -1
        # A snapshot continues as long as the connector writes windows.
        while signal_table and windows != (windows := _windows(source, signal_table)):
            _wait_for_slot(source, slot, deadline, check)


def _windows(source: psycopg.Connection, signal_table: str) -> int:
    row = source.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(*signal_table.split(".")))).fetchone()
    return int(row[0]) if row else 0


def _wait_for_slot(source: psycopg.Connection, slot: str, deadline: float, check: Check) -> None:
    # The slot is inactive until the connector has finished its initial snapshot.
    asked = "SELECT active, confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    goal, checked = None, time.monotonic()
    while (now := time.monotonic()) < deadline:
        sent = source.execute("SELECT pg_logical_emit_message(true, 'cdc_lake', 'sent')").fetchone()
        is_active, is_reached = source.execute(asked, [goal, slot]).fetchone() or (False, None)
        if is_reached:
            return
        goal = goal or (is_active and sent and sent[0]) or None
        if now - checked >= _CHECK_SECONDS:
            check()
            checked = now
        time.sleep(0.2)
    raise InfrastructureError(f"slot {slot}", "Kafka does not have all changes in time", "see the log of Connect")


class Shop:
    """Transactions in all of the sample's tables.

    Args:
        random: decides everything.
    """

    def __init__(self, source: psycopg.Connection, random: Random) -> None:
        self.source = source
        self.random = random
        self.hard = HardChanges(source, random)
        self.made = 0
        self.next_key = {
            table: self._one(f"SELECT coalesce(max({table}_id), 0) + 1 FROM {table}")
            for table in ("actor", "inventory", "rental", "payment")
        }

    def make(self) -> str:
        self.made += 1
        if self.made % _SNAPSHOT_EVERY == 100:
            return self._ask_for_a_snapshot()
        (change,) = self.random.choices(tuple(_SHARES), tuple(_SHARES.values()))
        if change is HardChanges.make:
            return self.hard.make()
        change(self)
        return str(change.__name__)

    def rent(self) -> None:
        """A customer takes a film home, and pays."""
        rental = self._new("rental")
        at = self._moment()
        self._insert_rental(rental, at)
        self._pay(rental, at)

    def give_back(self) -> None:
        """A film comes back."""
        rental = self._near("rental", "return_date IS NULL")
        self._run("UPDATE rental SET return_date = %s WHERE rental_id = %s", self._moment(), rental)

    def correct(self) -> None:
        """The clerk mistypes and corrects: two updates of one rental in one transaction."""
        rental = self._near("rental")
        self._run("UPDATE rental SET return_date = NULL WHERE rental_id = %s", rental)
        self._run("UPDATE rental SET return_date = %s WHERE rental_id = %s", self._moment(), rental)

    def rent_another(self) -> None:
        """The wrong film was booked: the rental is deleted and comes back under its number, in one transaction."""
        rental, at = self._near("rental"), self._moment()
        self._run("DELETE FROM rental WHERE rental_id = %s", rental)
        self._insert_rental(rental, at)
        self._pay(rental, at)

    def pay_late_fee(self) -> None:
        """A second payment for a rental."""
        self._pay(self._near("rental"), self._moment())

    def refund(self) -> None:
        """The payments of a rental are deleted."""
        self._run("DELETE FROM payment WHERE rental_id = %s", self._near("rental"))

    def postpone(self) -> None:
        """Another payment date: another primary key, and mostly another partition."""
        days = timedelta(self.random.randrange(-30, 31))
        self._run(
            "UPDATE payment SET payment_date = greatest(least(payment_date + %s, '2022-10-01'), '2022-03-01')"
            " WHERE rental_id = %s",
            days,
            self._near("rental"),
        )

    def reprice(self) -> None:
        """One new price for several films."""
        films = [self.hard.film.any_key() for _ in range(4)]
        price = Decimal(self.random.randrange(1, 1000)).scaleb(-2)
        self._run("UPDATE film SET rental_rate = %s WHERE film_id = ANY(%s)", price, films)

    def move_house(self) -> None:
        """A customer has another address, and a new mail address."""
        customer, number = self.hard.customer.any_key(), self.random.randrange(10_000)
        home = "(SELECT address_id FROM customer WHERE customer_id = %s)"
        self._run(f"UPDATE address SET address = %s WHERE address_id = {home}", f"{number} Moving Lane", customer)
        self._run("UPDATE customer SET email = %s WHERE customer_id = %s", f"moved.{number}@example.org", customer)

    def cast(self) -> None:
        """An actor joins a film's cast, or leaves it if already in."""
        part = (self._near("actor"), self.hard.film.any_key())
        if self._run("DELETE FROM film_actor WHERE actor_id = %s AND film_id = %s", *part) == 0:
            self._run("INSERT INTO film_actor (actor_id, film_id) VALUES (%s, %s)", *part)

    def reclassify(self) -> None:
        """A film's category, which is a part of the key."""
        category = self.random.randrange(1, 17)
        self._run("UPDATE film_category SET category_id = %s WHERE film_id = %s", category, self.hard.film.any_key())

    def renumber_actor(self) -> None:
        """An actor's key, and with it those of the parts played."""
        self._run("UPDATE actor SET actor_id = %s WHERE actor_id = %s", self._new("actor"), self._near("actor"))

    def rename_actor(self) -> None:
        """An actor's name."""
        self._run(
            "UPDATE actor SET last_name = %s WHERE actor_id = %s",
            f"NAME {self.random.randrange(1000)}",
            self._near("actor"),
        )

    def buy(self) -> None:
        """A new disc of a film."""
        film = self.hard.film.any_key()
        self._run(
            "INSERT INTO inventory (inventory_id, film_id, store_id) VALUES (%s, %s, %s)",
            self._new("inventory"),
            film,
            self.random.randrange(1, 3),
        )

    def discard(self) -> None:
        """A disc goes, and its rentals with it."""
        self._run("DELETE FROM inventory WHERE inventory_id = %s", self._near("inventory"))

    def _ask_for_a_snapshot(self) -> str:
        """Have the connector read a table again while it changes."""
        number = self.made // _SNAPSHOT_EVERY
        table = _SNAPSHOT_TABLES[number % len(_SNAPSHOT_TABLES)]
        order = f'{{"type": "incremental", "data-collections": ["public.{table}"]}}'
        name = f"workload-{self.random.getrandbits(64):016x}"
        self._run(f"INSERT INTO {SIGNAL_TABLE} VALUES (%s, 'execute-snapshot', %s)", name, order)
        return "incremental_snapshot"

    def _insert_rental(self, rental: int, at: datetime) -> None:
        self._run(
            "INSERT INTO rental (rental_id, rental_date, inventory_id, customer_id) VALUES (%s, %s, %s, %s)",
            rental,
            at,
            self._near("inventory"),
            self._near("customer"),
        )

    def _pay(self, rental: int, at: datetime) -> None:
        self._run(
            "INSERT INTO payment (payment_id, customer_id, rental_id, amount, payment_date)"
            " SELECT %s, customer_id, rental_id, %s, %s FROM rental WHERE rental_id = %s",
            self._new("payment"),
            Decimal(self.random.randrange(1, 1200)).scaleb(-2),
            at,
            rental,
        )

    def _moment(self) -> datetime:
        """Some time in the month after the sample's last."""
        return datetime(2022, 8, 1, tzinfo=UTC) + timedelta(seconds=self.random.randrange(31 * 86_400))

    def _new(self, table: str) -> int:
        self.next_key[table] += 1
        return self.next_key[table] - 1

    def _near(self, table: str, condition: str = "true") -> int:
        """The key of some row: the first from a place chosen at random, or the first of all."""
        key = f"{table}_id"
        start = self.random.randrange(self._one(f"SELECT coalesce(max({key}), 0) + 1 FROM {table}"))
        first = f"SELECT min({key}) FROM {table} WHERE {condition}"
        return self._one(f"SELECT coalesce(({first} AND {key} >= {start}), ({first}))")

    def _one(self, query: str) -> int:
        row = self.source.execute(query.encode()).fetchone()
        assert row is not None, query
        number: int = row[0]
        return number

    def _run(self, statement: str, *values: object) -> int:
        """Run a statement; how many rows it changed."""
        return self.source.execute(statement.encode(), values).rowcount


_SHARES: Final[Mapping[Callable[..., object], int]] = {
    HardChanges.make: 40,
    Shop.rent: 12,
    Shop.give_back: 12,
    Shop.correct: 5,
    Shop.rent_another: 3,
    Shop.pay_late_fee: 3,
    Shop.refund: 3,
    Shop.postpone: 4,
    Shop.reprice: 4,
    Shop.move_house: 4,
    Shop.cast: 3,
    Shop.reclassify: 2,
    Shop.renumber_actor: 1,
    Shop.rename_actor: 2,
    Shop.buy: 2,
    Shop.discard: 1,
}
