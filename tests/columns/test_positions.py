"""A change's position in the source's log: complete or unknown, equal in both shapes, compared within one domain."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from support.events import OPTIONAL_STRING, FakeRegistry, Record, Topic, body, framed
from support.lake import Cases

from cdc_lake.fold.rules import SHARED

pytestmark = pytest.mark.core

COLUMNS = {"name": OPTIONAL_STRING}
MYSQL = {"server_id": 223344, "file": "mysql-bin.000999", "pos": 154, "row": 2}
SQL_SERVER = {
    "commit_lsn": "00000027:00000ac0:0002",
    "change_lsn": "00000027:00000AB8:ffff",
    "event_serial_no": 1,
}
ORACLE = {
    "commit_scn": "281474976710656",
    "scn": "281474976710650",
    "rs_id": " 0x000041.00000a1b.0010 ",
    "ssn": 3,
}
SOURCES = {
    "postgresql": ({"lsn": 26213752}, [26213752], "pagila/pagila"),
    "mysql": (MYSQL, [999, 154, SHARED], "223344/mysql-bin"),
    "sqlserver": (SQL_SERVER, [0x27, 0xAC0, 2, SHARED], "pagila/pagila"),
    "oracle": (ORACLE, [281474976710656, SHARED], "pagila/pagila"),
}
"""By connector: a source block, and its position and domain."""
BROKEN: dict[str, dict[str, list[Any]]] = {
    "postgresql": {"lsn": [None]},
    "mysql": {"file": [None, "", "mysql-bin", ".000001", "bin.0x1", f"bin.{10**18}"], "pos": [None]},
    "sqlserver": {
        "commit_lsn": [None, "NULL", "", "27:ac0:2", "0000002g:00000ac0:0002", "00000027:00000ac0:0002:1"],
    },
}
CASES = Cases()

Placed = Callable[..., list[tuple[Any, str | None]]]


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Callable[..., list[Row]]:
    return CASES.decided(spark)


@pytest.fixture(scope="module")
def placed(found: Callable[..., list[Row]]) -> Placed:
    """Position and domain of each record of a case."""

    def of(*case: Any) -> list[tuple[Any, str | None]]:
        rows = found(*case)
        assert {row["status"] for row in rows} == {"ok"}
        return [(row["source_position"], row["position_domain"]) for row in rows]

    return of


def flat(registry: FakeRegistry, connector: str, sources: Iterable[Mapping[str, Any]]) -> list[Record]:
    """A flattened change for each of these source blocks."""
    here = Topic(COLUMNS, flat=True, registry=registry, connector=connector)
    return [here.change("u", 1, lsn=None, source=source) for source in sources]


@CASES.of(*SOURCES)
def both_shapes(registry: FakeRegistry, connector: str) -> list[Record]:
    source, *_ = SOURCES[connector]
    enveloped = Topic(COLUMNS, registry=registry, connector=connector)
    return [enveloped.change("u", 1, source=source), *flat(registry, connector, [source])]


@pytest.mark.parametrize("connector", SOURCES)
def test_each_connectors_position_is_read_alike_from_both_shapes(placed: Placed, connector: str) -> None:
    _, *expected = SOURCES[connector]

    assert placed(both_shapes, connector) == [tuple(expected)] * 2


@CASES.of(*BROKEN)
def broken(registry: FakeRegistry, connector: str) -> list[Record]:
    known, *_ = SOURCES[connector]
    changed = BROKEN[connector]
    return flat(registry, connector, [known | {name: value} for name, values in changed.items() for value in values])


@pytest.mark.parametrize("connector", BROKEN)
def test_position_with_missing_or_malformed_part_is_unknown(placed: Placed, connector: str) -> None:
    positions = [position for position, _ in placed(broken, connector)]

    assert positions == [None] * sum(map(len, BROKEN[connector].values()))


@CASES.of()
def files_of_mysql(registry: FakeRegistry) -> list[Record]:
    changes = [{}, {"file": "mysql-bin.1000000"}, {"file": "replica.bin.000999"}, {"server_id": 5}, {"file": None}]
    return flat(registry, "mysql", [MYSQL | change for change in changes])


def test_mysql_binlogs_compare_by_number_within_one_server(placed: Placed) -> None:
    one, next_file, other_series, other_server, unknown = placed(files_of_mysql)

    assert next_file[1] == one[1]
    assert next_file[0] > one[0]
    assert other_series == ([999, 154, SHARED], "223344/replica.bin")
    assert other_server[1] == "5/mysql-bin"
    assert unknown == (None, None)


@CASES.of()
def only_gtid(registry: FakeRegistry) -> list[Record]:
    gtids = ["3e11fa47-71ca-11e1-9e33-c80aa9429562:23", "0-1-270", "no number", None]
    enveloped = Topic(COLUMNS, registry=registry, connector="mysql")
    return [enveloped.change("u", 1, source=MYSQL | {"file": "", "gtid": gtid}) for gtid in gtids]


def test_gtid_is_the_position_where_the_binlog_file_is_not_known(placed: Placed) -> None:
    assert placed(only_gtid) == [
        ([23, SHARED], "3e11fa47-71ca-11e1-9e33-c80aa9429562"),
        ([270, SHARED], "0-1"),
        (None, None),
        (None, None),
    ]


MALFORMED_SCNS = ("null", "", "12.5", "0x1f", "9223372036854775808", "1:1:0a", " 12")


@CASES.of()
def scns(registry: FakeRegistry) -> list[Record]:
    only_scn = ({"commit_scn": scn} for scn in (None, *MALFORMED_SCNS))
    others = ({"commit_scn": "9223372036854775807"}, {"rs_id": None, "ssn": None}, {"commit_scn": None, "scn": None})
    return flat(registry, "oracle", [ORACLE | changed for changed in (*only_scn, *others)])


def test_oracle_position_is_the_commit_scn_or_else_the_scn(placed: Placed) -> None:
    *without_commit, widest, without_redo, unknown = (position for position, _ in placed(scns))

    assert without_commit == [[281474976710650, SHARED]] * (1 + len(MALFORMED_SCNS))
    assert (widest, without_redo, unknown) == ([9223372036854775807, SHARED], [281474976710656, SHARED], None)


@CASES.of()
def other_servers(registry: FakeRegistry) -> list[Record]:
    return flat(registry, "postgresql", [{"name": "other"}, {"db": "other"}, {"name": None}, {"db": None}])


def test_other_servers_and_databases_are_other_domains(placed: Placed) -> None:
    assert [domain for _, domain in placed(other_servers)] == [
        "other/pagila",
        "pagila/other",
        "pagila.public.thing",
        "pagila.public.thing",
    ]


@CASES.of()
def incremental(registry: FakeRegistry) -> list[Record]:
    return [Topic(COLUMNS, registry=registry).change("r", 1, lsn=None, snapshot="incremental")]


def test_incremental_snapshot_row_has_no_position(found: Callable[..., list[Row]]) -> None:
    (row,) = found(incremental)

    assert (row["status"], row["source_position"], row["snapshot"]) == ("ok", None, "incremental")


FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mongodb": (
        {"__rs": "string", "__ord": "int", "__source_ts_ms": "long"},
        {"__rs": "rs0", "__ord": 7, "__source_ts_ms": 1_700_000_000_000},
    ),
    "mongodb by the server's clock": (
        {"__rs": "string", "__ord": "int", "__source_ts_ms": "long", "__wallTime": "long"},
        {"__rs": "rs0", "__ord": 7, "__source_ts_ms": 1_700_000_000_000, "__wallTime": 1_700_000_000_000},
    ),
    "mongodb with milliseconds": (
        {"__rs": "string", "__ord": "int", "__source_ts_ms": "long"},
        {"__rs": "rs0", "__ord": 7, "__source_ts_ms": 1_700_000_000_999},
    ),
    "db2": ({"__commit_lsn": "string"}, {"__commit_lsn": "00000000:00000027:0000000000000ac0"}),
    "informix": ({"__commit_lsn": "string"}, {"__commit_lsn": "73014444032"}),
    "postgres without lsn": ({"__sequence": "string"}, {"__sequence": '["24023119","24023128"]'}),
    "postgres without a position": ({"__sequence": "string"}, {"__sequence": '["24023119",null]'}),
    "long names": (
        {"__lsn": "long", "__source_lsn": "long", "__ts_ms": "long", "__source_db": "string", "__name": "string"},
        {"__lsn": 1, "__source_lsn": 2, "__ts_ms": 3, "__source_db": "d", "__name": "n"},
    ),
    "an array": ({"__lsn": {"type": "array", "items": "long"}}, {"__lsn": [1]}),
    "half a place": ({"__pos": "long"}, {"__pos": 4}),
}
"""Fields of flattened rows other than the key: name to Avro type, and name to value."""


@CASES.of(*FIELDS)
def of_fields(registry: FakeRegistry, name: str) -> list[Record]:
    kinds, values = FIELDS[name]
    here = Topic(COLUMNS, registry=registry)
    columns = [{"name": name, "type": kind} for name, kind in {"id": "int", **kinds}.items()]
    text = json.dumps({"type": "record", "name": "pagila.public.thing.Value", "fields": columns})
    return [here.record(here.key(1), framed(registry.add(text), body(text, {"id": 1, **values})))]


def test_mongodb_position_is_time_and_ordinal_in_a_replica_set(placed: Placed) -> None:
    assert placed(of_fields, "mongodb") == [([1_700_000_000, 7, SHARED], "rs0")]


@pytest.mark.parametrize("name", ["mongodb by the server's clock", "mongodb with milliseconds"])
def test_mongodb_ordinal_does_not_order_the_servers_clock(placed: Placed, name: str) -> None:
    assert placed(of_fields, name) == [(None, "rs0")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("db2", [0, 0x27, 0xAC0, SHARED]),
        ("informix", [73014444032, SHARED]),
        ("postgres without lsn", [24023128]),
        ("postgres without a position", None),
    ],
)
def test_position_is_read_from_the_fields_that_a_source_sends(placed: Placed, name: str, expected: object) -> None:
    ((position, _),) = placed(of_fields, name)

    assert position == expected


def test_long_name_of_a_source_field_takes_precedence(found: Callable[..., list[Row]]) -> None:
    (row,) = found(of_fields, "long names")

    assert (row["source_position"], row["position_domain"], row["source_ts_ms"]) == ([2], "n/d", None)


@pytest.mark.parametrize("name", ["an array", "half a place"])
def test_field_merely_named_like_a_position_is_ignored(placed: Placed, name: str) -> None:
    ((position, _),) = placed(of_fields, name)

    assert position is None
