"""The metadata folder of a Hudi table: its properties, its timeline, and the repair of files that a killed run left.

Hudi 1.0 writes its files in place on local disks, and every Hudi release does so on other stores that show a file
before it is closed. A killed writer leaves them empty or truncated. docs/decisions/hudi.md lists the consequences.
A commit's name is the time on the writer's clock, and names order the commits.
"""

import io
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from fastavro import block_reader

from cdc_lake.errors import DamagedFileError, IncompleteWriteError, InfrastructureError
from cdc_lake.points import time_text
from cdc_lake.storage.hadoop import HadoopFiles

METADATA_FOLDER = ".hoodie"
"""Metadata folder of Hudi tables."""
HUDI_CHECKSUM = "hoodie.table.checksum"
"""Key in every complete file of a Hudi table's properties."""
_PROPERTIES_FILE = f"{METADATA_FOLDER}/hoodie.properties"
_BACKUP_FILE = f"{_PROPERTIES_FILE}.backup"
WRITTEN = frozenset({"commit", "deltacommit", "replacecommit"})
"""The actions that write rows."""
_FILE = re.compile(r"(?P<at>\d+)(_\d+)?\.(?P<action>\w+?)(\.(?P<state>requested|inflight))?")
_WITHOUT_PLAN = frozenset({"commit", "deltacommit"})
"""Actions with empty requests."""
_NOT_READ = frozenset({"restore"})
"""Spark does not read it. If it is removed, Hudi rejects writes until the restore is repeated."""
_AVRO = b"Obj\x01"
MAX_SECONDS_AHEAD = 10.0
"""A write waits if the newest instant is at most this far ahead of this machine's clock."""


class HudiFolder:
    def __init__(self, files: HadoopFiles, path: str, *, is_version_6: bool) -> None:
        self.path = path
        self._files = files
        self._folder = f"{path}/{METADATA_FOLDER}"
        self._timelines = (self._folder, f"{self._folder}/timeline")
        self._timeline = self._timelines[0 if is_version_6 else 1]
        self._is_complete = False

    def properties(self) -> dict[str, str] | None:
        """The table's properties; none until they are completely written."""
        return self._properties_in(_PROPERTIES_FILE) or self._properties_in(_BACKUP_FILE)

    def stored_properties(self) -> dict[str, str] | None:
        """The properties of an existing table; none if the table is new.

        They are empty if another program created the table with an older Hudi, which writes no checksum.

        Raises:
            DamagedFileError: the properties file is missing.
        """
        properties = self.properties()
        if properties is not None:
            return properties
        if not self._is_begun():
            return None
        if not self._files.exists(file := f"{self.path}/{_PROPERTIES_FILE}"):
            raise DamagedFileError(file, "the file is missing")
        return {}

    def timeline(self) -> dict[str, int]:
        """The timeline's files: name -> size in bytes."""
        return self._files.sizes(self._timeline)

    def modified_ms(self, name: str) -> int:
        """Modification time of a file of the timeline, in milliseconds since 1970."""
        modified_ms = self._files.modified_ms(f"{self._timeline}/{name}")
        assert modified_ms is not None, "the instant is on the timeline"
        return modified_ms

    def check_complete(self) -> None:
        """Check once per object that no file is incomplete; after that, only this object writes.

        Raises:
            IncompleteWriteError: a file is incomplete.
        """
        if self._is_complete:
            return
        incomplete = self._incomplete(self.timeline())
        if self._is_halfway_changed():
            incomplete.append(_PROPERTIES_FILE)
        if incomplete:
            raise IncompleteWriteError(
                self.path,
                f"{incomplete[0]} is incomplete: a run is writing it, or was killed while it wrote it",
                "read again; if that does not help, run the job that writes this table: it repairs the table",
            )
        self._is_complete = True

    def recover(self) -> list[str]:
        """Repair the files that a killed run left incomplete; see `Table.recover`."""
        done = []
        timeline = self.timeline()
        if self._is_halfway_changed():
            backup = self._files.read_text(f"{self.path}/{_BACKUP_FILE}")
            self._files.replace(f"{self.path}/{_PROPERTIES_FILE}", backup)
            done.append(f"restored {_PROPERTIES_FILE} from Hudi's backup: a killed run was changing it")
        elif self._is_halfway_created():
            self._files.remove_folder(self._folder)
            done.append(f"removed {METADATA_FOLDER}: a killed run had not finished creating the table")
        for name in self._incomplete(timeline):
            file = f"{self._timeline}/{name}"
            if not is_removable(name, timeline):
                raise DamagedFileError(file, "the file is incomplete, and later commits build on it")
            self._files.remove(file)
            done.append(f"removed {name}: a killed run had not finished writing it")
        return done

    def _properties_in(self, file: str) -> dict[str, str] | None:
        lines = (self._files.read_bytes(f"{self.path}/{file}") or b"").decode(errors="replace").splitlines()
        properties = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        return properties if HUDI_CHECKSUM in properties else None

    def _is_begun(self) -> bool:
        """Whether the timeline of any table version has an action."""
        return any(_FILE.fullmatch(name) for folder in self._timelines for name in self._files.sizes(folder))

    def _is_halfway_changed(self) -> bool:
        """Whether the properties are complete only in the backup that Hudi makes before it changes them."""
        return self._properties_in(_PROPERTIES_FILE) is None and self.properties() is not None

    def _is_halfway_created(self) -> bool:
        """Whether there is a folder without complete properties and without any action."""
        return self._files.exists(self._folder) and self.properties() is None and not self._is_begun()

    def _incomplete(self, timeline: Mapping[str, int]) -> list[str]:
        if self._files.is_atomic(self.path):
            return []
        return incomplete_files(timeline, lambda name: self._files.read_bytes(f"{self._timeline}/{name}"))


