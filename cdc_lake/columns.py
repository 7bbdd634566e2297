"""Names and types of the columns that are the toolkit's own. The only place where they are written down."""

import re

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
SEEN = "__seen"
"""Column of the side table: the last place in a key's log that was considered, whether or not the event counted."""
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
    "move": "string",
    "awaits": "string",
    ORDER: ORDER_TYPE,
    KAFKA: KAFKA_TYPE,
    SEEN: KAFKA_TYPE,
    "image": "string",
    BATCH: "bigint",
    "at_ms": "bigint",
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
