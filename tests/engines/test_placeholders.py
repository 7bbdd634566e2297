"""Placeholders never reach a table and never replace a value; docs/explanation/ordering-and-deletes.md, T1 to T3."""

import base64
import hashlib
import json
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from support.events import OPTIONAL_INT, OPTIONAL_STRING, PLACEHOLDER, Record, Topic, connect
from support.lake import Lake, by_offset, decided

from cdc_lake.decode.envelope import row_fields, row_of
from cdc_lake.decode.framing import body
from cdc_lake.decode.records import WriterSchema, with_decoded_values
from cdc_lake.silver.unavailable import can_be_unavailable, unavailable

RAW = PLACEHOLDER.encode()
AS_UUID = str(uuid.UUID(bytes=hashlib.md5(RAW, usedforsecurity=False).digest(), version=3))


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": ["null", items]}


FORMS: dict[str, tuple[Any, Any]] = {
    "text": ("string", PLACEHOLDER),
    "json": (connect("string", "io.debezium.data.Json"), PLACEHOLDER),
    "uuid": (connect("string", "io.debezium.data.Uuid"), PLACEHOLDER),
    "tsvector": (connect("string", "io.debezium.data.Tsvector"), PLACEHOLDER),
    "bytea": ("bytes", RAW),
    "bytea_hex": ("string", RAW.hex()),
    "bytea_base64": ("string", base64.b64encode(RAW).decode()),
    "texts": (array("string"), [PLACEHOLDER]),
    "jsons": (array(connect("string", "io.debezium.data.Json")), [PLACEHOLDER]),
    "ints": (array("int"), list(RAW)),
    "dates": (array(connect("int", "io.debezium.time.Date")), list(RAW)),
    "longs": (array("long"), list(RAW)),
    "byteas": (array("bytes"), [RAW]),
    "hstore": ({"type": "map", "values": ["null", "string"]}, {PLACEHOLDER: PLACEHOLDER}),
    "hstore_json": (connect("string", "io.debezium.data.Json"), f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}'),
    "uuids": (array(connect("string", "io.debezium.data.Uuid")), [AS_UUID]),
    "iso_dates": (array(connect("string", "io.debezium.time.IsoDate")), [PLACEHOLDER]),
}
LOOK_ALIKES: dict[str, Any] = {
    "text": f"{PLACEHOLDER} ",
    "json": f'"{PLACEHOLDER}"',
    "uuid": AS_UUID,
    "tsvector": "",
    "bytea": RAW + b"\0",
    "bytea_hex": RAW.hex()[:-1],
    "bytea_base64": "",
    "texts": [PLACEHOLDER, PLACEHOLDER],
    "jsons": [None],
    "ints": [*RAW[:-1], None],
    "dates": [0],
    "longs": [],
    "byteas": [RAW, None],
    "hstore": {PLACEHOLDER: "x"},
    "hstore_json": "{}",
    "uuids": [PLACEHOLDER, AS_UUID],
    "iso_dates": ["2020-02-29Z"],
}


def found(
    spark: SparkSession, topics: Sequence[Topic], records: Sequence[Record], placeholder: str = PLACEHOLDER
) -> list[set[str]]:
    """The columns of each record that were not sent."""
    registry, schemas = topics[0].registry, [WriterSchema(topic.value_text) for topic in topics]
    rows, layouts = with_decoded_values(
        decided(spark, registry, [replace(record, offset=offset) for offset, record in enumerate(records)]),
        {schema.fingerprint: [schema] for schema in schemas},
        body=body(F.col("value"), F.col("value_framing"), ["id4"]),
        named=F.col("value_schema"),
    )
    names = layouts.chosen(lambda one: unavailable(row_fields(one.tree), row_of(one.tree, one.value), placeholder))
    return [set(row["names"]) for row in by_offset(rows.select("offset", names.alias("names")))]


def test_every_placeholder_form_is_recognized_and_nothing_else(spark: SparkSession) -> None:
    columns = {name: ["null", kind] for name, (kind, _) in FORMS.items()}
    enveloped = Topic(columns)
    topics = [enveloped, Topic(columns, flat=True, registry=enveloped.registry)]
    rows = [{name: sent for name, (_, sent) in FORMS.items()}, LOOK_ALIKES, None]

    seen = found(spark, topics, [topic.change("u", 1, row) for topic in topics for row in rows])

    assert seen == [set(FORMS), set(), set()] * 2


def test_custom_placeholder_replaces_the_default_one(spark: SparkSession) -> None:
    topic = Topic({"text": OPTIONAL_STRING, "ints": ["null", array("int")]})
    records = [
        topic.change("u", 1, {"text": "gone", "ints": list(b"gone")}),
        topic.change("u", 1, {"text": PLACEHOLDER, "ints": list(RAW)}),
    ]

    assert found(spark, [topic], records, "gone") == [{"text", "ints"}, set()]


