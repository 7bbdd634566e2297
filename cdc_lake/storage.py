"""Small files of the lake (schemas, run reports, commits), wherever Hadoop's file systems reach: a folder, HDFS, S3."""

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


class Storage:
    """Reads and writes small text files by Hadoop path."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm
        self._conf = spark._jsc.hadoopConfiguration()

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder at `path`."""
        return bool(self._fs(path).exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none when it does not exist."""
        if not self.exists(folder):
            return []
        return sorted(status.getPath().getName() for status in self._fs(folder).listStatus(self._path(folder)))

    def read_text(self, path: str) -> str:
        """The whole text of a file."""
        stream = self._fs(path).open(self._path(path))
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            return text
        finally:
            stream.close()

    def first_line(self, path: str) -> str | None:
        """The first line of a file; null when the file does not exist or is empty."""
        if not self.exists(path):
            return None
        stream = self._fs(path).open(self._path(path))
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
        written = f"{path}.{self._jvm.java.util.UUID.randomUUID().toString()}.tmp"
        stream = self._fs(path).create(self._path(written), False)
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()
        self._publish(written, path)

    def folders(self, root: str, holding: str) -> Iterator[str]:
        """The folders at or below `root` that hold an entry named `holding`, as paths relative to it, sorted."""
        for status in sorted(self._listed(root), key=lambda s: s.getPath().getName()):
            if not status.isDirectory():
                continue
            name = status.getPath().getName()
            below = f"{root}/{name}"
            if self.exists(f"{below}/{holding}"):
                yield name
            else:
                yield from (f"{name}/{deeper}" for deeper in self.folders(below, holding))

    def _listed(self, folder: str) -> list[Any]:
        return list(self._fs(folder).listStatus(self._path(folder))) if self.exists(folder) else []

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

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _fs(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._conf)
