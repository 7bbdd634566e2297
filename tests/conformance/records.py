"""A log's events as the records that a connector writes."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from support.events import PLACEHOLDER, FakeRegistry, Record, Topic, body, control, framed, key_schema

from .log import KEYS, Arrival, Log, Shape
from .rows import START_MS, source_ms

_NO_SCHEMA = 2**31
_CONTROL: dict[str, tuple[str, dict[str, Any]]] = {
    "heartbeat": ("common.Heartbeat", {"ts_ms": START_MS}),
    "transaction": ("common.TransactionMetadataValue", {"status": "BEGIN", "id": "1:2", "ts_ms": START_MS}),
    "schema_change": ("mysql.SchemaChangeValue", {"ddl": "create table x (id int)"}),
    "notification": ("common.Notification", {"id": "1", "type": "COMPLETED"}),
    "message": ("postgresql.MessageValue", {"op": "m", "ts_ms": START_MS, "message": b"hello"}),
}
"""Records that are not events of rows: the schema's name and the content."""


def topic_of(name: str) -> str:
    """The topic of a log with a separate table. Avro names have no hyphens, and schemas are named after the topic."""
    return f"conformance.public.{name.replace('-', '_')}"


class Writer:
    """Writes a log into a topic.

    Args:
        topic: its name; the schemas are named after it.
        copy: the text in the key's column `log`, where the key is not the log's own.
        first_partition: the topic's partition that is the log's first.
    """

    def __init__(
        self, log: Log, registry: FakeRegistry, topic: str, shape: Shape, *, copy: str = "", first_partition: int = 0
    ) -> None:
        self._log = log
        self._registry = registry
        self._topic = topic
        self._shape = shape
        self._copy = copy
        self._first_partition = first_partition
        self._offsets = log.offsets()
        self._keys = KEYS if log.keys is None else log.keys
        self._in_row = {name: kind for name, kind in self._keys.items() if name not in log.key_only}

    def record(self, index: int, due: str | None = None) -> Record:
        """The record of the event at an index.

        Args:
            due: when a late record will be decodable; those of one text share a schema id (`late_ids`).
        """
        event = self._log.events[index]
        timestamp_ms = START_MS + (index + 1 if event.kafka_timestamp is None else event.kafka_timestamp)
        key, value = self._control(event.control) if event.control else (self._key(event), self._value(event, due))
        return Record(
            key,
            value,
            self._topic,
            self._first_partition + event.partition,
            self._offsets[index],
            datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=timestamp_ms),
            self._headers(event),
        )

    def _key(self, event: Arrival) -> bytes | None:
        if event.op == "t" or event.poison in ("no_key", "null"):
            return None
        if event.poison == "text_key":
            return b"1"
        text = key_schema(event.keys or self._keys, self._topic)
        if event.key_schema == 2:
            text = json.dumps({**json.loads(text), "doc": "another id"})
        return framed(self._registry.add(text), body(text, self._key_columns(event.key)))

    def _key_columns(self, key: Any) -> Mapping[str, Any]:
        if isinstance(key, Mapping):
            return key
        return {"log": self._copy, "id": key}

    def _value(self, event: Arrival, due: str | None) -> bytes | None:
        if event.op == "tombstone":
            return None
        table = Topic(
            {**self._log.table_columns, **(event.columns or {})},
            keys=self._in_row,
            flat=(event.shape or self._shape) == "flat",
            registry=self._registry,
            table=self._topic,
            connector=self._log.connector,
        )
        sent = {name: _placeholder(self._log.table_columns[name]) for name in event.unsent}
        key = {name: value for name, value in self._key_columns(event.key).items() if name in self._in_row}
        # Logs that share a table use the same positions. Each has its own database, within which positions are unique.
        source = {"db": self._copy} | (event.position if isinstance(event.position, dict) else {})
        value = table.change(
            event.op,
            key,
            {**event.values, **sent},
            lsn=event.position if isinstance(event.position, int) else None,
            ts_ms=source_ms(event.ts),
            snapshot=event.snapshot,
            source=source,
        ).value
        assert value is not None
        if event.poison == "body":
            return value[:-1]
        if event.poison == "schema":
            return framed(_NO_SCHEMA, value[5:])
        if event.poison == "frame":
            return b"{" + value
        return value if due is None else framed(late_id(self._registry, table.value_text, due), value[5:])

    def _control(self, kind: str) -> tuple[bytes | None, bytes | None]:
        if kind == "signal":
            signals = Topic(
                {"type": "string"},
                keys={"id": "string"},
                flat=self._shape == "flat",
                registry=self._registry,
                table="pagila.public.debezium_signal",
            )
            record = signals.change("c", "window", {"type": "snapshot-window-open"})
            return record.key, record.value
        return control(self._registry, *_CONTROL[kind])

    def _headers(self, event: Arrival) -> list[tuple[str, bytes]] | None:
        keys = {"__debezium.newkey": event.moved_to, "__debezium.oldkey": event.moved_from}
        return [
            (name, json.dumps(self._key_columns(key), separators=(",", ":")).encode())
            for name, key in keys.items()
            if key is not None
        ] or None


def late_id(registry: FakeRegistry, text: str, due: str) -> int:
    """The id of the schema for the records that become decodable at `due`; unknown until `show`."""
    schema_id = registry.add(json.dumps({**json.loads(text), "doc": due}))
    registry.hide(schema_id)
    return schema_id


def show(registry: FakeRegistry, due: str) -> None:
    """Make the due records decodable."""
    for schema_id, text in registry.texts.items():
        if json.loads(text).get("doc") == due:
            registry.show(schema_id)


def _placeholder(kind: Any) -> Any:
    inner = kind[1] if isinstance(kind, list) else kind
    if isinstance(inner, Mapping):
        return [PLACEHOLDER]
    return PLACEHOLDER.encode() if inner == "bytes" else PLACEHOLDER
