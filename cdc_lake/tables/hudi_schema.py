"""Limits of Hudi's schemas: names, integer types, nulls, and arrays next to short decimals."""

import re

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from cdc_lake.columns import quoted
from cdc_lake.errors import UnsupportedError

_SMALL = re.compile(r"\b(tinyint|smallint)(?=[,>]|$)")
_LONG_DIGITS = 18


def stored_type(kind: str) -> str:
    """The Spark type with which Hudi stores a type. Its schema is Avro, whose smallest integer type is int."""
    return _SMALL.sub("int", kind)


def check_names(path: str, kind: DataType) -> None:
    """Check that Avro, the format of Hudi's schema, allows all names.

    Args:
        path: the table's folder.
        kind: the type of its rows.

    Raises:
        UnsupportedError: Avro does not allow a name.
    """
    if isinstance(kind, StructType):
        for field in kind:
            if not field.name.isidentifier():
                raise UnsupportedError(
                    path,
                    f"Hudi does not allow the column or field name `{field.name}`: use letters, digits and `_` only",
                    "set field.name.adjustment.mode=avro on the connector, or store this table in Delta",
                )
            check_names(path, field.dataType)
    elif isinstance(kind, ArrayType):
        check_names(path, kind.elementType)
    elif isinstance(kind, MapType):
        check_names(path, kind.valueType)


def nullable_columns(schema: StructType) -> list[Column]:
    """The columns, nullable at every depth: Hudi requires this of new columns, and later batches may have nulls."""
    return [
        F.when(F.lit(True), F.col(quoted(field.name)).cast(_nullable(field.dataType))).alias(field.name)
        for field in schema
    ]


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind])
    return kind


def has_short_decimals(schema: StructType) -> bool:
    """Whether the schema has a decimal that fits into a long.

    If so, Hudi's row writer writes arrays in a form that its Avro reader cannot read: a later commit that copies such a
    file writes null into the arrays of all unchanged rows.
    """
    precisions = re.findall(r"\bdecimal\((\d+),", schema.simpleString())
    return any(int(precision) <= _LONG_DIGITS for precision in precisions)


def may_lose_arrays(schema: StructType) -> bool:
    """Whether a table with this schema loses arrays if Hudi's row writer wrote it; see `has_short_decimals`."""
    return has_short_decimals(schema) and "array<" in schema.simpleString()
