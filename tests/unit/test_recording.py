"""The recording of `cdc-lake demo --recorded`: its size, and the events that it must have."""

import gzip
import io
import json
from functools import cache
from itertools import pairwise
from typing import Any

import fastavro
import pytest
from support import wire

from cdc_lake.demo.recorded import RECORDING, TOPIC, RecordedRegistry, RecordedTopic, read_recording
from cdc_lake.sources.logs import Span
from cdc_lake.tables.progress import Identity

pytestmark = pytest.mark.core

CONTENT = json.loads(gzip.decompress(RECORDING.read_bytes()))
RECORDED = [record for record in CONTENT["records"] if "note" not in record]
REPLAYED, BROKEN = (record for record in CONTENT["records"] if "note" in record)
MAX_BYTES = 300_000


@cache
def schema_of(reference: str) -> Any:
    return fastavro.parse_schema(json.loads(CONTENT["schemas"][reference]))


def decoded(record: dict[str, Any], side: wire.Side = "value") -> dict[str, Any]:
    frame = wire.opened(bytes.fromhex(record[side]), [], side)
    body = io.BytesIO(frame.body)
    row: dict[str, Any] = fastavro.schemaless_reader(body, schema_of(str(frame.reference)), None)
    assert body.read() == b""
    return row


ROWS = [decoded(record) for record in RECORDED]
HEADERS = [dict(record["headers"]) for record in RECORDED]
PLACEHOLDERS = ("__debezium_unavailable_value", b"__debezium_unavailable_value", ["__debezium_unavailable_value"])


def ops(rows: list[dict[str, Any]]) -> str:
    return "".join(row["__op"] for row in rows)


def transactions() -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The events of each row and transaction."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in ROWS[CONTENT["snapshot"] :]:
        found.setdefault((row["film_id"], row["__source_txId"]), []).append(row)
    return found


def test_recording_is_small() -> None:
    assert RECORDING.stat().st_size <= MAX_BYTES


def test_recording_begins_with_the_snapshot() -> None:
    snapshot = CONTENT["snapshot"]

    assert 90 <= snapshot <= 110
    assert ops(ROWS[:snapshot]) == "r" * snapshot
    assert "r" not in ops(ROWS[snapshot:])
    assert [record["offset"] for record in CONTENT["records"]] == list(range(len(CONTENT["records"])))


@pytest.mark.parametrize("kind", ["c", "u", "d", "dc", "uu", "cud"])
def test_recording_has_each_sequence_in_one_transaction(kind: str) -> None:
    """Such as `dc`, a row that is deleted and inserted again."""
    assert sum(ops(rows) == kind for rows in transactions().values()) >= 3


def test_recording_has_changed_keys() -> None:
    pairs = [
        (old["__op"], new["__op"])
        for (old, left), (new, came) in pairwise(zip(ROWS, HEADERS, strict=True))
        if "__debezium.newkey" in left and "__debezium.oldkey" in came
    ]

    assert len(pairs) >= 10
    assert set(pairs) == {("d", "c")}


@pytest.mark.parametrize("column", ["description", "poster", "special_features"])
def test_recording_has_placeholders(column: str) -> None:
    assert sum(row[column] in PLACEHOLDERS for row in ROWS if row["__op"] == "u") >= 3


def test_replayed_record_is_an_old_copy() -> None:
    original = RECORDED[int(REPLAYED["note"].removeprefix("copy of offset "))]
    newest = [row for row in ROWS if row["film_id"] == CONTENT["story_key"]][-1]

    assert {**REPLAYED, "offset": original["offset"]} == {**original, "note": REPLAYED["note"]}
    assert decoded(REPLAYED)["film_id"] == newest["film_id"]
    assert decoded(REPLAYED)["__lsn"] < newest["__lsn"]


def test_broken_record_does_not_decode() -> None:
    assert decoded(BROKEN, "key") == {"film_id": CONTENT["story_key"]}
    with pytest.raises(EOFError):
        decoded(BROKEN)


def test_recording_has_the_rows_of_postgres() -> None:
    alive = {row["film_id"]: row["__op"] != "d" for row in ROWS}

    rows = [json.loads(row) for row in CONTENT["rows"]]
    assert [row[0] for row in rows] == sorted(key for key, is_alive in alive.items() if is_alive)
    assert {len(row) for row in rows} == {len(CONTENT["catalogue"])}
    assert sum(json.loads(row)["films"] for row in CONTENT["gold"]) == len(rows)


def test_recorded_topic_responds_like_a_broker() -> None:
    records = read_recording().records[:50]
    topic, last = RecordedTopic(records), records[-1]
    log = topic.logs([TOPIC])[TOPIC]

    assert topic.topics() == [TOPIC]
    assert log.partitions == {0: Span(0, 50)}
    assert topic.offsets_at(log, 0) == {0: 0}
    assert topic.offsets_at(log, last.timestamp_ms + 1) == {0: 50}
    assert topic.timestamps_ms(TOPIC, {0: 49}) == {0: last.timestamp_ms}
    assert topic.first_records(TOPIC, {0: 49}) == {0: Identity.of(49, last.timestamp_ms, last.key, last.value)}
    assert topic.first_records(TOPIC, {0: 50}) == {}


def test_recorded_registry_knows_only_recorded_ids() -> None:
    registry = RecordedRegistry(CONTENT["schemas"])
    found = registry.schema("contentId", "4")

    assert found is not None and found.text == CONTENT["schemas"]["contentId:4"]
    assert registry.schema("globalId", "4") is None
    assert registry.schema("contentId", "5") is None
