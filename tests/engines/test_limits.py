"""Records that are too large or too many for one batch: each is quarantined, and adjacent records land."""

import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from support import wire
from support.converters import (
    ENVELOPE,
    KEY_TEXT,
    TABLE,
    TEXTS,
    VALUE_TEXT,
    AnyIdRegistry,
    Lake,
    event,
    numbered_registry,
    row,
)
from support.events import Record
from support.fakes import kafka

from cdc_lake.bronze import decide, json_fields, schema_resolution, usable_schemas
from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.registries.registry import RegisteredSchema
from cdc_lake.silver.run import run_silver
from cdc_lake.sources.logs import Span

LIMIT = 1000


class Counted(AnyIdRegistry):
    """Records the requests for ids."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[tuple[str, str]] = set()

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        """See `Registry`."""
        self.asked.add((kind, schema_id))
        return super().schema(kind, schema_id)


def of(key: int, name: str = "") -> bytes:
    return wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("c", row(key, name), key)))


@pytest.mark.core
def test_large_record_is_quarantined_without_its_bytes(spark: SparkSession, tmp_path: Path) -> None:
    registry = numbered_registry()
    lake = Lake(spark, tmp_path, registry, read={"max_record_bytes": LIMIT})
    lake.send_numbered(1, of(1), 2)
    lake.send_numbered(2, of(2, "x" * LIMIT), 2)

    report = lake.land()

    assert report.rows == {"read": 2, "ok": 1, "quarantined": 1, "control": 0}
    assert report.read_bytes < LIMIT
    bad = lake.bronze()[1]
    assert bad["error"]["code"] == "too_large"
    assert bad["error"]["message"].endswith(f" bytes are more than `read.max_record_bytes`: {LIMIT}, and are not kept")
    assert (bad["raw_value"], bad["raw_key"][-1], bad["op"], bad["tombstone_of"]) == (None, 4, None, None)

    lake.send_numbered(3, of(3), 2)
    assert lake.land().rows["ok"] == 1  # the large record is not mistaken for another one
    config = Config(lake=LakeConfig(root=str(tmp_path)))
    (again,) = replay_quarantined(config, [TABLE.name], spark, registry=registry).tables
    assert again.rows == {"replayed": 0, "still_quarantined": 1}  # and never for a delete
    assert "frame: too_large: value: " in again.warnings[0]


@pytest.mark.core
def test_ids_and_layouts_beyond_the_limits_are_quarantined(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (decide, schema_resolution, usable_schemas):
        monkeypatch.setattr(module, "MAX_IDS", 10)
        monkeypatch.setattr(module, "MAX_LAYOUTS", 3)
    registry, bodies = Counted(), dict[int, bytes]()
    registry.put("contentId:1", KEY_TEXT)
    for number in range(2, 30):
        table = replace(TABLE, columns={**TABLE.columns, f"more{number}": wire.optional(wire.INT32)})
        schema = wire.envelope(table)
        text = wire.json_text(wire.avro_schema(schema)).decode()
        bodies[number] = wire.avro(text, wire.filled(schema, event("c", row(number, ""), number)))
        if number < 7:
            registry.put(f"contentId:{number}", text)
    lake = Lake(spark, tmp_path, registry)
    lake.send_numbered(0, bodies[2], 2)
    assert lake.land().rows["ok"] == 1

    registry.asked.clear()
    for number, body in bodies.items():
        lake.send_numbered(number, body, number)
    for number in range(5):  # schemas in JSON
        key, value = (
            wire.json_text({"schema": {"type": "struct", "fields": [], "name": f"{number}"}, "payload": {}}),
        ) * 2
        lake.send((key, []), (value, []))
    long = ("a" * 2000).encode()
    lake.send(
        (wire.framed("id4", "id:1", wire.avro(KEY_TEXT, {"id": 1}), "key")),
        (of(1), [("apicurio.value.contentHash", long)]),
    )
    report = lake.land()

    assert report.error is None, report.error
    assert report.rows["ok"] == 3, lake.problems()
    assert len({name for _, name in registry.asked}) <= 11
    problems = list(lake.problems().values())
    assert sum("exceeds the 3 layouts that a batch may have" in one for one in problems) == 2
    assert (
        sum("its batch has more than 10 schema ids, or more than 3 schemas in JSON" in one for one in problems)
        == 18 + 2
    )
    assert problems[-1] == "value: the reference to its schema has more than 1024 characters"


def test_known_id_counts_before_lower_unknown_ones(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (decide, schema_resolution, usable_schemas):
        monkeypatch.setattr(module, "MAX_IDS", 10)
    registry = AnyIdRegistry()
    registry.put("contentId:1", KEY_TEXT)
    registry.put("contentId:900", VALUE_TEXT)
    lake = Lake(spark, tmp_path, registry)
    lake.send_numbered(1, of(1), 900)
    assert lake.land().rows["ok"] == 1

    for number in range(100, 120):
        lake.send_numbered(number, of(number), number)
    lake.send_numbered(2, of(2), 900)
    report = lake.land()

    assert (report.error, report.rows["ok"], report.rows["quarantined"]) == (None, 1, 20)


def test_invented_json_layouts_leave_room_for_registered_schemas(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (decide, schema_resolution, usable_schemas):
        monkeypatch.setattr(module, "MAX_LAYOUTS", 3)
    registry = numbered_registry()
    lake = Lake(spark, tmp_path, registry)
    for number in range(5):
        table = replace(TABLE, columns={**TABLE.columns, f"more{number}": wire.optional(wire.INT32)})
        value = wire.json_record(wire.envelope(table), event("c", row(number, ""), number + 1))
        lake.send((wire.json_record(TABLE.key, {"id": number}), []), (value, []))
    lake.send_numbered(9, of(9), 2)

    report = lake.land()

    assert (report.error, report.rows["ok"]) == (None, 3), lake.problems()
    assert 5 not in lake.problems()


def plain(lake: Lake, key: int, **more: Any) -> None:
    lake.send((wire.json_text({"id": key}), []), (wire.json_text({"id": key, **more}), []))


def test_json_fields_beyond_the_limit_are_replayed_later(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (json_fields, schema_resolution):
        monkeypatch.setattr(module, "MAX_FIELDS", 4)
    settings: dict[str, Any] = {
        "key": {"wire_format": "json"},
        "value": {"wire_format": "json", "columns": {"id": "int", "z": "int"}},
    }
    lake = Lake(spark, tmp_path, AnyIdRegistry(), **settings)
    for key, fields in enumerate((["a"], ["b"], ["a", "b"], ["z"], ["c"], [], ["d", "a"])):
        plain(lake, key, **dict.fromkeys(fields, 1))

    assert lake.land().error is None
    problems = lake.problems()
    assert list(problems) == [4, 6]
    assert all("beyond the 4 fields that JSON without a schema may have" in problem for problem in problems.values())
    assert lake.fold().keys() == {0, 1, 2, 3, 5}

    config = Config(lake=LakeConfig(root=str(tmp_path)), defaults=TableConfig(**settings))
    (again,) = replay_quarantined(config, [TABLE.name], spark, registry=lake.registry).tables
    assert again.rows == {"replayed": 2, "still_quarantined": 0}
    rows = lake.fold()
    assert (rows[4]["c"], rows[6]["d"], rows[6]["a"], rows[3]["z"]) == ("1", "1", "1", 1)


def test_json_fields_that_exclude_each_other_stay_apart(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(
        spark,
        tmp_path,
        AnyIdRegistry(),
        key={"wire_format": "json"},
        value={"wire_format": "json", "columns": {"id": "int"}},
        schema={"rename": {"old_name": "name"}},
        read={"max_records_per_batch": 5},
    )
    sent: list[dict[str, str]] = [
        *({"name": "a"}, {"old_name": "b"}, {"userId": "c"}, {"userID": "d", "name": "d"}, {"two words": "e"}),
        *({"name": "f", "old_name": "f"}, {"old_name": "g"}, {"other": "h"}),
    ]
    for key, more in enumerate(sent):
        plain(lake, key, **more)

    assert lake.land().error is None
    problems = lake.problems()
    assert list(problems) == [4, 5]
    assert "'two words' contains a space" in problems[4] and "`schema.rename` maps `name`" in problems[5]
    rows = lake.fold()
    assert {key: row["name"] for key, row in rows.items()} == {
        0: "a",
        1: "b",
        2: None,
        3: "d",
        6: "g",
        7: None,
    }
    assert (rows[2]["userId"], rows[3]["userID__string"], rows[7]["other"]) == ("c", "d", "h")


def test_driver_collects_few_of_many_references(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = wire.framed("id4", "id:1", wire.avro(KEY_TEXT, {"id": 1}), "key")
    values = [wire.framed("id4", f"id:{number}", b"x", "value")[0] for number in range(2, 5002)]
    embedded = {"type": "struct", "fields": []}
    values += [wire.json_text({"schema": {**embedded, "name": f"{name}"}, "payload": {}}) for name in range(500)]
    at = datetime.fromtimestamp(1_700_000_000, UTC)
    sent = kafka(spark, [Record(key, value, TABLE.name, 0, offset, at, []) for offset, value in enumerate(values)])
    collected: list[str] = []
    collect = DataFrame.collect

    def counted(frame: DataFrame) -> list[Row]:
        rows = collect(frame)
        collected.extend(one for row in rows for found in row if isinstance(found, list) for one in found)
        return rows

    monkeypatch.setattr(DataFrame, "collect", counted)
    records, summary = schema_resolution.scan_records(sent, TableConfig())
    records.unpersist()

    assert summary.total == len(values)
    found = Counter(reference.partition(":")[0] for reference in summary.references["value"])
    assert found == {"id4": usable_schemas.MAX_IDS + 1, "connect": usable_schemas.MAX_LAYOUTS + 1}
    references = Counter(one.partition(":")[0] for one in collected if ":" in one)
    assert references["connect"] <= usable_schemas.MAX_LAYOUTS + 1
    assert references["id4"] <= 2 * (usable_schemas.MAX_IDS + 1) + 2  # scanned twice, as the second frame showed


def test_batches_hold_at_most_max_batch_bytes(spark: SparkSession, tmp_path: Path) -> None:
    registry = numbered_registry()
    lake = Lake(spark, tmp_path, registry, read={"max_batch_bytes": 2000})
    for number, size in enumerate((1, 1, 1, 600, 600, 2500)):
        lake.send_numbered(number, of(number, "x" * size), 2)
    first = lake.broker.read(spark, TABLE.name, {0: Span(3, 4)}).first()
    assert first is not None
    for partition in (1, 2):
        at = first["timestamp"].astimezone(UTC)
        lake.broker.append(Record(first["key"], first["value"], TABLE.name, partition, 0, at, []))

    report = lake.land()

    assert (report.error, report.rows["ok"]) == (None, 8)
    sizes = Counter[int]()
    for one in lake.bronze():
        sizes[one["batch"]] += len(one["raw_key"]) + len(one["raw_value"])
    assert sorted(size > 2000 for size in sizes.values()) == [*[False] * (len(sizes) - 1), True]  # one record alone
    assert 2 < len(sizes) < 8


def test_headers_count_in_batches_and_large_ones_are_not_kept(spark: SparkSession, tmp_path: Path) -> None:
    registry = numbered_registry()
    lake = Lake(spark, tmp_path, registry, read={"max_batch_bytes": 2000, "max_record_bytes": LIMIT})
    key = wire.framed("id4", "id:1", wire.avro(KEY_TEXT, {"id": 1}), "key")
    value, _ = wire.framed("id4", "id:2", of(1), "value")
    for size in (900, 900, 900, LIMIT + 1, 0):
        lake.send(key, (value, [("x", b"x" * size), ("\u00fc", b"")]))

    report = lake.land()

    assert (report.error, report.rows["ok"], list(lake.problems())) == (None, 4, [3])
    assert (
        lake.problems()[3]
        == f"headers: {LIMIT + 4} bytes are more than `read.max_record_bytes`: {LIMIT}, and are not kept"
    )
    rows = lake.bronze()
    assert rows[3]["headers"] is None and len(rows[2]["headers"]) == 2
    assert max(Counter(one["batch"] for one in rows).values()) < 3  # keys and values alone would fit one batch


def test_silver_batches_hold_at_most_max_batch_bytes(spark: SparkSession, tmp_path: Path) -> None:
    registry = numbered_registry()
    lake = Lake(spark, tmp_path, registry, read={"max_records_per_batch": 1})
    for number, size in enumerate((600, 600, 600, 2500, 1)):
        lake.send_numbered(number, of(number, "x" * size), 2)
    assert lake.land().batches == 5
    config = Config(lake=LakeConfig(root=str(tmp_path)), defaults=TableConfig(read={"max_batch_bytes": 2000}))

    (report,) = run_silver(config, [TABLE.name], spark).tables

    assert (report.error, report.rows["events"], report.batches) == (None, 5, 4)  # 2 rows, 1, the large one alone, 1


def test_compressed_bodies_count_with_their_unpacked_size(spark: SparkSession, tmp_path: Path) -> None:
    registry, glue = AnyIdRegistry(), {side: f"glue:{uuid.UUID(int=number)}" for number, side in enumerate(TEXTS)}
    for side, text in TEXTS.items():
        registry.put(glue[side], text)
    lake = Lake(spark, tmp_path, registry, read={"max_batch_bytes": 200_000, "max_record_bytes": 100_000})
    bodies = [of(number, "x" * 80_000) for number in range(5)]
    bodies.append(of(5, "x" * 100_001))
    garbage = wire.framed("glue-zlib", glue["value"], b"", "value")[0][:-4] + b"\xff" * 40
    for number, body in enumerate(bodies):
        key = wire.framed("glue-zlib", glue["key"], wire.avro(KEY_TEXT, {"id": number}), "key")
        lake.send(key, wire.framed("glue-zlib", glue["value"], body, "value"))
    lake.send(wire.framed("glue", glue["key"], wire.avro(KEY_TEXT, {"id": 6}), "key"), (garbage, []))

    report = lake.land()

    assert (report.error, report.rows["ok"], report.rows["quarantined"]) == (None, 5, 2)
    rows = lake.bronze()
    assert max(Counter(one["batch"] for one in rows).values()) <= 2
    assert rows[5]["error"]["code"] == "too_large" and rows[5]["raw_value"] is None
    assert rows[5]["error"]["message"].startswith(
        "value: it unpacks to more bytes than `read.max_record_bytes`: 100000"
    )
    assert rows[6]["error"]["code"] == "undecodable" and bytes(rows[6]["raw_value"]) == garbage
