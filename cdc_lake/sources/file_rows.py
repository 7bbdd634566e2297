"""Rows of files as Kafka records: values in the bytes that the topic had, and keys restored from the rows.

Files contain only values. A topic's key is restored from the row's columns if the key's schema is known.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import StructField, StructType

from cdc_lake.columns import quoted
from cdc_lake.decode.framing import FILE_HEADER
from cdc_lake.decode.records import avro_schema
from cdc_lake.decode.schemas import SchemaError, parse
from cdc_lake.decode.trees import fields, is_nullable
from cdc_lake.errors import ConfigError
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.sources.file_names import TopicFile

_IMAGES = ("after", "before")


class FileRows:
    """The rows of a topic's files.

    Args:
        spark: the session that reads them.
        schemas: where their schemas are stored.
        topic: the topic.
        key_schema: the Avro schema of its keys; none if they are not restored.
    """

    def __init__(self, spark: SparkSession, schemas: SchemaFiles, topic: str, key_schema: str | None) -> None:
        self._spark = spark
        self._schemas = schemas
        self._topic = topic
        self._key_schema = key_schema

    def read(self, files: Sequence[TopicFile], format: str, schema: str) -> DataFrame:
        """The rows of files with one format and schema (`FileHeaders.by_schema`).

        Columns out: `key`, `value` binary, `headers`, `timestamp`, `name` of the file, `block`, the start of the block
        of the file in which Spark read the row, and `row` bigint, increasing in a block.

        Raises:
            ConfigError: the schema is unusable, or the rows lack columns of the key.
        """
        paths = [file.path for file in files]
        read = self._spark.read.format("text" if format == "json" else format)
        fingerprints: dict[str, str] = {}
        columns: StructType | None = None
        if format == "json":
            rows = read.load(paths)
            value = F.col("value").cast("binary")
        else:
            if format == "avro":
                # Without logical types values are encoded exactly as they were read.
                rows = read.option("avroSchema", _plain(schema)).load(paths)
            else:
                rows = read.load(paths)
                schema = schema if schema.startswith("{") else self._schema_of(rows.schema)
            fingerprints["value"] = self._store(schema, files[0])
            columns = rows.schema
            value = to_avro(F.struct(*map(quoted, rows.columns)), _plain(schema) if format == "avro" else schema)
        key = F.lit(None).cast("binary")
        if self._key_schema is not None:
            fingerprints["key"] = self._store(self._key_schema, files[0])
            key = self._key(self._key_schema if format == "parquet" else _plain(self._key_schema), columns)
        return rows.select(
            key.alias("key"),
            value.alias("value"),
            _headers(fingerprints).alias("headers"),
            F.col("_metadata.file_modification_time").alias("timestamp"),
            F.col("_metadata.file_name").alias("name"),
            F.col("_metadata.file_block_start").alias("block"),
            F.monotonically_increasing_id().alias("row"),
        )

    def _schema_of(self, columns: StructType) -> str:
        """An Avro schema for Parquet files that do not contain one."""
        record = "Envelope" if _is_envelope(columns) else "Value"
        jvm: Any = self._spark._jvm
        converters, parsed = jvm.org.apache.spark.sql.avro.SchemaConverters, jvm.org.apache.spark.sql.types.DataType
        # Characters that Avro does not allow are replaced like Debezium does.
        namespace = ".".join(re.sub(r"\W", "_", part) for part in self._topic.split("."))
        return str(converters.toAvroType(parsed.fromJson(columns.json()), False, record, namespace).toString())

    def _store(self, text: str, file: TopicFile) -> str:
        """Store a schema in the lake, and return its fingerprint."""
        schema = avro_schema(text)
        try:
            if schema.tree["type"] != "record":
                raise SchemaError("its values are not records")
        except SchemaError as exc:
            raise ConfigError(file.path, f"unusable schema: {exc}", "configure the sink to write records") from exc
        return self._schemas.keep(schema).fingerprint

    def _key(self, schema: str, columns: StructType | None) -> Column:
        """A row's key in Avro; null if the row lacks a key column.

        Args:
            schema: the key's.
            columns: the columns of the rows; none if rows are JSON texts.
        """
        key_fields = fields(parse(schema))
        if columns is None:
            places = self._places_in_json(schema)
        elif _is_envelope(columns):
            places = [F.col(image) for image in _IMAGES]
            columns = columns["after"].dataType  # type: ignore[assignment]
        else:
            places = [F.struct(*map(quoted, columns.names))]
        if columns is not None and (missing := [name for name in key_fields if name not in columns.names]):
            raise ConfigError(
                self._topic,
                f"the registry's `{self._topic}-key` has the column {missing[0]}, which the files' rows lack",
                "set `merge.keys` of the table to its key columns",
            )
        found = {name: F.coalesce(*(place[name] for place in places)) for name in key_fields}
        is_whole = [found[name].isNotNull() for name, kind in key_fields.items() if not is_nullable(kind)]
        encoded = to_avro(F.struct(*(column.alias(name) for name, column in found.items())), schema)
        return F.when(reduce(and_, is_whole, F.lit(True)), encoded)

    def _places_in_json(self, key_schema: str) -> list[Column]:
        """The structs of a JSON row that may have the key's columns, in order of preference."""
        null = from_avro(F.lit(None).cast("binary"), key_schema)
        own = self._spark.range(0).select(null.alias("key")).schema["key"].dataType
        assert isinstance(own, StructType), "a key is a record"
        either = StructType([*(StructField(image, own) for image in _IMAGES), *own])
        row = F.from_json("value", StructType([StructField("payload", either), *either]))
        inner = row["payload"]
        return [*(one[image] for one in (inner, row) for image in _IMAGES), inner, row]


def _is_envelope(columns: StructType) -> bool:
    """Whether rows are Debezium's envelopes, with the row's columns in `after` and `before`."""
    return {"op", *_IMAGES} <= set(columns.names)


def _headers(fingerprints: Mapping[str, str]) -> Column:
    """Record headers that name the schemas of a record's key and value."""
    headers = [
        F.struct(F.lit(FILE_HEADER.format(side)).alias("key"), F.lit(fingerprint).cast("binary").alias("value"))
        for side, fingerprint in fingerprints.items()
    ]
    return F.array(*headers).cast("array<struct<key: string, value: binary>>")


def _plain(text: str) -> str:
    """An Avro schema without its logical types."""

    def without(content: Any) -> Any:
        if isinstance(content, dict):
            return {name: without(part) for name, part in content.items() if name != "logicalType"}
        return [without(part) for part in content] if isinstance(content, list) else content

    return json.dumps(without(json.loads(text)), separators=(",", ":"))
