"""A table in Delta Lake."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Generic
from urllib.parse import unquote

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import DELETE, KEEP, KEY, quoted
from cdc_lake.config import DeletionVectors, PartitionField
from cdc_lake.errors import ExpiredError
from cdc_lake.spark.expressions import built_once
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import Changes, Commit, P, Version, conflict_error, read_back
from cdc_lake.tables.delta_commits import DeltaCommits
from cdc_lake.tables.delta_write import (
    DELETION_VECTORS,
    STATISTICS,
    USER_METADATA,
    committing,
    compact,
    copied_too_much,
    first_with_statistics,
    properties_of_new_table,
    restrict_statistics,
    update_properties,
    vacuum,
    with_statistics,
)
from cdc_lake.tables.joins import equal_in, kept_or_sent
from cdc_lake.tables.partitions import partition_columns, with_partitions
from cdc_lake.tables.progress import DerivedProgress

_COLUMN_MAPPING = "delta.columnMapping.mode"
"""A property with which data files may have other column names than the table."""


class DeltaLakeTable(Generic[P]):
    """A Delta table by path; see `cdc_lake.tables.contract.Table`.

    Args:
        partition_by: columns of the rows that partition the table, for the first write.
        partitions: partition fields, stored in additional columns, which `read` drops.
        statistics: columns for data skipping, for the first write; a merge adds keys and partition columns.
        deletion_vectors: whether merges mark changed rows instead of copying the rest of their files; see
            `StorageConfig`.
        properties: the table's properties, which override the defaults; a merge updates them.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        partitions: Sequence[PartitionField] = (),
        statistics: Sequence[str] = (),
        deletion_vectors: DeletionVectors = "off",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.sql_name = f"delta.{quoted(path)}"
        self._spark = spark
        self._files = HadoopFiles(spark)
        self._partitions = tuple(partitions)
        self._partition_by = (*partition_by, *(field.name for field in partitions))
        self._statistics = tuple(statistics)
        self._deletion_vectors = deletion_vectors
        self._properties = dict(properties or {})
        if deletion_vectors != "auto":
            self._properties[DELETION_VECTORS] = str(deletion_vectors == "on").lower()
        self._commits: DeltaCommits[P] = DeltaCommits(spark, self._files, path)

    def exists(self) -> bool:
        return self.version() >= 0

    def recover(self) -> list[str]:
        """See `Table`. Delta's commits are atomic."""
        return []

    def id(self) -> str:
        table_id: str = self._commits.seen().metadata().id()
        return table_id

    def version(self) -> int:
        return self._commits.newest()

    def size(self) -> int:
        """Total bytes of the files of the version that was read last."""
        return self._commits.size()

    def partitioned_by(self) -> tuple[str, ...] | None:
        """The partition columns; none if the table does not exist."""
        snapshot = self._commits.seen()
        if snapshot.version() < 0:
            return None
        names = snapshot.metadata().partitionColumns()
        return tuple(names.apply(number) for number in range(names.size()))

    def stored_type(self, spark_type: str) -> str:
        return spark_type

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """The `commitInfo` of a commit; none if the commit's file was cleaned up."""
        return self._commits.info(version)

    def reached_by(self, progress: DerivedProgress | None, newest: P) -> int | None:
        """The last commit of this table that another table has consumed.

        Returns:
            None if the other table has consumed nothing of this table's current history. If this table was deleted,
            restored or replaced from a backup, the same number may belong to another commit.
        """
        if progress is None:
            return None
        source = self.id()
        is_known = progress.is_of(source, newest)
        if is_known is None:
            is_known = self.nonce_of(progress.sources[source]) == progress.nonces[source]
        return progress.sources[source] if is_known else None

    def nonce_of(self, commit: int) -> str | None:
        """The nonce of cdc_lake's commit with a number; none if the log does not have it."""
        return self._commits.nonce_of(commit)

    def progress_of_commit(self, commit: int) -> P | None:
        """The progress of cdc_lake's commit with a number; none if the log does not have it."""
        return self._commits.progress_of(commit)

    def progress(self, as_of: int | None = None) -> P | None:
        newest = self.version()
        if newest < 0:
            return None
        return self._commits.progress_at(newest if as_of is None else as_of)

    def lost_columns(self) -> dict[str, str | None]:
        newest, own = self.version(), self._commits.own
        if own is None or own == newest:
            return {}
        columns = set(self.read().columns)
        try:
            lost = [name for name in self.read(as_of=own).columns if name not in columns]
        except AnalysisException:  # the log no longer has all commits of this version
            return {}
        names = self._commits.renamed(lost, own, newest) if lost else {}
        return {name: now if now in columns else None for name, now in names.items()}

    def schema(self) -> StructType:
        return self._rows().schema

    def partition_folders(self) -> list[str]:
        """See `Table`. Readers find partitions in the log."""
        return []

    def read(self, as_of: int | None = None) -> DataFrame:
        rows = self._rows(as_of)
        return rows.drop(*(field.name for field in self._partitions)) if self._partitions else rows

    def history(self) -> list[Version[P]]:
        """See `Table`. It includes versions whose files were vacuumed."""
        return self._commits.history()

    def has(self, version: int) -> bool:
        """See `Table`. The files of deletion vectors are not checked."""
        try:
            files = self._rows(version).inputFiles()
        except AnalysisException:  # the log no longer has all commits of this version
            return False
        removed = set(files).difference(self._rows().inputFiles())
        return all(self._files.exists(unquote(file)) for file in removed)

    def version_at(self, at_ms: int) -> int | None:
        return self._commits.version_at(at_ms)

    def differing(self, since: int, until: int) -> tuple[DataFrame, DataFrame]:
        """See `Table`. With deletion vectors it reads all files, because only Delta can read a part of one."""
        before, after = self._at(since), self._at(until)
        files = self._commits.changed_files(since, until)
        if files.has_deletion_vectors:
            return before, after
        gone, new = ([file.path for file in changed] for changed in files)
        return self._in_files(gone, before), self._in_files(new, after)

    def added_by(self, commit: int, like: DataFrame) -> DataFrame | None:
        """The rows that cdc_lake's commit with this number added; partition columns are null. None if it is not the
        newest commit, or removed rows.

        It reads only the commit's files. Delta would also read the log, which takes longer than reading a few rows.

        Args:
            like: rows of the table with the columns to return.
        """
        known = self._commits.progress_of(commit)
        version = self._commits.seen().version()
        if known is None or self._commits.own != version or self._commits.properties([_COLUMN_MAPPING]):
            return None
        files = self._commits.changed_files(version - 1, version)
        if files.gone or files.has_deletion_vectors:
            return None
        try:
            return self._in_files([file.path for file in files.new], like)
        except ExpiredError:  # a file is missing; Delta's own read names it
            return None

    def _at(self, version: int) -> DataFrame:
        try:
            return self.read(as_of=version)
        except (PySparkException, Py4JJavaError) as exc:
            raise self._commits.expired_error(f"version {version} can no longer be read") from exc

    def _in_files(self, names: Collection[str], like: DataFrame) -> DataFrame:
        """The rows of data files, with the columns of a version."""
        if not names:
            return like.where(F.lit(False))
        paths = [name if ":/" in name else f"{self.path}/{name}" for name in map(unquote, names)]
        try:
            # Without partition discovery, which would add columns from folder names.
            rows = self._spark.read.schema(like.schema).option("recursiveFileLookup", "true").parquet(*paths)
        except PySparkException as exc:
            raise self._commits.expired_error(f"some of {len(paths)} files of the older version were vacuumed") from exc
        return rows.select(*map(quoted, like.columns))

    def maintain(self) -> dict[str, int]:
        """See `Table`. It runs OPTIMIZE, then VACUUM with the table's retention."""
        written = compact(self._spark, self.path)
        return {"files_written": written, "bytes_removed": self.vacuum()}

    def vacuum(self) -> int:
        """Remove the files that no version within the table's retention needs."""
        return vacuum(self._spark, self.path)

    def _rows(self, as_of: int | None = None) -> DataFrame:
        reader = self._spark.read.format("delta")
        if as_of is not None:
            reader = reader.option("versionAsOf", as_of)
        return reader.load(self.path)

    def append(
        self, rows: DataFrame, progress: P, *, adds_columns: bool = False, statistics: Sequence[str] = ()
    ) -> Commit[P]:
        """Append rows; the first append creates the table with the rows' schema.

        Args:
            adds_columns: whether to add new columns and fields to the table; otherwise they raise an error.
            statistics: further columns for data skipping, for the first append.

        Raises:
            TableLockedError: another run has committed or created the table first. This commit was not made.
        """
        writer = with_partitions(rows, self._partitions).write.mode("append")
        writer = writer.option("mergeSchema", "true") if adds_columns else writer
        return self._save(writer, progress, statistics=statistics)

    def rows_added(self, version: int) -> int | None:
        """The number of rows that an append added; none if the version is another kind of commit."""
        number = (self.commit_info(version) or {}).get("operationMetrics", {}).get("numOutputRows")
        return None if number is None else int(number)

    def overwrite(self, rows: DataFrame, progress: P) -> Commit[P]:
        rows = with_partitions(rows.drop(KEY), self._partitions)
        unpartitioned = rows.drop(*self._partition_by).schema
        if self.exists():
            self._restrict_statistics(with_statistics(unpartitioned))
        # An overwrite without `partitionBy` removes the partitioning.
        writer = self._partitioned(rows.write.mode("overwrite").option("overwriteSchema", "true"))
        return self._save(writer, progress, statistics=first_with_statistics(unpartitioned))

    def _restrict_statistics(self, columns: Sequence[str]) -> None:
        def default() -> list[str]:
            return first_with_statistics(self.read().drop(*self.partitioned_by() or ()).schema)

        stored = self._commits.properties([STATISTICS])
        restrict_statistics(self._spark, self.path, stored, columns, default)

    def _partitioned(self, writer: DataFrameWriter) -> DataFrameWriter:
        return writer.partitionBy(*self._partition_by) if self._partition_by else writer

    def _save(self, writer: DataFrameWriter, progress: P, *, statistics: Sequence[str] = ()) -> Commit[P]:
        if not self.exists():
            properties = properties_of_new_table(self._properties, (*statistics, *self._statistics))
            writer = self._partitioned(writer.options(**properties))
        with self._committing(progress):
            writer.format("delta").save(self.path)
        return self._committed(progress)

    def merge(self, changes: Changes, progress: P) -> Commit[P]:
        if not self.exists():
            rows = changes.upserts().drop(KEY)
            wanted = {*changes.keys, *(field.column for field in self._partitions)}
            statistics = [name for name in with_statistics(rows.schema) if name in wanted]
            return self.append(rows, progress, statistics=statistics)
        notes = self._update_properties()
        if changes.are_inserts:
            return replace(self.append(changes.upserts().drop(KEY), progress, adds_columns=True), notes=notes)
        columns = tuple(name for name in changes.rows.columns if name not in (KEY, KEEP, DELETE))
        inserted, updated = _assignments(columns, frozenset(self.read().columns), tuple(changes.keys), self._partitions)
        merge = (
            DeltaTable.forPath(self._spark, self.path)
            .alias("t")
            .merge(changes.rows.alias("s"), equal_in(changes.keys, "t", "s"))
            .withSchemaEvolution()
            .whenMatchedDelete(F.col(f"s.{DELETE}"))
            .whenMatchedUpdate(set={quoted(name): value for name, value in updated.items()})
            .whenNotMatchedInsert(
                ~F.col(f"s.{DELETE}"), values={quoted(name): value for name, value in inserted.items()}
            )
        )
        with self._committing(progress):
            merge.execute()
        return replace(self._committed(progress), notes=notes)

    def _update_properties(self) -> Sequence[str]:
        """Update the properties that changed, and turn on deletion vectors if the last merge copied too much.

        Returns:
            Notes for the report.
        """
        wanted, notes = dict(self._properties), []
        stored = {DELETION_VECTORS: "false", **self._commits.properties({*wanted, DELETION_VECTORS})}
        if self._deletion_vectors == "auto" and stored[DELETION_VECTORS] == "false":
            last = None if self._commits.own is None else self._commits.info(self._commits.own)
            if too_much := copied_too_much(last or {}):
                wanted[DELETION_VECTORS] = "true"
                copied, changed = too_much
                notes.append(
                    f"deletion vectors are on now: the last merge copied {copied:,} rows to change {changed:,}"
                )
        update_properties(self._spark, self.path, stored, wanted)
        return notes

    def advance(self, progress: P) -> Commit[P]:
        return self.append(self._rows().limit(0), progress)

    def _committing(self, progress: P) -> AbstractContextManager[None]:
        settings = {
            USER_METADATA: progress.to_metadata(),
            "write.txnAppId": f"cdc_lake:{progress.layer}:{progress.epoch}",
            "write.txnVersion": str(progress.commit),
        }
        return committing(self._spark, self.path, settings, lambda: conflict_error(self.path, progress, "another run"))

    def _committed(self, progress: P) -> Commit[P]:
        """Read the commit back, because Delta silently skips a write if another run has committed first."""
        return read_back(self, progress, lambda by: conflict_error(self.path, progress, by))


@built_once
def _assignments(
    columns: tuple[str, ...], stored: frozenset[str], keys: tuple[str, ...], partitions: tuple[PartitionField, ...]
) -> tuple[Mapping[str, Column], Mapping[str, Column]]:
    """The values of the rows that a merge inserts, and of the rows that it updates, by column."""

    def sent(name: str) -> Column:
        return F.col(f"s.{quoted(name)}")

    def becomes(name: str) -> Column:
        return kept_or_sent(name) if name in stored and name not in keys else sent(name)

    inserted = {name: sent(name) for name in columns} | partition_columns(partitions, columns, sent)
    updated = {name: becomes(name) for name in columns if name not in keys}
    updated |= partition_columns(partitions, columns, becomes)
    return inserted, updated
