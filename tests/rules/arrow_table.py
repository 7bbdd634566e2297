"""Silver as a dict, like `rules.table`, folded by `fold.arrow` and `fold.key_changes` as in silver."""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from support import reference

from cdc_lake.fold import arrow, key_changes
from cdc_lake.fold.rules import DELETES, STREAMING_OPS, TRUNCATE, UPSERTS, Event, Order, State
from cdc_lake.fold.stream import (
    EVENT,
    KAFKA_POSITION_TYPE,
    LIFETIME_PIECE,
    MEMORY,
    ORDER_TYPE,
    ROW,
    ROW_PIECE,
    VALUES_PIECE,
    Rules,
)
from cdc_lake.fold.table_events import KafkaPosition, SnapshotMarker, TableEvents, Truncate, table_events
from rules.table import Record, Settled

STREAM = pa.schema(
    [
        ("key", pa.string()),
        ("pk", pa.struct([("id", pa.int64())])),
        ("rank", pa.int32()),
        ("kafka_position", KAFKA_POSITION_TYPE),
        ("op", pa.string()),
        ("is_streaming", pa.bool_()),
        ("order", ORDER_TYPE),
        ("read_at", pa.list_(pa.int64())),
        ("unsent", pa.list_(pa.string())),
        ("key_change", pa.string()),
        ("seen", KAFKA_POSITION_TYPE),
        ("snapshot", pa.string()),
        ("is_new", pa.bool_()),
        ("refold", pa.bool_()),
        ("raw_value", pa.binary()),
        ("value_schema", pa.string()),
        ("framing", pa.string()),
    ]
)
_LAST = "~"
"""A key that sorts after all others."""
_MARKERS = ("first", "first_in_data_collection", "last", "last_in_data_collection")
Row = dict[str, Any]


