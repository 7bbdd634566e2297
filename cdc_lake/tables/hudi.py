"""A table in Apache Hudi, copy-on-write or merge-on-read.

The fold has decided before anything is written, so Hudi must not decide again: what is written last counts
(`COMMIT_TIME_ORDERING`), and a row that goes is written with `_hoodie_is_deleted`. Hudi's own ordering and its delete
operation resurrect rows, or make tables that nobody can read. docs/decisions/hudi.md.
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
from cdc_lake.tables.hudi_timeline import WRITTEN, any_instant, incomplete, is_removable, others_since
from cdc_lake.tables.kept import with_kept
from cdc_lake.tables.newest import HUDI_CHECKSUM, METADATA_FOLDER, TABLE_ID
from cdc_lake.tables.partitions import with_one_partition
from cdc_lake.tables.progress import METADATA_KEY, Progress

HudiType = Literal["cow", "mor"]
_TYPES = {"cow": "COPY_ON_WRITE", "mor": "MERGE_ON_READ"}
_PROPERTIES_FILE = f"{METADATA_FOLDER}/hoodie.properties"
_BACKUP = "hoodie.properties.backup"
_GOES = f"{HUDI_PREFIX}is_deleted"
"""Hudi's own mark of a row that is to go; a column of every table, false in the rows that are there."""
_BUCKETS = f"{METADATA_KEY}.buckets"
_ARRAYS = f"{METADATA_KEY}.arrays"
_ARE_SAFE = "safe"
"""Where a commit says that no file of the table loses arrays when Hudi copies its rows; see `_has_short_decimals`."""
_SMALL = re.compile(r"\b(tinyint|smallint)(?=[,>]|$)")
_LOG = ".log."
"""In the names of the files that merge-on-read writes beside the others."""
_READ = {
    # Its statistics are read through Spark's cache: inside a plan that is itself being cached, that is a deadlock.
    "hoodie.metadata.enable": "false",
    "hoodie.enable.data.skipping": "false",
}
_SETTINGS = {
    **_READ,
    "hoodie.write.record.merge.mode": "COMMIT_TIME_ORDERING",
    # The key's canonical text: an empty key is refused by Hudi, and its own text of several columns is ambiguous.
    "hoodie.datasource.write.recordkey.field": KEY,
    "hoodie.datasource.write.hive_style_partitioning": "true",
    # Values with a slash, or what else a folder's name does not take.
    "hoodie.datasource.write.partitionpath.urlencode": "true",
    "hoodie.datasource.write.commitmeta.key.prefix": METADATA_KEY,
    "hoodie.table.timeline.timezone": "UTC",
    # Half a megabyte in each file, for an index that is not used.
    "hoodie.parquet.bloom.filter.enabled": "false",
    # So many versions can be read back; the timeline has to be a little longer.
    "hoodie.clean.commits.retained": "50",
    "hoodie.keep.min.commits": "60",
    "hoodie.keep.max.commits": "80",
}
_SETTINGS_OF = {
    "cow": {},
    # Nobody else compacts; and a reader merges at most so many logs.
    "mor": {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "10"},
}
_MARKERS_OF_FILES = {"hoodie.write.markers.type": "DIRECT"}
"""Or the server that Hudi makes them with waits for five minutes on a full disk. It saves requests to object stores."""
_FILE = f"{HUDI_PREFIX}file_name"
_LONG_DIGITS = 18
_MOST_SECONDS_AHEAD = 10.0
"""How far ahead of this clock the newest instant may be for a write to wait."""
_INSTANT = re.compile(r"\b\d{17}\b")
_ROLLED_BACK = re.compile(r"\.?(?:inflight|requested)\b.{0,20} does not exist")
"""What Hudi says when the files of a write that is under way are gone."""
_MOST_GROUPS = 64
"""More are not told apart when rows are read: a condition has its price, too."""
_COMPACT_NOW = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
_SAID = {"hoodie.record.merge.mode": _SETTINGS["hoodie.write.record.merge.mode"]}
_OLD = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
_SAID_OF_OLD = {
    "hoodie.table.version": _OLD["hoodie.write.table.version"],
    # What the merge mode was called before there were any.
    "hoodie.compaction.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
}
"""Of Hudi's own settings in a table's folder, which say who decides; of the format for old readers, too."""


class _Written(NamedTuple, Generic[P]):
    """A commit of ours.

    Attributes:
        newest: the newest instant of the timeline, of any action.
        buckets: how many a partition has; none where rows are looked up.
        keeps_arrays: whether it says that no file loses arrays.
        restores: how often the table was restored since.
    """

    progress: P
    table_id: str
    newest: str
    buckets: int | None
    keeps_arrays: bool
    restores: int


