"""The Kafka position of records: `log_ts`, and which tombstones belong to a delete.

Both depend on the records in bronze before and after a batch, which are read here, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.bronze.decide import NO_KEY, PAIR_STAGE, error_of
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.sources.logs import Span
from cdc_lake.tables.progress import NO_TIMESTAMP_MS, BronzeProgress

_NEAR_BATCHES = 16
"""A partition's last record is searched in this many batches first, then in 16 times as many, and so on."""

_SEED_TYPE = (
    "struct<log_ts: bigint, last: struct<offset: bigint, key: binary, op: string, status: string>, next_log_ts: bigint>"
)
KNOWN_LOG_TS = "known_log_ts"
"""Column of records that are read again: `log_ts` of the same records in bronze."""


@dataclass(frozen=True)
class LastRecord:
    """The last record of a partition in bronze before the records of a batch.

    Attributes:
        log_ts: the running maximum of Kafka's timestamps up to it, ms; None if there is no such record.
        offset, key, op, status: the record's; None if only `log_ts` is known.
        next_log_ts: the `log_ts` of the first record after the batch, if the batch is read again.
    """

    log_ts: int | None
    offset: int | None = None
    key: bytes | None = None
    op: str | None = None
    status: str | None = None
    next_log_ts: int | None = None


def log_order(records: DataFrame, before: Mapping[int, LastRecord], *, has_tombstones: bool = True) -> DataFrame:
    """The Kafka position of each record, without the record.

    A tombstone right after the delete of its key is redundant: `tombstone_of` is the offset of that delete. Kafka's
    timestamps may go back; `log_ts` never does within a partition.

    Args:
        records: the columns of `with_decision`, of one topic; for records that are read again, also `known_log_ts`, the
            `log_ts` of the same records in bronze.
        before: by partition, the last record before these.
        has_tombstones: whether there are tombstones among the records.

    Columns out: `partition`, `offset`, `log_ts`, `tombstone_of` bigint; `status`, that of a tombstone follows its
    delete's; `followed`, the status if it follows; `is_plain`, whether the record's position is its own timestamp, but
    at least the `log_ts` before the batch, and its status its own.
    """
    seed = _seed(before)
    in_partition = W.partitionBy("partition").orderBy("offset")
    is_reread = KNOWN_LOG_TS in records.columns
    plain = _own_log_ts(seed)
    own = F.coalesce(KNOWN_LOG_TS, plain) if is_reread else plain
    log_ts = F.max(own).over(in_partition.rowsBetween(W.unboundedPreceding, W.currentRow))
    # Timestamps 10 12 11 14 give 10 12 12 14.
    if is_reread:
        # A record that bronze lacked lies between records whose `log_ts` stays. Known 12, new 25, known 20: the new
        # one gets 20. `least` ignores the bounds that are null.
        behind = F.min(KNOWN_LOG_TS).over(in_partition.rowsBetween(W.currentRow, W.unboundedFollowing))
        log_ts = F.least(log_ts, behind, seed["next_log_ts"])
    tombstone_of, followed = F.lit(None).cast("bigint"), F.lit(None).cast("string")
    if has_tombstones:
        last = F.lag(F.struct("offset", "key", "op", "status")).over(in_partition)
        last = F.coalesce(last, seed["last"])
        follows = F.col("is_tombstone") & F.col("key").eqNullSafe(last["key"])
        # A delete that was dropped from quarantine takes its tombstone with it.
        after_quarantined = follows & last["status"].isin("quarantined", "dropped") & last["op"].isNull()
        is_paired = F.coalesce(follows & (last["op"] == "d"), F.lit(False))
        # With `merge.keys`, a tombstone has no key columns of its own, but its delete has.
        has_key_of_delete = is_paired & F.coalesce(F.col("error.code") == NO_KEY, F.lit(False))
        tombstone_of = F.when(is_paired, last["offset"])
        followed = F.when(after_quarantined, last["status"]).when(has_key_of_delete, "ok")
    rows = records.select(
        F.col("partition"),
        F.col("offset"),
        log_ts.alias("log_ts"),
        tombstone_of.alias("tombstone_of"),
        followed.alias("followed"),
        F.coalesce(followed, F.col("status")).alias("status"),
        ((log_ts == plain) & tombstone_of.isNull() & followed.isNull()).alias("is_plain"),
        *([F.col(KNOWN_LOG_TS)] if is_reread else []),
    )
    return rows.where(F.col(KNOWN_LOG_TS).isNull()).drop(KNOWN_LOG_TS) if is_reread else rows


def by_partition(values: Mapping[int, Column]) -> Column:
    """The value for each row's partition, from a map: a plan with the numbers in its code would be compiled again.

    Args:
        values: literals, at least one.
    """
    pairs = (part for number, value in values.items() for part in (F.lit(number), value))
    return F.create_map(*pairs)[F.col("partition")]


def with_log_order(
    records: DataFrame, before: Mapping[int, LastRecord], others: DataFrame | None, *, only: bool = False
) -> DataFrame:
    """Add the Kafka position of each record.

    Args:
        records: the columns of `with_decision`, of one topic.
        before: see `log_order`.
        others: its rows of the records that are not plain; None if all are.
        only: whether to omit the other records.

    Columns out: all, and `log_ts`, `tombstone_of` bigint; `status` and `error` of a tombstone follow its delete's.
    """
    log_ts = _own_log_ts(_seed(before))
    if others is None:
        return records.withColumns({"log_ts": log_ts, "tombstone_of": F.lit(None).cast("bigint")})
    positions = others.select("partition", "offset", F.col("log_ts").alias("__log_ts"), "tombstone_of", "followed")
    paired_error = error_of(
        PAIR_STAGE, "delete_quarantined", F.lit("the record before it, with the same key, is quarantined")
    )
    followed = F.col("followed")
    error = F.when(followed.isNull(), F.col("error")).when(followed != "ok", paired_error)
    rows = records.join(positions, ["partition", "offset"], "inner" if only else "left")
    rows = rows.withColumns(
        {"log_ts": F.coalesce("__log_ts", log_ts), "status": F.coalesce(followed, "status"), "error": error}
    )
    return rows.drop("__log_ts", "followed")


def _own_log_ts(seed: Column) -> Column:
    """A record's own timestamp, but at least `log_ts` before the batch."""
    return F.greatest(F.coalesce(F.unix_millis("timestamp"), F.lit(NO_TIMESTAMP_MS)), seed["log_ts"])


def _seed(before: Mapping[int, LastRecord]) -> Column:
    known = {}
    for partition, record in before.items():
        last = F.struct(F.lit(record.offset), F.lit(record.key), F.lit(record.op), F.lit(record.status))
        last = last if record.offset is not None else F.lit(None)
        known[partition] = F.struct(F.lit(record.log_ts), last, F.lit(record.next_log_ts)).cast(_SEED_TYPE)
    return by_partition(known) if known else F.lit(None).cast(_SEED_TYPE)


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
    ends = rows.groupBy("partition").agg(
        F.max(F.when(is_before | (F.col("generation") < generation), F.col("log_ts"))).alias("log_ts"),
        F.max_by(last, F.when(is_before, F.col("offset"))).alias("last"),
        F.min(F.when(is_behind, F.col("log_ts"))).alias("next_log_ts"),
    )
    nothing: Sequence[Any] = (None,) * 4
    return {
        row["partition"]: replace(LastRecord(row["log_ts"], *(row["last"] or nothing)), next_log_ts=row["next_log_ts"])
        for row in ends.collect()
    }
