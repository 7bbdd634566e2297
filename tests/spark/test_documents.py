"""MongoDB: a row is one JSON text, and an update may come without it."""

import json
from pathlib import Path
from typing import Any

from events import DOCUMENT, Topic
from lake import Lake, by_offset, decided
from pyspark.sql import SparkSession

from cdc_lake.events.schemas import parse
from cdc_lake.events.types import mapping

KEY = '{"$oid": "64b7"}'
FIRST, SECOND = '{"_id": {"$oid": "64b7"}, "n": 1.0}', '{"_id": {"$oid": "64b7"}, "n": {"$numberLong": "2"}}'


def documents() -> Topic:
    return Topic({"document": "string"}, keys={"id": "string"}, connector="mongodb")


def test_a_document_is_held_as_the_text_it_comes_as(spark: SparkSession, tmp_path: Path) -> None:
    topic = documents()
    lake = Lake(spark, tmp_path, topic)

    after_insert = lake.take([topic.change("c", KEY, {"document": FIRST}, source={"ord": 1})])
    assert after_insert[KEY]["document"] == FIRST
    after_update = lake.take([topic.change("u", KEY, {"document": SECOND}, source={"ord": 2})])
    assert after_update[KEY]["document"] == SECOND
    after_delete = lake.take([topic.change("d", KEY, {"document": SECOND}, source={"ord": 3}), topic.tombstone(KEY)])
    assert (after_delete[KEY]["document"], after_delete[KEY]["__deleted"]) == (SECOND, True)
    assert mapping(parse(json.dumps(DOCUMENT))).type == "string"


def problems(spark: SparkSession, topic: Topic, records: Any) -> list[str | None]:
    """Why each record is quarantined."""
    rows = by_offset(decided(spark, topic.registry, records))
    return [row["error"] and row["error"]["message"] for row in rows]


def test_an_update_without_its_document_is_a_problem_with_advice(spark: SparkSession) -> None:
    topic = documents()
    records = [
        topic.change("c", KEY, {"document": FIRST}),
        topic.change("u", KEY, {"document": None}),
        topic.change("d", KEY, {"document": None}),
        topic.change("r", KEY, {"document": None}),
    ]

    found = problems(spark, topic, records)

    advice = " and `after` is null; set capture.mode=change_streams_update_full on the connector"
    assert found == [None, f"op is u{advice}", None, f"op is r{advice}"]


def test_a_row_that_is_there_is_no_problem(spark: SparkSession) -> None:
    for flat in (False, True):
        topic = Topic({"name": ["null", "string"]}, flat=flat)
        records = [topic.change("u", 1, {"name": None}), topic.change("d", 1)]

        assert problems(spark, topic, records) == [None, None]
