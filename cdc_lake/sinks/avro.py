"""Rows as Avro: schemas derived from columns, or written by hand and seen to fit; bodies, and the frames around them.

All of it is Spark's own expressions, so that no row goes through Python.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cdc_lake.columns import quoted
from cdc_lake.decode.framing import ID4, ID8, Side
from cdc_lake.decode.schemas import SchemaError, fields, is_nullable, parse, type_name
from cdc_lake.errors import IncompatibleSchemaError
from cdc_lake.registries.subjects import KEY_SUFFIX, VALUE_SUFFIX

_HEADERS = "headers"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ID_BYTES = {ID4: 4, ID8: 8}
_TYPES: dict[type[DataType], Any] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


@dataclass(frozen=True)
class TopicSchemas:
    """The Avro texts that a topic's keys and values are written with."""

    key: str
    value: str


def written_by_hand(folder: Path, subject: str) -> str | None:
    """The schema in `<folder>/<subject>.avsc`; none if there is no such file."""
    file = folder / f"{subject}.avsc"
    return file.read_text(encoding="utf-8") if file.is_file() else None


def topic_schemas(
    spark: SparkSession, columns: StructType, keys: Sequence[str], topic: str, folder: Path, *, doc: str = ""
) -> TopicSchemas:
    """A topic's schemas: each written by hand, if it is, and else derived.

    Args:
        folder: of the former.
        keys, doc: see `derived_schemas`.

    Raises:
        IncompatibleSchemaError: a schema written by hand does not fit the columns, or Avro has no such columns.
    """
    key, value = (written_by_hand(folder, f"{topic}{suffix}") for suffix in (KEY_SUFFIX, VALUE_SUFFIX))
    if key is not None:
        check_fits(spark, StructType(_keys(columns, keys)), key, str(folder / f"{topic}{KEY_SUFFIX}.avsc"))
    if value is not None:
        check_fits(spark, columns, value, str(folder / f"{topic}{VALUE_SUFFIX}.avsc"))
    if key is not None and value is not None:
        return TopicSchemas(key, value)
    derived = derived_schemas(columns, keys, topic, doc=doc)
    return TopicSchemas(derived.key if key is None else key, derived.value if value is None else value)


def derived_schemas(columns: StructType, keys: Sequence[str], topic: str, *, doc: str = "") -> TopicSchemas:
    """The schemas that follow from columns: records `Key` and `Value` in a namespace named after the topic.

    Key columns are required; any other is a union with null whose default is null, whatever Spark thinks of it: what a
    plan says of nulls changes with the query, and a schema must not. The key's text holds names and types only, in the
    order of `keys`, so that neither a comment nor the query's order of columns gives a key other bytes.

    Args:
        keys: the columns that make the key, in any case.
        doc: what a row says, for people. Columns have their comments.

    Raises:
        IncompatibleSchemaError: a column has a name or a type that Avro has not.
    """
    namespace = ".".join(_identifier(part) for part in topic.split("."))
    key_columns = _keys(columns, keys)
    key_fields = [_field(column, f"{namespace}.Key.", "") for column in key_columns]
    value_fields = [
        (_field if column in key_columns else _optional)(column, f"{namespace}.Value.", "") | _doc(column)
        for column in columns
    ]
    about = {"doc": doc} if doc else {}
    return TopicSchemas(
        _text({"type": "record", "name": "Key", "namespace": namespace, "fields": key_fields}),
        _text({"type": "record", "name": "Value", "namespace": namespace, **about, "fields": value_fields}),
    )


