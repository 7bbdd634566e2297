"""Values that move to another key.

A change of the primary key arrives as a delete of the old key and an insert of the new one, in either order, perhaps in
two partitions. What the change did not touch and the source's log does not hold is not sent under the new key: it was
sent under the old one, some time before. So each *life* of a key (the stretch between two of its deletes) may inherit
the values it was never sent from the life that the same move closed, and that one from the one before it.

Only the keys that move take part. A life's values are known once its delete is there; until then its heir waits.
"""

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.changes.fold import STORED_DELETED, is_delete, is_upsert
from cdc_lake.columns import AWAITING_ENTRY, DELETE, KAFKA, MOVED_ENTRY, UNAVAILABLE, quoted

MAX_ROUNDS = 32
"""Each round doubles the moves that a value has come over."""
_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def movers(history: DataFrame) -> DataFrame:
    """The keys that a move begins or ends in: `key`."""
    return history.where(F.col("move").isNotNull()).select("key").distinct()


def lives(history: DataFrame, events: DataFrame, stored: DataFrame | None, large: Mapping[str, str]) -> DataFrame:
    """The lives of the keys that move, each with the large values that were sent in it.

    Args:
        history: what counts, of these keys: `fold.with_suspicion`'s columns.
        events: the same events with their rows: `events()`' columns.
        stored: `key`; `values`, a struct of the `large` columns as stored, each a struct of one value `v`, null when it
            is missing there; `waits_for`, the move that may fill it. None when nothing is stored.
        large: the columns that may not have been sent, name to type.

    Columns out, one row per life: `key`, `life` number; `has_row`, whether any row was sent; `takes`, the move it began
    with; `closes`, the move it ended with; `awaits`, the move whose values may fill what is missing; `real` struct of
    the `large` columns, each a struct of one value `v`, null when it is missing.
    """
    in_log_order = W.partitionBy("key").orderBy(KAFKA).rowsBetween(W.unboundedPreceding, -1)
    deletes_before = F.count(F.when(is_delete(F.col("op")), 1)).over(in_log_order)
    placed = history.select("key", "op", KAFKA, "move", STORED_DELETED, deletes_before.alias("life"))
    sent = events.where(is_upsert(F.col("op"))).select("key", "op", KAFKA, "row", "unavailable")
    both = placed.join(sent, ["key", "op", KAFKA], how="left")
    at_move = F.when(is_upsert(F.col("op")) & F.col("move").isNotNull(), F.col(KAFKA))
    found = both.groupBy("key", "life").agg(
        F.max(is_upsert(F.col("op"))).alias("has_row"),
        F.first(STORED_DELETED).alias(STORED_DELETED),
        F.max_by("move", at_move).alias("takes"),
        F.max(F.when(F.col("op") == "d", F.col("move"))).alias("closes"),
        F.struct(*(_last_sent(name).alias(name) for name in large)).alias("real"),
    )
    awaits = F.col("takes")
    if stored is not None:
        found = found.join(stored, "key", how="left")
        goes_on = (F.col("life") == 0) & ~F.coalesce(STORED_DELETED, F.lit(True))
        awaits = F.coalesce(awaits, F.when(goes_on, F.col("waits_for")))
        kept = F.struct(
            *(F.coalesce(F.col("real")[name], F.when(goes_on, F.col("values")[name])).alias(name) for name in large)
        )
        found = found.withColumn("real", kept)
    awaits = F.when(_lacks(large), awaits)
    return found.select("key", "life", "has_row", "takes", "closes", awaits.alias("awaits"), "real")


def stored_values(silver: DataFrame, remembered: DataFrame, large: Mapping[str, str]) -> DataFrame:
    """What `lives` needs of the stored rows.

    Args:
        silver: `key` and silver's columns, of the keys that move.
        remembered: the side table's entries.
        large: the columns that may not have been sent, name to type.
    """
    waiting = remembered.where(F.col("kind") == AWAITING_ENTRY).select("key", F.col("awaits").alias("waits_for"))

    def value(name: str, kind: str) -> Column:
        if name not in silver.columns:
            return F.lit(None).cast(f"struct<v: {kind}>")
        return F.when(~F.array_contains(UNAVAILABLE, name), F.struct(F.col(quoted(name)).alias("v")))

    values = F.struct(*(value(name, kind).alias(name) for name, kind in large.items()))
    return silver.select("key", values.alias("values")).join(waiting, "key", how="left")


def images(entries: DataFrame, large: Mapping[str, str]) -> DataFrame:
    """The values of lives that earlier batches closed: `closes`, `awaits`, `real`, from the side table's entries."""
    held = F.from_json("image", "map<string, string>")
    real = F.struct(*(F.from_json(held[name], f"struct<v: {kind}>", _JSON).alias(name) for name, kind in large.items()))
    moved = entries.where(F.col("kind") == MOVED_ENTRY)
    return moved.select(F.col("id").alias("closes"), "awaits", real.alias("real"))


