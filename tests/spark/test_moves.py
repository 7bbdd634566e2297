"""The two halves of a key change have one name, and nothing else has it."""

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.events.moves import has_move_headers, move_of

NEW, OLD = "__debezium.newkey", "__debezium.oldkey"
DELETE = {"headers": [(NEW, b'{"id":2}')], "key": '{"id":1}', "position": [100], "domain": "s/db", "ts_ms": 7}
INSERT = {**DELETE, "headers": [(OLD, b'{"id":1}')], "key": '{"id":2}'}
UNPLACED = {"position": None}
COLUMNS = (
    "place int, headers array<struct<key: string, value: binary>>, position array<bigint>, domain string, "
    "ts_ms bigint, key string"
)


def moves(spark: SparkSession, *records: dict[str, Any]) -> list[tuple[bool, str | None]]:
    """Of each record whether it has the headers, and its move."""
    names = ("headers", "position", "domain", "ts_ms", "key")
    rows = [(place, *(record[name] for name in names)) for place, record in enumerate(records)]
    found = spark.createDataFrame(rows, COLUMNS).select(
        "place", has_move_headers(F.col("headers")), move_of(*(F.col(name) for name in names))
    )
    return [(has, move) for _, has, move in sorted(found.collect())]


def names(spark: SparkSession, *records: dict[str, Any]) -> list[str | None]:
    return [move for _, move in moves(spark, *records)]


@pytest.mark.parametrize("position", [[100], [3, 17, 0], [39, 2752, 2, 39, 2752, 3], None])
def test_both_halves_of_a_key_change_have_one_name(spark: SparkSession, position: list[int] | None) -> None:
    delete, insert = names(spark, DELETE | {"position": position}, INSERT | {"position": position})

    assert delete is not None
    assert insert == delete


def test_the_serial_number_of_sql_server_is_no_part_of_the_name(spark: SparkSession) -> None:
    place = [39, 2752, 2, 39, 2752, 3]

    delete, insert, next_change = names(
        spark,
        DELETE | {"position": [*place, 1]},
        INSERT | {"position": [*place, 2]},
        DELETE | {"position": [*place[:5], 4, 1]},
    )

    assert delete is not None
    assert insert == delete
    assert next_change != delete


@pytest.mark.parametrize("other", [{"position": [101]}, {"domain": "s/other"}, {"ts_ms": 8}], ids=str)
def test_a_change_at_another_place_of_the_source_s_log_has_another_name(
    spark: SparkSession, other: dict[str, Any]
) -> None:
    delete, insert = names(spark, DELETE, INSERT | other)

    assert delete is not None
    assert insert != delete


@pytest.mark.parametrize(
    "other",
    [
        {"ts_ms": 8},
        {"key": '{"id":3}'},
        {"headers": [(OLD, b'{"id":3}')]},
        {"headers": [(OLD, b'{"id":1,"more":1}')]},
    ],
    ids=str,
)
def test_without_a_position_a_change_of_other_keys_or_at_another_time_has_another_name(
    spark: SparkSession, other: dict[str, Any]
) -> None:
    delete, insert = names(spark, DELETE | UNPLACED, INSERT | UNPLACED | other)

    assert None not in (delete, insert)
    assert insert != delete


def test_there_and_back_again_are_two_changes(spark: SparkSession) -> None:
    back = {**DELETE, "headers": [(NEW, b'{"id":1}')], "key": '{"id":2}'}

    there, again = names(spark, DELETE | UNPLACED, back | UNPLACED)

    assert there is not None
    assert there != again


def test_keys_agree_whatever_the_order_of_their_columns_and_the_spaces(spark: SparkSession) -> None:
    old, new = '{"a":"x \\u00e9","b":true,"n":1}', '{"a":null,"b":false,"n":-2}'
    delete = DELETE | UNPLACED | {"key": old, "headers": [(NEW, b'{"n": -2, "b": false, "a": null}')]}
    insert = INSERT | UNPLACED | {"key": new, "headers": [(OLD, '{"n":1,"b":true,"a":"x é"}'.encode())]}

    first, second = names(spark, delete, insert)

    assert first is not None
    assert first == second


def test_a_record_without_the_headers_is_no_half(spark: SparkSession) -> None:
    plain = [DELETE | {"headers": headers} for headers in (None, [], [("__debezium.context.taskId", b"0")])]

    assert moves(spark, *plain) == [(False, None)] * 3


@pytest.mark.parametrize("value", [None, b"", b"Struct{id=2}", b"5", b"[1]", b"{", b'{"id":', b"\xff\xfe\0", b"null"])
def test_a_header_that_is_no_json_of_a_key_leaves_the_position_to_tell(
    spark: SparkSession, value: bytes | None
) -> None:
    broken = DELETE | {"headers": [(NEW, value)]}

    found = moves(spark, broken, broken | UNPLACED, INSERT)

    assert found[0] == found[2]
    assert found[1] == (True, None)


def test_a_header_that_comes_twice_counts_as_the_last(spark: SparkSession) -> None:
    twice = DELETE | UNPLACED | {"headers": [(NEW, b'{"id":9}'), (NEW, b'{"id":2}')]}

    first, second = names(spark, twice, INSERT | UNPLACED)

    assert first is not None
    assert first == second


def test_halves_without_position_and_time_are_named_by_their_keys(spark: SparkSession) -> None:
    unknown = {"position": None, "domain": None, "ts_ms": None}

    first, second = names(spark, DELETE | unknown, INSERT | unknown)

    assert first is not None
    assert first == second
