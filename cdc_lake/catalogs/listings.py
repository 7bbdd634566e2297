"""Listings of tables that Spark, Athena and Trino can read, for Hive's metastore and Glue.

A Delta table is listed like Spark's `CREATE TABLE … USING delta LOCATION …`, a Hudi table like Hudi's own sync
(tests/engines/test_hive_catalog.py compares both).
"""

import json
from collections.abc import Iterator

from pyspark.sql.types import StructField, StructType

from cdc_lake.catalogs.catalog import PATH, Column, Entry, Listing

_MAX_COMMENT_LENGTH = 255
_MAX_PARAMETER_LENGTH = 4000
_HUDI_INPUT = "org.apache.hudi.hadoop.HoodieParquetInputFormat"
_HUDI_INPUT_WITH_LOGS = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"
_PLACEHOLDER_COLUMN = Column("col", "array<string>")


def delta_listing(entry: Entry, *, with_columns: bool = True) -> Listing:
    """The listing of a Delta table. Readers find its partitions in its log.

    Args:
        with_columns: false to list one placeholder column, as Spark does.
    """
    return Listing(
        database=entry.database,
        name=entry.name,
        location=entry.path,
        columns=tuple(map(_column, entry.schema)) if with_columns else (_PLACEHOLDER_COLUMN,),
        partition_by=(),
        parameters={"EXTERNAL": "TRUE", PATH: entry.path, "spark.sql.sources.provider": "delta"},
        serde={"path": entry.path, "serialization.format": "1"},
        input_format="org.apache.hadoop.mapred.SequenceFileInputFormat",
        output_format="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
        serialization_library="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
    )


def hudi_listings(entry: Entry) -> tuple[Listing, ...]:
    """The listings of a Hudi table, one for each of its names."""
    return tuple(_hudi_listing(entry, name) for name in entry.names)


def _hudi_listing(entry: Entry, name: str) -> Listing:
    is_read_optimized = name != entry.name and name.endswith("_ro")
    has_logs = entry.kind == "hudi_mor" and not is_read_optimized
    fields = [field for field in entry.schema if field.name not in entry.partition_by]
    last = [field for field in entry.schema if field.name in entry.partition_by]
    return Listing(
        database=entry.database,
        name=name,
        location=entry.path,
        columns=tuple(map(_column, fields)),
        partition_by=tuple(map(_column, last)),
        parameters={
            "EXTERNAL": "TRUE",
            PATH: entry.path,
            "spark.sql.sources.provider": "hudi",
            **dict(_spark_schema([*fields, *last], entry.partition_by)),
        },
        serde={
            "hoodie.query.as.ro.table": str(is_read_optimized).lower(),
            "path": entry.path,
            "serialization.format": "1",
        },
        input_format=_HUDI_INPUT_WITH_LOGS if has_logs else _HUDI_INPUT,
        output_format="org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
        serialization_library="org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
    )


def _spark_schema(fields: list[StructField], partition_by: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The parameters with a table's columns for Spark, split to the length that catalogs accept."""
    text = json.dumps(StructType(fields).jsonValue(), separators=(",", ":"), ensure_ascii=False)
    parts = [text[at : at + _MAX_PARAMETER_LENGTH] for at in range(0, len(text), _MAX_PARAMETER_LENGTH)]
    yield "spark.sql.sources.schema.numParts", str(len(parts))
    yield from ((f"spark.sql.sources.schema.part.{number}", part) for number, part in enumerate(parts))
    if partition_by:
        yield "spark.sql.sources.schema.numPartCols", str(len(partition_by))
        yield from ((f"spark.sql.sources.schema.partCol.{n}", name) for n, name in enumerate(partition_by))


def _column(field: StructField) -> Column:
    # Hive's timestamp has no time zone. Other type names are the same as Spark's.
    kind = field.dataType.simpleString().replace("timestamp_ntz", "timestamp")
    return Column(field.name.lower(), kind, field.metadata.get("comment", "")[:_MAX_COMMENT_LENGTH])