def test_placeholder_beyond_ascii_is_found_in_numbers(spark: SparkSession) -> None:
    topic = Topic({"ints": ["null", array("int")], "longs": ["null", array("long")]})
    numbers = [-62, -85, 97]  # Java's bytes of «a

    assert found(spark, [topic], [topic.change("u", 1, {"ints": numbers, "longs": numbers})], "«a") == [
        {"ints", "longs"}
    ]


@pytest.mark.parametrize("connector", ["sqlserver", "mysql"])
def test_large_columns_of_other_databases_send_placeholders(spark: SparkSession, connector: str) -> None:
    """SQL Server's `(max)` columns; MySQL's BLOB and TEXT with `binlog_row_image=noblob`."""
    columns = {"text": OPTIONAL_STRING, "bytes": ["null", "bytes"], "hex": OPTIONAL_STRING, "n": OPTIONAL_INT}
    topic = Topic(columns, connector=connector)
    sent = {"text": PLACEHOLDER, "bytes": RAW, "hex": RAW.hex(), "n": None}

    assert found(spark, [topic], [topic.change("u", 1, sent)]) == [{"text", "bytes", "hex"}]


@pytest.mark.parametrize(
    "kind",
    ["int", "boolean", "double", connect("string", "io.debezium.data.Enum"), array("double")],
)
def test_type_without_placeholder_is_never_unavailable(kind: Any) -> None:
    assert not can_be_unavailable(WriterSchema(json.dumps(kind)).tree)


class Case:
    """Batches of changes to one row: each change is an op and, for an upsert, `n` and `body`."""

    def __init__(self, batches: Sequence[Sequence[tuple[Any, ...]]], soft: tuple[Any, ...], hard: Any, emptied: Any):
        self.batches, self.soft, self.hard, self.emptied = batches, soft, hard, emptied


P = PLACEHOLDER
GONE = None
MISSING = ["body"]
C, U, D = ("c", 1, "old"), ("u", 2, P), ("d",)
CASES = {
    "T1 in one batch": Case([[C], [("u", 2, "X"), ("u", 3, P)]], (3, "X", False, []), *[(3, "X", [])] * 2),
    "T1 in two batches": Case([[C], [("u", 2, "X")], [("u", 3, P)]], (3, "X", False, []), *[(3, "X", [])] * 2),
    "T1 in the first batch": Case([[C, ("u", 2, "X"), ("u", 3, P)]], (3, "X", False, []), *[(3, "X", [])] * 2),
    "the stored value stays": Case([[C], [U]], (2, "old", False, []), *[(2, "old", [])] * 2),
    "a stored null stays": Case([[("c", 1, None)], [U]], (2, None, False, []), *[(2, None, [])] * 2),
    "a null is a value": Case([[C], [("u", 2, None), U]], (2, None, False, []), *[(2, None, [])] * 2),
    "T2: there is no row": Case([[U]], (2, None, False, MISSING), *[(2, None, MISSING)] * 2),
    "T2: still missing": Case([[U], [("u", 3, P)]], (3, None, False, MISSING), *[(3, None, MISSING)] * 2),
    "T2: sent at last": Case([[U], [("u", 3, "X")]], (3, "X", False, []), *[(3, "X", [])] * 2),
    "T2: sent, then not": Case([[U], [("u", 3, "X"), ("u", 4, P)]], (4, "X", False, []), *[(4, "X", [])] * 2),
    "T3: delete, insert, update": Case(
        [[C], [D, ("c", 2, "new"), ("u", 3, P)]], (3, "new", False, []), *[(3, "new", [])] * 2
    ),
    "T3: in three batches": Case(
        [[C], [D], [("c", 2, "new"), ("u", 3, P)]], (3, "new", False, []), *[(3, "new", [])] * 2
    ),
    "an insert does not reach behind the delete in its batch": Case(
        [[C], [("u", 2, "X"), D, ("c", 3, P)]], (3, None, False, MISSING), *[(3, None, MISSING)] * 2
    ),
    "an insert does not reach behind the delete before its batch": Case(
        [[C], [D], [("c", 3, P)]], (3, None, False, MISSING), *[(3, None, MISSING)] * 2
    ),
    "an insert does not reach behind a lone tombstone": Case(
        [[C], [("tombstone",)], [("c", 3, P)]], (3, None, False, MISSING), *[(3, None, MISSING)] * 2
    ),
    "a snapshot row fills what is missing": Case([[U], [("r", 2, "X")]], (2, "X", False, []), *[(2, "X", [])] * 2),
    "a delete keeps the last values": Case([[C], [D]], (1, "old", True, []), GONE, (None, None, [])),
    "a delete behind a change keeps the change": Case(
        [[C], [("u", 2, P), D]], (2, "old", True, []), GONE, (None, None, [])
    ),
    "a delete in the first batch": Case([[C, U, D]], (2, "old", True, []), GONE, (None, None, [])),
    "a delete of an unknown row": Case([[D]], (None, None, True, []), GONE, (None, None, [])),
    "a delete of a row with a missing value": Case([[U], [D]], (2, None, True, MISSING), GONE, (None, None, [])),
    "a second delete changes nothing": Case([[C], [D], [D]], (1, "old", True, []), GONE, (None, None, [])),
    "a tombstone behind its delete": Case([[C], [D, ("tombstone",)]], (1, "old", True, []), GONE, (None, None, [])),
    "a tombstone in the batch behind its delete's": Case(
        [[C], [D], [("tombstone",)]], (1, "old", True, []), GONE, (None, None, [])
    ),
}