def check_fits(spark: SparkSession, columns: StructType, text: str, where: str) -> None:
    """See that a schema written by hand has a field for every column, of a type that Spark writes it as, and no other.

    Args:
        columns: those that are to be written with it.
        where: what the schema is, for the message.

    Raises:
        IncompatibleSchemaError: it does not.
    """
    try:
        tree = parse(text)
    except SchemaError as exc:
        raise IncompatibleSchemaError(where, str(exc), "mend the file") from exc
    if tree["type"] != "record":
        raise IncompatibleSchemaError(where, f"it is a schema of type {tree['type']}", "write a record")
    named = fields(tree)
    for name in columns.names:
        if name not in named:
            todo = "add a field, or leave the column out of the query"
            raise IncompatibleSchemaError(where, f"it has no field for the column `{name}`", todo)
    for name in named:
        if name not in columns.names:
            todo = "select it under this name, or take the field out"
            raise IncompatibleSchemaError(where, f"its field `{name}` is no column of the table", todo)
    jvm: Any = spark.sparkContext._jvm
    record = jvm.org.apache.avro.Schema.Parser().parse(text)
    # Spark compares the two only once it writes, a task at a time.
    for column in columns:
        catalyst = jvm.org.apache.spark.sql.types.DataType.fromJson(column.dataType.json())
        try:
            jvm.org.apache.spark.sql.avro.AvroSerializer(catalyst, record.getField(column.name).schema(), True)
        except Py4JJavaError as exc:
            kind = column.dataType.simpleString()
            what = f"the field `{column.name}` is {type_name(named[column.name])}, and Spark does not write {kind} so"
            raise IncompatibleSchemaError(where, what, "mend the field, or CAST the column") from exc


def required(text: str) -> list[str]:
    """The fields of a record's text that have no null."""
    return [name for name, tree in fields(parse(text)).items() if not is_nullable(tree)]


def body(names: Sequence[str], text: str) -> Column:
    """Columns as one Avro record, binary."""
    return to_avro(F.struct(*(F.col(quoted(name)) for name in names)), text)


def framed(body: Column, framing: str, schema_id: int) -> Column:
    """A body behind the name of its schema: a zero byte and the id, or nothing; null where there is no body."""
    size = _ID_BYTES.get(framing)
    return body if size is None else F.concat(F.lit(b"\0" + schema_id.to_bytes(size, "big")), body)


def frame_headers(framing: str, side: Side, kind: str, schema_id: int) -> dict[str, bytes]:
    """The headers that name the schema of a side, where it is they that do.

    Args:
        kind: `contentId` or `globalId`.
    """
    if framing != _HEADERS:
        return {}
    return {f"apicurio.{side}.{kind}": schema_id.to_bytes(8, "big"), f"apicurio.{side}.encoding": b"BINARY"}


def _keys(columns: StructType, keys: Sequence[str]) -> list[StructField]:
    """The columns that make the key, in the order of `keys`."""
    by_name = {column.name.casefold(): column for column in columns}
    return [by_name[key.casefold()] for key in keys]


def _field(column: StructField, name: str, where: str) -> dict[str, Any]:
    """The field of a column, or of a part of one; see `_avro_type`."""
    if not _NAME.fullmatch(column.name):
        todo = "give it a name of ASCII letters, digits and `_` with AS"
        raise IncompatibleSchemaError(f"column `{where}{column.name}`", "Avro has no such names", todo)
    return {"name": column.name, "type": _avro_type(column.dataType, f"{name}{column.name}", f"{where}{column.name}")}


def _optional(column: StructField, name: str, where: str) -> dict[str, Any]:
    """The same with null for a default."""
    field = _field(column, name, where)
    return {**field, "type": ["null", field["type"]], "default": None}


def _doc(column: StructField) -> dict[str, str]:
    comment = column.metadata.get("comment")
    return {"doc": comment} if comment else {}


def _avro_type(kind: DataType, name: str, where: str) -> Any:
    """The Avro type of a column or of a part of one.

    Args:
        name: what a record would be called.
        where: the column and the way into it.
    """
    match kind:
        case DecimalType():
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        case ArrayType():
            return {"type": "array", "items": ["null", _avro_type(kind.elementType, name, where)]}
        case MapType(keyType=StringType()):
            return {"type": "map", "values": ["null", _avro_type(kind.valueType, name, where)]}
        case StructType():
            return {"type": "record", "name": name, "fields": [_optional(f, f"{name}.", f"{where}.") for f in kind]}
    if type(kind) not in _TYPES:
        todo = "CAST it in the query"
        raise IncompatibleSchemaError(f"column `{where}`", f"Avro has no type for {kind.simpleString()}", todo)
    return _TYPES[type(kind)]


def _identifier(text: str) -> str:
    found = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return found if _NAME.fullmatch(found) else f"_{found}"


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
