"""Builders of what a connector sends: schemas as Debezium declares them, records as its Avro converter frames them."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import wire
from wire import avro as body

from cdc_lake.registries.registry import RegisteredSchema

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
_OPTIONAL_LONG = ["null", "long"]
_TABLE_FIELDS = {"schema": "string", "table": "string"}
_SOURCE_FIELDS: dict[str, dict[str, Any]] = {
    "postgresql": {**_TABLE_FIELDS, "txId": _OPTIONAL_LONG, "lsn": _OPTIONAL_LONG},
    "mysql": {
        "table": OPTIONAL_STRING,
        "server_id": "long",
        "gtid": OPTIONAL_STRING,
        "file": "string",
        "pos": "long",
        "row": "int",
        "thread": _OPTIONAL_LONG,
        "query": OPTIONAL_STRING,
    },
    "sqlserver": {
        **_TABLE_FIELDS,
        "change_lsn": OPTIONAL_STRING,
        "commit_lsn": OPTIONAL_STRING,
        "event_serial_no": _OPTIONAL_LONG,
    },
    "oracle": {
        **_TABLE_FIELDS,
        "txId": OPTIONAL_STRING,
        "scn": OPTIONAL_STRING,
        "commit_scn": OPTIONAL_STRING,
        "rs_id": OPTIONAL_STRING,
        "ssn": _OPTIONAL_LONG,
        "redo_thread": OPTIONAL_INT,
    },
    "mongodb": {
        "rs": "string",
        "collection": "string",
        "ord": "int",
        "lsid": OPTIONAL_STRING,
        "txnNumber": _OPTIONAL_LONG,
        "wallTime": _OPTIONAL_LONG,
    },
}
"""What each connector's `source` block holds behind the fields that all have."""
_REQUIRED = {"string": "x", "long": 0, "int": 0}
"""The types that cannot be null, with a value of each."""
_FLAT_FIELDS = {
    "postgresql": ("lsn",),
    "mysql": ("server_id", "file", "pos", "row"),
    "sqlserver": ("change_lsn", "commit_lsn", "event_serial_no"),
    "oracle": ("scn", "commit_scn", "rs_id", "ssn"),
}
"""The fields of the `source` block that the transform is told to add."""


def flat_metadata(connector: str = "postgresql") -> dict[str, Any]:
    """The fields that the transform adds to a flattened row of a connector, name to Avro type."""
    own = _SOURCE_FIELDS[connector]
    return {
        "__deleted": OPTIONAL_STRING,
        "__op": OPTIONAL_STRING,
        **{
            f"__{name}": own[name] if isinstance(own[name], list) else ["null", own[name]]
            for name in _FLAT_FIELDS[connector]
        },
        "__source_ts_ms": _OPTIONAL_LONG,
        **dict.fromkeys(("__source_snapshot", "__source_name", "__source_db"), OPTIONAL_STRING),
    }


FLAT_METADATA = flat_metadata()


