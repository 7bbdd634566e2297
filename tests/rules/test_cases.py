"""`fold.rules.step`, docs/explanation/ordering-and-deletes.md: one log per case, uncut and cut in two at each event."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest

from cdc_lake.fold.rules import Event, Order, State, step

pytestmark = pytest.mark.core


class E(NamedTuple):
    """An event of a case's log: `op`, position and time in the source, marker."""

    op: str
    lsn: int | None = None
    ts_ms: int | None = None
    snapshot: str | None = None


def r(ts_ms: int) -> E:
    """An incremental snapshot's row."""
    return E("r", None, ts_ms, "incremental")


TOMBSTONE = E("tombstone")
CASES: dict[str, tuple[Sequence[E], int]] = {
    "one event": ([E("c", 1, 1)], 0),
    "O1: many changes in one millisecond": ([E("c", 1, 5), E("u", 2, 5), E("u", 3, 5)], 2),
    "O1: many changes of one transaction without a place": ([E("c", None, 5), E("u", None, 5), E("d", None, 5)], 2),
    "O2: a later change with an earlier commit time than the snapshot row": ([r(100), E("u", 5, 50)], 1),
    "O2: a snapshot row behind newer changes": ([E("c", 1, 10), E("u", 2, 200), r(100)], 2),
    "O3: a first snapshot that took long": ([E("r", 7, 900, "true"), E("u", 9, 500)], 1),
    "O4: a transaction that was open at the snapshot": ([E("r", 50, 100, "last"), E("u", 40, 101)], 1),
    "O5: a clock that steps back while positions grow": ([E("c", 1, 100), E("u", 2, 90), E("u", 3, 95)], 2),
    "O7: a restore: positions start again, time goes on": ([E("c", 900, 10), E("u", 5, 20), E("u", 6, 30)], 2),
    "O8: a suffix once more": ([E("c", 1, 1), E("u", 2, 2), E("u", 3, 3), E("u", 2, 2), E("u", 3, 3)], 2),
    "O8: a suffix that ends in the middle": ([E("c", 1, 1), E("u", 2, 2), E("u", 3, 3), E("u", 2, 2)], 2),
    "O8: a replayed insert behind the delete": ([E("c", 1, 1), E("d", 2, 2), E("c", 1, 1)], 1),
    "O8: without a place, by time": ([E("c", None, 1), E("u", None, 3), E("u", None, 2)], 1),
    "O9: rows that share a place, the same event twice": ([E("c", 4, 4), E("c", 4, 4)], 0),
    "O9: one place, a later time": ([E("c", 4, 4), E("u", 4, 5)], 1),
    "O11: a snapshot row, then streaming from before it": ([E("u", 5, 50), r(60), E("u", 4, 40), E("u", 6, 61)], 3),
    "O11: a replay behind a snapshot row changes nothing": ([E("u", 5, 50), r(60), E("u", 5, 50)], 1),
    "a whole log copied ends at its snapshot row": ([r(1), E("u", 2, 2), r(1), E("u", 2, 2)], 2),
    "a delete, then an insert": ([E("c", 1, 1), E("d", 2, 2), E("c", 3, 2)], 2),
    "a lone tombstone deletes": ([E("c", 1, 1), TOMBSTONE], 1),
    "an insert behind a lone tombstone": ([E("c", 1, 1), TOMBSTONE, E("c", 2, 2)], 2),
    "a replay behind a lone tombstone counts until its tombstone comes again": (
        [E("c", 1, 1), E("u", 2, 2), TOMBSTONE, E("u", 2, 2)],
        3,
    ),
    "O8: a suffix with a lone tombstone once more": (
        [E("c", 1, 1), TOMBSTONE, E("c", 2, 2), TOMBSTONE, E("c", 2, 2)],
        4,
    ),
    "O8: a stretch with a lone tombstone once more": (
        [E("c", 1, 1), TOMBSTONE, E("c", 2, 2), E("c", 1, 1), TOMBSTONE, E("c", 2, 2)],
        5,
    ),
    "a lone tombstone alone": ([TOMBSTONE], 0),
    "no time and no place: the log": ([E("c"), E("u"), E("u")], 2),
    "a place without time": ([E("c", 2), E("u", 1), E("u", 3)], 2),
    "a place known, then not, then again": ([E("c", 5, 5), E("u", None, 6), E("u", 4, 7)], 2),
    "a snapshot marker on a c is a snapshot row": ([E("u", 9, 9), E("c", 1, 1, "true")], 1),
    "stale against the last that counted, not against the last": (
        [E("u", 9, 9), E("u", 5, 5), E("u", 6, 6), E("u", 10, 10)],
        3,
    ),
}


def folded(log: Iterable[tuple[int, E]], stored: State | None, *, hard: bool) -> State:
    """The state after the events of a batch."""
    state = stored or State()
    for offset, event in log:
        is_streaming = event.op in ("c", "u", "d") and event.snapshot is None
        order = Order(None if event.lsn is None else [event.lsn], "domain", event.ts_ms)
        step(state, Event((offset,), event.op, order if is_streaming else None), hard=hard)
    return state


def stored(state: State) -> State:
    """The state that a batch reads after the one before: a row in silver, or the side table's entry."""
    if not state.has_row:
        return State(applied_at=state.applied_at, seen_at=state.seen_at, order=state.order)
    return State(True, state.is_live, state.op, state.applied_at, state.seen_at, state.order)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_log_ends_at_the_expected_event_in_every_cut(name: str, hard: bool) -> None:
    log, winner = CASES[name]
    placed = list(enumerate(log))
    applied_at: list[tuple[int, ...] | None] = []

    for cut in range(len(log)):
        before = folded(placed[:cut], None, hard=hard)
        applied_at.append(folded(placed[cut:], stored(before), hard=hard).applied_at)

    assert applied_at == [(winner,)] * len(log)
