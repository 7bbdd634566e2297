"""Decode keys and values with the schemas they were written with, in any encoding.

One expression per distinct layout; a batch with several layouts still needs one pass.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import quoted
from cdc_lake.config import TableConfig
from cdc_lake.decode import avro
from cdc_lake.decode import json as json_format
from cdc_lake.decode.declared_types import declared_tree, text_tree
from cdc_lake.decode.envelope import STANDARD_NAMES, MetadataNames, Shape, pruned_schema, shape_of
from cdc_lake.decode.schema_texts import fingerprint
from cdc_lake.decode.schemas import SchemaError, Tree, field_names, parse, read_tree, record

_FORMAT = "cdc_lake.format"
_OTHER_FORMAT = f'{{"{_FORMAT}":'
"""The beginning of the text of a schema that is not Avro."""
_WHICH_TYPE = "struct<number: int, schema: string>"
_CORRUPT = "__corrupt"
_OPTIONS_OF_TEXT = {
    "csv": {"lineSep": "\x1d"},
    # One value is a line whose separator, quote and end do not occur in texts.
    "string": {"sep": "\x1e", "quote": "\x1f", "escape": "\x1f", "lineSep": "\x1d"},
}
"""Spark's options to read a line of CSV, or a single value, as text."""


@dataclass(frozen=True)
class WriterSchema:
    """A schema that records were written with.

    Attributes:
        text: the complete schema: Avro as the registry returned it, or the result of `schema_text`. For Avro text from
            outside, use `avro_schema`.
        names: the names of the fields that the unwrap transform adds, from the table's settings.
    """

    text: str
    names: MetadataNames = STANDARD_NAMES

    @cached_property
    def fingerprint(self) -> str:
        """The schema's ID in bronze."""
        return fingerprint(self.text)

    @cached_property
    def _other(self) -> Mapping[str, Any] | None:
        """The fields of the text if the schema is not Avro; else None."""
        if not self.text.startswith(_OTHER_FORMAT):
            return None
        fields: Mapping[str, Any] = json.loads(self.text)
        return fields

    def of_table(self, settings: TableConfig) -> "WriterSchema":
        """This schema with the metadata field names of a table, which its unwrap transform may rename."""
        renamed = tuple(sorted(settings.envelope.add_fields_renamed.items()))
        return replace(self, names=MetadataNames(settings.envelope.add_fields_prefix, renamed))

    @property
    def format(self) -> str:
        """`avro`, or the `format` passed to `schema_text`."""
        return "avro" if self._other is None else str(self._other[_FORMAT])

    @cached_property
    def tree(self) -> Tree:
        """The schema as a tree.

        Raises:
            SchemaError: it is invalid, or refused.
        """
        if self._other is None:
            return self.names.standard(parse(self.text))
        tree = read_tree(f"a schema of {self.format}", self.text, lambda fields: _TREES[self.format](fields))
        return self.names.standard(tree)

    @property
    def shape(self) -> Shape:
        return shape_of(self.tree)


def schema_text(format: str, **fields: Any) -> str:
    """The text of a schema that is not Avro; equal for equal arguments.

    Args:
        format: connect, kconnect and json-schema (`schema`, a text), json (`shape`, `names`, `columns`), csv and string
            (`columns`), protobuf, refused (`why`). Records of connect wrap their value in `payload`, those of kconnect
            do not.
    """
    return json.dumps({_FORMAT: format, **fields}, separators=(",", ":"))


def avro_schema(text: str) -> WriterSchema:
    """The Avro schema of a text from outside; refused if the text claims to be of another format."""
    try:
        text.encode("utf-8")
        why = f"it has the key `{_FORMAT}`, which is cdc_lake's own" if text.startswith(_OTHER_FORMAT) else None
    except UnicodeEncodeError:
        why = "its text is not Unicode"
    return WriterSchema(schema_text("refused", why=why, text=text) if why else text)


def _refuse(why: str) -> Tree:
    raise SchemaError(why)


def _text_tree(columns: Mapping[str, str]) -> Tree:
    """The tree of a line of CSV or a single value, from its declared columns, name to type."""
    trees = {name: declared_tree(declared_type, text_tree) for name, declared_type in columns.items()}
    if nested := next((name for name, tree in trees.items() if tree["type"] != "text"), None):
        raise SchemaError(f"`value.columns` declares a nested type for `{nested}`, which a text cannot have")
    return record("text.Value", trees)


