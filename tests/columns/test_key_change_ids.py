"""The two halves of a key change have the same id, and no other change has it."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.fold.rules import SHARED
from cdc_lake.silver.key_changes import has_key_change_headers, key_change_id

pytestmark = pytest.mark.core

NEW, OLD = "__debezium.newkey", "__debezium.oldkey"
DELETE = {"headers": [(NEW, b'{"id":2}')], "key": '{"id":1}', "position": [100], "domain": "s/db", "ts_ms": 7}
INSERT = {**DELETE, "headers": [(OLD, b'{"id":1}')], "key": '{"id":2}'}
UNPLACED = {"position": None}
UNKNOWN = {"position": None, "domain": None, "ts_ms": None}
COLUMNS = (
    "name string, place int, headers array<struct<key: string, value: binary>>, position array<bigint>, domain string, "
    "ts_ms bigint, key string"
)
HEADERS = {
    "null": None,
    "empty": b"",
    "a struct": b"Struct{id=2}",
    "a number": b"5",
    "an array": b"[1]",
    "a brace": b"{",
    "cut off": b'{"id":',
    "no UTF-8": b"\xff\xfe\0",
    "a JSON null": b"null",
}
"""Texts that are not JSON of a key."""
GROUP = [39, 2752, 2, SHARED]
"""The position of a SQL Server transaction."""
SAME = {
    "Postgres": (DELETE, INSERT),
    "SQL Server": (DELETE | {"position": GROUP}, INSERT | {"position": GROUP}),
    "no position": (DELETE | UNPLACED, INSERT | UNPLACED),
    "keys agree with any order of their columns and any spaces": (
        DELETE
        | UNPLACED
        | {"key": '{"a":"x \\u00e9","b":true,"n":1}', "headers": [(NEW, b'{"n": -2, "b": false, "a": null}')]},
        INSERT
        | UNPLACED
        | {"key": '{"a":null,"b":false,"n":-2}', "headers": [(OLD, '{"n":1,"b":true,"a":"x é"}'.encode())]},
    ),
    "neither position nor time": (DELETE | UNKNOWN, INSERT | UNKNOWN),
    "a header that comes twice counts as the last": (
        DELETE | UNPLACED | {"headers": [(NEW, b'{"id":9}'), (NEW, b'{"id":2}')]},
        INSERT | UNPLACED,
    ),
    **{
        f"a header that is no JSON of a key leaves the position to tell: {name}": (
            DELETE | {"headers": [(NEW, value)]},
            INSERT,
        )
        for name, value in HEADERS.items()
    },
}
OTHERS = {
    "another place": (DELETE, INSERT | {"position": [101]}),
    "another domain": (DELETE, INSERT | {"domain": "s/other"}),
    "another time": (DELETE, INSERT | {"ts_ms": 8}),
    "another transaction": (DELETE | {"position": GROUP}, INSERT | {"position": [39, 2752, 3, SHARED]}),
    "another key change of the transaction": (
        DELETE | {"position": GROUP},
        INSERT | {"position": GROUP, "headers": [(OLD, b'{"id":3}')]},
    ),
    "no position and another time": (DELETE | UNPLACED, INSERT | UNPLACED | {"ts_ms": 8}),
    "no position and another new key": (DELETE | UNPLACED, INSERT | UNPLACED | {"key": '{"id":3}'}),
    "no position and another old key": (DELETE | UNPLACED, INSERT | UNPLACED | {"headers": [(OLD, b'{"id":3}')]}),
    "no position and more columns of the key": (
        DELETE | UNPLACED,
        INSERT | UNPLACED | {"headers": [(OLD, b'{"id":1,"more":1}')]},
    ),
    "no position, there and back again": (
        DELETE | UNPLACED,
        DELETE | UNPLACED | {"headers": [(NEW, b'{"id":1}')], "key": '{"id":2}'},
    ),
}
NAMELESS = {
    f"no position, and the header is {name}": DELETE | UNPLACED | {"headers": [(NEW, value)]}
    for name, value in HEADERS.items()
}
NO_HALVES = {
    "null": DELETE | {"headers": None},
    "none": DELETE | {"headers": []},
    "others": DELETE | {"headers": [("__debezium.context.taskId", b"0")]},
}

Moves = dict[tuple[str, int], tuple[bool, str | None]]


@pytest.fixture(scope="module")
def key_changes(spark: SparkSession) -> Moves:
    """For each case's records: whether they have the headers, and their key change."""
    cases = {**SAME, **OTHERS, **{name: (record,) for name, record in {**NAMELESS, **NO_HALVES}.items()}}
    fields = ("headers", "position", "domain", "ts_ms", "key")
    rows = [
        (name, place, *(record[field] for field in fields))
        for name, records in cases.items()
        for place, record in enumerate(records)
    ]
    found = spark.createDataFrame(rows, COLUMNS).select(
        "name", "place", has_key_change_headers(F.col("headers")), key_change_id(*(F.col(field) for field in fields))
    )
    return {(name, place): (has_headers, key_change) for name, place, has_headers, key_change in found.collect()}


@pytest.mark.parametrize("case", SAME)
def test_both_halves_of_a_key_change_share_one_id(key_changes: Moves, case: str) -> None:
    (is_half, delete), (is_other_half, insert) = key_changes[case, 0], key_changes[case, 1]

    assert is_half and is_other_half
    assert delete is not None
    assert insert == delete


@pytest.mark.parametrize("case", OTHERS)
def test_different_key_changes_have_different_ids(key_changes: Moves, case: str) -> None:
    (_, delete), (_, insert) = key_changes[case, 0], key_changes[case, 1]

    assert None not in (delete, insert)
    assert insert != delete


@pytest.mark.parametrize("case", NAMELESS)
def test_unrelated_halves_have_no_id(key_changes: Moves, case: str) -> None:
    assert key_changes[case, 0] == (True, None)


@pytest.mark.parametrize("case", NO_HALVES)
def test_record_without_key_change_headers_is_not_a_half(key_changes: Moves, case: str) -> None:
    assert key_changes[case, 0] == (False, None)
