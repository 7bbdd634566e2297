"""The log that all contenders read: flattened change events of a shop, encoded before anything is measured.

It follows from its seed. A plain Arrow table of the same events says what the tables must hold in the end.
"""

import io
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow as pa
import requests
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

PREFIX = "bench.public"
ORDERS = f"{PREFIX}.orders"
_START_MS = 1_700_000_000_000
_ADDED = (
    {"name": "city", "type": ["null", "string"], "default": None},
    {"name": "score", "type": ["null", "double"], "default": None},
)
_WORDS = ("amber", "birch", "coral", "dune", "ember", "fjord", "grove", "heath", "isle", "jade")


def small(number: int) -> str:
    """The name of one of the small topics."""
    return f"{PREFIX}.small_{number:02}"


@dataclass
class _Topic:
    """A table's log so far.

    Attributes:
        live: keys of the rows that are there.
        keys: how many there have been.
        sent: its events.
        version: of its schema, from 0.
        key_schema, schema: the id in the registry, and what fastavro needs to write it.
    """

    name: str
    partitions: int
    live: list[int] = field(default_factory=list)
    keys: int = 0
    sent: list[dict[str, Any]] = field(default_factory=list)
    version: int = 0
    key_schema: tuple[int, Any] = (0, None)
    schema: tuple[int, Any] = (0, None)

    def new_key(self) -> int:
        self.keys += 1
        self.live.append(self.keys)
        return self.keys

    def any_key(self, chance: random.Random, *, goes: bool) -> int:
        at = chance.randrange(len(self.live))
        key = self.live[at]
        if goes:
            self.live[at] = self.live[-1]
            self.live.pop()
        return key


class Log:
    """Sends the events to Kafka, and knows what it sent.

    Args:
        kafka: the broker.
        registry: URL of Apicurio Registry, without `/apis`.
    """

    def __init__(self, kafka: str, registry: str, seed: int = 1) -> None:
        self._kafka, self._registry = kafka, registry
        self._random = random.Random(seed)
        self._topics: dict[str, _Topic] = {}
        self._seq = 0
        self._producer = Producer({"bootstrap.servers": kafka, "linger.ms": 50, "batch.size": 1 << 20})

    def create(self, topics: Mapping[str, int]) -> None:
        """Create topics, and register the first schemas of each.

        Args:
            topics: the number of partitions by name.
        """
        admin = AdminClient({"bootstrap.servers": self._kafka})
        for future in admin.create_topics([NewTopic(name, number, 1) for name, number in topics.items()]).values():
            future.result(30)
        for name, partitions in topics.items():
            topic = self._topics[name] = _Topic(name, partitions)
            topic.key_schema = self._register(f"{name}-key", _key_schema(name))
            topic.schema = self._register(f"{name}-value", value_schema(name, 0))

    def use(self, name: str, schema: dict[str, Any]) -> None:
        """Write what follows in a topic with a schema of its own."""
        self._topics[name].schema = self._register(f"{name}-value", schema)

    def snapshot(self, name: str, rows: int) -> None:
        """Rows as a connector's first snapshot sends them."""
        topic = self._topics[name]
        for _ in range(rows):
            self._send(topic, "r", topic.new_key())
        self._producer.flush()

    def steady(self, name: str, events: int, *, evolves: bool = False) -> None:
        """Of the events 20 % are inserts, 60 % updates and 20 % deletes.

        Args:
            evolves: whether the table gets one more column after half of them.
        """
        topic = self._topics[name]
        for number in range(events):
            if evolves and number == events // 2:
                topic.version += 1
                topic.schema = self._register(f"{name}-value", value_schema(name, topic.version))
            op = self._random.choices("cud", (20, 60, 20))[0]
            key = topic.new_key() if op == "c" else topic.any_key(self._random, goes=op == "d")
            self._send(topic, op, key)
        self._producer.flush()

    def number(self, name: str) -> int:
        """How many events a topic has."""
        return len(self._topics[name].sent)

    def events(self, name: str, number: int) -> pa.Table:
        """A topic's first events: `seq` in the order of the log, `deleted`, `id`, and the row's other columns."""
        return pa.Table.from_pylist(self._topics[name].sent[:number])

    def _send(self, topic: _Topic, op: str, key: int) -> None:
        self._seq += 1
        chance = self._random
        row: dict[str, Any] = {
            "id": key,
            "customer": chance.randrange(10_000),
            "status": chance.choice(_WORDS),
            "amount": chance.randrange(1_000_000) / 100,
            "note": None if chance.random() < 0.5 else f"{chance.choice(_WORDS)} {chance.getrandbits(64):016x}",
        }
        if topic.version > 0:
            row["city"] = chance.choice(_WORDS)
        if topic.version > 1:
            row["score"] = chance.random()
        said = {
            "__deleted": str(op == "d").lower(),
            "__op": op,
            "__lsn": self._seq,
            "__source_ts_ms": _START_MS + self._seq // 3,  # three events a millisecond: ties are normal
            "__source_snapshot": "true" if op == "r" else None,
        }
        message = _framed(*topic.key_schema, {"id": key}), _framed(*topic.schema, row | said)
        while True:
            try:
                self._producer.produce(topic.name, message[1], message[0], partition=key % topic.partitions)
                break
            except BufferError:
                self._producer.poll(0.1)
        topic.sent.append({"seq": self._seq, "deleted": op == "d", "city": None, "score": None, **row})

    def _register(self, artifact: str, schema: dict[str, Any]) -> tuple[int, Any]:
        """Register a schema; its content id, and what fastavro needs to write it."""
        with requests.Session() as session:
            session.trust_env = False
            answer = session.post(
                f"{self._registry}/apis/registry/v3/groups/default/artifacts",
                params={"ifExists": "FIND_OR_CREATE_VERSION"},
                json={
                    "artifactId": artifact,
                    "artifactType": "AVRO",
                    "firstVersion": {"content": {"content": json.dumps(schema), "contentType": "application/json"}},
                },
                timeout=30,
            )
            answer.raise_for_status()
            return answer.json()["version"]["contentId"], fastavro.parse_schema(schema)


def _framed(schema_id: int, schema: Any, value: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    body.write(b"\0" + schema_id.to_bytes(4, "big"))
    fastavro.schemaless_writer(body, schema, value)
    return body.getvalue()


def _key_schema(topic: str) -> dict[str, Any]:
    return {"type": "record", "name": "Key", "namespace": topic, "fields": [{"name": "id", "type": "long"}]}


def value_schema(topic: str, version: int) -> dict[str, Any]:
    """The schema of a topic's values, as flattened; the later versions have more columns."""

    def optional(name: str, kind: str) -> dict[str, Any]:
        return {"name": name, "type": ["null", kind], "default": None}

    return {
        "type": "record",
        "name": "Value",
        "namespace": topic,
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "customer", "type": "int"},
            {"name": "status", "type": "string"},
            {"name": "amount", "type": "double"},
            optional("note", "string"),
            *_ADDED[:version],
            optional("__deleted", "string"),
            optional("__op", "string"),
            optional("__lsn", "long"),
            optional("__source_ts_ms", "long"),
            optional("__source_snapshot", "string"),
        ],
    }
