"""Which delete and which insert are the two halves of a primary-key change.

Debezium sends such a change as a delete of the old key, with the new key in a header, and an insert of the new key,
with the old key in a header. Both have the change's position in the source's log. Source: Debezium's
`RelationalChangeRecordEmitter`; docs/explanation/ordering-and-deletes.md "Key changes".
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.fold.rules import SHARED

_NEW_KEY = "__debezium.newkey"
_OLD_KEY = "__debezium.oldkey"


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
    found = F.filter(headers, lambda h: h["key"] == name)
    return F.try_element_at(found, F.lit(-1))["value"].cast("string")


def _sorted_columns(key_text: Column) -> Column:
    """A key's columns and their values as texts, sorted by name; null if the text is not a JSON object."""
    return F.array_sort(F.map_entries(F.from_json(key_text, "map<string, string>")))
