"""MongoDB: a row is one JSON text, and an update may come without it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
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
