"""A table in Apache Hudi, copy-on-write or merge-on-read.

The fold determines the rows before they are written, so Hudi must not order them again: the last write wins
(`COMMIT_TIME_ORDERING`), and deleted rows are written with `_hoodie_is_deleted`. Hudi's own ordering and its delete
operation resurrect rows or create unreadable tables. docs/decisions/hudi.md.
"""

import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Any, Generic, Literal, NamedTuple, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from cdc_lake.columns import DELETE, HUDI_PREFIX, KEEP, KEY, quoted
from cdc_lake.errors import (
    ConfigError,
    DamagedFileError,
    ExpiredError,
    IncompleteWriteError,
    InfrastructureError,
    NoProgressError,
    TableLockedError,
    UnsupportedError,
)
from cdc_lake.partitioning import PartitionField, joint_name
from cdc_lake.storage.files import Storage
from cdc_lake.tables.contract import Commit, P, Version
from cdc_lake.tables.hudi_timeline import WRITTEN, any_instant, incomplete_files, is_removable, others_since
from cdc_lake.tables.kept import with_kept
from cdc_lake.tables.newest import HUDI_CHECKSUM, METADATA_FOLDER, TABLE_ID
from cdc_lake.tables.partitions import with_one_partition
from cdc_lake.tables.progress import METADATA_KEY, Progress

HudiType = Literal["cow", "mor"]
_TYPES = {"cow": "COPY_ON_WRITE", "mor": "MERGE_ON_READ"}
_PROPERTIES_FILE = f"{METADATA_FOLDER}/hoodie.properties"
_BACKUP = "hoodie.properties.backup"
_GOES = f"{HUDI_PREFIX}is_deleted"
"""Hudi's mark of rows to delete; a column of every table, false in stored rows."""
_BUCKETS = f"{METADATA_KEY}.buckets"
_ARRAYS = f"{METADATA_KEY}.arrays"
_ARE_SAFE = "safe"
"""Marks commits of tables in which no file loses arrays when Hudi copies its rows; see `_has_short_decimals`."""
_SMALL = re.compile(r"\b(tinyint|smallint)(?=[,>]|$)")
_LOG = ".log."
"""Part of the names of merge-on-read's log files."""
_READ = {
    # Hudi reads its statistics through Spark's cache, which deadlocks inside a plan that is being cached.
    "hoodie.metadata.enable": "false",
    "hoodie.enable.data.skipping": "false",
}
_SETTINGS = {
    **_READ,
    "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
    # The key's canonical text: Hudi rejects empty keys, and its own text of several columns is ambiguous.
    "hoodie.datasource.write.recordkey.field": KEY,
    "hoodie.datasource.write.hive_style_partitioning": "true",
    # For values with characters that are not allowed in folder names.
    "hoodie.datasource.write.partitionpath.urlencode": "true",
    "hoodie.datasource.write.commitmeta.key.prefix": METADATA_KEY,
    "hoodie.table.timeline.timezone": "UTC",
    # It takes half a megabyte in each file, for an index that is not used.
    "hoodie.parquet.bloom.filter.enabled": "false",
    # Number of retained versions; the timeline must be a little longer.
    "hoodie.clean.commits.retained": "50",
    "hoodie.keep.min.commits": "60",
    "hoodie.keep.max.commits": "80",
}
_SETTINGS_OF = {
    "cow": {},
    # No other process compacts, and this limits the logs that a reader merges.
    "mor": {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "10"},
}
_MARKERS_OF_FILES = {"hoodie.write.markers.type": "DIRECT"}
"""Hudi's default, a server that saves requests to object stores, waits for five minutes on a full disk."""
_FILE = f"{HUDI_PREFIX}file_name"
_LONG_DIGITS = 18
_MOST_SECONDS_AHEAD = 10.0
"""A write waits if the newest instant is at most this far ahead of this machine's clock."""
_INSTANT = re.compile(r"\b\d{17}\b")
_ROLLED_BACK = re.compile(r"\.?(?:inflight|requested)\b.{0,20} does not exist")
"""Hudi's error if another writer removed the files of a running write."""
_MAX_GROUPS = 64
"""With more file groups, rows are read without a filter by group, because long conditions are expensive."""
_COMPACT_NOW = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
_STORED_SETTINGS = {"hoodie.record.merge.mode": _SETTINGS["hoodie.write.record.merge.mode"]}
_VERSION_6 = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
_STORED_SETTINGS_OF_VERSION_6 = {
    "hoodie.table.version": _VERSION_6["hoodie.write.table.version"],
    # The merge mode's equivalent in this version.
    "hoodie.compaction.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
}
"""Expected table properties about the ordering of rows, and the table version for old readers."""


