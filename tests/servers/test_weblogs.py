"""The web log example: JSON lines in a topic of a real broker, appended, with the date as a partition."""

import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import load_config
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.run import run_silver


def request(number: int) -> dict[str, Any]:
    """A line of the log; every seventh is an error, over three days."""
    day, second = 21 + number // 40, number % 60
    return {
        "session_id": f"s-{number % 5}",
        "method": "GET" if number % 3 else "POST",
        "status": 500 if number % 7 == 0 else 200,
        "meta_producer": {"timestamp": f"2026-11-{day}T08:15:{second:02}Z"},
        "url": f"/görli/{number}",
    }


def test_web_server_log_is_appended_by_date(spark: SparkSession, stack: Stack, tmp_path: Path) -> None:
    servers, topic = stack.endpoints["kafka"], f"web.requests.t{uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    own = {
        "merge": {
            "mode": "append",
            "derive": {"date": "substr(meta_producer.timestamp, 1, 10)", "kafka_offset": "meta.kafka.offset"},
        },
        "value": {"wire_format": "json", "columns": {"status": "int", "meta_producer": "struct<timestamp:string>"}},
        "storage": [{"format": "delta", "partition_by": ["date"]}],
    }
    content = {"lake": {"root": "lake"}, "stack": {"folder": str(stack.folder)}, "tables": {topic: own}}
    (tmp_path / "cdc-lake.yml").write_text(yaml.safe_dump(content))
    config, producer = load_config(tmp_path / "cdc-lake.yml"), Producer({"bootstrap.servers": servers})

    def take() -> tuple[TableReport, TableReport]:
        (landed,), (folded,) = (run(config, [topic], spark).tables for run in (run_bronze, run_silver))
        assert (landed.error, folded.error) == (None, None)
        return landed, folded

    sent = {}
    for part in (range(60), range(60, 120)):
        for number in part:
            producer.produce(topic, json.dumps(request(number)).encode(), partition=number % 2)
            sent[number % 2, number // 2 + (number >= 60)] = request(number)
        if part.start == 0:  # a truncated line in each partition
            for partition in (0, 1):
                producer.produce(topic, b'{"session_id": "s-', partition=partition)
        assert producer.flush(30) == 0
        landed, folded = take()
        assert (folded.rows["appended"], landed.rows["quarantined"]) == (60, 0 if part.start else 2)

    table = DeltaTable(f"{config.lake.root}/silver/{topic.replace('.', '/')}")
    rows = table.to_pyarrow_table().to_pylist()
    found = {(row["meta"]["kafka"]["partition"], row["kafka_offset"]): row for row in rows}
    assert len(rows) == len(found) == 120
    for place, one in sent.items():
        row = found[place]
        assert {name: row[name] for name in one} == one
        assert row["date"] == one["meta_producer"]["timestamp"][:10]
        assert row["meta"]["kafka"]["topic"] == topic
    days = Counter(row["date"] for row in rows)
    assert days == {"2026-11-21": 40, "2026-11-22": 40, "2026-11-23": 40}
    (partition,) = table.metadata().partition_columns
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {file[f"partition.{partition}"] for file in files} == set(days)
    assert [report.status for report in take()] == ["unchanged", "unchanged"]  # an idle topic: the run ends
