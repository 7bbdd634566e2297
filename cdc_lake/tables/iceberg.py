"""A table in Apache Iceberg, copy-on-write (format version 2) or merge-on-read (version 3, with deletion vectors).

A commit has two steps: Spark writes a snapshot that no reader sees yet ("staged"), and then the catalog makes it the
newest version, if the table's newest version is still the one that it was made from. Iceberg alone would accept two
appends, or an append and a merge, that were made from the same version. docs/decisions/iceberg.md.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Literal

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import DELETE, KEEP, KEY, quoted, type_text, without_small_integers
from cdc_lake.config import PartitionField
from cdc_lake.errors import ConfigError, ExpiredError, InfrastructureError
from cdc_lake.failpoints import reach
from cdc_lake.spark.session import active_session
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import Changes, Commit, P, Version, compaction_conflict_error, conflict_error, read_back
from cdc_lake.tables.iceberg_catalog import CATALOG, IcebergName, catalog_error, use_catalog, use_namespace
from cdc_lake.tables.iceberg_metadata import IcebergMetadata, Snapshot
from cdc_lake.tables.iceberg_write import (
    MERGE_MODE,
    MODES,
    IcebergType,
    compact,
    create_statement,
    insert_statement,
    is_conflict,
    merge_statement,
    properties_of_new_table,
    remove_old_files,
    stage,
    table_cache,
    transform,
    write,
)
from cdc_lake.tables.progress import METADATA_KEY

_MISSING = ("NoSuchTableException", "NoSuchNamespaceException", "TABLE_OR_VIEW_NOT_FOUND")
_UNKNOWN_OUTCOME = re.compile("CommitStateUnknownException|RESTException: Error occurred while processing POST")
"""Iceberg's errors of a commit whose answer was lost; the second one is that of a connection that ends."""
_CLOCK = re.compile("Invalid (snapshot|update) timestamp")
"""Iceberg's errors of a commit more than a minute before the table's last one."""
_NO_LOCKS = "Failed to find lock for table"
"""Iceberg's error if a metastore cannot store locks. It has the class of a conflict."""
_STAGED_READS: deque[tuple[Any, str]] = deque()
_MOST_STAGED_READS = 64
"""Iceberg keeps the files of a `differing` until they are removed, and a DataFrame does not say when it is done."""