def givers(living: DataFrame, known: DataFrame, large: Iterable[str]) -> DataFrame:
    """What each move hands over: `closes`, `key`, `awaits`, `real`, one row per move.

    A stretch of the log that is sent again may close a second life by the same move, with less in it: of each column
    the last that is real counts.

    Args:
        living: `lives`' columns.
        known: `images`' columns, from before all of `living`.
    """
    lives = living.where(F.col("closes").isNotNull()).select("closes", "key", "life", "awaits", "real")
    earlier = known.select("closes", F.lit(None).cast("string").alias("key"), F.lit(-1).alias("life"), "awaits", "real")

    def last(value: Column) -> Column:
        return F.max_by(value, F.when(value.isNotNull(), F.col("life")))

    found = lives.unionByName(earlier).groupBy("closes")
    real = F.struct(*(last(F.col("real")[name]).alias(name) for name in large))
    return found.agg(last(F.col("key")).alias("key"), last(F.col("awaits")).alias("awaits"), real.alias("real"))


def inherited(living: DataFrame, known: DataFrame, large: Sequence[str]) -> DataFrame:
    """One round of taking over what is missing from the lives that the awaited move closed.

    Args:
        living: `lives`' columns.
        known: `images`' columns.

    Columns out: `lives`', and `is_found`, whether the awaited move was there. What `awaits` names then is the next.
    """
    giver = givers(living, known, large).select("closes", "awaits", "real").alias("giver")
    joined = living.alias("heir").join(giver, F.col("heir.awaits") == F.col("giver.closes"), how="left")
    is_found = F.col("giver.closes").isNotNull()
    real = F.struct(*(F.coalesce(F.col("heir.real")[name], F.col("giver.real")[name]).alias(name) for name in large))
    taken = joined.select(
        *(F.col(f"heir.{name}").alias(name) for name in ("key", "life", "has_row", "takes", "closes")),
        F.when(is_found, F.col("giver.awaits")).otherwise(F.col("heir.awaits")).alias("awaits"),
        real.alias("real"),
        is_found.alias("is_found"),
    )
    return taken.withColumn("awaits", F.when(_lacks(large), F.col("awaits")))


def heirs(living: DataFrame) -> DataFrame:
    """What the row of each key that moves has in the end: `key`, `real`, `awaits`; of its last life with a row."""
    rows = living.where("has_row").groupBy("key")
    return rows.agg(F.max_by(F.struct("real", "awaits"), "life").alias("last")).select("key", "last.*")


def entries(living: DataFrame, known: DataFrame, remembered: DataFrame, large: Sequence[str]) -> DataFrame:
    """What the side table has to remember of these moves, and what it need not any more.

    Args:
        living: `lives`' columns, after the last round of `inherited`.
        known: `images`' columns.
        remembered: the side table's entries.

    Columns out: `kind`, `id`, `key`, `awaits`, `image`, `__unavailable`, `__delete`.
    """
    taken = living.where(F.col("takes").isNotNull()).select(F.col("takes").alias("id")).distinct()
    again = known.join(living.where(F.col("closes").isNotNull()), "closes", how="left_semi")
    left = givers(living, again, large).withColumnRenamed("closes", "id").join(taken, "id", how="left_anti")
    held = [F.when(_real(name).isNotNull(), F.struct(F.lit(name), F.to_json(_real(name), _JSON))) for name in large]
    image = F.to_json(F.map_from_entries(F.array_compact(F.array(*held))))
    missing = F.array_compact(F.array(*(F.when(_real(name).isNull(), F.lit(name)) for name in large)))
    moved = left.select(
        F.lit(MOVED_ENTRY).alias("kind"),
        *("id", "key", F.when(_lacks(large), F.col("awaits")).alias("awaits")),
        image.alias("image"),
        missing.alias(UNAVAILABLE),
        F.lit(False).alias(DELETE),
    )
    nothing = (F.lit(None).cast("string").alias("image"), F.array().cast("array<string>").alias(UNAVAILABLE))
    rows = heirs(living).select(
        F.lit(AWAITING_ENTRY).alias("kind"),
        F.col("key").alias("id"),
        *("key", "awaits", *nothing),
        F.col("awaits").isNull().alias(DELETE),
    )
    used = taken.select(
        F.lit(MOVED_ENTRY).alias("kind"),
        "id",
        F.lit(None).cast("string").alias("key"),
        F.lit(None).cast("string").alias("awaits"),
        *nothing,
        F.lit(True).alias(DELETE),
    )
    gone = rows.where(DELETE).unionByName(used).join(remembered.select("kind", "id"), ["kind", "id"], how="left_semi")
    return moved.unionByName(rows.where(~F.col(DELETE))).unionByName(gone)


def _last_sent(name: str) -> Column:
    is_sent = is_upsert(F.col("op")) & ~F.array_contains("unavailable", name)
    return F.max_by(F.struct(F.col("row")[name].alias("v")), F.when(is_sent, F.col(KAFKA)))


def _lacks(large: Sequence[str] | Mapping[str, str]) -> Column:
    lacking = F.lit(False)
    for name in large:
        lacking = lacking | F.col("real")[name].isNull()
    return lacking


def _real(name: str) -> Column:
    return F.col("real")[name]
