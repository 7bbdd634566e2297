"""Decoding keys and values with the schemas they were written with, whatever they are encoded in.

One expression per distinct layout; a batch with several costs one pass all the same.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.config import TableConfig
from cdc_lake.decode import avro
from cdc_lake.decode import json as json_format
from cdc_lake.decode import text as text_format
from cdc_lake.decode.envelope import STANDARD_NAMES, MetadataNames, Shape, pruned_schema, shape_of
from cdc_lake.decode.schemas import SchemaError, Tree, fingerprint, parse, read_tree

_FORMAT = "cdc_lake.format"
_OTHER_FORMAT = f'{{"{_FORMAT}":'
"""How the text of a schema begins that is not Avro's; behind it stands what there is to know."""
_WHICH_TYPE = "struct<number: int, schema: string>"


@dataclass(frozen=True)
class WriterSchema:
    """A schema that records were written with.

    Attributes:
        text: self-contained. Avro as the registry gave it; for other formats see `schema_text`. What comes from outside
            and should be Avro goes through `avro_schema`.
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
        if not self.text.startswith(_OTHER_FORMAT):
            return None
        said: Mapping[str, Any] = json.loads(self.text)
        return said

    def of_table(self, settings: TableConfig) -> "WriterSchema":
        """A value's schema with the metadata field names of a table, which its transform may have changed."""
        renamed = tuple(sorted(settings.envelope.add_fields_renamed.items()))
        return replace(self, names=MetadataNames(settings.envelope.add_fields_prefix, renamed))

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
        tree = read_tree(f"a schema of {self.format}", self.text, lambda said: _TREES[self.format](said))
        return self.names.standard(tree)

    @property
    def shape(self) -> Shape:
        """What its records are, if they are values."""
        return shape_of(self.tree)


def schema_text(kind: str, **said: Any) -> str:
    """The text of a schema that is not Avro's; the same for the same arguments.

    Args:
        kind: connect and json-schema (`schema`, a text), json (`shape`, `names`, `columns`), csv and string
            (`columns`), protobuf, refused (`why`).
    """
    return json.dumps({_FORMAT: kind, **said}, separators=(",", ":"))


def avro_schema(text: str) -> WriterSchema:
    """The schema of a text from outside that should be Avro: never one of another format, even if the text names it."""
    try:
        text.encode("utf-8")
        why = f"it has the key `{_FORMAT}`, which is cdc_lake's own" if text.startswith(_OTHER_FORMAT) else None
    except UnicodeEncodeError:
        why = "its text is not Unicode"
    return WriterSchema(schema_text("refused", why=why, text=text) if why else text)


def _protobuf(said: Mapping[str, Any]) -> Tree:
    raise SchemaError("it is Protobuf, which is not read: let the connector write Avro or JSON")


def _refused(said: Mapping[str, Any]) -> Tree:
    raise SchemaError(said["why"])


_TREES: Mapping[str, Callable[[Mapping[str, Any]], Tree]] = {
    "connect": lambda said: json_format.connect_tree(json.loads(said["schema"])),
    "json-schema": lambda said: json_format.json_schema_tree(json.loads(said["schema"])),
    "json": lambda said: json_format.plain_tree(said["shape"], said["names"], said["columns"]),
    "csv": lambda said: text_format.tree(said["columns"]),
    "string": lambda said: text_format.tree(said["columns"]),
    "protobuf": _protobuf,
    "refused": _refused,
}


@dataclass(frozen=True)
class DecodedLayout:
    """One distinct layout among the schemas of a batch, and what its records hold.

    Attributes:
        tree: the schema, cut down to what is read.
        value: the decoded record; null for records of other layouts.
        is_exact: whether the schema fits the record's bytes exactly; never null.
    """

    tree: Tree
    value: Column
    is_exact: Column


@dataclass(frozen=True)
class DecodedLayouts:
    """The distinct layouts among the schemas of a batch's keys, or of its values.

    Attributes:
        each: the layouts, by number.
        number: which of them a record has, int; null when it has none, or when it is not certain which.
        schema: fingerprint of the schema that a record was written with, string; null with `number`.
    """

    each: Sequence[DecodedLayout]
    number: Column
    schema: Column

    def chosen(self, made: Callable[[DecodedLayout], Column | None]) -> Column:
        """For each record what is made of its own layout; null for a record of none, or where nothing is made."""
        found = None
        for number, one in enumerate(self.each):
            column = made(one)
            if column is not None:
                found = (F if found is None else found).when(self.number == number, column)
        return F.lit(None) if found is None else found

    def among(self, is_wanted: Callable[[Tree], bool]) -> Column:
        """Whether a record's layout is one of those wanted; never null."""
        numbers = [number for number, one in enumerate(self.each) if is_wanted(one.tree)]
        return F.coalesce(self.number.isin(numbers), F.lit(False)) if numbers else F.lit(False)


