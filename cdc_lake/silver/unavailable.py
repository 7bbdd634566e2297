"""Values that were not sent.

Postgres does not log a large value that an update leaves alone; the connector then sends a placeholder instead, which
must never reach a table: the row keeps its value. The placeholder's form depends on the column's type. For a Cassandra
cell it is null. Sources:
Debezium's `UnchangedToastedPlaceholder` and `unavailable.value.placeholder`; docs/explanation/ordering-and-deletes.md
"Placeholders".
"""

import base64
import hashlib
import uuid
from collections.abc import Callable, Collection, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.decode.envelope import is_cell
from cdc_lake.decode.schemas import Tree, connect_name, is_decimal, non_null


def unavailable(
    fields: Mapping[str, Tree],
    row: Column,
    placeholder: str,
    null_means_unchanged: Collection[str] = (),
    *,
    before: Column | None = None,
    columns_of: Callable[[str], Collection[str]] = lambda name: (name,),
) -> Column:
    """The names of the columns that were not sent, array<string>; empty if all were.

    Args:
        fields: the row's columns as in the value's schema.
        row: the struct with the columns as `from_avro` returns them.
        placeholder: the connector's `unavailable.value.placeholder`.
        null_means_unchanged: columns for which the connector sends null, or which it omits from the schema, because
            their type has no placeholder.
        before: the row before the change, if known. A column with a value there was set to null.
        columns_of: the silver columns that store a source column, which the result names.
    """
    names: list[Column] = []
    for name, tree in fields.items():
        missing = _is_placeholder(non_null(tree), row[name], placeholder)
        if name in null_means_unchanged:
            is_null = row[name].isNull() if before is None else row[name].isNull() & before[name].isNull()
            missing = is_null if missing is None else is_null | missing
        if missing is not None:
            names.extend(F.when(missing, column) for column in columns_of(name))
    absent = (name for name in null_means_unchanged if name not in fields)
    names.extend(F.lit(column) for name in absent for column in columns_of(name))
    return F.array_compact(F.array(*names)) if names else F.array().cast("array<string>")


def can_be_unavailable(tree: Tree) -> bool:
    """Whether a placeholder may replace a column of this type."""
    return _is_placeholder(non_null(tree), F.lit(None), "") is not None


def may_contain_placeholder(body: Column, placeholder: str) -> Column:
    """Whether Avro bytes contain a placeholder in any form, boolean: a quick check that is mostly false.

    Args:
        body: binary.
        placeholder: the connector's `unavailable.value.placeholder`.
    """
    raw = placeholder.encode()
    texts = (raw, base64.b64encode(raw), raw.hex().encode(), _as_uuid(raw).encode(), _as_numbers(raw))
    has_placeholder = F.lit(False)
    for text in texts:
        has_placeholder = has_placeholder | F.contains(body, F.lit(text))
    return has_placeholder


def _as_uuid(raw: bytes) -> str:
    """The placeholder in an array of UUIDs: the name-based UUID of its bytes."""
    return str(uuid.UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3))


def _as_numbers(raw: bytes) -> bytes:
    """The placeholder in an array of numbers, one per byte, in Avro's encoding."""
    zigzag = (code * 2 if code >= 0 else -2 * code - 1 for code in _signed(raw))
    return b"".join(bytes([n]) if n < 128 else bytes([n % 128 + 128, n // 128]) for n in zigzag)


def _signed(raw: bytes) -> list[int]:
    """Bytes as Java's numbers, from -128 to 127."""
    return [code - 256 if code > 127 else code for code in raw]


def _is_placeholder(tree: Tree, value: Column, placeholder: str) -> Column | None:
    raw = placeholder.encode()
    kind = tree["type"]
    if kind == "string":
        if connect_name(tree) in _NEVER_LARGE:
            return None
        return value.isin(
            placeholder, base64.b64encode(raw).decode(), raw.hex(), f'{{"{placeholder}":"{placeholder}"}}'
        )
    if kind == "bytes" and not is_decimal(tree):
        return value == F.lit(raw)
    if kind == "map" and non_null(tree["values"])["type"] == "string":
        return value[placeholder] == F.lit(placeholder)
    if kind == "array":
        return _is_placeholder_array(non_null(tree["items"]), value, placeholder)
    return value.isNull() if is_cell(tree) else None


def _is_placeholder_array(items: Tree, value: Column, placeholder: str) -> Column | None:
    raw = placeholder.encode()
    kind = items["type"]
    if kind == "string":
        return (F.size(value) == 1) & value[0].isin(placeholder, _as_uuid(raw))
    if kind == "bytes" and not is_decimal(items):
        return (F.size(value) == 1) & (value[0] == F.lit(raw))
    if kind in ("int", "long"):
        return value == F.array(*(F.lit(code).cast("bigint" if kind == "long" else "int") for code in _signed(raw)))
    return None


_NEVER_LARGE = frozenset(
    (
        *(f"io.debezium.time.{name}" for name in ("IsoDate", "IsoTime", "IsoTimestamp", "Interval")),
        *("io.debezium.time.ZonedTimestamp", "io.debezium.time.ZonedTime", "io.debezium.data.Enum"),
    )
)
