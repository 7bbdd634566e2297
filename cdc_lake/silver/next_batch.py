"""Chooses the next batch of silver: how many of bronze's batches it merges in one commit."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F

from cdc_lake.lake.lake import BronzeTable
from cdc_lake.silver.table_run import SilverRun
from cdc_lake.tables.progress import BronzeProgress


@dataclass(frozen=True)
class BronzeState:
    """The bronze table, and its progress when it was read."""

    table: BronzeTable
    id: str
    landed: BronzeProgress

    def bytes_up_to(self, batch: int) -> int:
        """Bytes of the records of all batches up to one, as far as they were counted."""
        found = self.table.progress_of_commit(batch) if batch else None
        return found.bytes if found else 0

    def consumed(self, last: int) -> dict[str, Any]:
        """What silver's progress has of bronze after the batches up to this one are merged."""
        found = self.landed if last == self.landed.commit else self.table.progress_of_commit(last)
        nonce = found.nonce if found else self.table.nonce_of(last)
        return {
            "sources": {self.id: last},
            "nonces": {self.id: nonce} if nonce else {},
            "offsets": found.offsets if found else {},
        }


def next_batch(run: SilverRun, first: int, bronze: BronzeState, max_bytes: int) -> tuple[int, int | None]:
    """Choose bronze's batches from `first` on: of at most `read.max_records_per_batch` records and `max_bytes` in
    total, but at least one batch.

    Returns:
        The last batch, and how many rows these batches have; None if that is unknown.
    """
    newest, max_rows = bronze.landed.commit, run.settings.read.max_records_per_batch
    if first == newest:
        return newest, bronze.landed.rows
    new = run.bronze.where(F.col("batch") >= first)
    sizes = {row["batch"]: row["count"] for row in new.groupBy("batch").count().collect()}
    last, taken = first, sizes.get(first, 0)
    while last < newest and taken + sizes.get(last + 1, 0) <= max_rows:
        last += 1
        taken += sizes.get(last, 0)
    if last > first:
        most = bronze.bytes_up_to(first - 1) + max_bytes
        last = first + bisect_right(range(first + 1, last + 1), most, key=bronze.bytes_up_to)
    return last, sum(sizes.get(batch, 0) for batch in range(first, last + 1))
