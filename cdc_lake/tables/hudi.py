"""A table in Apache Hudi, copy-on-write or merge-on-read.

The fold determines the rows before they are written, so the last write wins, and deleted rows are written with
`_hoodie_is_deleted`. Hudi's own ordering and its delete operation resurrect rows or create unreadable tables.
docs/decisions/hudi.md.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Generic, Literal

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import DELETE, HUDI_PREFIX, KEEP, KEY, quoted, without_small_integers
from cdc_lake.config import PartitionField
from cdc_lake.errors import ConfigError, TableLockedError, UnsupportedError
from cdc_lake.points import time_text
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import Changes, Commit, P, Version, progress_of, read_back
from cdc_lake.tables.hudi_commits import HudiCommits, OwnCommit, commit_metadata
from cdc_lake.tables.hudi_folder import HudiFolder, milliseconds, others_since, wait_until_past
from cdc_lake.tables.hudi_settings import (
    COMPACT_NOW,
    READ,
    HudiSettings,
    HudiType,
    check_names,
    has_short_decimals,
    may_lose_arrays,
    nullable_columns,
)
from cdc_lake.tables.joins import with_kept
from cdc_lake.tables.partitions import with_one_partition

_IS_DELETED = f"{HUDI_PREFIX}is_deleted"
"""Hudi's column that marks rows to delete; every table has it, with false in stored rows."""
_FILE = f"{HUDI_PREFIX}file_name"
_MAX_GROUPS = 64
"""With more file groups, rows are read without a filter by group, because long conditions are expensive."""
_INSTANT = re.compile(r"\b\d{17}\b")
_ROLLED_BACK = re.compile(r"\.?(?:inflight|requested)\b.{0,20} does not exist")
"""Hudi's error if another writer removed the files of a running write."""


