"""Files of the lake that are missing, cut short or damaged: what reading one fails with, and how to restore it."""

import json
import re
from itertools import takewhile
from urllib.parse import unquote

from cdc_lake.errors import DamagedFileError
from cdc_lake.storage.files import Storage
from cdc_lake.tables.newest import LOG_FOLDER, METADATA_FOLDER

_MISSING, _CHANGED = "the file is missing", "the file is damaged"
_SIGNS = (
    (r"\[DELTA_TRUNCATED_TRANSACTION_LOG\] (?P<file>\S[^\n]*?): ", _MISSING),
    (r"File (?P<file>\S[^\n]*?) does not exist", _MISSING),
    (r"Checksum error: (?P<file>\S[^\n]*?) at \d+ exp", _CHANGED),
    (r"(?P<file>\w+:/[^\n]*?) is not a Parquet file", _CHANGED),
    (r"reading file (?P<file>\w+:/[^\n]*?\.json)\b(?s:.*)(?:MALFORMED_RECORD|JsonEOFException)", _CHANGED),
    (r"reading file (?P<file>\w+:/[^\n]*?\.parquet)\b(?s:.*)(?:parquet\.io\.|parquet\.format\.)", _CHANGED),
    (r"Could not read commit details from (?P<file>\S[^\n]*)", _CHANGED),
    (r"unable to read commit metadata for instant \[(?P<instant>\d+)", "the commit {instant} is damaged"),
    (r"ParquetDecodingException|can not read class org\.apache\.parquet", "a data file is damaged"),
    (r"MALFORMED_RECORD_IN_PARSING", "the log is damaged"),
)
"""What Spark, Delta, Hudi, Parquet and Hadoop say, those that name the file first."""
_IS_WHOLE = "nothing is lost as long as bronze is whole"
_CURES = {
    "bronze": "put it back from a backup. Without one, move {folder} away and run the bronze job: it reads again what "
    "Kafka still has, and silver keeps its rows",
    "silver": f"{_IS_WHOLE}: move {{folder}} and {{side}} away and run the silver job, which makes the table again",
    "side": f"{_IS_WHOLE}: move {{folder}} away and run `cdc-lake rebuild --table {{table}}`",
    "gold": "nothing is lost: move {folder} away and run the gold job, which makes the table again",
    "_schemas": "put it back from a backup, or run `cdc-lake schemas restore`, which takes it from the registry",
}
"""How to restore a file, by the folder of the lake that it is in."""


def damage(error: Exception, where: str) -> DamagedFileError | None:
    """Which file reading a table found missing or damaged; none if it failed for another reason.

    Args:
        error: what Spark, or what it reads the table with, has raised.
        where: names the table, if the error does not name a file.
    """
    said = str(error)
    for sign, what in _SIGNS:
        if found := re.search(sign, said):
            names = found.groupdict()
            return DamagedFileError(_plain(names.get("file", where)), what.format(**names))
    return None


def log_damage(error: Exception, storage: Storage, path: str) -> DamagedFileError | None:
    """Which entry of a table's log Delta found missing or damaged without naming it; none if it failed otherwise.

    Args:
        path: the table's folder.
    """
    folder, said = f"{path}/{LOG_FOLDER}", str(error)
    if found := re.search(r"DELTA_VERSIONS_NOT_CONTIGUOUS\] \w+ \(([\d, ]+)\)", said):
        there = [int(version) for version in found[1].split(",")]
        missing = next(number for number in range(there[0], there[-1]) if number not in there)
        return DamagedFileError(f"{folder}/{missing:020d}.json", _MISSING)
    if "MALFORMED_RECORD_IN_PARSING" not in said:
        return None
    entries = (f"{folder}/{name}" for name in storage.names(folder) if name.endswith(".json"))
    broken = next((file for file in entries if not _is_json(storage.read_text(file))), None)
    return DamagedFileError(broken, _CHANGED) if broken else None


def _is_json(lines: str) -> bool:
    try:
        return all(json.loads(line) for line in lines.split("\n") if line)
    except ValueError:
        return False


def with_cure(error: DamagedFileError, root: str) -> DamagedFileError:
    """The error with how to restore the file, if it is below the lake's root."""
    root = _plain(root)
    folder, _, below = error.where.removeprefix(f"{root}/").partition("/")
    layer, _, kind = folder.partition("_")
    cure = _CURES.get(layer or folder)
    if cure is None:
        return error
    segments = list(
        takewhile(lambda name: name not in (LOG_FOLDER, METADATA_FOLDER) and "=" not in name, below.split("/")[:-1])
    )
    table = "/".join(segments)
    side = f"{root}/side_{kind}/{table}" if kind else f"{root}/side/{table}"
    name = ".".join(segments) + (f"@{kind}" if kind else "")
    return DamagedFileError(
        error.where, error.what, cure.format(folder=f"{root}/{folder}/{table}", side=side, table=name)
    )


def _plain(path: str) -> str:
    """A path as the settings have it: Hadoop writes `file:/a` or `file:///a`, and Spark encodes some characters."""
    return unquote(re.sub("^file:(//)?(?=/)", "", path))
