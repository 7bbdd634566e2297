"""What the newest commit of a table says, read without Spark, where that can be told for certain."""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple
from urllib.parse import unquote

from fastavro import block_reader
from pyspark.sql.types import StructType

from cdc_lake.errors import CdcLakeError
from cdc_lake.storage.files import LocalFiles, Storage
from cdc_lake.tables.contract import P
from cdc_lake.tables.hudi_timeline import WRITTEN, incomplete
from cdc_lake.tables.progress import METADATA_KEY, BronzeProgress, Progress

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

LOG_FOLDER, METADATA_FOLDER = "_delta_log", ".hoodie"
"""What a table's folder holds, of Delta and of Hudi."""
TABLE_ID = f"{METADATA_KEY}.table"
"""Where a commit of ours in Hudi says the table's id."""
HUDI_CHECKSUM = "hoodie.table.checksum"
"""In each complete file of Hudi's settings of a table."""
_COMMIT = re.compile(r"(\d{20})\.json")
_OTHERS_COMMITS = ("_commits", "_staged_commits")
"""Where the newest commits of a table are whose commits a catalog coordinates; empty in all others."""
_INSTANT = re.compile(r"(?P<at>\d+)(_\d+)?\.(?P<action>\w+)")


class Newest(NamedTuple, Generic[P]):
    """A table as its newest commit leaves it.

    Attributes:
        progress: what it has consumed.
        table_id, version: see `Table`.
        bytes: of its files, of Hudi those of older versions included; none if Delta did not write it down, or the lake
            is not in a local folder.
    """

    progress: P
    table_id: str
    version: int
    bytes: int | None


def newest_commit(
    files: LocalFiles | Storage, path: str, format: Literal["delta", "hudi"], kind: type[P]
) -> Newest[P] | None:
    """What a table's `progress`, `id`, `version` and `size` say.

    None where there is no table, or the log is not plainly as our own last commit leaves it: another program or version
    wrote the newest commit, the table was restored, or a file is damaged. Spark then reads the log, and says what is
    wrong with it.

    Args:
        files: the lake's.
        path: the table's folder.
        kind: the progress of the table's layer.
    """
    read: Callable[[LocalFiles | Storage, str, type[P]], Newest[P] | None] = (
        _of_delta if format == "delta" else _of_hudi
    )
    try:
        return read(files, path, kind)
    except _NOT_PLAIN:
        return None


class DataFile(NamedTuple):
    """A file of a Delta table's rows.

    Attributes:
        most: by column, a value that none in the file is above; not of every column.
    """

    path: str
    most: Mapping[str, Any]


def newest_rows(files: LocalFiles | Storage, path: str) -> tuple[Newest[BronzeProgress], list[DataFile]] | None:
    """What `newest_commit` says of a bronze table, and its files.

    None where that says none, and where a file does not hold rows as they are: with deletion vectors or mapped columns.

    Args:
        files: the lake's.
        path: the table's folder.
    """
    try:
        log = _delta_log(files, path)
        newest = log and _newest_in(log, files, path, BronzeProgress)
        added = log.added() if log and newest else None
        if newest is None or added is None:
            return None
        return newest, [DataFile(f"{path}/{unquote(one['path'])}", _most(one.get("stats"))) for one in added]
    except _NOT_PLAIN:
        return None


def rows_where(
    files: LocalFiles | Storage,
    rows: Sequence[DataFile],
    condition: "pc.Expression",
    columns: Sequence[str],
    *,
    least: Mapping[str, Any],
) -> "pa.Table":
    """Columns of the rows in a table's files that meet a condition.

    Args:
        files: the lake's.
        rows: the table's files.
        columns: those of the condition among them.
        least: by column, a value that no row is below that meets the condition. Files without one are not opened.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = [pa.table({name: pa.nulls(0) for name in columns})]
    for file in rows:
        if all(file.most.get(name, value) >= value for name, value in least.items()):
            with files.open(file.path) as source:
                # Without threads of Arrow's: one that calls back as Python ends would abort the process.
                read = pq.ParquetFile(source).read(list(columns), use_threads=False)
            found.append(read.filter(condition))
    return pa.concat_tables(found, promote_options="default")


def newest_schema(files: LocalFiles | Storage, path: str) -> StructType | None:
    """A Delta table's columns; none where `newest_rows` says none.

    Args:
        files: the lake's.
        path: the table's folder.
    """
    try:
        log = _delta_log(files, path)
        if log is None or _newest_in(log, files, path, Progress) is None or log.maps_columns():
            return None
        return StructType.fromJson(json.loads(log.metadata()["schemaString"]))
    except _NOT_PLAIN:
        return None


def _most(statistics: str | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(statistics).get("maxValues", {}) if statistics else {}
    return found


_NOT_PLAIN = (OSError, ValueError, KeyError, TypeError, CdcLakeError)
"""What reading a file raises that is missing, damaged, or in a form that is not ours."""


class _DeltaLog(NamedTuple):
    """What the log of a Delta table says.

    Attributes:
        checkpoint: the newest; none before the first.
        after: the actions of the commits after it, the oldest first.
        newest: those of the newest commit.
    """

    version: int
    checkpoint: Any
    after: Sequence[Mapping[str, Any]]
    newest: Sequence[Mapping[str, Any]]

    def metadata(self) -> Mapping[str, Any]:
        """The table's: id, schema, and configuration as a mapping."""
        for action in reversed(self.after):
            if "metaData" in action:
                found: Mapping[str, Any] = action["metaData"]
                return found
        columns = ["metaData.id", "metaData.schemaString", "metaData.configuration"]
        column = self.checkpoint.read(columns=columns)["metaData"]
        (found,) = (one for one in column.to_pylist() if one)
        return {**found, "configuration": dict(found["configuration"])}

    def maps_columns(self) -> bool:
        """Whether columns have other names in the files."""
        return any(name.startswith("delta.columnMapping.") for name in self.metadata()["configuration"])

    def added(self) -> list[Mapping[str, Any]] | None:
        """The table's files as the log adds them; see `newest_rows` for when there are none."""
        if self.maps_columns():
            return None
        added: list[Mapping[str, Any]] = []
        if self.checkpoint is not None:
            columns = ["add.path", "add.stats", "add.deletionVector.storageType"]
            added += filter(None, self.checkpoint.read(columns=columns)["add"].to_pylist())
        found = {one["path"]: one for one in added}
        for action in self.after:
            if "add" in action:
                found[action["add"]["path"]] = action["add"]
            elif "remove" in action:
                found.pop(action["remove"]["path"], None)
        return None if any(one.get("deletionVector") for one in found.values()) else list(found.values())


