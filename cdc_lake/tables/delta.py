"""A table in Delta Lake."""

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import Any, Generic, cast
from urllib.parse import unquote

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import DELETE, KEEP, KEY, quoted, type_text
from cdc_lake.errors import ConfigError, DamagedFileError, ExpiredError, NoProgressError, TableLockedError
from cdc_lake.partitioning import PartitionField
from cdc_lake.spark.versions import tell_conflicts
from cdc_lake.storage.files import Storage
from cdc_lake.tables.contract import Commit, P, Version
from cdc_lake.tables.damage import log_damage_error
from cdc_lake.tables.newest import LOG_FOLDER
from cdc_lake.tables.partitions import partition_columns, with_partitions
from cdc_lake.tables.progress import DerivedProgress, Progress

tell_conflicts()

PROPERTIES = {
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 30 days",
}
"""Deletion vectors are off because not all Delta readers support them.

Vacuum retains files as long as the log retains commits, so every version in the log can be read and restored. With a
checkpoint every 20 commits, a run every 10 s writes one every 200 s, and a reader opens at most 20 commits after it.
"""
_COMPACTION = {"optimize.minFileSize": str(128 << 20), "optimize.maxFileSize": str(128 << 20)}
"""Delta's default is a gigabyte, all of which a merge would copy for one changed row."""
_STATISTICS = "delta.dataSkippingStatsColumns"
_WITHOUT_STATISTICS = ("array<", "map<", "struct<", "binary", "boolean")
_QUOTED = re.compile(r"`((?:[^`]|``)+)`")
_SET_BY_HAND = (
    (
        "DELTA_CANNOT_MODIFY_APPEND_ONLY",
        "the table property `delta.appendOnly`{}",
        "UNSET TBLPROPERTIES ('delta.appendOnly'){}",
    ),
    (r"CHECK constraint (\S+) .* violated by row", "the CHECK constraint `{}`", "DROP CONSTRAINT `{}`"),
    (
        r"NOT NULL constraint violated for column: ([^\n]+?)\.?(?:\n|$)",
        "NOT NULL of the column `{}`",
        "ALTER COLUMN `{}` DROP NOT NULL",
    ),
)
"""Delta's errors of properties and constraints that users set, their names, and how to remove them."""
_EMPTY_ENTRY = re.compile(r"(\d{20}\.json);[^\n]* length=0;")
"""An empty file of the log in the text of Hadoop's FileStatus."""
_CHANGE_COLUMNS = (KEY, KEEP, DELETE)
USER_METADATA = "commitInfo.userMetadata"
CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""Errors of concurrent commits, including concurrent creation. In Python they have no common base class."""


def with_statistics(schema: StructType) -> list[str]:
    """The columns of types for which Delta supports statistics."""
    kinds = {field.name: type_text(field.dataType) for field in schema}
    return [name for name, kind in kinds.items() if not kind.startswith(_WITHOUT_STATISTICS)]


def constraint_error(path: str, error: Exception) -> ConfigError | None:
    """The error of a table property or constraint that rejected a write; none for other causes.

    Args:
        path: the table's.
    """
    for sign, what, cure in _SET_BY_HAND:
        if found := re.search(sign, str(error)):
            (name,) = found.groups() or ("",)
            todo = f"to remove it, run ALTER TABLE delta.{quoted(path)} {cure.format(name)}"
            return ConfigError(
                path, f"{what.format(name)} rejects the source's rows; the batch was not committed", todo
            )
    return None


@contextmanager
def commit_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set session settings for one commit only: with them, Delta would silently skip the session's next write.

    Args:
        spark: the session that commits.
        settings: names without `spark.databricks.delta.` -> values.
    """
    with _set(spark, {f"spark.databricks.delta.{name}": value for name, value in settings.items()}):
        yield


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


