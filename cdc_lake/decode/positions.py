"""A change's position in its source's log, as numbers that compare left to right.

The fields of a schema identify the source, not the connector's name. A position that lacks a component is unknown: it
would order changes that have no order. Positions are comparable within one domain only. Sources: Debezium's
`SourceInfo` of each connector; docs/explanation/ordering-and-deletes.md "The fold".
"""

from collections.abc import Mapping
from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as F

POSITION_FIELDS = (
    *("lsn", "server_id", "file", "pos", "row", "commit_lsn", "change_lsn", "event_serial_no"),
    *("commit_scn", "scn", "rs_id", "ssn", "rs", "ord", "txnNumber"),
)
"""The fields of a source block that form positions and their domains, in addition to `name`, `db` and `ts_ms`."""

_BINLOG_FILE = r"^(.+)\.([0-9]{1,18})$"
_SQL_SERVER_LSN = "^([0-9a-fA-F]{8}):([0-9a-fA-F]{8}):([0-9a-fA-F]{4})$"
_NUMBER = "^([0-9]{1,19})$"
_REDO_RECORD = r"^\s*0x([0-9a-fA-F]{1,8})\.([0-9a-fA-F]{1,8})\.([0-9a-fA-F]{1,4})\s*$"


def position_of(source: Mapping[str, Column]) -> Column:
    """The position in the source's log, most significant component first; array<bigint>, null when unknown.

    Postgres: the LSN alone, which for one key rises with commit order, because the row's lock makes writers wait.
    MySQL and MariaDB: number of the binlog file, position, row. SQL Server: the three numbers of the commit's LSN,
    the three of the change's, serial number. Oracle: commit SCN, SCN, three numbers of the redo record, SSN: changes of
    one row may share an SCN, and an SSN is unique within a redo record only. MongoDB: seconds, ordinal; unknown inside
    a transaction, whose changes share them.

    Args:
        source: the source block's fields that the value has, by name.
    """
    if "lsn" in source:
        return _position(source["lsn"])
    if {"file", "pos"} <= source.keys():
        return _position(_part(source["file"], _BINLOG_FILE, 2), source["pos"], _field(source, "row"))
    if "commit_lsn" in source:
        lsns = (source["commit_lsn"], _field(source, "change_lsn"))
        return _position(
            *(part for lsn in lsns for part in _hex_parts(lsn, _SQL_SERVER_LSN)), _field(source, "event_serial_no")
        )
    if "commit_scn" in source:
        scns = (source["commit_scn"], _field(source, "scn"))
        redo = _hex_parts(_field(source, "rs_id"), _REDO_RECORD)
        return _position(*(_part(scn, _NUMBER, 1) for scn in scns), *redo, _field(source, "ssn"))
    if "ord" in source:
        seconds = F.floor(_field(source, "ts_ms") / 1000)
        return _position(F.when(_field(source, "txnNumber").isNull(), seconds), source["ord"])
    return F.lit(None).cast("array<bigint>")


def domain_of(source: Mapping[str, Column], topic: Column) -> Column:
    """Within what `position_of` compares, string.

    MySQL and MariaDB: server ID and the binlog files' base name, null if the file is unknown. MongoDB: the replica set.
    Others: the connector's name and the database, or the topic if they are unknown.

    Args:
        source: the source block's fields that the value has, by name.
        topic: the record's.
    """
    if {"file", "pos"} <= source.keys():
        return _joined(_field(source, "server_id"), _part(source["file"], _BINLOG_FILE, 1))
    if {"ord", "rs"} <= source.keys():
        return source["rs"].cast("string")
    return F.coalesce(_joined(_field(source, "name"), _field(source, "db")), topic)


def _position(*components: Column) -> Column:
    numbers = [component.cast("bigint") for component in components]
    return F.when(reduce(and_, (number.isNotNull() for number in numbers)), F.array(*numbers))


def _joined(first: Column, second: Column) -> Column:
    """Both as one text; null if one is."""
    return F.concat(first.cast("string"), F.lit("/"), second.cast("string"))


def _field(source: Mapping[str, Column], name: str) -> Column:
    return source.get(name, F.lit(None).cast("string"))


def _part(text: Column, pattern: str, group: int) -> Column:
    """What a group of the pattern matches, string; null if the text does not match."""
    text = text.cast("string")
    return F.when(text.rlike(pattern), F.regexp_extract(text, pattern, group))


def _hex_parts(text: Column, pattern: str) -> tuple[Column, ...]:
    return tuple(F.conv(_part(text, pattern, group), 16, 10) for group in (1, 2, 3))
