"""JSON records: how they identify their schema, that schema as a tree, and decoding.

Three kinds. Connect's JsonConverter sends the schema with the payload; its ID here is a hash of the schema's text. A
registry's JSON Schema. And JSON without a schema: only the names of its fields are known, and their types are declared
in the table's settings, or the values stay text. Sources: Kafka Connect's `JsonConverter`, Confluent's
`JsonSchemaData`.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.columns import quoted
from cdc_lake.decode.declared_types import declared_tree, text_tree
from cdc_lake.decode.framing import Side
from cdc_lake.decode.positions import POSITION_FIELDS
from cdc_lake.decode.scalars import NUMBER
from cdc_lake.decode.schemas import MAX_TYPES, SchemaError, Tree, children, duplicate_names, non_null, optional, record

CONNECT_REFERENCE, PLAIN_REFERENCE = REFERENCES = "connect", "json"
KEY, FLAT, ENVELOPE, DOCUMENT = "key", "flat", "envelope", "document"
"""Shapes of JSON without a schema. The rows of MongoDB's envelopes are documents, each sent as one text."""

_CONNECT_TYPES = {
    "boolean": {"type": "boolean"},
    "int8": {"type": "int", "connect.type": "int8"},
    "int16": {"type": "int", "connect.type": "int16"},
    "int32": {"type": "int"},
    "int64": {"type": "long"},
    **{kind: text_tree("float") for kind in ("float", "float32")},
    **{kind: text_tree("double") for kind in ("double", "float64")},
    "string": {"type": "string"},
    "bytes": {"type": "bytes"},
}
_JSON_TYPES = {"boolean": "boolean", "integer": "int64", "number": "float64", "string": "string"}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_CLOUD_EVENT_CONTENT = frozenset({"data", "data_base64"})
_CORRUPT = "__corrupt"
_UNDECLARED_PRECISION = 64
"""What Connect's Avro converter writes for a decimal without a precision."""
_SPARK_TYPES = {"boolean": "boolean", "int": "int", "long": "bigint", "bytes": "binary", "decimal": "binary"}
"""How Spark reads a value; all others as text."""
_DECLARED = {"boolean": "boolean", "int": "int", "bigint": "long", "string": "string", "binary": "bytes"}
"""The declared types that Spark reads without loss, and Avro's names for them, by which placeholders are recognized."""
_MARK = f"cdc_lake:{hashlib.sha256(b'cdc_lake: a number follows').hexdigest()[:16]}:"
_FRACTION = r"-?\d+(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)|-0"
"""A number that Spark reads by a double, or -0, which it reads as 0."""
_MAY_HAVE_FRACTION = r"[:,\[\s](?:-?(?:0|[1-9]\d*)(?:\.\d|[eE][-+\d])|-0)"
_BACKSLASH, _QUOTE = "\x01", "\x02"
"""What replaces an escaped backslash or quote: characters that no JSON contains."""


def reference(text: Column, side: Side, *, plain: bool, declared: Collection[str] = ()) -> Column:
    """How a JSON text identifies its schema, `<kind>:<id>`; null if it is not a JSON object, or has a `problem`.

    `connect:<sha256 of the schema's text>`. Of a text without a schema, `json:key:<sorted field names>` for a key;
    `json:<shape>` for a value, whose fields `row_names` lists; the shape of an envelope ends with the fields of its
    source block that form a position, as in `json:envelope/lsn`.

    Args:
        plain: whether to accept a text without a schema. A stray one in a topic would add columns without a type.
        declared: see `problem`.
    """
    names = F.json_object_keys(text)
    schema = embedded_schema(text)
    is_connect = (F.array_sort(names) == F.array(F.lit("payload"), F.lit("schema"))) & schema.isNotNull()
    by_schema = F.when(is_connect, F.concat(F.lit(f"{CONNECT_REFERENCE}:"), F.sha2(schema, 256)))
    if not plain:
        return by_schema
    if side == "key":
        by_names = F.concat(F.lit(f"{PLAIN_REFERENCE}:{KEY}:"), F.to_json(F.array_sort(names)))
        return by_schema.when(names.isNotNull(), by_names)
    source = F.get_json_object(text, "$.source")
    # A producer may omit nulls, and so both rows. A table may have columns called `op` and `source`.
    is_envelope = (
        F.array_contains(names, "op")
        & source.startswith("{")
        & (F.arrays_overlap(names, F.array(F.lit("after"), F.lit("before"))) | source.contains('"connector":'))
    )
    is_document = F.get_json_object(source, "$.connector") == "mongodb"
    position = F.array_intersect(F.array_sort(F.json_object_keys(source)), F.array(*map(F.lit, POSITION_FIELDS)))
    envelope = F.concat(F.when(is_document, DOCUMENT).otherwise(ENVELOPE), F.lit("/"), F.concat_ws(",", position))
    shape = F.when(is_envelope, envelope).otherwise(FLAT)
    is_row = names.isNotNull() & problem(text, declared).isNull()
    return by_schema.when(is_row, F.concat(F.lit(f"{PLAIN_REFERENCE}:"), shape))


