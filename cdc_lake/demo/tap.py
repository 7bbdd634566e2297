"""Read Kafka independently, without code of cdc_lake, and count the difficult events.

The demo proves something only if the stream has difficult events.
"""

import io
import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import fastavro
import requests
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

PLACEHOLDER: Final = "__debezium_unavailable_value"
# Debezium's placeholder for each column type.
_PLACEHOLDERS: Final = (
    PLACEHOLDER,
    PLACEHOLDER.encode(),
    "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
    PLACEHOLDER.encode().hex(),
    [PLACEHOLDER],
    [PLACEHOLDER.encode()],
    list(PLACEHOLDER.encode()),
    ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
    {PLACEHOLDER: PLACEHOLDER},
    json.dumps({PLACEHOLDER: PLACEHOLDER}, separators=(",", ":")),
)
NEW_KEY: Final = "__debezium.newkey"


@dataclass(frozen=True)
class StreamStats:
    """Counts of a stream.

    Attributes:
        records: records by topic, including tombstones.
        deletes: delete events, including those of key changes.
        ties: streaming events with the same source time as their key's previous streaming event.
        key_changes: deletes with a header that has the new key.
        placeholders: updates with at least one placeholder.
        replayed: values that the topic has had before, byte for byte.
        broken: records by topic whose value does not decode; they count nowhere else.
    """

    records: Mapping[str, int]
    updates: int
    deletes: int
    ties: int
    key_changes: int
    placeholders: int
    replayed: int
    broken: Mapping[str, int]

    @property
    def totals(self) -> dict[str, int]:
        """Each count over all topics, without the number of records."""
        counts = {key: value for key, value in asdict(self).items() if key != "records"}
        return {**counts, "broken": sum(self.broken.values())}


@dataclass(frozen=True)
class _Event:
    """A change, from a flattened record or an envelope."""

    op: str
    source_ts_ms: int
    row: Mapping[str, object]


def observe(bootstrap: str, registry_url: str, topics: Sequence[str]) -> StreamStats:
    """Read topics from the beginning to the current end, and count their events.

    Args:
        registry_url: Apicurio's version 3 API, `http://host:port/apis/registry/v3`.
        topics: topics of change events, flattened or enveloped; other records are only counted.

    Returns:
        The counts over all topics.
    """
    registry = _Registry(registry_url)
    records = Counter(dict.fromkeys(topics, 0))
    counts: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    last_ts_ms: dict[tuple[str, bytes], int] = {}
    values: set[tuple[str, bytes]] = set()
    for message in messages(bootstrap, topics):
        topic, key, value = message.topic() or "", message.key() or b"", message.value()
        records[topic] += 1
        if value is None:
            continue
        try:
            event = _event(registry.decode(value))
        except (EOFError, ValueError):
            broken[topic] += 1
            continue
        counts["replayed"] += (topic, value) in values
        values.add((topic, value))
        if event is None or event.op not in ("c", "u", "d"):
            continue
        counts["updates"] += event.op == "u"
        counts["deletes"] += event.op == "d"
        counts["ties"] += last_ts_ms.get((topic, key)) == event.source_ts_ms
        counts["key_changes"] += event.op == "d" and NEW_KEY in dict(message.headers() or [])
        counts["placeholders"] += event.op == "u" and any(value in _PLACEHOLDERS for value in event.row.values())
        last_ts_ms[topic, key] = event.source_ts_ms
    names = ("updates", "deletes", "ties", "key_changes", "placeholders", "replayed")
    return StreamStats(dict(records), **{name: counts[name] for name in names}, broken=dict(broken))


