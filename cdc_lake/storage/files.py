"""The files of a lake in any store, and their drafts: a file becomes visible only when it is complete."""

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

NO_ACCESS = "allow the job's user to write, read and remove files there, or set another root; nothing was read"
"""What to do if a run cannot write to the lake."""
_DRAFT = re.compile(r".+\.[0-9a-f]+\.tmp")
"""Names of files that are being written, or whose writer was killed."""


class Files(ABC):
    """Small files, and parts of large ones: `LocalFiles` without Spark, or Hadoop's `Storage`."""

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
    """Remove a local file if writing it fails."""
    try:
        yield
    except OSError:
        with suppress(OSError):
            file.unlink()
        raise