class HudiTable(Generic[P]):
    """A Hudi table by path; see `cdc_lake.tables.contract.Table`. A version is an instant of its timeline, as a number.

    Args:
        partitions: partition fields, combined in one column, which `read` drops.
        buckets: file groups per partition (default: as many as needed, and rows are looked up).
        table_version: the version of Hudi's table format (default: the newest).
        properties: Hudi's settings for each write, which override the defaults.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        *,
        table_type: HudiType = "cow",
        partitions: Sequence[PartitionField] = (),
        buckets: int | None = None,
        table_version: Literal[6] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.sql_name = f"hudi.{quoted(path)}"
        self._spark = spark
        is_version_6 = table_version is not None
        self._settings = HudiSettings(table_type, tuple(partitions), buckets, is_version_6, dict(properties or {}))
        self._files = HadoopFiles(spark)
        self._folder = HudiFolder(self._files, path, is_version_6=is_version_6)
        self._commits: HudiCommits[P] = HudiCommits(spark, self._folder, is_version_6=is_version_6)

    def differing_settings(self) -> str | None:
        """Description of the first table property that differs from this class's; none if all match, or it is new.

        Raises:
            DamagedFileError: the properties file is missing.
            UnsupportedError: a newer Hudi release wrote the table, in a version that this one does not support.
        """
        stored = self._folder.stored_properties()
        if stored is None:
            return None
        self._check_format(int(stored.get("hoodie.table.version", 0)))
        return self._settings.differing(stored)

    def _check_format(self, version: int) -> None:
        jvm: Any = self._spark._jvm
        known = jvm.org.apache.hudi.common.table.HoodieTableVersion.current().versionCode()
        if version > known:
            raise UnsupportedError(
                self.path,
                f"the table has version {version}, but this Hudi release supports versions up to {known}",
                "use the same Hudi release as the other jobs (docs/reference/compatibility.md)",
            )

    def exists(self) -> bool:
        """See `Table`. After an interrupted first write there is no table yet."""
        return self._commits.newest_version() is not None

    def recover(self) -> list[str]:
        return self._folder.recover()

    def id(self) -> str:
        return self._newest_own().table_id

    def version(self) -> int:
        newest = self._commits.newest_version()
        assert newest is not None, "the table exists"
        return newest

    def size(self) -> int:
        """Total bytes of its files, including older versions."""
        return self._files.size(self.path)

    def stored_type(self, spark_type: str) -> str:
        """See `Table`. Hudi's schema is Avro, whose smallest integer type is int."""
        return without_small_integers(spark_type)

    def progress(self, as_of: int | None = None) -> P | None:
        commit = self._commits.own(as_of)
        return commit and commit.progress.model_copy(update={"epoch": commit.progress.epoch + commit.restores})

    def lost_columns(self) -> dict[str, str | None]:
        """See `Table`. Hudi's timeline does not have this."""
        return {}

    def schema(self) -> StructType:
        return self._rows().schema

    def partition_folders(self) -> list[str]:
        """See `Table`. For example `partition_x=a`."""
        return [name for name in self._files.names(self.path) if name.startswith(f"{self._settings.partition}=")]

    def read(self, as_of: int | None = None) -> DataFrame:
        return self._shown(self._rows({} if as_of is None else _as_of(as_of)))

    def read_optimized(self) -> DataFrame:
        """The rows as of the last compaction, by Hudi's read-optimized query, which merges no logs.

        For copy-on-write and without logs, the newest rows.
        """
        return self._shown(self._rows({"hoodie.datasource.query.type": "read_optimized"}))

    def read_since(self, version: int) -> DataFrame:
        """The current rows that were written after a version, by Hudi's incremental query; only their files are read.

        Deleted rows are not included.

        Args:
            version: one of `history`.

        Raises:
            ExpiredError: the version was cleaned up.
        """
        self._commits.check_readable(version)
        incremental = {
            "hoodie.datasource.query.type": "incremental",
            "hoodie.datasource.read.begin.instanttime": str(version),
        }
        # Table version 8 includes the begin instant, version 6 does not.
        return self._shown(self._rows(incremental).where(F.col("_hoodie_commit_time") > str(version)))

    def differing(self, since: int, until: int) -> tuple[DataFrame, DataFrame]:
        """See `Table`. The files of a group replace each other, and each row has its file's name."""
        self._commits.check_readable(since, until)
        groups = self._commits.groups_written(since, until)
        before, after = (self._rows(_as_of(version)) for version in (since, until))
        if groups is not None and len(groups) <= _MAX_GROUPS:
            is_in_one = reduce(or_, (F.col(_FILE).startswith(group) for group in sorted(groups)), F.lit(False))
            before, after = before.where(is_in_one), after.where(is_in_one)
        return self._shown(before), self._shown(after)

    def history(self) -> list[Version[P]]:
        """See `Table`, without versions that were cleaned up."""
        return self._commits.history()

    def has(self, version: int) -> bool:
        return any(commit.version == version for commit in self.history())

    def version_at(self, at_ms: int) -> int | None:
        return next((commit.version for commit in self.history() if commit.at_ms <= at_ms), None)

    def merge(self, changes: Changes, progress: P) -> Commit[P]:
        rows = changes.rows.persist()
        try:
            is_new = not self.exists()
            if is_new:
                rows = rows.where(~F.col(DELETE))
            elif not rows.where(F.size(KEEP) > 0).isEmpty():
                rows = with_kept(changes, self._rows()).rows  # Hudi replaces whole rows
            rows = rows.withColumn(_IS_DELETED, F.col(DELETE)).drop(KEEP, DELETE)
            return self._save(rows, "bulk_insert" if is_new else "upsert", progress, keys=changes.keys)
        finally:
            changes.rows.unpersist()

    def overwrite(self, rows: DataFrame, progress: P) -> Commit[P]:
        operation = "insert_overwrite_table" if self.exists() else "bulk_insert"
        return self._save(rows.withColumn(_IS_DELETED, F.lit(False)), operation, progress)

    def advance(self, progress: P) -> Commit[P]:
        return self._save(self._nothing(), "upsert", progress)

    def maintain(self) -> dict[str, int]:
        """See `Table`. It compacts logs; each commit already cleans up, and fills small files."""
        if not self._commits.has_logs():
            return {}
        # Hudi compacts after a commit, so this commits the same progress without rows.
        self._save(self._nothing(), "upsert", progress_of(self), more=COMPACT_NOW)
        return {"files_written": self._commits.files_written()}

    def _nothing(self) -> DataFrame:
        """An empty DataFrame with the columns to write."""
        nothing = self._rows().where(F.lit(False))
        return nothing.drop(*(name for name in nothing.columns if name.startswith(HUDI_PREFIX) and name != _IS_DELETED))

    def _save(
        self,
        rows: DataFrame,
        operation: str,
        progress: P,
        *,
        keys: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
    ) -> Commit[P]:
        rows = with_one_partition(rows, self._settings.partitions)
        check_names(self.path, rows.schema)
        known = None if operation == "bulk_insert" else self._same_buckets()
        if known:
            wait_until_past(self.path, known.newest)
            if operation == "upsert" and not known.keeps_arrays:
                self._check_keeps_arrays(progress)
        table_id = known.table_id if known else uuid.uuid4().hex
        is_atomic = self._files.is_atomic(self.path)
        uses_row_writer = not has_short_decimals(rows.schema)
        settings = {
            **self._settings.of_write(self.path, operation, keys, is_atomic=is_atomic, uses_row_writer=uses_row_writer),
            **(more or {}),
            **commit_metadata(progress, table_id, self._settings.buckets),
        }
        columns = nullable_columns(rows.schema)
        try:
            rows.select(*columns).write.format("hudi").options(**settings).mode("append").save(self.path)
        except (PySparkException, Py4JJavaError) as exc:
            self._check_was_alone(progress, known.newest if known else "", str(exc))
            raise
        return self._committed(progress)

    def _check_keeps_arrays(self, progress: P) -> None:
        """Check that Hudi can copy the rows of a table that an earlier version of cdc_lake created."""
        if not may_lose_arrays(self._rows().schema):
            return
        cures = {
            "silver": "run `cdc-lake rebuild` once for this table: it also restores arrays that were lost before",
            "gold": "move its folder away and run the gold job, which rebuilds it",
        }
        raise UnsupportedError(
            self.path,
            "an earlier version of cdc_lake created this table, and Hudi may lose its arrays when it copies rows",
            f"the batch was not committed; {cures[progress.layer]}",
        )

    def _same_buckets(self) -> OwnCommit[P]:
        """cdc_lake's newest commit, after checking its number of buckets, which determines the file of each row."""
        known = self._newest_own()
        wanted = self._settings.buckets
        if known.buckets != wanted:
            raise ConfigError(
                self.path,
                f"the table has {known.buckets or 'no'} buckets, but the settings ask for {wanted or 'none'}",
                "restore `buckets` in the table's `storage` setting, or move the folder and its side table away: the "
                "silver job then rebuilds the table from bronze",
            )
        return known

    def _committed(self, progress: P) -> Commit[P]:
        """Read the commit back: Hudi has no protection against a second writer except cdc_lake's lease."""
        return read_back(
            self,
            progress,
            lambda by: TableLockedError(
                self.path,
                f"{by} committed during batch {progress.commit}",
                "run again when the other run has ended",
            ),
        )

    def _check_was_alone(self, progress: P, since: str, message: str) -> None:
        """Check whether a failed write was rolled back by another writer.

        Args:
            since: the newest instant before the write.
            message: the error's message, in which Hudi usually includes the write's instant.
        """
        other_instants = others_since(self._folder.timeline(), since, _INSTANT.findall(message))
        newest = self.progress() if other_instants and self.exists() else None
        if newest is not None and newest.nonce == progress.nonce:  # it failed after its commit
            return
        if other_instants or _ROLLED_BACK.search(message):
            whose = f"at {time_text(milliseconds(min(other_instants)))}" if other_instants else "meanwhile"
            raise TableLockedError(
                self.path,
                f"another run began a commit {whose}, during batch {progress.commit}, and rolled this one back",
                "the batch was not committed; run again when the other run has ended",
            )

    def _rows(self, query: Mapping[str, str] | None = None) -> DataFrame:
        self._folder.check_complete()
        return self._spark.read.format("hudi").options(**READ, **(query or {})).load(self.path)

    def _shown(self, rows: DataFrame) -> DataFrame:
        """The rows without Hudi's and cdc_lake's internal columns."""
        own = (KEY, self._settings.partition)
        return rows.select(
            *(quoted(name) for name in rows.columns if not name.startswith(HUDI_PREFIX) and name not in own)
        )

    def _newest_own(self) -> OwnCommit[P]:
        commit = self._commits.own()
        assert commit is not None, "the table exists"
        return commit


def _as_of(version: int) -> dict[str, str]:
    return {"as.of.instant": str(version)}