class _OwnCommit(NamedTuple, Generic[P]):
    """A commit of cdc_lake.

    Attributes:
        newest: the timeline's newest instant, of any action.
        buckets: number of buckets per partition; none if rows are looked up.
        keeps_arrays: whether no file loses arrays; see `_ARE_SAFE`.
        restores: number of restores since.
    """

    progress: P
    table_id: str
    newest: str
    buckets: int | None
    keeps_arrays: bool
    restores: int


class HudiTable(Generic[P]):
    """A Hudi table by path; see `cdc_lake.tables.contract.Table`. A version is an instant of its timeline, as a number.

    Args:
        spark: the session that reads and writes it.
        path: its folder or URL.
        kind: the table's type, for the first write.
        partitions: partition fields, combined in one column, which `read` drops: several partition columns need Hudi's
            ComplexKeyGenerator or CustomKeyGenerator, whose tables not all readers support.
        buckets: file groups per partition; default: rows are looked up, in as many groups as needed.
        table_version: of Hudi's format; default: the newest.
        properties: Hudi's settings for each write, which override the defaults.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        *,
        kind: HudiType = "cow",
        partitions: Sequence[PartitionField] = (),
        buckets: int | None = None,
        table_version: Literal[6] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self._spark = spark
        self._kind = kind
        self._partitions = tuple(partitions)
        self._partition = joint_name(partitions) if partitions else ""
        self._buckets = buckets
        self._is_old = table_version is not None
        self._properties = dict(properties or {})
        self._storage = Storage(spark)
        self._is_complete = False
        folder = f"{path}/{METADATA_FOLDER}"
        self._timeline_folder = folder if self._is_old else f"{folder}/timeline"

    def differing_settings(self) -> str | None:
        """Description of the first table property that differs from this class's; none if all match, or it is new.

        Raises:
            DamagedFileError: the properties file is missing.
            UnsupportedError: a newer Hudi release wrote the table, in a version that this one does not support.
        """
        said = self._settings()
        if said is None:
            if not self._is_begun():
                return None
            if not self._storage.exists(file := f"{self.path}/{_PROPERTIES_FILE}"):
                raise DamagedFileError(file, "the file is missing")
            said = {}  # without a checksum: an older Hudi of another program wrote it
        self._check_format(int(said.get("hoodie.table.version", 0)))
        wanted = {
            "hoodie.table.type": _TYPES[self._kind],
            **(_STORED_SETTINGS_OF_VERSION_6 if self._is_old else _STORED_SETTINGS),
            "hoodie.table.recordkey.fields": KEY,
            "hoodie.table.partition.fields": self._partition,
        }
        other = (f"{name} is {said.get(name)}" for name, value in wanted.items() if said.get(name, "") != value)
        return next(other, None)

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
        return self._newest() is not None

    def recover(self, quiet_seconds: float) -> list[str]:
        """See `Table`."""

        def is_quiet(path: str) -> bool:
            if not quiet_seconds:  # the store's clock may differ from ours
                return True
            return (self._storage.modified_ms(path) or 0) <= (time.time() - quiet_seconds) * 1000

        done = []
        folder = f"{self.path}/{METADATA_FOLDER}"
        sizes = self._storage.sizes(self._timeline_folder)
        if self._is_halfway_changed() and is_quiet(folder):
            self._storage.replace(f"{self.path}/{_PROPERTIES_FILE}", self._storage.read_text(f"{folder}/{_BACKUP}"))
            done.append(f"restored {_PROPERTIES_FILE} from Hudi's backup: a killed run was changing it")
        elif self._storage.exists(folder) and self._settings() is None and not self._is_begun() and is_quiet(folder):
            self._storage.remove_folder(folder)
            done.append(f"removed {METADATA_FOLDER}: a killed run had not finished creating the table")
        for name in self._incomplete(sizes):
            file = f"{self._timeline_folder}/{name}"
            if not is_quiet(file):
                continue
            if not is_removable(name, sizes):
                raise DamagedFileError(file, "the file is incomplete, and later commits build on it")
            self._storage.remove(file)
            done.append(f"removed {name}: a killed run had not finished writing it")
        return done

    def _settings(self) -> dict[str, str] | None:
        """The table's properties; none until they are completely written."""
        return self._settings_in(_PROPERTIES_FILE) or self._settings_in(f"{METADATA_FOLDER}/{_BACKUP}")

    def _settings_in(self, file: str) -> dict[str, str] | None:
        lines = (self._storage.read_bytes(f"{self.path}/{file}") or b"").decode(errors="replace").splitlines()
        said = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        return said if HUDI_CHECKSUM in said else None

    def _is_begun(self) -> bool:
        """Whether the timeline of any table version has an action."""
        folder = f"{self.path}/{METADATA_FOLDER}"
        return any(any_instant(self._storage.sizes(one)) for one in (folder, f"{folder}/timeline"))

    def _is_halfway_changed(self) -> bool:
        """Whether the properties are complete only in the backup that Hudi makes before it changes them."""
        return self._settings_in(_PROPERTIES_FILE) is None and self._settings() is not None

    def _incomplete(self, sizes: Mapping[str, int]) -> list[str]:
        if self._storage.is_atomic(self.path):
            return []
        return incomplete_files(sizes, lambda name: self._storage.read_bytes(f"{self._timeline_folder}/{name}"))

    def _check_complete(self) -> None:
        """Check once per object that no file is incomplete; after that, only this object writes.

        Raises:
            IncompleteWriteError: a file is incomplete.
        """
        if self._is_complete:
            return
        files = self._incomplete(self._storage.sizes(self._timeline_folder))
        if self._is_halfway_changed():
            files.append(_PROPERTIES_FILE)
        if files:
            raise IncompleteWriteError(
                self.path,
                f"{files[0]} is incomplete: a run is writing it, or was killed while it wrote it",
                "read again; if that does not help, run the job that writes this table: it repairs the table",
            )
        self._is_complete = True

    def id(self) -> str:
        """See `Table`."""
        return self._known().table_id

    def version(self) -> int:
        """See `Table`."""
        newest = self._newest()
        assert newest is not None, "the table exists"
        return int(newest.requestedTime())

    def size(self) -> int:
        """Total bytes of its files, including older versions."""
        return self._storage.size(self.path)

    def stored_type(self, kind: str) -> str:
        """See `Table`. Hudi's schema is Avro, whose smallest integer type is int."""
        return _SMALL.sub("int", kind)

    def progress(self, as_of: int | None = None) -> P | None:
        """See `Table`."""
        found = self._ours(as_of)
        return found and found.progress.model_copy(update={"epoch": found.progress.epoch + found.restores})

    def lost_columns(self) -> dict[str, str | None]:
        """See `Table`. Hudi's timeline does not have this."""
        return {}

    def schema(self) -> StructType:
        """See `Table`."""
        return self._rows().schema

    def partition_folders(self) -> list[str]:
        """See `Table`. For example `partition_x=a`."""
        return [name for name in self._storage.names(self.path) if name.startswith(f"{self._partition}=")]

    def read(self, as_of: int | None = None) -> DataFrame:
        """See `Table`."""
        return self._shown(self._rows({} if as_of is None else {"as.of.instant": str(as_of)}))

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
        self._check_readable(version)
        incremental = {
            "hoodie.datasource.query.type": "incremental",
            "hoodie.datasource.read.begin.instanttime": str(version),
        }
        # Table version 8 includes the begin instant, version 6 does not.
        return self._shown(self._rows(incremental).where(F.col("_hoodie_commit_time") > str(version)))

    def differing(self, since: int, until: int) -> tuple[DataFrame, DataFrame]:
        """See `Table`. The files of a group replace each other, and each row has its file's name."""
        groups = self._groups_written(since, until)
        is_in_one: Column | None = None
        if groups is not None and len(groups) <= _MAX_GROUPS:
            named = (F.col(_FILE).startswith(group) for group in sorted(groups))
            is_in_one = reduce(or_, named, F.lit(False))
        before, after = (self._rows({"as.of.instant": str(version)}) for version in (since, until))
        if is_in_one is not None:
            before, after = before.where(is_in_one), after.where(is_in_one)
        return self._shown(before), self._shown(after)

    def _groups_written(self, since: int, until: int) -> set[str] | None:
        """The ids of the file groups written after a version; none if file groups were replaced.

        Raises:
            ExpiredError: one of the versions was cleaned up.
        """
        self._check_readable(since, until)
        timeline = self._timeline()
        groups: set[str] = set()
        for instant in self._instants(timeline):
            if instant.getAction() not in WRITTEN or not since < int(instant.requestedTime()) <= until:
                continue
            if instant.getAction() == "replacecommit":
                return None
            groups.update(stat.getFileId() for stat in timeline.readCommitMetadata(instant).getWriteStats())
        return groups

    def _check_readable(self, *versions: int) -> None:
        known = [one.version for one in self.history()]
        if missing := set(versions) - set(known):
            raise ExpiredError(
                self.path,
                f"it does not have version {min(missing)}; the versions from {known[-1]} to {known[0]} can be read",
                "use one of these; hoodie.clean.commits.retained sets how many are retained",
            )

    def history(self) -> list[Version[P]]:
        """See `Table`, without versions that were cleaned up."""
        timeline = self._timeline()
        found: list[Version[P]] = []
        oldest = ""
        for instant in self._instants(timeline):
            action, at = instant.getAction(), instant.requestedTime()
            if action == "clean":
                oldest = oldest or timeline.readCleanMetadata(instant).getEarliestCommitToRetain() or ""
            elif action in WRITTEN and at >= oldest:
                said = timeline.readCommitMetadata(instant).getExtraMetadata()
                progress = cast("P | None", Progress.from_metadata(said.get(METADATA_KEY)))
                found.append(Version(int(at), self._completed_ms(instant), progress))
        return found

    def _completed_ms(self, instant: Any) -> int:
        """The time of a commit's completion; an instant is named after its start, which is seconds earlier."""
        if not self._is_old:
            return _milliseconds(instant.getCompletionTime())
        # Version 6 has only the file's modification time, which Hudi returns in the JVM's time zone.
        file = f"{self._timeline_folder}/{instant.requestedTime()}.{instant.getAction()}"
        completed = self._storage.modified_ms(file)
        assert completed is not None, "the instant is on the timeline"
        return completed

    def has(self, version: int) -> bool:
        """See `Table`."""
        return any(one.version == version for one in self.history())

    def version_at(self, at_ms: int) -> int | None:
        """See `Table`."""
        return next((one.version for one in self.history() if one.at_ms <= at_ms), None)

    def merge(self, changes: DataFrame, keys: Sequence[str], progress: P) -> Commit[P]:
        """See `Table`."""
        changes.persist()
        try:
            is_new = not self.exists()
            rows = changes
            if is_new:
                rows = rows.where(~F.col(DELETE))
            elif not rows.where(F.size(KEEP) > 0).isEmpty():
                rows = with_kept(rows, self._rows())  # Hudi replaces whole rows
            rows = rows.withColumn(_GOES, F.col(DELETE)).drop(KEEP, DELETE)
            return self._save(rows, "bulk_insert" if is_new else "upsert", progress, keys=keys)
        finally:
            changes.unpersist()

    def overwrite(self, rows: DataFrame, progress: P) -> Commit[P]:
        """See `Table`."""
        operation = "insert_overwrite_table" if self.exists() else "bulk_insert"
        return self._save(rows.withColumn(_GOES, F.lit(False)), operation, progress)

    def advance(self, progress: P) -> Commit[P]:
        """See `Table`."""
        return self._save(self._nothing(), "upsert", progress)

    def maintain(self) -> dict[str, int]:
        """See `Table`. It compacts logs; each commit already cleans up, and fills small files."""
        progress = self.progress()
        assert progress is not None, "the table exists"
        if not self._has_logs():
            return {}
        # Hudi compacts after a commit, so this commits the same progress without rows.
        self._save(self._nothing(), "upsert", progress, more=_COMPACT_NOW)
        stats = self._timeline().readCommitMetadata(self._newest()).getWriteStats()
        return {"files_written": len(stats)}

    def _has_logs(self) -> bool:
        """Whether there are logs that are not compacted yet."""
        timeline = self._timeline()
        for instant in self._instants(timeline):
            if instant.getAction() not in WRITTEN:
                continue
            commit = timeline.readCommitMetadata(instant)
            if any(_LOG in stat.getPath() for stat in commit.getWriteStats()):
                return True
            # After a compaction or overwrite there are no older logs; clustering may leave some.
            if instant.getAction() != "deltacommit" and commit.getOperationType().name() != "CLUSTER":
                return False
        return False

    def _nothing(self) -> DataFrame:
        """An empty DataFrame with the columns to write."""
        nothing = self._rows().where(F.lit(False))
        return nothing.drop(*(name for name in nothing.columns if name.startswith(HUDI_PREFIX) and name != _GOES))

    def _save(
        self,
        rows: DataFrame,
        operation: str,
        progress: P,
        *,
        keys: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
    ) -> Commit[P]:
        rows = with_one_partition(rows, self._partitions)
        _check_names(self.path, rows.schema)
        # Hudi accepts new columns only if they are nullable, and later batches may have nulls.
        may_be_null = [
            F.when(F.lit(True), F.col(quoted(field.name)).cast(_nullable(field.dataType))).alias(field.name)
            for field in rows.schema
        ]
        known = None if operation == "bulk_insert" else self._same_buckets()
        if known:
            _wait_until_past(self.path, known.newest)
            if operation == "upsert" and not known.keeps_arrays:
                self._check_keeps_arrays(progress)
        table_id = known.table_id if known else uuid.uuid4().hex
        settings = {
            **_SETTINGS,
            **_SETTINGS_OF[self._kind],
            **self._index_settings(keys),
            **(_VERSION_6 if self._is_old else {}),
            **({} if self._storage.is_atomic(self.path) else _MARKERS_OF_FILES),
            **self._properties,
            **(more or {}),
            "hoodie.table.name": self.path.rstrip("/").rpartition("/")[2],
            "hoodie.datasource.write.table.type": _TYPES[self._kind],
            "hoodie.datasource.write.operation": operation,
            "hoodie.datasource.write.row.writer.enable": str(not _has_short_decimals(rows.schema)).lower(),
            # Only an overwrite can drop columns.
            "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",
            METADATA_KEY: progress.to_metadata(),
            TABLE_ID: table_id,
            _BUCKETS: str(self._buckets or ""),
            _ARRAYS: _ARE_SAFE,
        }
        try:
            rows.select(*may_be_null).write.format("hudi").options(**settings).mode("append").save(self.path)
        except (PySparkException, Py4JJavaError) as exc:
            self._check_was_alone(progress, known.newest if known else "", str(exc))
            raise
        return self._committed(progress)

    def _check_keeps_arrays(self, progress: P) -> None:
        """Check that Hudi can copy the rows of a table that an earlier version of cdc_lake created.

        Raises:
            UnsupportedError: Hudi would lose arrays.
        """
        stored = self._rows().schema
        if not (_has_short_decimals(stored) and "array<" in stored.simpleString()):
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

    def _index_settings(self, keys: Sequence[str]) -> dict[str, str]:
        """Hudi's settings of partitions and index.

        Args:
            keys: the primary key, if rows are changed.
        """
        generator = "Simple" if self._partitions else "Nonpartitioned"
        if self._buckets:
            index = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": str(self._buckets)}
        elif all(field.column in keys for field in self._partitions):
            index = {"hoodie.index.type": "SIMPLE"}
        else:
            index = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "true"}
        return {
            "hoodie.datasource.write.partitionpath.field": self._partition,
            "hoodie.datasource.write.keygenerator.class": f"org.apache.hudi.keygen.{generator}KeyGenerator",
            **index,
        }

    def _same_buckets(self) -> _OwnCommit[P]:
        """cdc_lake's newest commit, after checking its number of buckets, which determines the file of each row."""
        known = self._known()
        if known.buckets != self._buckets:
            raise ConfigError(
                self.path,
                f"the table has {known.buckets or 'no'} buckets, but the settings ask for {self._buckets or 'none'}",
                "restore `buckets` in the table's `storage` setting, or move the folder and its side table away: the "
                "silver job then rebuilds the table from bronze",
            )
        return known

    def _committed(self, progress: P) -> Commit[P]:
        """Read the progress back: Hudi has no protection against a second writer except cdc_lake's lease."""
        found = self.progress()
        if found is None or found.nonce != progress.nonce:
            raise TableLockedError(
                self.path,
                f"{f'run {found.run_id}' if found else 'another run'} committed during batch {progress.commit}",
                "run again when the other run has ended",
            )
        return Commit(self.version(), found)

    def _check_was_alone(self, progress: P, since: str, said: str) -> None:
        """Check whether a failed write was rolled back by another writer.

        Args:
            progress: of the write.
            since: the newest instant before it.
            said: the error's message; Hudi usually includes the write's instant.

        Raises:
            TableLockedError: there is another writer.
        """
        names = self._storage.sizes(self._timeline_folder)
        others = others_since(names, since, _INSTANT.findall(said))
        found = self.progress() if others and self.exists() else None
        if found is not None and found.nonce == progress.nonce:  # it failed after its commit
            return
        if others or _ROLLED_BACK.search(said):
            whose = f"at {_clock(_milliseconds(min(others)))}" if others else "meanwhile"
            raise TableLockedError(
                self.path,
                f"another run began a commit {whose}, during batch {progress.commit}, and rolled this one back",
                "the batch was not committed; run again when the other run has ended",
            )

    def _rows(self, query: Mapping[str, str] | None = None) -> DataFrame:
        self._check_complete()
        return self._spark.read.format("hudi").options(**_READ, **(query or {})).load(self.path)

    def _shown(self, rows: DataFrame) -> DataFrame:
        """The rows without Hudi's and cdc_lake's internal columns."""
        own = (KEY, self._partition)
        return rows.select(
            *(quoted(name) for name in rows.columns if not name.startswith(HUDI_PREFIX) and name not in own)
        )

    def _known(self) -> _OwnCommit[P]:
        found = self._ours()
        assert found is not None, "the table exists"
        return found

    def _ours(self, as_of: int | None = None) -> _OwnCommit[P] | None:
        """The newest commit with progress, at or before a version; none if there is no table."""
        timeline = self._timeline()
        written = restores = 0
        newest = ""
        for instant in self._instants(timeline):
            newest = newest or str(instant.requestedTime())
            restores += instant.getAction() == "restore"
            if instant.getAction() not in WRITTEN:
                continue
            written += 1
            if as_of is not None and int(instant.requestedTime()) > as_of:
                continue
            said = timeline.readCommitMetadata(instant).getExtraMetadata()
            progress = cast("P | None", Progress.from_metadata(said.get(METADATA_KEY)))
            if progress is not None:
                buckets, arrays = said.get(_BUCKETS), said.get(_ARRAYS)
                return _OwnCommit(
                    progress,
                    said.get(TABLE_ID),
                    newest,
                    int(buckets) if buckets else None,
                    arrays == _ARE_SAFE,
                    restores,
                )
        if not written:
            return None
        raise NoProgressError(
            self.path,
            "none of the commits on its timeline has progress",
            "restore a savepoint with progress, or rebuild the table",
        )

    def _newest(self) -> Any:
        """The newest instant that wrote rows, if there is one."""
        found = (one for one in self._instants(self._timeline()) if one.getAction() in WRITTEN)
        return next(found, None)

    def _timeline(self) -> Any:
        """The completed instants that are not archived; none if there is no table."""
        if self._settings() is None:
            return None
        self._check_complete()
        jvm: Any = self._spark._jvm
        conf = self._spark._jsc.hadoopConfiguration()
        builder = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
        builder = builder.setConf(jvm.org.apache.hudi.hadoop.fs.HadoopFSUtils.getStorageConf(conf))
        return builder.setBasePath(self.path).build().getActiveTimeline().filterCompletedInstants()

    @staticmethod
    def _instants(timeline: Any) -> Iterator[Any]:
        """The timeline's instants, newest first."""
        if timeline is None:
            return
        instants = timeline.getReverseOrderedInstants().iterator()
        while instants.hasNext():
            yield instants.next()


