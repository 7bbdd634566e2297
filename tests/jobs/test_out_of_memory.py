"""Drivers with little memory: batches are bounded in bytes; a JVM that runs out of memory or dies ends with CDC-101."""

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
from layers_of_large_records import BYTES
from submitting import CHECKOUT, Submit
from support.events import TABLE

from cdc_lake.demo.jobs import SMALL_JVM


def run_driver(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A driver with little memory, in its own process, and a lake in `<folder>/lake`."""
    kept = {name: one for name, one in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "CDC_LAKE"))}
    return subprocess.run(
        [sys.executable, Path(__file__).with_name(program)],
        env={
            **kept,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(CHECKOUT),
            "CDC_LAKE__LAKE__ROOT": str(folder / "lake"),
            "PYSPARK_SUBMIT_ARGS": f"--master local[2] --driver-memory 640m "
            f"--conf 'spark.driver.extraJavaOptions={SMALL_JVM}' pyspark-shell",
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def dead_jvm_error(done: subprocess.CompletedProcess[str]) -> str:
    """The error that a driver printed when its JVM had exited."""
    assert done.returncode == 1, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error CDC-")]
    assert len(errors) == 1, errors
    assert errors[0].startswith("error CDC-101")
    assert "the driver's heap is 6" in errors[0] and "spark.driver.memory" in errors[0]
    return errors[0]


def reported_tables(folder: Path) -> dict[str, str]:
    """The status of each table in the only report of a lake."""
    (file,) = (folder / "lake" / "_runs").glob("*.json")
    return {table["table"]: table["status"] for table in json.loads(file.read_text())["tables"]}


def test_dead_jvm_exits_1_and_finished_tables_are_reported(tmp_path: Path) -> None:
    done = run_driver("bronze_out_of_memory.py", tmp_path)

    assert f"{LARGE}: the driver's JVM has exited" in dead_jvm_error(done)
    assert reported_tables(tmp_path) == {TABLE: "ok", LARGE: "failed", LAST: "waiting"}


@pytest.mark.core
def test_reconcile_with_a_dead_jvm_writes_its_report(tmp_path: Path) -> None:
    tables = ["shop.public.item", "shop.public.order"]
    for table in tables:
        (tmp_path / "lake" / "bronze" / table.replace(".", "/") / "_delta_log").mkdir(parents=True)

    done = run_driver("reconcile_without_jvm.py", tmp_path)

    assert f"{tables[0]}: the driver's JVM has exited" in dead_jvm_error(done)
    assert reported_tables(tmp_path) == {tables[0]: "failed", tables[1]: "waiting"}


@pytest.mark.parametrize("records", [12, pytest.param(60, marks=pytest.mark.deep)])
def test_many_large_records_land_with_a_heap_of_1_gb(submit: Submit, lake: Path, records: int) -> None:
    job = Path(__file__).with_name("layers_of_large_records.py")

    ended = submit("bronze", before=("--driver-memory", "1g"), job=job, seconds=900, LARGE_RECORDS=str(records))

    assert ended.code == 0, ended.said[-4000:]
    bronze, silver = ended.report["bronze"], ended.report["silver"]
    assert (bronze["error"], silver["error"]) == (None, None)
    assert bronze["rows"]["ok"] == records
    assert min(bronze["batches"], silver["batches"]) > 1
    assert silver_lengths(lake / "silver" / Path(*TABLE.split("."))) == [(BYTES, records)]


def silver_lengths(table: Path) -> list[tuple[int, int]]:
    """The lengths of the texts in silver, with the number of rows; read by delta-rs and DuckDB, file by file."""
    files = DeltaTable(str(table)).file_uris()
    found = (duckdb.sql(f"SELECT length(name) FROM read_parquet('{file}')").fetchall() for file in files)
    return sorted(Counter(length for rows in found for (length,) in rows).items())
