"""`cdc-lake reconcile` on a million rows, in a separate process whose memory is measured."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from cdc_lake.columns import SILVER_META
from cdc_lake.config import load_config
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.runs.context import lake_of
from cdc_lake.tables.progress import SilverProgress

COMMAND = Path(sys.executable).with_name("cdc-lake")
ROWS = 1_000_000
TOPIC = "large.public.payment"
SOURCE = f"""
CREATE TABLE payment (id bigint PRIMARY KEY, name text, amount numeric(10,2), paid timestamptz, note text);
INSERT INTO payment
SELECT n, 'name ' || n, (n % 100000) / 100.0, timestamptz '2024-01-01Z' + n * interval '1 millisecond', md5(n::text)
FROM generate_series(1, {ROWS}) n
"""
HELD = (
    "id",
    "concat('name ', id) AS name",
    "CAST(id % 100000 / 100 AS decimal(10,2)) AS amount",
    "timestamp_micros(1704067200000000 + id * 1000) AS paid",
    "md5(CAST(id AS string)) AS note",
)
SMALL_DRIVER = "--driver-memory 480m --conf spark.driver.extraJavaOptions=-XX:+UseSerialGC pyspark-shell"


@pytest.fixture
def settings(stack: Stack, spark: SparkSession, tmp_path: Path) -> Path:
    """A million rows on both sides, one of them missing in silver, one extra and one changed."""
    url = stack.endpoints["postgres"]
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE large")
    with psycopg.connect(make_conninfo(url, dbname="large")) as source:
        source.execute(SOURCE)
        source.execute("UPDATE payment SET amount = amount + 0.01 WHERE id = 123456")
        source.execute("DELETE FROM payment WHERE id = 500000")
        source.execute(f"INSERT INTO payment VALUES ({ROWS + 1}, 'new')".encode())
    file = tmp_path / "cdc-lake.yml"
    file.write_text(yaml.safe_dump({"lake": {"root": "lake"}, "stack": {"folder": str(stack.folder)}}))
    config = load_config(file)
    Path(lake_of(config).path("bronze", TOPIC), "_delta_log").mkdir(parents=True)
    meta = {"__deleted": "false", "__source_position": "array(16L)"}
    rows = spark.range(1, ROWS + 1).selectExpr(
        *HELD, *(f"CAST({meta.get(name, 'null')} AS {kind}) AS {name}" for name, kind in SILVER_META.items())
    )
    (target,) = lake_of(config).silver(TOPIC)
    target.open(spark).overwrite(rows, SilverProgress(run_id="by hand", commit=1, keys=("id",)))
    return file


@pytest.mark.deep
def test_three_rows_in_a_million_are_found_in_under_1_gib(settings: Path) -> None:
    command = [str(COMMAND), "reconcile", "--table", TOPIC, "--config", str(settings), "--json"]
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": SMALL_DRIVER}
    peak = {"java": 0, "python": 0, "all": 0}
    started = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        while running.poll() is None:
            now = {"java": 0, "python": 0}
            for process in processes(running.pid):
                kind, size = rss(process)
                now[kind] = now.get(kind, 0) + size
            for kind, size in {**now, "all": sum(now.values())}.items():
                peak[kind] = max(peak.get(kind, 0), size)
            time.sleep(0.1)
        assert running.stdout is not None
        (report,) = json.loads(running.stdout.read())["tables"]
    print(f"\n{time.monotonic() - started:.0f} s, {report['seconds']}, MiB at most: {peak}")

    assert running.returncode == 30
    assert report["reconciled"]["first"] == [
        {"kind": "changed", "key": {"id": "123456"}, "columns": ["amount"]},
        {"kind": "extra", "key": {"id": "500000"}, "columns": []},
        {"kind": "missing", "key": {"id": str(ROWS + 1)}, "columns": []},
    ]
    assert (report["rows"]["source"], report["rows"]["silver"]) == (ROWS, ROWS)
    assert peak["all"] < 1024


def processes(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def rss(process: psutil.Process) -> tuple[str, int]:
    """The kind of a process, and its resident memory in MiB."""
    try:
        return ("java" if process.name() == "java" else "python"), process.memory_info().rss >> 20
    except psutil.NoSuchProcess:
        return "python", 0
