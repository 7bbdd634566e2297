"""What silver has to remember beside its rows: entries of its side table.

A row that is gone must still be known as deleted, or an older event that comes again would bring it back. Entries:
`deleted`, one per key whose row went; `truncated`, the last truncate; `snapshot`, the start of one that has not ended;
`rejected`, an event that did not meet what rows are to be; `moved` and `awaiting`, see `cdc_lake.changes.moves`.
"""

from collections.abc import Iterable
from typing import Literal

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.changes.fold import IS_REMEMBERED, is_delete
from cdc_lake.changes.whole_table import Place, Truncate, WholeTable
from cdc_lake.columns import (
    DELETE,
    DELETED_ENTRY,
    KAFKA,
    KAFKA_TYPE,
    ORDER,
    ORDER_TYPE,
    REJECTED_ENTRY,
    SIDE,
    SNAPSHOT_ENTRY,
    TRUNCATED_ENTRY,
)
from cdc_lake.fold.rules import TRUNCATE, Order
from cdc_lake.literals import of_batch


def deleted_entries(decided: DataFrame, *, deletes: Literal["soft", "hard"]) -> DataFrame:
    """The keys whose rows go, and those that have a row again; a truncate is remembered once for all keys.

    Columns in: `fold.decisions`'. Columns out: `kind`, `id`, `key`, `__order`, `__kafka`, `__delete`.
    """
    op = F.col("winner")["op"]
    was_gone = F.coalesce(F.col(IS_REMEMBERED), F.lit(False))
    goes = is_delete(op) & (op != TRUNCATE) & (was_gone | F.lit(deletes == "hard"))
    return decided.where(goes | (was_gone & ~is_delete(op))).select(
        F.lit(DELETED_ENTRY).alias("kind"),
        F.col("key").alias("id"),
        *("key", ORDER),
        F.col("winner")[KAFKA].alias(KAFKA),
        (~is_delete(op)).alias(DELETE),
    )


def rejected_entries(rejected: DataFrame) -> DataFrame:
    """The events that were rejected.

    Columns in: `key`, `__kafka`, `unmet`. Columns out: `kind`, `id`, `key`, `__kafka`, `image`, `__delete`.
    """
    return rejected.select(
        F.lit(REJECTED_ENTRY).alias("kind"),
        F.to_json(KAFKA).alias("id"),
        *("key", KAFKA),
        F.to_json("unmet").alias("image"),
        F.lit(False).alias(DELETE),
    )


def readmitted_entries(entries: DataFrame) -> DataFrame:
    """Take entries of rejected events away, because the events count now.

    Columns in: the side table's. Columns out: `kind`, `id`, `key`, `__kafka`, `__delete`.
    """
    return entries.select("kind", "id", "key", KAFKA, F.lit(True).alias(DELETE))


def whole_table_entries(spark: SparkSession, before: WholeTable, after: WholeTable) -> DataFrame:
    """The last truncate and the open snapshot, where they are others than before.

    Columns out: `kind`, `id`, `__order`, `__kafka`, `__delete`.
    """
    rows: list[tuple[object, ...]] = []
    if after.truncated is not None and after.truncated != before.truncated:
        rows.append((TRUNCATED_ENTRY, "", after.truncated.order, after.truncated.place, False))
    if after.snapshot != before.snapshot:
        rows.append((SNAPSHOT_ENTRY, "", None, after.snapshot, after.snapshot is None))
    return spark.createDataFrame(
        rows, f"kind string, id string, {ORDER} {ORDER_TYPE}, {KAFKA} {KAFKA_TYPE}, {DELETE} boolean"
    )


def of_all_keys(entries: DataFrame) -> DataFrame:
    """The entries that concern all keys, two at most: what `remembered` reads."""
    return entries.where(F.col("kind").isin(TRUNCATED_ENTRY, SNAPSHOT_ENTRY)).select("kind", ORDER, KAFKA)


def remembered(entries: Iterable[Row]) -> WholeTable:
    """What is remembered of all keys."""
    by_kind = {row["kind"]: row for row in entries}
    truncated, snapshot = by_kind.get(TRUNCATED_ENTRY), by_kind.get(SNAPSHOT_ENTRY)
    return WholeTable(
        truncated=Truncate(Place(*truncated[KAFKA]), Order(*truncated[ORDER])) if truncated else None,
        snapshot=Place(*snapshot[KAFKA]) if snapshot else None,
    )


def side_rows(parts: Iterable[DataFrame], *, batch: int, at_ms: int) -> DataFrame:
    """All entries of a commit, with every column of the side table and `__delete`.

    Args:
        parts: entries with some of the columns; no two with the same kind and id.
        batch: silver's own commit number.
        at_ms: when it is made.
    """
    own = {"__batch": of_batch(batch, F.col("id")), "at_ms": of_batch(at_ms, F.col("id"))}
    whole = None
    for part in parts:
        columns = [
            own.get(name, F.col(name) if name in part.columns else F.lit(None)).cast(kind).alias(name)
            for name, kind in SIDE.items()
        ]
        rows = part.select(*columns, DELETE)
        whole = rows if whole is None else whole.unionByName(rows)
    assert whole is not None, "a commit has entries of some kind, were there none of it"
    return whole
