"""The completed commits of a Hudi table, from its timeline, and the metadata in cdc_lake's commits."""

from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, cast

from pyspark.sql import SparkSession

from cdc_lake.errors import ExpiredError, NoProgressError
from cdc_lake.tables.contract import P, Version
from cdc_lake.tables.hudi_folder import WRITTEN, HudiFolder, milliseconds
from cdc_lake.tables.newest import TABLE_ID
from cdc_lake.tables.progress import METADATA_KEY, Progress

_BUCKETS = f"{METADATA_KEY}.buckets"
_ARRAYS = f"{METADATA_KEY}.arrays"
_ARE_SAFE = "safe"
"""Marks commits of tables in which no file loses arrays when Hudi copies its rows; see `has_short_decimals`."""
_LOG = ".log."
"""Part of the names of merge-on-read's log files."""


class OwnCommit(NamedTuple, Generic[P]):
    """A commit of cdc_lake.

    Attributes:
        newest: the timeline's newest instant of any action.
        buckets: number of buckets per partition; none if rows are looked up.
        keeps_arrays: whether no file loses arrays when Hudi copies its rows.
        restores: number of restores after it.
    """

    progress: P
    table_id: str
    newest: str
    buckets: int | None
    keeps_arrays: bool
    restores: int


def commit_metadata(progress: Progress, table_id: str, buckets: int | None) -> dict[str, str]:
    """Hudi's settings with which a write stores an `OwnCommit`; new files never lose arrays."""
    return {
        METADATA_KEY: progress.to_metadata(),
        TABLE_ID: table_id,
        _BUCKETS: str(buckets or ""),
        _ARRAYS: _ARE_SAFE,
    }


class HudiCommits(Generic[P]):
    """The completed commits that are not archived."""

    def __init__(self, spark: SparkSession, folder: HudiFolder, *, is_version_6: bool) -> None:
        self._spark = spark
        self._folder = folder
        self._is_version_6 = is_version_6

    def newest_version(self) -> int | None:
        """The newest version; none if there is no table."""
        newest = next(self._written(self._timeline()), None)
        return None if newest is None else int(newest.requestedTime())

    def own(self, as_of: int | None = None) -> OwnCommit[P] | None:
        """The newest commit with progress, at or before a version; none if there is no table.

        Raises:
            NoProgressError: no commit has progress.
        """
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
            metadata = timeline.readCommitMetadata(instant).getExtraMetadata()
            if (progress := self._progress(metadata)) is not None:
                buckets, keeps_arrays = metadata.get(_BUCKETS), metadata.get(_ARRAYS) == _ARE_SAFE
                table_id = metadata.get(TABLE_ID)
                return OwnCommit(progress, table_id, newest, int(buckets) if buckets else None, keeps_arrays, restores)
        if not written:
            return None
        raise NoProgressError(
            self._folder.path,
            "none of the commits on its timeline has progress",
            "restore a savepoint with progress, or rebuild the table",
        )

    def history(self) -> list[Version[P]]:
        """The versions, newest first, without those that were cleaned up."""
        timeline = self._timeline()
        versions: list[Version[P]] = []
        oldest = ""
        for instant in self._instants(timeline):
            action, at = instant.getAction(), instant.requestedTime()
            if action == "clean":
                oldest = oldest or timeline.readCleanMetadata(instant).getEarliestCommitToRetain() or ""
            elif action in WRITTEN and at >= oldest:
                progress = self._progress(timeline.readCommitMetadata(instant).getExtraMetadata())
                versions.append(Version(int(at), self._completed_ms(instant), progress))
        return versions

    def check_readable(self, *versions: int) -> None:
        """Check that versions can be read.

        Raises:
            ExpiredError: one of them was cleaned up.
        """
        known = [commit.version for commit in self.history()]
        if missing := set(versions) - set(known):
            raise ExpiredError(
                self._folder.path,
                f"it does not have version {min(missing)}; the versions from {known[-1]} to {known[0]} can be read",
                "use one of these; hoodie.clean.commits.retained sets how many are retained",
            )

    def groups_written(self, since: int, until: int) -> set[str] | None:
        """The ids of the file groups written after `since` up to `until`; none if file groups were replaced."""
        timeline = self._timeline()
        groups: set[str] = set()
        for instant in self._written(timeline):
            if not since < int(instant.requestedTime()) <= until:
                continue
            if instant.getAction() == "replacecommit":
                return None
            groups.update(stat.getFileId() for stat in timeline.readCommitMetadata(instant).getWriteStats())
        return groups

    def has_logs(self) -> bool:
        """Whether there are logs that are not compacted yet."""
        timeline = self._timeline()
        for instant in self._written(timeline):
            commit = timeline.readCommitMetadata(instant)
            if any(_LOG in stat.getPath() for stat in commit.getWriteStats()):
                return True
            # After a compaction or overwrite there are no older logs; clustering may leave some.
            if instant.getAction() != "deltacommit" and commit.getOperationType().name() != "CLUSTER":
                return False
        return False

    def files_written(self) -> int:
        """The number of files that the newest commit wrote."""
        timeline = self._timeline()
        return len(timeline.readCommitMetadata(next(self._written(timeline))).getWriteStats())

    def _completed_ms(self, instant: Any) -> int:
        """The completion time of a commit. The instant's name is its start time, which is seconds earlier."""
        if not self._is_version_6:
            return milliseconds(instant.getCompletionTime())
        # Version 6 has only the file's modification time, which Hudi returns in the JVM's time zone.
        return self._folder.modified_ms(f"{instant.requestedTime()}.{instant.getAction()}")

    @staticmethod
    def _progress(metadata: Any) -> P | None:
        return cast("P | None", Progress.from_metadata(metadata.get(METADATA_KEY)))

    def _timeline(self) -> Any:
        """Hudi's timeline with the completed instants; none if there is no table."""
        if self._folder.properties() is None:
            return None
        self._folder.check_complete()
        jvm: Any = self._spark._jvm
        conf = self._spark._jsc.hadoopConfiguration()
        builder = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
        builder = builder.setConf(jvm.org.apache.hudi.hadoop.fs.HadoopFSUtils.getStorageConf(conf))
        return builder.setBasePath(self._folder.path).build().getActiveTimeline().filterCompletedInstants()

    @staticmethod
    def _instants(timeline: Any) -> Iterator[Any]:
        """The timeline's instants, newest first."""
        if timeline is None:
            return
        instants = timeline.getReverseOrderedInstants().iterator()
        while instants.hasNext():
            yield instants.next()

    def _written(self, timeline: Any) -> Iterator[Any]:
        """The instants that wrote rows, newest first."""
        return (instant for instant in self._instants(timeline) if instant.getAction() in WRITTEN)
