"""The log that all pipelines read: flattened change events of a shop, encoded before the measurement.

The seed determines it. An Arrow table of the same events gives the expected content of the tables.
"""

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

from tests.support import wire

PREFIX = "bench.public"
FIRST_ORDERS, ORDERS = f"{PREFIX}.first_orders", f"{PREFIX}.orders"
_START_MS = 1_700_000_000_000
_COLUMNS = {
    "id": wire.INT64,
    "customer": wire.INT32,
    "status": wire.STRING,
    "amount": wire.DOUBLE,
    "note": wire.optional(wire.STRING),
    "city": wire.optional(wire.STRING),
    "score": wire.optional(wire.DOUBLE),
}
_ADDED = 2
"""Number of columns, the last ones, that are added later: one with each version of the schema."""
_UNWRAP = wire.Unwrap(["op", "lsn", "source.ts_ms", "source.snapshot"])
_WORDS = ("amber", "birch", "coral", "dune", "ember", "fjord", "grove", "heath", "isle", "jade")


def small(number: int) -> str:
    """The name of a small topic."""
    return f"{PREFIX}.small_{number:02}"


@dataclass
class _Topic:
    """A table's log so far.

    Attributes:
        live: keys of the existing rows.
        keys: number of keys so far.
        sent: the events so far.
        version: of the schema, from 0.
        key_schema, schema: the id in the registry, and the schema as parsed by fastavro.
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

    def any_key(self, chance: random.Random, newest: int | None, *, goes: bool) -> int:
        among = min(newest or len(self.live), len(self.live))
        at = len(self.live) - among + chance.randrange(among)
        key = self.live[at]
        if goes:
            self.live[at] = self.live[-1]
            self.live.pop()
        return key


class Log:
    """Sends the events to Kafka and remembers them.

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
            topics: name -> number of partitions.
        """
        admin = AdminClient({"bootstrap.servers": self._kafka})
        for future in admin.create_topics([NewTopic(name, number, 1) for name, number in topics.items()]).values():
            future.result(30)
        for name, partitions in topics.items():
            topic = self._topics[name] = _Topic(name, partitions)
            topic.key_schema = self._register(f"{name}-key", wire.avro_schema(_table(name).key))
            topic.schema = self._register(f"{name}-value", value_schema(name, 0))

    def use(self, name: str, schema: dict[str, Any]) -> None:
        """Use another schema for the next events of a topic."""
        self._topics[name].schema = self._register(f"{name}-value", schema)

    def snapshot(self, name: str, rows: int) -> None:
        """Send rows as the connector's initial snapshot does."""
        topic = self._topics[name]
        for _ in range(rows):
            self._send(topic, "r", topic.new_key())
        self._producer.flush()

    def add_rows(self, name: str, keys: int) -> None:
        """Let later events change and delete rows that are in the tables without an event, up to a number of keys."""
        topic = self._topics[name]
        topic.live += range(topic.keys + 1, keys + 1)
        topic.keys = max(topic.keys, keys)

    def steady(self, name: str, events: int, *, evolves: bool = False, newest: int | None = None) -> None:
        """Send events: 20 % inserts, 60 % updates and 20 % deletes.

        Args:
            evolves: add a column to the table after half of them.
            newest: change only about as many of the newest rows; all rows if left out.
        """
        topic = self._topics[name]
        for number in range(events):
            if evolves and number == events // 2:
                topic.version += 1
                topic.schema = self._register(f"{name}-value", value_schema(name, topic.version))
            op = self._random.choices("cud", (20, 60, 20))[0]
            key = topic.new_key() if op == "c" else topic.any_key(self._random, newest, goes=op == "d")
            self._send(topic, op, key)
        self._producer.flush()

    def keys(self, name: str) -> int:
        """Number of keys so far, with those of deleted rows."""
        return self._topics[name].keys

    def number(self, name: str) -> int:
        """Number of events in a topic."""
        return len(self._topics[name].sent)

    def events(self, name: str, number: int) -> pa.Table:
        """A topic's first events: `seq` (the order of the log), `deleted`, `id`, and the row's other columns."""
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
        metadata = (
            str(op == "d").lower(),
            op,
            self._seq,
            _START_MS + self._seq // 3,  # three events a millisecond: ties are normal
            "true" if op == "r" else None,
        )
        value = row | dict(zip(_METADATA, metadata, strict=True))
        message = _framed(*topic.key_schema, {"id": key}, "key"), _framed(*topic.schema, value, "value")
        while True:
            try:
                self._producer.produce(topic.name, message[1], message[0], partition=key % topic.partitions)
                break
            except BufferError:
                self._producer.poll(0.1)
        topic.sent.append({"seq": self._seq, "deleted": op == "d", "city": None, "score": None, **row})

    def _register(self, artifact: str, schema: dict[str, Any]) -> tuple[int, Any]:
        """Register a schema; return its content id and the schema as parsed by fastavro."""
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


def _framed(schema_id: int, schema: Any, value: dict[str, Any], side: wire.Side) -> bytes:
    return wire.framed("id4", f"id:{schema_id}", wire.avro(schema, value), side)[0]


def _table(topic: str, version: int = 0) -> wire.Table:
    names = list(_COLUMNS)[: len(_COLUMNS) - _ADDED + version]
    return wire.Table(topic, {name: _COLUMNS[name] for name in names}, ["id"])


def _flattened(table: wire.Table) -> wire.Schema:
    return _UNWRAP.schema(wire.envelope(table))


def value_schema(topic: str, version: int) -> dict[str, Any]:
    """The Avro schema of a topic's flattened values; later versions have more columns."""
    made: dict[str, Any] = wire.avro_schema(_flattened(_table(topic, version)))
    return made


_METADATA = tuple(wire.fields_of(_flattened(wire.Table(ORDERS, {}, ()))))
"""The fields that the unwrap transform adds. Flattening a million events with `_UNWRAP` would take too long."""