class DeltaLakeTable(Generic[P]):
    """A Delta table by path; see `cdc_lake.tables.contract.Table`.

    Args:
        spark: the session that reads and writes it.
        path: its folder or URL.
        partition_by: partition columns among the rows' own, for the first write.
        partitions: partition fields with columns of their own, which `read` drops.
        statistics: columns for data skipping, for the first write; a merge adds keys and partition columns.
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
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self._spark = spark
        self._storage = Storage(spark)
        self._partitions = tuple(partitions)
        self._partition_by = (*partition_by, *(field.name for field in partitions))
        self._statistics = tuple(statistics)
        self._properties = dict(properties or {})
        self._ours: int | None = None
        """The version of cdc_lake's newest valid commit, once it is known."""

    def exists(self) -> bool:
        """See `Table`."""
        with self._translated_damage():
            return DeltaTable.isDeltaTable(self._spark, self.path)

    def recover(self, quiet_seconds: float) -> list[str]:
        """See `Table`. Delta's commits are atomic."""
        return []

    def id(self) -> str:
        """See `Table`."""
        table_id: str = self._snapshot().metadata().id()
        return table_id

    def version(self) -> int:
        """See `Table`."""
        return int(self._snapshot().version())

    def size(self) -> int:
        """Total bytes of the newest version's files."""
        with self._translated_damage():  # Delta may read the whole log for it
            snapshot = self._snapshot()
            checksum = snapshot.checksumOpt()  # without the commit's checksum, Spark jobs count the files
            return int(checksum.get().tableSizeBytes() if checksum.isDefined() else snapshot.sizeInBytes())

    def partitioned_by(self) -> tuple[str, ...] | None:
        """The partition columns; none if the table does not exist."""
        if not self.exists():
            return None
        names = self._snapshot().metadata().partitionColumns()
        return tuple(names.apply(number) for number in range(names.size()))

    def stored_type(self, kind: str) -> str:
        """See `Table`."""
        return kind

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """The `commitInfo` of a commit; none if the commit's file was cleaned up.

        It is usually in the first line, and files may be long, so the rest is read only if it is not.
        """
        file = f"{self.path}/{LOG_FOLDER}/{version:020d}.json"
        line = self._storage.first_line(file)
        if line is None:
            return None
        actions = [line] if line.startswith('{"commitInfo"') else self._storage.read_text(file).split("\n")
        try:
            found = [json.loads(action).get("commitInfo") for action in actions if '"commitInfo"' in action]
        except ValueError as exc:
            raise DamagedFileError(file, "the file is damaged") from exc
        return next((info for info in found if info), {})

    def reached_by(self, progress: DerivedProgress | None, newest: P) -> int | None:
        """The last commit of this table that another table has consumed.

        Args:
            progress: the other table's.
            newest: this table's.

        Returns:
            None if the other table has consumed nothing of this table's current history: this table was deleted,
            restored or replaced from a backup since, so its numbers may name other commits.
        """
        if progress is None:
            return None
        source = self.id()
        is_known = progress.is_of(source, newest)
        if is_known is None:
            is_known = self.nonce_of(progress.sources[source]) == progress.nonces[source]
        return progress.sources[source] if is_known else None

    def nonce_of(self, commit: int) -> str | None:
        """The nonce of cdc_lake's commit with a number; none if the log does not have it.

        A version increases the number by at most one, so going back by the difference never skips it.
        """
        version = self.version()
        try:
            while (found := self._progress_at(version)).commit > commit:
                if found.commit == commit + 1 and found.follows:
                    return found.follows
                version -= max(found.commit - commit - 1, 1)
        except NoProgressError:
            return None
        return found.nonce if found.commit == commit else None

    def progress_of_commit(self, commit: int) -> P | None:
        """What the commit of ours with a number says; none if the log does not have it, or not any more."""
        version = self.version()
        try:
            while (found := self._progress_at(version)).commit > commit:
                version -= found.commit - commit
        except NoProgressError:
            return None
        return found if found.commit == commit else None

    def progress(self, as_of: int | None = None) -> P | None:
        """See `Table`."""
        if not self.exists():
            return None
        return self._progress_at(self.version() if as_of is None else as_of)

    def _progress_at(self, newest: int) -> P:
        ours, restores = self._walk_back(newest, through_restores=False)
        if not restores:
            return ours
        restored, _ = self._walk_back(newest, through_restores=True)
        # A RESTORE keeps Delta's transaction ids: it would silently skip a reused commit number.
        return restored.model_copy(update={"epoch": ours.epoch + restores, "commit": ours.commit})

    def _walk_back(self, newest: int, *, through_restores: bool) -> tuple[P, int]:
        """The newest progress at or before a version, and the number of RESTOREs in between.

        Args:
            newest: the version to start from.
            through_restores: continue from the version that a RESTORE restored, instead of the one before it.
        """
        version, restores = newest, 0
        while version >= 0 and (info := self.commit_info(version)) is not None:
            progress = cast("P | None", Progress.from_metadata(info.get("userMetadata")))
            if progress is not None:
                self._ours = version
                return progress, restores
            is_restore = info.get("operation") == "RESTORE"
            restores += is_restore
            version = self._restored(version, info) if is_restore and through_restores else version - 1
        raise NoProgressError(
            self.path,
            f"none of its retained commits up to version {newest} has progress",
            "restore a version with progress, or rebuild the table",
        )

    def _restored(self, version: int, info: Mapping[str, Any]) -> int:
        """The version that the RESTORE at `version` restored; -1 if the log no longer has it."""
        target = info.get("operationParameters", {})
        if target.get("version") is not None:
            return int(target["version"])
        # For a RESTORE by time, Spark logs the time as text, delta-rs as milliseconds.
        if target.get("timestamp") is not None:
            until = F.lit(target["timestamp"]).cast("timestamp")
        else:
            until = F.timestamp_millis(F.lit(int(target.get("datetime", 0))))
        history = DeltaTable.forPath(self._spark, self.path).history()
        row = history.where((F.col("version") < version) & (F.col("timestamp") <= until)).agg(F.max("version")).first()
        return -1 if row is None or row[0] is None else int(row[0])

    def lost_columns(self) -> dict[str, str | None]:
        """See `Table`."""
        newest = self.version()
        if self._ours is None or self._ours == newest:
            return {}
        there = set(self.read().columns)
        try:
            names = {name: name for name in self.read(as_of=self._ours).columns if name not in there}
        except AnalysisException:  # the log no longer has all commits of this version
            return {}
        if not names:
            return {}
        for version in range(self._ours + 1, newest + 1):
            info = self.commit_info(version) or {}
            if info.get("operation") == "RENAME COLUMN":
                was, becomes = (info["operationParameters"][f"{one}ColumnPath"] for one in ("old", "new"))
                names = {name: becomes if now == was else now for name, now in names.items()}
        return {name: now if now in there else None for name, now in names.items()}

    def schema(self) -> StructType:
        """See `Table`."""
        return self._rows().schema

    def partition_folders(self) -> list[str]:
        """See `Table`. Readers find partitions in the log."""
        return []

    def read(self, as_of: int | None = None) -> DataFrame:
        """See `Table`."""
        return self._rows(as_of).drop(*(field.name for field in self._partitions))

    def history(self) -> list[Version[P]]:
        """See `Table`. It includes versions whose files were vacuumed."""
        known = DeltaTable.forPath(self._spark, self.path).history()
        at_ms = F.unix_millis("timestamp")
        return [
            Version(version, at, cast("P | None", Progress.from_metadata(metadata)))
            for version, at, metadata in known.select("version", at_ms, "userMetadata").collect()
        ]

    def has(self, version: int) -> bool:
        """See `Table`. The files of deletion vectors are not checked."""
        try:
            files = self._rows(version).inputFiles()
        except AnalysisException:  # the log no longer has all commits of this version
            return False
        others = set(files).difference(self._rows().inputFiles())
        return all(self._storage.exists(unquote(file)) for file in others)

    def version_at(self, at_ms: int) -> int | None:
        """See `Table`. Binary search over the commits' times, because a log may have hundreds of thousands."""
        found = bisect_right(range(self.version() + 1), at_ms, key=self._committed_ms) - 1
        return found if found >= 0 and self._committed_ms(found) >= 0 else None

    def _committed_ms(self, version: int) -> int:
        """Time of a commit; -1 if the log no longer has it."""
        return int((self.commit_info(version) or {}).get("timestamp", -1))

    def differing(self, since: int, until: int) -> tuple[DataFrame, DataFrame]:
        """See `Table`. With deletion vectors it returns all rows, because they change rows of the same file."""
        before, after = self._at(since), self._at(until)
        gone, new = dict[str, bool](), dict[str, bool]()
        for version in range(since + 1, until + 1):
            for action in self._actions(version):
                if (removed := action.get("remove")) and new.pop(removed["path"], None) is None:
                    gone[removed["path"]] = "deletionVector" in removed
                if (added := action.get("add")) and gone.pop(added["path"], None) is None:
                    new[added["path"]] = "deletionVector" in added
        if any((*gone.values(), *new.values())):
            return before, after
        return self._in_files(gone, before), self._in_files(new, after)

    def _at(self, version: int) -> DataFrame:
        try:
            return self.read(as_of=version)
        except (PySparkException, Py4JJavaError) as exc:
            raise self._expired(f"version {version} can no longer be read") from exc

    def _actions(self, version: int) -> Iterator[dict[str, Any]]:
        """A commit's actions; a RESTORE may remove files and add them again."""
        try:
            text = self._storage.read_text(f"{self.path}/{LOG_FOLDER}/{version:020d}.json")
        except Py4JJavaError as exc:
            raise self._expired(f"the log no longer has the changes of version {version}") from exc
        return map(json.loads, text.splitlines())

    def _in_files(self, names: Collection[str], like: DataFrame) -> DataFrame:
        """The rows of data files, with the columns of a version."""
        if not names:
            return like.where(F.lit(False))
        paths = [name if ":/" in name else f"{self.path}/{name}" for name in map(unquote, names)]
        try:
            # Without partition discovery, which would add columns from folder names.
            found = self._spark.read.schema(like.schema).option("recursiveFileLookup", "true").parquet(*paths)
        except PySparkException as exc:
            raise self._expired(f"some of {len(paths)} files of the older version were vacuumed") from exc
        return found.select(*map(quoted, like.columns))

    def _expired(self, what: str) -> ExpiredError:
        return ExpiredError(
            self.path, what, "use a newer version; delta.deletedFileRetentionDuration sets how long files are retained"
        )

    def maintain(self) -> dict[str, int]:
        """See `Table`. It runs OPTIMIZE, then VACUUM with the table's retention.

        Its commit has no progress: a concurrent append does not conflict with it, so progress that was read before
        could be older than that of the append.
        """
        table = DeltaTable.forPath(self._spark, self.path)
        try:
            with commit_settings(self._spark, _COMPACTION):
                written = table.optimize().executeCompaction().select("metrics.numFilesAdded").head()
        except CONFLICTS as exc:
            raise TableLockedError(
                self.path,
                "another run committed during compaction",
                "its files were not changed; run again when the other run has ended",
            ) from exc
        assert written is not None, "OPTIMIZE returns metrics"
        return {"files_written": written[0], "bytes_removed": self.vacuum()}

    def vacuum(self) -> int:
        """Remove the files that no version within the table's retention needs.

        Returns:
            The number of bytes removed.
        """
        before = self._storage.size(self.path)
        # Otherwise it lists one folder in 10,000 tasks.
        tasks = str(4 * self._spark.sparkContext.defaultParallelism)
        listing = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": tasks}
        with _set(self._spark, listing), self._prints_to_stderr():
            DeltaTable.forPath(self._spark, self.path).vacuum()
        return max(before - self._storage.size(self.path), 0)

    @contextmanager
    def _prints_to_stderr(self) -> Iterator[None]:
        """Redirect VACUUM's output from stdout, which `--json` reserves for reports."""
        jvm: Any = self._spark._jvm
        console = getattr(getattr(jvm.scala, "Console$"), "MODULE$")
        before = console.out()
        console.setOutDirect(jvm.java.lang.System.err)
        try:
            yield
        finally:
            console.setOutDirect(before)

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
            rows: the table's columns.
            progress: the progress with this commit.
            adds_columns: whether to add new columns and fields to the table; otherwise they raise an error.
            statistics: further columns for data skipping, for the first append.

        Raises:
            TableLockedError: another run has committed or created the table first. This commit was not made.
        """
        writer = with_partitions(rows, self._partitions).write.mode("append")
        writer = writer.option("mergeSchema", "true") if adds_columns else writer
        return self._save(writer, progress, statistics=statistics)

    def rows_added(self, version: int) -> int | None:
        """The number of rows that an append added; none if the version is another kind of commit.

        Args:
            version: the append's version.
        """
        number = (self.commit_info(version) or {}).get("operationMetrics", {}).get("numOutputRows")
        return None if number is None else int(number)

    def overwrite(self, rows: DataFrame, progress: P) -> Commit[P]:
        """See `Table`."""
        rows = with_partitions(rows.drop(KEY), self._partitions)
        self._skip_by(with_statistics(rows.schema))
        # An overwrite without `partitionBy` removes the partitioning.
        writer = self._partitioned(rows.write.mode("overwrite").option("overwriteSchema", "true"))
        return self._save(writer, progress)

    def _partitioned(self, writer: DataFrameWriter) -> DataFrameWriter:
        return writer.partitionBy(*self._partition_by) if self._partition_by else writer

    def _save(self, writer: DataFrameWriter, progress: P, *, statistics: Sequence[str] = ()) -> Commit[P]:
        if not self.exists():
            columns = ",".join(map(quoted, dict.fromkeys((*statistics, *self._statistics))))
            skipping = {_STATISTICS: columns} if columns else {}
            writer = writer.options(**{**PROPERTIES, **self._properties}, **skipping)
            writer = self._partitioned(writer)
        with self._committing(progress):
            writer.format("delta").save(self.path)
        return self._committed(progress)

    def merge(self, changes: DataFrame, keys: Sequence[str], progress: P) -> Commit[P]:
        """See `Table`."""
        if not self.exists():
            rows = with_partitions(changes.where(~F.col(DELETE)).drop(*_CHANGE_COLUMNS), self._partitions)
            wanted = {*keys, *(field.column for field in self._partitions)}
            statistics = [name for name in with_statistics(rows.schema) if name in wanted]
            return self._save(rows.write.mode("append"), progress, statistics=statistics)
        self._set_properties()
        same_key = reduce(and_, (F.col(f"t.{quoted(key)}").eqNullSafe(F.col(f"s.{quoted(key)}")) for key in keys))
        columns = [name for name in changes.columns if name not in _CHANGE_COLUMNS]
        there = set(self.read().columns)

        def sent(name: str) -> Column:
            return F.col(f"s.{quoted(name)}")

        def becomes(name: str) -> Column:
            return self._kept_or_new(name) if name in there and name not in keys else sent(name)

        inserted = {name: sent(name) for name in columns} | partition_columns(self._partitions, columns, sent)
        updated = {name: becomes(name) for name in columns if name not in keys}
        updated |= partition_columns(self._partitions, columns, becomes)
        merge = (
            DeltaTable.forPath(self._spark, self.path)
            .alias("t")
            .merge(changes.alias("s"), same_key)
            .withSchemaEvolution()
            .whenMatchedDelete(F.col(f"s.{DELETE}"))
            .whenMatchedUpdate(set={quoted(name): value for name, value in updated.items()})
            .whenNotMatchedInsert(
                ~F.col(f"s.{DELETE}"), values={quoted(name): value for name, value in inserted.items()}
            )
        )
        with self._committing(progress):
            merge.execute()
        return self._committed(progress)

    def _set_properties(self) -> None:
        """Update changed properties, in a separate commit."""
        if not self._properties:
            return
        stored = self._snapshot().metadata().configuration()
        changed = {
            name: value
            for name, value in self._properties.items()
            if not stored.contains(name) or stored.apply(name) != value
        }
        if changed:
            listed = ", ".join(f"'{name}' = '{value}'" for name, value in changed.items())
            self._alter(f"SET TBLPROPERTIES ({listed})")

    def _skip_by(self, columns: Collection[str]) -> None:
        """Restrict data skipping to these columns, in a separate commit if there are others."""
        stored = self._snapshot().metadata().configuration() if self.exists() else None
        if stored is None or not stored.contains(_STATISTICS):
            return
        names = [name.replace("``", "`") for name in _QUOTED.findall(stored.apply(_STATISTICS))]
        if others := set(names).difference(columns):
            kept = ",".join(quoted(name) for name in names if name not in others).replace("'", "\\'")
            change = f"('{_STATISTICS}' = '{kept}')" if kept else f"('{_STATISTICS}')"
            self._alter(f"{'SET' if kept else 'UNSET'} TBLPROPERTIES {change}")

    def _alter(self, change: str) -> None:
        self._spark.sql(f"ALTER TABLE delta.{quoted(self.path)} {change}").collect()

    def advance(self, progress: P) -> Commit[P]:
        """See `Table`."""
        return self.append(self._rows().limit(0), progress)

    @staticmethod
    def _kept_or_new(name: str) -> Column:
        is_kept = F.array_contains(f"s.{KEEP}", name)
        return F.when(is_kept, F.col(f"t.{quoted(name)}")).otherwise(F.col(f"s.{quoted(name)}"))

    def _snapshot(self) -> Any:
        """The newest snapshot, because a cached one may lack another run's commit.

        Raises:
            DamagedFileError: the log has a gap or an empty file, which Delta would read as a commit without actions.
        """
        jvm: Any = self._spark._jvm
        nothing = jvm.scala.Option.empty()
        with self._translated_damage():
            log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self.path)
            snapshot = log.update(False, nothing, nothing)
        if empty := _EMPTY_ENTRY.search(snapshot.logSegment().deltas().mkString("\n")):
            raise DamagedFileError(f"{self.path}/{LOG_FOLDER}/{empty[1]}", "the file is empty")
        return snapshot

    @contextmanager
    def _translated_damage(self) -> Iterator[None]:
        try:
            yield
        except (PySparkException, Py4JJavaError) as exc:
            if known := log_damage_error(exc, self._storage, self.path):
                raise known from exc
            raise

    @contextmanager
    def _committing(self, progress: P) -> Iterator[None]:
        settings = {
            USER_METADATA: progress.to_metadata(),
            "write.txnAppId": f"cdc_lake:{progress.layer}:{progress.epoch}",
            "write.txnVersion": str(progress.commit),
        }
        try:
            with commit_settings(self._spark, settings):
                yield
        except CONFLICTS as exc:
            raise self._conflict_error(progress, "another run") from exc
        except (PySparkException, Py4JJavaError) as exc:
            if known := constraint_error(self.path, exc):
                raise known from exc
            raise

    def _committed(self, progress: P) -> Commit[P]:
        """Read the progress back, because Delta silently skips a write if another run has committed first."""
        found = self.progress()
        if found is None or found.nonce != progress.nonce:
            raise self._conflict_error(progress, f"run {found.run_id}" if found else "another run")
        return Commit(self.version(), found)

    def _conflict_error(self, progress: P, by: str) -> TableLockedError:
        return TableLockedError(
            self.path,
            f"{by} committed before batch {progress.commit} of this run",
            "the batch was not committed; run again when the other run has ended",
        )