class HudiTable(Generic[P]):
    """One Hudi table by path; see `cdc_lake.tables.Table`. A version is an instant of its timeline, as a number.

    Args:
        spark: the session that reads and writes it.
        path: its folder or URL.
        kind: of table, for the first write.
        partitions: what the table is partitioned by, in one column of its own, which `read` leaves out: only Hudi's
            ComplexKeyGenerator and CustomKeyGenerator know several, and what they write is not read everywhere.
        buckets: file groups of a partition; if none is given, rows are looked up, in as many groups as are needed.
        table_version: of Hudi's format; the newest that it writes, unless given.
        properties: Hudi's settings for each write; they win over our own defaults.
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
        """What of the table's own settings is not as this class writes it, in words; none if all is, or it is new.

        Raises:
            DamagedFileError: their file is missing.
            UnsupportedError: a newer Hudi has written it, in a format that this one does not know.
        """
        said = self._settings()
        if said is None:
            if not self._is_begun():
                return None
            if not self._storage.exists(file := f"{self.path}/{_PROPERTIES_FILE}"):
                raise DamagedFileError(file, "the file is missing")
            said = {}  # of a Hudi that wrote no checksum, and so somebody else's
        self._check_format(int(said.get("hoodie.table.version", 0)))
        wanted = {
            "hoodie.table.type": _TYPES[self._kind],
            **(_SAID_OF_OLD if self._is_old else _SAID),
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
                f"a newer Hudi has made it a table of version {version}, and this Hudi knows none above {known}",
                "run this job with the Hudi that the others run with (docs/reference/compatibility.md)",
            )

    def exists(self) -> bool:
        """See `Table`. A folder in which a first write was cut off holds no table yet."""
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
        """Hudi's own settings of the table; none as long as they are not completely written."""
        return self._settings_in(_PROPERTIES_FILE) or self._settings_in(f"{METADATA_FOLDER}/{_BACKUP}")

    def _settings_in(self, file: str) -> dict[str, str] | None:
        lines = (self._storage.read_bytes(f"{self.path}/{file}") or b"").decode(errors="replace").splitlines()
        said = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        return said if HUDI_CHECKSUM in said else None

    def _is_begun(self) -> bool:
        """Whether anything was written to the table, in the format of any version."""
        folder = f"{self.path}/{METADATA_FOLDER}"
        return any(any_instant(self._storage.sizes(one)) for one in (folder, f"{folder}/timeline"))

    def _is_halfway_changed(self) -> bool:
        """Whether Hudi's own settings are complete only in the backup that Hudi makes before it changes them."""
        return self._settings_in(_PROPERTIES_FILE) is None and self._settings() is not None

    def _incomplete(self, sizes: Mapping[str, int]) -> list[str]:
        if self._storage.is_atomic(self.path):
            return []
        return incomplete(sizes, lambda name: self._storage.read_bytes(f"{self._timeline_folder}/{name}"))

    def _check_complete(self) -> None:
        """See that the table can be read; once for this object, because then only its own writes follow.

        Raises:
            IncompleteWriteError: it cannot.
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
        """Bytes of all its files, older versions' included."""
        return self._storage.size(self.path)

    def held_as(self, kind: str) -> str:
        """See `Table`: Avro, in which Hudi keeps its schema, has no whole number smaller than int."""
        return _SMALL.sub("int", kind)

    def progress(self, as_of: int | None = None) -> P | None:
        """See `Table`."""
        found = self._ours(as_of)
        return found and found.progress.model_copy(update={"epoch": found.progress.epoch + found.restores})

    def lost_columns(self) -> dict[str, str | None]:
        """See `Table`: Hudi's timeline does not tell."""
        return {}

    def schema(self) -> StructType:
        """See `Table`."""
        return self._rows().schema

    def partition_folders(self) -> list[str]:
        """See `Table`: of its one partition column, `partition_x=a`."""
        return [name for name in self._storage.names(self.path) if name.startswith(f"{self._partition}=")]

    def read(self, as_of: int | None = None) -> DataFrame:
        """See `Table`."""
        return self._shown(self._rows({} if as_of is None else {"as.of.instant": str(as_of)}))

    def read_optimized(self) -> DataFrame:
        """The rows as of the last compaction, by Hudi's read-optimised query: quicker, because no logs are merged.

        In copy-on-write, and where there are no logs, the newest ones.
        """
        return self._shown(self._rows({"hoodie.datasource.query.type": "read_optimized"}))

    def read_since(self, version: int) -> DataFrame:
        """The rows written after a version, as they are now, by Hudi's incremental query; only their files are read.

        Rows that went since are not among them.

        Args:
            version: one of `history`.

        Raises:
            ExpiredError: it was cleaned away; what followed it cannot be told any more.
        """
        self._check_readable(version)
        incremental = {
            "hoodie.datasource.query.type": "incremental",
            "hoodie.datasource.read.begin.instanttime": str(version),
        }
        # The commit itself is among them in table version 8, and not in 6.
        return self._shown(self._rows(incremental).where(F.col("_hoodie_commit_time") > str(version)))

    def differing(self, since: int, until: int) -> tuple[DataFrame, DataFrame]:
        """See `Table`. Hudi's files of one group follow each other, and each row names its file."""
        groups = self._groups_written(since, until)
        is_in_one: Column | None = None
        if groups is not None and len(groups) <= _MOST_GROUPS:
            named = (F.col(_FILE).startswith(group) for group in sorted(groups))
            is_in_one = reduce(or_, named, F.lit(False))
        before, after = (self._rows({"as.of.instant": str(version)}) for version in (since, until))
        if is_in_one is not None:
            before, after = before.where(is_in_one), after.where(is_in_one)
        return self._shown(before), self._shown(after)

    def _groups_written(self, since: int, until: int) -> set[str] | None:
        """The ids of the file groups written after a version; none where groups were put in the place of others.

        Raises:
            ExpiredError: one of the versions was cleaned away.
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
                f"there is no version {min(missing)} (any more): those from {known[-1]} to {known[0]} can be read",
                "name one of these; hoodie.clean.commits.retained says how many are kept",
            )

    def history(self) -> list[Version[P]]:
        """See `Table`. Those that were cleaned away are left out."""
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
        """When a commit was there to be read, seconds after it was begun, which is what an instant is called by."""
        if not self._is_old:
            return _milliseconds(instant.getCompletionTime())
        # Only its file's time says so, and Hudi tells that in the zone of the JVM.
        file = f"{self._timeline_folder}/{instant.requestedTime()}.{instant.getAction()}"
        completed = self._storage.modified_ms(file)
        assert completed is not None, "it is on the timeline"
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
        """See `Table`: merges logs into their files. Each commit cleans, and fills up small files, by itself."""
        progress = self.progress()
        assert progress is not None, "the table exists"
        if not self._has_logs():
            return {}
        # Hudi compacts after a commit: one without rows, which says again what the table has consumed.
        self._save(self._nothing(), "upsert", progress, more=_COMPACT_NOW)
        stats = self._timeline().readCommitMetadata(self._newest()).getWriteStats()
        return {"files_written": len(stats)}

    def _has_logs(self) -> bool:
        """Whether changes were written beside their files, and not yet into them."""
        timeline = self._timeline()
        for instant in self._instants(timeline):
            if instant.getAction() not in WRITTEN:
                continue
            commit = timeline.readCommitMetadata(instant)
            if any(_LOG in stat.getPath() for stat in commit.getWriteStats()):
                return True
            # A compaction, or an overwrite; a clustering may have left some as they were.
            if instant.getAction() != "deltacommit" and commit.getOperationType().name() != "CLUSTER":
                return False
        return False

    def _nothing(self) -> DataFrame:
        """No rows of the table, as they are written."""
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
        # Hudi takes a new column only if it may be null; and what never was may be so in a later batch.
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
            **self._placing(keys),
            **(_OLD if self._is_old else {}),
            **({} if self._storage.is_atomic(self.path) else _MARKERS_OF_FILES),
            **self._properties,
            **(more or {}),
            "hoodie.table.name": self.path.rstrip("/").rpartition("/")[2],
            "hoodie.datasource.write.table.type": _TYPES[self._kind],
            "hoodie.datasource.write.operation": operation,
            "hoodie.datasource.write.row.writer.enable": str(not _has_short_decimals(rows.schema)).lower(),
            # Only an overwrite comes with other columns than the table has and more.
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
        """See that Hudi can copy the rows of a table that another version of cdc_lake created.

        Raises:
            UnsupportedError: it would lose arrays.
        """
        stored = self._rows().schema
        if not (_has_short_decimals(stored) and "array<" in stored.simpleString()):
            return
        cures = {
            "silver": "run `cdc-lake rebuild` once for this table: it also restores arrays that were lost before",
            "gold": "move its folder away and run the gold job: it makes the table again",
        }
        raise UnsupportedError(
            self.path,
            "an earlier version of cdc_lake created this table, and Hudi may lose its arrays when it copies rows",
            f"nothing was written; {cures[progress.layer]}",
        )

    def _placing(self, keys: Sequence[str]) -> dict[str, str]:
        """The settings of where a row is put, and found again.

        Args:
            keys: the primary key, as far as rows are changed.
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

    def _same_buckets(self) -> _Written[P]:
        """The newest commit of ours, which must have as many: a row is where their number says."""
        known = self._known()
        if known.buckets != self._buckets:
            raise ConfigError(
                self.path,
                f"the table has {known.buckets or 'no'} buckets, and the settings say {self._buckets or 'none'}",
                "set `buckets` of the table's `storage` back, or move the folder and its side table away: silver is "
                "then made anew from bronze",
            )
        return known

    def _committed(self, progress: P) -> Commit[P]:
        """Read back what stands in the table now; Hudi has no fence against a second writer, only our lease."""
        found = self.progress()
        if found is None or found.nonce != progress.nonce:
            raise TableLockedError(
                self.path,
                f"{f'run {found.run_id}' if found else 'another run'} committed while batch {progress.commit} was made",
                "run again once the other has ended",
            )
        return Commit(self.version(), found)

    def _check_was_alone(self, progress: P, since: str, said: str) -> None:
        """See that a write that failed did not fail because of another writer, which removes what this one has begun.

        Args:
            progress: of the write.
            since: the newest instant before it.
            said: how it failed; Hudi names the write's instant in most cases.

        Raises:
            TableLockedError: there is another one.
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
                f"another run began a commit {whose}, while batch {progress.commit} was made, and rolled this one back",
                "nothing of this batch was committed; run again once the other has ended",
            )

    def _rows(self, query: Mapping[str, str] | None = None) -> DataFrame:
        self._check_complete()
        return self._spark.read.format("hudi").options(**_READ, **(query or {})).load(self.path)

    def _shown(self, rows: DataFrame) -> DataFrame:
        """Without Hudi's columns and ours."""
        own = (KEY, self._partition)
        return rows.select(
            *(quoted(name) for name in rows.columns if not name.startswith(HUDI_PREFIX) and name not in own)
        )

    def _known(self) -> _Written[P]:
        found = self._ours()
        assert found is not None, "the table exists"
        return found

    def _ours(self, as_of: int | None = None) -> _Written[P] | None:
        """The newest commit that carries progress, at or before a version; none where no table is."""
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
                return _Written(
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
            "none of the commits left on its timeline says what the table has consumed",
            "restore it to a savepoint that does, or rebuild the table",
        )

    def _newest(self) -> Any:
        """The newest instant that wrote rows; none if there is none."""
        found = (one for one in self._instants(self._timeline()) if one.getAction() in WRITTEN)
        return next(found, None)

    def _timeline(self) -> Any:
        """The completed instants that are not archived; none where no table is."""
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
        """The newest first."""
        if timeline is None:
            return
        instants = timeline.getReverseOrderedInstants().iterator()
        while instants.hasNext():
            yield instants.next()


