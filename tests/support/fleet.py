"""A made-up fleet of tables for the screens of `cdc-lake status`, `cdc-lake plan` and a run."""

from datetime import UTC, datetime, timedelta
from typing import Any

from cdc_lake.operations.status import LastRun, Status, TableStatus
from cdc_lake.runs.report import Freshness

NAMES = ("orders", "customers", "order_items", "customer_addresses", "payments", "warehouse_stock_levels", "returns")
FAILURE = "{}: Kafka deleted offsets 12 to 40 before they were read; pass --accept-loss to record the gap"


def topics(number: int = 40) -> list[str]:
    return [f"shop.public.{NAMES[n % len(NAMES)]}_{n:02}" for n in range(number)]


def ran(layer: str, table: str, seconds_ago: float, *, failed: bool = False) -> LastRun:
    """A run that ended so long ago."""
    at = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    run = LastRun(layer=layer, run_id="0" * 32, started_at=at, ended_at=at, status="ok")
    why = {"status": "failed", "code": "CDC-400", "error": FAILURE.format(table)}
    return run.model_copy(update=why) if failed else run


def fleet(number: int = 40) -> Status:
    """A lake in which the fifth topic's bronze and the eighth's silver failed, and the third has quarantined records.
    The last topic's runs ended days ago.
    """
    tables = list[TableStatus]()
    for n, topic in enumerate(topics(number)):
        ago = 3 * 86400 if n == number - 1 else 40 + 60 * n
        same: dict[str, Any] = {"table": topic, "commit": 7, "behind_records": 0, "behind_seconds": 0, "lag_seconds": 0}
        bronze = TableStatus(**same, layer="bronze", quarantined=2 if n == 2 else 0)
        bronze.last_run = ran("bronze", topic, ago, failed=n == 4)
        silver = TableStatus(**same, layer="silver", quarantined=0, freshness=Freshness.of([(4.2, 10)]))
        silver.last_run = ran("silver", topic, ago, failed=n == 7)
        if n in (4, 7):
            bronze.behind_records = 1200 * n
            bronze.lag_seconds = silver.lag_seconds = 600.0 * n
        tables += [bronze, silver]
    gold = TableStatus(table="revenue_per_day", layer="gold", commit=3, lag_seconds=90.0)
    gold.last_run = ran("gold", gold.table, 7200)
    return Status(tables=[*tables, gold])
