"""Each rule of the fold, broken on purpose: the kit, a random history or a test's table must fail."""

from collections.abc import Callable, Mapping
from typing import get_args

import pytest
from conformance.log import Deletes
from support.edits import Edits, break_code, replaced, without_operand

from cdc_lake import fold
from rules.test_arrow import KIT, SEEDS, depends_on_index_arithmetic, depends_on_size, wrong_by_arrow
from rules.test_histories import wrong_rows
from rules.test_kit import LOGS, wrong_in
from rules.test_moves import HOLDERS, RELATIVES, connected_keys, wrong_holders

pytestmark = pytest.mark.core

BROKEN: Mapping[str, Edits] = {
    "an event of the same millisecond is stale": replaced("is_stale", "lead < 0", by="lead <= 0"),
    "the position alone decides": without_operand("is_stale", "lead is None or lead <= 0"),
    "the time alone decides": replaced("is_stale", "not are_comparable(event, last)", by="True"),
    "positions of different domains compare": without_operand("are_comparable", "one.domain == other.domain"),
    "a tombstone keeps the order": replaced("step", "state.order = None", by="pass"),
    "an insert inherits from the deleted row": without_operand("step", "not was_live"),
    "an equal position of a group is a replay": without_operand("is_stale", "not _is_same_group(event, last)"),
    "a snapshot row is never outdated": replaced("is_outdated", "row.position < last.position", by="False"),
    "a row that was read after a key change is another": without_operand("step", "was_read_later"),
    "a row that was read after a key change leaves values": without_operand("step", "not was_read_later"),
    "placeholders overwrite values": replaced("step", "{**state.values, **event.sent}", by="dict(event.sent)"),
    "a snapshot's end deletes the rows that it shows": without_operand("step", "state.applied_at >= event.since"),
    "a key change leaves nothing": replaced("step", 'event.op == "d"', by="False"),
    "a deleted row leaves its values, too": without_operand("step", "was_live"),
    "a moved row inherits nothing": replaced("step", "{}, event.key_change", by="{}, None"),
    "a moved row goes on with the one before it": without_operand(
        "step", "event.key_change is not None and not is_known_change"
    ),
    "a truncate makes a row of an unknown key": without_operand(
        "step", "state.has_row or event.op not in WHOLE_TABLE_OPS"
    ),
    "a stale event is not considered": (
        *replaced("step", "state.seen_at = event.kafka_position", by="pass"),
        *replaced(
            "step",
            "state.op, state.applied_at = event.op, event.kafka_position",
            by="state.op, state.applied_at, state.seen_at = event.op, event.kafka_position, event.kafka_position",
        ),
    ),
}
"""In the rules of one event."""
BROKEN_FOLDS: Mapping[tuple[str, str | Callable[[int], bool]], Edits] = {
    ("an event that is sent again is newer", "O2-replay-behind-incremental-row"): without_operand(
        "_compare", "is_same_event"
    ),
    ("an event of the same millisecond is newer", "sql-server-positions"): replaced(
        "_compare", "~is_newer", by="is_older"
    ),
    ("without positions every event is newer", "O6-slow-clock-without-position"): replaced(
        "_compare", "is_older", by="False"
    ),
    ("the time alone decides", "mysql-positions-are-numbers"): replaced(
        "_compare", "np.where(is_comparable, (is_less | is_same_event) & ~is_newer, is_older)", by="is_older"
    ),
    ("positions of different domains compare", "mysql-another-server"): without_operand(
        "_compare", "domain[now] == domain[before]"
    ),
    ("any later event says that the log was reset", depends_on_index_arithmetic): replaced(
        "_compare", "self._is_compared & is_less & is_newer", by="self._is_compared & is_newer"
    ),
    ("a tombstone keeps the order", "control-record-between-delete-and-tombstone"): without_operand(
        "WholeBatch.__init__", "self._is_tombstone"
    ),
    ("a snapshot row leaves an order", "O10-ghost-row-stays"): replaced(
        "WholeBatch.__init__", "self._is_streaming", by="self._is_event"
    ),
    ("an event is compared with another key's", depends_on_index_arithmetic): replaced(
        "_compare", "before >= self._first[self._run]", by="before >= 0"
    ),
    ("a lifetime does not end at a delete", "T3-never-from-behind-a-delete"): replaced(
        "fast_pieces", "np.where(ended >= first, ended + 1, first)", by="first"
    ),
    ("silver's row gives values from before a delete", "T3-never-from-behind-a-delete"): without_operand(
        "fast_pieces", "~(has_upsert & (ended >= first))"
    ),
    ("placeholders overwrite values", "T1-value-of-an-earlier-update"): without_operand(
        "_large_values", "~unsent[:, number]"
    ),
    ("what silver's row lacks is kept", "T4-old-row-lacked-it-too"): without_operand(
        "_large_values", "~unsent[first, number]"
    ),
    ("a hard delete leaves the row", "tombstones-of-two-keys"): replaced(
        "fast_pieces", "not self._rules.hard", by="True"
    ),
    ("a key change is a delete and an insert", "T4-key-change"): replaced(
        "_find_slow", 'is_odd |= _to_numpy(pc.is_valid(self._batch.column("key_change")))', by="pass"
    ),
    ("silver's memory of a key is passed over", "O8-replay-behind-a-delete"): without_operand(
        "_find_slow", "self._rank == MEMORY"
    ),
    ("an event below what silver shows counts", "late-snapshot-row"): replaced("_find_slow", "is_row[:-1]", by="False"),
    ("a snapshot row is never outdated", "snapshot-row-behind-newer-changes"): replaced(
        "_compare", "np.where(is_read, is_outdated, self._is_streaming & is_stale)", by="self._is_streaming & is_stale"
    ),
    ("a stale event counts", "truncate-sent-again"): without_operand("_find_slow", "self._is_stale"),
    ("the last place that was considered is not told", "O12-tombstone-read-late-before-a-replay"): replaced(
        "_RunPieces.end", "None if is_seen else kafka_position_dict(state.seen_at)", by="None"
    ),
    ("the last place that was considered is not looked at", "O12-tombstone-read-late-before-a-replay"): without_operand(
        "_take_memory", 'row["seen"]'
    ),
    ("an event below what silver shows is folded on top", "late-update"): replaced(
        "_reaches", "self._floor is None or event.kafka_position > self._floor", by="True"
    ),
    ("a truncate stands behind all events", "truncate-without-position"): replaced(
        "_take_event",
        "self._take_table_events(before=kafka_position)",
        by="self._table_events is None and self._begin()",
    ),
    ("a truncate of before is forgotten", "truncate-before-an-old-event-of-a-key-never-seen"): replaced(
        "_KeyRun.__init__", "replace(rules.start, values={})", by="State()"
    ),
    ("a key that is folded again begins with silver's row", "late-update"): replaced(
        "_begin", "self.state = State()", by="pass"
    ),
    (
        "where silver's row was read is forgotten",
        "blocking-snapshot-contains-a-key-change-of-a-row-never-seen",
    ): replaced("_take_stored", 'row["read_at"]', by="None"),
    ("a delete is forgotten", "O8-replay-behind-a-delete"): replaced(
        "_take_memory",
        'State(applied_at=kafka_position_of(row["kafka_position"]), order=order_of(row["order"]))',
        by="State()",
    ),
    ("truncates are as hard as deletes", "truncates-hard"): replaced(
        "_step", "self.rules.truncates_hard", by="self.rules.hard"
    ),
    ("a row does not wait for what a key change leaves", "T4-insert-before-delete"): replaced(
        "_RunPieces.end", "state.moved_by if missing else None", by="None"
    ),
    ("a lifetime does not say what it came by", "T4-chain"): replaced(
        "_RunPieces.end",
        '{"key_change": left.key_change, "moved_by": left.moved_by, "kept": kept}',
        by='{"key_change": left.key_change, "moved_by": None, "kept": kept}',
    ),
    ("a lifetime leaves nothing that silver's row has", "T4-key-change"): replaced(
        "_RunPieces.end", "[name for name, value in values.items() if value is STORED]", by="[]"
    ),
    ("a run ends with its batch", depends_on_size): (
        *replaced("fold", "is_slow[-1] = True", by="pass"),
        *replaced("fold", "is_slow[0] = True", by="pass"),
    ),
}
"""In the code around `step`: the check that must fail, a log of the kit or a function of a random log's seed."""
BROKEN_MOVES: Mapping[str, Edits] = {
    "the last lifetime counts": replaced(
        "EndedLifetimes.__init__",
        "lifetimes.sort(key=lambda left: left.kafka_position)",
        by="lifetimes.sort(key=lambda left: left.kafka_position, reverse=True)",
    ),
    "the first lifetime counts that is read": replaced(
        "EndedLifetimes.__init__", "lifetimes.sort(key=lambda left: left.kafka_position)", by="None"
    ),
    "a lifetime without a value counts": replaced(
        "_candidates", "candidates and not is_without_position(key_change)", by="not is_without_position(key_change)"
    ),
    "a change without a position takes the first value": without_operand(
        "_candidates", "not is_without_position(key_change)"
    ),
    "any lifetime of a change with a position may be meant": replaced(
        "_candidates", "candidates and not is_without_position(key_change)", by="False"
    ),
    "any of several values is taken": replaced("source_of", "len(candidates) == 1", by="candidates"),
    "equal values of two lifetimes are two": replaced(
        "_candidates", "{left.values[column]: left.id}", by="{left.id: left.id}"
    ),
    "what is not clear one step behind is not there": replaced(
        "_candidates", "own | candidates", by="candidates | (own if len(own) == 1 else {})"
    ),
    "only the lifetimes of the change itself are looked at": replaced(
        "_candidates", "self._candidates(column, left.moved_by, seen)", by="{}"
    ),
    "relatives of relatives are left out": replaced("connected_keys", "waiting += new", by="pass"),
    "keys without a relative are left out": replaced(
        "connected_keys", "[(key,) for key in connected]", by="[(key,) for key in connected if key in moves_of]"
    ),
}
"""In the rules of key changes."""


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_fails_the_tests(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    break_code(monkeypatch, fold, BROKEN[name])

    is_noticed = any(wrong_in(log, deletes) for log in LOGS for deletes in get_args(Deletes))
    assert is_noticed or any(wrong_rows(seed) for seed in range(300))


@pytest.mark.parametrize(
    ("by", "edits"), [pytest.param(by, edits, id=name) for (name, by), edits in BROKEN_FOLDS.items()]
)
def test_broken_arrow_fold_fails_the_tests(
    monkeypatch: pytest.MonkeyPatch, by: str | Callable[[int], bool], edits: Edits
) -> None:
    break_code(monkeypatch, fold, edits)

    if callable(by):
        assert any(map(by, SEEDS))
    else:
        (log,) = (log for log in KIT if log.log == by)
        assert wrong_by_arrow(log)


@pytest.mark.parametrize("name", BROKEN_MOVES)
def test_broken_key_change_rule_fails_the_tests(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    break_code(monkeypatch, fold, BROKEN_MOVES[name])

    is_noticed = any(map(wrong_holders, HOLDERS.values()))
    assert is_noticed or any(connected_keys(asked) != found for asked, found in RELATIVES.items())
