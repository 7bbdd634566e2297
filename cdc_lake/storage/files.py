"""Files of the lake, small ones (schemas, run reports, commits) and parts of large ones, wherever Hadoop's file systems
reach: a folder, HDFS, S3.
"""

import io
import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc_lake.aws import S3_SCHEMES
from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.storage.exhausted import exhausted
from cdc_lake.storage.s3 import ConditionalPuts

_WHOLE_OBJECTS = (*S3_SCHEMES, "gs")
"""Of stores where a file is there, whole, once it is closed, and where renaming one is copying it."""
_NO_ANSWER = ("ConnectException", "NoRouteToHost", "SocketTimeout", "ConnectTimeout", "UnknownHost", "AWSClientIO")
"""What Hadoop's file systems raise when a store cannot be reached; all else that they raise is its answer."""

ACCESS_DENIED = ("AccessDeniedException", "AccessControlException", "403 Forbidden", "401 Unauthorized")
"""What they raise when a store refuses the credentials: S3 and local folders, HDFS, and stores reached by HTTP."""

_CHECKSUM = re.compile(r"\..+\.crc")
"""The name of a file's checksum, which Hadoop writes and does not show."""
_DRAFT = re.compile(r".+\.[0-9a-f]+\.tmp")
"""The name of a file that is being written under another name, or whose writer was killed."""
_FILE_STATUS = re.compile(r"FileStatus\{path=(.*?); isDirectory=false; .*?\bmodification_time=(\d+);")


@contextmanager
def answering(where: str, what: str, todo: str, folder: str) -> Iterator[None]:
    """Say what a store refuses to do in our words.

    Args:
        where, what, todo: of the error.
        folder: where it is done.

    Raises:
        ConfigError: it refuses what is done inside.
        InfrastructureError: it does not answer, or is full.
    """
    try:
        yield
    except Py4JJavaError as exc:
        if error := exhausted(where, exc, folder):
            raise error from exc
        said = exc.java_exception.toString().splitlines()[0][:300]
        if any(sign in said for sign in _NO_ANSWER):
            raise InfrastructureError(where, f"the store does not answer: {said}", "try again") from exc
        raise ConfigError(where, f"{what}: {said}", todo) from exc


class _Files(ABC):
    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is a file or folder at `path`."""

    def holds(self, folder: str, *entries: str) -> bool:
        """Whether a folder has an entry of one of these names."""
        return any(self.exists(f"{folder}/{entry}") for entry in entries)


class LocalFiles(_Files):
    """The files of a lake in a local folder, without Hadoop, and so without a JVM."""

    @classmethod
    def of(cls, root: str) -> "LocalFiles | None":
        """Those of a lake; none if only Hadoop can say where it is.

        Args:
            root: the lake's, as the settings have it.
        """
        scheme, has_scheme, _ = root.partition("/")[0].partition(":")
        if has_scheme:
            return cls() if scheme == "file" else None
        # What a path without a scheme means, Hadoop's settings say.
        return None if os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR") else cls()

    def path(self, path: str) -> Path:
        """For Python. Hadoop takes `%20` and the like as they are."""
        return Path(re.sub("^file:(//)?", "", path))

    def names(self, folder: str) -> list[str]:
        """The names of a folder's files but drafts and Hadoop's checksums, sorted; none if there is no such folder, or
        it cannot be read.
        """
        try:
            there = os.listdir(self.path(folder))
        except OSError:
            return []
        return sorted(name for name in there if not (is_draft(name) or _CHECKSUM.fullmatch(name)))

    def read_bytes(self, path: str) -> bytes:
        """The content of a file."""
        return self.path(path).read_bytes()

    def read_text(self, path: str) -> str:
        """The whole text of a file."""
        return self.path(path).read_text(encoding="utf-8")

    def open(self, path: str) -> BinaryIO:
        """A file, to read parts of it."""
        return self.path(path).open("rb")

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder at `path`."""
        return self.path(path).exists()

    def folders(self, root: str, *holding: str) -> Iterator[str]:
        """The folders at or below `root` that hold an entry of one of these names, as paths relative to it, sorted."""
        for name in self.names(root):
            below = f"{root}/{name}"
            if self.holds(below, *holding):
                yield name
            else:
                yield from (f"{name}/{deeper}" for deeper in self.folders(below, *holding))

    def size(self, folder: str) -> int:
        """Bytes of all files at and below a folder, without Hadoop's checksums."""
        files = self.path(folder).rglob("*")
        return sum(file.stat().st_size for file in files if file.suffix != ".crc" and file.is_file())

    def remove(self, path: str) -> None:
        """Remove a file, and Hadoop's checksum of it; one that is not there is no error."""
        file = self.path(path)
        for one in (file, file.with_name(f".{file.name}.crc")):
            one.unlink(missing_ok=True)

    def write_once(self, path: str, text: str) -> None:
        """Write a file whose name says what it holds: one that is there already is left as it is.

        Raises:
            ConfigError: it cannot be written.
            InfrastructureError: there is no space for it.
        """
        file = self.path(path)
        if file.exists():
            return
        try:
            _write_whole(file, text)
        except OSError as exc:
            todo = "let the job's user write, read and remove files there"
            raise exhausted(path, exc, str(file.parent)) or ConfigError(
                path, f"it cannot be written: {exc.strerror}", todo
            ) from exc


