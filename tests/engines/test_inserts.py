"""Batches whose events only add rows are appended, if their keys are above all of the table's; others are merged."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support import wire
from support.converters import ENVELOPE, VALUE_TEXT, Lake, event, numbered_registry, row


def send(lake: Lake, key: int, name: str, lsn: int, op: str = "c") -> None:
    lake.send_numbered(key, encoded(op, row(key, name), lsn), 2)


def encoded(op: str, content: dict[str, Any] | None, lsn: int) -> bytes:
    return wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event(op, content, lsn)))


def written(lake: Lake) -> tuple[str, dict[int, str]]:
    """Land and merge what was sent: the operation of silver's commit, and the names of the rows."""
    assert lake.land().error is None
    names = {key: one["name"] for key, one in lake.fold().items() if not one["__deleted"]}
    table = lake.table("silver")
    info = table.commit_info(table.version())
    assert info is not None
    return info["operation"], names


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path, numbered_registry())


def test_inserts_above_all_keys_are_appended(lake: Lake) -> None:
    send(lake, 1, "a", 10, "r")
    send(lake, 2, "b", 20)
    assert written(lake) == ("WRITE", {1: "a", 2: "b"})
    wider = VALUE_TEXT.replace('"name":"picture"', '"name":"photo"')
    lake.registry.put("contentId:3", wider)
    content = wire.filled(ENVELOPE, event("c", row(4, "d"), 40))
    content["after"]["photo"] = content["after"].pop("picture")
    lake.send_numbered(4, wire.avro(wider, content), 3)
    send(lake, 3, "c", 30)
    assert written(lake) == ("WRITE", {1: "a", 2: "b", 3: "c", 4: "d"})
    pictures = {one["id"]: (one["picture"], one["photo"]) for one in lake.table("silver").read().collect()}
    assert pictures[3] == (b"\0\x01\xff", None) and pictures[4] == (None, b"\0\x01\xff")
    send(lake, 6, "f", 60)
    send(lake, 6, "newer", 70)
    assert written(lake) == ("MERGE", {1: "a", 2: "b", 3: "c", 4: "d", 6: "newer"})
    send(lake, 4, "d again", 40)
    send(lake, 2, "older", 5)
    assert written(lake) == ("MERGE", {1: "a", 2: "b", 3: "c", 4: "d", 6: "newer"})


def test_inserts_that_may_be_stale_are_merged(lake: Lake) -> None:
    send(lake, 1, "a", 10)
    lake.send((None, []), wire.framed("id4", "id:2", encoded("t", None, 50), "value"))
    assert written(lake)[1] == {}
    send(lake, 2, "older than the truncate", 20)

    assert written(lake) == ("MERGE", {})


def test_inserts_up_to_the_end_of_a_snapshot_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, numbered_registry(), deletes={"missing_after_snapshot": True})
    send(lake, 1, "a", 10)
    assert written(lake) == ("WRITE", {1: "a"})
    for key, marker in ((2, "first"), (3, "last")):
        content = event("r", row(key, "read"), 90)
        content["source"]["snapshot"] = marker
        lake.send_numbered(key, wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, content)), 2)

    assert written(lake) == ("MERGE", {2: "read", 3: "read"})


def test_inserts_of_removed_keys_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, numbered_registry(), deletes={"mode": "hard"})
    send(lake, 1, "a", 10)
    send(lake, 2, "b", 20)
    send(lake, 2, "b", 30, "d")
    assert written(lake)[1] == {1: "a"}
    send(lake, 2, "sent again", 20)

    assert written(lake) == ("MERGE", {1: "a"})


def test_inserts_that_apply_as_deletes_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, numbered_registry(), deletes={"mode": "hard"}, merge={"apply_as_deletes": "id = 2"})
    send(lake, 1, "a", 10)
    assert written(lake) == ("WRITE", {1: "a"})
    send(lake, 2, "b", 20)

    assert written(lake) == ("MERGE", {1: "a"})
