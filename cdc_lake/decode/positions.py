"""A change's position in its source's log, as numbers that compare left to right.

The fields of a schema identify the source, not the connector's name. Positions are comparable within one domain only.
docs/reference/connectors.md lists what each connector's position identifies, with its source in Debezium's code.

Postgres' position identifies an **event**: an equal one is a replay. The others identify a **group** of events, such as
a transaction, and end with `SHARED`: within the group, only the order in Kafka decides. Fields that seem to order a
group do not: MariaDB 11.4 gives all row events of a transaction one `pos`, and `row` begins at 0 in each of them; SQL
Server's `change_lsn` goes back within a commit; Oracle's `rs_id` may be switched off, and `ssn` is always 0.
"""

from collections.abc import Mapping
from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.fold.rules import SHARED

POSITION_FIELDS = (
    *("lsn", "sequence", "server_id", "file", "pos", "gtid", "commit_lsn"),
    *("commit_scn", "scn", "rs", "ord", "wallTime"),
)
"""The fields of a source block that form positions and their domains, in addition to `name`, `db` and `ts_ms`."""

_BINLOG_FILE = r"^(.+)\.([0-9]{1,18})$"
"""`mysql-bin.000999`: base name and number. As texts, `mysql-bin.1000000` would be before it."""
_GTID = "^(.+)[:-]([0-9]{1,18})$"
"""MySQL's `3e11fa47-71ca-11e1-9e33-c80aa9429562:23`, or MariaDB's `0-1-270`: server and number."""
_SEQUENCE = r'^\[.*"([0-9]{1,19})"\]$'
"""`["24023119","24023128"]`: the last commit's LSN and the event's own. `["24023119",null]` does not match."""
_HEX_LSN = "^([0-9a-fA-F]{8}):([0-9a-fA-F]{8}):0?([0-9a-fA-F]{4,15})$"
"""SQL Server's `00000027:00000ac0:0002`, or Db2's `00000000:00000027:0000000000000ac0`; each part fits a bigint."""
_NUMBER = "^([0-9]{1,19})$"
"""Nineteen digits may be too large for a bigint; then the cast returns null, as ANSI mode is off."""


def position_of(source: Mapping[str, Column]) -> Column:
    """The position in the source's log, most significant component first; array<bigint>, null when unknown.

    - Postgres: the LSN, or the second number of `sequence`. For one key it rises with commit order, because the row's
      lock makes writers wait.
    - MySQL and MariaDB: number of the binlog file, position; without them, the number in the GTID.
    - SQL Server and Db2: the three numbers of the commit's LSN. Informix: its only number.
    - Oracle: the commit SCN; without it the SCN, which is then that of the commit, or of a snapshot row.
    - MongoDB: seconds, ordinal. Unknown if `ts_ms` is the server's wall clock, to which the ordinal does not belong.

    Args:
        source: the source block's fields that the value has, by name.
    """
    if "lsn" in source:
        return _position(F.coalesce(source["lsn"].cast("bigint"), _number(source, "sequence", _SEQUENCE)))
    if {"file", "pos"} <= source.keys():
        # If the file is empty or null, the GTID's number is the position.
        in_binlog = _group(_part(source["file"], _BINLOG_FILE, 2), source["pos"])
        return F.coalesce(in_binlog, _group(_part(_field(source, "gtid"), _GTID, 2)))
    if "gtid" in source:
        return _group(_part(source["gtid"], _GTID, 2))
    if "commit_lsn" in source:
        lsn = source["commit_lsn"]
        parts = (F.conv(_part(lsn, _HEX_LSN, group), 16, 10) for group in (1, 2, 3))
        return F.coalesce(_group(*parts), _group(_part(lsn, _NUMBER, 1)))
    if "commit_scn" in source or "scn" in source:
        scns = (_number(source, name, _NUMBER) for name in ("commit_scn", "scn"))
        return _group(F.coalesce(*scns))
    if "ord" in source:
        ts_ms = _field(source, "ts_ms").cast("bigint")
        # The cluster's time counts seconds: 1700000000000 with ordinal 7 is [1700000000, 7, SHARED].
        is_cluster_time = (ts_ms % 1000 == 0) & ~ts_ms.eqNullSafe(_field(source, "wallTime").cast("bigint"))
        return _group(F.when(is_cluster_time, F.floor(ts_ms / 1000)), source["ord"])
    return _position(_number(source, "sequence", _SEQUENCE))


def domain_of(source: Mapping[str, Column], topic: Column) -> Column:
    """Within what `position_of` compares, string.

    MySQL and MariaDB: server ID and the binlog files' base name, or the GTID's server, null if both are unknown.
    MongoDB: the replica set. Others: the connector's name and the database, or the topic if they are unknown.
    """
    if {"file", "pos"} <= source.keys() or ("gtid" in source and "lsn" not in source):
        file = _part(_field(source, "file"), _BINLOG_FILE, 1)
        # As in `position_of`, the GTID only counts without a position in the binlog. Then the domain must be the
        # GTID's, too, or number 23 of a GTID would be compared with number 999 of a file.
        of_gtid = F.when(file.isNull() | _field(source, "pos").isNull(), _part(_field(source, "gtid"), _GTID, 1))
        return F.coalesce(of_gtid, _joined(_field(source, "server_id"), file))
    if {"ord", "rs"} <= source.keys():
        return source["rs"].cast("string")
    return F.coalesce(_joined(_field(source, "name"), _field(source, "db")), topic)


def _position(*components: Column) -> Column:
    numbers = [component.cast("bigint") for component in components]
    return F.when(reduce(and_, (number.isNotNull() for number in numbers)), F.array(*numbers))


def _group(*components: Column) -> Column:
    return _position(*components, F.lit(SHARED))


def _joined(first: Column, second: Column) -> Column:
    """Both as one text; null if one is."""
    return F.concat(first.cast("string"), F.lit("/"), second.cast("string"))


def _field(source: Mapping[str, Column], name: str) -> Column:
    return source.get(name, F.lit(None).cast("string"))


def _number(source: Mapping[str, Column], name: str, pattern: str) -> Column:
    """The number in a text field, bigint; null if the text does not match."""
    return _part(_field(source, name), pattern, 1).cast("bigint")


def _part(text: Column, pattern: str, group: int) -> Column:
    """What a group of the pattern matches, string; null if the text does not match."""
    text = text.cast("string")
    return F.when(text.rlike(pattern), F.regexp_extract(text, pattern, group))
