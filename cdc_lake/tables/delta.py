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
from cdc_lake.tables.damage import log_damage
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
"""Deletion vectors are off because not every reader of Delta knows them.

A version that the log still names can be read and restored: vacuum keeps files as long as the log keeps commits. A
checkpoint every 20 commits: a run every 10 s makes one every 200 s, and a reader opens at most 20 commits after it.
"""
_PUT_TOGETHER = {"optimize.minFileSize": str(128 << 20), "optimize.maxFileSize": str(128 << 20)}
"""Delta's own, a gigabyte, is a gigabyte that a merge copies for one row."""
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
"""What Delta says where somebody has set a property or a constraint; the names of these; how to take them off."""
_EMPTY_ENTRY = re.compile(r"(\d{20}\.json);[^\n]* length=0;")
"""An entry of the log without content, as Hadoop writes a file's status."""
_OF_A_CHANGE = (KEY, KEEP, DELETE)
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
"""What another writer's commit can raise here, creation by two at once included. In Python they share no base."""


def with_statistics(schema: StructType) -> list[str]:
    """The columns of types that Delta has statistics for."""
    kinds = {field.name: type_text(field.dataType) for field in schema}
    return [name for name, kind in kinds.items() if not kind.startswith(_WITHOUT_STATISTICS)]


def refusal(path: str, error: Exception) -> ConfigError | None:
    """Which property or constraint that somebody set on a table refused a write; none if it failed for another reason.

    Args:
        path: the table's.
    """
    for sign, what, cure in _SET_BY_HAND:
        if found := re.search(sign, str(error)):
            (name,) = found.groups() or ("",)
            todo = (
                f"nothing was written. To let the jobs write it: ALTER TABLE delta.{quoted(path)} {cure.format(name)}"
            )
            return ConfigError(path, f"{what.format(name)} refuses the rows that the source has", todo)
    return None


