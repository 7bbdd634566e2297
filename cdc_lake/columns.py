"""Names and types of cdc_lake's own columns in bronze, silver and the side tables."""

import re
from collections.abc import Collection

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

BRONZE = {
    "batch": "bigint",  # Bronze commit that brought the row, or replayed it. Silver reads by it.
    "first_batch": "bigint",  # Bronze commit that first stored the record.
    "ingest_date": "date",  # Day of that commit (UTC). Bronze is partitioned by it.
    "topic": "string",  # Kafka topic.
    "generation": "int",  # Number of times that the topic was re-created or lost the end of its log; 0 at first.
    "partition": "int",  # Kafka partition.
    "offset": "bigint",  # Kafka offset.
    "kafka_timestamp": "timestamp",  # Kafka's timestamp.
    "headers": "array<struct<key: string, value: binary>>",  # Kafka's headers.
    "log_ts": "bigint",  # Highest Kafka timestamp in the partition so far, in ms. Orders partitions.
    "status": "string",  # `ok`, `quarantined`, `control` or `dropped`.
    "error": "struct<stage: string, code: string, message: string>",  # Why the record is quarantined or dropped.
    "late": "boolean",  # Whether the record was replayed, and so landed after records that follow it in the log.
    "tombstone_of": "bigint",  # Offset of the delete that this tombstone follows directly; null for other records.
    "op": "string",  # Debezium's operation, such as `r`, `c`, `u`, `d` or `t`.
    "source_ts_ms": "bigint",  # Time of the change at the source, in ms since 1970.
    "source_position": "array<bigint>",  # Position in the source's log; it ends with -1 if events share it.
    "position_domain": "string",  # Log that the position belongs to, such as the server and database.
    "snapshot": "string",  # Debezium's snapshot marker.
    "transaction_id": "string",  # Id of the source's transaction.
    "key": "string",  # Canonical text of the key.
    "key_schema": "string",  # SHA-256 of the key's schema, the name of its file in `_schemas`.
    "value_schema": "string",  # SHA-256 of the value's schema, likewise.
    "framing": "struct<key: string, value: string>",  # How key and value name their schema, such as `id4`.
    "raw_key": "binary",  # Bytes of the key.
    "raw_value": "binary",  # Bytes of the value.
}
"""Bronze's columns and their types. Changes of a source do not alter them."""
BRONZE_STATISTICS = ("batch", "partition", "offset", "log_ts", "status", "key", "source_ts_ms")

KAFKA = "__kafka"
KAFKA_TYPE = "struct<log_ts: bigint, topic: string, generation: int, partition: int, offset: bigint>"
"""Log order, most significant field first. It is total; inside a partition it equals the order of offsets."""
ORDER = "__order"
ORDER_TYPE = "struct<position: array<bigint>, domain: string, ts_ms: bigint>"
"""The source order of a key's last accepted streaming event, for the rule of stale events."""
SEEN = "__seen"
"""Column of the side table: the last Kafka position that was processed for a key, even if its event was not applied."""
DELETED = "__deleted"
BATCH = "__batch"
UNAVAILABLE = "__unavailable"

SILVER_META = {
    "__op": "string",  # Operation that decided the row: `r`, `c`, `u`, `d`; `missing`: a new snapshot lacks it.
    DELETED: "boolean",  # Whether the row is deleted.
    "__source_ts_ms": "bigint",  # Time of the change at the source, in ms since 1970.
    "__source_position": "array<bigint>",  # Position in the source's log, such as Postgres' LSN.
    "__snapshot": "string",  # Debezium's snapshot marker.
    KAFKA: KAFKA_TYPE,  # Log time, topic, generation, partition and offset of the record.
    ORDER: ORDER_TYPE,  # Position and time of the last streaming event that counted.
    BATCH: "bigint",  # Silver commit that wrote the row.
    UNAVAILABLE: "array<string>",  # Columns whose value was never sent.
}

META = "meta"
META_TYPE = (
    "struct<kafka: struct<topic: string, generation: int, partition: int, offset: bigint, timestamp: timestamp>>"
)
"""Column of an appended row: the record it comes from. `timestamp` is Kafka's."""

