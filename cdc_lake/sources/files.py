"""Read records from files of a sink connector: Avro containers, JSON lines or Parquet.

Each topic has a folder below the root. A file's name has its partition and first offset (`file_names`). A row's offset
is the file's first offset plus the row's number, so offsets that the sink skipped inside a file count at its end.
docs/how-to/files.md
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.decode.identity import Identity
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.sources.file_headers import FileHeaders, unreadable_error
from cdc_lake.sources.file_names import HIDDEN, TopicFile, topic_files, with_following
from cdc_lake.sources.file_rows import FileRows
from cdc_lake.sources.logs import Span, TopicLog, count_offsets
from cdc_lake.spark.arrow_stage import from_rows
from cdc_lake.storage.hadoop import Storage, translated

KeySchema = Callable[[str], str | None]
"""Topic -> Avro schema of its keys; none if keys are not restored from rows."""

_LISTED = 5
"""Number of files that a warning names."""
_ID = "files"
OVERLAP = "it has rows beyond the first offset of the next file"
"""Text of Spark's error if the rows of a file would get the offsets of the next file's rows."""


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
        self._files: dict[str, dict[int, list[TopicFile]]] = {}
        self._others: dict[str, list[str]] = {}

    def warnings(self, topic: str) -> list[str]:
        """See `TopicSource`. They name files that are not read."""
        others = self._others.get(topic, [])
        listed = ", ".join(others[:_LISTED]) + (", …" if len(others) > _LISTED else "")
        what = f"{len(others)} files are not read: their names are not `{topic}+<partition>+<first offset>.avro`"
        return [f"{what} (or .json, .parquet): {listed}"] if others else []

    def topics(self) -> list[str]:
        todo = "allow the job's user to list and read it"
        with translated(f"files.root: {self._root}", "it cannot be listed", todo, self._root):
            return [name for name in self._storage.names(self._root) if not name.startswith(HIDDEN)]

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
        rows = FileRows(spark, SchemaFiles(self._storage, self._lake), topic, self._key_schema(topic))
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
        return {partition: several[0].modified_ms for partition, several in holding.items() if several}

    def first_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Identity]:
        """See `TopicSource`. A sink connector never reuses an offset."""
        return {}

    def skipped_records(self, spans: Mapping[int, Span], records: int) -> int:
        """See `TopicSource`: the offsets without a row."""
        return count_offsets(spans) - records

    @cached_property
    def _storage(self) -> Storage:
        return Storage(self._spark())

    @cached_property
    def _headers(self) -> FileHeaders:
        return FileHeaders(self._spark())

    def _listed(self, topic: str) -> dict[int, list[TopicFile]]:
        """A topic's files by partition, in order of their offsets; listed once, until `logs` lists them again."""
        if topic not in self._files:
            folder = f"{self._root}/{topic}"
            self._files[topic], self._others[topic] = topic_files(topic, folder, self._storage.files(folder))
        return self._files[topic]

    def _log(self, topic: str) -> TopicLog:
        self._files.pop(topic, None)
        try:
            spans = {
                partition: Span(
                    several[0].start, several[-1].end or several[-1].start + self._headers.rows(several[-1])
                )
                for partition, several in sorted(self._listed(topic).items())
            }
        except CdcLakeError as error:
            return TopicLog(topic, _ID, {}, error)
        except (Py4JJavaError, PySparkException) as exc:
            return TopicLog(topic, _ID, {}, unreadable_error(f"{self._root}/{topic}", exc))
        # Spark reads whole files, even for few rows.
        cuts = {partition: [file.start for file in several] for partition, several in self._listed(topic).items()}
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