@contextmanager
def commit_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of one commit. They must not outlive it: Delta would silently skip the session's next write.

    Args:
        spark: the session that commits.
        settings: by what follows `spark.databricks.delta.` in their names.
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
    """One Delta table by path; see `cdc_lake.tables.Table`.

    Args:
        spark: the session that reads and writes it.
        path: its folder or URL.
        partition_by: columns of the rows that the first write partitions it by.
        partitions: what it partitions them by in columns of their own, which `read` leaves out.
        statistics: columns that files are skipped by, for the first write; if that is a merge, besides its keys and
            what it is partitioned by.
        properties: the table's, which win over our own defaults; a merge sets those that are others there.
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
        """The version of the newest commit of ours that counts, once it is known."""

    def exists(self) -> bool:
        """See `Table`."""
        with self._telling_damage():
            return DeltaTable.isDeltaTable(self._spark, self.path)

    def recover(self, quiet_seconds: float) -> list[str]:
        """See `Table`: a commit is in the log or not."""
        return []

    def id(self) -> str:
        """See `Table`."""
        table_id: str = self._snapshot().metadata().id()
        return table_id

    def version(self) -> int:
        """See `Table`."""
        return int(self._snapshot().version())

    def size(self) -> int:
        """Bytes of the newest version's files."""
        with self._telling_damage():  # Delta may read all of the log for it
            snapshot = self._snapshot()
            checksum = snapshot.checksumOpt()  # the commit's; without one, jobs count the files
            return int(checksum.get().tableSizeBytes() if checksum.isDefined() else snapshot.sizeInBytes())

    def partitioned_by(self) -> tuple[str, ...] | None:
        """The columns that it is partitioned by; nothing known of a table that does not exist."""
        if not self.exists():
            return None
        names = self._snapshot().metadata().partitionColumns()
        return tuple(names.apply(number) for number in range(names.size()))

    def held_as(self, kind: str) -> str:
        """See `Table`."""
        return kind

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """What the log says of a commit beside its files; null when the commit's own file was cleaned away.

        The first line holds it in nearly every log, and files may be long, so the rest is read only if it does not.
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
        """The last commit of this table that another one has consumed.

        Args:
            progress: the other table's.
            newest: this table's.

        Returns:
            None if the other has consumed nothing of this table, or of another history of it: this one was wiped,
            restored or put back from a backup since, and its numbers may mean other commits.
        """
        if progress is None:
            return None
        source = self.id()
        is_known = progress.is_of(source, newest)
        if is_known is None:
            is_known = self.nonce_of(progress.sources[source]) == progress.nonces[source]
        return progress.sources[source] if is_known else None

    def nonce_of(self, commit: int) -> str | None:
        """The nonce of the commit of ours with a number; none if the log does not have it, or not any more.

        A version raises the number by one at most, so going back by the difference never passes it.
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
        # A RESTORE keeps the transactions that Delta has seen: a number used again would be skipped without a word.
        return restored.model_copy(update={"epoch": ours.epoch + restores, "commit": ours.commit})

    def _walk_back(self, newest: int, *, through_restores: bool) -> tuple[P, int]:
        """The newest progress at or before a version, and how many RESTOREs were passed on the way.

        Args:
            newest: the version to start from.
            through_restores: go on from the version that a RESTORE brought back, not from the one before it.
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
            f"none of the commits left, up to version {newest}, says what the table has consumed",
            "restore a version that does, or rebuild the table",
        )

    def _restored(self, version: int, info: Mapping[str, Any]) -> int:
        """The version that the RESTORE at `version` brought back; -1 when the log does not say so any more."""
        target = info.get("operationParameters", {})
        if target.get("version") is not None:
            return int(target["version"])
        # Of a RESTORE by time Spark writes the time as text, delta-rs as milliseconds.
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
        except AnalysisException:  # the log does not have all that it builds on any more
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
        """See `Table`: the log says which file is of which partition."""
        return []

    def read(self, as_of: int | None = None) -> DataFrame:
        """See `Table`."""
        return self._rows(as_of).drop(*(field.name for field in self._partitions))

    def history(self) -> list[Version[P]]:
        """See `Table`. The files of versions behind a vacuum are gone all the same."""
        known = DeltaTable.forPath(self._spark, self.path).history()
        at_ms = F.unix_millis("timestamp")
        return [
            Version(version, at, cast("P | None", Progress.from_metadata(said)))
            for version, at, said in known.select("version", at_ms, "userMetadata").collect()
        ]

    def has(self, version: int) -> bool:
        """See `Table`. Deletion vectors are not looked for, where the table has any."""
        try:
            files = self._rows(version).inputFiles()
        except AnalysisException:  # the log does not have it, or not all that it builds on
            return False
        others = set(files).difference(self._rows().inputFiles())
        return all(self._storage.exists(unquote(file)) for file in others)

    def version_at(self, at_ms: int) -> int | None:
        """See `Table`, by the time that each commit says. A log may have hundreds of thousands: few are read."""
        found = bisect_right(range(self.version() + 1), at_ms, key=self._committed_ms) - 1
        return found if found >= 0 and self._committed_ms(found) >= 0 else None

    def _committed_ms(self, version: int) -> int:
        """When a commit was made; before all others, if the log does not know any more."""
        return int((self.commit_info(version) or {}).get("timestamp", -1))

    def differing(self, since: int, until: int) -> tuple[DataFrame, DataFrame]:
        """See `Table`. With deletion vectors, whose files differ by what beside them says, all rows."""
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
            raise self._expired(f"version {version} cannot be read any more") from exc

    def _actions(self, version: int) -> Iterator[dict[str, Any]]:
        """What a commit did; a RESTORE may remove files and add them again."""
        try:
            text = self._storage.read_text(f"{self.path}/{LOG_FOLDER}/{version:020d}.json")
        except Py4JJavaError as exc:
            raise self._expired(f"what version {version} changed is not known any more") from exc
        return map(json.loads, text.splitlines())

    def _in_files(self, names: Collection[str], like: DataFrame) -> DataFrame:
        """The rows of data files, in the columns of a version that has them."""
        if not names:
            return like.where(F.lit(False))
        paths = [name if ":/" in name else f"{self.path}/{name}" for name in map(unquote, names)]
        try:
            # Each is a file: what its folders say is no column of ours.
            found = self._spark.read.schema(like.schema).option("recursiveFileLookup", "true").parquet(*paths)
        except PySparkException as exc:
            raise self._expired(f"of {len(paths)} files that it had at first some were vacuumed") from exc
        return found.select(*map(quoted, like.columns))

    def _expired(self, what: str) -> ExpiredError:
        return ExpiredError(
            self.path, what, "read a newer version; delta.deletedFileRetentionDuration says how long they are kept"
        )

    def maintain(self) -> dict[str, int]:
        """See `Table`: OPTIMIZE, then VACUUM, which removes what the table's retention lets go.

        The commit of it carries no progress: what was read before it might be older than what another run has
        committed in between, for an append is no conflict to it.
        """
        table = DeltaTable.forPath(self._spark, self.path)
        try:
            with commit_settings(self._spark, _PUT_TOGETHER):
                written = table.optimize().executeCompaction().select("metrics.numFilesAdded").head()
        except CONFLICTS as exc:
            raise TableLockedError(
                self.path,
                "another run committed while its files were put together",
                "its files are as they were; run again once the other has ended",
            ) from exc
        assert written is not None, "OPTIMIZE tells what it did"
        return {"files_written": written[0], "bytes_removed": self.vacuum()}

    def vacuum(self) -> int:
        """Remove the files that no version needs within the table's retention; their bytes."""
        before = self._storage.size(self.path)
        # Else it lists one folder in 10,000 tasks.
        tasks = str(4 * self._spark.sparkContext.defaultParallelism)
        listing = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": tasks}
        with _set(self._spark, listing), self._prints_to_stderr():
            DeltaTable.forPath(self._spark, self.path).vacuum()
        return max(before - self._storage.size(self.path), 0)

    @contextmanager
    def _prints_to_stderr(self) -> Iterator[None]:
        """VACUUM prints what it did, where `--json` promises nothing but reports."""
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
        """Add rows; the first append creates the table with the rows' schema.

        Args:
            rows: the table's columns.
            progress: what the table has consumed with this.
            adds_columns: whether columns and fields that the table lacks are added to it; else they are an error.
            statistics: columns that files are skipped by besides the table's own, for the first append.

        Raises:
            TableLockedError: another run has committed or created the table first; nothing was added.
        """
        writer = with_partitions(rows, self._partitions).write.mode("append")
        writer = writer.option("mergeSchema", "true") if adds_columns else writer
        return self._save(writer, progress, statistics=statistics)

    def rows_added(self, version: int) -> int | None:
        """How many rows an append brought; null if another's commit has that version.

        Args:
            version: the one that it made.
        """
        number = (self.commit_info(version) or {}).get("operationMetrics", {}).get("numOutputRows")
        return None if number is None else int(number)

    def overwrite(self, rows: DataFrame, progress: P) -> Commit[P]:
        """See `Table`."""
        rows = with_partitions(rows.drop(KEY), self._partitions)
        self._skip_by(with_statistics(rows.schema))
        # An overwrite that names no partitions removes them.
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
            rows = with_partitions(changes.where(~F.col(DELETE)).drop(*_OF_A_CHANGE), self._partitions)
            wanted = {*keys, *(field.column for field in self._partitions)}
            statistics = [name for name in with_statistics(rows.schema) if name in wanted]
            return self._save(rows.write.mode("append"), progress, statistics=statistics)
        self._set_properties()
        same_key = reduce(and_, (F.col(f"t.{quoted(key)}").eqNullSafe(F.col(f"s.{quoted(key)}")) for key in keys))
        columns = [name for name in changes.columns if name not in _OF_A_CHANGE]
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
        """Set the properties that are others there, in a commit of its own."""
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
        """Skip files by these columns alone, in a commit of its own if there are others now."""
        stored = self._snapshot().metadata().configuration() if self.exists() else None
        if stored is None or not stored.contains(_STATISTICS):
            return
        names = [name.replace("``", "`") for name in _QUOTED.findall(stored.apply(_STATISTICS))]
        if others := set(names).difference(columns):
            kept = ",".join(quoted(name) for name in names if name not in others).replace("'", "\\'")
            said = f"('{_STATISTICS}' = '{kept}')" if kept else f"('{_STATISTICS}')"
            self._alter(f"{'SET' if kept else 'UNSET'} TBLPROPERTIES {said}")

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
        """The newest snapshot: a cached one may be behind another run's commit.

        Raises:
            DamagedFileError: its log has a gap or an empty entry; Delta takes the latter as a commit that does nothing.
        """
        jvm: Any = self._spark._jvm
        nothing = jvm.scala.Option.empty()
        with self._telling_damage():
            log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self.path)
            snapshot = log.update(False, nothing, nothing)
        if empty := _EMPTY_ENTRY.search(snapshot.logSegment().deltas().mkString("\n")):
            raise DamagedFileError(f"{self.path}/{LOG_FOLDER}/{empty[1]}", "the file is empty")
        return snapshot

    @contextmanager
    def _telling_damage(self) -> Iterator[None]:
        try:
            yield
        except (PySparkException, Py4JJavaError) as exc:
            if known := log_damage(exc, self._storage, self.path):
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
            raise self._forestalled(progress, "another run") from exc
        except (PySparkException, Py4JJavaError) as exc:
            if known := refusal(self.path, exc):
                raise known from exc
            raise

    def _committed(self, progress: P) -> Commit[P]:
        """Read back what stands in the table now: a write that another run forestalled is skipped without a word."""
        found = self.progress()
        if found is None or found.nonce != progress.nonce:
            raise self._forestalled(progress, f"run {found.run_id}" if found else "another run")
        return Commit(self.version(), found)

    def _forestalled(self, progress: P, by: str) -> TableLockedError:
        return TableLockedError(
            self.path,
            f"{by} committed while batch {progress.commit} was being made",
            "nothing of this run was written; run again once the other has ended",
        )
