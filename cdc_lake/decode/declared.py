"""What the schemas of a source's records say of its columns, apart from their types."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

_ROW_FIELDS = ("before", "after")
_COMMENT = "__debezium.source.column.comment"
_TYPE = "__debezium.source.column.type"


def column_comments(text: str) -> dict[str, str]:
    """The comments of a table's columns, by name; without a comment, the source's type if it is sent.

    Debezium sends comments with `include.schema.comments`, types with `column.propagate.source.type`.

    Args:
        text: the schema of a value, an envelope or a flattened row; of a schema that is not Avro, nothing is known.
    """
    comments = {name: _comment(field) for name, field in _columns(text).items()}
    return {name: comment for name, comment in comments.items() if comment}


def columns_that_lose_nulls(text: str) -> list[str]:
    """The nullable columns with a default, sorted: a null in them arrives as the default.

    The converters replace it, and no consumer can tell the two apart. Source: Connect's `Struct.get`.

    Args:
        text: see `column_comments`.
    """
    return sorted(name for name, field in _columns(text).items() if _loses_nulls(field))


def _columns(text: str) -> dict[str, Any]:
    """The fields of a row by name."""
    fields = _fields(json.loads(text))
    rows = [row for name in _ROW_FIELDS if name in fields for row in _records(fields[name]["type"])]
    return _fields(rows[0]) if rows else fields


def _loses_nulls(field: Any) -> bool:
    branches = field["type"] if isinstance(field["type"], list) else []
    defaults = [field.get("default"), *(one.get("connect.default") for one in branches if isinstance(one, dict))]
    return "null" in branches and any(default is not None for default in defaults)


def _fields(schema: Any) -> dict[str, Any]:
    found = schema.get("fields", []) if isinstance(schema, dict) else []
    return {field["name"]: field for field in found if isinstance(field, dict) and "name" in field}


def _records(kind: Any) -> Iterator[Any]:
    """The record that a field's type defines; the second of two row fields only refers to it."""
    branches: Iterable[Any] = kind if isinstance(kind, list) else [kind]
    return (branch for branch in branches if isinstance(branch, dict) and branch.get("type") == "record")


def _comment(field: Any) -> str:
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    described = [kind for kind in kinds if isinstance(kind, dict)]
    parameters = [kind.get("connect.parameters", {}) for kind in described]
    candidates = (
        *(of.get(_COMMENT) for of in parameters),
        field.get("doc"),
        *(kind.get("connect.doc") for kind in described),
        *(of.get(_TYPE) for of in parameters),
    )
    return next((one for one in candidates if isinstance(one, str) and one), "")
