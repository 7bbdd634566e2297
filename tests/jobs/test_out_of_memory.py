"""Drivers with little memory: batches are bounded in bytes, and a JVM without memory ends with CDC-101."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from bronze_out_of_memory import LARGE, LAST
from deltalake import DeltaTable
from layers_of_large_records import BYTES, RECORDS
from submitting import CHECKOUT, Submit
from support.events import TABLE

from cdc_lake.demo.jobs import SMALL_JVM


def test_dead_jvm_exits_1_and_finished_tables_are_reported(tmp_path: Path) -> None:
    kept = {name: one for name, one in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "CDC_LAKE"))}

    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("bronze_out_of_memory.py")],
        env={
            **kept,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(CHECKOUT),
            "CDC_LAKE__LAKE__ROOT": str(tmp_path / "lake"),
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] --driver-memory 640m "
            f"--conf 'spark.driver.extraJavaOptions={SMALL_JVM}' pyspark-shell",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    said = next(line for line in done.stderr.splitlines() if line.startswith("error CDC-101"))
    assert f"{LARGE}: the driver's JVM has exited" in said
    assert "the driver's heap is 6" in said and "spark.driver.memory" in said
    (file,) = (tmp_path / "lake" / "_runs").glob("*.json")
    tables = {table["table"]: table["status"] for table in json.loads(file.read_text())["tables"]}
    assert tables == {TABLE: "ok", LARGE: "failed", LAST: "waiting"}


@pytest.mark.deep
def test_many_large_records_land_with_a_heap_of_1_gb(submit: Submit, lake: Path) -> None:
    job = Path(__file__).with_name("layers_of_large_records.py")

    ended = submit("bronze", before=("--driver-memory", "1g"), job=job, seconds=900)

    assert ended.code == 0, ended.said[-4000:]
    bronze, silver = ended.report["bronze"], ended.report["silver"]
    assert (bronze["error"], silver["error"]) == (None, None)
    assert bronze["rows"]["ok"] == RECORDS
    assert min(bronze["batches"], silver["batches"]) > 1
    assert silver_lengths(lake / "silver" / Path(*TABLE.split("."))) == [(BYTES, RECORDS)]


def silver_lengths(table: Path) -> list[tuple[int, int]]:
    """The lengths of the texts in silver, with the number of rows; read by delta-rs and DuckDB, file by file."""
    files = DeltaTable(str(table)).file_uris()
    found = (duckdb.sql(f"SELECT length(name) FROM read_parquet('{file}')").fetchall() for file in files)
    return sorted(Counter(length for rows in found for (length,) in rows).items())
