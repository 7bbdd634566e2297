"""From decisions to the rows to write: which values a row gets, and what it says of itself.

A column of an event holds a value, a null, or nothing (it was not sent). A row gets each column's last real value
since its last delete; where the batch has none, the stored row's stays, unless a delete lies between; where neither has
one, a row that came by a change of its key takes the old key's (`cdc_lake.changes.moves`); and where that has none, the
column is null and named in `__unavailable`. Source: docs/design.md "Placeholders".
"""

from collections.abc import Collection, Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.changes.fold import IS_REMEMBERED, STORED_DELETED, STORED_UNAVAILABLE, is_delete
from cdc_lake.columns import BATCH, DELETE, DELETED, KAFKA, KEEP, KEY, ORDER, UNAVAILABLE, quoted
from cdc_lake.fold.rules import TRUNCATE
from cdc_lake.literals import of_batch


def values(events: DataFrame, decided: DataFrame, *, large: Collection[str], has_barriers: bool) -> DataFrame:
    """The last real value of each column, per key.

    Args:
        events: the events that count, `events()`' columns.
        decided: `decisions`' columns.
        large: the columns that may not have been sent.
        has_barriers: whether any key of `decided` has one.

    Columns out, one row per key that has an insert, update or snapshot row: `key`, `row` struct of the last such event;
    `real` struct of the `large` columns, each a struct of one value `v`, null where no value was sent since the last
    delete.
    """
    upserts = events.where(F.col("row").isNotNull())
    behind = F.lit(True)
    if has_barriers and large:
        upserts = upserts.join(decided.where(F.col("barrier").isNotNull()).select("key", "barrier"), "key", how="left")
        behind = F.col("barrier").isNull() | (F.col(KAFKA) > F.col("barrier"))
    reals = [
        F.max_by(
            F.struct(F.col("row")[name].alias("v")),
            F.when(behind & ~F.array_contains("unavailable", name), F.col(KAFKA)),
        ).alias(name)
        for name in large
    ]
    real = F.struct(*reals) if reals else F.lit(None)
    return upserts.groupBy("key").agg(F.max_by("row", KAFKA).alias("row"), real.alias("real"))


def with_heirs(found: DataFrame, heirs: DataFrame, *, large: Collection[str]) -> DataFrame:
    """Let the rows of keys that move take what `heirs` has for them.

    Columns in: `values`', and `heirs`: `key`, `real`. Columns out: `values`'.
    """
    joined = found.alias("own").join(heirs.alias("heir"), "key", how="left")
    real = F.struct(*(F.coalesce(F.col("own.real")[n], F.col("heir.real")[n]).alias(n) for n in large))
    return joined.select("key", F.col("own.row").alias("row"), real.alias("real"))


def changes(
    decided: DataFrame,
    found: DataFrame,
    *,
    keys: Sequence[str],
    columns: Sequence[str],
    stored_columns: Collection[str],
    large: Collection[str],
    deletes: Literal["soft", "hard"],
    truncates: Literal["soft", "hard"],
    soft_delete_values: Literal["last", "null"],
    batch: int,
) -> DataFrame:
    """The rows to write.

    Args:
        decided: `decisions`' columns.
        found: `values`' columns.
        keys: the primary key's columns.
        columns: all columns of the source table, keys first.
        stored_columns: those of them that the table has already.
        large: the columns that may not have been sent.
        deletes: whether a deleted row stays, marked, or goes.
        truncates: the same for a row that a truncate deletes.
        soft_delete_values: what a deleted row that stays holds outside its key.
        batch: silver's own commit number.

    Columns out, one row per key: `columns`, silver's own columns, `__key`, `__keep` and `__delete` (see
    `cdc_lake.columns`).
    """
    winner = F.col("winner")
    deleted = is_delete(winner["op"])
    is_new = F.col("row").isNotNull()
    # Behind a delete, in the table or in this batch, there is nothing to take a value from.
    has_stored_values = F.col(STORED_DELETED).isNotNull() & ~(
        is_new & (F.col(STORED_DELETED) | F.col("barrier").isNotNull())
    )
    goes = deleted & (
        F.coalesce(F.col(IS_REMEMBERED), F.lit(False))
        | F.when(winner["op"] == TRUNCATE, F.lit(truncates == "hard")).otherwise(F.lit(deletes == "hard"))
    )
    emptied = deleted & F.lit(soft_delete_values == "null")

    def value(name: str) -> Column:
        sent = F.col("real")[name]["v"] if name in large else F.col("row")[name]
        return F.when(~emptied, sent)

    def missing(name: str) -> Column:
        return F.col("real")[name].isNull() if name in large else F.lit(False)

    others = [name for name in columns if name not in keys]
    not_sent = _named([(name, missing(name)) for name in large])
    can_stay = F.array(*(F.lit(name) for name in others if name in stored_columns)).cast("array<string>")
    stored_missing = F.coalesce(STORED_UNAVAILABLE, F.array().cast("array<string>"))
    keep = (
        F.when(emptied | ~has_stored_values, F.array().cast("array<string>"))
        .when(is_new, F.array_intersect(not_sent, can_stay))
        .otherwise(can_stay)
    )
    unavailable = (
        F.when(emptied, F.array().cast("array<string>"))
        .when(
            is_new & has_stored_values,
            F.array_union(F.array_intersect(not_sent, stored_missing), F.array_except(not_sent, can_stay)),
        )
        .when(is_new, not_sent)
        .otherwise(stored_missing)
    )
    joined = decided.join(found, "key", how="left")
    return joined.select(
        *(F.col("pk")[name].alias(name) for name in keys),
        *(value(name).alias(name) for name in others),
        winner["op"].alias("__op"),
        deleted.alias(DELETED),
        winner[ORDER]["ts_ms"].alias("__source_ts_ms"),
        winner[ORDER]["position"].alias("__source_position"),
        winner["snapshot"].alias("__snapshot"),
        winner[KAFKA].alias(KAFKA),
        F.col(ORDER),
        of_batch(batch, winner[KAFKA]["offset"]).alias(BATCH),
        unavailable.alias(UNAVAILABLE),
        F.col("key").alias(KEY),
        keep.alias(KEEP),
        goes.alias(DELETE),
    )


def with_kept(changes: DataFrame, stored: DataFrame) -> DataFrame:
    """Whole rows: where a change keeps what is stored, that is filled in.

    Columns in: `changes`', and `stored`'s `__key` and those that there are. Columns out: `changes`'.
    """
    joined = changes.alias("s").join(stored.alias("t"), F.col(f"s.{KEY}") == F.col(f"t.{KEY}"), "left")
    there = set(stored.columns) - {KEY}

    def value(name: str) -> Column:
        sent = F.col(f"s.{quoted(name)}")
        if name not in there:
            return sent
        is_kept = F.array_contains(f"s.{KEEP}", name)
        return F.when(is_kept, F.col(f"t.{quoted(name)}")).otherwise(sent).alias(name)

    return joined.select(*(value(name) for name in changes.columns))


def _named(marks: Sequence[tuple[str, Column]]) -> Column:
    found = [F.when(mark, name) for name, mark in marks]
    return F.array_compact(F.array(*found)) if found else F.array().cast("array<string>")