def _has_short_decimals(schema: StructType) -> bool:
    """Whether the schema has a decimal that fits into a long.

    If so, Hudi's row writer writes arrays in a form that its Avro reader cannot read: a later commit that copies such a
    file writes null into the arrays of all unchanged rows.
    """
    precisions = re.findall(r"\bdecimal\((\d+),", schema.simpleString())
    return any(int(precision) <= _LONG_DIGITS for precision in precisions)


def _wait_until_past(path: str, instant: str) -> None:
    """Wait until this machine's clock is past an instant, because Hudi orders commits by the writers' clocks.

    Raises:
        InfrastructureError: the wait exceeds the difference of synchronized clocks.
    """
    newest_ms, now_ms = _milliseconds(instant), time.time() * 1000
    if newest_ms < now_ms:
        return
    if newest_ms - now_ms > _MOST_SECONDS_AHEAD * 1000:
        raise InfrastructureError(
            path,
            f"its newest commit is of {_clock(newest_ms)}, but this machine's clock is at {_clock(now_ms)}: Hudi would "
            "hide new commits behind it",
            "synchronize the clocks of all machines that write this table. If they are right, run again after "
            f"{_clock(newest_ms)}",
        )
    time.sleep((newest_ms - now_ms + 1) / 1000)


def _clock(ms: float) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def _milliseconds(instant: str) -> int:
    """The time of an instant such as `20261122192503833`, in UTC."""
    moment = datetime.strptime(instant[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000 + int(instant[14:] or 0)


def _nullable(kind: DataType) -> DataType:
    """The type with all nested fields nullable."""
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind])
    return kind


def _check_names(path: str, kind: DataType) -> None:
    """Check that Avro, the format of Hudi's schema, allows all names.

    Raises:
        UnsupportedError: it does not allow one.
    """
    if isinstance(kind, StructType):
        for field in kind:
            if not field.name.isidentifier():
                raise UnsupportedError(
                    path,
                    f"Hudi does not allow the column or field name `{field.name}`: use letters, digits and `_` only",
                    "set field.name.adjustment.mode=avro on the connector, or store this table in Delta",
                )
            _check_names(path, field.dataType)
    elif isinstance(kind, ArrayType):
        _check_names(path, kind.elementType)
    elif isinstance(kind, MapType):
        _check_names(path, kind.valueType)
