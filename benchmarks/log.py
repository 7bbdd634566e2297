"""The log that all contenders read: flattened change events of a shop, encoded before anything is measured.

It follows from its seed. A plain Arrow table of the same events says what the tables must hold in the end.
"""

import io
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow as pa
import requests
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

PREFIX = "bench.public"
ORDERS = f"{PREFIX}.orders"
PARTITIONS = 4
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
class Log:
    """What was sent, and what follows from it.

    Attributes:
        sent: of each topic, its events: `id`, `seq` in the order of their log, `deleted`, and the row's columns.
    """

    kafka: str
    registry: str
    seed: int = 1
    sent: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _ids: dict[tuple[str, int], tuple[int, Any]] = field(default_factory=dict)
    _live: dict[str, list[int]] = field(default_factory=dict)
    _next: dict[str, int] = field(default_factory=dict)
    _seq: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._producer = Producer(
            {
                "bootstrap.servers": self.kafka,
                "linger.ms": 50,
                "batch.size": 1 << 20,
                "queue.buffering.max.messages": 2_000_000,
            }
        )

    def create(self, topics: Iterator[tuple[str, int]]) -> None:
        """Create topics and register three schemas for the values of each, the newest last.

        Args:
            topics: name and number of partitions.
        """
        admin = AdminClient({"bootstrap.servers": self.kafka})
        wanted = dict(topics)
        for future in admin.create_topics(
            [NewTopic(name, partitions, 1) for name, partitions in wanted.items()]
        ).values():
            future.result(30)
        for topic in wanted:
            self.sent[topic], self._live[topic], self._next[topic] = [], [], 0
            self._ids[topic, -1] = self._register(f"{topic}-key", _key_schema(topic))
            for version in range(3):
                self._ids[topic, version] = self._register(f"{topic}-value", _value_schema(topic, version))

    def snapshot(self, topic: str, rows: int) -> None:
        """Rows as a connector's first snapshot sends them."""
        for _ in range(rows):
            self._send(topic, "r", self._new(topic), 0)
        self._producer.flush()

    def steady(self, topic: str, events: int) -> None:
        """Of the events 20 % are inserts, 60 % updates and 20 % deletes; the schema's versions come mixed."""
        live = self._live[topic]
        for _ in range(events):
            op = self._random.choices("cud", (20, 60, 20))[0]
            if op == "c":
                key = self._new(topic)
            else:
                at = self._random.randrange(len(live))
                key = live[at]
                if op == "d":
                    live[at] = live[-1]
                    live.pop()
            self._send(topic, op, key, self._random.randrange(3))
        self._producer.flush()

    def rows(self, topic: str) -> pa.Table:
        """All events of a topic."""
        return pa.Table.from_pylist(self.sent[topic])

    def _new(self, topic: str) -> int:
        key = self._next[topic]
        self._next[topic] = key + 1
        self._live[topic].append(key)
        return key

    def _send(self, topic: str, op: str, key: int, version: int) -> None:
        self._seq += 1
        chance = self._random
        row: dict[str, Any] = {
            "id": key,
            "customer": chance.randrange(10_000),
            "status": chance.choice(_WORDS),
            "amount": chance.randrange(1_000_000) / 100,
            "note": None if chance.random() < 0.5 else f"{chance.choice(_WORDS)} {chance.getrandbits(64):016x}",
        }
        if version:
            row["city"] = chance.choice(_WORDS)
        if version > 1:
            row["score"] = chance.random()
        said = {
            "__deleted": str(op == "d").lower(),
            "__op": op,
            "__lsn": self._seq,
            "__source_ts_ms": _START_MS + self._seq // 3,  # three events a millisecond: ties are normal
            "__source_snapshot": "true" if op == "r" else None,
        }
        key_id, key_schema = self._ids[topic, -1]
        value_id, value_schema = self._ids[topic, version]
        self._producer.produce(
            topic,
            key=_framed(key_id, key_schema, {"id": key}),
            value=_framed(value_id, value_schema, row | said),
            partition=key % (PARTITIONS if topic == ORDERS else 1),
        )
        if self._seq % 10_000 == 0:
            self._producer.poll(0)
        self.sent[topic].append({"seq": self._seq, "deleted": op == "d", "city": None, "score": None, **row})

    def _register(self, artifact: str, schema: dict[str, Any]) -> tuple[int, Any]:
        """Register a schema; its content id, and what fastavro needs to write it."""
        with requests.Session() as session:
            session.trust_env = False
            answer = session.post(
                f"{self.registry}/apis/registry/v3/groups/default/artifacts",
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


def _value_schema(topic: str, version: int) -> dict[str, Any]:
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
