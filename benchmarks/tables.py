"""`make bench-tables`: compare silver in Delta, Hudi and Iceberg, the latter two of both types, in one run.

The workload, the measurement and the check are those of `benchmarks.quick`.
"""

import time
from pathlib import Path

from benchmarks.contender import IN_OTHER_FORMATS
from benchmarks.log import ORDERS
from benchmarks.quick import OURS, Sizes, by_spark, measure, servers, show, silver_folder

SIZES = Sizes(snapshot=1_000_000, small_tables=8)


def show_files(name: str, folder: Path) -> None:
    """Print the large table's files, including those of older versions, and how long Spark takes to read it."""
    files = [file for file in folder.rglob("*") if file.is_file() and not file.name.endswith(".crc")]
    data = [file for file in files if ".parquet" in file.suffixes or ".log" in file.name]
    size = sum(file.stat().st_size for file in data) / 1e6
    seconds = []
    for _ in range(3):
        started = time.monotonic()
        by_spark(folder).write.format("noop").mode("overwrite").save()
        seconds.append(time.monotonic() - started)
    print(f"{name}: {len(data)} data files, {size:.0f} MB; read in {min(seconds):.2f} s; {len(files)} files in total")


def main() -> None:
    """Run the benchmark and print the table of docs/explanation/performance.md."""
    started = time.monotonic()
    with servers() as (folder, addresses):
        outcome = measure(folder, addresses, SIZES, (OURS, *IN_OTHER_FORMATS))
        for name in (OURS, *IN_OTHER_FORMATS):
            show_files(name, silver_folder(folder / name, ORDERS))
    show(outcome)
    print(f"{time.monotonic() - started:.0f} s in total")
    if wrong := {name: number for name, number in outcome.wrong.items() if number}:
        raise SystemExit(f"rows that differ from the log: {wrong}")


if __name__ == "__main__":
    main()
