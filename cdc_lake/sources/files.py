"""Read records from files of a sink connector: Avro containers, JSON lines or Parquet.

Each topic has a folder below the root. A file's name has its partition and first offset (`topic_files`). A row's offset
is the file's first offset plus the row's number, so offsets that the sink skipped inside a file count at its end.
docs/how-to/files.md
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from operator import and_, or_
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import StructField, StructType

from cdc_lake.columns import quoted
from cdc_lake.decode.framing import FILE_HEADER
from cdc_lake.decode.records import avro_schema
from cdc_lake.decode.schema_texts import without_logical_types
from cdc_lake.decode.schemas import SchemaError, fields, is_nullable, parse
from cdc_lake.errors import CdcLakeError, ConfigError
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.sources.logs import Span, TopicLog, count_offsets
from cdc_lake.sources.topic_files import HIDDEN, FileHeaders, TopicFile, topic_files, unreadable_error, with_following
from cdc_lake.spark.arrow_stage import from_rows
from cdc_lake.storage.hadoop import HadoopFiles, translated
from cdc_lake.tables.progress import Identity

KeySchema = Callable[[str], str | None]
"""Topic -> Avro schema of its keys; none if keys are not restored from rows."""

_LISTED = 5
"""Number of files that a warning names."""
_ID = "files"
OVERLAP = "it has rows beyond the first offset of the next file"
"""Text of Spark's error if the rows of a file would get the offsets of the next file's rows."""
_IMAGES = ("after", "before")


class FileRows:
    """The rows of a topic's files as Kafka records, with values in the bytes that the topic had.

    Files contain only values. A topic's key is restored from the row's columns if the key's schema is known.

    Args:
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
        key_columns = {name: F.coalesce(*(place[name] for place in places)) for name in key_fields}
        is_whole = [key_columns[name].isNotNull() for name, kind in key_fields.items() if not is_nullable(kind)]
        encoded = to_avro(F.struct(*(column.alias(name) for name, column in key_columns.items())), schema)
        return F.when(reduce(and_, is_whole, F.lit(True)), encoded)

    def _places_in_json(self, key_schema: str) -> list[Column]:
        """The structs of a JSON row that may have the key's columns, in order of preference."""
        null = from_avro(F.lit(None).cast("binary"), key_schema)
        own = self._spark.range(0).select(null.alias("key")).schema["key"].dataType
        assert isinstance(own, StructType), "a key is a record"
        either = StructType([*(StructField(image, own) for image in _IMAGES), *own])
        row = F.from_json("value", StructType([StructField("payload", either), *either]))
        inner = row["payload"]
        return [*(struct[image] for struct in (inner, row) for image in _IMAGES), inner, row]


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
    return json.dumps(without_logical_types(json.loads(text)), separators=(",", ":"))