def batches_of(topic: Topic) -> list[list[Record]]:
    """The changes of all cases, batch by batch; each case has one key."""
    longest = max(len(case.batches) for case in CASES.values())
    lsn = 0
    batches: list[list[Record]] = []
    for number in range(longest):
        records = []
        for key, case in enumerate(CASES.values()):
            for op, *values in case.batches[number] if number < len(case.batches) else []:
                lsn += 1
                if op == "tombstone":
                    records.append(topic.tombstone(key))
                else:
                    after = dict(zip(("n", "body"), values, strict=False))
                    records.append(topic.change(op, key, after, lsn=lsn, ts_ms=lsn))
        batches.append(records)
    return batches


@pytest.fixture(scope="module")
def landed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Topic, Path]:
    """Bronze with the batches of all cases."""
    topic = Topic({"n": OPTIONAL_INT, "body": OPTIONAL_STRING})
    root = tmp_path_factory.mktemp("lake") / "landed"
    lake = Lake(spark, root, topic)
    for records in batches_of(topic):
        lake.land(records)
    return topic, root


def silver_of(
    spark: SparkSession, landed: tuple[Topic, Path], name: str, *, batches: int = 3, **settings: Any
) -> dict[str, dict[str, Any]]:
    """The row of each case, folded in a copy of the lake: batch by batch, or all in one batch."""
    topic, root = landed
    settings |= {"read": {"max_records_per_batch": 1}} if batches > 1 else {}
    lake = Lake(spark, shutil.copytree(root, root.parent / name), topic, **settings)
    assert lake.fold().batches == batches
    rows = lake.rows()
    return {name: rows[key] for key, name in enumerate(CASES) if key in rows}


def test_unsent_values_are_kept_also_by_soft_deletes(spark: SparkSession, landed: tuple[Topic, Path]) -> None:
    rows = silver_of(spark, landed, "soft")

    held = {name: (r["n"], r["body"], r["__deleted"], r["__unavailable"]) for name, r in rows.items()}
    assert held == {name: case.soft for name, case in CASES.items()}


@pytest.mark.parametrize("batches", [1, pytest.param(3, marks=pytest.mark.deep)])
def test_soft_delete_values_null_clears_all_but_the_key(
    spark: SparkSession, landed: tuple[Topic, Path], batches: int
) -> None:
    rows = silver_of(spark, landed, f"emptied in {batches}", batches=batches, deletes={"keep_values": False})

    held = {name: (r["n"], r["body"], r["__unavailable"]) for name, r in rows.items()}
    assert held == {name: case.emptied for name, case in CASES.items()}
    deleted = {name for name, row in rows.items() if row["__deleted"]}
    assert deleted == {name for name, case in CASES.items() if case.hard is GONE}


@pytest.mark.deep
def test_hard_delete_leaves_no_value_to_carry_over(spark: SparkSession, landed: tuple[Topic, Path]) -> None:
    rows = silver_of(spark, landed, "hard", deletes={"mode": "hard"})

    held = {name: (r["n"], r["body"], r["__unavailable"]) for name, r in rows.items()}
    assert held == {name: case.hard for name, case in CASES.items() if case.hard is not GONE}


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_column_is_null_in_rows_sent_without_it(spark: SparkSession, tmp_path: Path, apart: bool) -> None:
    """The rows without the column come in the batch of those with it, or in a separate batch."""
    old = Topic({"n": OPTIONAL_INT})
    new = Topic({"n": OPTIONAL_INT, "body": OPTIONAL_STRING}, registry=old.registry)
    first, appears, goes = (
        [old.record(change.key, change.value) for change in changes]
        for changes in (
            [old.change("c", key, {"n": key}, lsn=key, ts_ms=key) for key in (1, 2, 3, 4)],
            [
                new.change("u", 1, {"n": 10, "body": "X"}, lsn=10, ts_ms=10),
                new.change("u", 2, {"n": 20, "body": PLACEHOLDER}, lsn=11, ts_ms=11),
                new.change("u", 3, {"n": 30, "body": "Y"}, lsn=12, ts_ms=12),
            ],
            [old.change("u", 3, {"n": 9}, lsn=20, ts_ms=20)],
        )
    )
    lake = Lake(spark, tmp_path, old)

    rows = lake.take(first, *((appears, goes) if apart else ([*appears, *goes],)))

    assert {key: (row["n"], row["body"]) for key, row in rows.items()} == {
        1: (10, "X"),
        2: (20, None),
        3: (9, None),
        4: (4, None),
    }
    assert {key: row["__unavailable"] or [] for key, row in rows.items()} == {1: [], 2: ["body"], 3: [], 4: []}
    assert lake.silver.version() == 1 + apart
