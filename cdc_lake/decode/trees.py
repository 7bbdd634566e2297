"""Schemas of records as trees, in which each type is written out where it is used.

A record is `{"type": "record", "name": <full name>, "fields": …}`, a union `{"type": "union", "branches": […]}`. A tree
keeps the properties that determine a value's meaning: schemas that differ only in documentation or defaults have equal
trees. `decode.schemas` makes trees from texts.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Tree = dict[str, Any]

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
MAX_DECIMAL_PRECISION = 38
"""Spark's widest decimal."""


def record(name: str, fields: Mapping[str, Tree]) -> Tree:
    """A record tree."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def fixed(name: str, size: int) -> Tree:
    """A tree for `size` bytes."""
    return {"type": "fixed", "name": name, "size": size}


def fields(tree: Tree) -> dict[str, Tree]:
    """The fields of a record tree by name, in order."""
    return {field["name"]: field["type"] for field in tree["fields"]}


def field_names(tree: Tree) -> Iterator[str]:
    """The names of all fields in a tree, at any depth."""
    if tree["type"] in ("record", "error"):
        yield from fields(tree)
    for child in children(tree):
        yield from field_names(child)


def non_null(tree: Tree) -> Tree:
    """The tree itself, or its only other branch if it is a union with null; other unions stay."""
    if tree["type"] != "union":
        return tree
    branches = [branch for branch in tree["branches"] if branch["type"] != "null"]
    return branches[0] if len(branches) == 1 else tree


def connect_name(tree: Tree) -> str | None:
    """Kafka Connect's name of the type, which gives a bare number or text its meaning."""
    name = tree.get("connect.name")
    return name if isinstance(name, str) else None


def is_nullable(tree: Tree) -> bool:
    """Whether a value may be null."""
    return tree["type"] == "null" or any(branch["type"] == "null" for branch in tree.get("branches", ()))


def type_name(tree: Tree) -> str:
    """The name of a type in messages."""
    inner = non_null(tree)
    if is_decimal(inner):
        return f"decimal({inner['precision']},{inner.get('scale', 0)})"
    return str(inner.get("logicalType") or inner.get("name") or inner["type"])


def differences(before: Tree, after: Tree, where: str = "") -> list[str]:
    """How a later schema differs from an earlier one, as texts; empty if the trees are equal.

    Args:
        where: the path to these trees from the top.
    """
    one, other = non_null(before), non_null(after)
    found = []
    if is_nullable(before) != is_nullable(after):
        found.append(f"`{where}` {'may be null now' if is_nullable(after) else 'may no longer be null'}")
    if one == other:
        return found
    if one["type"] == other["type"] == "record":
        if one["name"] != other["name"]:
            found.append(f"the record `{one['name']}` is called `{other['name']}` now")
        old, new = fields(one), fields(other)
        for name in old | new:
            path = f"{where}.{name}" if where else name
            if name not in new:
                found.append(f"`{path}` was removed")
            elif name not in old:
                found.append(f"`{path}` is new, {type_name(new[name])}")
            else:
                found.extend(differences(old[name], new[name], path))
        return found or [f"the order of the fields{f' of `{where}`' if where else ''} has changed"]
    for part in ("items", "values"):
        if part in one and part in other:
            return [*found, *differences(one[part], other[part], f"{where}[]")]
    return [*found, f"`{where}` was {type_name(one)} and is {type_name(other)} now"]


def is_decimal(tree: Tree) -> bool:
    """Whether the bytes are an unscaled decimal, or the value is a decimal of JSON (`decode.json`)."""
    if tree["type"] == "decimal":
        return True
    is_named = tree["type"] in ("bytes", "fixed") and tree.get("logicalType") == "decimal"
    return is_named and type(tree.get("precision")) is int and type(tree.get("scale", 0)) is int


def decimal_size(tree: Tree) -> tuple[int, int] | None:
    """Precision and scale of a decimal; none if it exceeds Spark's decimals.

    Connect does not know every column's precision: its converters then write 64.
    """
    scale = tree.get("scale", 0)
    precision = max(tree["precision"], scale)  # Postgres' numeric(3,5) is 0.00ddd
    return (precision, scale) if scale >= 0 and precision <= MAX_DECIMAL_PRECISION else None


def children(tree: Tree) -> Iterator[Tree]:
    """The types directly inside a type."""
    match tree["type"]:
        case "union":
            yield from tree["branches"]
        case "array":
            yield tree["items"]
        case "map":
            yield tree["values"]
        case "record" | "error":
            yield from (field["type"] for field in tree["fields"])


def duplicate_names(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that are equal, or differ only in case; no table can have both."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            return seen[name.lower()], name
        seen[name.lower()] = name
    return None