def _delta_log(files: LocalFiles | Storage, path: str) -> _DeltaLog | None:
    folder = f"{path}/{LOG_FOLDER}"
    names = files.names(folder)
    versions = [int(found[1]) for name in names if (found := _COMMIT.fullmatch(name))]
    if not versions or any(files.names(f"{folder}/{name}") for name in _OTHERS_COMMITS if name in names):
        return None

    def actions(version: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in _content(files, f"{folder}/{version:020d}.json").splitlines()]

    checkpoint, first = None, 0
    if "_last_checkpoint" in names:
        import pyarrow.parquet as pq  # a fifth of a second, and many logs have no checkpoint

        last = json.loads(_content(files, f"{folder}/_last_checkpoint"))
        if "parts" in last or "v2Checkpoint" in last:
            return None
        first = last["version"] + 1
        checkpoint = pq.ParquetFile(io.BytesIO(_content(files, f"{folder}/{first - 1:020d}.checkpoint.parquet")))
    newest = versions[-1]
    after = [version for version in versions if version >= first]
    if after != list(range(first, newest + 1)):
        return None
    commits = {version: actions(version) for version in after or [newest]}
    return _DeltaLog(newest, checkpoint, [action for one in after for action in commits[one]], commits[newest])


def _of_delta(files: LocalFiles | Storage, path: str, kind: type[P]) -> Newest[P] | None:
    log = _delta_log(files, path)
    return _newest_in(log, files, path, kind) if log else None


def _newest_in(log: _DeltaLog, files: LocalFiles | Storage, path: str, kind: type[P]) -> Newest[P] | None:
    said: Mapping[str, Any] = next((action["commitInfo"] for action in log.newest if "commitInfo" in action), {})
    progress = Progress.from_metadata(said.get("userMetadata"))
    if not isinstance(progress, kind):
        return None
    checksum = f"{path}/{LOG_FOLDER}/{log.version:020d}.crc"
    is_known = isinstance(files, LocalFiles) and files.exists(checksum)
    size = json.loads(_content(files, checksum))["tableSizeBytes"] if is_known else None
    return Newest(progress, log.metadata()["id"], log.version, size)


def _of_hudi(files: LocalFiles | Storage, path: str, kind: type[P]) -> Newest[P] | None:
    folder = f"{path}/{METADATA_FOLDER}"
    if f"{HUDI_CHECKSUM}=".encode() not in _content(files, f"{folder}/hoodie.properties"):
        return None
    timeline = f"{folder}/timeline" if files.exists(f"{folder}/timeline") else folder
    contents = {name: _content(files, f"{timeline}/{name}") for name in files.names(timeline) if name[0].isdigit()}
    sizes = {name: len(content) for name, content in contents.items()}
    instants = [found for name in sorted(sizes, reverse=True) if (found := _INSTANT.fullmatch(name))]
    if incomplete(sizes, contents.__getitem__) or any(one["action"] == "restore" for one in instants):
        return None
    written = [one for one in instants if one["action"] in WRITTEN]
    for one in written:
        said = _said_in(contents[one[0]])
        progress = Progress.from_metadata(said.get(METADATA_KEY))
        if isinstance(progress, kind):
            size = files.size(path) if isinstance(files, LocalFiles) else None
            return Newest(progress, said[TABLE_ID], int(written[0]["at"]), size)
    return None


def _content(files: LocalFiles | Storage, path: str) -> bytes:
    content = files.read_bytes(path)
    if content is None:
        raise FileNotFoundError(path)
    return content


def _said_in(commit: bytes) -> dict[str, str]:
    """A commit's extra metadata: JSON in table version 6, Avro in later ones."""
    if commit.startswith(b"{"):
        found = json.loads(commit)
    else:
        (found,) = (record for block in block_reader(io.BytesIO(commit)) for record in block)
    said: dict[str, str] = found["extraMetadata"]
    return said