class ArrowTable(Settled):
    """A table that is folded batch by batch; all of its columns except `n` may be large."""

    def __init__(self, columns: Sequence[str], **settings: Any) -> None:
        super().__init__(columns, **settings)
        self._large = [name for name in columns if name != "n"]
        self._values: dict[bytes, Mapping[str, Any]] = {}
        self._keys: dict[str, Hashable] = {}
        self._rows: dict[str, Row] = {}
        self._memory: dict[str, Row] = {}
        self._lifetimes: dict[str, dict[str, tuple[str, key_changes.EndedLifetime, Row]]] = {}
        """By key: its lifetimes that key changes ended, by key change, with the values that each left."""
        self._happened = TableEvents()

    def take(self, batch: Sequence[Record]) -> None:
        """Fold a batch, in any order, into the table."""
        before, earlier = self._happened, self._log
        self._log = [*self._log, *batch]
        happened = table_events(*self._table_events(batch), earlier=self._table_events(earlier)[1], before=before)
        if happened.is_out_of_order:
            self._happened = table_events(*self._table_events(self._log))
            refold = {json.dumps(event.key) for _, event in self._log if event.op != TRUNCATE}
        else:
            self._happened = happened
            pieces = self._fold(batch, happened.events, before.start)
            refold = self._again(pieces)
        if refold:
            pieces = self._fold(batch, happened.events, before.start, refold)
        self._write(pieces, refold)

    def rows(self) -> dict[Hashable, tuple[Any, ...]]:
        """By key: values, whether it is deleted, the columns that were never sent, op, Kafka position, order."""
        return {self._keys[key]: self._row(row) for key, row in self._rows.items()}

    def _row(self, row: Row) -> tuple[Any, ...]:
        log_ts, _, *rest = row["kafka_position"].values()
        order = row["order"] and tuple(_unlisted(row["order"]).values())
        missing = tuple(sorted(row["missing"]))
        return row["values"], row["op"] in DELETES, missing, row["op"], (log_ts, *rest), order

    def _table_events(self, records: Iterable[Record]) -> tuple[list[Truncate], list[SnapshotMarker]]:
        truncates, markers = [], []
        for kafka_position, event in records:
            at = KafkaPosition(*_kafka_position(kafka_position).values())
            if event.op == TRUNCATE:
                truncates.append(Truncate(at, Order(event.position and list(event.position), *event.order[1:])))
            elif self._removes_missing and event.snapshot in _MARKERS:
                markers.append(SnapshotMarker(at, event.snapshot))
        return truncates, markers

    def _fold(
        self, batch: Sequence[Record], of_all: Sequence[Event], start: State, refold: Iterable[str] = ()
    ) -> list[Row]:
        """The pieces of the batch; for refolded keys, of the whole log."""
        rules = Rules(
            self._large,
            self._is_hard,
            self._truncates_hard,
            of_all,
            table_events(*self._table_events(self._log)).events if refold else (),
            start,
            self._happened.start.seen_at,
        )
        events = [row for record in batch if (row := self._event(record)) and row["key"] not in refold]
        events += [
            row | {"refold": True} for record in self._log if (row := self._event(record)) and row["key"] in refold
        ]
        keys = {row["key"] for row in events} | {key for key, one in self._memory.items() if one["key_change"]}
        stored = [
            row | {"refold": row["key"] in refold}
            for held in (self._rows, self._memory)
            for key, row in held.items()
            if of_all or key in keys
        ]
        # The last run of a stream may continue, so index arithmetic skips it: none of these is the last.
        last = event_row((0, 0, 0, 0), reference.Event("d")) | {"key": _LAST}
        pieces = folded([*(_in_stream(row) for row in stored), *events, last], rules, size=1000)
        return [piece for piece in pieces if piece["key"] != _LAST]

    def _event(self, record: Record) -> Row | None:
        if record[1].op == TRUNCATE:
            return None
        row = event_row(*record)
        self._keys[row["key"]] = record[1].key
        if row["raw_value"] is not None:
            self._values[row["raw_value"]] = record[1].values or {}
        return row

    def _again(self, pieces: Iterable[Row]) -> set[str]:
        """The keys to refold."""
        known = {key_change for key_change, *_ in self._ended()}
        asked = {piece["key"] for piece in pieces if piece["is_out_of_order"]} | {
            piece["key"]
            for piece in pieces
            if piece["role"] == LIFETIME_PIECE
            and key_changes.is_without_position(piece["key_change"])
            and piece["key_change"] in known
        }
        halves = [
            (row["key"], row["key_change"]) for one in self._log if (row := self._event(one)) and row["key_change"]
        ]
        keys, names = zip(*halves, *((key, None) for key in asked), strict=True) if asked else ((), ())
        batch = pa.RecordBatch.from_arrays(
            [pa.array(keys, pa.string()), pa.array(names, pa.string())], ["key", "key_change"]
        )
        return {key for found in key_changes.connected_keys([batch]) for key in found.column("key").to_pylist()}

    def _write(self, pieces: Sequence[Row], refold: Iterable[str]) -> None:
        for key in refold:
            self._lifetimes.pop(key, None)
        for piece in pieces:
            if piece["role"] == LIFETIME_PIECE:
                self._leave(piece)
        lifetimes = key_changes.EndedLifetimes((key_change, left) for key_change, left, _ in self._ended())
        values = {left.id: values for _, left, values in self._ended()}
        given = [piece for piece in pieces if piece["role"] == VALUES_PIECE]
        rows = {piece["key"]: self._written(piece, given) for piece in pieces if piece["role"] == ROW_PIECE}
        for key, row in rows.items():
            for name in list(row["missing"]):
                source_of = lifetimes.source_of(name, row["moved_by"])
                if source_of is not None:
                    row["missing"].remove(name)
                    row["values"][name] = values[source_of][name]
            self._remember(key, row)

    def _ended(self) -> list[tuple[str, key_changes.EndedLifetime, Row]]:
        return [one for of_key in self._lifetimes.values() for one in of_key.values()]

    def _written(self, piece: Row, given: Iterable[Row]) -> Row:
        """A piece of a row with its values."""
        stored = self._rows.get(piece["key"], {}).get("values", {})
        sent = self._values.get(piece["raw_value"], {})
        values = {}
        for name in self.columns:
            is_kept = name in piece["kept"] if name in self._large else piece["keeps_rest"]
            values[name] = stored.get(name) if is_kept else sent.get(name)
        for one in given:
            if one["key"] == piece["key"]:
                values |= {name: self._values[one["raw_value"]][name] for name in one["columns"]}
        found = piece | {"values": values | dict.fromkeys(piece["missing"]), "missing": list(piece["missing"])}
        if self._empties and piece["op"] in DELETES:
            found |= {"values": dict.fromkeys(self.columns), "missing": [], "moved_by": None}
        return found

    def _leave(self, piece: Row) -> None:
        held = self._rows.get(piece["key"], {}).get("values", {})
        values = {name: held[name] for name in piece["kept"]}
        values |= {name: self._values[piece["raw_value"]][name] for name in piece["columns"] or ()}
        kafka_position = tuple(piece["kafka_position"].values())
        name = json.dumps([piece["key_change"], kafka_position])
        lifetimes = self._lifetimes.setdefault(piece["key"], {})
        if name in lifetimes:  # several records have its values
            values |= lifetimes[name][2]
        markers = {column: repr(value) for column, value in values.items()}
        lifetimes[name] = (
            piece["key_change"],
            key_changes.EndedLifetime(name, kafka_position, markers, piece["moved_by"]),
            values,
        )

    def _remember(self, key: str, row: Row) -> None:
        """Keep only what the table and its side table can store."""
        moved_by = row["moved_by"] if row["missing"] else None
        before = self._rows.pop(key, {})
        self._memory.pop(key, None)
        if row["has_row"]:
            self._rows[key] = {
                name: row[name] for name in ("key", "pk", "kafka_position", "op", "order", "missing", "values")
            }
            self._rows[key] |= {
                "rank": ROW,
                "read_at": before.get("read_at") if row["source"] is None else read_at(row),
            }
        if row["seen"] or moved_by or (not row["has_row"] and row["op"] != TRUNCATE and row["kafka_position"]):
            memory = {name: row[name] for name in ("key", "kafka_position", "order", "seen")}
            self._memory[key] = memory | {"rank": MEMORY, "key_change": moved_by}


