"""The values that key changes pass on, as columns; `fold.key_changes` decides which of them a row inherits.

A *lifetime* of a key lasts from an upsert to the next delete. When a key change ends a lifetime, silver keeps the large
values sent in it, its *image*: the other half of the change may arrive later, or again.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import DELETE, IMAGE_ENTRY, KAFKA, KAFKA_TYPE, UNAVAILABLE, quoted
from cdc_lake.fold import key_changes
from cdc_lake.silver.rows import INHERITED_COLUMNS, INHERITED_VALUES, collect_large_values
from cdc_lake.spark.arrow_stage import map_in_arrow

_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_COLUMNS = ("id", "key", "key_change", "kafka_position", "moved_by", "large_values")


def ended_lifetimes(pieces: DataFrame, stored: DataFrame | None, large: Sequence[str]) -> DataFrame:
    """The lifetimes that a batch's key changes ended.

    Args:
        pieces: `fold.arrow`'s of role `lifetime`, with `row`, decoded.
        stored: `key`, and `stored`, struct of the `large` columns of silver's row, each a struct of one value `v`; none
            if there is no silver table.

    Columns out: `id`; `key`; `key_change`; `kafka_position` of the delete; `moved_by`; `large_values`, see
    `rows.collect_large_values`.
    """
    of_lifetime = ("key", "key_change", "kafka_position", "moved_by", "kept")
    found = collect_large_values(pieces, of_lifetime, large)
    if stored is not None:
        kept = (F.when(F.array_contains("kept", name), F.col("stored")[name]) for name in large)
        large_values = (
            F.coalesce(F.col("large_values")[n], of_row).alias(n) for n, of_row in zip(large, kept, strict=True)
        )
        found = found.join(stored, "key", "left").withColumn("large_values", F.struct(*large_values))
    return found.withColumn(
        "id", F.to_json(F.struct(F.col("key_change").alias("move"), F.col("kafka_position").alias("place")))
    ).select(*_COLUMNS)


def stored_values(silver: DataFrame, large: Mapping[str, str]) -> DataFrame:
    """`stored` of `ended_lifetimes`, from silver rows with `key`."""

    def value(name: str, kind: str) -> Column:
        if name not in silver.columns:
            return F.lit(None).cast(f"struct<v: {kind}>").alias(name)
        is_there = ~F.array_contains(UNAVAILABLE, name)
        return F.when(is_there, F.struct(F.col(quoted(name)).cast(kind).alias("v"))).alias(name)

    return silver.select("key", F.struct(*(value(*column) for column in large.items())).alias("stored"))


def stored_lifetimes(entries: DataFrame, large: Mapping[str, str]) -> DataFrame:
    """The lifetimes that earlier batches' key changes ended, from side-table entries; `ended_lifetimes`' columns."""
    values = F.from_json("image", "map<string, string>")
    large_values = (F.from_json(values[name], f"struct<v: {kind}>", _JSON).alias(name) for name, kind in large.items())
    columns = {
        "key_change": F.col("move"),
        "kafka_position": F.col(KAFKA),
        "moved_by": F.col("awaits"),
        "large_values": F.struct(*large_values),
    }
    found = entries.where(F.col("kind") == IMAGE_ENTRY)
    return found.select(*(columns.get(name, F.col(name)).alias(name) for name in _COLUMNS))


def inherit(lifetimes: DataFrame, moved_rows: DataFrame, large: Sequence[str]) -> DataFrame:
    """The values that rows inherit from lifetimes.

    Columns in: `ended_lifetimes`'; of moved rows `key`, `moved_by`, `missing`. Columns out: `key`; `inherited_values`,
    a struct as in `rows.collect_large_values`; `inherited_columns`, the columns in it.
    """
    # `columns` and `hashes` stay aligned, because both omit the columns without a value: [doc, null] and [71, null]. A
    # value that is null itself is a struct, `v: null`, and has a hash.
    has = F.array_compact(F.array(*(F.when(F.col("large_values")[name].isNotNull(), name) for name in large)))
    mark = (
        F.when(F.col("large_values")[n].isNotNull(), F.xxhash64(F.to_json(F.col("large_values")[n], _JSON)))
        for n in large
    )
    nothing = {name: F.lit(None).cast("string").alias(name) for name in ("id", "key_change")}
    narrow = lifetimes.select(
        "id",
        "key",
        "key_change",
        "kafka_position",
        "moved_by",
        has.alias("columns"),
        F.array_compact(F.array(*mark)).alias("hashes"),
    ).unionByName(
        moved_rows.select(
            *nothing.values(),
            "key",
            F.lit(None).cast(KAFKA_TYPE).alias("kafka_position"),
            "moved_by",
            F.col("missing").alias("columns"),
            F.array().cast("array<bigint>").alias("hashes"),
        )
    )
    found = map_in_arrow(narrow.repartition(1), key_changes.inherit, key_changes.INHERITED)
    joined = found.join(lifetimes.select("id", "large_values"), "id")
    values = (F.first(F.when(F.col("column") == n, F.col("large_values")[n]), ignorenulls=True).alias(n) for n in large)
    return joined.groupBy("key").agg(
        F.struct(*values).alias(INHERITED_VALUES), F.collect_list("column").alias(INHERITED_COLUMNS)
    )


def lifetime_entries(lifetimes: DataFrame, large: Sequence[str]) -> DataFrame:
    """The side-table entries of lifetimes: `kind`, `id`, `key`, `move`, `awaits`, `__kafka`, `image`, `__delete`."""
    large_values = {name: F.col("large_values")[name] for name in large}
    values = [
        F.when(one.isNotNull(), F.struct(F.lit(name), F.to_json(one, _JSON))) for name, one in large_values.items()
    ]
    return lifetimes.select(
        F.lit(IMAGE_ENTRY).alias("kind"),
        *("id", "key"),
        F.col("key_change").alias("move"),
        F.col("moved_by").alias("awaits"),
        F.col("kafka_position").alias(KAFKA),
        F.to_json(F.map_from_entries(F.array_compact(F.array(*values)))).alias("image"),
        F.lit(False).alias(DELETE),
    )


def ambiguous_key_changes(pieces: DataFrame, entries: DataFrame) -> DataFrame:
    """The keys with a key change that has the ID of an earlier batch's, and may be another: see `fold.key_changes`.

    Columns in: `fold.arrow`'s of role `lifetime`; the side table's. Columns out: `key`.
    """
    is_without_position = F.contains(F.substring_index("key_change", "[", 1), F.lit('"old":'))
    known = entries.where(F.col("kind") == IMAGE_ENTRY).select(F.col("move").alias("key_change"))
    return pieces.where(is_without_position).join(known, "key_change", "left_semi").select("key")


def connected_keys(halves: DataFrame, keys: DataFrame) -> DataFrame:
    """Keys, and those that key changes connect to them.

    Columns in: of halves `key`, `key_change`; of keys `key`. Columns out: `key`.
    """
    asked = keys.select("key", F.lit(None).cast("string").alias("key_change"))
    related = halves.select("key", "key_change").unionByName(asked).repartition(1)
    return map_in_arrow(related, key_changes.connected_keys, "key string")
