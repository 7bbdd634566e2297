"""How a table of the lake is listed, so that Spark, Athena and Trino read it: Hive's metastore and Glue alike.

A Delta table is listed as Spark's `CREATE TABLE … USING delta LOCATION …` lists it, a Hudi table as Hudi's own sync
does (tests/spark/test_hive_catalog.py compares both with what these write).
"""

import json
from collections.abc import Iterator

from pyspark.sql.types import StructField, StructType

from cdc_lake.catalogs.catalog import PATH, Column, Entry, Listing

_LONGEST_COMMENT = 255
_LONGEST_PARAMETER = 4000
_HUDI_INPUT = "org.apache.hudi.hadoop.HoodieParquetInputFormat"
_HUDI_INPUT_WITH_LOGS = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"
_STANDS_FOR_ALL = Column("col", "array<string>")


def delta_listing(entry: Entry, *, with_columns: bool = True) -> Listing:
    """A Delta table's. Where it is partitioned, readers see in its log.

    Args:
        with_columns: else one column stands for all.
    """
    return Listing(
        database=entry.database,
        name=entry.name,
        location=entry.path,
        columns=tuple(map(_column, entry.schema)) if with_columns else (_STANDS_FOR_ALL,),
        partition_by=(),
        parameters={"EXTERNAL": "TRUE", PATH: entry.path, "spark.sql.sources.provider": "delta"},
        serde={"path": entry.path, "serialization.format": "1"},
        input_format="org.apache.hadoop.mapred.SequenceFileInputFormat",
        output_format="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
        serialization_library="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
    )


def hudi_listings(entry: Entry) -> tuple[Listing, ...]:
    """A Hudi table's, one for each of its names."""
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
    """The parameters by which Spark knows a table's columns; a catalog takes so many characters in one."""
    text = json.dumps(StructType(fields).jsonValue(), separators=(",", ":"), ensure_ascii=False)
    parts = [text[at : at + _LONGEST_PARAMETER] for at in range(0, len(text), _LONGEST_PARAMETER)]
    yield "spark.sql.sources.schema.numParts", str(len(parts))
    yield from ((f"spark.sql.sources.schema.part.{number}", part) for number, part in enumerate(parts))
    if partition_by:
        yield "spark.sql.sources.schema.numPartCols", str(len(partition_by))
        yield from ((f"spark.sql.sources.schema.partCol.{n}", name) for n, name in enumerate(partition_by))


def _column(field: StructField) -> Column:
    # What Hive calls a timestamp has no zone; Spark's own names are the same otherwise.
    kind = field.dataType.simpleString().replace("timestamp_ntz", "timestamp")
    return Column(field.name.lower(), kind, field.metadata.get("comment", "")[:_LONGEST_COMMENT])