def with_decoded_values(
    records: DataFrame,
    schemas: Mapping[str, Sequence[WriterSchema]],
    *,
    body: Column,
    named: Column,
    before: bool = False,
    columns: Collection[str] | None = None,
) -> tuple[DataFrame, DecodedLayouts]:
    """Decode record values.

    Args:
        records: any rows.
        schemas: by name, what the name may mean, the likeliest first; control records' schemas may be left out.
        body: what the schema describes, binary.
        named: the record's name of its schema, string.
        before: whether the row as it was is wanted, too.
        columns: those of the row that are wanted; see `pruned_schema`. Where Avro is not what is read, there may be more.

    Columns out: all, and some that begin with `__value_`, which the second result reads.
    """

    def wanted(writer: WriterSchema) -> Tree:
        return pruned_schema(writer.tree, before=before, columns=columns if writer.format == "avro" else None)

    return _with_decoded(records, schemas, body=body, named=named, prefix="__value_", wanted=wanted)


def with_decoded_keys(
    records: DataFrame, schemas: Mapping[str, Sequence[WriterSchema]], *, body: Column, named: Column
) -> tuple[DataFrame, DecodedLayouts]:
    """Decode record keys; as `with_decoded_values`, with `__key_`."""
    return _with_decoded(records, schemas, body=body, named=named, prefix="__key_", wanted=lambda writer: writer.tree)


@lru_cache(maxsize=128)
def spark_refusal(schema: WriterSchema, spark: SparkSession) -> str | None:
    """Why Spark's own reader of Avro does not take a schema, string; none when it does. No job runs."""
    if schema.format != "avro":
        return None
    try:
        avro.check_supported_by_spark(schema.tree, spark)
    except Py4JJavaError as exc:
        return f"Spark does not take it: {exc.java_exception.toString().splitlines()[0]}"
    return None


def by_name(found: Mapping[str, Any], named: Column, kind: str) -> Column:
    """What stands under a record's name, of Spark type `kind`; null when nothing does."""
    if not found:
        return F.lit(None).cast(kind)
    # One text that Spark reads once: an expression for each name would cost every record, and every plan.
    return F.from_json(F.lit(json.dumps(found)), f"map<string, {kind}>")[named]


def layout(kind: str, whole: Tree, tree: Tree) -> tuple[str, str, str]:
    """What is the same of schemas that are decoded as one.

    Equal layouts may still mean different things: the meaning is in Connect's names, which the tree holds.

    Args:
        kind: the schema's format.
        whole: the schema.
        tree: what is read of it.
    """
    return kind, avro.wrapped_schema(whole) if kind == "avro" else "", repr(tree)


def _with_decoded(
    records: DataFrame,
    schemas: Mapping[str, Sequence[WriterSchema]],
    *,
    body: Column,
    named: Column,
    prefix: str,
    wanted: Callable[[WriterSchema], Tree],
) -> tuple[DataFrame, DecodedLayouts]:
    numbers: dict[tuple[str, str, str], int] = {}
    trees: dict[int, tuple[str, Tree, Tree]] = {}
    meanings: dict[str, dict[int, str]] = {}
    for name in sorted(schemas):
        for writer in schemas[name]:
            whole, tree = writer.tree, wanted(writer)
            number = numbers.setdefault(layout(writer.format, whole, tree), len(numbers))
            trees[number] = writer.format, whole, tree
            meanings.setdefault(name, {}).setdefault(number, writer.fingerprint)
    certain = {
        name: {"number": number, "schema": schema}
        for name, found in meanings.items()
        if len(found) == 1
        for number, schema in found.items()
    }
    several = {name: found for name, found in meanings.items() if len(found) > 1}
    which = f"{prefix}which"
    records = records.withColumn(which, by_name(certain, named, _WHICH_TYPE))
    each, columns = [], {}
    for number, (kind, whole, tree) in trees.items():
        column = f"{prefix}{number}"
        may_be = F.col(which)["number"] == number
        unsure = [name for name, found in several.items() if number in found]
        if unsure:
            may_be = may_be | named.isin(unsure)
        columns[column] = F.when(may_be, _decoded(kind, body, whole, tree))
        each.append(DecodedLayout(tree, *_read(kind, tree, F.col(column))))
    records = records.withColumns(columns) if columns else records
    if several:
        fitting = [F.when(named == name, _only_fit(each, found)) for name, found in several.items()]
        records = records.withColumn(which, F.coalesce(which, *fitting))
    return records, DecodedLayouts(each, F.col(which)["number"], F.col(which)["schema"])


def _only_fit(each: Sequence[DecodedLayout], found: Mapping[int, str]) -> Column:
    """The layout that alone fits a record's bytes, of those that its name has meant; null if none or several do."""
    fitting = F.array_compact(
        F.array(
            *(
                F.when(
                    each[number].is_exact, F.struct(F.lit(number).alias("number"), F.lit(schema).alias("schema"))
                ).cast(_WHICH_TYPE)
                for number, schema in found.items()
            )
        )
    )
    return F.when(F.size(fitting) == 1, fitting[0])


def _decoded(kind: str, body: Column, whole: Tree, tree: Tree) -> Column:
    if kind == "avro":
        return avro.decoded(body, whole, tree)
    text = body.cast("string")
    if kind in ("csv", "string"):
        return text_format.decoded(text, tree, kind)
    return json_format.decoded(text, tree, "payload" if kind == "connect" else None)


def _read(kind: str, tree: Tree, found: Column) -> tuple[Column, Column]:
    if kind == "avro":
        return avro.value(found), avro.is_exact(found)
    if kind in ("csv", "string"):
        return text_format.value(found, tree), text_format.is_exact(found)
    return json_format.value(found, tree), json_format.is_exact(found)