def _has_short_decimals(schema: StructType) -> bool:
    """Whether a decimal fits into a long.

    Where one does, Hudi's row writer writes decimals as its Avro reader can read them, but arrays as it cannot: a later
    commit that copies such a file leaves null in the arrays of all rows that it does not change.
    """
    precisions = re.findall(r"\bdecimal\((\d+),", schema.simpleString())
    return any(int(precision) <= _LONG_DIGITS for precision in precisions)


def _wait_until_past(path: str, instant: str) -> None:
    """Wait until this machine's clock is past an instant: Hudi orders commits by the clocks of those who write them.

    Raises:
        InfrastructureError: that would take longer than clocks differ that are synchronized.
    """
    newest_ms, now_ms = _milliseconds(instant), time.time() * 1000
    if newest_ms < now_ms:
        return
    if newest_ms - now_ms > _MOST_SECONDS_AHEAD * 1000:
        raise InfrastructureError(
            path,
            f"its newest commit is of {_clock(newest_ms)}, and this machine's clock says {_clock(now_ms)}: Hudi would "
            "hide what is written now behind it",
            "synchronize the clocks of all machines that write this table; if they are right now, run again after "
            f"{_clock(newest_ms)}; nothing was written",
        )
    time.sleep((newest_ms - now_ms + 1) / 1000)


def _clock(ms: float) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def _milliseconds(instant: str) -> int:
    """When an instant of the timeline was, `20261122192503833`; ours are UTC."""
    moment = datetime.strptime(instant[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000 + int(instant[14:] or 0)


def _nullable(kind: DataType) -> DataType:
    """The same type, with nulls wherever there may be any."""
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind])
    return kind


def _check_names(path: str, kind: DataType) -> None:
    """See that Avro, in which Hudi keeps its schema, takes all names.

    Raises:
        UnsupportedError: it does not.
    """
    if isinstance(kind, StructType):
        for field in kind:
            if not field.name.isidentifier():
                raise UnsupportedError(
                    path,
                    f"Hudi cannot hold the column or field `{field.name}`: names have letters, digits and `_` there",
                    "set field.name.adjustment.mode=avro on the connector, or hold this table in delta",
                )
            _check_names(path, field.dataType)
    elif isinstance(kind, ArrayType):
        _check_names(path, kind.elementType)
    elif isinstance(kind, MapType):
        _check_names(path, kind.valueType)
