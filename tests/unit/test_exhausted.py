"""Errors of full disks, too few files and too few threads are recognized, with the system's numbers."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lake.storage.exhaustion import exhaustion_error, scarcity_error

pytestmark = pytest.mark.core

SAYINGS = {
    "org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device": "free space or inodes there",
    "java.nio.file.FileSystemException: /scratch/blockmgr-1: No space left on device": "free space or inodes",
    "OSError: [Errno 122] Disk quota exceeded: '/lake/x'": "raise the quota",
    "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota of /lake is exceeded": "quota",
    "java.io.FileNotFoundException: /lake/x (Read-only file system)": "mount it writable",
    "java.io.FileNotFoundException: /jars/x.jar (Too many open files)": "`ulimit -n 65536`",
    "java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory": "`ulimit -u 65536`",
    'java.io.IOException: Cannot run program "python": error=11, Resource temporarily unavailable': "`ulimit -u 65536`",
    "can't start new thread": "`ulimit -u 65536`",
}
"""The messages of Java or Python in each case, and the cure."""


@pytest.mark.parametrize("said", SAYINGS)
def test_exhausted_resource_exits_10_and_names_the_fix(said: str) -> None:
    error = exhaustion_error("a.b.c", said, "/")

    assert error is not None and (error.exit_code, error.where) == (10, "a.b.c")
    assert SAYINGS[said] in error.cure


def test_other_failures_are_not_resource_exhaustion() -> None:
    assert exhaustion_error("a.b.c", "java.io.IOException: Connection reset by peer", "/") is None


def test_full_disk_names_the_file_system_and_its_free_bytes(tmp_path: Path) -> None:
    folder, mount = tmp_path / "lake" / "not" / "there", tmp_path
    while not os.path.ismount(mount):
        mount = mount.parent

    with pytest.raises(OSError) as raised:
        Path("/dev/full").write_text("text")
    error = exhaustion_error("a.b.c", raised.value, folder.as_uri(), "s3a://bucket/lake")

    size = os.statvfs(mount)
    assert error is not None
    assert f"No space left on device: {mount} (with {folder}) now has " in error.what
    assert f" of {size.f_blocks * size.f_frsize:,} bytes free" in error.what
    assert "s3a" not in error.what


@pytest.fixture
def few_files() -> Iterator[None]:
    """A process that may not open more files than it has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_many_open_files_names_the_limit(few_files: None) -> None:
    with pytest.raises(OSError) as raised:
        os.open("/dev/null", os.O_RDONLY)

    assert "it needs more open files than the system allows (`ulimit -n` is " in str(
        exhaustion_error("a.b", raised.value)
    )


@pytest.mark.parametrize(
    "said",
    [
        "java.io.IOException: Failed to create a temp directory (under /scratch) after 10 attempts!",
        "[DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/lake/bronze/a/_delta_log",
    ],
)
def test_failed_mkdir_counts_as_full_only_on_a_full_disk(said: str, tmp_path: Path) -> None:
    assert exhaustion_error("Spark", said, "/proc/sys") is not None  # of a file system without space
    assert exhaustion_error("Spark", said, str(tmp_path)) is None


def test_enough_resources_are_not_reported_as_scarce(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("cdc_lake.storage.exhaustion._MIN_LIMIT", 0)

    assert scarcity_error("Spark", str(tmp_path)) is None


START = """
import resource
from cdc_lake.cli.app import execute
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from cdc_lake import cli
from cdc_lake.spark.java import start_jvm
cli.app.app = lambda *_, **__: start_jvm()
execute()
"""


def test_jvm_with_256_open_files_exits_10_and_names_the_limit() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 10, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "error CDC-300 Spark's Java, which does not start: it needs more open files than the system allows "
        "(`ulimit -n` is 256); raise the limit of the job's user or container, for example "
        "`ulimit -n 65536`, then run again"
    )
