"""Builders of what a connector sends: schemas as Debezium declares them, records as its Avro converter frames them."""

import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import fastavro

TABLE = "pagila.public.thing"
START_MS = 1_700_000_000_000
PLACEHOLDER = "__debezium_unavailable_value"

OPTIONAL_STRING = ["null", "string"]
OPTIONAL_INT = ["null", "int"]
_SNAPSHOT = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {"allowed": "true,first,last,false,incremental"},
    "connect.default": "false",
    "connect.name": "io.debezium.data.Enum",
}
_SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        *({"name": name, "type": "string"} for name in ("version", "connector", "name")),
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": [_SNAPSHOT, "null"], "default": "false"},
        {"name": "db", "type": "string"},
        {"name": "sequence", "type": OPTIONAL_STRING, "default": None},
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "txId", "type": ["null", "long"], "default": None},
        {"name": "lsn", "type": ["null", "long"], "default": None},
    ],
    "connect.name": "io.debezium.connector.postgresql.Source",
}
FLAT_METADATA = {
    "__deleted": OPTIONAL_STRING,
    "__op": OPTIONAL_STRING,
    "__lsn": ["null", "long"],
    "__source_ts_ms": ["null", "long"],
    "__source_snapshot": OPTIONAL_STRING,
    "__source_name": OPTIONAL_STRING,
    "__source_db": OPTIONAL_STRING,
}


def connect(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """An Avro type with Connect's properties."""
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    """`numeric(precision, scale)`."""
    return connect(
        "bytes",
        "org.apache.kafka.connect.data.Decimal",
        scale=scale,
        precision=precision,
        logicalType="decimal",
        **{"connect.parameters": {"scale": str(scale), "connect.decimal.precision": str(precision)}},
    )


def key_schema(columns: Mapping[str, Any], table: str = TABLE) -> str:
    """A record key's schema."""
    return json.dumps(_record("Key", columns, table))


def envelope_schema(columns: Mapping[str, Any], table: str = TABLE) -> str:
    """A full envelope's schema, in the field order of Debezium 3."""
    parts = {
        "before": ["null", _record("Value", columns, table)],
        "after": ["null", "Value"],
        "source": _SOURCE,
        "op": "string",
        "ts_ms": ["null", "long"],
    }
    return json.dumps(_record("Envelope", parts, table))


def flat_schema(columns: Mapping[str, Any], table: str = TABLE, metadata: Mapping[str, Any] = FLAT_METADATA) -> str:
    """A flattened row's schema, with the fields that the transform was told to add."""
    return json.dumps(_record("Value", {**columns, **metadata}, table))


def body(schema: str, value: Any) -> bytes:
    """Avro without a frame."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), value)
    return out.getvalue()


def framed(schema_id: int, avro: bytes) -> bytes:
    """Avro behind a zero byte and a schema id of four bytes."""
    return b"\0" + schema_id.to_bytes(4, "big") + avro


class FakeRegistry:
    """A fake: a schema registry in memory, as `cdc_lake.sources.registry.Registry` asks for one."""

    name = "fake"
    namespace = "contentId"

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}

    def add(self, text: str) -> int:
        """The id of a text; the same text has the same id."""
        known = {known: schema_id for schema_id, known in self.texts.items()}
        return known.get(text) or self._added(text)

    def text(self, schema_id: int) -> str | None:
        """See `Registry`."""
        return self.texts.get(schema_id)

    def _added(self, text: str) -> int:
        schema_id = len(self.texts) + 1
        self.texts[schema_id] = text
        return schema_id


@dataclass(frozen=True)
class Record:
    """One Kafka record, in the order of the columns of Spark's Kafka source."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    headers: Sequence[tuple[str, bytes]] | None = None


class Topic:
    """A topic and the connector that writes one table's changes to it, with growing offsets and Kafka timestamps.

    Args:
        columns: the table's columns outside the key, name to Avro type.
        keys: the primary key's columns, likewise.
        flat: whether the connector sends flattened rows.
    """

    def __init__(
        self,
        columns: Mapping[str, Any],
        *,
        keys: Mapping[str, Any] | None = None,
        flat: bool = False,
        registry: FakeRegistry | None = None,
        table: str = TABLE,
    ) -> None:
        self.table = table
        self.registry = registry or FakeRegistry()
        self._keys = dict(keys or {"id": "int"})
        self._columns = {**self._keys, **columns}
        self._flat = flat
        self._offsets = itertools.count()
        self.key_text = key_schema(self._keys, table)
        self.value_text = (flat_schema if flat else envelope_schema)(self._columns, table)
        self.key_id = self.registry.add(self.key_text)
        self.value_id = self.registry.add(self.value_text)

    def change(
        self,
        op: str = "u",
        key: Any = 1,
        after: Mapping[str, Any] | None = None,
        *,
        lsn: int | None = 100,
        ts_ms: int = START_MS,
        snapshot: str | None = None,
    ) -> Record:
        """A change of the row with this key; columns left out of `after` are null."""
        row = {**dict.fromkeys(self._columns), **self._key(key), **(after or {})}
        value = (
            self._flattened(op, row, lsn, ts_ms, snapshot)
            if self._flat
            else _enveloped(op, None if op == "d" else row, row if op == "d" else None, lsn, ts_ms, snapshot)
        )
        return self.record(self.key(key), framed(self.value_id, body(self.value_text, value)))

    def tombstone(self, key: Any = 1) -> Record:
        """A record with this key and no value."""
        return self.record(self.key(key), None)

    def key(self, key: Any) -> bytes:
        """The bytes of a key."""
        return framed(self.key_id, body(self.key_text, self._key(key)))

    def record(
        self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]] | None = None
    ) -> Record:
        """Any bytes, at the topic's next offset."""
        offset = next(self._offsets)
        timestamp = datetime.fromtimestamp(START_MS // 1000, UTC) + timedelta(milliseconds=offset)
        return Record(key, value, self.table, 0, offset, timestamp, headers)

    def again(self, record: Record) -> Record:
        """The same bytes once more, at the next offset."""
        return self.record(record.key, record.value, record.headers)

    def _key(self, key: Any) -> dict[str, Any]:
        return dict(key) if isinstance(key, Mapping) else dict.fromkeys(self._keys, key)

    def _flattened(
        self, op: str, row: Mapping[str, Any], lsn: int | None, ts_ms: int, snapshot: str | None
    ) -> dict[str, Any]:
        return {
            **row,
            "__deleted": str(op == "d").lower(),
            "__op": op,
            "__lsn": lsn,
            "__source_ts_ms": ts_ms,
            "__source_snapshot": snapshot,
            "__source_name": "pagila",
            "__source_db": "pagila",
        }


def _enveloped(op: str, after: Any, before: Any, lsn: int | None, ts_ms: int, snapshot: str | None) -> dict[str, Any]:
    source = {
        **dict.fromkeys(("version", "connector", "schema", "table"), "x"),
        **dict.fromkeys(("name", "db"), "pagila"),
        "ts_ms": ts_ms,
        "snapshot": snapshot or "false",
        "txId": lsn,
        "lsn": lsn,
    }
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": ts_ms}


def _record(name: str, columns: Mapping[str, Any], table: str) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "namespace": table,
        "fields": [_field(column, kind) for column, kind in columns.items()],
        "connect.name": f"{table}.{name}",
    }


def _field(name: str, kind: Any) -> dict[str, Any]:
    is_optional = isinstance(kind, list) and kind[0] == "null"
    return {"name": name, "type": kind} | ({"default": None} if is_optional else {})
