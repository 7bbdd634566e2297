"""What the fold takes and gives: its parameters, and the columns of the streams into it and out of it.

Values are represented by the record that contains them, and its bytes are passed through.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from cdc_lake.fold.rules import Event, Order, Position, State

ROW, MEMORY, EVENT = 0, 1, 2
"""Ranks within a run: the row in silver, the key's entry in the side table, an event."""
ROW_PIECE, VALUES_PIECE, LIFETIME_PIECE = "row", "values", "lifetime"
"""Roles of pieces; see `arrow.fold`."""

STRINGS, _BOOL = pa.list_(pa.string()), pa.bool_()
KAFKA_POSITION = ("log_ts", "topic", "generation", "partition", "offset")
KAFKA_POSITION_TYPE = pa.struct(
    zip(KAFKA_POSITION, (pa.int64(), pa.string(), pa.int32(), pa.int32(), pa.int64()), strict=True)
)
ORDER_TYPE = pa.struct([("position", pa.list_(pa.int64())), ("domain", pa.string()), ("ts_ms", pa.int64())])
PIECES = pa.schema(
    [
        *((name, pa.string()) for name in ("key", "role", "op", "snapshot", "key_change", "moved_by")),
        *(
            ("kafka_position", KAFKA_POSITION_TYPE),
            ("seen", KAFKA_POSITION_TYPE),
            ("source", ORDER_TYPE),
            ("order", ORDER_TYPE),
        ),
        *((name, STRINGS) for name in ("columns", "kept", "missing")),
        *(("raw_value", pa.binary()), ("value_schema", pa.string()), ("framing", pa.string())),
        *((name, _BOOL) for name in ("has_row", "has_stored", "has_memory", "keeps_rest", "is_changed")),
        *(
            (name, _BOOL)
            for name in (
                "is_refolded",
                "is_out_of_order",
                "has_duplicates",
                "is_compared",
                "is_log_reset",
                "is_unplaced",
            )
        ),
        *((name, pa.int32()) for name in ("counting", "stale", "outdated", "behind_clock")),
        ("behind_ms", pa.int64()),
    ]
)
"""The columns of pieces, followed by `pk`, whose type depends on the table."""

REST = ""
"""Key in a state's values for all columns that are always sent."""
STORED = "stored"
"""In a state's values, in place of a record: silver's row has the value."""


class Record(NamedTuple):
    """A record with values of a row."""

    kafka_position: Position
    raw_value: bytes | None
    value_schema: str | None
    framing: str | None


@dataclass(frozen=True)
class Rules:
    """Parameters of the fold of a batch.

    Attributes:
        large: the columns that may not have been sent.
        hard: whether a delete removes the row.
        truncates_hard: whether a truncate removes rows.
        table_events: the new whole-table events.
        all_table_events: all whole-table events, for keys that are refolded.
        start: the state of a key without stored state.
        last_table_event: the last whole-table event so far; every key has processed it.
        is_comparison: silver may have more than the available events. If an event with a complete row is at or before
            silver's state, the key is refolded from there; otherwise only newer events are applied.
        log_may_reset: whether the user expects the source's positions to go back; see `rules.is_outdated`.
    """

    large: Sequence[str]
    hard: bool
    truncates_hard: bool
    table_events: Sequence[Event] = ()
    all_table_events: Sequence[Event] = ()
    start: State = field(default_factory=State)
    last_table_event: Position | None = None
    is_comparison: bool = False
    log_may_reset: bool = False


def batch_of_pieces(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """A batch of pieces; missing columns are null."""
    number = len(columns["key"])
    arrays = [columns.get(column.name, pa.nulls(number)).cast(column.type) for column in PIECES]
    return pa.RecordBatch.from_arrays([*arrays, columns["pk"]], [*PIECES.names, "pk"])


def kafka_position_of(fields: Mapping[str, Any]) -> Position:
    return tuple(fields[name] for name in KAFKA_POSITION)


def kafka_position_dict(kafka_position: Position | None) -> dict[str, Any] | None:
    return None if kafka_position is None else dict(zip(KAFKA_POSITION, kafka_position, strict=True))


def order_of(fields: Mapping[str, Any] | None) -> Order | None:
    return None if fields is None else Order(fields["position"], fields["domain"], fields["ts_ms"])


def order_dict(order: Order | None) -> dict[str, Any] | None:
    return None if order is None else order._asdict()


def bytes_of(value: Any) -> dict[str, Any]:
    """The columns with a record's bytes; none for a value that silver's row has."""
    if not isinstance(value, Record):
        return {}
    return {"raw_value": value.raw_value, "value_schema": value.value_schema, "framing": value.framing}
