"""The log position of records: `log_ts`, and which tombstones belong to a delete."""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.bronze.decide import NO_KEY, PAIR_STAGE, error_of
from cdc_lake.decode.identity import NO_TIMESTAMP_MS

_SEED_TYPE = (
    "struct<log_ts: bigint, last: struct<offset: bigint, key: binary, op: string, status: string>, next_log_ts: bigint>"
)
KNOWN_LOG_TS = "known_log_ts"
"""Column of records that are read again: `log_ts` of those that are already in bronze."""


@dataclass(frozen=True)
class LastRecord:
    """The last record of a partition in bronze before the records of a batch.

    Attributes:
        log_ts: the running maximum of Kafka's timestamps up to it, ms; None if there is no such record.
        offset, key, op, status: those of the record; None if only `log_ts` is known.
        next_log_ts: that of the first record after the batch, if the batch is read again.
    """

    log_ts: int | None
    offset: int | None = None
    key: bytes | None = None
    op: str | None = None
    status: str | None = None
    next_log_ts: int | None = None


def with_log_order(records: DataFrame, before: Mapping[int, LastRecord]) -> DataFrame:
    """Add the log position of each record.

    A tombstone right after the delete of its key is redundant: `tombstone_of` is the offset of that delete. Kafka's
    timestamps may go back; `log_ts` never does within a partition.

    Args:
        records: the columns of `with_decision`, of one topic; for records that are read again, also `known_log_ts`, the
            `log_ts` of those that are already in bronze.
        before: by partition, the last record before these.

    Columns out: all, and `log_ts`, `tombstone_of` bigint; `status` and `error` of a tombstone follow its delete's.
    """
    seed = _seed(before)
    in_partition = W.partitionBy("partition").orderBy("offset")
    last = F.lag(F.struct("offset", "key", "op", "status")).over(in_partition)
    last = F.coalesce(last, seed["last"])
    follows = F.col("is_tombstone") & F.col("key").eqNullSafe(last["key"])
    # A delete that was dropped from quarantine takes its tombstone with it.
    after_quarantined = follows & last["status"].isin("quarantined", "dropped") & last["op"].isNull()
    written = F.coalesce(F.unix_millis("timestamp"), F.lit(NO_TIMESTAMP_MS))
    is_again = KNOWN_LOG_TS in records.columns
    own = F.coalesce(KNOWN_LOG_TS, written) if is_again else written
    log_ts = F.greatest(F.max(own).over(in_partition.rowsBetween(W.unboundedPreceding, W.currentRow)), seed["log_ts"])
    if is_again:
        behind = F.min(KNOWN_LOG_TS).over(in_partition.rowsBetween(W.currentRow, W.unboundedFollowing))
        log_ts = F.least(log_ts, behind, seed["next_log_ts"])
    paired_error = error_of(
        PAIR_STAGE, "delete_quarantined", F.lit("the record before it, with the same key, is quarantined")
    )
    is_paired = F.coalesce(follows & (last["op"] == "d"), F.lit(False))
    # With `merge.keys`, a tombstone has no key columns of its own, but its delete has.
    has_key_of_delete = is_paired & F.coalesce(F.col("error.code") == NO_KEY, F.lit(False))
    return records.withColumns(
        {
            "log_ts": log_ts,
            "tombstone_of": F.when(is_paired, last["offset"]),
            "status": F.when(after_quarantined, last["status"])
            .when(has_key_of_delete, "ok")
            .otherwise(F.col("status")),
            "error": F.when(after_quarantined, paired_error).when(~has_key_of_delete, F.col("error")),
        }
    )


def _seed(before: Mapping[int, LastRecord]) -> Column:
    known = [F.when(F.col("partition") == partition, _seed_of(one)) for partition, one in before.items()]
    return F.coalesce(*known, F.lit(None).cast(_SEED_TYPE))


def _seed_of(one: LastRecord) -> Column:
    last = F.struct(F.lit(one.offset), F.lit(one.key), F.lit(one.op), F.lit(one.status))
    last = last if one.offset is not None else F.lit(None)
    return F.struct(F.lit(one.log_ts), last, F.lit(one.next_log_ts)).cast(_SEED_TYPE)