_TREES: Mapping[str, Callable[[Mapping[str, Any]], Tree]] = {
    "connect": lambda fields: json_format.connect_tree(json.loads(fields["schema"])),
    "kconnect": lambda fields: json_format.connect_tree(json.loads(fields["schema"])),
    "json-schema": lambda fields: json_format.json_schema_tree(json.loads(fields["schema"])),
    "json": lambda fields: json_format.plain_tree(fields["shape"], fields["names"], fields["columns"]),
    "csv": lambda fields: _text_tree(fields["columns"]),
    "string": lambda fields: _text_tree(fields["columns"]),
    "protobuf": lambda fields: _refuse("Protobuf is not supported; have the connector write Avro or JSON"),
    "refused": lambda fields: _refuse(fields["why"]),
}


@dataclass(frozen=True)
class DecodedLayout:
    """One distinct layout among the schemas of a batch, and its decoded records.

    Attributes:
        tree: the part of the schema that is read.
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
        number: the record's layout, int; null if it has none, or if it is ambiguous.
        schema: fingerprint of the record's schema, string; null with `number`.
    """

    each: Sequence[DecodedLayout]
    number: Column
    schema: Column

    def chosen(self, made: Callable[[DecodedLayout], Column | None]) -> Column:
        """For each record, the column built for its layout; null without a layout or a column."""
        cases = None
        for number, decoded_layout in enumerate(self.each):
            column = made(decoded_layout)
            if column is not None:
                cases = (F if cases is None else cases).when(self.number == number, column)
        return F.lit(None) if cases is None else cases

    def among(self, is_wanted: Callable[[Tree], bool]) -> Column:
        """Whether a record's layout satisfies a condition; never null."""
        numbers = [number for number, decoded_layout in enumerate(self.each) if is_wanted(decoded_layout.tree)]
        return F.coalesce(self.number.isin(numbers), F.lit(False)) if numbers else F.lit(False)


def with_decoded_values(
    records: DataFrame,
    schemas: Mapping[str, Sequence[WriterSchema]],
    *,
    body: Column,
    named: Column,
    before: Collection[str] | None = (),
    columns: Collection[str] | None = None,
    column_of: Callable[[str], str | None] = lambda name: name,
) -> tuple[DataFrame, DecodedLayouts]:
    """Decode record values.

    Args:
        records: any rows.
        schemas: by ID, the schemas that the ID may mean, the likeliest first; control records' schemas may be left out.
        body: the bytes that the schema describes, binary.
        named: the record's schema ID, string.
        before: the columns to decode of the row before the change; see `pruned_schema`.
        columns: the row's columns to decode; see `pruned_schema`. Formats other than Avro may return more.
        column_of: from a field to the table's column that stores it, by which layouts of JSON without a schema are
            joined.

    Columns out: all, and some that start with `__value_`, which the second result reads.
    """

    def wanted(writer: WriterSchema) -> Tree:
        return pruned_schema(writer.tree, before=before, columns=columns if writer.format == "avro" else None)

    plain = dict.fromkeys(writer for writers in schemas.values() for writer in writers if writer.format == "json")
    unions = _joined({writer: wanted(writer) for writer in plain}, column_of)
    return _with_decoded(
        records,
        schemas,
        body=body,
        named=named,
        prefix="__value_",
        wanted=lambda writer: unions.get(writer) or wanted(writer),
    )


def with_decoded_keys(
    records: DataFrame, schemas: Mapping[str, Sequence[WriterSchema]], *, body: Column, named: Column
) -> tuple[DataFrame, DecodedLayouts]:
    """Decode record keys; as `with_decoded_values`, with `__key_`."""
    return _with_decoded(records, schemas, body=body, named=named, prefix="__key_", wanted=lambda writer: writer.tree)


@lru_cache(maxsize=128)
def spark_refusal(schema: WriterSchema, spark: SparkSession) -> str | None:
    """Why Spark's Avro reader rejects a schema; None if it accepts it. Runs no Spark job."""
    if schema.format != "avro":
        return None
    try:
        avro.check_supported_by_spark(schema.tree, spark)
    except Py4JJavaError as exc:
        return f"Spark rejects it: {exc.java_exception.toString().splitlines()[0]}"
    return None


