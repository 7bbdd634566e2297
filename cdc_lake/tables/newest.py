"""What the newest commit of a table says, read without Spark, where that can be told for certain."""

import io
import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from fastavro import block_reader

from cdc_lake.errors import CdcLakeError
from cdc_lake.storage import LocalFiles
from cdc_lake.tables.hudi_timeline import WRITTEN, incomplete
from cdc_lake.tables.progress import METADATA_KEY, Progress

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


class Newest(NamedTuple):
    """A table as its newest commit leaves it.

    Attributes:
        progress: what it has consumed.
        table_id, version: see `Table`.
        bytes: of its files, of Hudi those of older versions included.
    """

    progress: Progress
    table_id: str
    version: int
    bytes: int


def newest_commit(files: LocalFiles | None, path: str, format: Literal["delta", "hudi"]) -> Newest | None:
    """What a table's `progress`, `id`, `version` and `size` say.

    None where there is no table, the lake is not in a local folder, or the log is not plainly as our own last commit
    leaves it: another program or version wrote the newest commit, the table was restored, or a file is damaged. Spark
    then reads the log, and says what is wrong with it.

    Args:
        path: the table's folder.
    """
    if files is None:
        return None
    read = {"delta": _of_delta, "hudi": _of_hudi}[format]
    try:
        return read(files, path)
    except (OSError, ValueError, KeyError, TypeError, CdcLakeError):
        return None


def _of_delta(files: LocalFiles, path: str) -> Newest | None:
    log = f"{path}/{LOG_FOLDER}"
    names = files.names(log)
    commits = [int(found[1]) for name in names if (found := _COMMIT.fullmatch(name))]
    if not commits or any(files.names(f"{log}/{name}") for name in _OTHERS_COMMITS):
        return None
    checkpoint = json.loads(files.read_bytes(f"{log}/_last_checkpoint")) if "_last_checkpoint" in names else {}
    first = checkpoint.get("version", -1) + 1
    after = [version for version in commits if version >= first]
    if after != list(range(first, commits[-1] + 1)):
        return None
    table_id = _id_in_checkpoint(files, log, checkpoint) if checkpoint else None
    progress = None
    for version in after or commits[-1:]:
        commit = [json.loads(line) for line in files.read_bytes(f"{log}/{version:020d}.json").splitlines()]
        said: dict[str, Any] = next((action["commitInfo"] for action in commit if "commitInfo" in action), {})
        progress = Progress.from_metadata(said.get("userMetadata"))
        table_id = next((action["metaData"]["id"] for action in commit if "metaData" in action), table_id)
    if not progress or not table_id:
        return None
    checksum = json.loads(files.read_bytes(f"{log}/{commits[-1]:020d}.crc"))
    return Newest(progress, table_id, commits[-1], checksum["tableSizeBytes"])


def _id_in_checkpoint(files: LocalFiles, log: str, checkpoint: Mapping[str, Any]) -> str | None:
    import pyarrow.parquet as pq  # a fifth of a second, and many logs have no checkpoint

    if "parts" in checkpoint or "v2Checkpoint" in checkpoint:
        return None
    content = files.read_bytes(f"{log}/{checkpoint['version']:020d}.checkpoint.parquet")
    column = pq.ParquetFile(io.BytesIO(content)).read(columns=["metaData.id"])["metaData"]
    found: list[str] = [said["id"] for said in column.to_pylist() if said]
    return found[0] if len(found) == 1 else None


def _of_hudi(files: LocalFiles, path: str) -> Newest | None:
    folder = f"{path}/{METADATA_FOLDER}"
    if f"{HUDI_CHECKSUM}=".encode() not in files.read_bytes(f"{folder}/hoodie.properties"):
        return None
    timeline = f"{folder}/timeline" if files.exists(f"{folder}/timeline") else folder
    contents = {name: files.read_bytes(f"{timeline}/{name}") for name in files.names(timeline) if name[0].isdigit()}
    sizes = {name: len(content) for name, content in contents.items()}
    instants = [found for name in sorted(sizes, reverse=True) if (found := _INSTANT.fullmatch(name))]
    if incomplete(sizes, contents.__getitem__) or any(one["action"] == "restore" for one in instants):
        return None
    written = [one for one in instants if one["action"] in WRITTEN]
    for one in written:
        said = _said_in(contents[one[0]])
        progress = Progress.from_metadata(said.get(METADATA_KEY))
        if progress is not None:
            return Newest(progress, said[TABLE_ID], int(written[0]["at"]), files.size(path))
    return None


def _said_in(commit: bytes) -> dict[str, str]:
    """What a commit says beside its files: in JSON in table version 6, else in Avro."""
    if commit.startswith(b"{"):
        found = json.loads(commit)
    else:
        (found,) = (record for block in block_reader(io.BytesIO(commit)) for record in block)
    said: dict[str, str] = found["extraMetadata"]
    return said
