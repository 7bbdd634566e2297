"""The commits of a Delta table as its log has them, and the progress in cdc_lake's commits."""

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, cast

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.errors import DamagedFileError, ExpiredError, NoProgressError
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import P, Version
from cdc_lake.tables.damage import log_damage_error
from cdc_lake.tables.newest import LOG_FOLDER, LogicalFile
from cdc_lake.tables.progress import Progress

_EMPTY_ENTRY = re.compile(r"(\d{20}\.json);[^\n]* length=0;")
"""An empty file of the log in the text of Hadoop's FileStatus."""


class ChangedFiles(NamedTuple):
    """The data files that differ between two versions.

    Attributes:
        gone: the files that only the older version has.
        new: the files that only the newer version has.
    """

    gone: Collection[LogicalFile]
    new: Collection[LogicalFile]

    @property
    def has_deletion_vectors(self) -> bool:
        return any(file.deletion_vector for file in (*self.gone, *self.new))


class DeltaCommits(Generic[P]):
    """The commits of a table.

    Attributes:
        own: the version of cdc_lake's newest valid commit; none until `progress_at` has found it.
    """

    def __init__(self, spark: SparkSession, files: HadoopFiles, path: str) -> None:
        self._spark = spark
        self._files = files
        self._path = path
        self._seen: Any = None
        self.own: int | None = None

    def newest(self) -> int:
        """The newest version; -1 if there is no table."""
        return int(self.snapshot().version())

    def snapshot(self) -> Any:
        """Delta's newest snapshot, because a cached one may lack another run's commit.

        Raises:
            DamagedFileError: the log has a gap or an empty file, which Delta would read as a commit without actions.
        """
        jvm: Any = self._spark._jvm
        nothing = jvm.scala.Option.empty()
        with self._translated_damage():
            log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self._path)
            snapshot = log.update(False, nothing, nothing)
        # One text has all files: `getLen` would be a call into the JVM for each file, at each read of the log.
        if empty := _EMPTY_ENTRY.search(snapshot.logSegment().deltas().mkString("\n")):
            raise DamagedFileError(f"{self._path}/{LOG_FOLDER}/{empty[1]}", "the file is empty")
        self._seen = snapshot
        return snapshot

    def seen(self) -> Any:
        """The snapshot that was read last, for what commits of rows do not change. It saves listing the log."""
        is_of_a_table = self._seen is not None and self._seen.version() >= 0
        return self._seen if is_of_a_table else self.snapshot()

    def size(self) -> int:
        """Total bytes of the files of the version that was read last."""
        with self._translated_damage():  # Delta may read the whole log for it
            snapshot = self.seen()
            checksum = snapshot.checksumOpt()  # without the commit's checksum, Spark jobs count the files
            return int(checksum.get().tableSizeBytes() if checksum.isDefined() else snapshot.sizeInBytes())

    def properties(self, names: Collection[str]) -> dict[str, str]:
        """The values of these table properties, without those that are not set."""
        stored = self.seen().metadata().configuration()
        return {name: str(stored.apply(name)) for name in names if stored.contains(name)}

    def info(self, version: int) -> dict[str, Any] | None:
        """The `commitInfo` of a commit; none if the commit's file was cleaned up.

        Files may be long, and it is usually in the first line, so the rest is read only if needed.

        Raises:
            DamagedFileError: the file is not JSON.
        """
        file = self._file(version)
        line = self._files.first_line(file)
        if line is None:
            return None
        actions = [line] if line.startswith('{"commitInfo"') else self._files.read_text(file).split("\n")
        try:
            infos = [json.loads(action).get("commitInfo") for action in actions if '"commitInfo"' in action]
        except ValueError as exc:
            raise DamagedFileError(file, "the file is damaged") from exc
        return next((info for info in infos if info), {})

    def history(self) -> list[Version[P]]:
        """The versions in the log, newest first, including those whose files were vacuumed."""
        known = DeltaTable.forPath(self._spark, self._path).history()
        at_ms = F.unix_millis("timestamp")
        return [
            Version(version, at, self._progress(metadata))
            for version, at, metadata in known.select("version", at_ms, "userMetadata").collect()
        ]

    def version_at(self, at_ms: int) -> int | None:
        """See `Table`. Binary search over the commits' times, because a log may have hundreds of thousands."""
        version = bisect_right(range(self.newest() + 1), at_ms, key=self._committed_ms) - 1
        return version if version >= 0 and self._committed_ms(version) >= 0 else None

    def progress_at(self, version: int) -> P:
        """The progress of a version; see `Table.progress`.

        Raises:
            NoProgressError: none of the retained commits up to this version has progress.
        """
        ours, restores = self._walk_back(version, through_restores=False)
        if not restores:
            return ours
        restored, _ = self._walk_back(version, through_restores=True)
        # A RESTORE keeps Delta's transaction ids: it would silently skip a reused commit number.
        return restored.model_copy(update={"epoch": ours.epoch + restores, "commit": ours.commit})

    def progress_of(self, commit: int) -> P | None:
        """The progress of cdc_lake's commit with a number; none if the log does not have it."""
        version = self.newest()
        try:
            while (progress := self.progress_at(version)).commit > commit:
                version -= progress.commit - commit
        except NoProgressError:
            return None
        return progress if progress.commit == commit else None

    def nonce_of(self, commit: int) -> str | None:
        """The nonce of cdc_lake's commit with a number; none if the log does not have it.

        A version increases the number by at most one, so going back by the difference never skips it.
        """
        version = self.newest()
        try:
            while (progress := self.progress_at(version)).commit > commit:
                if progress.commit == commit + 1 and progress.follows:
                    return progress.follows
                version -= max(progress.commit - commit - 1, 1)
        except NoProgressError:
            return None
        return progress.nonce if progress.commit == commit else None

    def renamed(self, names: Collection[str], since: int, until: int) -> dict[str, str]:
        """Column names of a version -> the names that the commits after it up to another have given them."""
        now = {name: name for name in names}
        for version in range(since + 1, until + 1):
            info = self.info(version) or {}
            if info.get("operation") == "RENAME COLUMN":
                old, new = (info["operationParameters"][f"{which}ColumnPath"] for which in ("old", "new"))
                now = {name: new if current == old else current for name, current in now.items()}
        return now

    def changed_files(self, since: int, until: int) -> ChangedFiles:
        """The data files that differ between two versions.

        Raises:
            ExpiredError: the log no longer has a commit between them.
        """
        gone, new = set[LogicalFile](), set[LogicalFile]()
        for version in range(since + 1, until + 1):
            for action in self._actions(version):
                if removed := action.get("remove"):
                    _put(LogicalFile.of(removed), gone, new)
                if added := action.get("add"):
                    _put(LogicalFile.of(added), new, gone)
        return ChangedFiles(gone, new)

    def expired_error(self, what: str) -> ExpiredError:
        """The error of a version that the table no longer retains."""
        cure = "use a newer version; delta.deletedFileRetentionDuration sets how long files are retained"
        return ExpiredError(self._path, what, cure)

    def _file(self, version: int) -> str:
        return f"{self._path}/{LOG_FOLDER}/{version:020d}.json"

    def _actions(self, version: int) -> Iterator[dict[str, Any]]:
        """A commit's actions; a RESTORE may remove files and add them again."""
        try:
            text = self._files.read_text(self._file(version))
        except Py4JJavaError as exc:
            raise self.expired_error(f"the log no longer has the changes of version {version}") from exc
        return map(json.loads, text.splitlines())

    def _committed_ms(self, version: int) -> int:
        """Time of a commit; -1 if the log no longer has it."""
        return int((self.info(version) or {}).get("timestamp", -1))

    @staticmethod
    def _progress(metadata: str | None) -> P | None:
        return cast("P | None", Progress.from_metadata(metadata))

    def _walk_back(self, newest: int, *, through_restores: bool) -> tuple[P, int]:
        """The newest progress at or before a version, and the number of RESTOREs in between.

        Args:
            through_restores: continue from the version that a RESTORE restored, instead of the one before it.
        """
        version, restores = newest, 0
        while version >= 0 and (info := self.info(version)) is not None:
            progress = self._progress(info.get("userMetadata"))
            if progress is not None:
                self.own = version
                return progress, restores
            is_restore = info.get("operation") == "RESTORE"
            restores += is_restore
            version = self._restored(version, info) if is_restore and through_restores else version - 1
        raise NoProgressError(
            self._path,
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
        history = DeltaTable.forPath(self._spark, self._path).history()
        row = history.where((F.col("version") < version) & (F.col("timestamp") <= until)).agg(F.max("version")).first()
        return -1 if row is None or row[0] is None else int(row[0])

    @contextmanager
    def _translated_damage(self) -> Iterator[None]:
        try:
            yield
        except (PySparkException, Py4JJavaError) as exc:
            if known := log_damage_error(exc, self._files, self._path):
                raise known from exc
            raise


def _put(file: LogicalFile, here: set[LogicalFile], there: set[LogicalFile]) -> None:
    """Add a file to `here`, or remove it from `there`, because files that both versions have do not differ."""
    if file in there:
        there.remove(file)
    else:
        here.add(file)
