"""The files of a lake: in any store, and in a local folder, without Hadoop and a JVM.

Files are written as drafts: a file becomes visible only when it is complete.
"""

import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cdc_lake.errors import ConfigError
from cdc_lake.storage.exhaustion import exhaustion_error

NO_ACCESS = "allow the job's user to write, read and remove files there, or set another root; nothing was read"
"""What to do if a run cannot write to the lake."""
_DRAFT = re.compile(r".+\.[0-9a-f]+\.tmp")
"""Names of files that are being written, or whose writer was killed."""
_CHECKSUM = re.compile(r"\..+\.crc")
"""Names of checksum files, which Hadoop writes and hides."""


class Files(ABC):
    """Small files, and parts of large ones: `LocalFiles` without Spark, or `HadoopFiles`."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is a file or folder at `path`."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Names of a folder's entries without drafts, sorted; empty if the folder does not exist."""

    @abstractmethod
    def size(self, folder: str) -> int:
        """Total bytes of the files below a folder."""

    @abstractmethod
    def modified_ms(self, path: str) -> int | None:
        """Modification time of a file on the store's clock; None if it does not exist."""

    @abstractmethod
    def read_bytes(self, path: str) -> bytes | None:
        """The content of a file; None if it does not exist."""

    @abstractmethod
    def read_text(self, path: str) -> str:
        """The whole text of a file."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open a file for random access."""

    @abstractmethod
    def write_once(self, path: str, text: str) -> None:
        """Write a file whose name determines its content; an existing file is not changed."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def holds(self, folder: str, *entries: str) -> bool:
        """Whether a folder contains one of these entries."""
        return any(self.exists(f"{folder}/{entry}") for entry in entries)

    def folders(self, root: str, *entries: str) -> Iterator[str]:
        """The folders below `root` that contain one of these entries, as relative paths, sorted."""
        for name in self._subfolders(root):
            below = f"{root}/{name}"
            if self.holds(below, *entries):
                yield name
            else:
                yield from (f"{name}/{deeper}" for deeper in self.folders(below, *entries))

    @abstractmethod
    def _subfolders(self, folder: str) -> Iterable[str]:
        """Names of the folders in a folder, sorted; may include files if excluding them takes time."""


class LocalFiles(Files):
    """Files by local path, or by Hadoop's path of a local file."""

    @classmethod
    def of(cls, root: str) -> "LocalFiles | None":
        """The files of a lake; None unless its root is certainly a local folder.

        Args:
            root: the lake's root from the settings.
        """
        scheme, has_scheme, _ = root.partition("/")[0].partition(":")
        if has_scheme:
            return cls() if scheme == "file" else None
        # Hadoop's configuration decides what a path without a scheme means.
        return None if os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR") else cls()

    def names(self, folder: str) -> list[str]:
        """See `Files`. Checksums are hidden, and a folder that cannot be read is empty."""
        try:
            return [name for name in local_names(local_path(folder)) if not is_draft(name)]
        except OSError:
            return []

    def read_bytes(self, path: str) -> bytes | None:
        try:
            return local_path(path).read_bytes()
        except FileNotFoundError:
            return None

    def read_text(self, path: str) -> str:
        return local_path(path).read_text(encoding="utf-8")

    def open(self, path: str) -> BinaryIO:
        return local_path(path).open("rb")

    def check_access(self, root: str) -> None:
        """Check that files can be written, read and removed in a lake's root, with a file of a unique name.

        Raises:
            ConfigError: one of the operations fails.
            InfrastructureError: the disk is full.
        """
        file = local_path(root) / f"_access-{uuid.uuid4().hex}"
        try:
            write_whole(file, file.name)  # an empty file can be written to a full disk
            file.read_bytes()
            file.unlink()
        except OSError as exc:
            where, what = f"lake.root: {root}", f"a file there cannot be written: {exc.strerror}"
            raise exhaustion_error(where, exc, root) or ConfigError(where, what, NO_ACCESS) from exc

    def exists(self, path: str) -> bool:
        return local_path(path).exists()

    def size(self, folder: str) -> int:
        """See `Files`. Checksums do not count."""
        files = local_path(folder).rglob("*")
        return sum(file.stat().st_size for file in files if file.suffix != ".crc" and file.is_file())

    def modified_ms(self, path: str) -> int | None:
        file = local_path(path)
        return file.stat().st_mtime_ns // 1_000_000 if file.exists() else None

    def remove(self, path: str) -> None:
        """See `Files`. Its checksum is removed too."""
        file = local_path(path)
        for entry in (file, file.with_name(f".{file.name}.crc")):
            entry.unlink(missing_ok=True)

    def write_once(self, path: str, text: str) -> None:
        """See `Files`.

        Raises:
            ConfigError: the file cannot be written.
            InfrastructureError: the disk is full.
        """
        file = local_path(path)
        if file.exists():
            return
        try:
            write_whole(file, text)
        except OSError as exc:
            cure = "allow the job's user to write, read and remove files there"
            raise exhaustion_error(path, exc, str(file.parent)) or ConfigError(
                path, f"it cannot be written: {exc.strerror}", cure
            ) from exc

    def _subfolders(self, folder: str) -> list[str]:
        return self.names(folder)


def local_path(path: str) -> Path:
    """The local path of a Hadoop path, which does not use percent-encoding."""
    return Path(re.sub("^file:(//)?", "", path))


def local_names(folder: Path) -> list[str]:
    """Names of a folder's entries without checksums, sorted.

    Raises:
        OSError: it does not exist, or cannot be listed.
    """
    return sorted(name for name in os.listdir(folder) if not _CHECKSUM.fullmatch(name))


def is_draft(name: str) -> bool:
    """Whether a file name is a draft's: the file is being written, or its writer was killed."""
    return bool(_DRAFT.fullmatch(name))


def draft_of(path: str) -> str:
    """A new path for the draft of a file."""
    return f"{path}.{uuid.uuid4().hex}.tmp"


def write_whole(file: Path, text: str) -> None:
    """Create or replace a local file atomically, with its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(draft_of(str(file)))
    with removed_on_failure(draft):
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)


@contextmanager
def removed_on_failure(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        with suppress(OSError):
            file.unlink()
        raise
