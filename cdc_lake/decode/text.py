"""Records in plain text: a line of CSV, or a single value. The table's settings declare their columns."""

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.columns import quoted
from cdc_lake.decode.declared_types import declared_tree, text_tree
from cdc_lake.decode.schemas import SchemaError
from cdc_lake.decode.trees import Tree, fields, record

_CORRUPT = "__corrupt"
_OPTIONS = {
    "csv": {"lineSep": "\x1d"},
    # One value is a line whose separator, quote and end do not occur in texts.
    "string": {"sep": "\x1e", "quote": "\x1f", "escape": "\x1f", "lineSep": "\x1d"},
}


def tree(columns: Mapping[str, str]) -> Tree:
    """The tree of declared columns, name to type.

    Raises:
        SchemaError: a column has an unknown or a nested type.
    """
    found = {name: declared_tree(kind, text_tree) for name, kind in columns.items()}
    if nested := next((name for name, one in found.items() if one["type"] != "text"), None):
        raise SchemaError(f"`value.columns` declares a nested type for `{nested}`, which a text cannot have")
    return record("text.Value", found)


def decoded(text: Column, wanted: Tree, kind: str) -> Column:
    """The struct from which `value` and `is_exact` read.

    Args:
        text: the record.
        wanted: its tree.
        kind: csv, or string: the whole text is the value of the only column.
    """
    inner = ", ".join(f"{quoted(name)} string" for name in (*fields(wanted), _CORRUPT))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **_OPTIONS[kind]}
    return F.from_csv(text, inner, options)


def value(found: Column, wanted: Tree) -> Column:
    """The decoded row, of texts."""
    return F.struct(*(found[name].alias(name) for name in fields(wanted)))


def is_exact(found: Column) -> Column:
    """Whether the text has as many values as there are columns; never null."""
    return found.isNotNull() & found[_CORRUPT].isNull()
