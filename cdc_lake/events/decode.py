"""Decoding keys and values with the schemas they were written with, whatever they are encoded in.

One expression per distinct layout; a batch with several costs one pass all the same.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.events import avro
from cdc_lake.events import json as json_format
from cdc_lake.events import text as text_format
from cdc_lake.events.envelope import STANDARD_NAMES, MetadataNames, Shape, needed, shape_of
from cdc_lake.events.schemas import SchemaError, Tree, check_length, check_size, fingerprint, parse

_FORMAT = "cdc_lake.format"
"""Marks the text of a schema that is not Avro's; beside it stands what there is to know."""


@dataclass(frozen=True)
class WriterSchema:
    """A schema that records were written with.

    Attributes:
        text: self-contained. Avro as the registry gave it; for other formats see `schema_text`.
        names: of the fields that the unwrap transform adds; they are not the text's, but the table's.
    """

    text: str
    names: MetadataNames = STANDARD_NAMES

    @cached_property
    def fingerprint(self) -> str:
        """The text's name in bronze."""
        return fingerprint(self.text)

    @cached_property
    def _other(self) -> Mapping[str, Any] | None:
        """What the text says when it is not Avro's."""
        if _FORMAT not in self.text[: len(_FORMAT) + 4]:
            return None
        said: Mapping[str, Any] = json.loads(self.text)
        return said

    @property
    def format(self) -> str:
        """`avro`, or what `schema_text` was given."""
        return "avro" if self._other is None else str(self._other[_FORMAT])

    @cached_property
    def tree(self) -> Tree:
        """The schema as a tree.

        Raises:
            SchemaError: it cannot be used, or must not.
        """
        if self._other is None:
            return self.names.standard(parse(self.text))
        check_length(self.text)
        try:
            tree = _TREES[self.format](self._other)
            check_size(tree)
            return self.names.standard(tree)
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as exc:
            raise SchemaError(f"this is no schema of {self.format}: {type(exc).__name__} {exc}") from exc

    @property
    def shape(self) -> Shape:
        """What its records are, if they are values."""
        return shape_of(self.tree)


def schema_text(kind: str, **said: Any) -> str:
    """The text of a schema that is not Avro's; the same for the same arguments.

    Args:
        kind: connect and json-schema (`schema`, a text), json (`shape`, `names`, `columns`), csv and string
            (`columns`), protobuf.
    """
    return json.dumps({_FORMAT: kind, **said}, separators=(",", ":"))


def _protobuf(said: Mapping[str, Any]) -> Tree:
    raise SchemaError("it is Protobuf, which is not read: let the connector write Avro or JSON")


_TREES: Mapping[str, Callable[[Mapping[str, Any]], Tree]] = {
    "connect": lambda said: json_format.connect_tree(json.loads(said["schema"])),
    "json-schema": lambda said: json_format.json_schema_tree(json.loads(said["schema"])),
    "json": lambda said: json_format.plain_tree(said["shape"], said["names"], said["columns"]),
    "csv": lambda said: text_format.tree(said["columns"]),
    "string": lambda said: text_format.tree(said["columns"]),
    "protobuf": _protobuf,
}


@dataclass(frozen=True)
class Decoded:
    """One distinct layout among the schemas of a batch, and what its records hold.

    Attributes:
        tree: the schema, cut down to what is read.
        schemas: name -> fingerprint, of the names whose records may have this layout.
        value: the decoded record; null for records of other layouts.
        is_whole: whether the schema fits the record's bytes exactly; never null.
    """

    tree: Tree
    schemas: Mapping[str, str]
    value: Column
    is_whole: Column

    def of(self, schema: Column) -> Column:
        """Whether a record with this schema fingerprint has this layout."""
        return schema.isin(*dict.fromkeys(self.schemas.values()))


def with_decoded_values(
    records: DataFrame,
    schemas: Mapping[str, Sequence[WriterSchema]],
    *,
    body: Column,
    named: Column,
    before: bool = False,
) -> tuple[DataFrame, tuple[Decoded, ...]]:
    """Decode record values.

    Args:
        records: any rows.
        schemas: by name, what the name may mean, the likeliest first; control records' schemas may be left out.
        body: what the schema describes, binary.
        named: the record's name of its schema, string.
        before: whether the row as it was is wanted, too.

    Columns out: all, and one struct column per distinct layout, which the second result reads.
    """
    read = partial(needed, before=before)
    return _with_decoded(records, schemas, body=body, named=named, prefix="__value_", wanted=read)


def with_decoded_keys(
    records: DataFrame, schemas: Mapping[str, Sequence[WriterSchema]], *, body: Column, named: Column
) -> tuple[DataFrame, tuple[Decoded, ...]]:
    """Decode record keys; as `with_decoded_values`."""
    return _with_decoded(records, schemas, body=body, named=named, prefix="__key_", wanted=lambda tree: tree)


def one_of(layouts: Iterable[Decoded], schema: Column, columns: Iterable[Column]) -> Column:
    """For each record the column of its own layout; null for a record of none. `columns` in the order of `layouts`."""
    chosen = [F.when(layout.of(schema), column) for layout, column in zip(layouts, columns, strict=True)]
    return F.coalesce(*chosen) if chosen else F.lit(None)


def _with_decoded(
    records: DataFrame,
    schemas: Mapping[str, Sequence[WriterSchema]],
    *,
    body: Column,
    named: Column,
    prefix: str,
    wanted: Callable[[Tree], Tree],
) -> tuple[DataFrame, tuple[Decoded, ...]]:
    by_layout: dict[tuple[str, str, str], dict[str, str]] = {}
    trees: dict[tuple[str, str, str], tuple[Tree, Tree]] = {}
    for name in sorted(schemas):
        for writer in schemas[name]:
            whole, tree = writer.tree, wanted(writer.tree)
            # Equal layouts may still mean different things: the meaning is in Connect's names, which the tree holds.
            written = avro.wrapped(whole) if writer.format == "avro" else ""
            layout = (writer.format, written, repr(tree))
            by_layout.setdefault(layout, {}).setdefault(name, writer.fingerprint)
            trees[layout] = whole, tree
    decoded, columns = [], {}
    for number, (layout, found) in enumerate(by_layout.items()):
        kind, (whole, tree), column = layout[0], trees[layout], f"{prefix}{number}"
        columns[column] = F.when(named.isin(*found), _decoded(kind, body, whole, tree))
        decoded.append(Decoded(tree, found, *_read(kind, tree, F.col(column))))
    return records.withColumns(columns) if columns else records, tuple(decoded)


def _decoded(kind: str, body: Column, whole: Tree, tree: Tree) -> Column:
    if kind == "avro":
        return avro.decoded(body, whole, tree)
    text = body.cast("string")
    if kind in ("csv", "string"):
        return text_format.decoded(text, tree, kind)
    return json_format.decoded(text, tree, "payload" if kind == "connect" else None)


def _read(kind: str, tree: Tree, found: Column) -> tuple[Column, Column]:
    if kind == "avro":
        return avro.value(found), avro.is_whole(found)
    if kind in ("csv", "string"):
        return text_format.value(found, tree), text_format.is_whole(found)
    return json_format.value(found, tree), json_format.is_whole(found)
