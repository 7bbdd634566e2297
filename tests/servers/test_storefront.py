"""The storefront example: customers, orders and fulfilment as nested JSON, through a real broker to silver."""

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.setting_groups import patched

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import load_config
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.silver.run import run_silver

PARTITIONS = 3
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "customers": {
        "merge": {"keys": ["customerId"], "sequence_by": "version", "apply_as_deletes": "deleted"},
        "deletes": {"mode": "hard"},
        "value": {
            "columns": {
                "customerId": "string",
                "version": "bigint",
                "deleted": "boolean",
                "address": "struct<city:string,country:struct<code:string>>",
                "tags": "array<string>",
            }
        },
    },
    "orders": {
        "merge": {"keys": ["orderId"], "sequence_by": "updatedAt"},
        "value": {
            "columns": {
                "orderId": "bigint",
                "updatedAt": "timestamp",
                "lines": "array<struct<sku:string,qty:int,price:decimal(10,2)>>",
            }
        },
    },
    "fulfilment": {
        "merge": {"keys": ["orderId", "parcel"], "sequence_by": "day", "apply_as_deletes": "state = 'VOID'"},
        "value": {"columns": {"orderId": "bigint", "parcel": "int", "day": "date", "events": "map<string,timestamp>"}},
    },
}


def customers(rng: random.Random) -> Iterator[dict[str, Any]]:
    for version in range(1, 41):
        number = rng.randrange(8)
        yield {
            "customerId": f"C-{number}",
            "version": version,
            "deleted": rng.random() < 0.2,
            "name": f"name {version}",
            "address": {"city": rng.choice(["Łódź", "Bern"]), "country": {"code": "PL"}},
            "tags": [f"t{version}", "vip"],
        }


def orders(rng: random.Random) -> Iterator[dict[str, Any]]:
    for minute in range(50):
        yield {
            "orderId": rng.randrange(12),
            "updatedAt": f"2026-11-23T12:{minute:02}:00Z",
            "status": rng.choice(["NEW", "PAID", "SENT"]),
            "lines": [{"sku": f"S{n}", "qty": n + 1, "price": minute + 0.25} for n in range(rng.randrange(1, 4))],
        }


def fulfilment(rng: random.Random) -> Iterator[dict[str, Any]]:
    for day in range(1, 29):
        yield {
            "orderId": rng.randrange(4),
            "parcel": rng.randrange(2),
            "day": f"2026-11-{day:02}",
            "state": rng.choice(["PACKED", "SENT", "VOID"]),
            "events": {"packed": f"2026-11-{day:02}T08:00:00Z"},
        }


def newest(sent: list[dict[str, Any]], settings: Mapping[str, Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The expected rows: of each key the last event by the sequence, unless it deletes."""
    last = {
        tuple(one[name] for name in settings["merge"]["keys"]): one for one in sent
    }  # the events are created in the sequence's order
    return {key: one for key, one in last.items() if not one.get("deleted") and one.get("state") != "VOID"}


@pytest.mark.deep
def test_newest_state_of_every_entity_wins_in_any_event_order(
    spark: SparkSession, stack: Stack, tmp_path: Path
) -> None:
    servers, shop, rng = stack.endpoints["kafka"], f"shop{uuid4().hex[:6]}", random.Random(11)
    made = {"customers": customers, "orders": orders, "fulfilment": fulfilment}
    sent = {name: list(make(rng)) for name, make in made.items()}
    topics = {name: f"{shop}.public.{name}" for name in made}
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(one, PARTITIONS, 1) for one in topics.values()]).values():
        future.result()
    tables = {topics[name]: patched({"value": {"wire_format": "json"}}, own) for name, own in SETTINGS.items()}
    content = {"lake": {"root": "lake"}, "stack": {"folder": str(stack.folder)}, "tables": tables}
    (tmp_path / "cdc-lake.yml").write_text(yaml.safe_dump(content))
    config = load_config(tmp_path / "cdc-lake.yml")
    producer = Producer({"bootstrap.servers": servers})
    shuffled = {name: rng.sample(events, len(events)) for name, events in sent.items()}
    for half in (0, 1):
        for name, events in shuffled.items():
            middle = len(events) // 2
            for one in events[middle:] if half else events[:middle]:
                producer.produce(topics[name], json.dumps(one).encode(), partition=rng.randrange(PARTITIONS))
        assert producer.flush(30) == 0
        for report in (
            run_bronze(config, list(topics.values()), spark),
            run_silver(config, list(topics.values()), spark),
        ):
            assert report.exit_code == 0, report.model_dump_json(indent=2)
            assert not any(table_report.rows.get("quarantined") for table_report in report.tables)

    for name, settings in SETTINGS.items():
        expected = newest(sent[name], settings)
        path = f"{config.lake.root}/silver/{topics[name].replace('.', '/')}"
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        found = [row for row in rows if not row["__deleted"]]
        assert {tuple(row[key] for key in settings["merge"]["keys"]) for row in found} == expected.keys()
        for row in found:
            one = expected[tuple(row[key] for key in settings["merge"]["keys"])]
            assert json.loads(json.dumps(plain(row, one), default=str)) == one


def plain(found: Any, like: Any) -> Any:
    """A value read back, in the form of the JSON that was sent."""
    if isinstance(like, dict):
        pairs = dict(found) if isinstance(found, list) else found
        return {name: plain(pairs[name], part) for name, part in like.items()}
    if isinstance(like, list):
        assert len(found) == len(like)
        return [plain(one, part) for one, part in zip(found, like, strict=True)]
    if isinstance(like, float):
        return float(found)
    if isinstance(like, str) and not isinstance(found, str):
        return f"{found:%Y-%m-%dT%H:%M:%SZ}" if len(like) > 10 else f"{found:%Y-%m-%d}"
    return found
