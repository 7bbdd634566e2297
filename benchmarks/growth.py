"""`make bench-growth`: what a batch costs silver as the table grows, with copied files and with deletion vectors.

Both lakes are in one application and read the same topic. Their silver tables are made larger by Spark, with copies of
a row and new keys, because loading ten million events would take longer than the measurement. At the end, the rows of
all keys in the log are compared with it, and the other rows are counted.
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import contender
from benchmarks.cpu import cpu_seconds
from benchmarks.log import ORDERS, Log
from benchmarks.quick import environments, servers, silver_folder, wrong_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_lake.config import DeletionVectors

LAKES: Mapping[str, "DeletionVectors"] = {"copied files": "off", "deletion vectors": "on"}
_FIRST_ROWS, _BATCHES = 50_000, 3
_Case = tuple[int, str, str]
"""Rows of the table, keys of the changes, lake."""


def measure(folder: Path, log: Log, sizes: Sequence[int], events: int) -> dict[_Case, list[float]]:
    """CPU seconds of silver's batches.

    Args:
        folder: for the lakes.
        log: the log, still empty.
        sizes: the table's rows, ascending.
        events: of a batch.
    """
    from pyspark.sql import SparkSession

    takes = {
        name: [
            contender.cdc_lake(folder / name, layers=[layer], deletion_vectors=setting) for layer in contender.LAYERS
        ]
        for name, setting in LAKES.items()
    }
    log.create({ORDERS: 4})
    log.snapshot(ORDERS, _FIRST_ROWS)
    found = defaultdict[_Case, list[float]](list)
    for size, keys in _steps(log, sizes, events):
        for name, (bronze, silver) in takes.items():
            bronze([ORDERS])
            if size:
                _grow(SparkSession.active(), silver_folder(folder / name, ORDERS), size)
            before = cpu_seconds()
            silver([ORDERS])
            if keys:
                found[size, keys, name].append(cpu_seconds() - before)
                print(f"{size:,} rows, {keys}: {name} {found[size, keys, name][-1]:.1f} CPU s", flush=True)
    return found


def _steps(log: Log, sizes: Sequence[int], events: int) -> Iterator[tuple[int, str]]:
    """The rows that the table must have before a batch, and which keys change; the batch's events are sent before."""
    yield 0, ""
    for size in sizes:
        log.add_rows(ORDERS, size)
        for keys, newest in (("of all rows", None), ("of the newest 5 %", size // 20)):
            for _ in range(_BATCHES):
                log.steady(ORDERS, events, newest=newest)
                yield size, keys


def _grow(spark: "SparkSession", silver: Path, size: int) -> None:
    """Append copies of a row, with the keys up to `size`, if the table does not have them yet."""
    from pyspark.sql import functions as F

    rows = spark.read.format("delta").load(str(silver))
    ((last,),) = rows.agg(F.max("id")).collect()
    if last < size:
        copies = spark.range(last + 1, size + 1).crossJoin(F.broadcast(rows.limit(1).drop("id")))
        copies.select(*rows.columns).write.format("delta").mode("append").save(str(silver))


def wrong(log: Log, silver: Path) -> int:
    """Rows of keys in the log that differ from it, and other rows that are missing or surplus."""
    query = "SELECT id, customer, status, amount, note FROM silver WHERE NOT __deleted"
    found = pa.table(QueryBuilder().register("silver", DeltaTable(str(silver))).execute(query).read_all())
    texts = {pa.string_view(): pa.string()}  # PyArrow cannot filter views
    rows = found.cast(pa.schema([field.with_type(texts.get(field.type, field.type)) for field in found.schema]))
    sent = log.events(ORDERS, log.number(ORDERS))
    keys = pc.unique(sent["id"])
    known = rows.filter(pc.is_in(rows["id"], keys))
    copied = log.keys(ORDERS) - len(keys)
    return wrong_rows(sent, known) + abs(int(rows.num_rows - known.num_rows) - copied)


def show(found: Mapping[_Case, Sequence[float]]) -> None:
    """Print the batches' CPU seconds."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("rows")
    table.add_column("changed keys")
    for name in LAKES:
        table.add_column(name, justify="right")
    for size, keys in dict.fromkeys((size, keys) for size, keys, _ in found):
        seconds = (", ".join(f"{one:.1f}" for one in found[size, keys, name]) for name in LAKES)
        table.add_row(f"{size:,}", keys, *seconds)
    Console(width=80).print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="Merge into growing tables.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000, 10_000_000], help="rows of the table")
    parser.add_argument("--events", type=int, default=50_000, help="of a batch; up to 20,000 are interpreted")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    with servers() as (folder, addresses):
        ours, _ = environments(folder, addresses)
        os.environ |= ours
        log = Log(addresses["kafka"], addresses["registry"])
        show(measure(folder, log, options.sizes, options.events))
        found = {name: wrong(log, silver_folder(folder / name, ORDERS)) for name in LAKES}
    print(f"{time.monotonic() - started:.0f} s in total; wrong rows: {found}")
    if any(found.values()):
        raise SystemExit("rows differ from the log")


if __name__ == "__main__":
    main()
