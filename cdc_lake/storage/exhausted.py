"""What this machine can run out of: space on a disk, open files, threads. Java and Python report it as text."""

import os
import re
import resource
from collections.abc import Iterable
from pathlib import Path

from cdc_lake.errors import InfrastructureError

_FULL = "No space left on device"
_SPACE = {
    _FULL: "free some space or inodes there",
    "Disk quota exceeded": "free some space there, or raise the quota",
    "QuotaExceededException": "free some space there, or raise the quota of the folder in HDFS",
    "Read-only file system": "mount it writable",
}
_FILES = "Too many open files"
_THREADS = re.compile(r"unable to create native thread|can't start new thread|Resource temporarily unavailable")
_NOT_CREATED = re.compile(
    r"Failed to create a temp directory|No usable temporary directory|DELTA_CANNOT_CREATE_LOG_PATH"
    r"|Mkdirs failed to create"
)
"""What Spark, Python, Delta and Hadoop say where a folder cannot be created, for any reason."""
TEMPORARY = "/tmp"
"""Java's own folder; it ignores TMPDIR."""
_FEW = 1024
"""A JVM with Spark's jars alone has more than 256 files open, and some hundred threads."""
_LITTLE_BYTES = 1 << 20


def exhausted(where: str, error: object, *folders: str) -> InfrastructureError | None:
    """The error of what has run out, if that is why something failed; none if it failed for another reason.

    Args:
        where: what was being worked on.
        error: what was raised, or what was said of it.
        folders: those that were written to. What is not on this machine is left out.
    """
    said = str(error)
    if found := next((sign for sign in _SPACE if sign in said), None):
        return _no_space(where, found, folders)
    if _FILES in said:
        return _too_few(where, "open files", "-n", resource.RLIMIT_NOFILE)
    if _THREADS.search(said):
        return _too_few(where, "processes and threads", "-u", resource.RLIMIT_NPROC)
    return _full(where, folders) if _NOT_CREATED.search(said) else None


def scarce(where: str, *folders: str) -> InfrastructureError | None:
    """The error of what there is too little of for a JVM, if that is so; for where a failure has no words.

    Args:
        where, folders: see `exhausted`.
    """
    for of, flag, limit in (("open files", "-n", resource.RLIMIT_NOFILE), ("threads", "-u", resource.RLIMIT_NPROC)):
        most = resource.getrlimit(limit)[1]
        if most != resource.RLIM_INFINITY and most < _FEW:
            return _too_few(where, of, flag, limit)
    return _full(where, folders)


def _full(where: str, folders: Iterable[str]) -> InfrastructureError | None:
    return _no_space(where, _FULL, folders) if any(fs.is_full for fs in _file_systems(folders)) else None


def _too_few(where: str, of: str, flag: str, limit: int) -> InfrastructureError:
    most = resource.getrlimit(limit)[1]
    told = "unlimited here" if most == resource.RLIM_INFINITY else f"{most}"
    return InfrastructureError(
        where,
        f"it needs more {of} than the system allows (`ulimit {flag}` is {told})",
        f"raise the limit of the job's user or container, as in `ulimit {flag} 65536`, then run again",
    )


def _no_space(where: str, sign: str, folders: Iterable[str]) -> InfrastructureError:
    told = sorted(_file_systems(folders), key=lambda fs: fs.free_bytes)
    what = ": ".join(filter(None, (sign, ", ".join(map(str, told)))))
    return InfrastructureError(where, what, f"{_SPACE[sign]}, then run again")


class _FileSystem:
    """A file system of this machine, as it is now.

    Attributes:
        free_bytes: what an ordinary user can still write.
        is_full: whether nothing can be created there.
    """

    def __init__(self, mount: Path, folders: Iterable[str]) -> None:
        self._mount, self._folders = mount, folders
        found = os.statvfs(mount)
        self._is_read_only = bool(found.f_flag & os.ST_RDONLY)
        self._has_no_inodes = bool(found.f_files) and not found.f_favail
        self._bytes = found.f_blocks * found.f_frsize
        self.free_bytes = found.f_bavail * found.f_frsize
        self.is_full = self._is_read_only or self._has_no_inodes or self.free_bytes < _LITTLE_BYTES

    def __str__(self) -> str:
        has = f"{self.free_bytes:,} of {self._bytes:,} bytes free"
        if self._has_no_inodes:
            has += ", no inodes free"
        if self._is_read_only:
            has += ", read-only"
        return f"{self._mount} (with {' and '.join(self._folders)}) now has {has}"


def _file_systems(folders: Iterable[str]) -> list[_FileSystem]:
    """Those that hold these folders."""
    by_mount: dict[Path, list[str]] = {}
    for folder in folders:
        path = re.sub("^file:(//)?", "", folder)
        if ":" in path.partition("/")[0]:
            continue
        mount = Path(path).absolute()
        while not os.path.ismount(mount):
            mount = mount.parent
        by_mount.setdefault(mount, []).append(path)
    return [_FileSystem(mount, held) for mount, held in by_mount.items()]
