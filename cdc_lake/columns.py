"""Names and types of the columns that are the toolkit's own. The only place where they are written down."""

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

KEEP = "__keep"
"""Column of a change: names of the columns in which the stored row's value stays."""
DELETE = "__delete"
"""Column of a change: whether the row goes."""
