"""Read records from files of a sink connector: Avro containers, JSON lines or Parquet.

Each topic has a folder below the root. A file's name has its partition and first offset:
`<topic>+<partition>+<offset>.avro`, optionally with its last offset, and with `-` for `+`. A row's offset is the file's
first offset plus the row's number, so offsets that the sink skipped inside a file count at its end. Files contain only
values. If the registry has `<topic>-key`, its columns are taken from the row, which restores the topic's key.
Sources of the names: the object writers of Confluent's S3, GCS and HDFS sinks and of Aiven's S3 sink; Avro's
specification, "Object Container Files". docs/how-to/files.md
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from operator import and_, or_
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import StructField, StructType

from cdc_lake.columns import quoted
from cdc_lake.decode.framing import FILE_HEADER
from cdc_lake.decode.identity import Identity
from cdc_lake.decode.records import avro_schema
from cdc_lake.decode.schemas import SchemaError, fields, is_nullable, parse
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.sources.logs import Span, TopicLog
from cdc_lake.storage.hadoop import Storage, translated

KeySchema = Callable[[str], str | None]
"""Topic -> Avro schema of its keys; none if keys are not restored from rows."""

T = TypeVar("T")

_HIDDEN = ("_", ".")
_ENDINGS = {"avro": "avro", "json": "json", "jsonl": "json", "parquet": "parquet"}
_NAME = (
    r"[+-](?P<partition>\d+)[+-](?P<start>\d+)(?:[+-](?P<last>\d+))?\.(?P<ending>avro|jsonl?|parquet)(?:\.(?:gz|zst))?"
)
_IMAGES = ("after", "before")
_PARQUET_SCHEMAS = ("parquet.avro.schema", "avro.schema")
_PARALLEL_READS = 16
"""Number of files whose schemas are read in parallel."""
_LISTED = 5
_ID = "files"
_MARK_BYTES = 16
OVERLAP = "it has rows beyond the first offset of the next file"
"""Text of Spark's error if the rows of a file would get the offsets of the next file's rows."""


@dataclass(frozen=True)
class _File:
    """A file of a topic.

    Attributes:
        start: its first offset.
        end: the offset after its last, if its name has it.
        modified_ms: when it was written.
    """

    path: str
    partition: int
    start: int
    end: int | None
    format: str
    modified_ms: int

    @property
    def name(self) -> str:
        """The name without folders."""
        return self.path.rpartition("/")[2]


class _JavaClasses:
    """Java classes for reading files, looked up once, because py4j makes a call for each part of a class name."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        apache = jvm.org.apache
        self.hadoop = spark._jsc.hadoopConfiguration()
        self.path = apache.hadoop.fs.Path
        self.bytes_of = apache.commons.io.IOUtils.toByteArray
        self.container_input = apache.avro.mapred.FsInput
        self.container = apache.avro.file.DataFileReader
        self.values = apache.avro.generic.GenericDatumReader
        self.footer_input = apache.parquet.hadoop.util.HadoopInputFile.fromPath
        self.footer = apache.parquet.hadoop.ParquetFileReader.open


