"""Each rule of the fold, broken on purpose: the kit, a random history or a test's table must fail."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, get_args

import pytest
from conformance.log import Deletes

from cdc_lake.fold import arrow, key_changes, rules, whole_batch
from rules import table, test_moves
from rules.test_arrow import KIT, SEEDS, depends_on_index_arithmetic, depends_on_size, wrong_by_arrow
from rules.test_histories import wrong_rows
from rules.test_kit import LOGS, wrong_in
from rules.test_moves import HOLDERS, RELATIVES, connected_keys, wrong_holders

pytestmark = pytest.mark.core

Edits = Sequence[tuple[str, str]]
"""Texts and their replacements."""


class Broken(NamedTuple):
    """The replacements, and the check that must fail: a log of the kit, or a function of a random log's seed."""

    by: str | Callable[[int], bool]
    edits: Edits


BROKEN: Mapping[str, Edits] = {
    "an event of the same millisecond is stale": [("lead < 0", "lead <= 0")],
    "the position alone decides": [(" and (lead is None or lead <= 0)", "")],
    "the time alone decides": [("if not are_comparable(event, last):", "if True:")],
    "positions of different domains compare": [(" and one.domain == other.domain", "")],
    "a tombstone keeps the order": [("    if event.op == TOMBSTONE:\n        state.order = None\n    elif", "    if")],
    "an insert inherits from the deleted row": [("if not was_live or (event", "if (event")],
    "an equal position of a group is a replay": [(" and not _is_same_group(event, last)", "")],
    "a snapshot row is never outdated": [("if not event.is_streaming and is_outdated(", "if False and is_outdated(")],
    "a row that was read after a key change is another": [
        ("is_known_change = was_read_later or ", "is_known_change = ")
    ],
    "a row that was read after a key change leaves values": [(" and was_live and not was_read_later", " and was_live")],
    "placeholders overwrite values": [("{**state.values, **event.sent}", "dict(event.sent)")],
    "a snapshot's end deletes the rows that it shows": [(" or state.applied_at >= event.since", "")],
    "a key change leaves nothing": [('is_left = event.op == "d" and', "is_left = False and")],
    "a deleted row leaves its values, too": [("is not None and was_live", "is not None")],
    "a moved row inherits nothing": [("{}, event.key_change", "{}, None")],
    "a moved row goes on with the one before it": [
        (" or (event.key_change is not None and not is_known_change):", ":")
    ],
    "a truncate makes a row of an unknown key": [("(state.has_row or event.op not in WHOLE_TABLE_OPS)", "True")],
    "a stale event is not considered": [
        ("    state.seen_at = event.kafka_position\n", ""),
        (
            "state.op, state.applied_at = event.op, event.kafka_position",
            "state.op, state.applied_at, state.seen_at = event.op, event.kafka_position, event.kafka_position",
        ),
    ],
}
BROKEN_BY_INDEX: Mapping[str, Broken] = {
    "an event that is sent again is newer": Broken(
        "O2-replay-behind-incremental-row", [("(is_less | is_same_event) & ~is_newer", "is_less & ~is_newer")]
    ),
    "an event of the same millisecond is newer": Broken(
        "sql-server-positions", [("(is_less | is_same_event) & ~is_newer", "(is_less | is_same_event) & is_older")]
    ),
    "without positions every event is newer": Broken(
        "O6-slow-clock-without-position", [(" & ~is_newer, is_older)", " & ~is_newer, False)")]
    ),
    "the time alone decides": Broken(
        "mysql-positions-are-numbers",
        [("np.where(is_comparable, (is_less | is_same_event) & ~is_newer, is_older)", "is_older")],
    ),
    "positions of different domains compare": Broken(
        "mysql-another-server", [(" & (domain[now] == domain[before])", "")]
    ),
    "any later event says that the log was reset": Broken(
        depends_on_index_arithmetic, [("& is_less & is_newer", "& is_newer")]
    ),
    "a tombstone keeps the order": Broken(
        "control-record-between-delete-and-tombstone",
        [("| self._is_streaming | self._is_tombstone)", "| self._is_streaming)")],
    ),
    "a snapshot row leaves an order": Broken(
        "O10-ghost-row-stays",
        [("(self._rank == ROW) | self._is_streaming |", "(self._rank == ROW) | self._is_event |")],
    ),
    "an event is compared with another key's": Broken(
        depends_on_index_arithmetic,
        [("np.where(before >= self._first[self._run], before, self._n)", "np.where(before >= 0, before, self._n)")],
    ),
    "a lifetime does not end at a delete": Broken(
        "T3-never-from-behind-a-delete", [("np.where(ended >= first, ended + 1, first)", "first")]
    ),
    "silver's row gives values from before a delete": Broken(
        "T3-never-from-behind-a-delete",
        [("has_stored & ~(has_upsert & (ended >= first)) & has_row", "has_stored & has_row")],
    ),
    "placeholders overwrite values": Broken(
        "T1-value-of-an-earlier-update", [("self._is_upsert & ~unsent[:, number]", "self._is_upsert")]
    ),
    "what silver's row lacks is kept": Broken("T4-old-row-lacked-it-too", [(" & ~unsent[first, number]", "")]),
    "a hard delete leaves the row": Broken(
        "tombstones-of-two-keys", [("is_live | (not self._rules.hard)", "is_live | True")]
    ),
    "a key change is a delete and an insert": Broken(
        "T4-key-change", [('        is_odd |= _to_numpy(pc.is_valid(self._batch.column("key_change")))\n', "")]
    ),
    "silver's memory of a key is passed over": Broken("O8-replay-behind-a-delete", [(" | (self._rank == MEMORY)", "")]),
    "an event below what silver shows counts": Broken(
        "late-snapshot-row", [("        is_odd[1:] |= is_row[:-1]", "        is_odd[1:] |= False & is_row[:-1]")]
    ),
    "a snapshot row is never outdated": Broken(
        "snapshot-row-behind-newer-changes",
        [("np.where(is_read, is_outdated, self._is_streaming & is_stale)", "self._is_streaming & is_stale")],
    ),
    "a stale event counts": Broken("truncate-sent-again", [("is_odd = self._is_stale |", "is_odd =")]),
}
"""In `fold.whole_batch`. Runs that look stale there are left to `step`."""
BROKEN_IN_RUNS: Mapping[str, Broken] = {
    "the last place that was considered is not told": Broken(
        "O12-tombstone-read-late-before-a-replay",
        [("seen=None if is_seen else kafka_position_dict(state.seen_at)", "seen=None")],
    ),
    "the last place that was considered is not looked at": Broken(
        "O12-tombstone-read-late-before-a-replay", [('row["seen"] or row["kafka_position"]', 'row["kafka_position"]')]
    ),
    "an event below what silver shows is folded on top": Broken(
        "late-update",
        [
            (
                "            return self.rules.is_comparison or not self.is_out_of_order\n"
                "        self.is_out_of_order = True",
                "            return True\n        return True",
            )
        ],
    ),
    "a truncate stands behind all events": Broken(
        "truncate-without-position",
        [
            (
                "        self._take_table_events(before=kafka_position)\n",
                "        if self._table_events is None:\n            self._begin()\n",
            )
        ],
    ),
    "a truncate of before is forgotten": Broken(
        "truncate-before-an-old-event-of-a-key-never-seen", [("replace(rules.start, values={})", "State()")]
    ),
    "a key that is folded again begins with silver's row": Broken(
        "late-update", [("            self.state = State()\n        elif", "            pass\n        elif")]
    ),
    "where silver's row was read is forgotten": Broken(
        "blocking-snapshot-contains-a-key-change-of-a-row-never-seen",
        [('read_at=row["read_at"],', "read_at=None,")],
    ),
    "a delete is forgotten": Broken(
        "O8-replay-behind-a-delete",
        [('State(applied_at=kafka_position_of(row["kafka_position"]), order=order_of(row["order"]))', "State()")],
    ),
    "truncates are as hard as deletes": Broken(
        "truncates-hard",
        [("self.rules.truncates_hard if event.op == TRUNCATE else self.rules.hard", "self.rules.hard")],
    ),
    "a row does not wait for what a key change leaves": Broken(
        "T4-insert-before-delete", [("moved_by=state.moved_by if missing else None", "moved_by=None")]
    ),
    "a lifetime does not say what it came by": Broken(
        "T4-chain", [('"moved_by": left.moved_by, "kept"', '"moved_by": None, "kept"')]
    ),
    "a lifetime leaves nothing that silver's row has": Broken(
        "T4-key-change",
        [("kept = [name for name, value in values.items() if value is STORED]", "kept: list[str] = []")],
    ),
}
"""In `fold.arrow`, in the code around `step`."""
BROKEN_STREAMS: Mapping[str, Broken] = {
    "a run ends with its batch": Broken(
        depends_on_size,
        [("        is_slow[-1] = True  # it may continue in the next batch\n", ""), ("is_slow[0] = True", "pass")],
    ),
}
"""In `fold.arrow`, in the stream of batches."""
BROKEN_FOLDS = {whole_batch: BROKEN_BY_INDEX, arrow: {**BROKEN_IN_RUNS, **BROKEN_STREAMS}}
BROKEN_MOVES: Mapping[str, Edits] = {
    "the last lifetime counts": [
        ("key=lambda left: left.kafka_position", "key=lambda left: left.kafka_position, reverse=True")
    ],
    "the first lifetime counts that is read": [
        ("            lifetimes.sort(key=lambda left: left.kafka_position)\n", "            pass\n")
    ],
    "a lifetime without a value counts": [("if found and not", "if not")],
    "a change without a position takes the first value": [
        ("if found and not is_without_position(key_change):", "if found:")
    ],
    "any lifetime of a change with a position may be meant": [
        ("if found and not is_without_position(key_change):", "if False:")
    ],
    "any of several values is taken": [("if len(found) == 1 else None", "if found else None")],
    "equal values of two lifetimes are two": [("{left.values[column]: left.id}", "{left.id: left.id}")],
    "what is not clear one step behind is not there": [
        ("found = own | found", "found = found | (own if len(own) == 1 else {})")
    ],
    "only the lifetimes of the change itself are looked at": [("self._candidates(column, left.moved_by, seen)", "{}")],
    "relatives of relatives are left out": [("            waiting += new\n", "")],
    "keys without a relative are left out": [("for key in found])", "for key in found if key in moves_of])")],
}


