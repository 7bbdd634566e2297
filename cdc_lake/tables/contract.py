"""The tables of the lake: one contract, an engine behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from cdc_lake.tables.progress import Progress

P = TypeVar("P", bound=Progress)
"""The progress that a table's commits carry: that of its layer."""


@dataclass(frozen=True)
class Commit(Generic[P]):
    """A table's state after a write.

    Attributes:
        version: the engine's own number of it; another writer's maintenance may have raised it already.
        progress: what the table carries, as it was read back after the write.
    """

    version: int
    progress: P


@dataclass(frozen=True)
class Version(Generic[P]):
    """One of a table's versions.

    Attributes:
        version: as `Table.read` takes it.
        at_ms: when it was committed, in milliseconds since 1970.
        progress: what its commit carries; none of those that others made, such as maintenance.
    """

    version: int
    at_ms: int
    progress: P | None


class Table(Protocol[P]):
    """A table whose commits carry progress; `path` is its folder or URL."""

    path: str

    def exists(self) -> bool:
        """Whether the table has been created."""

    def recover(self, quiet_seconds: float) -> list[str]:
        """Remove what a killed run left incomplete, so that the table can be read and written again.

        Call it only while you hold the table's lease: otherwise another run may be writing these files.

        Args:
            quiet_seconds: leave files that changed in this time.

        Returns:
            What was done, in words.

        Raises:
            DamagedFileError: a commit is incomplete, and later ones build on it.
        """

    def id(self) -> str:
        """The engine's identity of the table, another one once it is deleted and created again."""

    def version(self) -> int:
        """The newest version."""

    def size(self) -> int:
        """Bytes of its files."""

    def held_as(self, kind: str) -> str:
        """The Spark type that a column of Spark type `kind` has in the table."""

    def progress(self, as_of: int | None = None) -> P | None:
        """What the table has consumed; none before it is created. Of an older version, what it said then.

        Read afresh from the newest commit of ours; what others committed since does not matter. After a RESTORE it is
        what the version brought back carried, with the highest commit number used so far and a new epoch: the next
        commit is `commit + 1`, whatever was undone.

        Raises:
            NoProgressError: the table has commits, and none that is left carries progress.
            UnsupportedError: the progress is of another version of cdc_lake.
        """

    def lost_columns(self) -> dict[str, str | None]:
        """The columns that the newest commit of ours had and that another program took away since, as far as the engine
        tells; to be asked after `progress`.

        Returns:
            By name the one that the column was renamed to; none if it was removed.
        """

    def schema(self) -> StructType:
        """All columns as they are stored: the engine's own, and those that it is partitioned by, too."""

    def partition_folders(self) -> list[str]:
        """The partitions by the names of their folders, where readers have to be told of them; else none."""

    def read(self, as_of: int | None = None) -> DataFrame:
        """The rows, of the newest version or of `as_of`."""

    def history(self) -> list[Version[P]]:
        """The versions that the engine still knows of, the newest first."""

    def has(self, version: int) -> bool:
        """Whether a version can be read, all of its files included."""

    def version_at(self, at_ms: int) -> int | None:
        """The newest version that was committed at or before a time.

        Args:
            at_ms: milliseconds since 1970.

        Returns:
            None if none was, as far as the engine still knows. Whether it can be read, `has` says.
        """

    def differing(self, since: int, until: int) -> tuple[DataFrame, DataFrame]:
        """The rows of two versions, as far as they are in files that only one of them has.

        Among them are rows that both versions have: whoever needs the others only leaves those out. The rows of a
        version that is no more than files put together are all alike.

        Args:
            since, until: two of `history`.

        Raises:
            ExpiredError: the engine has let one of them go.
        """

    def overwrite(self, rows: DataFrame, progress: P) -> Commit[P]:
        """Put rows in the place of all there are, in one commit; the first creates the table.

        The versions before can still be read. The rows' schema becomes the table's, whatever it was.

        Args:
            rows: the table's columns; of silver `__key`, too.
            progress: what the table has consumed with this.

        Raises:
            TableLockedError: another run has committed or created the table first; nothing was changed.
        """

    def merge(self, changes: DataFrame, keys: Sequence[str], progress: P) -> Commit[P]:
        """Bring rows to their new state in one commit; the first merge creates the table.

        Args:
            changes: the table's columns, at most one row per key, and `__key`, `__keep`, `__delete`. Columns that the
                table does not have are added to it, in the same commit.
            keys: the primary key.
            progress: what the table has consumed with this.

        Raises:
            TableLockedError: another run has committed first; nothing was changed.
        """

    def advance(self, progress: P) -> Commit[P]:
        """Commit progress without rows.

        Args:
            progress: what the table has consumed with this.

        Raises:
            TableLockedError: another run has committed first.
        """

    def maintain(self) -> dict[str, int]:
        """Put small files and logs together, and remove the files that no version needs that can still be read.

        The rows, and what the table has consumed, stay the same.

        Returns:
            What was done, by name: `files_written` in the place of smaller ones, `bytes_removed`. Nothing of what the
            engine does with each commit.

        Raises:
            TableLockedError: another run has committed meanwhile.
        """


def progress_of(table: Table[P]) -> P:
    """The progress of a table that exists: the first commit of each table carries one.

    Raises:
        NoProgressError: none of the commits left carries progress.
    """
    progress = table.progress()
    assert progress is not None, f"{table.path} was listed as a table"
    return progress
