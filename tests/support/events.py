"""Builders of a connector's records: tables with columns of any Avro type, each with its own topic.

tests/support/wire.py has Debezium's envelopes and the formats of its converters.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cdc_lake.registries.registry import RegisteredSchema
from support import wire
from support.wire import avro as body

TABLE = "pagila.public.thing"
START_MS = 1_700_000_000_000
PLACEHOLDER = wire.PLACEHOLDER

OPTIONAL_STRING = ["null", "string"]
OPTIONAL_INT = ["null", "int"]
_OPTIONAL_TEXT, _OPTIONAL_LONG = wire.optional(wire.STRING), wire.optional(wire.INT64)
_OF_A_TABLE = {"schema": wire.STRING, "table": wire.STRING}
_SOURCE_FIELDS: dict[str, wire.Fields] = {
    "postgresql": {**_OF_A_TABLE, "txId": _OPTIONAL_LONG, "lsn": _OPTIONAL_LONG},
    "mysql": {
        "table": _OPTIONAL_TEXT,
        "server_id": wire.INT64,
        "gtid": _OPTIONAL_TEXT,
        "file": wire.STRING,
        "pos": wire.INT64,
        "row": wire.INT32,
        "thread": _OPTIONAL_LONG,
        "query": _OPTIONAL_TEXT,
    },
    "sqlserver": {
        **_OF_A_TABLE,
        "change_lsn": _OPTIONAL_TEXT,
        "commit_lsn": _OPTIONAL_TEXT,
        "event_serial_no": _OPTIONAL_LONG,
    },
    "oracle": {
        **_OF_A_TABLE,
        "txId": _OPTIONAL_TEXT,
        "scn": _OPTIONAL_TEXT,
        "commit_scn": _OPTIONAL_TEXT,
        "rs_id": _OPTIONAL_TEXT,
        "ssn": _OPTIONAL_LONG,
        "redo_thread": wire.optional(wire.INT32),
    },
    "mongodb": {
        "rs": wire.STRING,
        "collection": wire.STRING,
        "ord": wire.INT32,
        "lsid": _OPTIONAL_TEXT,
        "txnNumber": _OPTIONAL_LONG,
        "wallTime": _OPTIONAL_LONG,
    },
    "vitess": {"keyspace": wire.STRING, "table": wire.STRING, "shard": wire.STRING, "vgtid": wire.STRING},
}
"""Fields of each connector's `source` block, after those that all have."""
_FLAT = {
    connector: wire.Unwrap(("op", *own, *(f"source.{field}" for field in ("ts_ms", "snapshot", "name", "db"))))
    for connector, own in {
        "postgresql": ("lsn",),
        "mysql": ("server_id", "file", "pos", "row"),
        "sqlserver": ("change_lsn", "commit_lsn", "event_serial_no"),
        "oracle": ("scn", "commit_scn", "rs_id", "ssn"),
    }.items()
}
"""The transform that flattens each connector's events."""


def _around(connector: str, table: str) -> wire.Schema:
    """The schema of a connector's full change events of a table without columns.

    It has as few fields as any generation of Debezium sends, and a time that may be missing.
    """
    source = wire.source_block(connector, {"ts_ms": _OPTIONAL_LONG, **_SOURCE_FIELDS[connector]}, debezium=(1, 6))
    return wire.envelope(wire.Table(table, {}, ()), debezium=(1, 0), source=source)


def flat_metadata(connector: str = "postgresql") -> dict[str, Any]:
    """The fields that the transform adds to a flattened row of a connector, name to Avro type."""
    added = wire.avro_schema(_FLAT[connector].schema(_around(connector, TABLE)))
    return {field["name"]: field["type"] for field in added["fields"]}


FLAT_METADATA = flat_metadata()


