"""Encode rows as Avro: schemas, derived from columns or handwritten, record bodies and their frames.

Encoding uses Spark's own expressions, so no row passes through Python.
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
    """The Avro schemas of a topic's keys and values."""

    key: str
    value: str


def topic_schemas(
    spark: SparkSession, columns: StructType, keys: Sequence[str], topic: str, folder: Path, *, doc: str = ""
) -> TopicSchemas:
    """A topic's schemas: handwritten if there is a file `<folder>/<subject>.avsc`, otherwise derived.

    Args:
        keys, doc: see `derived_schemas`.

    Raises:
        IncompatibleSchemaError: a handwritten schema does not match the columns, or Avro cannot represent a column.
    """
    files = [folder / f"{topic}{suffix}.avsc" for suffix in (KEY_SUFFIX, VALUE_SUFFIX)]
    key, value = (file.read_text(encoding="utf-8") if file.is_file() else None for file in files)
    if key is not None:
        check_fits(spark, StructType(_keys(columns, keys)), key, str(files[0]))
    if value is not None:
        check_fits(spark, columns, value, str(files[1]))
    if key is not None and value is not None:
        return TopicSchemas(key, value)
    derived = derived_schemas(columns, keys, topic, doc=doc)
    return TopicSchemas(derived.key if key is None else key, derived.value if value is None else value)


def derived_schemas(columns: StructType, keys: Sequence[str], topic: str, *, doc: str = "") -> TopicSchemas:
    """Derive schemas from columns: records `Key` and `Value` in a namespace named after the topic.

    Key columns are required. Other columns are unions with null whose default is null, regardless of Spark's
    nullability, which changes with the query's plan. The key's schema has only names and types, in the order of `keys`,
    so that comments and the order of columns in the query do not change the key's bytes.

    Args:
        keys: the key columns, case-insensitive.
        doc: description of the record. Fields get their columns' comments.

    Raises:
        IncompatibleSchemaError: Avro does not support a column's name or type.
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
    """Check that a handwritten schema has exactly one field per column, of a type to which Spark can convert it.

    Raises:
        IncompatibleSchemaError: it does not.
    """
    try:
        tree = parse(text)
    except SchemaError as exc:
        raise IncompatibleSchemaError(where, str(exc), "correct the file") from exc
    if tree["type"] != "record":
        raise IncompatibleSchemaError(where, f"it is a schema of type {tree['type']}", "write a record schema")
    named = fields(tree)
    for name in columns.names:
        if name not in named:
            cure = "add a field, or remove the column from the query"
            raise IncompatibleSchemaError(where, f"it has no field for the column `{name}`", cure)
    for name in named:
        if name not in columns.names:
            cure = "select a column of this name, or remove the field"
            raise IncompatibleSchemaError(where, f"its field `{name}` is not a column of the table", cure)
    jvm: Any = spark.sparkContext._jvm
    record = jvm.org.apache.avro.Schema.Parser().parse(text)
    # Spark itself compares them only in the tasks that write.
    for column in columns:
        catalyst = jvm.org.apache.spark.sql.types.DataType.fromJson(column.dataType.json())
        try:
            jvm.org.apache.spark.sql.avro.AvroSerializer(catalyst, record.getField(column.name).schema(), True)
        except Py4JJavaError as exc:
            avro_type, spark_type = type_name(named[column.name]), column.dataType.simpleString()
            what = f"the field `{column.name}` is {avro_type}, but Spark cannot write {spark_type} to it"
            raise IncompatibleSchemaError(where, what, "correct the field, or CAST the column") from exc


def required_fields(text: str) -> list[str]:
    """The non-nullable fields of a record schema."""
    return [name for name, tree in fields(parse(text)).items() if not is_nullable(tree)]


def framed(text: str, framing: str, schema_id: int) -> Column:
    """The columns of a record schema, encoded with it, binary; after a zero byte and the schema id, if `framing` has
    such a frame.
    """
    body = to_avro(F.struct(*(F.col(quoted(name)) for name in fields(parse(text)))), text)
    size = _ID_BYTES.get(framing)
    return body if size is None else F.concat(F.lit(b"\0" + schema_id.to_bytes(size, "big")), body)


def frame_headers(framing: str, side: Side, kind: str, schema_id: int) -> dict[str, bytes]:
    """The headers with the schema id of a side; none unless `framing` is `headers`.

    Args:
        kind: `contentId` or `globalId`.
    """
    if framing != _HEADERS:
        return {}
    return {f"apicurio.{side}.{kind}": schema_id.to_bytes(8, "big"), f"apicurio.{side}.encoding": b"BINARY"}


def _keys(columns: StructType, keys: Sequence[str]) -> list[StructField]:
    by_name = {column.name.casefold(): column for column in columns}
    return [by_name[key.casefold()] for key in keys]


def _field(column: StructField, name: str, where: str) -> dict[str, Any]:
    """The field of a column or nested field; see `_avro_type`."""
    if not _NAME.fullmatch(column.name):
        cure = "rename it with AS, using ASCII letters, digits and `_`"
        raise IncompatibleSchemaError(f"column `{where}{column.name}`", "Avro does not allow this name", cure)
    return {"name": column.name, "type": _avro_type(column.dataType, f"{name}{column.name}", f"{where}{column.name}")}


def _optional(column: StructField, name: str, where: str) -> dict[str, Any]:
    """A nullable field with null as its default."""
    field = _field(column, name, where)
    return {**field, "type": ["null", field["type"]], "default": None}


def _doc(column: StructField) -> dict[str, str]:
    comment = column.metadata.get("comment")
    return {"doc": comment} if comment else {}


def _avro_type(spark_type: DataType, name: str, where: str) -> Any:
    """The Avro type of a column or nested field.

    Args:
        name: the name for a record.
        where: path of the field, for messages.
    """
    match spark_type:
        case DecimalType():
            return {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": spark_type.precision,
                "scale": spark_type.scale,
            }
        case ArrayType():
            return {"type": "array", "items": ["null", _avro_type(spark_type.elementType, name, where)]}
        case MapType(keyType=StringType()):
            return {"type": "map", "values": ["null", _avro_type(spark_type.valueType, name, where)]}
        case StructType():
            return {
                "type": "record",
                "name": name,
                "fields": [_optional(f, f"{name}.", f"{where}.") for f in spark_type],
            }
    if type(spark_type) not in _TYPES:
        cure = "CAST it in the query to another type"
        raise IncompatibleSchemaError(f"column `{where}`", f"Avro has no type for {spark_type.simpleString()}", cure)
    return _TYPES[type(spark_type)]


def _identifier(text: str) -> str:
    identifier = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return identifier if _NAME.fullmatch(identifier) else f"_{identifier}"


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
