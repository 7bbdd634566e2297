"""Files of a sink connector by their names: `<topic>+<partition>+<offset>.avro`.

The offset is that of the first row. A name may also have the last offset, `-` instead of `+`, and a compression's
ending. Sources of the names: the object writers of Confluent's S3, GCS and HDFS sinks and of Aiven's S3 sink.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cdc_lake.errors import ConfigError

HIDDEN = ("_", ".")
"""First characters of the names of files and folders that sinks write for themselves."""
_ENDINGS = {"avro": "avro", "json": "json", "jsonl": "json", "parquet": "parquet"}
_NAME = (
    r"[+-](?P<partition>\d+)[+-](?P<start>\d+)(?:[+-](?P<last>\d+))?\.(?P<ending>avro|jsonl?|parquet)(?:\.(?:gz|zst))?"
)


@dataclass(frozen=True)
class TopicFile:
    """A file of a topic.

    Attributes:
        start: its first offset.
        end: the offset after its last, if its name has it.
        format: avro, json or parquet.
        modified_ms: when it was written, in milliseconds since 1970.
    """

    path: str
    partition: int
    start: int
    end: int | None
    format: str
    modified_ms: int

    @property
    def name(self) -> str:
        """The name without folders."""
        return self.path.rpartition("/")[2]


def topic_files(
    topic: str, folder: str, listed: Iterable[tuple[str, int]]
) -> tuple[dict[int, list[TopicFile]], list[str]]:
    """A topic's files by partition, in order of their offsets, and the paths of the other files.

    Args:
        folder: the topic's folder.
        listed: paths of the files below it, each with its modification time in ms.

    Raises:
        ConfigError: two files begin at the same offset.
    """
    name = re.compile(re.escape(topic) + _NAME)
    found: dict[int, list[TopicFile]] = {}
    others = []
    for path, modified_ms in listed:
        if any(part.startswith(HIDDEN) for part in path.removeprefix(folder).split("/")):
            continue
        match = name.fullmatch(path.rpartition("/")[2])
        if match is None:
            others.append(path)
            continue
        end = int(match["last"]) + 1 if match["last"] else None
        partition, start = int(match["partition"]), int(match["start"])
        file = TopicFile(path, partition, start, end, _ENDINGS[match["ending"]], modified_ms)
        found.setdefault(partition, []).append(file)
    for files in found.values():
        files.sort(key=lambda file: file.start)
        _check_starts(files)
    return found, sorted(others)


def with_following(files: Sequence[TopicFile]) -> Iterable[tuple[TopicFile, int | None]]:
    """A partition's files, each with the first offset of the next one."""
    return zip(files, [*(file.start for file in files[1:]), None], strict=True)


def _check_starts(files: Sequence[TopicFile]) -> None:
    for file, following in pairwise(files):
        if file.start == following.start:
            raise ConfigError(
                file.path,
                f"it begins at the same offset as {following.path}",
                "remove the one that the sink wrote by mistake; nothing was read",
            )