def connect(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """An Avro type with Connect's properties."""
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


DOCUMENT = wire.avro_schema(wire.JSON)
"""A row of MongoDB."""


def decimal(precision: int, scale: int) -> dict[str, Any]:
    """`numeric(precision, scale)`."""
    made: dict[str, Any] = wire.avro_schema(wire.decimal(precision, scale))
    return made


def key_schema(columns: Mapping[str, Any], table: str = TABLE) -> str:
    """A record key's schema."""
    return json.dumps(_record("Key", columns, table))


def envelope_schema(columns: Mapping[str, Any], table: str = TABLE, connector: str = "postgresql") -> str:
    """A full envelope's schema. MongoDB's rows are texts, for any columns."""
    schema = wire.avro_schema(_around(connector, table))
    before, after = schema["fields"][:2]
    if connector == "mongodb":
        before["type"] = after["type"] = ["null", DOCUMENT]
    else:
        before["type"] = ["null", _record("Value", columns, table)]
    return json.dumps(schema)


def flat_schema(columns: Mapping[str, Any], table: str = TABLE, metadata: Mapping[str, Any] = FLAT_METADATA) -> str:
    """A flattened row's schema, with the fields that the transform adds."""
    return json.dumps(_record("Value", {**columns, **metadata}, table))


def framed(schema_id: int, avro: bytes) -> bytes:
    """Avro after a zero byte and a schema id of four bytes; tests/support/wire.py has the other frames."""
    return wire.framed("id4", f"id:{schema_id}", avro, "value")[0]


def control(registry: "FakeRegistry", name: str, content: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Key and value of a connector's record that is not a change of a table.

    Args:
        name: of the value's schema, behind `io.debezium.connector.`.
        content: texts, numbers and bytes.
    """
    key = _flat_record(registry, "common.ServerNameKey", {"serverName": "pagila"})
    return key, _flat_record(registry, name, content)


def _flat_record(registry: "FakeRegistry", name: str, content: Mapping[str, Any]) -> bytes:
    kinds = {str: "string", int: "long", bytes: "bytes"}
    package, _, last = name.rpartition(".")
    columns = {field: kinds[type(value)] for field, value in content.items()}
    text = json.dumps(_record(last, columns, f"io.debezium.connector.{package}"))
    return framed(registry.add(text), body(text, content))


class FakeRegistry:
    """A fake: a schema registry in memory with the interface of `cdc_lake.registries.registry.Registry`."""

    name = "fake"
    namespaces = ("contentId",)

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self._hidden: set[int] = set()

    def add(self, text: str) -> int:
        """The id of a text; the same text has the same id."""
        known = {known: schema_id for schema_id, known in self.texts.items()}
        return known.get(text) or self._added(text)

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        """See `Registry`."""
        number = int(schema_id)
        there = kind in self.namespaces and number in self.texts and number not in self._hidden
        return RegisteredSchema(self.texts[number]) if there else None

    def check(self) -> None:
        """See `Registry`."""

    def hide(self, schema_id: int) -> None:
        """Respond as if the id did not exist."""
        self._hidden.add(schema_id)

    def show(self, schema_id: int) -> None:
        """Respond for the id again."""
        self._hidden.discard(schema_id)

    def _added(self, text: str) -> int:
        schema_id = len(self.texts) + 1
        self.texts[schema_id] = text
        return schema_id


@dataclass(frozen=True)
class Record:
    """One Kafka record, in the column order of Spark's Kafka source."""

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
        columns: the table's columns outside the key, name to Avro type; `document` alone for MongoDB.
        keys: the primary key's columns, likewise.
        flat: whether the connector sends flattened rows.
        connector: postgresql, mysql, sqlserver, oracle, mongodb or vitess.
    """

    def __init__(
        self,
        columns: Mapping[str, Any],
        *,
        keys: Mapping[str, Any] | None = None,
        flat: bool = False,
        registry: FakeRegistry | None = None,
        table: str = TABLE,
        connector: str = "postgresql",
    ) -> None:
        self.table = table
        self.registry = registry or FakeRegistry()
        self._keys = dict(keys or {"id": "int"})
        self._columns = {**self._keys, **columns}
        self._flat = flat
        self._connector = connector
        self._around = _around(connector, table)
        self._next_offsets: dict[int, int] = {}
        self._clock = itertools.count(START_MS)
        self.key_text = key_schema(self._keys, table)
        self.value_text = (
            flat_schema(self._columns, table, flat_metadata(connector))
            if flat
            else envelope_schema(self._columns, table, connector)
        )
        self.key_id = self.registry.add(self.key_text)
        self.value_id = self.registry.add(self.value_text)

    @property
    def late_id(self) -> int:
        """Another id of the value's schema, whose text differs only in documentation; to hide and show again."""
        return self.registry.add(json.dumps({**json.loads(self.value_text), "doc": "late"}))

    def change(
        self,
        op: str = "u",
        key: Any = 1,
        after: Mapping[str, Any] | None = None,
        *,
        before: Mapping[str, Any] | None = None,
        lsn: int | None = 100,
        ts_ms: int | None = START_MS,
        snapshot: str | None = None,
        source: Mapping[str, Any] | None = None,
        late: bool = False,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int = 0,
        offset: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Record:
        """A change of the row with this key; columns missing in `after` are null.

        Args:
            op: `t` has neither key nor row.
            before: the row before an update, as `after`.
            lsn: of Postgres.
            source: further fields of the source block, such as another connector's position.
            late: written with `late_id`.
            headers, partition, offset, timestamp_ms: as in `record`.
        """
        row, was = ({**dict.fromkeys(self._columns), **self._key(key), **(side or {})} for side in (after, before))
        own = {"txId": lsn, "lsn": lsn} if self._connector == "postgresql" else {}
        said = {"name": "pagila", "db": "pagila", "ts_ms": ts_ms, "snapshot": snapshot, **own, **(source or {})}
        return self.record(
            None if op == "t" else self.key(key),
            framed(
                self.late_id if late else self.value_id,
                body(self.value_text, self._value(op, row, None if before is None else was, said)),
            ),
            headers,
            partition=partition,
            offset=offset,
            timestamp_ms=timestamp_ms,
        )

    def tombstone(
        self,
        key: Any = 1,
        *,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int = 0,
        offset: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Record:
        """A record with this key and no value."""
        return self.record(self.key(key), None, headers, partition=partition, offset=offset, timestamp_ms=timestamp_ms)

    def key(self, key: Any) -> bytes:
        """The bytes of a key."""
        return framed(self.key_id, body(self.key_text, self._key(key)))

    def record(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        *,
        partition: int = 0,
        offset: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Record:
        """Any bytes.

        Args:
            offset: the next one in the partition unless given; those that follow count on from it.
            timestamp_ms: Kafka's; a millisecond later than the topic's record before unless given.
        """
        offset = self._next_offsets.get(partition, 0) if offset is None else offset
        self._next_offsets[partition] = offset + 1
        now_ms = next(self._clock)
        at_ms = now_ms if timestamp_ms is None else timestamp_ms
        timestamp = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)
        return Record(key, value, self.table, partition, offset, timestamp, headers)

    def again(self, record: Record) -> Record:
        """The same bytes again, at the next offset of the same partition."""
        return self.record(record.key, record.value, record.headers, partition=record.partition)

    def _key(self, key: Any) -> dict[str, Any]:
        return dict(key) if isinstance(key, Mapping) else dict.fromkeys(self._keys, key)

    def _value(
        self, op: str, row: Mapping[str, Any], was: Mapping[str, Any] | None, said: Mapping[str, Any]
    ) -> dict[str, Any]:
        sent = row["document"] if self._connector == "mongodb" else row
        before, after = (sent if op == "d" else was), (None if op in ("d", "t") else sent)
        if self._flat:
            (value,) = _FLAT[self._connector].values(
                self._around, wire.whole_event(op, before, after, said, said["ts_ms"])
            )
            return value
        source = wire.source_values(self._around, self._connector, said)
        return wire.whole_event(op, before, after, source, said["ts_ms"])


def _record(name: str, columns: Mapping[str, Any], table: str) -> dict[str, Any]:
    named = wire.avro_schema(wire.struct(f"{table}.{name}", {}))
    return {**named, "fields": [_field(column, kind) for column, kind in columns.items()]}


def _field(name: str, kind: Any) -> dict[str, Any]:
    is_optional = isinstance(kind, list) and kind[0] == "null"
    return {"name": name, "type": kind} | ({"default": None} if is_optional else {})