def row_names(text: Column, reference: Column) -> Column:
    """The sorted names of a row's fields, a JSON text; null if the text has a schema."""

    def names(row: Column) -> Column:
        return F.coalesce(F.json_object_keys(row), F.array().cast("array<string>"))

    rows = [names(F.get_json_object(text, f"$.{row}")) for row in ("after", "before")]
    all_names = F.when(reference == f"{PLAIN_REFERENCE}:{FLAT}", F.array_distinct(names(text)))
    all_names = all_names.when(F.startswith(reference, F.lit(f"{PLAIN_REFERENCE}:{ENVELOPE}/")), F.array_union(*rows))
    return F.to_json(F.array_sort(all_names))


def problem(text: Column, declared: Collection[str] = ()) -> Column:
    """Why a text is not a row although it is JSON, with the format's name, string; null if it may be one.

    Args:
        declared: the columns in the settings. A format is not suspected if they include the field with its content.
    """
    is_encoded_twice = text.rlike(r'^\s*"\s*[{\[]')
    reason = F.when(
        is_encoded_twice,
        "it is a JSON text that contains JSON, so it was encoded twice; for Debezium's outbox event router, set "
        "table.expand.json.payload=true on the connector",
    )
    if not _CLOUD_EVENT_CONTENT.isdisjoint(declared):
        return reason
    # A quick check first: most texts need not be parsed.
    names = F.when(text.contains('"specversion"'), F.json_object_keys(text))
    members = F.array(*(F.lit(name) for name in ("type", *sorted(_CLOUD_EVENT_CONTENT))))
    is_cloud_event = F.array_contains(names, "specversion") & F.arrays_overlap(names, members)
    return reason.when(
        is_cloud_event,
        "it is a CloudEvent in structured mode, which wraps the row; on a Debezium connector, replace "
        "CloudEventsConverter by JsonConverter or AvroConverter; have other producers send the binary mode, or declare "
        "`data` and the other columns in `value.columns` to store the wrapper itself",
    )


def is_null(text: Column) -> Column:
    """Whether a JSON text is Connect's null: JsonConverter's tombstones are not null values in Kafka."""
    is_null_payload = F.get_json_object(text, "$.payload").isNull() & reference(text, "value", plain=False).isNotNull()
    return text.rlike(r"^\s*null\s*\z") | is_null_payload


def embedded_schema(text: Column) -> Column:
    """The schema that Connect's JsonConverter wrote into the text."""
    return F.get_json_object(text, "$.schema")