KEY = "__key"
"""Column of a change: the key's canonical text, which is the record key of a Hudi table."""
KEEP = "__keep"
"""Column of a change: names of the columns that keep the stored row's value."""
DELETE = "__delete"
"""Column of a change: whether to delete the row."""
GONE = "__gone"
"""Column of a row that is sent to a topic: whether the row was deleted, so that only its key is sent."""
HUDI_PREFIX = "_hoodie_"
"""Prefix of Hudi's own columns."""
ICEBERG_NAMES = frozenset(
    {"_deleted", "_file", "_last_updated_sequence_number", "_partition", "_pos", "_row_id", "_spec_id"}
)
"""Iceberg's own columns; it cannot read a table that has a column of such a name."""

SIDE = {
    "kind": "string",  # `key`, `image`, `table` or `rejected`.
    "id": "string",  # Identifies the entry among those of its kind.
    "key": "string",  # Canonical text of the key that the entry is about.
    "move": "string",  # For an `image`: the key change that ended the values' lifetime.
    "awaits": "string",  # Key change that may bring values which the row lacks.
    ORDER: ORDER_TYPE,  # As in silver: of a removed row, or of the last truncate.
    KAFKA: KAFKA_TYPE,  # As in silver: of a removed row, an image, the last truncate or a snapshot's start.
    SEEN: KAFKA_TYPE,  # Last event that was considered, whether or not it counted.
    "image": "string",  # Values of a lifetime that a key change ended, as JSON; of `rejected`: the unmet expectations.
    BATCH: "bigint",  # Silver commit that wrote the entry.
    "at_ms": "bigint",  # Time of that commit, in ms since 1970.
}
"""A silver table's side table: one entry per (kind, id). `kind` is one of `SIDE_KINDS`; the other columns depend on it.

- `key`: for a deleted key, `__kafka` and `__order` as its row would have them. For any key, `__seen` is the last
  processed Kafka position if it differs, and `awaits` the key change that may provide values the row lacks.
- `image`: inherited values. The key change `move` left them of `key` at `__kafka`: large values as JSON by column, and
  what that key lifetime `awaits`.
- `table`: the id `start` has the last truncate in `__kafka` and `__order`, and the last whole-table event in `__seen`.
  The id `snapshot` has the start of a snapshot that has not ended.
- `rejected`: the Kafka position of a rejected event; `image` has the unmet expectation.

`__batch` is silver's commit number, `at_ms` its time.
"""
KEY_ENTRY, IMAGE_ENTRY, TABLE_ENTRY, REJECTED_ENTRY = SIDE_KINDS = ("key", "image", "table", "rejected")
START_ID, SNAPSHOT_ID = "start", "snapshot"
REJECTED_STAGE = "expectation"
"""The stage, in a record's `error`, of events that silver rejected."""

_SMALL = re.compile(r"\b(tinyint|smallint)(?=[,>]|$)")
_NOT_IN_NAMES = re.compile("[ ,;{}()=\\x00-\\x1f\\x7f\\ud800-\\udfff]")
"""Characters that Delta does not allow in names, control characters, and unpaired surrogates."""


def name_problem(name: str, formats: Collection[str] = ()) -> str | None:
    """Why a name is not allowed for columns and fields of tables; none if it is allowed.

    Args:
        formats: the tables' formats.
    """
    if not name:
        return "a column has an empty name"
    if "hudi" in formats and not name.isidentifier():
        return f"Hudi does not allow the column or field name {name!r}: use letters, digits and `_` only"
    if _NOT_IN_NAMES.search(name):
        return f"the column or field name {name!r} contains a space, a control character or one of ,;{{}}()="
    return None


def without_small_integers(spark_type: str) -> str:
    """A type with int instead of smaller integers, also in arrays, maps and structs."""
    return _SMALL.sub("int", spark_type)


def quoted(name: str) -> str:
    """A column name quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def type_text(data_type: DataType) -> str:
    """A type as Spark SQL text, with quoted field names."""
    if isinstance(data_type, StructType):
        inner = ", ".join(f"{quoted(field.name)}: {type_text(field.dataType)}" for field in data_type)
        return f"struct<{inner}>"
    if isinstance(data_type, ArrayType):
        return f"array<{type_text(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"map<{type_text(data_type.keyType)}, {type_text(data_type.valueType)}>"
    return data_type.simpleString()