def superseded_update(bootstrap: str, registry_url: str, topic: str) -> tuple[Message, Mapping[str, object]]:
    """The first update of the row with the most updates among those that exist: its record and its columns.

    Raises:
        ValueError: no row has two updates.
    """
    registry = _Registry(registry_url)
    updates: dict[bytes, list[tuple[Message, Mapping[str, object]]]] = {}
    for message in messages(bootstrap, [topic]):
        key, value = message.key() or b"", message.value()
        event = _event(registry.decode(value)) if value is not None else None
        if event is not None and event.op == "u":
            updates.setdefault(key, []).append((message, event.row))
        elif event is None or event.op == "d":
            updates.pop(key, None)
    most = max(updates.values(), key=len, default=[])
    if len(most) < 2:
        raise ValueError(f"{topic}: no row has two updates")
    return most[0]


def end_offsets(bootstrap: str, topics: Sequence[str]) -> dict[str, int]:
    """The sum of the end offsets of a topic's partitions, by topic: how many records it has had."""
    consumer = _consumer(bootstrap)
    try:
        return {
            topic: sum(consumer.get_watermark_offsets(at)[1] for at in _partitions(consumer, topic)) for topic in topics
        }
    finally:
        consumer.close()


def messages(bootstrap: str, topics: Sequence[str]) -> Iterator[Message]:
    """Yield the committed records of topics up to the current end, in order per partition."""
    consumer = _consumer(bootstrap)
    try:
        partitions = [partition for topic in topics for partition in _partitions(consumer, topic)]
        consumer.assign(partitions)
        unfinished = {(partition.topic, partition.partition) for partition in partitions}
        while unfinished:
            for message in consumer.consume(1_000, timeout=1):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard((str(message.topic()), message.partition() or 0))
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "cdc-lake-tap",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )


def _partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    metadata = consumer.list_topics(topic, timeout=10).topics[topic]
    return [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in metadata.partitions]


def _event(value: Any) -> _Event | None:
    """The change in a decoded value; none for messages and heartbeats."""
    if not isinstance(value, dict):
        return None
    if "op" in value and "source" in value:
        return _Event(value["op"], value["source"]["ts_ms"], value.get("after") or {})
    if "__op" in value:
        return _Event(value["__op"], value["__source_ts_ms"], value)
    return None


class _Registry:
    """Schemas of an Apicurio 3 registry, each fetched once."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.schemas: dict[int, Any] = {}

    def decode(self, framed: bytes) -> Any:
        """Decode Avro behind a zero byte and a four-byte content id; every byte must be used."""
        magic, content_id = struct.unpack(">bI", framed[:5])
        if magic:
            raise ValueError(f"a record begins with {framed[:5].hex()}: not a zero byte and a schema id")
        body = io.BytesIO(framed[5:])
        value = fastavro.schemaless_reader(body, self.schema(content_id), None)
        if left := body.read():
            raise ValueError(f"schema {content_id}: {len(left)} bytes are left over")
        return value

    def schema(self, content_id: int) -> Any:
        """Return a schema by its content id, ready to decode with."""
        if content_id not in self.schemas:
            path = f"ids/contentIds/{content_id}"
            named: dict[str, Any] = {}
            for part in self._referenced(path):
                if f"{part.get('namespace', '')}.{part['name']}".lstrip(".") not in named:
                    fastavro.parse_schema(_without_logical_types(part), named)
            self.schemas[content_id] = fastavro.parse_schema(_without_logical_types(self._get(path)), named)
        return self.schemas[content_id]

    def _referenced(self, path: str) -> Iterator[Any]:
        """Yield the schemas that a schema refers to, each after those it refers to itself."""
        for reference in self._get(f"{path}/references"):
            group = reference.get("groupId") or "default"
            version = f"groups/{group}/artifacts/{reference['artifactId']}/versions/{reference['version']}"
            yield from self._referenced(version)
            yield self._get(f"{version}/content")

    def _get(self, path: str) -> Any:
        answer = requests.get(f"{self.url}/{path}", timeout=10)
        answer.raise_for_status()
        return answer.json()


def _without_logical_types(schema: Any) -> Any:
    """Return the schema without logical types: an infinite date would else make a whole record unreadable."""
    if isinstance(schema, list):
        return [_without_logical_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: part if name in ("default", "connect.default") else _without_logical_types(part)
        for name, part in schema.items()
        if name != "logicalType"
    }
