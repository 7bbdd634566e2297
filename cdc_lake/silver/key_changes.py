"""Changes of primary keys: which delete and which insert are the two halves of one, and the values it passes on.

Debezium sends such a change as a delete of the old key, with the new key in a header, and an insert of the new key,
with the old key in a header. Both have the change's position in the source's log. Source: Debezium's
`RelationalChangeRecordEmitter`; docs/explanation/ordering-and-deletes.md "Key changes".

A *lifetime* of a key lasts from an upsert to the next delete. When a key change ends a lifetime, silver keeps the large
values sent in it, its *image*: the other half of the change may arrive later, or again. `fold.key_changes` decides
which of the values a row inherits.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import DELETE, IMAGE_ENTRY, KAFKA, KAFKA_TYPE, UNAVAILABLE, quoted
from cdc_lake.fold import key_changes
from cdc_lake.fold.rules import SHARED
from cdc_lake.silver.rows import INHERITED_COLUMNS, INHERITED_VALUES, collect_large_values
from cdc_lake.spark.arrow_stage import map_in_arrow

_NEW_KEY = "__debezium.newkey"
_OLD_KEY = "__debezium.oldkey"
_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_COLUMNS = ("id", "key", "key_change", "kafka_position", "moved_by", "large_values")


def has_key_change_headers(headers: Column) -> Column:
    """Whether a record is half of a key change, boolean, never null.

    Args:
        headers: array<struct<key: string, value: binary>>.
    """
    return F.coalesce(F.exists(headers, lambda h: h["key"].isin(_NEW_KEY, _OLD_KEY)), F.lit(False))


def key_change_id(headers: Column, position: Column, domain: Column, ts_ms: Column, key: Column) -> Column:
    """The ID of the key change that a record is half of, string; the same for both halves.

    It consists of the position and, if other events share it, of the two keys. Without a position, it consists of the
    time and the keys. Null for other records, and for halves that cannot be linked: there is no position, and the
    header is not the JSON text of a key. Keys are compared as texts: numbers, texts and booleans agree; columns of
    other types may not. Then the halves have different IDs, which loses only the values that were not sent.

    Args:
        headers: array<struct<key: string, value: binary>>.
        position: position in the source's log, array<bigint>.
        domain: the domain of the position, string.
        ts_ms: commit time in the source in milliseconds, bigint.
        key: the record's own key, canonical text.
    """
    is_old_half = F.exists(headers, lambda h: h["key"] == _NEW_KEY)
    own = _sorted_columns(key)
    other = _sorted_columns(
        F.when(is_old_half, _last_header(headers, _NEW_KEY)).otherwise(_last_header(headers, _OLD_KEY))
    )
    where = (domain.alias("domain"), position.alias("position"), ts_ms.alias("ts_ms"))
    keys = (
        F.when(is_old_half, own).otherwise(other).alias("old"),
        F.when(is_old_half, other).otherwise(own).alias("new"),
    )
    are_keys_known = own.isNotNull() & other.isNotNull()
    is_shared = F.element_at(position, -1) == SHARED
    name = (
        F.when(is_shared & are_keys_known, F.to_json(F.struct(*where, *keys)))
        .when(position.isNotNull(), F.to_json(F.struct(*where)))
        .when(are_keys_known, F.to_json(F.struct(ts_ms.alias("ts_ms"), *keys)))
    )
    return F.when(has_key_change_headers(headers), name)


def _last_header(headers: Column, name: str) -> Column:
    matches = F.filter(headers, lambda h: h["key"] == name)
    return F.try_element_at(matches, F.lit(-1))["value"].cast("string")


def _sorted_columns(key_text: Column) -> Column:
    """A key's columns and their values as texts, sorted by name; null if the text is not a JSON object."""
    return F.array_sort(F.map_entries(F.from_json(key_text, "map<string, string>")))


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
    lifetimes = collect_large_values(pieces, of_lifetime, large)
    if stored is not None:
        kept = (F.when(F.array_contains("kept", name), F.col("stored")[name]) for name in large)
        large_values = (
            F.coalesce(F.col("large_values")[n], of_row).alias(n) for n, of_row in zip(large, kept, strict=True)
        )
        lifetimes = lifetimes.join(stored, "key", "left").withColumn("large_values", F.struct(*large_values))
    return lifetimes.withColumn(
        "id", F.to_json(F.struct(F.col("key_change").alias("move"), F.col("kafka_position").alias("place")))
    ).select(*_COLUMNS)


def stored_values(silver: DataFrame, large: Mapping[str, str]) -> DataFrame:
    """`stored` of `ended_lifetimes`, from silver rows with `key`."""

    def value(name: str, spark_type: str) -> Column:
        if name not in silver.columns:
            return F.lit(None).cast(f"struct<v: {spark_type}>").alias(name)
        is_there = ~F.array_contains(UNAVAILABLE, name)
        return F.when(is_there, F.struct(F.col(quoted(name)).cast(spark_type).alias("v"))).alias(name)

    return silver.select("key", F.struct(*(value(*column) for column in large.items())).alias("stored"))


def stored_lifetimes(entries: DataFrame, large: Mapping[str, str]) -> DataFrame:
    """The lifetimes that earlier batches' key changes ended, from side-table entries; `ended_lifetimes`' columns."""
    values = F.from_json("image", "map<string, string>")
    large_values = (
        F.from_json(values[name], f"struct<v: {spark_type}>", _JSON).alias(name) for name, spark_type in large.items()
    )
    columns = {
        "key_change": F.col("move"),
        "kafka_position": F.col(KAFKA),
        "moved_by": F.col("awaits"),
        "large_values": F.struct(*large_values),
    }
    lifetimes = entries.where(F.col("kind") == IMAGE_ENTRY)
    return lifetimes.select(*(columns.get(name, F.col(name)).alias(name) for name in _COLUMNS))


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
    inherited = map_in_arrow(narrow.repartition(1), key_changes.inherit, key_changes.INHERITED)
    joined = inherited.join(lifetimes.select("id", "large_values"), "id")
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


def connected_keys(history: DataFrame, keys: DataFrame) -> DataFrame:
    """Keys, and those that key changes connect to them.

    Columns in: of the history bronze's; of keys `key`. Columns out: `key`.
    """
    of_change = ("headers", "source_position", "position_domain", "source_ts_ms", "key")
    halves = history.where(has_key_change_headers(F.col("headers")) & F.col("tombstone_of").isNull())
    halves = halves.select("key", key_change_id(*map(F.col, of_change)).alias("key_change"))
    asked = keys.select("key", F.lit(None).cast("string").alias("key_change"))
    related = halves.where(F.col("key_change").isNotNull()).unionByName(asked).repartition(1)
    return map_in_arrow(related, key_changes.connected_keys, "key string")
