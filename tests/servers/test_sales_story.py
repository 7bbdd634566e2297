"""The sales example: events that are appended, counted over sliding windows by gold, and sent to a topic in Avro."""

import json
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession
from support.topics import SinkTopic

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import load_config
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.gold.run import run_gold
from cdc_lake.silver.run import run_silver

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
LENGTH, SLIDE = timedelta(minutes=10), timedelta(minutes=5)
MODEL = """\
-- name: sales_by_window
-- keys: [store, window_start]
-- sources: {{sale: {sales}}}
-- topic: {{topic: {topic}, partitions: 2}}
SELECT store, window.start AS window_start, sum(amount) AS amount, count(*) AS sales
FROM (SELECT store, amount, window(sold_at, '10 minutes', '5 minutes') AS window FROM sale)
GROUP BY store, window
"""


def expected(sales: list[dict[str, Any]]) -> dict[tuple[str, datetime], tuple[Decimal, int]]:
    """Each sale is in the windows that begin at most ten minutes before it."""
    found: dict[tuple[str, datetime], list[Decimal]] = defaultdict(list)
    for sale in sales:
        at = datetime.fromisoformat(sale["sold_at"])
        start = NOON + (at - NOON) // SLIDE * SLIDE
        for begin in (start, start - SLIDE):
            assert begin <= at < begin + LENGTH
            found[sale["store"], begin].append(Decimal(str(sale["amount"])))
    return {key: (sum(amounts, Decimal()), len(amounts)) for key, amounts in found.items()}


@pytest.mark.deep
def test_sales_over_sliding_windows(spark: SparkSession, stack: Stack, tmp_path: Path) -> None:
    servers, rng, unique = stack.endpoints["kafka"], random.Random(3), uuid4().hex[:6]
    source, topic = f"shop.till.sales{unique}", f"gold.sales_by_window-{unique}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(source, 2, 1)])[source].result()
    own = {
        "merge": {"mode": "append"},
        "value": {"wire_format": "json", "columns": {"sold_at": "timestamp", "amount": "decimal(10,2)"}},
    }
    content = {
        "lake": {"root": "lake"},
        "stack": {"folder": str(stack.folder)},
        "gold": {"models": "gold", "schemas": "schemas"},
        "tables": {source: own},
    }
    (tmp_path / "cdc-lake.yml").write_text(yaml.safe_dump(content))
    (tmp_path / "gold").mkdir()
    (tmp_path / "gold" / "sales_by_window.sql").write_text(MODEL.format(sales=source, topic=topic))
    config, producer = load_config(tmp_path / "cdc-lake.yml"), Producer({"bootstrap.servers": servers})
    place, sales = SinkTopic(stack, topic, tmp_path / "schemas"), list[dict[str, Any]]()

    for _ in range(2):
        for number in range(40):
            at = NOON + timedelta(seconds=rng.randrange(3600))
            sale = {"store": rng.choice("abc"), "sold_at": at.isoformat(), "amount": rng.randrange(400) / 4}
            producer.produce(source, json.dumps(sale).encode(), partition=number % 2)
            sales.append(sale)
        assert producer.flush(30) == 0
        for report in (
            run_bronze(config, [source], spark),
            run_silver(config, [source], spark),
            run_gold(config, ["sales_by_window"], spark),
        ):
            assert report.exit_code == 0, report.model_dump_json(indent=2)

        told = place.upserted()
        found = {key: (row["amount"], row["sales"]) for key, row in told.items()}
        assert found == expected(sales)