class TopicFiles:
    """Topics in files; see `TopicSource`.

    Args:
        root: the folder of the topics' folders.
        spark: returns the session.
        key_schema: looks up the schemas with which keys are restored from rows.
    """

    def __init__(
        self, root: str, lake: str, spark: Callable[[], SparkSession], key_schema: KeySchema = lambda topic: None
    ) -> None:
        self.name = f"files below {root}"
        self._root = root
        self._lake = lake
        self._spark = spark
        self._key_schema = key_schema
        self._topic_files: dict[str, dict[int, list[TopicFile]]] = {}
        self._others: dict[str, list[str]] = {}

    def warnings(self, topic: str) -> list[str]:
        """See `TopicSource`. They name files that are not read."""
        other_paths = self._others.get(topic, [])
        listed = ", ".join(other_paths[:_LISTED]) + (", …" if len(other_paths) > _LISTED else "")
        what = f"{len(other_paths)} files are not read: their names are not `{topic}+<partition>+<first offset>.avro`"
        return [f"{what} (or .json, .parquet): {listed}"] if other_paths else []

    def topics(self) -> list[str]:
        cure = "allow the job's user to list and read it"
        with translated(f"files.root: {self._root}", "it cannot be listed", cure, self._root):
            return [name for name in self._files.names(self._root) if not name.startswith(HIDDEN)]

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        """See `TopicSource`. The topic's id stays the same if its files are replaced."""
        return {topic: self._log(topic) for topic in topics}

    def read(self, spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        """See `TopicSource`. `timestamp` is when the file was written."""
        wanted = [
            (file, following)
            for partition, span in spans.items()
            for file, following in with_following(self._listed(topic)[partition])
            if file.start < span.end and (following is None or following > span.start)
        ]
        rows = FileRows(spark, SchemaFiles(self._files, self._lake), topic, self._key_schema(topic))
        by_schema = self._headers.by_schema(file for file, _ in wanted)
        parts = (rows.read(files, format, schema) for (format, schema), files in by_schema.items())
        in_spans = (
            (F.col("partition") == partition) & F.col("offset").between(span.start, span.end - 1)
            for partition, span in spans.items()
        )
        return (
            _with_offsets(reduce(DataFrame.unionAll, parts), wanted)
            .where(reduce(or_, in_spans))
            .select("key", "value", F.lit(topic).alias("topic"), "partition", "offset", "timestamp", "headers")
        )

    def read_around(
        self, spark: SparkSession, topic: str, spans: Mapping[int, Span]
    ) -> tuple[Mapping[int, Span], DataFrame]:
        """See `TopicSource`. File times are always in Spark's range."""
        return spans, self.read(spark, topic, spans)

    def offsets_at(self, log: TopicLog, timestamp_ms: int) -> dict[int, int]:
        """See `TopicSource`. A row's time is its file's."""
        files = self._listed(log.name)
        return {
            partition: next((f.start for f in files.get(partition, ()) if f.modified_ms >= timestamp_ms), span.end)
            for partition, span in log.partitions.items()
        }

    def timestamps_ms(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        files = self._listed(topic)
        holding = {
            partition: [
                file for file, following in with_following(files[partition]) if following is None or following > offset
            ]
            for partition, offset in offsets.items()
        }
        return {partition: matching[0].modified_ms for partition, matching in holding.items() if matching}

    def first_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Identity]:
        """See `TopicSource`. A sink connector never reuses an offset."""
        return {}

    def skipped_records(self, spans: Mapping[int, Span], records: int) -> int:
        """See `TopicSource`: the offsets without a row."""
        return count_offsets(spans) - records

    @cached_property
    def _files(self) -> HadoopFiles:
        return HadoopFiles(self._spark())

    @cached_property
    def _headers(self) -> FileHeaders:
        return FileHeaders(self._spark())

    def _listed(self, topic: str) -> dict[int, list[TopicFile]]:
        """A topic's files by partition, in order of their offsets; listed once, until `logs` lists them again."""
        if topic not in self._topic_files:
            folder = f"{self._root}/{topic}"
            self._topic_files[topic], self._others[topic] = topic_files(topic, folder, self._files.below(folder))
        return self._topic_files[topic]

    def _log(self, topic: str) -> TopicLog:
        self._topic_files.pop(topic, None)
        try:
            spans = {
                partition: Span(files[0].start, files[-1].end or files[-1].start + self._headers.rows(files[-1]))
                for partition, files in sorted(self._listed(topic).items())
            }
        except CdcLakeError as error:
            return TopicLog(topic, _ID, {}, error)
        except (Py4JJavaError, PySparkException) as exc:
            return TopicLog(topic, _ID, {}, unreadable_error(f"{self._root}/{topic}", exc))
        # Spark reads whole files, even for few rows.
        cuts = {partition: [file.start for file in files] for partition, files in self._listed(topic).items()}
        return TopicLog(topic, _ID, spans or {0: Span(0, 0)}, cuts=cuts)


def _with_offsets(rows: DataFrame, files: Sequence[tuple[TopicFile, int | None]]) -> DataFrame:
    """Rows of `FileRows` with `partition` and `offset`.

    A row beyond the first offset of the next file fails the query (`OVERLAP`).

    Args:
        files: the rows' files, each with the first offset of the next one.
    """
    named = from_rows(
        rows.sparkSession,
        [(file.name, file.partition, file.start, following) for file, following in files],
        "name string, partition int, start bigint, following bigint",
    )
    # Spark may read a file in several blocks; blocks, and the rows in each, are numbered in order.
    in_file = W.partitionBy("name").orderBy("block", "row")
    rows = rows.withColumn("row", F.row_number().over(in_file)).join(F.broadcast(named), "name")
    offset = F.col("start") + F.col("row") - 1
    overlap = F.raise_error(F.concat("name", F.lit(f": {OVERLAP}"))).cast("bigint")
    return rows.withColumn("offset", F.when(offset >= F.col("following"), overlap).otherwise(offset))
