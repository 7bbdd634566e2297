"""The records in bronze before and after a batch, which tombstones and `log_ts` depend on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.bronze.log_order import LastRecord, by_partition
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.sources.logs import Span
from cdc_lake.tables.progress import BronzeProgress

_NEAR_BATCHES = 16
"""A partition's last record is searched in this many batches first, then in 16 times as many, and so on."""


def last_records(
    table: BronzeTable, before: BronzeProgress, generation: int, wanted: set[int]
) -> dict[int, LastRecord]:
    """The ends of bronze's partitions; for those in `wanted` with their last record, which a tombstone may belong to.

    The last record is mostly in the latest batches. Replayed rows are in a newer batch than they landed in, hence
    `first_batch`; bronze has statistics of `batch` alone.
    """
    known = {partition: LastRecord(log_ts) for partition, log_ts in before.log_ts.items()}
    sought, batches = wanted & known.keys(), _NEAR_BATCHES
    while sought:
        rows = table.read().where((F.col("generation") == generation) & F.col("partition").isin(*sought))
        near = rows.where((F.col("batch") > before.commit - batches) & (F.col("first_batch") > before.commit - batches))
        last = near.groupBy("partition").agg(
            F.max_by(F.struct("offset", "raw_key", "op", "status"), "offset").alias("last")
        )
        for row in last.collect():
            known[row["partition"]] = LastRecord(before.log_ts[row["partition"]], *row["last"])
            sought.remove(row["partition"])
        if batches >= before.commit:
            break
        batches *= 16
    return known


def records_there(table: BronzeTable, generation: int, spans: Mapping[int, Span]) -> DataFrame:
    """Bronze's rows in ranges of offsets."""
    is_of = F.lit(False)
    for partition, span in spans.items():
        is_of |= (F.col("partition") == partition) & (F.col("offset") >= span.start) & (F.col("offset") < span.end)
    return table.read().where((F.col("generation") == generation) & is_of)


def records_around(table: BronzeTable, generation: int, spans: Mapping[int, Span]) -> dict[int, LastRecord]:
    """The records in bronze right before and right after ranges of offsets."""
    start, end = (by_partition({p: F.lit(getattr(span, at)) for p, span in spans.items()}) for at in ("start", "end"))
    is_of_it = F.col("generation") == generation
    is_before, is_behind = is_of_it & (F.col("offset") < start), is_of_it & (F.col("offset") >= end)
    rows = table.read().where((F.col("generation") <= generation) & F.col("partition").isin(*spans))
    last = F.when(is_before, F.struct("offset", "raw_key", "op", "status"))
    found = rows.groupBy("partition").agg(
        F.max(F.when(is_before | (F.col("generation") < generation), F.col("log_ts"))).alias("log_ts"),
        F.max_by(last, F.when(is_before, F.col("offset"))).alias("last"),
        F.min(F.when(is_behind, F.col("log_ts"))).alias("next_log_ts"),
    )
    nothing: Sequence[Any] = (None,) * 4
    return {
        row["partition"]: replace(LastRecord(row["log_ts"], *(row["last"] or nothing)), next_log_ts=row["next_log_ts"])
        for row in found.collect()
    }
