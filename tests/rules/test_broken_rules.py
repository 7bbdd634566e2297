"""Each rule of the fold, broken on purpose: the kit, a random history or a test's table notices."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, get_args

import pytest
from conformance.log import Deletes

from cdc_lake.fold import arrow, moves, rules
from rules import arrow_table, table, test_moves
from rules.test_arrow import KIT, SEEDS, depends_on_index_arithmetic, depends_on_size, wrong_by_arrow
from rules.test_histories import wrong_rows
from rules.test_kit import LOGS, wrong_in
from rules.test_moves import HOLDERS, RELATIVES, relatives, wrong_holders

Edits = Sequence[tuple[str, str]]
"""Texts and what stands in their stead."""


class Broken(NamedTuple):
    """What is replaced, and what notices: a log of the kit, or a function of a random log's seed."""

    by: str | Callable[[int], bool]
    edits: Edits


BROKEN: Mapping[str, Edits] = {
    "an event of the same millisecond is stale": [("lead_ms < 0", "lead_ms <= 0")],
    "the position alone decides": [(" and (lead_ms is None or lead_ms <= 0)", "")],
    "the time alone decides": [("if event.position is None", "if True")],
    "positions of different domains compare": [(" or event.domain != last.domain", "")],
    "a tombstone keeps the order": [("event.order is not None or event.op == TOMBSTONE", "event.order is not None")],
    "an insert inherits from the deleted row": [("if not was_live or event", "if event")],
    "placeholders overwrite values": [("{**state.values, **event.sent}", "dict(event.sent)")],
    "a snapshot's end deletes the rows that it shows": [(" or state.decided >= event.since", "")],
    "a key change leaves nothing": [('is_left = event.op == "d" and', "is_left = False and")],
    "a deleted row leaves its values, too": [("is not None and was_live", "is not None")],
    "a moved row inherits nothing": [("{}, event.move", "{}, None")],
    "a moved row goes on with the one before it": [(" or event.move is not None:", ":")],
    "a truncate makes a row of an unknown key": [("(state.has_row or event.op not in WHOLE_TABLE_OPS)", "True")],
    "a stale event is not considered": [
        ("    state.considered = event.place\n", ""),
        (
            "state.op, state.decided = event.op, event.place",
            "state.op, state.decided, state.considered = event.op, event.place, event.place",
        ),
    ],
}
BROKEN_BY_INDEX: Mapping[str, Broken] = {
    "an event that is sent again is newer": Broken(
        "O2-replay-behind-incremental-row", [("(is_less | is_equal) & ~is_newer", "is_less & ~is_newer")]
    ),
    "an event of the same millisecond is newer": Broken(
        "mysql-rows-of-one-event", [("(is_less | is_equal) & ~is_newer", "(is_less | is_equal) & is_older")]
    ),
    "without positions every event is newer": Broken(
        "O6-slow-clock-without-position", [(" & ~is_newer, is_older)", " & ~is_newer, False)")]
    ),
    "the time alone decides": Broken(
        "mysql-positions-are-numbers",
        [("np.where(is_comparable, (is_less | is_equal) & ~is_newer, is_older)", "is_older")],
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
        "T4-key-change", [('        is_odd |= _numpy(pc.is_valid(self.batch.column("move")))\n', "")]
    ),
    "silver's memory of a key is passed over": Broken("O8-replay-behind-a-delete", [(" | (self._rank == MEMORY)", "")]),
    "an event below what silver shows counts": Broken(
        "late-snapshot-row", [("        is_odd[1:] |= is_row[:-1]", "        is_odd[1:] |= False & is_row[:-1]")]
    ),
    "a stale event counts": Broken("truncate-sent-again", [("is_odd = self._is_stale |", "is_odd =")]),
}
"""In `fold.arrow`, where whole batches are decided at once. What is taken for stale there is left to `step`."""
BROKEN_IN_RUNS: Mapping[str, Broken] = {
    "the last place that was considered is not told": Broken(
        "O12-tombstone-read-late-before-a-replay",
        [("seen=None if is_seen else _place_dict(state.considered)", "seen=None")],
    ),
    "the last place that was considered is not looked at": Broken(
        "O12-tombstone-read-late-before-a-replay", [('row["seen"] or row["place"]', 'row["place"]')]
    ),
    "a run ends with its batch": Broken(
        depends_on_size,
        [("        is_slow[-1] = True  # it may continue in the next batch\n", ""), ("is_slow[0] = True", "pass")],
    ),
    "an event below what silver shows is folded on top": Broken(
        "late-update",
        [
            (
                "            return self.rules.is_comparison or not self.is_behind\n        self.is_behind = True",
                "            return True\n        return True",
            )
        ],
    ),
    "a truncate stands behind all events": Broken(
        "truncate-without-position",
        [
            (
                "        self._take_of_all(before=place)\n",
                "        if self._of_all is None:\n            self._begin()\n",
            )
        ],
    ),
    "a truncate of before is forgotten": Broken(
        "truncate-before-an-old-event-of-a-key-never-seen", [("replace(rules.start, values={})", "State()")]
    ),
    "a key that is folded again begins with silver's row": Broken(
        "late-update", [("            self.state = State()\n        elif", "            pass\n        elif")]
    ),
    "a delete is forgotten": Broken(
        "O8-replay-behind-a-delete", [('State(decided=place, order=_order(row["order"]))', "State()")]
    ),
    "truncates are as hard as deletes": Broken(
        "truncates-hard",
        [("self.rules.truncates_hard if event.op == TRUNCATE else self.rules.hard", "self.rules.hard")],
    ),
    "a row does not wait for what a key change leaves": Broken(
        "T4-insert-before-delete", [("came_by=state.came_by if missing else None", "came_by=None")]
    ),
    "a lifetime does not say what it came by": Broken(
        "T4-chain", [('"came_by": left.came_by, "kept"', '"came_by": None, "kept"')]
    ),
    "a lifetime leaves nothing that silver's row has": Broken(
        "T4-key-change",
        [("kept = [name for name, value in values.items() if value is STORED]", "kept: list[str] = []")],
    ),
}
"""In `fold.arrow`, around `step`."""
BROKEN_MOVES: Mapping[str, Edits] = {
    "the last lifetime counts": [("key=lambda left: left.place", "key=lambda left: left.place, reverse=True")],
    "the first lifetime counts that is read": [
        ("            lifetimes.sort(key=lambda left: left.place)\n", "            pass\n")
    ],
    "a lifetime without a value counts": [("if found and not", "if not")],
    "a change without a position takes the first value": [("if found and not is_without_position(move):", "if found:")],
    "any lifetime of a change with a position may be meant": [
        ("if found and not is_without_position(move):", "if False:")
    ],
    "any of several values is taken": [("if len(found) == 1 else None", "if found else None")],
    "equal values of two lifetimes are two": [("{left.values[column]: left.id}", "{left.id: left.id}")],
    "what is not clear one step behind is not there": [
        ("found = held | found", "found = found | (held if len(held) == 1 else {})")
    ],
    "only the lifetimes of the change itself are looked at": [
        ("self._held(column, left.came_by, (*seen, left.id))", "{}")
    ],
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
def test_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(table, "step", broken(rules, BROKEN[name]).step)

    is_noticed = any(wrong_in(log, deletes) for log in LOGS for deletes in get_args(Deletes))
    assert is_noticed or any(wrong_rows(seed) for seed in range(300))


@pytest.mark.parametrize(
    "case", [pytest.param(one, id=name) for part in (BROKEN_BY_INDEX, BROKEN_IN_RUNS) for name, one in part.items()]
)
def test_broken_arrow_is_noticed(monkeypatch: pytest.MonkeyPatch, case: Broken) -> None:
    monkeypatch.setattr(arrow_table, "arrow", broken(arrow, case.edits))

    if callable(case.by):
        assert any(map(case.by, SEEDS))
    else:
        (log,) = (log for log in KIT if log.log == case.by)
        assert wrong_by_arrow(log)


@pytest.mark.parametrize("name", BROKEN_MOVES)
def test_broken_move_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(test_moves, "moves", broken(moves, BROKEN_MOVES[name]))

    is_noticed = any(map(wrong_holders, HOLDERS.values()))
    assert is_noticed or any(relatives(asked) != found for asked, found in RELATIVES.items())
