"""A change's place in its source's log: whole or unknown, alike in both shapes, compared inside one domain."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from events import OPTIONAL_STRING, FakeRegistry, Record, Topic, body, framed
from lake import by_offset, decided
from pyspark.sql import Row, SparkSession

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
MONGODB = {"rs": "rs0", "ord": 7, "ts_ms": 1_700_000_000_999}


def placed(spark: SparkSession, records: list[Record], registry: FakeRegistry) -> list[Row]:
    """What bronze says of each record, in order; they may be of several topics."""
    rows = by_offset(decided(spark, registry, records))
    assert {row["status"] for row in rows} == {"ok"}
    return rows


def of_each(spark: SparkSession, connector: str, sources: list[Mapping[str, Any]]) -> list[tuple[Any, str | None]]:
    """Position and domain of a flattened change from each of these source blocks."""
    here = Topic(COLUMNS, flat=True, connector=connector)
    rows = placed(spark, [here.change("u", 1, lsn=None, source=source) for source in sources], here.registry)
    return [(row["source_position"], row["position_domain"]) for row in rows]


def test_each_source_s_position_is_read_alike_from_both_shapes(spark: SparkSession) -> None:
    sources = {
        "postgresql": ({"lsn": 26213752}, [26213752], "pagila/pagila"),
        "mysql": (MYSQL, [999, 154, 2], "223344/mysql-bin"),
        "sqlserver": (SQL_SERVER, [0x27, 0xAC0, 2, 0x27, 0xAB8, 0xFFFF, 1], "pagila/pagila"),
        "oracle": (ORACLE, [281474976710656, 281474976710650, 0x41, 0xA1B, 0x10, 3], "pagila/pagila"),
    }
    registry = FakeRegistry()
    records, expected = [], []
    for connector, (source, position, domain) in sources.items():
        for flat in (False, True):
            here = Topic(COLUMNS, flat=flat, registry=registry, connector=connector)
            records.append(here.change("u", 1, source=source, offset=len(records)))
            expected.append((position, domain))

    rows = placed(spark, records, registry)

    assert [(row["source_position"], row["position_domain"]) for row in rows] == expected


@pytest.mark.parametrize(
    ("connector", "known", "broken"),
    [
        ("postgresql", {"lsn": 5}, {"lsn": [None]}),
        (
            "mysql",
            MYSQL,
            {"file": [None, "", "mysql-bin", ".000001", "bin.0x1", f"bin.{10**18}"], "pos": [None], "row": [None]},
        ),
        (
            "sqlserver",
            SQL_SERVER,
            {
                "commit_lsn": [None, "NULL", "", "27:ac0:2", "0000002g:00000ac0:0002", "00000027:00000ac0:0002:1"],
                "change_lsn": [None, "NULL"],
                "event_serial_no": [None],
            },
        ),
        (
            "oracle",
            ORACLE,
            {
                "commit_scn": [None, "null", "", "12.5", "0x1f", "9223372036854775808", "1:1:0a", " 12"],
                "scn": [None, "null"],
                "rs_id": [None, "", "0x000041.00000a1b"],
                "ssn": [None],
            },
        ),
    ],
)
def test_a_position_with_a_component_missing_or_malformed_is_unknown(
    spark: SparkSession, connector: str, known: dict[str, Any], broken: dict[str, list[Any]]
) -> None:
    bad = [known | {name: value} for name, values in broken.items() for value in values]

    whole, *others = of_each(spark, connector, [known, *bad])

    assert whole[0] is not None
    assert [position for position, _ in others] == [None] * len(bad)


def test_mysql_s_files_compare_by_number_and_only_inside_one_server_s_series(spark: SparkSession) -> None:
    sources = [{}, {"file": "mysql-bin.1000000"}, {"file": "replica.bin.000999"}, {"server_id": 5}, {"file": None}]

    one, next_file, other_series, other_server, unknown = of_each(spark, "mysql", [MYSQL | more for more in sources])

    assert next_file[1] == one[1]
    assert next_file[0] > one[0]
    assert other_series == ([999, 154, 2], "223344/replica.bin")
    assert other_server[1] == "5/mysql-bin"
    assert unknown == (None, None)


def test_an_oracle_number_as_wide_as_a_bigint_is_read_whole(spark: SparkSession) -> None:
    ((position, _),) = of_each(spark, "oracle", [ORACLE | {"scn": "9223372036854775807"}])

    assert position == [281474976710656, 9223372036854775807, 0x41, 0xA1B, 0x10, 3]


def test_positions_of_other_servers_and_databases_are_in_other_domains(spark: SparkSession) -> None:
    sources = [{"name": "other"}, {"db": "other"}, {"name": None}, {"db": None}]

    found = of_each(spark, "postgresql", sources)

    assert [domain for _, domain in found] == [
        "other/pagila",
        "pagila/other",
        "pagila.public.thing",
        "pagila.public.thing",
    ]


def test_a_row_of_an_incremental_snapshot_has_no_position(spark: SparkSession) -> None:
    here = Topic(COLUMNS)

    (row,) = placed(spark, [here.change("r", 1, lsn=None, snapshot="incremental")], here.registry)

    assert (row["source_position"], row["snapshot"]) == (None, "incremental")


def flat_records(fields: list[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[list[Record], FakeRegistry]:
    """Flattened rows, each with fields (name to Avro type, name to value) of its own beside the key."""
    here = Topic(COLUMNS)
    records = []
    for number, (kinds, values) in enumerate(fields):
        columns = [{"name": name, "type": kind} for name, kind in {"id": "int", **kinds}.items()]
        text = json.dumps({"type": "record", "name": f"pagila.public.thing{number}.Value", "fields": columns})
        value = framed(here.registry.add(text), body(text, {"id": 1, **values}))
        records.append(here.record(here.key(1), value))
    return records, here.registry


def test_mongodb_s_position_is_the_second_and_the_number_in_it_inside_a_replica_set(spark: SparkSession) -> None:
    kinds = {"__rs": "string", "__ord": "int", "__source_ts_ms": "long"}
    values = {f"__source_{name}" if name == "ts_ms" else f"__{name}": value for name, value in MONGODB.items()}

    (row,) = placed(spark, *flat_records([(kinds, values)]))

    assert (row["source_position"], row["position_domain"]) == ([1_700_000_000, 7], "rs0")


def test_mongodb_s_changes_inside_a_transaction_have_no_position_of_their_own(spark: SparkSession) -> None:
    kinds = {"__rs": "string", "__ord": "int", "__source_ts_ms": "long", "__txnNumber": "long"}
    values = {"__rs": "rs0", "__ord": 7, "__source_ts_ms": 1_700_000_000_999, "__txnNumber": 4}

    (row,) = placed(spark, *flat_records([(kinds, values)]))

    assert row["source_position"] is None


def test_a_field_of_the_source_block_is_found_by_its_long_name_first(spark: SparkSession) -> None:
    kinds = {"__lsn": "long", "__source_lsn": "long", "__ts_ms": "long", "__source_db": "string", "__name": "string"}
    values = {"__lsn": 1, "__source_lsn": 2, "__ts_ms": 3, "__source_db": "d", "__name": "n"}

    (row,) = placed(spark, *flat_records([(kinds, values)]))

    assert (row["source_position"], row["position_domain"], row["source_ts_ms"]) == ([2], "n/d", None)


def test_a_field_that_only_has_the_name_of_a_position_s_is_none(spark: SparkSession) -> None:
    lsns = {"type": "array", "items": "long"}
    whole_lsns = {"__lsn": lsns}
    half_a_place = {"__pos": "long"}

    rows = placed(spark, *flat_records([(whole_lsns, {"__lsn": [1]}), (half_a_place, {"__pos": 4})]))

    assert [row["source_position"] for row in rows] == [None, None]
