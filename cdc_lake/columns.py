"""Names and types of the columns that are the toolkit's own. The only place where they are written down."""

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

BRONZE = {
    "batch": "bigint",
    "first_batch": "bigint",
    "ingest_date": "date",
    "topic": "string",
    "generation": "int",
    "partition": "int",
    "offset": "bigint",
    "kafka_timestamp": "timestamp",
    "headers": "array<struct<key: string, value: binary>>",
    "log_ts": "bigint",
    "status": "string",
    "error": "struct<stage: string, code: string, message: string>",
    "late": "boolean",
    "tombstone_of": "bigint",
    "op": "string",
    "source_ts_ms": "bigint",
    "source_position": "array<bigint>",
    "position_domain": "string",
    "snapshot": "string",
    "transaction_id": "string",
    "key": "string",
    "key_schema": "string",
    "value_schema": "string",
    "framing": "struct<key: string, value: string>",
    "raw_key": "binary",
    "raw_value": "binary",
}
"""Bronze's columns and their types: no change of a source ever alters them."""
TYPED = ("before", "after")
"""Behind them, of tables with `decoded: true`, the rows as structs; their fields follow the source."""
BRONZE_STATISTICS = ("batch", "partition", "offset", "log_ts", "status", "key", "source_ts_ms")

KAFKA = "__kafka"
KAFKA_TYPE = "struct<log_ts: bigint, topic: string, generation: int, partition: int, offset: bigint>"
"""Log order, most significant first: it is total, and inside a partition it is the offset."""
ORDER = "__order"
ORDER_TYPE = "struct<position: array<bigint>, domain: string, ts_ms: bigint>"
"""What the stale rule needs to know of a key's last accepted streaming event."""
DELETED = "__deleted"
BATCH = "__batch"
UNAVAILABLE = "__unavailable"

SILVER_META = {
    "__op": "string",
    DELETED: "boolean",
    "__source_ts_ms": "bigint",
    "__source_position": "array<bigint>",
    "__snapshot": "string",
    KAFKA: KAFKA_TYPE,
    ORDER: ORDER_TYPE,
    BATCH: "bigint",
    UNAVAILABLE: "array<string>",
}

META = "meta"
META_TYPE = (
    "struct<kafka: struct<topic: string, generation: int, partition: int, offset: bigint, timestamp: timestamp>>"
)
"""Column of a row that was appended: which record it is. `timestamp` is Kafka's."""

KEY = "__key"
"""Column of a change: the key's canonical text, which is the record key of a Hudi table."""
KEEP = "__keep"
"""Column of a change: names of the columns in which the stored row's value stays."""
DELETE = "__delete"
"""Column of a change: whether the row goes."""
GONE = "__gone"
"""Column of a row that is sent to a topic: whether it went, so that only its key counts."""
HUDI_PREFIX = "_hoodie_"
"""How the columns begin that are Hudi's own."""

SIDE = {
    "kind": "string",
    "id": "string",
    "key": "string",
    "awaits": "string",
    ORDER: ORDER_TYPE,
    KAFKA: KAFKA_TYPE,
    "image": "string",
    UNAVAILABLE: "array<string>",
    BATCH: "bigint",
    "at_ms": "bigint",
}
"""A silver table's memory: one entry per (kind, id); `kind` is one of `SIDE_KINDS`, the rest depends on it.

`id` is the key's text, the move's, the place of a rejected event, or empty. `key` is the key concerned. `awaits` names
a move whose image an entry lacks. `image` holds large values as JSON by column name, or what a rejected event did not
meet, `__unavailable` the names of those values that are missing even there. `__batch` is silver's commit number,
`at_ms` when it was made.
"""
DELETED_ENTRY, MOVED_ENTRY, AWAITING_ENTRY = "deleted", "moved", "awaiting"
TRUNCATED_ENTRY, SNAPSHOT_ENTRY, REJECTED_ENTRY = "truncated", "snapshot", "rejected"
SIDE_KINDS = (DELETED_ENTRY, MOVED_ENTRY, AWAITING_ENTRY, TRUNCATED_ENTRY, SNAPSHOT_ENTRY, REJECTED_ENTRY)


def quoted(name: str) -> str:
    """A column name as Spark SQL takes it, whatever characters it holds."""
    return "`" + name.replace("`", "``") + "`"


def type_text(kind: DataType) -> str:
    """A type as Spark SQL takes it, whatever characters the names of its fields hold."""
    if isinstance(kind, StructType):
        inner = ", ".join(f"{quoted(field.name)}: {type_text(field.dataType)}" for field in kind)
        return f"struct<{inner}>"
    if isinstance(kind, ArrayType):
        return f"array<{type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.keyType)}, {type_text(kind.valueType)}>"
    return kind.simpleString()
