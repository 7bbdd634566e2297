"""`make bench-tables`: our own pipeline with silver in Delta, Hudi copy-on-write and Hudi merge-on-read, in one run.

What is sent, and how it is measured and checked, is as in `benchmarks.quick`.
"""

import time

from benchmarks.contender import IN_HUDI
from benchmarks.quick import OURS, Sizes, measure, servers, show

SIZES = Sizes(snapshot=300_000, steady_batches=4, small_tables=8)


def main() -> None:
    """Run it, and print the table of docs/performance.md."""
    started = time.monotonic()
    with servers() as (folder, addresses):
        outcome = measure(folder, addresses, SIZES, (OURS, *IN_HUDI))
    show(outcome)
    print(f"{time.monotonic() - started:.0f} s in all")
    if wrong := {name: number for name, number in outcome.wrong.items() if number}:
        raise SystemExit(f"rows that are not what the log says: {wrong}")


if __name__ == "__main__":
    main()
