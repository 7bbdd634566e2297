"""Decoding inside the JVM, with a proof per record that the schema was the right one.

A record read with a wrong schema mostly does not fail: it gives wrong values and leaves bytes over, or eats too many.
So 16 known bytes, the sentinel, are put behind every body, and the schema is wrapped as `{v: <the schema>, end: 16
bytes}`: `end` is the sentinel exactly when the schema consumed every byte of the body and no more. One literal schema
per distinct layout; a batch with several costs one pass all the same.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from cdc_lake.events.envelope import Shape, needed, shape_of
from cdc_lake.events.schemas import Tree, compact, fingerprint, fixed, parse, record

_SENTINEL = hashlib.sha256(b"cdc_lake: the end of a record").digest()[:16]


@dataclass(frozen=True)
class WriterSchema:
    """A schema that records were written with.

    Attributes:
        text: self-contained, as the registry gave it.
    """

    text: str

    @cached_property
    def fingerprint(self) -> str:
        """The text's name in bronze."""
        return fingerprint(self.text)

    @cached_property
    def tree(self) -> Tree:
        """The schema as a tree.

        Raises:
            SchemaError: it is not Avro, or refused.
        """
        return parse(self.text)

    @property
    def shape(self) -> Shape:
        """What its records are, if they are values."""
        return shape_of(self.tree)


@dataclass(frozen=True)
class Decoded:
    """One distinct layout among the schemas of a batch, and the column that holds its decoded records.

    Attributes:
        tree: the schema, cut down to what is read.
        schemas: fingerprints of the schemas that share the layout.
        column: name of the struct column `{v, end}`; null for records of other layouts.
    """

    tree: Tree
    schemas: tuple[str, ...]
    column: str

    @property
    def value(self) -> Column:
        """The decoded record."""
        return F.col(self.column)["v"]

    @property
    def is_whole(self) -> Column:
        """Whether the schema consumed the record's bytes exactly; never null."""
        return F.col(self.column)["end"].eqNullSafe(F.lit(_SENTINEL))

    def of(self, schema: Column) -> Column:
        """Whether a record with this schema fingerprint has this layout."""
        return schema.isin(*self.schemas)


def with_decoded_values(
    records: DataFrame, schemas: Iterable[WriterSchema], *, body: Column, schema: Column
) -> tuple[DataFrame, tuple[Decoded, ...]]:
    """Decode record values.

    Args:
        records: any rows.
        schemas: the schemas among them; control records' schemas may be left out.
        body: the Avro body, binary.
        schema: the fingerprint of the record's schema, string.

    Columns out: all, and one struct column per distinct layout, named in the second result.
    """
    return _with_decoded(records, schemas, body=body, schema=schema, prefix="__value_", is_value=True)


def with_decoded_keys(
    records: DataFrame, schemas: Iterable[WriterSchema], *, body: Column, schema: Column
) -> tuple[DataFrame, tuple[Decoded, ...]]:
    """Decode record keys; as `with_decoded_values`."""
    return _with_decoded(records, schemas, body=body, schema=schema, prefix="__key_", is_value=False)


def one_of(layouts: Iterable[Decoded], schema: Column, columns: Iterable[Column]) -> Column:
    """For each record the column of its own layout; null for a record of none. `columns` in the order of `layouts`."""
    chosen = [F.when(layout.of(schema), column) for layout, column in zip(layouts, columns, strict=True)]
    return F.coalesce(*chosen) if chosen else F.lit(None)


def _with_decoded(
    records: DataFrame, schemas: Iterable[WriterSchema], *, body: Column, schema: Column, prefix: str, is_value: bool
) -> tuple[DataFrame, tuple[Decoded, ...]]:
    by_layout: dict[tuple[str, str], list[WriterSchema]] = {}
    trees: dict[tuple[str, str], Tree] = {}
    for writer in sorted(set(schemas), key=lambda s: s.fingerprint):
        tree = needed(writer.tree) if is_value else writer.tree
        # Equal layouts may still mean different things: the meaning is in Connect's names, which the tree holds.
        layout = (_wrapped(writer.tree), repr(tree))
        by_layout.setdefault(layout, []).append(writer)
        trees[layout] = tree
    decoded = []
    framed = F.concat(body, F.lit(_SENTINEL))
    columns = {}
    for number, (layout, writers) in enumerate(by_layout.items()):
        found = Decoded(trees[layout], tuple(w.fingerprint for w in writers), f"{prefix}{number}")
        options = {"mode": "PERMISSIVE", "avroSchema": _wrapped(found.tree)}
        columns[found.column] = F.when(found.of(schema), from_avro(framed, layout[0], options))
        decoded.append(found)
    return records.withColumns(columns) if columns else records, tuple(decoded)


def _wrapped(tree: Tree) -> str:
    return compact(record("cdc_lake.Wrapped", {"v": tree, "end": fixed("cdc_lake.Sentinel", len(_SENTINEL))}))
