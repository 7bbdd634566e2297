"""The values that key changes leave, as columns; `fold.moves` says which of them a row takes.

A *lifetime* is a key's from an upsert to the next delete. Of one that a key change ended, silver keeps the large values
that were sent in it, its *image*: the other half of the change may come later, or once more.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import DELETE, IMAGE_ENTRY, KAFKA, KAFKA_TYPE, UNAVAILABLE, quoted
from cdc_lake.fold import moves
from cdc_lake.silver.rows import INHERITED, TAKEN, held

_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_COLUMNS = ("id", "key", "move", "place", "came_by", "real")


def ended(pieces: DataFrame, stored: DataFrame | None, large: Sequence[str]) -> DataFrame:
    """The lifetimes that a batch's key changes ended.

    Args:
        pieces: `fold.arrow`'s of role `left`, with `row`, decoded.
        stored: `key`, and `stored` struct of the `large` columns of silver's row, each a struct of one value `v`; none
            if there is no silver.

    Columns out: `id`; `key`; `move`, the key change; `place` of the delete; `came_by`; `real`, see `rows.held`.
    """
    of_lifetime = ("key", "move", "place", "came_by", "kept")
    found = held(pieces, of_lifetime, large)
    if stored is not None:
        kept = (F.when(F.array_contains("kept", name), F.col("stored")[name]) for name in large)
        real = (F.coalesce(F.col("real")[n], of_row).alias(n) for n, of_row in zip(large, kept, strict=True))
        found = found.join(stored, "key", "left").withColumn("real", F.struct(*real))
    return found.withColumn("id", F.to_json(F.struct("move", "place"))).select(*_COLUMNS)


def stored_values(silver: DataFrame, large: Mapping[str, str]) -> DataFrame:
    """`stored` of `ended`, of rows of silver with `key`."""

    def value(name: str, kind: str) -> Column:
        if name not in silver.columns:
            return F.lit(None).cast(f"struct<v: {kind}>").alias(name)
        is_there = ~F.array_contains(UNAVAILABLE, name)
        return F.when(is_there, F.struct(F.col(quoted(name)).cast(kind).alias("v"))).alias(name)

    return silver.select("key", F.struct(*(value(*column) for column in large.items())).alias("stored"))


def images(entries: DataFrame, large: Mapping[str, str]) -> DataFrame:
    """The lifetimes that earlier batches' key changes ended, from the side table's entries; columns as `ended`'s."""
    values = F.from_json("image", "map<string, string>")
    real = (F.from_json(values[name], f"struct<v: {kind}>", _JSON).alias(name) for name, kind in large.items())
    columns = {"place": F.col(KAFKA), "came_by": F.col("awaits"), "real": F.struct(*real)}
    found = entries.where(F.col("kind") == IMAGE_ENTRY)
    return found.select(*(columns.get(name, F.col(name)).alias(name) for name in _COLUMNS))


def taken(lifetimes: DataFrame, heirs: DataFrame, large: Sequence[str]) -> DataFrame:
    """What rows take from lifetimes.

    Columns in: `ended`'s; of heirs `key`, `came_by`, `missing`. Columns out: `key`; `taken`, as `rows.held`'s `real`;
    `inherited`, the columns in it.
    """
    has = F.array_compact(F.array(*(F.when(F.col("real")[name].isNotNull(), name) for name in large)))
    mark = (F.when(F.col("real")[n].isNotNull(), F.xxhash64(F.to_json(F.col("real")[n], _JSON))) for n in large)
    nothing = {name: F.lit(None).cast("string").alias(name) for name in ("id", "move")}
    narrow = lifetimes.select(
        "id", "key", "move", "place", "came_by", has.alias("columns"), F.array_compact(F.array(*mark)).alias("marks")
    ).unionByName(
        heirs.select(
            *nothing.values(),
            "key",
            F.lit(None).cast(KAFKA_TYPE).alias("place"),
            "came_by",
            F.col("missing").alias("columns"),
            F.array().cast("array<bigint>").alias("marks"),
        )
    )
    found = narrow.repartition(1).mapInArrow(moves.inherit, moves.INHERITED)
    joined = found.join(lifetimes.select("id", "real"), "id")
    values = (F.first(F.when(F.col("column") == n, F.col("real")[n]), ignorenulls=True).alias(n) for n in large)
    return joined.groupBy("key").agg(F.struct(*values).alias(TAKEN), F.collect_list("column").alias(INHERITED))


def image_entries(lifetimes: DataFrame, large: Sequence[str]) -> DataFrame:
    """The side table's entries of lifetimes: `kind`, `id`, `key`, `move`, `awaits`, `__kafka`, `image`, `__delete`."""
    real = {name: F.col("real")[name] for name in large}
    values = [F.when(one.isNotNull(), F.struct(F.lit(name), F.to_json(one, _JSON))) for name, one in real.items()]
    return lifetimes.select(
        F.lit(IMAGE_ENTRY).alias("kind"),
        *("id", "key", "move"),
        F.col("came_by").alias("awaits"),
        F.col("place").alias(KAFKA),
        F.to_json(F.map_from_entries(F.array_compact(F.array(*values)))).alias("image"),
        F.lit(False).alias(DELETE),
    )


def named_before(pieces: DataFrame, entries: DataFrame) -> DataFrame:
    """The keys with a key change that is named as an earlier batch's, and may be another: see `fold.moves`.

    Columns in: `fold.arrow`'s of role `left`; the side table's. Columns out: `key`.
    """
    is_without_position = F.contains(F.substring_index("move", "[", 1), F.lit('"old":'))
    known = entries.where(F.col("kind") == IMAGE_ENTRY).select("move")
    return pieces.where(is_without_position).join(known, "move", "left_semi").select("key")


def relatives(halves: DataFrame, keys: DataFrame) -> DataFrame:
    """Keys, and those that key changes connect them to.

    Columns in: of halves `key`, `move`; of keys `key`. Columns out: `key`.
    """
    asked = keys.select("key", F.lit(None).cast("string").alias("move"))
    return halves.select("key", "move").unionByName(asked).repartition(1).mapInArrow(moves.relatives, "key string")
