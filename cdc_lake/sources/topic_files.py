"""Files of a sink connector: what their names, `<topic>+<partition>+<offset>.avro`, and their headers say.

The offset is that of the first row. A name may also have the last offset, `-` instead of `+`, and a compression's
ending. Sources of the names: the object writers of Confluent's S3, GCS and HDFS sinks and of Aiven's S3 sink.
Sources of the headers: Avro's specification, "Object Container Files"; the footers of Parquet files.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.storage.hadoop import message_of

HIDDEN = ("_", ".")
"""First characters of the names of files and folders that sinks write for themselves."""
_ENDINGS = {"avro": "avro", "json": "json", "jsonl": "json", "parquet": "parquet"}
_NAME = (
    r"[+-](?P<partition>\d+)[+-](?P<start>\d+)(?:[+-](?P<last>\d+))?\.(?P<ending>avro|jsonl?|parquet)(?:\.(?:gz|zst))?"
)
T = TypeVar("T")

_PARQUET_SCHEMAS = ("parquet.avro.schema", "avro.schema")
"""Keys in a Parquet footer under which writers store the Avro schema."""
_PARALLEL_READS = 16
"""Number of files whose schemas are read in parallel."""
_MARK_BYTES = 16


@dataclass(frozen=True)
class TopicFile:
    """A file of a topic.

    Attributes:
        start: its first offset.
        end: the offset after its last, if its name has it.
        format: avro, json or parquet.
        modified_ms: when it was written, in milliseconds since 1970.
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


def topic_files(
    topic: str, folder: str, listed: Iterable[tuple[str, int]]
) -> tuple[dict[int, list[TopicFile]], list[str]]:
    """A topic's files by partition, in order of their offsets, and the paths of the other files.

    Args:
        listed: paths of the files below it, each with its modification time in ms.

    Raises:
        ConfigError: two files begin at the same offset.
    """
    name = re.compile(re.escape(topic) + _NAME)
    by_partition: dict[int, list[TopicFile]] = {}
    other_paths = []
    for path, modified_ms in listed:
        if any(part.startswith(HIDDEN) for part in path.removeprefix(folder).split("/")):
            continue
        match = name.fullmatch(path.rpartition("/")[2])
        if match is None:
            other_paths.append(path)
            continue
        end = int(match["last"]) + 1 if match["last"] else None
        partition, start = int(match["partition"]), int(match["start"])
        file = TopicFile(path, partition, start, end, _ENDINGS[match["ending"]], modified_ms)
        by_partition.setdefault(partition, []).append(file)
    for files in by_partition.values():
        files.sort(key=lambda file: file.start)
        _check_starts(files)
    return by_partition, sorted(other_paths)


def with_following(files: Sequence[TopicFile]) -> Iterable[tuple[TopicFile, int | None]]:
    """A partition's files, each with the first offset of the next one."""
    return zip(files, [*(file.start for file in files[1:]), None], strict=True)


def _check_starts(files: Sequence[TopicFile]) -> None:
    for file, following in pairwise(files):
        if file.start == following.start:
            raise ConfigError(
                file.path,
                f"it begins at the same offset as {following.path}",
                "remove the one that the sink wrote by mistake; nothing was read",
            )


class FileHeaders:
    """Headers of Avro containers and footers of Parquet files, read by their Java classes.

    The classes are looked up once, because py4j makes a call for each part of a class name.

    Args:
        spark: the session, which also counts the lines of JSON files.
    """

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        apache = jvm.org.apache
        self._spark = spark
        self._hadoop = spark._jsc.hadoopConfiguration()
        self._path = apache.hadoop.fs.Path
        self._bytes_of = apache.commons.io.IOUtils.toByteArray
        self._container_input = apache.avro.mapred.FsInput
        self._container = apache.avro.file.DataFileReader
        self._values = apache.avro.generic.GenericDatumReader
        self._footer_input = apache.parquet.hadoop.util.HadoopInputFile.fromPath
        self._footer = apache.parquet.hadoop.ParquetFileReader.open

    def rows(self, file: TopicFile) -> int:
        """The number of rows in a file."""
        if file.format == "json":
            return self._spark.read.text(file.path).count()
        if file.format == "parquet":
            return int(self._with_footer(file, lambda reader: reader.getRecordCount()))

        def blocks(reader: Any) -> int:
            rows = 0
            while reader.hasNext():
                rows += reader.getBlockCount()
                reader.nextBlock()
            return rows

        return self._with_container(file, blocks)

    def by_schema(self, files: Iterable[TopicFile]) -> dict[tuple[str, str], list[TopicFile]]:
        """Files by format and schema text.

        The text is empty for JSON. For Parquet files without an Avro schema it is Parquet's own schema.

        Raises:
            InfrastructureError: a file cannot be read completely.
        """
        all_files = list(files)
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            by_schema: dict[tuple[str, str], list[TopicFile]] = {}
            for file, schema in zip(all_files, pool.map(self._schema, all_files), strict=True):
                by_schema.setdefault((file.format, schema), []).append(file)
        return by_schema

    def _schema(self, file: TopicFile) -> str:
        if file.format == "json":
            return ""
        try:
            return self._stored_schema(file)
        except Py4JJavaError as exc:
            raise unreadable_error(file.path, exc) from exc

    def _stored_schema(self, file: TopicFile) -> str:
        if file.format == "avro":
            return self._with_container(file, lambda reader: str(reader.getMetaString("avro.schema")))

        def parquet_schema(reader: Any) -> str:
            metadata = reader.getFileMetaData()
            properties = metadata.getKeyValueMetaData()
            texts = (properties.get(name) for name in _PARQUET_SCHEMAS)
            return next((str(text) for text in texts if text), str(metadata.getSchema().toString()))

        return self._with_footer(file, parquet_schema)

    def _with_container(self, file: TopicFile, get: Callable[[Any], T]) -> T:
        """Call `get` with Avro's reader of a file."""
        path = self._path(file.path)
        with ExitStack() as ends:
            opened = self._container_input(path, self._hadoop)
            ends.callback(opened.close)
            stream = path.getFileSystem(self._hadoop).open(path)
            ends.callback(stream.close)
            reader = self._container(opened, self._values())
            marks = []  # the sync marker follows the header and each block
            for end in (reader.previousSync(), opened.length()):
                stream.seek(end - _MARK_BYTES)
                marks.append(bytes(self._bytes_of(stream, _MARK_BYTES)))
            if len(set(marks)) > 1:
                raise unreadable_error(file.path, "it does not end like an Avro container")
            return get(reader)

    def _with_footer(self, file: TopicFile, get: Callable[[Any], T]) -> T:
        """Call `get` with Parquet's reader of a file."""
        with closing(self._footer(self._footer_input(self._path(file.path), self._hadoop))) as reader:
            return get(reader)


def unreadable_error(where: str, why: Exception | str) -> InfrastructureError:
    """The error of a file or folder that cannot be read completely."""
    reason = why if isinstance(why, str) else message_of(why)[:300]
    cure = "run again when the file is complete, or replace it; nothing was read"
    return InfrastructureError(where, f"it cannot be read completely: {reason}", cure)