def event_row(kafka_position: tuple[Any, ...], event: reference.Event) -> Row:
    """An event in silver's form."""
    unsent = [name for name, value in (event.values or {}).items() if value is reference.UNSENT]
    is_upsert = event.op in UPSERTS
    return {
        "key": json.dumps(event.key),
        "pk": {"id": event.key if isinstance(event.key, int) else None},
        "rank": EVENT,
        "kafka_position": _kafka_position(kafka_position),
        "op": event.op,
        "is_streaming": event.op in ("c", "u", "d") and not event.is_snapshot,
        "order": {"position": event.position, "domain": event.domain, "ts_ms": event.ts_ms},
        "unsent": unsent if is_upsert else [],
        "key_change": None if event.move is None else key_change_name(event.move),
        "snapshot": event.snapshot,
        "is_new": True,
        "refold": False,
        "raw_value": json.dumps(kafka_position[1:]).encode() if is_upsert else None,
        "value_schema": "schema",
        "framing": "id4",
    }


def key_change_name(key_change: reference.Move) -> str:
    """The id of a key change, as `silver.key_changes.key_change_id` computes it."""
    keys = {
        name: [{"key": "id", "value": json.dumps(key)}]
        for name, key in (("old", key_change.old), ("new", key_change.new))
        if key is not None
    }
    where = {"domain": key_change.domain, "position": key_change.position} if key_change.position is not None else {}
    time = {} if key_change.ts_ms is None else {"ts_ms": key_change.ts_ms}
    return json.dumps(where | time | keys, separators=(",", ":"))


def read_at(piece: Row) -> Any:
    """The position at which a snapshot read the row, as the next batch reads it from silver."""
    is_change = piece["op"] in STREAMING_OPS and piece["snapshot"] is None
    return None if is_change or piece["source"] is None else piece["source"]["position"]


def folded(rows: Iterable[Row], rules: Rules, *, size: int) -> list[Row]:
    """The pieces of a stream in batches of this size, in an order that does not depend on it."""
    in_order = sorted(rows, key=lambda row: (row["key"], row["rank"], tuple((row["kafka_position"] or {}).values())))
    cut = [in_order[start : start + size] for start in range(0, len(in_order), size)]
    batches = arrow.fold((pa.RecordBatch.from_pylist(part, STREAM) for part in cut), rules)
    pieces = [piece for batch in batches for piece in batch.to_pylist()]
    return sorted(pieces, key=lambda piece: json.dumps(piece, default=str, sort_keys=True))


def _in_stream(stored: Row) -> Row:
    """A row of silver, or a side table entry, in silver's form."""
    return {"is_streaming": False, "is_new": False, "unsent": stored.get("missing", []), **stored}


def _kafka_position(kafka_position: Sequence[Any]) -> Row:
    log_ts, generation, partition, offset = kafka_position
    return {"log_ts": log_ts, "topic": "t", "generation": generation, "partition": partition, "offset": offset}


def _unlisted(order: Row) -> Row:
    position = order["position"]
    return order | {"position": position and tuple(position)}
