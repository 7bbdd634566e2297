"""Recognize exhausted disks, open files and threads in the messages of Java and Python."""

import os
import re
import resource
from collections.abc import Iterable
from pathlib import Path

from cdc_lake.errors import InfrastructureError

_FULL = "No space left on device"
_SPACE = {
    _FULL: "free space or inodes there",
    "Disk quota exceeded": "free space there, or raise the quota",
    "QuotaExceededException": "free space there, or raise the folder's quota in HDFS",
    "Read-only file system": "mount it writable",
}
_THREADS = re.compile(r"unable to create native thread|can't start new thread|Resource temporarily unavailable")
_NOT_CREATED = re.compile(
    r"Failed to create a temp directory|No usable temporary directory|DELTA_CANNOT_CREATE_LOG_PATH"
    r"|Mkdirs failed to create"
)
"""Errors of Spark, Python, Delta and Hadoop if a folder cannot be created, for any reason."""
TEMPORARY = "/tmp"
"""Java's temporary folder; it ignores TMPDIR."""
_MIN_LIMIT = 1024
"""A JVM with Spark's jars has more than 256 open files, and hundreds of threads."""
_MIN_FREE_BYTES = 1 << 20


def exhaustion_error(where: str, error: object, *folders: str) -> InfrastructureError | None:
    """The error of an exhausted resource, if that caused a failure; none for other causes.

    Args:
        folders: the folders that were written to. URLs of other machines are ignored.
    """
    message = str(error)
    if space_sign := next((sign for sign in _SPACE if sign in message), None):
        return _space_error(where, space_sign, folders)
    if "Too many open files" in message:
        return _limit_error(where, "open files", "-n", resource.RLIMIT_NOFILE)
    if _THREADS.search(message):
        return _limit_error(where, "processes and threads", "-u", resource.RLIMIT_NPROC)
    return _full_disk_error(where, folders) if _NOT_CREATED.search(message) else None


def scarcity_error(where: str, *folders: str) -> InfrastructureError | None:
    """The error of a resource whose limit is too low for a JVM, if there is one; for failures without a message.

    Args:
        where, folders: see `exhaustion_error`.
    """
    for of, flag, limit in (("open files", "-n", resource.RLIMIT_NOFILE), ("threads", "-u", resource.RLIMIT_NPROC)):
        maximum = resource.getrlimit(limit)[1]
        if maximum != resource.RLIM_INFINITY and maximum < _MIN_LIMIT:
            return _limit_error(where, of, flag, limit)
    return _full_disk_error(where, folders)


def _full_disk_error(where: str, folders: Iterable[str]) -> InfrastructureError | None:
    return _space_error(where, _FULL, folders) if any(fs.is_full for fs in _file_systems(folders)) else None


def _limit_error(where: str, of: str, flag: str, limit: int) -> InfrastructureError:
    maximum = resource.getrlimit(limit)[1]
    value = "unlimited here" if maximum == resource.RLIM_INFINITY else f"{maximum}"
    return InfrastructureError(
        where,
        f"it needs more {of} than the system allows (`ulimit {flag}` is {value})",
        f"raise the limit of the job's user or container, for example `ulimit {flag} 65536`, then run again",
    )


def _space_error(where: str, sign: str, folders: Iterable[str]) -> InfrastructureError:
    fullest_first = sorted(_file_systems(folders), key=lambda fs: fs.free_bytes)
    what = ": ".join(filter(None, (sign, ", ".join(map(str, fullest_first)))))
    return InfrastructureError(where, what, f"{_SPACE[sign]}, then run again")


class _FileSystem:
    """The current state of a local file system.

    Attributes:
        free_bytes: free for ordinary users.
        is_full: whether no file can be created.
    """

    def __init__(self, mount: Path, folders: Iterable[str]) -> None:
        self._mount, self._folders = mount, folders
        stats = os.statvfs(mount)
        self._is_read_only = bool(stats.f_flag & os.ST_RDONLY)
        self._has_no_inodes = bool(stats.f_files) and not stats.f_favail
        self._bytes = stats.f_blocks * stats.f_frsize
        self.free_bytes = stats.f_bavail * stats.f_frsize
        self.is_full = self._is_read_only or self._has_no_inodes or self.free_bytes < _MIN_FREE_BYTES

    def __str__(self) -> str:
        has = f"{self.free_bytes:,} of {self._bytes:,} bytes free"
        if self._has_no_inodes:
            has += ", no inodes free"
        if self._is_read_only:
            has += ", read-only"
        return f"{self._mount} (with {' and '.join(self._folders)}) now has {has}"


def _file_systems(folders: Iterable[str]) -> list[_FileSystem]:
    by_mount: dict[Path, list[str]] = {}
    for folder in folders:
        path = re.sub("^file:(//)?", "", folder)
        if ":" in path.partition("/")[0]:
            continue
        mount = Path(path).absolute()
        while not os.path.ismount(mount):
            mount = mount.parent
        by_mount.setdefault(mount, []).append(path)
    return [_FileSystem(mount, paths) for mount, paths in by_mount.items()]