def is_connect_schema(text: str) -> bool:
    """Whether a registered text is one of Connect's own schemas, as Apicurio's ExtJsonConverter registers them."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(content, dict):
        return False
    kind = content.get("type")
    is_only_connect = kind in ("struct", "int8", "int16", "int32", "int64")
    return is_only_connect or (isinstance(content.get("optional"), bool) and kind in (*_CONNECT_TYPES, "array", "map"))


def connect_tree(schema: Mapping[str, Any]) -> Tree:
    """One of Connect's own schemas, in JSON, as a tree.

    Raises:
        SchemaError: it is not one.
    """
    tree = _connect_type(schema)
    return optional(tree) if schema.get("optional") else tree


def _connect_type(schema: Mapping[str, Any]) -> Tree:
    kind, name = schema.get("type"), schema.get("name")
    properties: Tree = {"connect.name": name} if name else {}
    if schema.get("parameters"):
        properties["connect.parameters"] = schema["parameters"]
    if kind == "struct":
        inner = [{"name": f["field"], "type": connect_tree(f)} for f in schema["fields"]]
        return {"type": "record", "name": name or "Struct", "fields": inner, **properties}
    if kind == "array":
        return {"type": "array", "items": connect_tree(schema["items"]), **properties}
    if kind == "map":
        if schema["keys"]["type"] != "string":
            raise SchemaError(f"a map with keys of type {schema['keys']['type']} is not supported")
        return {"type": "map", "values": connect_tree(schema["values"]), **properties}
    if kind not in _CONNECT_TYPES:
        raise SchemaError(f"`{kind}` is not a Connect type")
    return {**(_decimal(schema) if name == _DECIMAL else _CONNECT_TYPES[kind]), **properties}


def _decimal(schema: Mapping[str, Any]) -> Tree:
    parameters = schema.get("parameters") or schema.get("connect.parameters") or {}
    precision = int(parameters.get("connect.decimal.precision", _UNDECLARED_PRECISION))
    return {"type": "decimal", "precision": precision, "scale": int(parameters.get("scale", 0))}


def json_schema_tree(schema: Mapping[str, Any]) -> Tree:
    """A JSON Schema, as Connect's JSON Schema converters write it, as a tree.

    Raises:
        SchemaError: no column can store its values.
    """
    return _json_schema_tree(schema, schema, (), itertools.count())


def _json_schema_tree(schema: Any, root: Mapping[str, Any], path: tuple[str, ...], types: Iterator[int]) -> Tree:
    if next(types) > MAX_TYPES:
        raise SchemaError(f"written out, the schema has more than {MAX_TYPES} types")
    if not isinstance(schema, Mapping):
        raise SchemaError("the JSON Schema does not describe a field")
    pointer = schema.get("$ref")
    if pointer is not None:
        if pointer in path:
            raise SchemaError(f"the type `{pointer}` contains itself")
        return _json_schema_tree(_pointed_to(pointer, root), root, (*path, pointer), types)
    branches = schema.get("oneOf") or schema.get("anyOf")
    if branches:
        return {"type": "union", "branches": [_json_schema_tree(branch, root, path, types) for branch in branches]}
    kind = schema.get("type")
    if isinstance(kind, list):
        return {
            "type": "union",
            "branches": [_json_schema_tree({**schema, "type": k}, root, path, types) for k in kind],
        }
    name = schema.get("title")
    properties: Tree = {"connect.name": name} if name else {}
    if kind == "null":
        return {"type": "null"}
    if kind == "object" and "properties" in schema:
        listed = sorted(schema["properties"].items(), key=lambda item: item[1].get("connect.index", 0))
        required = schema.get("required")
        inner = [
            {
                "name": n,
                "type": _with_null(_json_schema_tree(member, root, path, types), required is None or n not in required),
            }
            for n, member in listed
        ]
        return {"type": "record", "name": name or "Object", "fields": inner, **properties}
    if kind == "object":
        return {"type": "map", "values": _json_schema_tree(schema.get("additionalProperties"), root, path, types)}
    if kind == "array":
        return {"type": "array", "items": _json_schema_tree(schema.get("items"), root, path, types), **properties}
    if kind not in _JSON_TYPES:
        raise SchemaError(f"the JSON Schema has the unknown type `{kind}`")
    own = _CONNECT_TYPES[schema.get("connect.type") or _JSON_TYPES[kind]]
    if schema.get("connect.parameters"):
        properties["connect.parameters"] = schema["connect.parameters"]
    return {**(_decimal(schema) if name == _DECIMAL else own), **properties}


def _with_null(tree: Tree, may_be_null: bool) -> Tree:
    return optional(tree) if may_be_null and tree["type"] != "union" else tree


def _pointed_to(pointer: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for step in pointer.removeprefix("#/").split("/"):
        if not isinstance(node, Mapping) or step not in node:
            raise SchemaError(f"`{pointer}` is not in the schema")
        node = node[step]
    return node


def plain_tree(shape: str, names: Sequence[str], declared: Mapping[str, str]) -> Tree:
    """The tree of JSON without a schema.

    Args:
        shape: key, flat, envelope or document; see `reference`.
        names: the names of the row's fields.
        declared: types by name, as `value.columns` spells them; the others are text.

    Raises:
        SchemaError: there is no such type.
    """
    inner = {name: optional(declared_tree(declared.get(name) or "string", _declared_type)) for name in names}
    row = record(f"json.{'Key' if shape == KEY else 'Value'}", inner)
    if shape in (KEY, FLAT):
        return row
    text = optional({"type": "string"})
    kind, _, position = shape.partition("/")
    sent = text if kind == DOCUMENT else optional(row)
    source = record(
        f"json.{position}.Source", dict.fromkeys((*_SOURCE_NAMES, *filter(None, position.split(","))), text)
    )
    return record("json.Envelope", {"before": sent, "after": sent, "source": source, "op": text})


_SOURCE_NAMES = ("name", "db", "ts_ms", "snapshot", "txId")


def joined(tree: Tree, other: Tree, column_of: Callable[[str], str | None]) -> Tree | None:
    """The tree that reads the records of two trees without a schema; none if a field differs, or if two fields exclude
    each other in a table.

    Args:
        column_of: from a field to the table's column that stores it.
    """
    if tree == other:
        return tree
    first, second = non_null(tree), non_null(other)
    if first["type"] != "record" or second["type"] != "record" or first["name"] != second["name"]:
        return None
    parts = {part["name"]: part for part in first["fields"]}
    for part in second["fields"]:
        known = parts.setdefault(part["name"], part)
        both = joined(known["type"], part["type"], column_of)
        if both is None or sent_name(known) != sent_name(part):
            return None
        parts[part["name"]] = {**known, "type": both}
    columns = [column for name in parts if (column := column_of(name)) is not None]
    if duplicate_names(parts) or duplicate_names(columns):
        return None
    union = {**first, "fields": list(parts.values())}
    return optional(union) if tree["type"] == "union" else union


def _declared_type(name: str) -> Tree:
    return {"type": _DECLARED[name]} if name in _DECLARED else text_tree(name)


def decoded(text: Column, tree: Tree, format: str) -> Column:
    """The struct from which `value` and `is_exact` read.

    Spark reads numbers into texts by way of a double, so those with a fraction become texts first, with a mark in front
    of them: in JSON without a schema, where any field may be a text, and in records whose decimals are numbers
    (`decimal.format=NUMERIC`): those that cannot be read with all decimals in Base64, and can with all as numbers.

    Args:
        text: one JSON value.
        tree: the part of it to read.
        format: the schema's format: connect, json-schema or json.
    """
    name = _field(format)
    holder = text if format == CONNECT_REFERENCE else F.concat(F.lit('{"v":'), text, F.lit("}"))
    marked = F.when(holder.rlike(_MAY_HAVE_FRACTION), _with_marked_numbers(holder)).otherwise(holder)

    def read(holder: Column, *, has_numbers: bool) -> Column:
        spark_type = f"struct<{quoted(name)}: {_read_type(tree, has_numbers=has_numbers)}, {_CORRUPT}: string>"
        return F.from_json(holder, spark_type, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})

    # An array of just this text has one element, unless something follows the value.
    alone = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    parts = {"alone": F.when(~text.contains(_MARK), alone)}
    reads = _reads(tree, format)
    if "plain" in reads:
        parts["plain"] = read(holder, has_numbers=False)
    if "marked" in reads:
        second = read(marked, has_numbers=True)
        parts["marked"] = F.when(parts["plain"][_CORRUPT].isNotNull(), second) if "plain" in reads else second
    return F.struct(*(part.alias(name) for name, part in parts.items()))


def _reads(tree: Tree, format: str) -> Sequence[str]:
    """How records are read: as they are (`plain`), or with marked numbers, or either way."""
    if format == PLAIN_REFERENCE:
        return ("marked",)
    return ("plain", "marked") if _has_decimal(tree) else ("plain",)


def _has_decimal(tree: Tree) -> bool:
    return tree["type"] == "decimal" or any(_has_decimal(child) for child in children(tree))


def _with_marked_numbers(text: Column) -> Column:
    """JSON in which numbers with a fraction or an exponent are texts that begin with the mark."""
    plain = F.replace(F.replace(text, F.lit("\\\\"), F.lit(_BACKSLASH)), F.lit('\\"'), F.lit(_QUOTE))

    def marked(part: Column, number: Column) -> Column:
        is_outside_of_texts = number % 2 == 0
        return F.when(is_outside_of_texts, F.regexp_replace(part, _FRACTION, f'"{_MARK}$0"')).otherwise(part)

    rewritten = F.array_join(F.transform(F.split(plain, '"'), marked), '"')
    return F.replace(F.replace(rewritten, F.lit(_QUOTE), F.lit('\\"')), F.lit(_BACKSLASH), F.lit("\\\\"))


def value(struct: Column, tree: Tree, format: str) -> Column:
    """The decoded value, as `from_avro` would give it.

    Except for floating-point numbers and declared types, which are texts, and for decimals: a struct of the `unscaled`
    bytes and the text of the `number`, of which one is null.
    """
    field = _field(format)
    values = [_converted(tree, struct[read][field], is_marked=read == "marked") for read in _reads(tree, format)]
    return values[0] if len(values) == 1 else F.when(_fits(struct["plain"], format), values[0]).otherwise(values[1])


def is_exact(struct: Column, tree: Tree, format: str) -> Column:
    """Whether the text is one JSON value that fits; never null."""
    fits = [_fits(struct[read], format) for read in _reads(tree, format)]
    if len(fits) == 2:
        fits[1] = fits[1] & _are_numbers(tree, struct["marked"][_field(format)])
    return (F.coalesce(struct["alone"], F.lit(0)) == 1) & F.coalesce(reduce(or_, fits), F.lit(False))


def _are_numbers(tree: Tree, column: Column) -> Column:
    """Whether all decimals in a value are numbers, which were read as marked texts; true for null."""
    tree = non_null(tree)
    are_numbers = F.lit(True)
    match tree["type"]:
        case "decimal":
            are_numbers = column.rlike(f"^(?:{_MARK})?{NUMBER.removeprefix('^')}")
        case "array" if _has_decimal(tree):
            are_numbers = F.forall(column, lambda item: _are_numbers(tree["items"], item))
        case "map" if _has_decimal(tree):
            are_numbers = F.forall(F.map_values(column), lambda item: _are_numbers(tree["values"], item))
        case "record":
            parts = (_are_numbers(f["type"], column[sent_name(f)]) for f in tree["fields"] if _has_decimal(f["type"]))
            are_numbers = reduce(and_, parts, are_numbers)
    return column.isNull() | are_numbers


def _fits(read: Column, format: str) -> Column:
    return read[_CORRUPT].isNull() & read[_field(format)].isNotNull()


def _field(format: str) -> str:
    """The field that contains the value in what is read."""
    return "payload" if format == CONNECT_REFERENCE else "v"


def _read_type(tree: Tree, *, has_numbers: bool) -> str:
    """The Spark type to read a value with.

    Args:
        has_numbers: whether decimals are numbers, which are read as text.
    """
    tree = non_null(tree)
    match tree["type"]:
        case "record":
            inner = (
                f"{quoted(sent_name(f))}: {_read_type(f['type'], has_numbers=has_numbers)}" for f in tree["fields"]
            )
            return f"struct<{', '.join(inner)}>"
        case "array":
            return f"array<{_read_type(tree['items'], has_numbers=has_numbers)}>"
        case "map":
            return f"map<string, {_read_type(tree['values'], has_numbers=has_numbers)}>"
        case "union":
            raise SchemaError("a column cannot store values of several types")
        case "decimal" if has_numbers:
            return "string"
    return _SPARK_TYPES.get(tree["type"], "string")


def sent_name(field: Mapping[str, Any]) -> str:
    """A field's name in the text; the tree may use another name."""
    return str(field.get("sent", field["name"]))