def incomplete_files(sizes: Mapping[str, int], read: Callable[[str], bytes | None]) -> list[str]:
    """The incomplete files, oldest first.

    Only files that a kill may have truncated are read: requests without a later state, and each action's newest commit.

    Args:
        sizes: names and sizes in bytes of the timeline's files.
        read: returns a file's content; none if it does not match its checksum.
    """
    files = [match for name in sorted(sizes, reverse=True) if (match := _FILE.fullmatch(name))]
    followed = {file["at"] for file in files if file["state"] != "requested"}
    newest: set[str] = set()
    incomplete = []
    for file in files:
        name, action = file[0], file["action"]
        if file["state"] == "requested":
            is_suspect = action not in _WITHOUT_PLAN and file["at"] not in followed
        elif _is_inflight(file):
            is_suspect = False
        else:
            is_suspect = action not in _NOT_READ and (action not in newest or not sizes[name])
            newest.add(action)
        if is_suspect and not _is_complete(read(name)):
            incomplete.append(name)
    return incomplete[::-1]


def others_since(names: Iterable[str], since: str, named: Iterable[str]) -> set[str]:
    """The commits, complete or not, that other writers began after an instant.

    Args:
        names: the timeline's files.
        since: the newest instant before this writer began.
        named: the instants in this writer's error; those after `since` are its own. Without them, only complete
            commits are certain to be of others.
    """
    own = {at for at in named if at > since}
    files = [match for name in names if (match := _FILE.fullmatch(name)) and match["at"] > since]
    commits = [file for file in files if file["action"] in WRITTEN or (_is_inflight(file) and not file["state"])]
    is_complete = (file["state"] is None and not _is_inflight(file) for file in commits)
    return {file["at"] for file, complete in zip(commits, is_complete, strict=True) if complete or own} - own


def is_removable(name: str, names: Iterable[str]) -> bool:
    """Whether removing this incomplete file restores the table's state before the write.

    Requests can always be removed, and a clean is repeated. A commit can be removed if Hudi has its inflight file, so
    that it rolls the commit back, and no later commit builds on it.
    """
    files = [match for other in names if (match := _FILE.fullmatch(other))]
    (own,) = (file for file in files if file[0] == name)
    if own["state"] == "requested" or own["action"] not in WRITTEN:
        return True
    is_begun = any(file["at"] == own["at"] and _is_inflight(file) for file in files)
    is_last = not any(file["at"] > own["at"] and file["state"] is None and file["action"] in WRITTEN for file in files)
    return is_begun and is_last


def _is_inflight(file: re.Match[str]) -> bool:
    return "inflight" in (file["state"], file["action"])  # a commit's file is `<time>.inflight`


def _is_complete(content: bytes | None) -> bool:
    if not content:
        return False
    try:
        if content.startswith(b"{"):  # a commit of table version 6
            json.loads(content)
        elif content.startswith(_AVRO):
            return any(block.num_records for block in block_reader(io.BytesIO(content)))
    except Exception:  # for truncated files, fastavro can raise any exception
        return False
    return True


def milliseconds(instant: str) -> int:
    """The time of an instant such as `20261122192503833`, which is in UTC, in milliseconds since 1970."""
    moment = datetime.strptime(instant[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000 + int(instant[14:] or 0)


def wait_until_past(path: str, instant: str) -> None:
    """Wait until this machine's clock is past an instant, because Hudi hides a commit that seems older than another.

    Args:
        instant: the newest instant of the table.

    Raises:
        InfrastructureError: the instant is too far ahead; the clocks are not synchronized.
    """
    newest_ms, now_ms = milliseconds(instant), time.time() * 1000
    if newest_ms < now_ms:
        return
    if newest_ms - now_ms > MAX_SECONDS_AHEAD * 1000:
        raise InfrastructureError(
            path,
            f"its newest commit is of {time_text(newest_ms)}, but this machine's clock is at {time_text(now_ms)}: Hudi "
            "would hide new commits behind it",
            "synchronize the clocks of all machines that write this table. If they are right, run again after "
            f"{time_text(newest_ms)}",
        )
    time.sleep((newest_ms - now_ms + 1) / 1000)
