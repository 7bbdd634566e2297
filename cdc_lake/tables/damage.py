"""Recognize errors of missing, truncated and damaged files in the lake, and describe how to restore them."""

import json
import re
from itertools import takewhile
from urllib.parse import unquote

from cdc_lake.errors import DamagedFileError
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.hudi_folder import METADATA_FOLDER
from cdc_lake.tables.iceberg_metadata import ICEBERG_FOLDER
from cdc_lake.tables.newest import LOG_FOLDER

_MISSING, _CHANGED = "the file is missing", "the file is damaged"
_SIGNS = (
    (r"\[DELTA_TRUNCATED_TRANSACTION_LOG\] (?P<file>\S[^\n]*?): ", _MISSING),
    (r"File (?P<file>\S[^\n]*?) does not exist", _MISSING),
    (r"NotFoundException: (?:Failed to open input stream for file|File does not exist): (?P<file>\S[^\n]*)", _MISSING),
    (r"Checksum error: (?P<file>\S[^\n]*?) at \d+ exp", _CHANGED),
    (r"(?P<file>\w+:/[^\n]*?) is not a Parquet file", _CHANGED),
    (r"reading file (?P<file>\w+:/[^\n]*?\.json)\b(?s:.*)(?:MALFORMED_RECORD|JsonEOFException)", _CHANGED),
    (r"reading file (?P<file>\w+:/[^\n]*?\.parquet)\b(?s:.*)(?:parquet\.io\.|parquet\.format\.)", _CHANGED),
    (r"Could not read commit details from (?P<file>\S[^\n]*)", _CHANGED),
    (r"unable to read commit metadata for instant \[(?P<instant>\d+)", "the commit {instant} is damaged"),
    (r"ParquetDecodingException|can not read class org\.apache\.parquet", "a data file is damaged"),
    (r"MALFORMED_RECORD_IN_PARSING", "the log is damaged"),
)
"""Errors of Spark, Delta, Hudi, Iceberg, Parquet and Hadoop; those that name the file come first."""
_CURES = {
    "bronze": "restore it from a backup. Without one, move {folder} away and run the bronze job: it reads again what "
    "Kafka retains, and silver keeps its rows",
    "silver": "move {folder} and {side} away and run the silver job, which rebuilds the table from bronze",
    "side": "move {folder} away and run `cdc-lake rebuild --table {table}`, which restores it from bronze",
    "gold": "move {folder} away and run the gold job, which rebuilds the table from silver",
    "_schemas": "restore it from a backup, or run `cdc-lake schemas restore`, which fetches it from the registry",
}
"""How to restore a file, by its folder in the lake."""


def damage_error(error: Exception, where: str) -> DamagedFileError | None:
    """The error of a missing or damaged file, if that caused a failure; none for other causes.

    Args:
        where: the table, if the error does not name a file.
    """
    message = str(error)
    for sign, what in _SIGNS:
        if match := re.search(sign, message):
            names = match.groupdict()
            return DamagedFileError(_plain(names.get("file", where)), what.format(**names))
    return None


def log_damage_error(error: Exception, files: HadoopFiles, path: str) -> DamagedFileError | None:
    """The error of a missing or damaged entry of Delta's log that Delta does not name; none for other causes."""
    folder, message = f"{path}/{LOG_FOLDER}", str(error)
    if match := re.search(r"DELTA_VERSIONS_NOT_CONTIGUOUS\] \w+ \(([\d, ]+)\)", message):
        versions = [int(version) for version in match[1].split(",")]
        missing = next(number for number in range(versions[0], versions[-1]) if number not in versions)
        return DamagedFileError(f"{folder}/{missing:020d}.json", _MISSING)
    if "MALFORMED_RECORD_IN_PARSING" not in message:
        return None
    entries = (f"{folder}/{name}" for name in files.names(folder) if name.endswith(".json"))
    broken = next((file for file in entries if not _is_json(files.read_text(file))), None)
    return DamagedFileError(broken, _CHANGED) if broken else None


def _is_json(lines: str) -> bool:
    try:
        return all(json.loads(line) for line in lines.split("\n") if line)
    except ValueError:
        return False


def with_cure(error: DamagedFileError, root: str) -> DamagedFileError:
    """The error with instructions to restore the file, if it is below the lake's root."""
    root = _plain(root)
    folder, _, below = error.where.removeprefix(f"{root}/").partition("/")
    layer, _, kind = folder.partition("_")
    cure = _CURES.get(layer or folder)
    if cure is None:
        return error
    inside = (LOG_FOLDER, METADATA_FOLDER, ICEBERG_FOLDER)
    folders = below.split("/")[:-1]
    segments = list(takewhile(lambda name: name not in inside and "=" not in name, folders))
    table = "/".join(segments)
    side = f"{root}/side_{kind}/{table}" if kind else f"{root}/side/{table}"
    name = ".".join(segments) + (f"@{kind}" if kind else "")
    return DamagedFileError(
        error.where, error.what, cure.format(folder=f"{root}/{folder}/{table}", side=side, table=name)
    )


def _plain(path: str) -> str:
    """A path without Hadoop's `file:/a` or `file:///a` and Spark's percent-encoding."""
    return unquote(re.sub("^file:(//)?(?=/)", "", path))
