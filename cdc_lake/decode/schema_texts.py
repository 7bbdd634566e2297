"""Texts of schemas: fingerprints, texts without references, the shortest text of a tree, comments and lost nulls."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cdc_lake.decode.schemas import NAMED, PRIMITIVES, Tree, decimal_size, full_name, is_decimal, resolved_name

_ROW_FIELDS = ("before", "after")
_COMMENT = "__debezium.source.column.comment"
_TYPE = "__debezium.source.column.type"


def fingerprint(text: str) -> str:
    """The permanent ID of a schema text: its SHA-256 in hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def inline(text: str, referenced: Sequence[str]) -> str:
    """A self-contained text from one that refers to types defined in `referenced`.

    Args:
        referenced: the texts it refers to, in any order, including their own references.
    """
    definitions: dict[str, Any] = {}
    for other in referenced:
        content = json.loads(other)
        definitions[full_name(content, "")] = content
    return json.dumps(_with_definitions(json.loads(text), "", definitions, set()), separators=(",", ":"))


def without_logical_types(content: Any) -> Any:
    """A schema text's content without logical types, with which a reader would fail a whole record for one value."""
    if isinstance(content, dict):
        return {name: without_logical_types(part) for name, part in content.items() if name != "logicalType"}
    return [without_logical_types(part) for part in content] if isinstance(content, list) else content


def compact(tree: Tree) -> str:
    """The shortest text that decodes the same bytes: without documentation, defaults and logical types other than
    Spark's decimals.

    Other logical types are removed because a reader that maps them itself fails a whole record for one invalid date;
    `decode.types` maps them by Connect's name instead. Equal layouts give equal texts.

    Parts of names that only Avro 1.12 refuses are replaced, such as `2019` in `shop.public.2019.Key`.
    """
    return json.dumps(_compact(tree, {}), separators=(",", ":"))


def _compact(tree: Tree, defined: dict[str, str]) -> Any:
    """See `compact`; `defined` has the types so far: name in the text -> name in the tree."""
    kind = tree["type"]
    if kind == "union":
        return [_compact(branch, defined) for branch in tree["branches"]]
    if kind in PRIMITIVES:
        logical = _decimal(tree)
        return {"type": kind, **logical} if logical else kind
    if kind == "array":
        return {"type": "array", "items": _compact(tree["items"], defined)}
    if kind == "map":
        return {"type": "map", "values": _compact(tree["values"], defined)}
    name = ".".join(map(_part_of_name, tree["name"].split(".")))
    if defined.get(name, tree["name"]) != tree["name"]:
        name += f"_{len(defined)}"  # the name without replacements is another type's
    if name in defined:
        return name
    defined[name] = tree["name"]
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": tree["symbols"]}
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": tree["size"], **_decimal(tree)}
    inner = [{"name": f["name"], "type": _compact(f["type"], defined)} for f in tree["fields"]]
    return {"type": "record", "name": name, "fields": inner}


def _part_of_name(part: str) -> str:
    adjusted = re.sub(r"\W", "_", part)
    return adjusted if adjusted[:1].isalpha() or adjusted.startswith("_") else f"_{adjusted}"


def _decimal(tree: Tree) -> dict[str, Any]:
    """The logical type of a decimal that fits Spark's; nothing for other bytes."""
    size = decimal_size(tree) if is_decimal(tree) else None
    return {"logicalType": "decimal", "precision": size[0], "scale": size[1]} if size else {}


def _with_definitions(content: Any, namespace: str, definitions: Mapping[str, Any], placed: set[str]) -> Any:
    if isinstance(content, str):
        name = resolved_name(content, namespace, definitions)
        if name not in definitions or name in placed:
            return content
        placed.add(name)
        return _with_definitions(definitions[name], "", definitions, placed)
    if isinstance(content, list):
        return [_with_definitions(branch, namespace, definitions, placed) for branch in content]
    kind = content["type"]
    if kind in ("record", "error"):
        inside = full_name(content, namespace).rpartition(".")[0]
        inner = [{**f, "type": _with_definitions(f["type"], inside, definitions, placed)} for f in content["fields"]]
        return {**content, "fields": inner}
    for part in ("items", "values"):
        if part in content:
            return {**content, part: _with_definitions(content[part], namespace, definitions, placed)}
    if isinstance(kind, dict | list) or kind not in PRIMITIVES | NAMED:
        return {**content, "type": _with_definitions(kind, namespace, definitions, placed)}
    return content


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
    defaults = [field.get("default"), *(kind.get("connect.default") for kind in branches if isinstance(kind, dict))]
    return "null" in branches and any(default is not None for default in defaults)


def _fields(schema: Any) -> dict[str, Any]:
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    return {field["name"]: field for field in fields if isinstance(field, dict) and "name" in field}


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
    return next((text for text in candidates if isinstance(text, str) and text), "")
