"""Decode Avro inside the JVM, and prove for each record that the schema was the right one.

A record that is read with a wrong schema usually does not fail: it gives wrong values and leaves bytes over, or reads
too many. Therefore 16 known bytes, the sentinel, follow every body, and the schema is wrapped as `{v: <the schema>,
end: 16 bytes}`: `end` equals the sentinel exactly if the schema consumed all bytes of the body and no more.
"""

import hashlib
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from cdc_lake.decode.schema_texts import compact
from cdc_lake.decode.schemas import MAX_DECIMAL_PRECISION, Tree, decimal_size, fixed, is_decimal, record

_SENTINEL = hashlib.sha256(b"cdc_lake: the end of a record").digest()[:16]


def wrapped_schema(tree: Tree) -> str:
    """The text to decode with; equal texts decode the same bytes to the same values."""
    wrapped = {"v": _with_widest_decimals(tree), "end": fixed("cdc_lake.Sentinel", len(_SENTINEL))}
    return compact(record("cdc_lake.Wrapped", wrapped))


def _with_widest_decimals(tree: Tree) -> Tree:
    """A tree whose decimals have the largest precision of their bytes.

    Of a decimal of up to 18 digits, Spark reads the last eight bytes only: 2^64 + 5 would become 5. The declared
    precision is checked afterwards (`types.value_problem`).
    """
    if is_decimal(tree) and decimal_size(tree):
        most = len(str((1 << (8 * tree["size"] - 1)) - 1)) - 1 if "size" in tree else MAX_DECIMAL_PRECISION
        return {**tree, "precision": min(most, MAX_DECIMAL_PRECISION)}
    parts: Tree = {name: _with_widest_decimals(tree[name]) for name in ("items", "values") if name in tree}
    if "branches" in tree:
        parts["branches"] = [_with_widest_decimals(branch) for branch in tree["branches"]]
    if "fields" in tree:
        parts["fields"] = [{**field, "type": _with_widest_decimals(field["type"])} for field in tree["fields"]]
    return {**tree, **parts}


def check_supported_by_spark(tree: Tree, spark: SparkSession) -> None:
    """Check that Spark can plan decoding with a schema, by the same JVM calls.

    Raises:
        Py4JJavaError: it cannot.
    """
    jvm: Any = spark._jvm
    parsed = jvm.org.apache.avro.Schema.Parser().parse(wrapped_schema(tree))
    jvm.org.apache.spark.sql.avro.SchemaConverters.toSqlType(parsed)


def decoded(body: Column, writer: Tree, reader: Tree) -> Column:
    """The struct from which `value` and `is_exact` read.

    Args:
        body: Avro without a frame, binary.
        writer: the schema that the record was written with.
        reader: the part of it to read.
    """
    options = {"mode": "PERMISSIVE", "avroSchema": wrapped_schema(reader)}
    return from_avro(F.concat(body, F.lit(_SENTINEL)), wrapped_schema(writer), options)


def value(struct: Column) -> Column:
    return struct["v"]


def is_exact(struct: Column) -> Column:
    """Whether the schema consumed the bytes exactly; never null."""
    return struct["end"].eqNullSafe(F.lit(_SENTINEL))
