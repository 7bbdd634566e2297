"""The bronze job with a fake broker and a fake registry: its two drivers compete for the table, not for Kafka."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.events import TABLE, FakeRegistry, Topic
from support.fakes import FakeBroker

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import load_config

MAX_ROWS = 3
"""Rows of a bronze batch; silver reads bronze's batches one by one."""
UNSENT = "__debezium_unavailable_value"


def servers() -> tuple[FakeBroker, FakeRegistry]:
    """A topic with changes of a few keys, in which every batch of `MAX_ROWS` builds on the one before."""
    topic, broker = Topic({"name": ["null", "string"], "note": ["null", "string"]}), FakeBroker()
    for record in (
        topic.change("c", 1, {"name": "one", "note": "long"}, lsn=10, ts_ms=10),
        topic.change("c", 2, {"name": "two"}, lsn=11, ts_ms=11),
        topic.change("c", 3, {"name": "three"}, lsn=12, ts_ms=12),
        topic.change("d", 2, lsn=30, ts_ms=30),
        topic.change("u", 1, {"name": "uno", "note": UNSENT}, lsn=31, ts_ms=31),
        topic.change("d", 3, lsn=32, ts_ms=32),
        topic.change("u", 2, {"name": "sent again"}, lsn=20, ts_ms=20),
        topic.change("c", 3, {"name": "drei"}, lsn=41, ts_ms=41),
        topic.change("c", 4, {"name": "four"}, lsn=42, ts_ms=42),
    ):
        broker.append(record)
    return broker, topic.registry


if __name__ == "__main__":
    broker, registry = servers()
    report = run_bronze(load_config(), [TABLE], source=broker, registry=registry)
    print(report.model_dump_json())
    sys.exit(report.exit_code)