def by_name(values: Mapping[str, Any], named: Column, spark_type: str) -> Column:
    """The value for a record's schema ID, of a Spark type; null if there is none."""
    if not values:
        return F.lit(None).cast(spark_type)
    # One text that Spark parses once: an expression per ID would slow down every record and plan.
    return F.from_json(F.lit(json.dumps(values)), f"map<string, {spark_type}>")[named]


def layout(format: str, whole: Tree, tree: Tree) -> tuple[str, str, str]:
    """The key by which schemas are grouped, to be decoded together.

    Equal layouts may have different meanings: those are in Connect's names, which the tree contains.
    """
    return format, avro.wrapped_schema(whole) if format == "avro" else "", repr(tree)


def _joined(trees: Mapping[WriterSchema, Tree], column_of: Callable[[str], str | None]) -> dict[WriterSchema, Tree]:
    """Merge layouts of JSON without a schema, if one layout can read the records of several."""
    unions: list[tuple[Tree, list[WriterSchema]]] = []
    for writer, tree in trees.items():
        for number, (union, writers) in enumerate(unions):
            if (both := json_format.joined(union, tree, column_of)) is not None:
                unions[number] = both, [*writers, writer]
                break
        else:
            unions.append((tree, [writer]))
    return {writer: union for union, writers in unions for writer in writers}


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
        for name, candidates in meanings.items()
        if len(candidates) == 1
        for number, schema in candidates.items()
    }
    ambiguous = {name: candidates for name, candidates in meanings.items() if len(candidates) > 1}
    which = f"{prefix}which"
    records = records.withColumn(which, by_name(certain, named, _WHICH_TYPE))
    each, columns, read = [], dict[str, Column](), dict[str, Column]()
    for number, (format, whole, tree) in trees.items():
        column = f"{prefix}{number}"
        may_be = F.col(which)["number"] == number
        unsure = [name for name, candidates in ambiguous.items() if number in candidates]
        if unsure:
            may_be = may_be | named.isin(unsure)
        columns[column] = F.when(may_be, _decoded(format, body, whole, tree))
        if format == "avro":
            each.append(DecodedLayout(tree, avro.value(F.col(column)), avro.is_exact(F.col(column))))
            continue
        # In a column of its own: as an expression, each of a row's fields would contain the whole row.
        value, is_exact = _read_text(format, tree, F.col(column))
        read[f"{column}_read"] = F.struct(value.alias("value"), is_exact.alias("is_exact"))
        each.append(DecodedLayout(tree, F.col(f"{column}_read")["value"], F.col(f"{column}_read")["is_exact"]))
    records = records.withColumns(columns) if columns else records
    records = records.withColumns(read) if read else records
    if ambiguous:
        fitting = [F.when(named == name, _only_fit(each, candidates)) for name, candidates in ambiguous.items()]
        records = records.withColumn(which, F.coalesce(which, *fitting))
    return records, DecodedLayouts(each, F.col(which)["number"], F.col(which)["schema"])


def _only_fit(each: Sequence[DecodedLayout], candidates: Mapping[int, str]) -> Column:
    """The only layout of a schema ID that fits a record's bytes exactly; null if none or several do."""
    fitting = F.array_compact(
        F.array(
            *(
                F.when(
                    each[number].is_exact, F.struct(F.lit(number).alias("number"), F.lit(schema).alias("schema"))
                ).cast(_WHICH_TYPE)
                for number, schema in candidates.items()
            )
        )
    )
    return F.when(F.size(fitting) == 1, fitting[0])


def _decoded(format: str, body: Column, whole: Tree, tree: Tree) -> Column:
    if format == "avro":
        return avro.decoded(body, whole, tree)
    # Spark's readers of texts replace bytes that are not UTF-8.
    text = F.when(F.encode(body.cast("string"), "UTF-8") == body, body.cast("string"))
    if format in ("csv", "string"):
        inner = ", ".join(f"{quoted(name)} string" for name in (*field_names(tree), _CORRUPT))
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **_OPTIONS_OF_TEXT[format]}
        return F.from_csv(text, inner, options)
    return json_format.decoded(text, tree, format)


def _read_text(format: str, tree: Tree, struct: Column) -> tuple[Column, Column]:
    if format in ("csv", "string"):
        # It is exact if the text has as many values as there are columns.
        value = F.struct(*(struct[name].alias(name) for name in field_names(tree)))
        return value, struct.isNotNull() & struct[_CORRUPT].isNull()
    return json_format.value(struct, tree, format), json_format.is_exact(struct, tree, format)
