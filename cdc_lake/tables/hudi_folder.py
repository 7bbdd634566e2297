"""The metadata folder of a Hudi table: its properties, and the repair of files that a killed run left incomplete."""

from collections.abc import Mapping

from cdc_lake.errors import DamagedFileError, IncompleteWriteError
from cdc_lake.storage.hadoop import Storage
from cdc_lake.tables.hudi_timeline import any_instant, incomplete_files, is_removable
from cdc_lake.tables.newest import HUDI_CHECKSUM, METADATA_FOLDER

_PROPERTIES_FILE = f"{METADATA_FOLDER}/hoodie.properties"
_BACKUP_FILE = f"{_PROPERTIES_FILE}.backup"


class HudiFolder:
    """The metadata folder."""

    def __init__(self, storage: Storage, path: str, *, is_version_6: bool) -> None:
        self.path = path
        self._storage = storage
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
        found = self.properties()
        if found is not None:
            return found
        if not self._is_begun():
            return None
        if not self._storage.exists(file := f"{self.path}/{_PROPERTIES_FILE}"):
            raise DamagedFileError(file, "the file is missing")
        return {}

    def timeline(self) -> dict[str, int]:
        """The timeline's files: name -> size in bytes."""
        return self._storage.sizes(self._timeline)

    def modified_ms(self, name: str) -> int:
        """Modification time of a file of the timeline, in milliseconds since 1970."""
        found = self._storage.modified_ms(f"{self._timeline}/{name}")
        assert found is not None, "the instant is on the timeline"
        return found

    def check_complete(self) -> None:
        """Check once per object that no file is incomplete; after that, only this object writes.

        Raises:
            IncompleteWriteError: a file is incomplete.
        """
        if self._is_complete:
            return
        files = self._incomplete(self.timeline())
        if self._is_halfway_changed():
            files.append(_PROPERTIES_FILE)
        if files:
            raise IncompleteWriteError(
                self.path,
                f"{files[0]} is incomplete: a run is writing it, or was killed while it wrote it",
                "read again; if that does not help, run the job that writes this table: it repairs the table",
            )
        self._is_complete = True

    def recover(self) -> list[str]:
        """Repair the files that a killed run left incomplete; see `Table.recover`."""
        done = []
        timeline = self.timeline()
        if self._is_halfway_changed():
            backup = self._storage.read_text(f"{self.path}/{_BACKUP_FILE}")
            self._storage.replace(f"{self.path}/{_PROPERTIES_FILE}", backup)
            done.append(f"restored {_PROPERTIES_FILE} from Hudi's backup: a killed run was changing it")
        elif self._is_halfway_created():
            self._storage.remove_folder(self._folder)
            done.append(f"removed {METADATA_FOLDER}: a killed run had not finished creating the table")
        for name in self._incomplete(timeline):
            file = f"{self._timeline}/{name}"
            if not is_removable(name, timeline):
                raise DamagedFileError(file, "the file is incomplete, and later commits build on it")
            self._storage.remove(file)
            done.append(f"removed {name}: a killed run had not finished writing it")
        return done

    def _properties_in(self, file: str) -> dict[str, str] | None:
        lines = (self._storage.read_bytes(f"{self.path}/{file}") or b"").decode(errors="replace").splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        return found if HUDI_CHECKSUM in found else None

    def _is_begun(self) -> bool:
        """Whether the timeline of any table version has an action."""
        return any(any_instant(self._storage.sizes(folder)) for folder in self._timelines)

    def _is_halfway_changed(self) -> bool:
        """Whether the properties are complete only in the backup that Hudi makes before it changes them."""
        return self._properties_in(_PROPERTIES_FILE) is None and self.properties() is not None

    def _is_halfway_created(self) -> bool:
        """Whether there is a folder without complete properties and without any action."""
        return self._storage.exists(self._folder) and self.properties() is None and not self._is_begun()

    def _incomplete(self, timeline: Mapping[str, int]) -> list[str]:
        if self._storage.is_atomic(self.path):
            return []
        return incomplete_files(timeline, lambda name: self._storage.read_bytes(f"{self._timeline}/{name}"))
