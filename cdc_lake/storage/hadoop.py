"""The files of a lake by Hadoop: local folders, HDFS and object stores."""

import io
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc_lake.aws import S3_SCHEMES, ConditionalPuts
from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.storage.exhaustion import exhaustion_error
from cdc_lake.storage.files import (
    NO_ACCESS,
    Files,
    draft_of,
    is_draft,
    local_names,
    local_path,
    removed_on_failure,
    write_whole,
)

_WHOLE_OBJECTS = (*S3_SCHEMES, "gs")
"""Stores in which a file appears complete when it is closed, and in which renaming copies."""
_UNREACHABLE = ("ConnectException", "NoRouteToHost", "SocketTimeout", "ConnectTimeout", "UnknownHost", "AWSClientIO")
"""Errors of Hadoop's file systems if a store cannot be reached; other errors are responses of the store."""

ACCESS_DENIED = ("AccessDeniedException", "AccessControlException", "403 Forbidden", "401 Unauthorized")
"""Errors of Hadoop's file systems if a store denies access: S3 and local folders, HDFS, HTTP stores."""

_FILE_STATUS = re.compile(r"FileStatus\{path=(.*?); isDirectory=false; .*?\bmodification_time=(\d+);")


@contextmanager
def translated(where: str, what: str, cure: str, folder: str) -> Iterator[None]:
    """Translate a store's errors to cdc_lake's.

    Raises:
        ConfigError: the store rejects the operation.
        InfrastructureError: the store does not respond, or is full.
    """
    try:
        yield
    except (Py4JJavaError, OSError) as exc:
        if error := exhaustion_error(where, exc, folder):
            raise error from exc
        message = message_of(exc)[:300]
        if any(sign in message for sign in _UNREACHABLE):
            raise InfrastructureError(where, f"the store does not respond: {message}", "run again") from exc
        raise ConfigError(where, f"{what}: {message}", cure) from exc


def message_of(error: Exception) -> str:
    """The first line of an error's message; of Java's errors with their class, and without what py4j adds."""
    message = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return str(message).strip().splitlines()[0]