class Storage(_Files):
    """Reads and writes small text files by Hadoop path."""

    def __init__(self, spark: SparkSession) -> None:
        self._use(spark._jvm, spark._jsc.hadoopConfiguration())

    @classmethod
    def of(cls, jvm: Any, conf: Any) -> "Storage":
        """The same without a session.

        Args:
            conf: Hadoop's configuration.
        """
        storage = cls.__new__(cls)
        storage._use(jvm, conf)
        return storage

    def _use(self, jvm: Any, conf: Any) -> None:
        self._jvm = jvm
        self._conf = conf
        self._puts: dict[str, ConditionalPuts] = {}
        self._path = jvm.org.apache.hadoop.fs.Path  # once: finding a class takes a call for each dot

    def check_access(self, root: str) -> None:
        """See that files can be written, read and removed there, on one that nothing else knows of.

        Raises:
            ConfigError: one of them cannot be done.
            InfrastructureError: the store does not answer, or is full.
        """
        path = f"{root}/_access-{uuid.uuid4().hex}"
        for doing, do in (
            ("written", lambda: self._create(path, path, overwrite=False)),
            ("read", lambda: self.read_text(path)),
            ("removed", lambda: self._fs(path).delete(self._path(path), False)),
        ):
            todo = "let the job's user write, read and remove files there, or name another place; nothing was read"
            with answering(f"lake.root: {root}", f"a file there cannot be {doing}", todo, root):
                do()

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder at `path`."""
        return bool(self._fs(path).exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        """The names in a folder without drafts, sorted; none when it does not exist."""
        return [name for name in self.names_with_drafts(folder) if not is_draft(name)]

    def names_with_drafts(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none when it does not exist."""
        return sorted(status.getPath().getName() for status in self._listed(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """The files in a folder by name, in bytes; none when it does not exist."""
        return {status.getPath().getName(): status.getLen() for status in self._listed(folder) if status.isFile()}

    def is_atomic(self, path: str) -> bool:
        """Whether a file appears in this store only once it is complete."""
        return self._scheme(path) in _WHOLE_OBJECTS

    def files(self, folder: str) -> Iterator[tuple[str, int]]:
        """The files at and below a folder, each with when it was written, ms."""
        if not self.exists(folder):
            return
        if local := self._local(folder):  # Hadoop starts `ls` for each of these
            for file in local.rglob("*"):
                if file.is_file():
                    yield f"{folder}/{file.relative_to(local)}", file.stat().st_mtime_ns // 1_000_000
            return
        found = self._fs(folder).listFiles(self._path(folder), True)
        listed = self._jvm.org.apache.hadoop.util.functional.RemoteIterators.toList(found)
        # All in one text: to ask each for its path and time would take a minute for ten thousand.
        told = _FILE_STATUS.findall(listed.toString())
        assert len(told) == listed.size(), "Hadoop writes a file's status in other words"
        yield from ((path, int(modified_ms)) for path, modified_ms in told)

    def read_text(self, path: str) -> str:
        """The whole text of a file."""
        stream = self._fs(path).open(self._path(path))
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def read_bytes(self, path: str) -> bytes | None:
        """The content of a file; none when it does not exist, or does not match its checksum."""
        try:
            stream = self._fs(path).open(self._path(path))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()
        except Py4JJavaError as exc:
            if _is(exc, "FileNotFoundException") or _is(exc, "ChecksumException"):
                return None
            raise

    def open(self, path: str) -> BinaryIO:
        """A file, to read parts of it."""
        fs, at = self._fs(path), self._path(path)
        status = fs.getFileStatus(at)
        stream = fs.openFile(at).withFileStatus(status).build().get()  # S3 is not asked for the length once more
        return cast(BinaryIO, _Parts(stream, status.getLen(), self._jvm.org.apache.commons.io.IOUtils))

    def first_line(self, path: str) -> str | None:
        """The first line of a file; null when the file does not exist or is empty."""
        try:
            stream = self._fs(path).open(self._path(path))
        except Py4JJavaError as exc:
            if _is(exc, "FileNotFoundException"):
                return None
            raise
        try:
            reader = self._jvm.java.io.BufferedReader(self._jvm.java.io.InputStreamReader(stream, "UTF-8"))
            line: str | None = reader.readLine()
            return line
        finally:
            stream.close()

    def write_once(self, path: str, text: str) -> None:
        """Write a file whose name says what it holds: one that is there already is left as it is."""
        if self.exists(path):
            return
        if local := self._local(path):
            _write_whole(local, text)
        elif self.is_atomic(path):
            self._create(path, text, overwrite=True)
        else:
            written = _draft(path)
            self._create(written, text, overwrite=False)
            self._publish(written, path)

    def create_exclusively(self, path: str, text: str) -> bool:
        """Write a file that nobody else has written: of several that try at once, one gets true.

        A reader may find the file empty for a moment.

        Raises:
            InstallationError: the lake is on S3, and boto3 is not installed.
        """
        if self._scheme(path) in S3_SCHEMES:  # Hadoop's own looks first and puts then
            return self._conditional_puts(urlsplit(path).netloc).put(path, text)
        local = self._local(path)
        try:
            if local is None:
                self._create(path, text, overwrite=False)
            else:  # Hadoop's own looks first and creates then, which is not one step
                local.parent.mkdir(parents=True, exist_ok=True)
                with local.open("x", encoding="utf-8") as file, _removed_on_failure(local):
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
        """Write a file, whether it is there or not; elsewhere than in a local folder a reader may find it empty for a
        moment. So may one in a local folder whose disk is full.
        """
        local = self._local(path)
        if local is None:
            self._create(path, text, overwrite=True)
            return
        try:
            _write_whole(local, text)
        except OSError:
            if not local.exists() or local.stat().st_size < len(text.encode()):
                raise
            with local.open("r+", encoding="utf-8") as file:  # a full disk takes what has its place already
                file.write(text)
                file.truncate()

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""
        self._fs(path).delete(self._path(path), False)

    def remove_folder(self, path: str) -> None:
        """Remove a folder with all that is in it."""
        self._fs(path).delete(self._path(path), True)

    def modified_ms(self, path: str) -> int | None:
        """When a file was last written, by the store's clock; null when it does not exist."""
        return int(self._fs(path).getFileStatus(self._path(path)).getModificationTime()) if self.exists(path) else None

    def size(self, folder: str) -> int:
        """Bytes of all files at and below a folder."""
        return int(self._fs(folder).getContentSummary(self._path(folder)).getLength())

    def folders(self, root: str, *holding: str) -> Iterator[str]:
        """The folders at or below `root` that hold an entry of one of these names, as paths relative to it, sorted."""
        for status in sorted(self._listed(root), key=lambda s: s.getPath().getName()):
            if not status.isDirectory():
                continue
            name = status.getPath().getName()
            below = f"{root}/{name}"
            if self.holds(below, *holding):
                yield name
            else:
                yield from (f"{name}/{deeper}" for deeper in self.folders(below, *holding))

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
            try:
                stream.write(bytearray(text, "utf-8"))
            finally:
                stream.close()
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
        """The path for Python, when it leads into a local folder."""
        fs = self._fs(path)
        if fs.getUri().getScheme() != "file":
            return None
        return Path(fs.makeQualified(self._path(path)).toUri().getPath())

    def _publish(self, written: str, path: str) -> None:
        fs = self._fs(path)
        try:
            renamed = fs.rename(self._path(written), self._path(path))
        except Py4JJavaError:
            renamed = False
        if not renamed:
            fs.delete(self._path(written), False)
            if not self.exists(path):
                raise OSError(f"{path} could not be written")

    def _fs(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._conf)


class _Parts(io.RawIOBase):
    """A file of Hadoop's, of which only those parts are read that are asked for.

    Args:
        stream: of the file.
        length: its length.
        utils: Java's class of this name.
    """

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


def is_draft(name: str) -> bool:
    """Whether a file of this name is one that is being written, or whose writer was killed meanwhile."""
    return bool(_DRAFT.fullmatch(name))


def _draft(path: str) -> str:
    return f"{path}.{uuid.uuid4().hex}.tmp"


def _write_whole(file: Path, text: str) -> None:
    """Write a file that appears under its name once it is complete, or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(_draft(str(file)))
    with _removed_on_failure(draft):
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)


@contextmanager
def _removed_on_failure(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        with suppress(OSError):
            file.unlink()
        raise


def _is(exc: Py4JJavaError, name: str) -> bool:
    return bool(exc.java_exception.getClass().getSimpleName() == name)
