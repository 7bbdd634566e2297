"""Explain why a record fails to decode: fastavro re-reads records that Spark rejected."""

import base64
import io
import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import fastavro
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.bronze.decide import DECODE_STAGE
from cdc_lake.decode.framing import body
from cdc_lake.decode.json import sent_name
from cdc_lake.decode.records import WriterSchema
from cdc_lake.decode.schema_texts import compact, without_logical_types
from cdc_lake.decode.schemas import Tree, decimal_size, fields, is_decimal, non_null, type_name
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.spark.arrow_stage import from_rows

_EXPLAINED_ROWS, _EXPLAINED_BYTES = 100, 256 << 10
"""The driver reads this many undecodable records of a batch again, up to this size, to find the exact reason."""


def with_reasons(
    rows: DataFrame, schemas: SchemaFiles, frames: Collection[str], example: tuple[int, int] | None
) -> tuple[DataFrame, str | None]:
    """Replace the error message of the first rows that did not decode by the exact reason.

    Args:
        rows: the columns of `bronze_rows`.
        example: the partition and offset of a row whose message the caller wants.

    Returns:
        The rows, and the message of the example; None if more than 100 other rows did not decode.
    """
    sides, wanted, found = ("value", "key"), F.lit(False), None
    if example:
        wanted = (F.col("partition") == example[0]) & (F.col("offset") == example[1])
    bodies = {side: body(F.col(f"raw_{side}"), F.col("framing")[side], frames) for side in sides}
    small = (F.when(F.length(body) <= _EXPLAINED_BYTES, body).alias(side) for side, body in bodies.items())
    sample = rows.where((F.col("error.stage") == DECODE_STAGE) | wanted)
    sample = sample.select("partition", "offset", "error", "key_schema", "value_schema", *small)
    reasons = []
    for row in sample.limit(_EXPLAINED_ROWS).collect():
        message, at = row["error"]["message"], (row["partition"], row["offset"])
        side = next((side for side in sides if message.startswith(f"{side}: ")), None)
        if row["error"]["stage"] == DECODE_STAGE and side and row[side] is not None:
            schema = schemas.by_fingerprint(row[f"{side}_schema"])
            message = f"{side}: {reason(schema, bytes(row[side]))}"
            reasons.append((*at, message))
        found = message if at == example else found
    if not reasons:
        return rows, found
    known = from_rows(rows.sparkSession, reasons, "partition int, offset bigint, reason string")
    message = F.coalesce("reason", F.col("error.message"))
    error = F.when(F.col("error").isNotNull(), F.col("error").withField("message", message))
    joined = rows.join(F.broadcast(known), ["partition", "offset"], how="left")
    return joined.withColumn("error", error).select(*rows.columns), found


def reason(schema: WriterSchema, body: bytes) -> str:
    """Why `body` is not a record of `schema`, with the field where reading fails, without its values."""
    if schema.format != "avro" and not _is_utf8(body):
        return "the text is not UTF-8"
    if schema.format in ("csv", "string"):
        return f"the text does not have {len(fields(schema.tree))} values, one for each declared column"
    if schema.format != "avro":
        return _json_reason(schema, body)
    stream, unfit = io.BytesIO(body), list[str]()
    try:
        for path, tree, value in _leaves(schema.tree, stream, ""):
            size = decimal_size(tree) if is_decimal(tree) else None
            if size and not value:
                unfit.append(f"`{path}` is a decimal without bytes")
            elif size and not _fits(value, size[0]):
                unfit.append(f"`{path}` has more digits than its {size[0]}")
    except _Stopped as stopped:
        at, cause = f", at `{stopped.path}`" if stopped.path else "", stopped.__cause__
        if isinstance(cause, UnicodeDecodeError):
            return f"one of its texts is not UTF-8{at}"
        if isinstance(cause, EOFError | IndexError) and stream.tell() == len(body):
            return f"the bytes end in the middle of the record{at}"
        return f"the bytes do not fit the schema ({type(cause).__name__} at byte {stream.tell()} of {len(body)}){at}"
    left = len(body) - stream.tell()
    if left:
        return f"{left} bytes are left over after the record"
    return "; ".join(unfit) or "a value does not fit its column's type"