class HadoopFiles(Files):
    """Files, accessed through Hadoop's file systems."""

    def __init__(self, spark: SparkSession) -> None:
        self._use(spark._jvm, spark._jsc.hadoopConfiguration())

    @classmethod
    def of(cls, jvm: Any, conf: Any) -> "HadoopFiles":
        """The files without a session."""
        files = cls.__new__(cls)
        files._use(jvm, conf)
        return files

    def _use(self, jvm: Any, conf: Any) -> None:
        self._jvm = jvm
        self._conf = conf
        self._puts: dict[str, ConditionalPuts] = {}
        self._path = jvm.org.apache.hadoop.fs.Path  # once: py4j makes a call for each part of a class name

    def check_access(self, root: str) -> None:
        """Check that files can be written, read and removed there, with a file of a unique name.

        Raises:
            ConfigError: one of the operations fails.
            InfrastructureError: the store does not respond, or is full.
        """
        path = f"{root}/_access-{uuid.uuid4().hex}"
        for doing, do in (
            ("written", lambda: self._create(path, path, overwrite=False)),
            ("read", lambda: self.read_text(path)),
            ("removed", lambda: self._fs(path).delete(self._path(path), False)),
        ):
            with translated(f"lake.root: {root}", f"a file there cannot be {doing}", NO_ACCESS, root):
                do()

    def exists(self, path: str) -> bool:
        if local := self._local(path):
            return os.path.exists(local)
        return bool(self._fs(path).exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        return [name for name in self.names_with_drafts(folder) if not is_draft(name)]

    def names_with_drafts(self, folder: str) -> list[str]:
        """Names of a folder's entries, sorted; empty if the folder does not exist."""
        if local := self._local(folder):
            try:
                return local_names(local)
            except FileNotFoundError:
                return []
        return sorted(status.getPath().getName() for status in self._listed(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes in bytes of a folder's files, by name; empty if the folder does not exist."""
        return {status.getPath().getName(): status.getLen() for status in self._listed(folder) if status.isFile()}

    def is_atomic(self, path: str) -> bool:
        """Whether files appear in this store only when they are complete."""
        return self._scheme(path) in _WHOLE_OBJECTS

    def below(self, folder: str) -> Iterator[tuple[str, int]]:
        """Paths of the files below a folder, each with its modification time in ms."""
        if not self.exists(folder):
            return
        if local := self._local(folder):  # Hadoop starts a process `ls` for each file
            for file in local.rglob("*"):
                if file.is_file():
                    yield f"{folder}/{file.relative_to(local)}", file.stat().st_mtime_ns // 1_000_000
            return
        statuses = self._fs(folder).listFiles(self._path(folder), True)
        listed = self._jvm.org.apache.hadoop.util.functional.RemoteIterators.toList(statuses)
        # From one text, as no API returns all paths and times at once: ten thousand files would take calls of 5 s.
        statuses = _FILE_STATUS.findall(listed.toString())
        assert len(statuses) == listed.size(), "Hadoop changed the text of FileStatus"
        yield from ((path, int(modified_ms)) for path, modified_ms in statuses)

    def read_text(self, path: str) -> str:
        with closing(self._fs(path).open(self._path(path))) as stream:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text

    def read_bytes(self, path: str) -> bytes | None:
        """See `Files`. Also None if the file does not match its checksum."""
        try:
            with closing(self._fs(path).open(self._path(path))) as stream:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        except Py4JJavaError as exc:
            if _is(exc, "FileNotFoundException") or _is(exc, "ChecksumException"):
                return None
            raise

    def open(self, path: str) -> BinaryIO:
        fs, at = self._fs(path), self._path(path)
        status = fs.getFileStatus(at)
        stream = fs.openFile(at).withFileStatus(status).build().get()  # saves S3 another request for the length
        return cast(BinaryIO, _HadoopStream(stream, status.getLen(), self._jvm.org.apache.commons.io.IOUtils))

    def first_line(self, path: str) -> str | None:
        """The first line of a file; None if the file does not exist or is empty."""
        try:
            with closing(self._fs(path).open(self._path(path))) as stream:
                reader = self._jvm.java.io.BufferedReader(self._jvm.java.io.InputStreamReader(stream, "UTF-8"))
                line: str | None = reader.readLine()
                return line
        except Py4JJavaError as exc:
            if _is(exc, "FileNotFoundException"):
                return None
            raise

    def write_once(self, path: str, text: str) -> None:
        if self.exists(path):
            return
        if local := self._local(path):
            write_whole(local, text)
        elif self.is_atomic(path):
            self._create(path, text, overwrite=True)
        else:
            draft = draft_of(path)
            self._create(draft, text, overwrite=False)
            self._publish(draft, path)

    def create_exclusively(self, path: str, text: str) -> bool:
        """Create a file; false if it exists. Of concurrent callers exactly one gets true.

        A reader may see the file empty for a moment.

        Raises:
            InstallationError: the lake is on S3, and boto3 is not installed.
        """
        if self._scheme(path) in S3_SCHEMES:  # Hadoop's `create` is not atomic there
            return self._conditional_puts(urlsplit(path).netloc).put(path, text)
        local = self._local(path)
        try:
            if local is None:
                self._create(path, text, overwrite=False)
            else:  # Hadoop's `create` is not atomic here either
                local.parent.mkdir(parents=True, exist_ok=True)
                with local.open("x", encoding="utf-8") as file, removed_on_failure(local):
                    file.write(text)
                    file.flush()
        except FileExistsError:
            return False
        except Py4JJavaError as exc:
            if _is(exc, "FileAlreadyExistsException"):
                return False
            raise
        return True

    def replace(self, path: str, text: str) -> None:
        """Create or replace a file; atomic only in a local folder with free space, else a reader may see it empty."""
        local = self._local(path)
        if local is None:
            self._create(path, text, overwrite=True)
            return
        try:
            write_whole(local, text)
        except OSError:
            if not local.exists() or local.stat().st_size < len(text.encode()):
                raise
            with local.open("r+", encoding="utf-8") as file:  # overwriting needs no space on a full disk
                file.write(text)
                file.truncate()

    def remove(self, path: str) -> None:
        self._fs(path).delete(self._path(path), False)

    def remove_folder(self, path: str) -> None:
        self._fs(path).delete(self._path(path), True)

    def modified_ms(self, path: str) -> int | None:
        """Modification time of a file on the store's clock; None if it does not exist."""
        return int(self._fs(path).getFileStatus(self._path(path)).getModificationTime()) if self.exists(path) else None

    def size(self, folder: str) -> int:
        return int(self._fs(folder).getContentSummary(self._path(folder)).getLength())

    def _subfolders(self, folder: str) -> list[str]:
        return sorted(status.getPath().getName() for status in self._listed(folder) if status.isDirectory())

    def _listed(self, folder: str) -> list[Any]:
        try:
            return list(self._fs(folder).listStatus(self._path(folder)))
        except Py4JJavaError as exc:
            if _is(exc, "FileNotFoundException"):
                return []
            raise

    def _create(self, path: str, text: str, *, overwrite: bool) -> None:
        stream = self._fs(path).create(self._path(path), overwrite)
        try:
            with closing(stream):
                stream.write(bytearray(text, "utf-8"))
        except Py4JJavaError:
            if not overwrite:
                self.remove(path)
            raise

    def _conditional_puts(self, bucket: str) -> ConditionalPuts:
        if bucket not in self._puts:
            self._puts[bucket] = ConditionalPuts(self._conf, bucket)
        return self._puts[bucket]

    def _scheme(self, path: str) -> str:
        scheme: str = self._fs(path).getUri().getScheme()
        return scheme

    def _local(self, path: str) -> Path | None:
        """The local path, without a call to the JVM; None if the file system is not local."""
        scheme, has_scheme, _ = path.partition("/")[0].partition(":")
        return local_path(path) if (scheme == "file" if has_scheme else self._is_local_by_default) else None

    @cached_property
    def _is_local_by_default(self) -> bool:
        """Whether paths without a scheme are local."""
        return bool(self._path("/").getFileSystem(self._conf).getUri().getScheme() == "file")

    def _publish(self, draft: str, path: str) -> None:
        fs = self._fs(path)
        try:
            renamed = fs.rename(self._path(draft), self._path(path))
        except Py4JJavaError:
            renamed = False
        if not renamed:
            fs.delete(self._path(draft), False)
            if not self.exists(path):
                raise OSError(f"{path} could not be written")

    def _fs(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._conf)


class _HadoopStream(io.RawIOBase):
    def __init__(self, stream: Any, length: int, utils: Any) -> None:
        self._stream, self._length, self._utils = stream, length, utils
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        number = max(min(len(buffer), self._length - self._at), 0)
        self._stream.seek(self._at)
        buffer[:number] = self._utils.toByteArray(self._stream, number)
        self._at += number
        return number

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def _is(exc: Py4JJavaError, name: str) -> bool:
    return bool(exc.java_exception.getClass().getSimpleName() == name)