def _converted(tree: Tree, column: Column, *, is_marked: bool) -> Column:
    tree = non_null(tree)
    if not _is_converted(tree, is_marked):
        return column
    match tree["type"]:
        case "decimal":
            number = _without_marks(column) if is_marked else F.lit(None).cast("string")
            unscaled = F.lit(None).cast("binary") if is_marked else column
            return F.when(column.isNotNull(), F.struct(unscaled.alias("unscaled"), number.alias("number")))
        case "array":
            return F.transform(column, lambda c: _converted(tree["items"], c, is_marked=is_marked))
        case "map":
            return F.transform_values(column, lambda _, c: _converted(tree["values"], c, is_marked=is_marked))
        case "record":
            parts = (
                _converted(f["type"], column[sent_name(f)], is_marked=is_marked).alias(f["name"])
                for f in tree["fields"]
            )
            return F.when(column.isNotNull(), F.struct(*parts))
    return _without_marks(column)


def _without_marks(text: Column) -> Column:
    return F.when(text.contains(_MARK), F.regexp_replace(text, f'"{_MARK}([^"]*)"|{_MARK}', "$1")).otherwise(text)


def _is_converted(tree: Tree, is_marked: bool) -> bool:
    tree = non_null(tree)
    match tree["type"]:
        case "decimal":
            return True
        case "string" | "text":
            return is_marked
        case "array":
            return _is_converted(tree["items"], is_marked)
        case "map":
            return _is_converted(tree["values"], is_marked)
        case "record":
            return any("sent" in f or _is_converted(f["type"], is_marked) for f in tree["fields"])
    return False
