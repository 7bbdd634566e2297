"""Events that concern every key at once: a truncate, and the end of a new snapshot that lacks rows.

Each stands in the history of every key, at its own place in the log. A truncate is a streaming delete of every row, so
that a replayed one does nothing to rows that are newer. A completed snapshot of the whole table deletes the rows that
neither it nor any event since its start has shown, if the table is set so; a snapshot sends no deletes for what went
while nobody looked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.changes.fold import STORED_KAFKA
from cdc_lake.columns import KAFKA, KAFKA_TYPE, ORDER, ORDER_TYPE
from cdc_lake.fold.rules import MISSING, TRUNCATE, Order, is_stale

_STARTS = ("first", "first_in_data_collection")
_ENDS = ("last", "last_in_data_collection")


class Place(NamedTuple):
    """A place in the log: what `__kafka` holds, in its order."""

    log_ts: int
    topic: str
    generation: int
    partition: int
    offset: int


class Truncate(NamedTuple):
    """A truncate and when it happened by its source."""

    place: Place
    order: Order


class Mark(NamedTuple):
    """A snapshot row with a marker that begins or ends it."""

    place: Place
    marker: str


class Missing(NamedTuple):
    """The end of a snapshot, and where it had begun."""

    place: Place
    since: Place


@dataclass(frozen=True)
class WholeTable:
    """What happened to all keys in a stretch of the log, and what must be remembered of it.

    Attributes:
        truncates, missing: in log order.
        truncated: the last truncate that counts, of this stretch or remembered.
        snapshot: the start of a snapshot that has not ended.
        unpaired_ends: ends of snapshots whose start is not known, so that nothing was removed.
    """

    truncates: Sequence[Truncate] = ()
    missing: Sequence[Missing] = ()
    truncated: Truncate | None = None
    snapshot: Place | None = None
    unpaired_ends: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened to all keys."""
        return not (self.truncates or self.missing)


def is_mark(snapshot: Column) -> Column:
    """Whether a snapshot marker begins or ends a snapshot of the table."""
    return snapshot.isin(*_STARTS, *_ENDS)


def is_end(snapshot: Column) -> Column:
    """Whether a snapshot marker ends a snapshot of the table."""
    return snapshot.isin(*_ENDS)


def whole_table(
    truncates: Iterable[Truncate],
    marks: Iterable[Mark],
    *,
    earlier: Iterable[Mark] = (),
    truncated: Truncate | None = None,
    snapshot: Place | None = None,
) -> WholeTable:
    """Go through what happened to all keys, in log order.

    Args:
        truncates, marks: of a stretch of the log, in any order.
        earlier: the marks that were read before, where some of these may stand before them in the log; else what is
            remembered says enough.
        truncated, snapshot: what is remembered from before it.
    """
    in_order = sorted(truncates)
    for one in in_order:
        if truncated is None or not is_stale(one.order, truncated.order):
            truncated = one
    known = [*earlier, *([Mark(snapshot, _STARTS[0])] if snapshot else [])]
    before, after = _snapshots(known), _snapshots([*known, *marks])
    missing = [one for one in after.ended if one not in before.ended]
    return WholeTable(in_order, missing, truncated, after.begun, max(after.unpaired_ends - before.unpaired_ends, 0))


class _Snapshots(NamedTuple):
    """The snapshots that marks make: those that ended, the start of one that has not, and ends without a start."""

    ended: Sequence[Missing]
    begun: Place | None
    unpaired_ends: int


def _snapshots(marks: Iterable[Mark]) -> _Snapshots:
    ended: list[Missing] = []
    begun, unpaired = None, 0
    for mark in sorted(marks):
        if mark.marker in _STARTS:
            begun = mark.place
        elif begun is None:
            unpaired += 1
        else:
            ended.append(Missing(mark.place, begun))
            begun = None
    return _Snapshots(ended, begun, unpaired)


def with_whole_table(
    events: DataFrame, keys: DataFrame, happened: WholeTable, *, remembered: Truncate | None, is_new: bool
) -> DataFrame:
    """Put what happened to all keys into the history of each.

    Args:
        events: `fold.narrowed`'s and `fold.STORED`'s columns.
        keys: `key`, `pk` and `STORED`'s, one row for each key concerned.
        happened: in these events' stretch of the log.
        remembered: the last truncate before it; it stands in the history of the keys that have nothing newer stored.
        is_new: whether `happened` is new to silver.

    Columns out: those of `events`.
    """
    rows: list[tuple[object, ...]] = [
        *((TRUNCATE, one.place, one.order, None, True, is_new) for one in happened.truncates),
        *((MISSING, one.place, None, one.since, False, is_new) for one in happened.missing),
    ]
    if remembered is not None:
        rows.append((TRUNCATE, remembered.place, remembered.order, None, True, False))
    if not rows:
        return events
    all_keys = events.sparkSession.createDataFrame(
        rows,
        f"op string, {KAFKA} {KAFKA_TYPE}, {ORDER} {ORDER_TYPE}, since {KAFKA_TYPE}, "
        "is_streaming boolean, is_new boolean",
    )
    joined = keys.crossJoin(F.broadcast(all_keys)).where(
        F.col("is_new") | F.col(STORED_KAFKA).isNull() | (F.col(KAFKA) > F.col(STORED_KAFKA))
    )
    added = joined.withColumns(
        {
            "snapshot": F.lit(None).cast("string"),
            "move": F.lit(None).cast("string"),
            "is_late": F.lit(False),
        }
    )
    return events.unionByName(added.select(*events.columns))