def _fits(unscaled: bytes, digits: int) -> bool:
    limit: int = 10**digits
    return -limit < int.from_bytes(unscaled, "big", signed=True) < limit


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _json_reason(schema: WriterSchema, body: bytes) -> str:
    try:
        content = json.loads(body.decode())
    except (ValueError, RecursionError):
        return "the text is not one JSON value"
    if schema.format == "connect" and isinstance(content, dict):
        content = content.get("payload")
    unfit = _misfit(schema.tree, content, "")
    return f"the value of `{unfit[0]}` is not {unfit[1]}" if unfit else "the text is not one value that fits its schema"


def _misfit(tree: Tree, value: Any, path: str) -> tuple[str, str] | None:
    """The path and the type of the first value of a JSON text that Spark cannot read; none if there is none."""
    tree = non_null(tree)
    parts: Iterable[tuple[Tree, Any, str]] = ()
    match tree["type"], value:
        case _, None:
            return None
        case "record", dict():
            inside = f"{path}." if path else ""
            parts = ((f["type"], value.get(sent_name(f)), inside + f["name"]) for f in tree["fields"])
        case "array", list():
            parts = ((tree["items"], item, path) for item in value)
        case "map", dict():
            parts = ((tree["values"], item, path) for item in value.values())
        case _ if not _is_json_value(tree, value):
            return path, type_name(tree)
    return next(filter(None, (_misfit(*part) for part in parts)), None)


def _is_json_value(tree: Tree, value: Any) -> bool:
    kind = tree["type"]
    match kind:
        case "string" | "text":
            return True
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            most = 2**31 if kind == "int" else 2**63
            return type(value) is int and -most <= value < most
        case "bytes" | "decimal":
            is_number = kind == "decimal" and type(value) in (int, float)
            return is_number or (isinstance(value, str) and _is_base64(value))
    return False


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def fields_read(schema: WriterSchema, body: bytes) -> tuple[dict[str, Any], str | None]:
    """The values that an Avro schema reads from a body, up to the first failure.

    Returns:
        The Avro values by field path, and the path of the failure; None if it reads all.
    """
    stream, values = io.BytesIO(body), dict[str, Any]()
    try:
        for path, _, value in _leaves(schema.tree, stream, ""):
            values[path] = value
    except _Stopped as stopped:
        return values, stopped.path
    return values, None


class _Stopped(Exception):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def _leaves(tree: Tree, stream: io.BytesIO, path: str) -> Iterator[tuple[str, Tree, Any]]:
    """Path, type and value of the fields that are not records, in order."""
    if tree["type"] == "record":
        for name, inner in fields(tree).items():
            yield from _leaves(inner, stream, f"{path}.{name}" if path else name)
        return
    if tree["type"] == "union":
        number = _read({"type": "long"}, stream, path)
        if not 0 <= number < len(tree["branches"]):
            raise _Stopped(path) from ValueError(f"the union has no branch {number}")
        yield from _leaves(tree["branches"][number], stream, path)
        return
    yield path, tree, _read(tree, stream, path)


def _read(tree: Tree, stream: io.BytesIO, path: str) -> Any:
    try:
        return fastavro.schemaless_reader(stream, _parsed(tree), None)
    except Exception as exc:  # fastavro can raise any exception
        raise _Stopped(path) from exc


def reads(schema: WriterSchema, body: bytes) -> bool:
    """Whether a schema consumes all bytes of a body; for other formats than Avro, whether the body is text."""
    stream = io.BytesIO(body)
    try:
        if schema.format != "avro":
            return bool(body.decode())
        fastavro.schemaless_reader(stream, _parsed(schema.tree), None)
    except Exception:  # fastavro can raise any exception
        return False
    return stream.tell() == len(body)


def _parsed(tree: Tree) -> Any:
    # Checked when it was loaded: no recursion and no items of size 0, so this reader cannot loop or overflow.
    return fastavro.parse_schema(without_logical_types(json.loads(compact(tree))))
