"""The canonical text of a record's key, by which the fold, `cdc-lake story` and erasure look rows up.

JSON with the fields sorted by name and nulls written. The text depends on the key's *value*, not on its declaration:
`int` and `long`, `numeric(4,2)` and `numeric(6,3)`, milliseconds and microseconds give the same text.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.decode.envelope import row_fields, row_or_before, shape_of
from cdc_lake.decode.records import DecodedLayout
from cdc_lake.decode.schemas import (
    MAX_DECIMAL_PRECISION,
    SchemaError,
    Tree,
    connect_name,
    fields,
    is_decimal,
    non_null,
    record,
)
from cdc_lake.decode.types import VARIABLE_SCALE, type_mapping, value_problem

BARE_KEY = "key"
"""The field name of a key that is not a record."""


def key_fields(tree: Tree) -> dict[str, Tree]:
    """The primary key's columns by name; a bare key is one column called `key`."""
    return fields(tree) if tree["type"] == "record" else {BARE_KEY: tree}


def key_tree_from_row(tree: Tree, columns: Sequence[str]) -> Tree:
    """The schema of a key that consists of columns of the row.

    Raises:
        SchemaError: the row has no such column.
    """
    row = row_fields(tree)
    if missing := [name for name in columns if name not in row]:
        raise SchemaError(f"the row has no column {', '.join(missing)}, which `merge.keys` names")
    return record("Key", {name: row[name] for name in columns})


def key_from_row(value: DecodedLayout, columns: Sequence[str]) -> DecodedLayout | None:
    """The key that consists of columns of a decoded row; of an envelope's delete, of the row before it. None for a
    control record.
    """
    if shape_of(value.tree) == "control":
        return None
    return DecodedLayout(
        key_tree_from_row(value.tree, columns), row_or_before(value.tree, value.value, columns), value.is_exact
    )


def key_values(tree: Tree, decoded: Column) -> dict[str, Column]:
    """The key's columns, in a table's types, from the key as `from_avro` returns it."""
    return {name: type_mapping(part).convert(value) for name, (part, value) in _parts(tree, decoded).items()}


def key_problem(tree: Tree, decoded: Column) -> Column:
    """Why a decoded key cannot identify a row in a table, string; null if it can.

    A value that is merely lost in a column, such as an infinite date, would make two keys equal here.
    """
    parts = _parts(tree, decoded)
    problems = [value_problem([(name, part, value) for name, (part, value) in parts.items()])]
    for name, (part, value) in parts.items():
        stored = type_mapping(part)
        if stored.losses:
            message = (
                f"the key's column `{name}` has a value that a {stored.type} cannot hold: {'; '.join(stored.losses)}"
            )
            problems.append(F.when(value.isNotNull() & stored.is_lossy(value), F.lit(message)))
    return F.coalesce(*problems)


def canonical_key(tree: Tree, decoded: Column) -> Column:
    """The canonical text of a decoded key, string."""
    return canonical_text(tree, key_values(tree, decoded))


def canonical_text(tree: Tree, values: Mapping[str, Column]) -> Column:
    """The canonical text of a key, string, from its columns in a table's types."""
    return F.to_json(_canonical_struct(key_fields(tree), values), {"ignoreNullFields": "false"})


def _parts(tree: Tree, decoded: Column) -> dict[str, tuple[Tree, Column]]:
    if tree["type"] != "record":
        return {BARE_KEY: (tree, decoded)}
    return {name: (part, decoded[name]) for name, part in fields(tree).items()}


def _canonical_struct(parts: Mapping[str, Tree], values: Mapping[str, Column]) -> Column:
    return F.struct(*(_canonical(parts[name], values[name]).alias(name) for name in sorted(parts)))


def _canonical(tree: Tree, value: Column) -> Column:
    """`value`, typed as in `type_mapping(tree)`, in a type that has one JSON text only."""
    kind = type_mapping(tree).type
    if kind == "string" and (is_decimal(non_null(tree)) or connect_name(non_null(tree)) == VARIABLE_SCALE):
        return _without_trailing_zeros(value)
    if kind in ("smallint", "int", "bigint", "boolean", "string"):
        return value
    if kind == "timestamp":
        return F.concat(_without_trailing_zeros(F.date_format(value, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")), F.lit("Z"))
    if kind == "date":
        return F.date_format(value, "yyyy-MM-dd")
    if kind == "binary":
        return F.lower(F.hex(value))
    if kind.startswith("decimal"):
        return F.call_function("format_number", value, F.lit("0." + "#" * MAX_DECIMAL_PRECISION))
    if kind.startswith("struct"):
        parts = fields(non_null(tree))
        return _canonical_struct(parts, {name: value[name] for name in parts})
    return value.cast("string")


def _without_trailing_zeros(text: Column) -> Column:
    # Each alternative reads the digits once: a few bytes of a key can encode twenty thousand of them.
    return F.regexp_replace(text, r"(\.\d*[1-9])0+$|\.0*$", "$1")