def broken(module: ModuleType, edits: Edits) -> ModuleType:
    """The module with these texts replaced."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    found = ModuleType("broken_rules")
    exec(compile(source, "broken_rules", "exec"), found.__dict__)
    return found


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_fails_the_tests(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(table, "step", broken(rules, BROKEN[name]).step)

    is_noticed = any(wrong_in(log, deletes) for log in LOGS for deletes in get_args(Deletes))
    assert is_noticed or any(wrong_rows(seed) for seed in range(300))


@pytest.mark.parametrize(
    ("module", "case"),
    [pytest.param(module, one, id=name) for module, part in BROKEN_FOLDS.items() for name, one in part.items()],
)
def test_broken_arrow_fold_fails_the_tests(monkeypatch: pytest.MonkeyPatch, module: ModuleType, case: Broken) -> None:
    replacement = broken(module, case.edits)
    used = [name for name, value in vars(arrow).items() if getattr(value, "__module__", None) == module.__name__]
    for name in used:
        monkeypatch.setattr(arrow, name, getattr(replacement, name))

    assert used
    if callable(case.by):
        assert any(map(case.by, SEEDS))
    else:
        (log,) = (log for log in KIT if log.log == case.by)
        assert wrong_by_arrow(log)


@pytest.mark.parametrize("name", BROKEN_MOVES)
def test_broken_key_change_rule_fails_the_tests(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(test_moves, "key_changes", broken(key_changes, BROKEN_MOVES[name]))

    is_noticed = any(map(wrong_holders, HOLDERS.values()))
    assert is_noticed or any(connected_keys(asked) != found for asked, found in RELATIVES.items())
