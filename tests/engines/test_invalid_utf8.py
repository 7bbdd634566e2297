"""Texts that are not UTF-8, which Spark accepts and other readers of the tables do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
from pyspark.sql import SparkSession
from support import wire
from support.converters import AnyIdRegistry, Lake

GARBLED, GOOD = b"caf\xe6", b"caf\xc3\xa9"
HALVES = {b"Q1": b"Q\xc3", b"2Q": b"\xa9Q"}
"""Marks in texts, and halves of a character."""
TABLE = wire.Table(
    "pagila.public.thing",
    {
        "id": wire.STRING,
        "name": wire.optional(wire.STRING),
        "tags": wire.optional(wire.array(wire.STRING)),
        "more": wire.optional({"type": "map", "keys": {"type": "string"}, "values": wire.STRING}),
        "lists": wire.optional(wire.array(wire.array(wire.STRING))),
    },
    ["id"],
)
OTHERS = ("name", "tags", "more", "lists")
ENVELOPE = wire.envelope(TABLE)
TEXTS = {
    name: wire.json_text(wire.avro_schema(one)).decode() for name, one in (("key", TABLE.key), ("value", ENVELOPE))
}
MARK = "cafXX"
PLACES: dict[str, Callable[[dict[str, Any]], None]] = {
    "id": lambda event: None,
    "name": lambda event: event["after"].update(name=MARK),
    "tags": lambda event: event["after"].update(tags=["a", MARK]),
    "a map's key": lambda event: event["after"].update(more={MARK: "a"}),
    "a map's value": lambda event: event["after"].update(more={"a": MARK}),
    "a list in a list": lambda event: event["after"].update(lists=[[], ["a", MARK]]),
    "two halves of a character": lambda event: event["after"].update(tags=["Q1", "2Q"]),
    "the database": lambda event: event["source"].update(db=MARK),
}


def test_text_that_is_not_utf8_quarantines_its_record(spark: SparkSession, tmp_path: Path) -> None:
    registry = AnyIdRegistry()
    for number, text in enumerate(TEXTS.values(), 1):
        registry.put(f"contentId:{number}", text)
    lake = Lake(spark, tmp_path, registry)
    for text in (GARBLED, GOOD):
        for number, (place, put) in enumerate(PLACES.items()):
            key = MARK if place == "id" else f"{number} {len(text)}"
            source = {**wire.postgres_values(TABLE.name), "ts_ms": 1_700_000_000_000, "lsn": number + 1, "txId": 1}
            event = wire.whole_event("c", None, {"id": key, **dict.fromkeys(OTHERS)}, source, 1)
            put(event)
            sides = {"key": wire.avro(TEXTS["key"], {"id": key})}
            sides["value"] = wire.avro(TEXTS["value"], wire.filled(ENVELOPE, event))
            marked = {side: body.replace(MARK.encode(), (text + b"xx")[:5]) for side, body in sides.items()}
            if text == GARBLED:
                for mark, half in HALVES.items():
                    marked["value"] = marked["value"].replace(mark, half)
            framed = (
                wire.framed("id4", f"id:{number}", marked[side], side)  # type: ignore[arg-type]
                for number, side in enumerate(sides, 1)
            )
            lake.send(*framed)

    assert lake.land().error is None

    rows = lake.bronze()
    assert [row["status"] for row in rows] == ["quarantined"] * len(PLACES) + ["ok"] * len(PLACES)
    assert {(row["error"]["stage"], row["error"]["code"]) for row in rows[: len(PLACES)]} == {("decode", "not_utf8")}
    assert len(lake.fold()) == len(PLACES)
    files = [str(file) for file in (tmp_path / "silver").rglob("*.parquet") if "_delta_log" not in file.parts]
    assert len(pyarrow.dataset.dataset(files).to_table().to_pylist()) == len(PLACES)  # it decodes each text
