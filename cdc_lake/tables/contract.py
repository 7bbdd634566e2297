"""The contract of the lake's tables, for Delta, Hudi and Iceberg."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import DELETE, KEEP
from cdc_lake.errors import TableLockedError, UnknownTableError
from cdc_lake.tables.progress import Progress

P = TypeVar("P", bound=Progress)
"""The type of progress in a table's commits, which depends on its layer."""


@dataclass(frozen=True)
class Commit(Generic[P]):
    """A table's state after a write.

    Attributes:
        version: the newest version; another writer's maintenance may already have increased it.
        progress: the table's progress, read back after the write.
        notes: what else changed, for the report.
    """

    version: int
    progress: P
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Changes:
    """Rows to upsert and delete in one merge, at most one per key.

    Attributes:
        rows: the table's columns, new ones included, and `__delete` boolean, whether to delete the row; `__keep`
            array<string>, the columns that keep the stored row's value; for Hudi `__key`, the key's canonical text.
        keys: the primary key's columns.
        are_inserts: whether the table has none of the keys, and none is deleted.
    """

    rows: DataFrame
    keys: Sequence[str]
    are_inserts: bool = False

    @classmethod
    def of(cls, rows: DataFrame, keys: Sequence[str]) -> Self:
        """Changes that delete and keep nothing, unless the rows have `__delete` or `__keep`."""
        nothing = {DELETE: F.lit(False), KEEP: F.array().cast("array<string>")}
        return cls(rows.withColumns({name: nothing[name] for name in nothing if name not in rows.columns}), keys)

    def upserts(self) -> DataFrame:
        """The rows that are not deleted, without `__delete` and `__keep`."""
        return self.rows.where(~F.col(DELETE)).drop(DELETE, KEEP)


@dataclass(frozen=True)
class Version(Generic[P]):
    """A version of a table.

    Attributes:
        at_ms: time of its commit, in milliseconds since 1970.
        progress: the commit's progress; none for commits of other programs and of maintenance.
    """

    version: int
    at_ms: int
    progress: P | None


class Table(Protocol[P]):
    """A table whose commits store progress.

    Attributes:
        path: its folder or URL.
        sql_name: its name in statements for another program.
    """

    path: str
    sql_name: str

    def exists(self) -> bool:
        """Whether the table exists."""

    def recover(self) -> list[str]:
        """Remove incomplete files of killed runs, so that the table can be read and written again.

        Call it only while you hold the table's lease: otherwise another run may be writing these files.

        Returns:
            Descriptions of the repairs.

        Raises:
            DamagedFileError: a commit is incomplete, and later ones build on it.
        """

    def id(self) -> str:
        """The table's unique id, which changes if it is deleted and re-created."""

    def version(self) -> int:
        """The newest version."""

    def size(self) -> int:
        """Total bytes of its files."""

    def stored_type(self, spark_type: str) -> str:
        """The Spark type with which the table stores a column of type `spark_type`."""

    def progress(self, as_of: int | None = None) -> P | None:
        """The progress of the newest version, or of `as_of`; none before the table is created.

        It is read from the newest commit of cdc_lake; later commits of other programs do not matter. After a RESTORE it
        is the restored version's progress with the highest commit number used so far and a new epoch, so that the next
        commit is `commit + 1`.

        Raises:
            NoProgressError: none of the table's retained commits has progress.
            UnsupportedError: another version of cdc_lake wrote the progress.
        """

    def lost_columns(self) -> dict[str, str | None]:
        """The columns that other programs removed after cdc_lake's newest commit, if the log shows this. Call
        `progress` first.

        Returns:
            Removed column -> its new name; none if it was dropped.
        """

    def schema(self) -> StructType:
        """All stored columns, including the table format's and partition columns."""

    def partition_folders(self) -> list[str]:
        """Folder names of the partitions, if catalogs must list them; else empty."""

    def read(self, as_of: int | None = None) -> DataFrame:
        """The rows of the newest version, or of `as_of`."""

    def history(self) -> list[Version[P]]:
        """The versions in the table's log, newest first."""

    def has(self, version: int) -> bool:
        """Whether a version and all its files can be read."""

    def version_at(self, at_ms: int) -> int | None:
        """The newest version that was committed at or before a time.

        Args:
            at_ms: milliseconds since 1970.

        Returns:
            None if the log has no such version. Check with `has` whether it can be read.
        """

    def differing(self, since: int, until: int) -> tuple[DataFrame, DataFrame]:
        """The rows of two versions in files that only one of them has.

        They include rows that both versions have, for example in compacted files.

        Args:
            since, until: versions in `history`.

        Raises:
            ExpiredError: the table no longer retains one of them.
        """

    def overwrite(self, rows: DataFrame, progress: P) -> Commit[P]:
        """Replace all rows and the schema in one commit; the first commit creates the table.

        Earlier versions can still be read.

        Args:
            rows: the table's columns; for silver also `__key`.

        Raises:
            TableLockedError: another run has committed or created the table first. This commit was not made.
        """

    def merge(self, changes: Changes, progress: P) -> Commit[P]:
        """Upsert and delete rows in one commit, which also adds new columns; the first merge creates the table.

        Raises:
            TableLockedError: another run has committed first. This commit was not made.
        """

    def advance(self, progress: P) -> Commit[P]:
        """Commit progress without rows.

        Raises:
            TableLockedError: another run has committed first.
        """

    def maintain(self) -> dict[str, int]:
        """Compact small files and logs, and remove the files of versions past retention.

        Rows and progress do not change. Time travel to versions past retention is lost.

        Returns:
            Counts by name: `files_written` by compaction, and `bytes_removed`. Maintenance that is part of each commit
            does not count.

        Raises:
            TableLockedError: another run has committed concurrently.
        """


def progress_of(table: Table[P], as_of: int | None = None) -> P:
    """The progress of a table, now or at a version; the first commit of each table has progress.

    Raises:
        NoProgressError: none of the table's retained commits has progress.
        UnknownTableError: there is no commit, for example because a run was killed during the first write.
    """
    progress = table.progress(as_of)
    if progress is None:
        raise UnknownTableError(table.path, "the table has no commit yet", "run the job that writes it first")
    return progress


def conflict_error(path: str, progress: Progress, by: str) -> TableLockedError:
    """The error of a commit before which another run has committed.

    Args:
        by: the other run.
    """
    return TableLockedError(
        path,
        f"{by} committed before batch {progress.commit} of this run",
        "the batch was not committed; run again when the other run has ended",
    )


def compaction_conflict_error(path: str) -> TableLockedError:
    """The error of a compaction during which another run has committed."""
    return TableLockedError(
        path,
        "another run committed during compaction",
        "its files were not changed; run again when the other run has ended",
    )


def read_back(table: Table[P], progress: P, locked: Callable[[str], TableLockedError]) -> Commit[P]:
    """Read the table's newest progress after a write, and check that it is that of the write.

    Args:
        locked: makes the error, given the name of the run that committed first.

    Raises:
        TableLockedError: another run committed first, so that the write was lost.
    """
    newest = table.progress()
    if newest is None or newest.nonce != progress.nonce:
        raise locked(f"run {newest.run_id}" if newest else "another run")
    return Commit(table.version(), newest)
