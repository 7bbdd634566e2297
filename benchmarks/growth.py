"""`make bench-growth`: what a batch costs silver as the table grows, with copied files and with deletion vectors.

All lakes are in one application and read the same topic. Tables in Delta are made larger by Spark, with copies of a row
and new keys, because loading ten million events would take longer than the measurement. Tables in Hudi (`--hudi`) are
loaded. At the end, the rows of all keys in the log are compared with it, and the other rows are counted.
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import contender
from benchmarks.cpu import cpu_seconds
from benchmarks.log import ORDERS, Log
from benchmarks.quick import environments, servers, silver_folder, silver_rows, wrong_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IN_DELTA: Mapping[str, Mapping[str, Any]] = {
    "copied files": {"deletion_vectors": "off"},
    "deletion vectors": {"deletion_vectors": "on"},
}
_IN_HUDI: Mapping[str, Mapping[str, Any]] = {
    "copy-on-write": {"table_type": "hudi-cow"},
    "merge-on-read": {"table_type": "hudi-mor"},
    "with buckets": {"table_type": "hudi-mor", "buckets": contender.BUCKETS},
}
"""Lakes, and how they store silver."""
_FIRST_ROWS, _BATCHES = 50_000, 3
_Case = tuple[int, str, str]
"""Rows of the table, keys of the changes, lake."""


def measure(
    folder: Path, lakes: Mapping[str, Mapping[str, Any]], log: Log, sizes: Sequence[int], events: int
) -> dict[_Case, list[float]]:
    """CPU seconds of silver's batches.

    Args:
        folder: for the lakes.
        lakes: how each stores silver.
        log: the log, still empty.
        sizes: the table's rows, ascending.
        events: of a batch.
    """
    from pyspark.sql import SparkSession

    takes = {
        name: [contender.cdc_lake(folder / name, layers=[layer], **settings) for layer in contender.LAYERS]
        for name, settings in lakes.items()
    }
    log.create({ORDERS: 4})
    log.snapshot(ORDERS, _FIRST_ROWS)
    found = defaultdict[_Case, list[float]](list)
    is_loaded = lakes is _IN_HUDI
    for size, keys in _steps(log, sizes, events, is_loaded=is_loaded):
        for name, (bronze, silver) in takes.items():
            bronze([ORDERS])
            if size and not is_loaded:
                _grow(SparkSession.active(), silver_folder(folder / name, ORDERS), size)
            before = cpu_seconds()
            silver([ORDERS])
            if keys:
                found[size, keys, name].append(cpu_seconds() - before)
                print(f"{size:,} rows, {keys}: {name} {found[size, keys, name][-1]:.1f} CPU s", flush=True)
    return found


def _steps(log: Log, sizes: Sequence[int], events: int, *, is_loaded: bool) -> Iterator[tuple[int, str]]:
    """The rows that the table must have before a batch, and which keys change; the batch's events are sent before.

    Args:
        is_loaded: whether all rows are sent as events.
    """
    yield 0, ""
    for size in sizes:
        if is_loaded:
            log.snapshot(ORDERS, size - log.keys(ORDERS))
            yield 0, ""
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
    sent = log.events(ORDERS, log.number(ORDERS))
    if (silver / ".hoodie").exists():
        rows = silver_rows(silver)
        return wrong_rows(sent, rows.filter(pc.invert(rows["__deleted"])))
    query = "SELECT id, customer, status, amount, note FROM silver WHERE NOT __deleted"
    found = pa.table(QueryBuilder().register("silver", DeltaTable(str(silver))).execute(query).read_all())
    texts = {pa.string_view(): pa.string()}  # PyArrow cannot filter views
    rows = found.cast(pa.schema([field.with_type(texts.get(field.type, field.type)) for field in found.schema]))
    keys = pc.unique(sent["id"])
    known = rows.filter(pc.is_in(rows["id"], keys))
    copied = log.keys(ORDERS) - len(keys)
    return wrong_rows(sent, known) + abs(int(rows.num_rows - known.num_rows) - copied)


def show(found: Mapping[_Case, Sequence[float]]) -> None:
    """Print the batches' CPU seconds."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("rows")
    table.add_column("changed keys")
    names = list(dict.fromkeys(name for _, _, name in found))
    for name in names:
        table.add_column(name, justify="right")
    for size, keys in dict.fromkeys((size, keys) for size, keys, _ in found):
        seconds = (", ".join(f"{one:.1f}" for one in found[size, keys, name]) for name in names)
        table.add_row(f"{size:,}", keys, *seconds)
    Console(width=80).print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="Merge into growing tables.")
    parser.add_argument("--hudi", action="store_true", help="measure Hudi's table types instead of Delta's")
    parser.add_argument("--sizes", type=int, nargs="+", help="rows of the table (1 and 10 million; Hudi: 0.1 and 1)")
    parser.add_argument("--events", type=int, default=50_000, help="of a batch; up to 20,000 are interpreted")
    options = parser.parse_args(arguments)
    lakes, sizes = (_IN_HUDI, [100_000, 1_000_000]) if options.hudi else (_IN_DELTA, [1_000_000, 10_000_000])
    started = time.monotonic()
    with servers() as (folder, addresses):
        ours, _ = environments(folder, addresses)
        os.environ |= ours
        log = Log(addresses["kafka"], addresses["registry"])
        show(measure(folder, lakes, log, options.sizes or sizes, options.events))
        found = {name: wrong(log, silver_folder(folder / name, ORDERS)) for name in lakes}
    print(f"{time.monotonic() - started:.0f} s in total; wrong rows: {found}")
    if any(found.values()):
        raise SystemExit("rows differ from the log")


if __name__ == "__main__":
    main()
