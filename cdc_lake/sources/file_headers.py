"""What a file says about itself, without its rows being read: its schema and the number of its rows.

Sources: Avro's specification, "Object Container Files"; the footers of Parquet files.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc_lake.errors import InfrastructureError
from cdc_lake.sources.file_names import TopicFile

T = TypeVar("T")

_PARQUET_SCHEMAS = ("parquet.avro.schema", "avro.schema")
"""Keys in a Parquet footer under which writers store the Avro schema."""
_PARALLEL_READS = 16
"""Number of files whose schemas are read in parallel."""
_MARK_BYTES = 16


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
        several = list(files)
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            found: dict[tuple[str, str], list[TopicFile]] = {}
            for file, schema in zip(several, pool.map(self._schema, several), strict=True):
                found.setdefault((file.format, schema), []).append(file)
        return found

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
        """Call `get` with Avro's reader of a file.

        Raises:
            InfrastructureError: the file is truncated, which Avro's reader does not notice.
        """
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
    """The error of a file or folder that cannot be read completely.

    Args:
        where: its path.
        why: the reason.
    """
    reason = why.java_exception.toString() if isinstance(why, Py4JJavaError) else str(why)
    todo = "run again when the file is complete, or replace it; nothing was read"
    return InfrastructureError(where, f"it cannot be read completely: {reason.splitlines()[0][:300]}", todo)
