"""Names and types of the columns that are the toolkit's own. The only place where they are written down."""

import re

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
    "late": "boolean",  # Whether the record was replayed, so that records behind it came before.
    "tombstone_of": "bigint",  # Offset of the delete that this tombstone follows directly; null for other records.
    "op": "string",  # Debezium's operation, such as `r`, `c`, `u`, `d` or `t`.
    "source_ts_ms": "bigint",  # Time of the change at the source, in ms since 1970.
    "source_position": "array<bigint>",  # Position in the source's log. Compares within one `position_domain`.
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
"""Bronze's columns and their types: no change of a source ever alters them."""
TYPED = ("before", "after")
"""Behind them, of tables with `value.decoded: true`, the rows as structs; their fields follow the source."""
BRONZE_STATISTICS = ("batch", "partition", "offset", "log_ts", "status", "key", "source_ts_ms")

KAFKA = "__kafka"
KAFKA_TYPE = "struct<log_ts: bigint, topic: string, generation: int, partition: int, offset: bigint>"
"""Log order, most significant first: it is total, and inside a partition it is the offset."""
ORDER = "__order"
ORDER_TYPE = "struct<position: array<bigint>, domain: string, ts_ms: bigint>"
"""What the stale rule needs to know of a key's last accepted streaming event."""
SEEN = "__seen"
"""Column of the side table: the last place in a key's log that was considered, whether or not the event counted."""
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
    "kind": "string",  # `key`, `image`, `table` or `rejected`.
    "id": "string",  # Identifies the entry among those of its kind.
    "key": "string",  # Canonical text of the key that the entry is about.
    "move": "string",  # Of an `image`: the key change that left the values.
    "awaits": "string",  # Key change that may bring values which the row lacks.
    ORDER: ORDER_TYPE,  # As in silver: of a removed row, or of the last truncate.
    KAFKA: KAFKA_TYPE,  # As in silver: of a removed row, an image, the last truncate or a snapshot's start.
    SEEN: KAFKA_TYPE,  # Last event that was considered, whether or not it counted.
    "image": "string",  # Values that a key change left, as JSON; of `rejected`: the unmet expectations.
    BATCH: "bigint",  # Silver commit that wrote the entry.
    "at_ms": "bigint",  # Time of that commit, in ms since 1970.
}
"""A silver table's memory: one entry per (kind, id); `kind` is one of `SIDE_KINDS`, the rest depends on it.

`key`: of a key whose row is gone, `__kafka` and `__order` as the row would have them; of any key `__seen`, the last
place that was considered, where it is another; `awaits`, the key change that may leave what the row lacks. `image`:
what the key change `move` left of `key` at `__kafka`, large values as JSON by column, and what that lifetime `awaits`.
`table`: of id `start`, the last truncate, `__kafka` and `__order`, and the last whole-table event, `__seen`; of id
`snapshot`, the start of one that has not ended. `rejected`: the place of an event, and in `image` what it did not meet.
`__batch` is silver's commit number, `at_ms` when it was made.
"""
KEY_ENTRY, IMAGE_ENTRY, TABLE_ENTRY, REJECTED_ENTRY = SIDE_KINDS = ("key", "image", "table", "rejected")
START_ID, SNAPSHOT_ID = "start", "snapshot"
OLD_KINDS = {
    "deleted": KEY_ENTRY,
    "awaiting": KEY_ENTRY,
    "moved": IMAGE_ENTRY,
    "truncated": TABLE_ENTRY,
    "snapshot": TABLE_ENTRY,
}
"""What versions up to 0.1.0 called them."""


_NOT_IN_NAMES = re.compile("[ ,;{}()=\\x00-\\x1f\\x7f\\ud800-\\udfff]")
"""What Delta takes in no column's name, and control characters and halves of a character, which no reader takes."""


def name_problem(name: str, *, in_hudi: bool = False) -> str | None:
    """Why no column or field can have a name in Delta, or in Hudi; none if one can."""
    if not name:
        return "a column needs a name"
    if in_hudi and not name.isidentifier():
        return f"Hudi cannot have a column or field {name!r}: names have letters, digits and `_` there"
    if _NOT_IN_NAMES.search(name):
        return f"no table can have a column or field {name!r}: names have no spaces, control characters or ,;{{}}()="
    return None


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
