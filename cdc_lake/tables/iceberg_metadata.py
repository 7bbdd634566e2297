"""The metadata of an Iceberg table: its snapshots, and the progress in cdc_lake's commits.

Iceberg writes all metadata to a new JSON file at each commit, and the catalog has the path of the newest one. Spark and
`cdc_lake.tables.newest` read the same file, so this module needs neither. Source: the Iceberg table spec, appendix C.

A table's version is the sequence number of a snapshot, because the ids of snapshots are random.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, cast

from cdc_lake.errors import NoProgressError
from cdc_lake.tables.contract import P, Version
from cdc_lake.tables.progress import METADATA_KEY, Progress

ICEBERG_FOLDER = "_iceberg"
"""Folder of an Iceberg table's metadata. Iceberg's default, `metadata`, may be the last part of a topic's name."""
_MAIN = "main"


@dataclass(frozen=True)
class Snapshot:
    """A commit of a table.

    Attributes:
        summary: what it did; in cdc_lake's commits also the progress.
    """

    id: int
    parent: int | None
    version: int
    schema_id: int
    summary: Mapping[str, str]

    @property
    def progress(self) -> Progress | None:
        """cdc_lake's progress; None in commits of other programs and of maintenance."""
        return Progress.from_metadata(self.summary.get(METADATA_KEY))


class IcebergMetadata(Generic[P]):
    """A metadata file's content."""

    def __init__(self, path: str, content: Mapping[str, Any]) -> None:
        self._path = path
        self._content = content

    @property
    def table_id(self) -> str:
        return str(self._content["table-uuid"])

    @property
    def location(self) -> str:
        return str(self._content["location"])

    @property
    def properties(self) -> Mapping[str, str]:
        properties: Mapping[str, str] = self._content.get("properties", {})
        return properties

    def has_ref(self, name: str) -> bool:
        """Whether the table has a branch or tag."""
        return name in self._content.get("refs", {})

    @property
    def current(self) -> Snapshot | None:
        """The newest version's snapshot; None until the first commit."""
        main = self._content.get("refs", {}).get(_MAIN)
        return main and self.snapshots.get(main["snapshot-id"])

    @cached_property
    def snapshots(self) -> dict[int, Snapshot]:
        """All snapshots by id, including those that were written and never published."""
        return {
            one["snapshot-id"]: Snapshot(
                id=one["snapshot-id"],
                parent=one.get("parent-snapshot-id"),
                version=one["sequence-number"],
                schema_id=one.get("schema-id", 0),
                summary=one["summary"],
            )
            for one in self._content.get("snapshots", ())
        }

    def at(self, version: int) -> Snapshot | None:
        """The snapshot of a published version, if the table retains it."""
        published = (snapshot for snapshot, _ in self._log if snapshot.version == version)
        return next(published, None)

    def history(self) -> list[Version[P]]:
        """The versions, newest first."""
        versions: dict[int, Version[P]] = {}
        for one, at_ms in self._log:
            versions.setdefault(one.version, Version(one.version, at_ms, cast("P | None", one.progress)))
        return sorted(versions.values(), key=lambda version: -version.version)

    def version_at(self, at_ms: int) -> int | None:
        earlier = [snapshot.version for snapshot, committed_ms in self._log if committed_ms <= at_ms]
        return earlier[-1] if earlier else None

    def own(self, snapshot: Snapshot | None) -> Snapshot | None:
        """cdc_lake's newest commit at or before a snapshot; None if the table does not retain one."""
        while snapshot is not None and snapshot.progress is None:
            snapshot = None if snapshot.parent is None else self.snapshots.get(snapshot.parent)
        return snapshot

    def progress(self, snapshot: Snapshot) -> P:
        """The progress of a snapshot; see `Table.progress`.

        Example: after the commits 1, 2 and 3, a user rolls the table back to 1. The log has the snapshots 1, 2, 3, 1.
        The rows are those of commit 1, the next commit's number is 4, and the epoch increases by one.

        Raises:
            NoProgressError: neither it nor a retained ancestor has progress.
        """
        own = self.own(snapshot)
        if own is None:
            raise NoProgressError(
                self._path,
                f"none of its retained snapshots up to version {snapshot.version} has progress",
                "roll back to a snapshot with progress, or rebuild the table",
            )
        progress = cast(P, own.progress)
        log = [one for one, _ in self._log]
        if snapshot != self.current:
            log = log[: max(number for number, one in enumerate(log) if one == snapshot) + 1]
        if all(before.version < after.version for before, after in pairwise(log)):
            return progress
        last = next(one for one in sorted(log, key=lambda one: -one.version) if one.progress is not None)
        assert last.progress is not None, "see above"
        restores = sum(after.version < before.version for before, after in pairwise(log[log.index(last) :]))
        newest = {"epoch": last.progress.epoch + restores, "commit": last.progress.commit}
        return progress.model_copy(update=newest) if restores else progress

    def column_names(self, schema_id: int | None = None) -> dict[int, str]:
        """Field id -> name of the columns of a schema (default: the current one)."""
        wanted = self._content["current-schema-id"] if schema_id is None else schema_id
        (schema,) = (one for one in self._content["schemas"] if one["schema-id"] == wanted)
        return {field["id"]: field["name"] for field in schema["fields"]}

    def partitions(self) -> list[tuple[str, str]]:
        """The column and the transform of each partition field."""
        names = self.column_names()
        (spec,) = (
            one for one in self._content["partition-specs"] if one["spec-id"] == self._content["default-spec-id"]
        )
        return [(names[field["source-id"]], field["transform"]) for field in spec["fields"]]

    @property
    def _log(self) -> Iterator[tuple[Snapshot, int]]:
        """The snapshots that were the newest version, in order, and when they became it, ms."""
        for entry in self._content.get("snapshot-log", ()):
            if (snapshot := self.snapshots.get(entry["snapshot-id"])) is not None:
                yield snapshot, entry["timestamp-ms"]