class TopicFiles:
    """Topics in files; see `TopicSource`.

    Args:
        root: the folder of the topics' folders.
        lake: the lake's root, for the schema files.
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
        self._files: dict[str, dict[int, list[_File]]] = {}
        self._others: dict[str, list[str]] = {}

    def warnings(self, topic: str) -> list[str]:
        """See `TopicSource`. They name files that are not read."""
        others = self._others.get(topic, [])
        listed = ", ".join(others[:_LISTED]) + (", …" if len(others) > _LISTED else "")
        what = f"{len(others)} files are not read: their names are not `{topic}+<partition>+<first offset>.avro`"
        return [f"{what} (or .json, .parquet): {listed}"] if others else []

    def topics(self) -> list[str]:
        """See `TopicSource`."""
        todo = "allow the job's user to list and read it"
        with translated(f"files.root: {self._root}", "it cannot be listed", todo, self._root):
            return [name for name in self._storage.names(self._root) if not name.startswith(_HIDDEN)]

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        """See `TopicSource`. The topic's id stays the same if its files are replaced."""
        return {topic: self._log(topic) for topic in topics}

    def read(self, spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        """See `TopicSource`. `timestamp` is when the file was written."""
        wanted = [
            (file, behind)
            for partition, span in spans.items()
            for file, behind in _with_following(self._listed(topic)[partition])
            if file.start < span.end and (behind is None or behind > span.start)
        ]
        key = self._key_schema(topic)
        rows = reduce(
            DataFrame.unionAll,
            (
                self._values(spark, topic, files, schema, key)
                for schema, files in self._by_schema(file for file, _ in wanted).items()
            ),
        )
        named = spark.createDataFrame(
            [(file.name, file.partition, file.start, behind) for file, behind in wanted],
            "name string, partition int, start bigint, behind bigint",
        )
        # Spark may read a file in several blocks; blocks, and the rows in each, are numbered in order.
        in_file = W.partitionBy("name").orderBy("block", "row")
        rows = rows.withColumn("row", F.row_number().over(in_file)).join(F.broadcast(named), "name")
        offset = F.col("start") + F.col("row") - 1
        overlap = F.raise_error(F.concat("name", F.lit(f": {OVERLAP}"))).cast("bigint")
        in_spans = (
            (F.col("partition") == partition) & F.col("offset").between(span.start, span.end - 1)
            for partition, span in spans.items()
        )
        return (
            rows.withColumn("offset", F.when(offset >= F.col("behind"), overlap).otherwise(offset))
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
        """See `TopicSource`."""
        files = self._listed(topic)
        holding = {
            partition: [file for file, behind in _with_following(files[partition]) if behind is None or behind > offset]
            for partition, offset in offsets.items()
        }
        return {partition: several[0].modified_ms for partition, several in holding.items() if several}

    def first_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Identity]:
        """See `TopicSource`. A sink connector never reuses an offset."""
        return {}

    def skipped_records(self, spans: Mapping[int, Span], records: int) -> int:
        """See `TopicSource`: the offsets without a row."""
        return sum(span.end - span.start for span in spans.values()) - records

    @cached_property
    def _storage(self) -> Storage:
        return Storage(self._spark())

    @cached_property
    def _classes(self) -> "_JavaClasses":
        return _JavaClasses(self._spark())

    def _listed(self, topic: str) -> dict[int, list[_File]]:
        """A topic's files by partition, in order of their offsets.

        Raises:
            ConfigError: two files begin at the same offset.
        """
        if topic in self._files:
            return self._files[topic]
        name = re.compile(re.escape(topic) + _NAME)
        found: dict[int, list[_File]] = {}
        others = []
        for path, modified_ms in self._storage.files(f"{self._root}/{topic}"):
            if any(part.startswith(_HIDDEN) for part in path.removeprefix(f"{self._root}/{topic}").split("/")):
                continue
            match = name.fullmatch(path.rpartition("/")[2])
            if match is None:
                others.append(path)
                continue
            end = int(match["last"]) + 1 if match["last"] else None
            partition, start = int(match["partition"]), int(match["start"])
            file = _File(path, partition, start, end, _ENDINGS[match["ending"]], modified_ms)
            found.setdefault(partition, []).append(file)
        for files in found.values():
            files.sort(key=lambda file: file.start)
            for file, behind in pairwise(files):
                if file.start == behind.start:
                    raise ConfigError(
                        file.path,
                        f"it begins at the same offset as {behind.path}",
                        "remove the one that the sink wrote by mistake; nothing was read",
                    )
        self._files[topic], self._others[topic] = found, sorted(others)
        return found

    def _log(self, topic: str) -> TopicLog:
        self._files.pop(topic, None)
        try:
            spans = {
                partition: Span(several[0].start, several[-1].end or several[-1].start + self._count(several[-1]))
                for partition, several in sorted(self._listed(topic).items())
            }
        except CdcLakeError as error:
            return TopicLog(topic, _ID, {}, error)
        except (Py4JJavaError, PySparkException) as exc:
            return TopicLog(topic, _ID, {}, _unreadable(f"{self._root}/{topic}", exc))
        # Spark reads whole files, even for few rows.
        cuts = {partition: [file.start for file in several] for partition, several in self._listed(topic).items()}
        return TopicLog(topic, _ID, spans or {0: Span(0, 0)}, cuts=cuts)

    def _count(self, file: _File) -> int:
        """The number of rows in a file."""
        if file.format == "json":
            return self._spark().read.text(file.path).count()
        if file.format == "parquet":
            return int(self._with_footer(file, lambda reader: reader.getRecordCount()))

        def blocks(reader: Any) -> int:
            rows = 0
            while reader.hasNext():
                rows += reader.getBlockCount()
                reader.nextBlock()
            return rows

        return self._with_container(file, blocks)

    def _by_schema(self, files: Iterable[_File]) -> dict[tuple[str, str], list[_File]]:
        """Files by format and schema text, which is empty for JSON."""
        several = list(files)
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            found: dict[tuple[str, str], list[_File]] = {}
            for file, schema in zip(several, pool.map(self._schema, several), strict=True):
                found.setdefault((file.format, schema), []).append(file)
        return found

    def _schema(self, file: _File) -> str:
        if file.format == "json":
            return ""
        try:
            return self._stored_schema(file)
        except Py4JJavaError as exc:
            raise _unreadable(file.path, exc) from exc

    def _stored_schema(self, file: _File) -> str:
        if file.format == "avro":
            return self._with_container(file, lambda reader: str(reader.getMetaString("avro.schema")))

        def parquet_schema(reader: Any) -> str:
            metadata = reader.getFileMetaData()
            properties = metadata.getKeyValueMetaData()
            texts = (properties.get(name) for name in _PARQUET_SCHEMAS)
            return next((str(text) for text in texts if text), str(metadata.getSchema().toString()))

        return self._with_footer(file, parquet_schema)

    def _with_container(self, file: _File, get: Callable[[Any], T]) -> T:
        """Call `get` with Avro's reader of a file.

        Raises:
            InfrastructureError: the file is truncated, which Avro's reader does not notice.
        """
        jvm, path = self._classes, self._classes.path(file.path)
        with ExitStack() as ends:
            opened = jvm.container_input(path, jvm.hadoop)
            ends.callback(opened.close)
            stream = path.getFileSystem(jvm.hadoop).open(path)
            ends.callback(stream.close)
            reader = jvm.container(opened, jvm.values())
            marks = []  # the sync marker follows the header and each block
            for end in (reader.previousSync(), opened.length()):
                stream.seek(end - _MARK_BYTES)
                marks.append(bytes(jvm.bytes_of(stream, _MARK_BYTES)))
            if len(set(marks)) > 1:
                raise _unreadable(file.path, "it does not end like an Avro container")
            return get(reader)

    def _with_footer(self, file: _File, get: Callable[[Any], T]) -> T:
        """Call `get` with Parquet's reader of a file."""
        jvm = self._classes
        with closing(jvm.footer(jvm.footer_input(jvm.path(file.path), jvm.hadoop))) as reader:
            return get(reader)

    def _values(
        self, spark: SparkSession, topic: str, files: Sequence[_File], of: tuple[str, str], key: str | None
    ) -> DataFrame:
        """The rows of files with one schema.

        Columns out: `key`, `value` binary, `headers`, `timestamp`, `name` of the file, `block`, the start of the block
        of the file in which Spark read the row, and `row` bigint, increasing in a block.
        """
        (kind, text), paths = of, [file.path for file in files]
        read = spark.read.format("text" if kind == "json" else kind)
        headers: dict[str, str] = {}
        if kind == "json":
            rows = read.load(paths)
            value, names = F.col("value").cast("binary"), None
        else:
            if kind == "avro":
                # Without logical types values are encoded exactly as they were read.
                schema = text
                rows = read.option("avroSchema", _plain(text)).load(paths)
            else:
                rows = read.load(paths)
                schema = text if text.startswith("{") else self._of_columns(topic, rows.schema)
            headers["value"] = self._store_schema(schema, files[0])
            names = rows.schema
            value = to_avro(F.struct(*map(quoted, rows.columns)), _plain(schema) if kind == "avro" else schema)
        made = F.lit(None).cast("binary")
        if key is not None:
            headers["key"] = self._store_schema(key, files[0])
            made = _key_of(spark, topic, key if kind == "parquet" else _plain(key), names)
        return rows.select(
            made.alias("key"),
            value.alias("value"),
            _headers(headers).alias("headers"),
            F.col("_metadata.file_modification_time").alias("timestamp"),
            F.col("_metadata.file_name").alias("name"),
            F.col("_metadata.file_block_start").alias("block"),
            F.monotonically_increasing_id().alias("row"),
        )

    def _of_columns(self, topic: str, columns: StructType) -> str:
        """An Avro schema for Parquet files that do not contain one."""
        record = "Envelope" if {"op", *_IMAGES} <= set(columns.names) else "Value"
        jvm: Any = self._spark()._jvm
        converters, parsed = jvm.org.apache.spark.sql.avro.SchemaConverters, jvm.org.apache.spark.sql.types.DataType
        # Characters that Avro does not allow are replaced like Debezium does.
        namespace = ".".join(re.sub(r"\W", "_", part) for part in topic.split("."))
        return str(converters.toAvroType(parsed.fromJson(columns.json()), False, record, namespace).toString())

    def _store_schema(self, text: str, file: _File) -> str:
        """Store a schema in the lake, and return its fingerprint."""
        schema = avro_schema(text)
        try:
            if schema.tree["type"] != "record":
                raise SchemaError("its values are not records")
        except SchemaError as exc:
            raise ConfigError(file.path, f"unusable schema: {exc}", "configure the sink to write records") from exc
        return SchemaFiles(self._storage, self._lake).keep(schema).fingerprint


def _unreadable(where: str, why: Exception | str) -> InfrastructureError:
    reason = why.java_exception.toString() if isinstance(why, Py4JJavaError) else str(why)
    todo = "run again when the file is complete, or replace it; nothing was read"
    return InfrastructureError(where, f"it cannot be read completely: {reason.splitlines()[0][:300]}", todo)


def _with_following(files: Sequence[_File]) -> Iterable[tuple[_File, int | None]]:
    """A partition's files, each with the first offset of the next one."""
    return zip(files, [*(file.start for file in files[1:]), None], strict=True)


def _headers(fingerprints: Mapping[str, str]) -> Column:
    made = [
        F.struct(F.lit(FILE_HEADER.format(side)).alias("key"), F.lit(name).cast("binary").alias("value"))
        for side, name in fingerprints.items()
    ]
    return F.array(*made).cast("array<struct<key: string, value: binary>>")


def _key_of(spark: SparkSession, topic: str, key: str, columns: StructType | None) -> Column:
    """A row's key in Avro; null if the row lacks a key column.

    Args:
        key: the key's schema.
        columns: of the rows; none if rows are JSON texts.
    """
    names = fields(parse(key))
    if columns is None:
        null = from_avro(F.lit(None).cast("binary"), key)
        own = spark.range(0).select(null.alias("key")).schema["key"].dataType
        assert isinstance(own, StructType), "a key is a record"
        either = StructType([*(StructField(image, own) for image in _IMAGES), *own])
        row = F.from_json("value", StructType([StructField("payload", either), *either]))
        inner = row["payload"]
        places = [*(one[image] for one in (inner, row) for image in _IMAGES), inner, row]
    elif {"op", *_IMAGES} <= set(columns.names):
        places = [F.col(image) for image in _IMAGES]
        columns = columns["after"].dataType  # type: ignore[assignment]
    else:
        places = [F.struct(*map(quoted, columns.names))]
    if columns is not None and (missing := [name for name in names if name not in columns.names]):
        raise ConfigError(
            topic,
            f"the registry's `{topic}-key` has the column {missing[0]}, which the files' rows lack",
            "set `merge.keys` of the table to its key columns",
        )
    found = {name: F.coalesce(*(place[name] for place in places)) for name in names}
    is_whole = [found[name].isNotNull() for name, kind in names.items() if not is_nullable(kind)]
    made = to_avro(F.struct(*(column.alias(name) for name, column in found.items())), key)
    return F.when(reduce(and_, is_whole, F.lit(True)), made)


def _plain(text: str) -> str:
    """An Avro schema without its logical types."""

    def without(content: Any) -> Any:
        if isinstance(content, dict):
            return {name: without(part) for name, part in content.items() if name != "logicalType"}
        return [without(part) for part in content] if isinstance(content, list) else content

    return json.dumps(without(json.loads(text)), separators=(",", ":"))
