"""Schemas of records as trees, in which each type is written out where it is used, and the parser of their texts, which
refuses dangerous ones: a registry's texts are untrusted.

A record is `{"type": "record", "name": <full name>, "fields": …}`, a union `{"type": "union", "branches": […]}`. A tree
keeps the properties that determine a value's meaning: schemas that differ only in documentation or defaults have equal
trees.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Tree = dict[str, Any]

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "error", "enum", "fixed"})
MAX_DECIMAL_PRECISION = 38
"""Spark's widest decimal."""

MAX_DEPTH = 64
MAX_TEXT_BYTES = 1 << 20
MAX_TYPES = 20_000
"""Limit on the types of a schema, each written out where it is used."""
MAX_FIXED_BYTES = 1 << 20
"""Limit on a `fixed`, which a reader allocates before it reads a byte."""
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A symbol of an enum, for fastavro."""
_LARGEST_INT = (1 << 31) - 1
_PROPERTIES = frozenset({"logicalType", "precision", "scale", "connect.name", "connect.type"})
"""Properties of a type that its tree keeps."""


class SchemaError(ValueError):
    """A schema text that cannot or must not be used. Its records are quarantined with the message."""


def parse(text: str) -> Tree:
    """Parse a self-contained schema text.

    A small hostile schema can crash a reader (recursion overflows the stack, zero-size items fill the memory), so
    anything that Debezium never writes is refused: recursion, more than 64 levels, more than 1 MiB, zero-size items,
    types that double with each level, a `fixed` of more than 1 MiB.

    Raises:
        SchemaError: not Avro, or refused.
    """
    tree = read_tree("an Avro schema", text, lambda content: _expand(content, "", {}, ()))
    if _measure(tree, {}).has_zero_size_items:
        raise SchemaError("the items of an array have no size, so a short record could contain millions")
    return tree


def read_tree(what: str, text: str, read: Callable[[Any], Tree]) -> Tree:
    """The tree of untrusted JSON text.

    Args:
        what: the expected kind of text, for messages.
        read: from the text's content to a tree; may raise any of Python's errors on unexpected content.

    Raises:
        SchemaError: it is invalid or too large, or no table can have its columns.
    """
    try:
        if len(text.encode("utf-8")) > MAX_TEXT_BYTES:
            raise SchemaError(f"the schema text is longer than {MAX_TEXT_BYTES} bytes")
        tree = read(json.loads(text))
        measures = _measure(tree, {})
    except SchemaError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as exc:
        raise SchemaError(f"this is not {what}: {type(exc).__name__} {exc}") from exc
    if measures.depth > MAX_DEPTH:
        raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels")
    if measures.types > MAX_TYPES:
        raise SchemaError(f"written out, the schema has more than {MAX_TYPES} types")
    return tree


def full_name(content: Mapping[str, Any], namespace: str) -> str:
    """The full name of a named type."""
    name: str = content["name"]
    if "." in name:
        return name
    own = content.get("namespace", namespace)
    return f"{own}.{name}" if own else name


def resolved_name(name: str, namespace: str, known: Mapping[str, Any]) -> str:
    """The full name that a reference to a type means; the name itself if it is not known.

    Args:
        namespace: the namespace of the types around the reference.
        known: the types by full name.
    """
    return f"{namespace}.{name}" if namespace and "." not in name and f"{namespace}.{name}" in known else name


def _expand(content: Any, namespace: str, known: dict[str, Tree | None], path: tuple[str, ...]) -> Tree:
    if len(path) > MAX_DEPTH:
        raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels")
    if isinstance(content, str):
        if content in PRIMITIVES:
            return {"type": content}
        name = resolved_name(content, namespace, known)
        if name not in known:
            raise SchemaError(f"the schema does not define the type `{content}` that it uses")
        definition = known[name]
        if definition is None:
            raise SchemaError(f"the type `{name}` contains itself")
        return definition
    if isinstance(content, list):
        branches = [_expand(c, namespace, known, (*path, "|")) for c in content]
        _check_branches(branches)
        return {"type": "union", "branches": branches}
    kind = content["type"]
    properties = _properties(content)
    if isinstance(kind, dict | list) or kind not in PRIMITIVES | NAMED | {"array", "map"}:
        inner = _expand(kind, namespace, known, (*path, "type"))
        return {**inner, **properties} if isinstance(kind, dict) else inner
    if kind in PRIMITIVES:
        return {"type": kind, **properties}
    if kind == "array":
        items = _expand(content["items"], namespace, known, (*path, "items"))
        return {"type": kind, **properties, "items": items}
    if kind == "map":
        values = _expand(content["values"], namespace, known, (*path, "values"))
        return {"type": kind, **properties, "values": values}
    return _define(content, namespace, known, path)


def _define(content: Mapping[str, Any], namespace: str, known: dict[str, Tree | None], path: tuple[str, ...]) -> Tree:
    """Expand a named type, and make it known."""
    kind = content["type"]
    name = full_name(content, namespace)
    if not _is_name(name.rpartition(".")[2]) or name in PRIMITIVES:
        raise SchemaError(_invalid_name(name, "schema.name.adjustment.mode"))
    if name in known:
        raise SchemaError(f"the type `{name}` is defined twice")
    known[name] = None
    tree = {"type": kind, "name": name, **_properties(content)}
    if kind == "fixed":
        tree["size"] = _size(name, content["size"])
    if kind == "enum":
        tree["symbols"] = _symbols(name, content["symbols"])
    if kind in ("record", "error"):
        inside = name.rpartition(".")[0]
        for f in content["fields"]:
            if not _is_name(f["name"]):
                raise SchemaError(_invalid_name(f["name"], "field.name.adjustment.mode"))
        tree["fields"] = [
            {"name": f["name"], "type": _expand(f["type"], inside, known, (*path, f["name"]))}
            for f in content["fields"]
        ]
    known[name] = tree
    return tree


def _properties(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: content[name] for name in sorted(_PROPERTIES & content.keys())}


def _is_name(text: str) -> bool:
    """Whether the JVM's Avro accepts a field's name, or the part of a type's name after the last dot.

    It does not check the namespace, in which Debezium leaves a table or a schema that begins with a digit.
    """
    return (
        bool(text)
        and not text[0].isdecimal()
        and all(char == "_" or ((char.isalpha() or char.isdecimal()) and char <= "\uffff") for char in text)
    )


def _invalid_name(name: str, option: str) -> str:
    return f"`{name}` is not a valid Avro name; set {option}=avro on the connector"


def _size(name: str, size: object) -> int:
    if type(size) is not int or not 0 <= size <= MAX_FIXED_BYTES:
        raise SchemaError(f"the fixed type `{name}` does not have 0 to {MAX_FIXED_BYTES} bytes")
    return size


def _symbols(name: str, symbols: object) -> list[str]:
    if (
        not isinstance(symbols, list)
        or not symbols
        or len(set(symbols)) < len(symbols)
        or not all(map(_SYMBOL.fullmatch, symbols))
    ):
        raise SchemaError(f"the symbols of the enum `{name}` are not different names")
    return symbols


def _check_branches(branches: Sequence[Tree]) -> None:
    kinds = [branch.get("name", branch["type"]) for branch in branches]
    if not branches or "union" in kinds or len(set(kinds)) < len(kinds):
        raise SchemaError("a union is empty, or has a type twice or another union in it")


def _check_type(tree: Tree) -> None:
    """Refuse types that no table can have, in any encoding of the records."""
    if tree["type"] == "record":
        names = [tree["name"], *(field["name"] for field in tree["fields"])]
        if not all(isinstance(name, str) for name in names):
            raise SchemaError("the name of a type or a field is not a text")
        "".join(names).encode("utf-8")
        if both := duplicate_names(names[1:]):
            what = "is there twice" if both[0] == both[1] else f"differs from `{both[0]}` in upper and lower case only"
            raise SchemaError(
                f"`{both[1]}` {what}, which no table can have: rename one, or leave it off at the connector "
                "(column.exclude.list)"
            )
    if is_decimal(tree):
        precision, scale = tree["precision"], tree.get("scale", 0)
        if not 0 < precision <= _LARGEST_INT or abs(scale) > _LARGEST_INT:
            raise SchemaError("a decimal has a precision or a scale that no number has")
        if tree["type"] == "fixed" and (size := decimal_size(tree)) and 10 ** size[0] > 1 << (8 * tree["size"] - 1):
            raise SchemaError(
                f"a decimal of {size[0]} digits does not fit `{tree['name']}`, which is {tree['size']} bytes"
            )


class _Measures(NamedTuple):
    """Measures of a tree.

    Attributes:
        depth: its levels.
        types: in it; one that is used twice counts twice.
        takes_space: whether each of its values has at least one byte.
        has_zero_size_items: whether the items of an array in it may have none.
    """

    depth: int
    types: int
    takes_space: bool
    has_zero_size_items: bool


def _measure(tree: Tree, done: dict[int, _Measures]) -> _Measures:
    """Measure and check a tree. A type that is used twice is visited once: written out, a small text can be endless.

    Args:
        done: the results for visited trees.
    """
    if id(tree) not in done:
        _check_type(tree)
        inner = [_measure(child, done) for child in children(tree)]
        is_array_of_nothing = tree["type"] == "array" and not inner[0].takes_space
        done[id(tree)] = _Measures(
            depth=1 + max((child.depth for child in inner), default=0),
            types=1 + sum(child.types for child in inner),
            takes_space=_takes_space(tree, inner),
            has_zero_size_items=is_array_of_nothing or any(child.has_zero_size_items for child in inner),
        )
    return done[id(tree)]


def _takes_space(tree: Tree, inner: Sequence[_Measures]) -> bool:
    match tree["type"]:
        case "null":
            return False
        case "record" | "error":
            return any(child.takes_space for child in inner)
        case "fixed":
            return bool(tree["size"])
    return True


def record(name: str, fields: Mapping[str, Tree]) -> Tree:
    """A record tree."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def fixed(name: str, size: int) -> Tree:
    """A tree for `size` bytes."""
    return {"type": "fixed", "name": name, "size": size}


def optional(tree: Tree) -> Tree:
    """A tree for values of `tree` and null."""
    return {"type": "union", "branches": [{"type": "null"}, tree]}


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
    earlier, later = non_null(before), non_null(after)
    changes = []
    if is_nullable(before) != is_nullable(after):
        changes.append(f"`{where}` {'may be null now' if is_nullable(after) else 'may no longer be null'}")
    if earlier == later:
        return changes
    if earlier["type"] == later["type"] == "record":
        if earlier["name"] != later["name"]:
            changes.append(f"the record `{earlier['name']}` is called `{later['name']}` now")
        old, new = fields(earlier), fields(later)
        for name in old | new:
            path = f"{where}.{name}" if where else name
            if name not in new:
                changes.append(f"`{path}` was removed")
            elif name not in old:
                changes.append(f"`{path}` is new, {type_name(new[name])}")
            else:
                changes.extend(differences(old[name], new[name], path))
        return changes or [f"the order of the fields{f' of `{where}`' if where else ''} has changed"]
    for part in ("items", "values"):
        if part in earlier and part in later:
            return [*changes, *differences(earlier[part], later[part], f"{where}[]")]
    return [*changes, f"`{where}` was {type_name(earlier)} and is {type_name(later)} now"]


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