class IcebergTable(Generic[P]):
    """An Iceberg table in a catalog; see `cdc_lake.tables.contract.Table`. A version is a sequence number.

    Args:
        path: the table's folder.
        partitions: partition fields, for the first write. They are hidden: no column has their values.
        properties: Iceberg's table properties, which override the defaults; each merge updates them.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        name: IcebergName,
        *,
        table_type: IcebergType = "cow",
        partitions: Sequence[PartitionField] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self._spark = spark
        self._files = HadoopFiles(spark)
        self._name = name
        self._type = table_type
        self._partitions = tuple(partitions)
        self._properties = dict(properties or {})
        self.sql_name = ".".join((CATALOG, quoted(name.database), quoted(name.table)))
        self._seen: IcebergMetadata[P] | None = None
        use_catalog(spark, name)

    def differing_settings(self) -> str | None:
        """Description of the first property that differs from this class's settings; None if all match, or it is new.

        Raises:
            ConfigError: the catalog's table is in another folder.
        """
        metadata = self._metadata()
        if metadata is None:
            return None
        wanted = [(field.column, transform(field)) for field in self._partitions]
        stored = metadata.partitions()
        if stored != wanted:
            return f"partitions are ({', '.join(f'{by}({column})' for column, by in stored)})"
        mode = metadata.properties.get(MERGE_MODE)
        return None if mode == MODES[self._type] else f"{MERGE_MODE} is {mode}"

    def exists(self) -> bool:
        metadata = self._metadata()
        return metadata is not None and metadata.current is not None

    def recover(self) -> list[str]:
        """See `Table`. The catalog's commits are atomic; `maintain` removes what a killed run staged."""
        return []

    def id(self) -> str:
        return self._known().table_id

    def version(self) -> int:
        return self._current(self._read_metadata()).version

    def size(self) -> int:
        """Total bytes of the files of the version that was read last."""
        metadata = self._seen or self._metadata()
        return int(metadata.current.summary.get("total-files-size", 0)) if metadata and metadata.current else 0

    def stored_type(self, spark_type: str) -> str:
        """See `Table`. Iceberg's smallest integer type is int."""
        return without_small_integers(spark_type)

    def progress(self, as_of: int | None = None) -> P | None:
        metadata = self._metadata()
        if metadata is None or metadata.current is None:
            return None
        return metadata.progress(metadata.current if as_of is None else self._at(metadata, as_of))

    def lost_columns(self) -> dict[str, str | None]:
        metadata = self._seen or self._metadata()
        own = metadata.own(metadata.current) if metadata else None
        if metadata is None or own is None:
            return {}
        names = metadata.column_names()
        before = metadata.column_names(own.schema_id)
        return {name: names.get(id) for id, name in before.items() if names.get(id) != name}

    def schema(self) -> StructType:
        return self.read().schema

    def partition_folders(self) -> list[str]:
        """See `Table`. Readers find partitions in the metadata."""
        return []

    def read(self, as_of: int | None = None) -> DataFrame:
        if as_of is None:
            return self._spark.table(self.sql_name)
        snapshot = self._at(self._read_metadata(), as_of)
        # Not by VERSION AS OF, which the Spark extension of Hudi 1.2 breaks for other formats.
        return self._spark.table(f"{self.sql_name}.snapshot_id_{snapshot.id}")

    def history(self) -> list[Version[P]]:
        return self._read_metadata().history()

    def has(self, version: int) -> bool:
        return self._read_metadata().at(version) is not None

    def version_at(self, at_ms: int) -> int | None:
        return self._read_metadata().version_at(at_ms)

    def differing(self, since: int, until: int) -> tuple[DataFrame, DataFrame]:
        metadata = self._read_metadata()
        table = self._load()
        old, new = (_scan_tasks(table, self._at(metadata, version).id) for version in (since, until))
        gone, added = ([mine[file] for file in mine.keys() - other] for mine, other in ((old, new), (new, old)))
        before = self._in_files(table, f"{since} without {until}", gone)
        return before, self._in_files(table, f"{until} without {since}", added)

    def _in_files(self, table: Any, what: str, tasks: Sequence[Any]) -> DataFrame:
        """The rows of some files of a version, without those that it deleted in them.

        Args:
            what: describes these files uniquely within the table.
        """
        if not tasks:
            return self.read().where(F.lit(False))
        jvm: Any = self._spark._jvm
        listed = jvm.java.util.ArrayList()
        for task in tasks:
            listed.add(task)
        name = f"{table.uuid()} {what}"
        # As Iceberg's own compaction reads files: the name is that of the files and, in place of a path, of the table.
        tables = table_cache(self._spark)
        files = jvm.org.apache.iceberg.spark.ScanTaskSetManager.get()
        tables.add(name, table)
        files.stageTasks(table, name, listed)
        _STAGED_READS.append((table, name))
        while len(_STAGED_READS) > _MOST_STAGED_READS:
            oldest, its_name = _STAGED_READS.popleft()
            files.removeTasks(oldest, its_name)
            tables.remove(its_name)
        with active_session(self._spark):
            return self._spark.read.format("iceberg").option("scan-task-set-id", name).load(name)

    def merge(self, changes: Changes, progress: P) -> Commit[P]:
        """See `Table`. New columns are added in a separate commit before it, in which all their values are null."""
        if not self.exists():
            return self._create(changes.upserts().drop(KEY), progress)
        self._update_properties()
        rows = changes.upserts() if changes.are_inserts else changes.rows
        rows = rows.drop(KEY)
        columns = [name for name in rows.columns if name not in (KEEP, DELETE)]
        self._add_columns(rows.select(*map(quoted, columns)))

        def statement(view: str) -> str:
            if changes.are_inserts:
                return insert_statement(self.sql_name, view, columns)
            return merge_statement(self.sql_name, view, columns, changes.keys)

        return self._stage_and_publish(progress, lambda: stage(rows, statement, progress))

    def overwrite(self, rows: DataFrame, progress: P) -> Commit[P]:
        if not self.exists():
            return self._create(rows.drop(KEY), progress)
        self._check_follows(self._known(), self._known().current, progress)
        return self._write("REPLACE", rows.drop(KEY), progress)

    def advance(self, progress: P) -> Commit[P]:
        def stage_nothing() -> None:
            self._load().newFastAppend().set(METADATA_KEY, progress.to_metadata()).stageOnly().commit()

        return self._stage_and_publish(progress, stage_nothing)

    def maintain(self) -> dict[str, int]:
        """See `Table`. It compacts files, expires snapshots, and removes files that no snapshot has."""
        before = self._files.size(self.path)
        try:
            written = compact(self._spark, self._load())
        except Py4JJavaError as exc:
            if not is_conflict(exc):
                raise
            raise compaction_conflict_error(self.path) from exc
        remove_old_files(self._spark, self._load)
        return {"files_written": written, "bytes_removed": max(before - self._files.size(self.path), 0)}

    def _create(self, rows: DataFrame, progress: P) -> Commit[P]:
        use_namespace(self._spark, self._name)
        return self._write("CREATE", rows, progress)

    def _write(self, verb: Literal["CREATE", "REPLACE"], rows: DataFrame, progress: P) -> Commit[P]:
        """Create or replace the table, with all its properties."""
        properties = properties_of_new_table(self.path, self._type, self._properties)

        def statement(view: str) -> str:
            return create_statement(verb, self.sql_name, view, self.path, self._partitions, properties)

        with self._translated(progress):
            write(rows, statement, progress)
            self._retain()
        return self._committed(progress)

    def _add_columns(self, rows: DataFrame) -> None:
        stored = {field.name: type_text(field.dataType) for field in self.schema()}
        if any(stored.get(field.name) != type_text(field.dataType) for field in rows.schema):
            jvm: Any = self._spark._jvm
            schema = jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(rows._jdf.schema())
            self._load().updateSchema().unionByNameWith(schema).commit()

    def _update_properties(self) -> None:
        stored = self._known().properties
        changed = {name: value for name, value in self._properties.items() if stored.get(name) != value}
        if changed:
            update = self._load().updateProperties()
            for name, value in changed.items():
                update = update.set(name, value)
            update.commit()

    def _stage_and_publish(self, progress: P, stage: Callable[[], None]) -> Commit[P]:
        """Commit in two steps; see the module. If the catalog's answer is lost, the progress that is read back shows
        whether the commit was made.
        """
        with self._translated(progress):
            stage()
            metadata = self._read_metadata()
            staged = next(one for one in metadata.snapshots.values() if _nonce(one) == progress.nonce)
            parent = None if staged.parent is None else metadata.snapshots[staged.parent]
            self._check_follows(metadata, parent, progress)
            reach("iceberg.after_stage", batch=progress.commit)
            self._publish(staged, branch=f"{CATALOG}_{progress.nonce}")
        return self._committed(progress)

    def _publish(self, staged: Snapshot, branch: str) -> None:
        """Make a staged snapshot the newest version, if its parent still is that. The branch exists only in between."""
        change = self._load().manageSnapshots().createBranch(branch, staged.id)
        change = change.fastForwardBranch("main", branch).removeBranch(branch)
        self._tagged(change, staged).commit()

    def _retain(self) -> None:
        """Tag the newest version, so that no program expires the progress after it has compacted the table."""
        self._tagged(self._load().manageSnapshots(), self._current(self._read_metadata())).commit()

    def _tagged(self, change: Any, snapshot: Snapshot) -> Any:
        """The change, which also moves the tag of cdc_lake's newest commit."""
        has_tag = self._known().has_ref(CATALOG)
        return change.replaceTag(CATALOG, snapshot.id) if has_tag else change.createTag(CATALOG, snapshot.id)

    def _check_follows(self, metadata: IcebergMetadata[P], parent: Snapshot | None, progress: P) -> None:
        """Check that a commit was made from the version whose progress the run has read.

        Raises:
            TableLockedError: another run has committed since.
        """
        own = metadata.own(parent)
        if own is not None and own.progress is not None and own.progress.nonce != progress.follows:
            raise conflict_error(self.path, progress, f"run {own.progress.run_id}")

    @contextmanager
    def _translated(self, progress: P) -> Iterator[None]:
        """Translate the errors of commits. An unknown outcome is an error only if nothing was committed."""
        try:
            yield
        except (PySparkException, Py4JError) as exc:
            if _UNKNOWN_OUTCOME.search(str(exc)):
                newest = self.progress()
                if (newest.nonce if newest else "") == progress.follows:
                    raise InfrastructureError(
                        self.path,
                        f"the catalog's answer was lost, and batch {progress.commit} was not committed",
                        "check that the catalog runs, and run again",
                    ) from exc
                return
            if _CLOCK.search(str(exc)):
                raise InfrastructureError(
                    self.path,
                    "this machine's clock is more than a minute behind the table's last commit; nothing was committed",
                    "correct the clock, or wait until it has passed that time, and run again",
                ) from exc
            if (error := catalog_error(exc)) is not None:
                raise error from exc
            if _NO_LOCKS in str(exc):
                raise ConfigError(
                    "lake.iceberg.uri",
                    f"the Hive metastore does not lock tables, and batch {progress.commit} was not committed",
                    "create the tables of its locks with Hive's schematool, and run again",
                ) from exc
            if is_conflict(exc):
                raise conflict_error(self.path, progress, "another run") from exc
            raise

    def _committed(self, progress: P) -> Commit[P]:
        return read_back(self, progress, lambda by: conflict_error(self.path, progress, by))

    def _load(self) -> Any:
        """Iceberg's newest state of the table; None if there is no table."""
        jvm: Any = self._spark._jvm
        try:
            return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self._spark._jsparkSession, self.sql_name)
        except (PySparkException, Py4JJavaError) as exc:
            if any(name in str(exc) for name in _MISSING):
                return None
            if (error := catalog_error(exc)) is not None:
                raise error from exc
            raise

    def _metadata(self) -> IcebergMetadata[P] | None:
        """The table's newest metadata; None if there is no table.

        Raises:
            ConfigError: the name belongs to a table in another folder.
        """
        table = self._load()
        if table is None:
            self._seen = None
            return None
        text = self._spark._jvm.org.apache.iceberg.TableMetadataParser.toJson(table.operations().current())  # type: ignore[union-attr]
        self._seen = IcebergMetadata(self.path, json.loads(text))
        if self._seen.location.removeprefix("file:") != self.path.removeprefix("file:"):
            raise ConfigError(
                f"{self._name.database}.{self._name.table}",
                f"the Iceberg catalog has {self._seen.location} under this name, not {self.path}",
                "change `catalog.database` or `catalog.table`, or drop that table from the catalog by hand",
            )
        return self._seen

    def _read_metadata(self) -> IcebergMetadata[P]:
        metadata = self._metadata()
        assert metadata is not None, "the table exists"
        return metadata

    def _known(self) -> IcebergMetadata[P]:
        """The metadata that was read last."""
        return self._seen or self._read_metadata()

    @staticmethod
    def _current(metadata: IcebergMetadata[P]) -> Snapshot:
        assert metadata.current is not None, "the table has a commit"
        return metadata.current

    def _at(self, metadata: IcebergMetadata[P], version: int) -> Snapshot:
        if (snapshot := metadata.at(version)) is None:
            raise ExpiredError(
                self.path,
                f"version {version} can no longer be read",
                "use a newer version; history.expire.max-snapshot-age-ms sets how long versions are retained",
            )
        return snapshot


def _nonce(snapshot: Snapshot) -> str | None:
    return snapshot.progress.nonce if snapshot.progress else None


def _scan_tasks(table: Any, snapshot_id: int) -> dict[tuple[Any, ...], Any]:
    """The files of a snapshot, each with what is deleted in it -> Iceberg's task that reads it."""
    tasks = {}
    planned = table.newScan().useSnapshot(snapshot_id).planFiles()
    try:
        found = planned.iterator()
        while found.hasNext():
            task = found.next()
            deletes = [(one.location(), one.contentOffset()) for one in task.deletes()]
            tasks[task.file().location(), *sorted(deletes)] = task
    finally:
        planned.close()
    return tasks
