"""MongoDB: a row is one JSON text, and an update may come without it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.converters import AnyIdRegistry
from support.converters import Lake as AnyLake
from support.events import DOCUMENT, FakeRegistry, Record, Topic
from support.lake import Cases, Lake

from cdc_lake.decode.schemas import parse
from cdc_lake.decode.types import type_mapping

KEY = '{"$oid": "64b7"}'
FIRST, SECOND = '{"_id": {"$oid": "64b7"}, "n": 1.0}', '{"_id": {"$oid": "64b7"}, "n": {"$numberLong": "2"}}'


CASES = Cases()


def documents(registry: FakeRegistry | None = None) -> Topic:
    return Topic({"document": "string"}, keys={"id": "string"}, connector="mongodb", registry=registry)


def test_document_is_stored_as_its_original_text(spark: SparkSession, tmp_path: Path) -> None:
    topic = documents()
    changes = [
        topic.change(op, key, {"document": text}, source={"ord": 10 * key_number + number})
        for key_number, (key, lasts) in enumerate({"inserted": 1, "updated": 2, "deleted": 3}.items())
        for number, (op, text) in enumerate([("c", FIRST), ("u", SECOND), ("d", SECOND)][:lasts])
    ]

    rows = Lake(spark, tmp_path, topic).take([*changes, topic.tombstone("deleted")])

    assert {key: (row["document"], row["__deleted"]) for key, row in rows.items()} == {
        "inserted": (FIRST, False),
        "updated": (SECOND, False),
        "deleted": (SECOND, True),
    }
    assert type_mapping(parse(json.dumps(DOCUMENT))).type == "string"


def test_json_without_schema_gives_the_same_documents(spark: SparkSession, tmp_path: Path) -> None:
    plain = {"wire_format": "json"}
    lake = AnyLake(spark, tmp_path, AnyIdRegistry(), topic="m.shop.carts", key=plain, value=plain)

    def send(op: str, key: str, ordinal: int, document: str | None = None, **more: object) -> None:
        source = {"connector": "mongodb", "name": "m", "db": "shop", "rs": "rs0", "ts_ms": 9_000, "ord": ordinal}
        value = {"after": document, "source": {**source, "txnNumber": None}, "op": op, **more}
        lake.send((json.dumps({"id": key}).encode(), []), (json.dumps(value).encode(), []))

    send("d", "unseen", 1)
    assert lake.land().error is None
    assert {key: (row["document"], row["__deleted"]) for key, row in lake.fold().items()} == {"unseen": (None, True)}

    send("c", "updated", 2, FIRST)
    send("u", "updated", 3, SECOND)
    send("u", "updated", 4, None, updateDescription={"updatedFields": '{"n": 3}', "removedFields": None})
    send("c", "deleted", 5, FIRST)
    send("d", "deleted", 6)
    assert lake.land().error is None

    (patch,) = lake.problems().values()
    assert "set capture.mode=change_streams_update_full on the connector" in patch
    assert {key: (row["document"], row["__deleted"]) for key, row in lake.fold().items()} == {
        "unseen": (None, True),
        "updated": (SECOND, False),
        "deleted": (FIRST, True),
    }
    assert [row["source_position"] for row in lake.bronze() if row["status"] == "ok"] == [
        [9, ordinal, -1] for ordinal in (1, 2, 3, 5, 6)
    ]


@CASES.of()
def without_documents(registry: FakeRegistry) -> list[Record]:
    topic = documents(registry)
    return [
        topic.change("c", KEY, {"document": FIRST}),
        topic.change("u", KEY, {"document": None}),
        topic.change("d", KEY, {"document": None}),
        topic.change("r", KEY, {"document": None}),
    ]


@CASES.of(False, True)
def with_rows(registry: FakeRegistry, flat: bool) -> list[Record]:
    topic = Topic({"name": ["null", "string"]}, registry=registry, flat=flat)
    return [topic.change("u", 1, {"name": None}), topic.change("d", 1)]


@pytest.fixture(scope="module")
def problems(spark: SparkSession) -> Callable[..., list[str | None]]:
    """The reason of quarantine for each of a case's records."""
    found = CASES.decided(spark)
    return lambda *case: [row["error"] and row["error"]["message"] for row in found(*case)]


def test_update_without_document_is_a_problem_with_advice(problems: Callable[..., list[str | None]]) -> None:
    advice = " and `after` is null; set capture.mode=change_streams_update_full on the connector"

    assert problems(without_documents) == [None, f"op is u{advice}", None, f"op is r{advice}"]


@pytest.mark.parametrize("flat", [False, True])
def test_row_with_document_is_not_a_problem(problems: Callable[..., list[str | None]], flat: bool) -> None:
    assert problems(with_rows, flat) == [None, None]
