"""The files of a lake in a local folder, without Hadoop and a JVM."""

import os
import re
import uuid
from pathlib import Path
from typing import BinaryIO

from cdc_lake.errors import ConfigError
from cdc_lake.storage.exhaustion import exhaustion_error
from cdc_lake.storage.files import NO_ACCESS, Files, is_draft, write_whole

_CHECKSUM = re.compile(r"\..+\.crc")
"""Names of checksum files, which Hadoop writes and hides."""


def local_path(path: str) -> Path:
    """The local path of a Hadoop path, which does not use percent-encoding."""
    return Path(re.sub("^file:(//)?", "", path))


def local_names(folder: Path) -> list[str]:
    """Names of a folder's entries without checksums, sorted.

    Raises:
        OSError: it does not exist, or cannot be listed.
    """
    return sorted(name for name in os.listdir(folder) if not _CHECKSUM.fullmatch(name))


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

    def remove(self, path: str) -> None:
        """See `Files`. Its checksum is removed too."""
        file = local_path(path)
        for one in (file, file.with_name(f".{file.name}.crc")):
            one.unlink(missing_ok=True)

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
            todo = "allow the job's user to write, read and remove files there"
            raise exhaustion_error(path, exc, str(file.parent)) or ConfigError(
                path, f"it cannot be written: {exc.strerror}", todo
            ) from exc

    def _subfolders(self, folder: str) -> list[str]:
        return self.names(folder)