def connect(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """An Avro type with Connect's properties."""
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


DOCUMENT = connect("string", "io.debezium.data.Json")
"""A row of MongoDB."""


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


def envelope_schema(columns: Mapping[str, Any], table: str = TABLE, connector: str = "postgresql") -> str:
    """A full envelope's schema, in the field order of Debezium 3. MongoDB's rows are texts, whatever the columns."""
    is_document = connector == "mongodb"
    parts = {
        "before": ["null", DOCUMENT if is_document else _record("Value", columns, table)],
        "after": ["null", DOCUMENT if is_document else "Value"],
        "source": _source_schema(connector),
        "op": "string",
        "ts_ms": ["null", "long"],
    }
    return json.dumps(_record("Envelope", parts, table))


def flat_schema(columns: Mapping[str, Any], table: str = TABLE, metadata: Mapping[str, Any] = FLAT_METADATA) -> str:
    """A flattened row's schema, with the fields that the transform was told to add."""
    return json.dumps(_record("Value", {**columns, **metadata}, table))


def framed(schema_id: int, avro: bytes) -> bytes:
    """Avro behind a zero byte and a schema id of four bytes; tests/wire.py has the other frames."""
    return wire.framed("id4", f"id:{schema_id}", avro, "value")[0]


class FakeRegistry:
    """A fake: a schema registry in memory, as `cdc_lake.registries.registry.Registry` asks for one."""

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
        """Answer as if there were no such id."""
        self._hidden.add(schema_id)

    def show(self, schema_id: int) -> None:
        """Answer for the id again."""
        self._hidden.discard(schema_id)

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
        columns: the table's columns outside the key, name to Avro type; `document` alone for MongoDB.
        keys: the primary key's columns, likewise.
        flat: whether the connector sends flattened rows.
        connector: postgresql, mysql, sqlserver, oracle or mongodb.
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
        """Another id of the value's schema, its text differing in documentation only; hide it and show it later."""
        return self.registry.add(json.dumps({**json.loads(self.value_text), "doc": "late"}))

    def change(
        self,
        op: str = "u",
        key: Any = 1,
        after: Mapping[str, Any] | None = None,
        *,
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
        """A change of the row with this key; columns left out of `after` are null.

        Args:
            op: `t` has neither key nor row.
            lsn: of Postgres.
            source: further fields of the source block, such as another connector's position.
            late: written with `late_id`.
            headers, partition, offset, timestamp_ms: as in `record`.
        """
        row = {**dict.fromkeys(self._columns), **self._key(key), **(after or {})}
        said = {"name": "pagila", "db": "pagila", "ts_ms": ts_ms, "snapshot": snapshot}
        if self._connector == "postgresql":
            said |= {"txId": lsn, "lsn": lsn}
        said |= source or {}
        value = self._flattened(op, row, said) if self._flat else self._enveloped(op, row, said)
        return self.record(
            None if op == "t" else self.key(key),
            framed(self.late_id if late else self.value_id, body(self.value_text, value)),
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
        """The same bytes once more, at the next offset of the same partition."""
        return self.record(record.key, record.value, record.headers, partition=record.partition)

    def _key(self, key: Any) -> dict[str, Any]:
        return dict(key) if isinstance(key, Mapping) else dict.fromkeys(self._keys, key)

    def _flattened(self, op: str, row: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **row,
            "__deleted": str(op == "d").lower(),
            "__op": op,
            **{f"__{name}": said.get(name) for name in _FLAT_FIELDS[self._connector]},
            **{f"__source_{name}": said[name] for name in ("ts_ms", "snapshot", "name", "db")},
        }

    def _enveloped(self, op: str, row: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
        own = {n: _REQUIRED[k] for n, k in _SOURCE_FIELDS[self._connector].items() if isinstance(k, str)}
        source = {"version": "x", "connector": self._connector, **own, **said, "snapshot": said["snapshot"] or "false"}
        sent = row["document"] if self._connector == "mongodb" else row
        before, after = (sent if op == "d" else None), (None if op in ("d", "t") else sent)
        return {"before": before, "after": after, "source": source, "op": op, "ts_ms": said["ts_ms"]}


def _source_schema(connector: str) -> dict[str, Any]:
    package = f"io.debezium.connector.{connector}"
    common = {
        **dict.fromkeys(("version", "connector", "name"), "string"),
        "ts_ms": _OPTIONAL_LONG,
        "snapshot": [_SNAPSHOT, "null"],
        "db": "string",
        "sequence": OPTIONAL_STRING,
    }
    fields = [_field(name, kind) for name, kind in (common | _SOURCE_FIELDS[connector]).items()]
    fields[4]["default"] = "false"
    return {
        "type": "record",
        "name": "Source",
        "namespace": package,
        "fields": fields,
        "connect.name": f"{package}.Source",
    }


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
