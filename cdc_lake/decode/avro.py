"""Decoding Avro inside the JVM, with a proof per record that the schema was the right one.

A record read with a wrong schema mostly does not fail: it gives wrong values and leaves bytes over, or eats too many.
So 16 known bytes, the sentinel, are put behind every body, and the schema is wrapped as `{v: <the schema>, end: 16
bytes}`: `end` is the sentinel exactly when the schema consumed every byte of the body and no more.
"""

import hashlib
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from cdc_lake.decode.schemas import Tree, compact, fixed, record

_SENTINEL = hashlib.sha256(b"cdc_lake: the end of a record").digest()[:16]


def wrapped_schema(tree: Tree) -> str:
    """The text to decode with; equal texts decode the same bytes to the same values."""
    return compact(record("cdc_lake.Wrapped", {"v": tree, "end": fixed("cdc_lake.Sentinel", len(_SENTINEL))}))


def check_supported_by_spark(tree: Tree, spark: SparkSession) -> None:
    """See that a plan that decodes with a schema can be made. The JVM is asked for what it asks itself then.

    Raises:
        Py4JJavaError: it cannot.
    """
    jvm: Any = spark._jvm
    parsed = jvm.org.apache.avro.Schema.Parser().parse(wrapped_schema(tree))
    jvm.org.apache.spark.sql.avro.SchemaConverters.toSqlType(parsed)


def decoded(body: Column, writer: Tree, reader: Tree) -> Column:
    """The struct to hand to `value` and `is_exact`.

    Args:
        body: Avro without a frame, binary.
        writer: all that was written.
        reader: what of it is wanted.
    """
    options = {"mode": "PERMISSIVE", "avroSchema": wrapped_schema(reader)}
    return from_avro(F.concat(body, F.lit(_SENTINEL)), wrapped_schema(writer), options)


def value(found: Column) -> Column:
    """The decoded value."""
    return found["v"]


def is_exact(found: Column) -> Column:
    """Whether the schema consumed the bytes exactly; never null."""
    return found["end"].eqNullSafe(F.lit(_SENTINEL))
