"""Why a record does not decode, in words: the slow reader goes through the few records that the fast one refused."""

import io
import json
from typing import Any

import fastavro

from cdc_lake.events.decode import WriterSchema
from cdc_lake.events.schemas import compact


def reason(schema: WriterSchema, body: bytes) -> str:
    """Why `body` is not a record of `schema`. Never the record's values."""
    if schema.format != "avro":
        return f"the text is not one {schema.format.upper()} value that fits its schema"
    parsed, stream = _parsed(schema), io.BytesIO(body)
    try:
        fastavro.schemaless_reader(stream, parsed, None)
    except Exception as exc:  # fastavro raises whatever its decoder stumbles over
        if isinstance(exc, EOFError | IndexError) and stream.tell() == len(body):
            return "the bytes end in the middle of the record"
        return f"the bytes do not fit the schema ({type(exc).__name__} at byte {stream.tell()} of {len(body)})"
    left = len(body) - stream.tell()
    return f"{left} bytes are left over behind the record" if left else "a value does not fit its column's type"


def reads(schema: WriterSchema, body: bytes) -> bool:
    """Whether a schema consumes a body to its last byte; of a format that is no Avro, whether the body is text."""
    stream = io.BytesIO(body)
    try:
        if schema.format != "avro":
            return bool(body.decode())
        fastavro.schemaless_reader(stream, _parsed(schema), None)
    except Exception:  # fastavro raises whatever its decoder stumbles over
        return False
    return stream.tell() == len(body)


def _parsed(schema: WriterSchema) -> Any:
    # Linted when it was read: no recursion, no items without size, so this reader cannot be brought down.
    return fastavro.parse_schema(_without_logical_types(json.loads(compact(schema.tree))))


def _without_logical_types(content: Any) -> Any:
    if isinstance(content, dict):
        return {k: _without_logical_types(v) for k, v in content.items() if k != "logicalType"}
    return [_without_logical_types(c) for c in content] if isinstance(content, list) else content
