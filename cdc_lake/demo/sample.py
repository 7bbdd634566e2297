"""The sample database: a DVD rental shop like Pagila, with difficult values."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

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


def create(dsn_admin: str, database: str = "pagila", *, one_in: int = 1) -> str:
    """Create and load the sample database, unless it exists.

    Args:
        dsn_admin: libpq DSN or URL of any database of the server, with a user who may create databases.
        database: name of the database to create.
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
        dsn: DSN of the source.
        slot: the connector's replication slot.
        seconds: how long to wait.
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
