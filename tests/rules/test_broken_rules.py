"""Each rule of `fold.rules`, broken on purpose: the kit or a random history notices."""

from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from conformance.log import Deletes

from cdc_lake.fold import rules
from rules import table
from rules.test_histories import wrong_rows
from rules.test_kit import LOGS, wrong_in

BROKEN: dict[str, list[tuple[str, str]]] = {
    "an event of the same millisecond is stale": [("lead_ms < 0", "lead_ms <= 0")],
    "the position alone decides": [(" and (lead_ms is None or lead_ms <= 0)", "")],
    "the time alone decides": [("if event.position is None", "if True")],
    "positions of different domains compare": [(" or event.domain != last.domain", "")],
    "a tombstone keeps the order": [("event.order is not None or event.op == TOMBSTONE", "event.order is not None")],
    "an insert inherits from the deleted row": [("if not was_live:", "if False:")],
    "placeholders overwrite values": [("{**state.values, **event.sent}", "dict(event.sent)")],
    "a snapshot's end deletes the rows that it shows": [(" or state.decided >= event.since", "")],
    "a key change leaves nothing": [('is_left = event.op == "d" and', "is_left = False and")],
    "a deleted row leaves its values, too": [("is not None and was_live", "is not None")],
    "a moved row inherits nothing": [("event.move or state.came_by", "None")],
    "a truncate makes a row of an unknown key": [("(state.has_row or event.op not in WHOLE_TABLE_OPS)", "True")],
    "a stale event is not considered": [
        ("    state.considered = event.place\n", ""),
        (
            "state.op, state.decided = event.op, event.place",
            "state.op, state.decided, state.considered = event.op, event.place, event.place",
        ),
    ],
}


def broken(edits: list[tuple[str, str]]) -> ModuleType:
    """The rules with these texts replaced."""
    source = Path(rules.__file__).read_text(encoding="utf-8")
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    module = ModuleType("broken_rules")
    exec(compile(source, "broken_rules", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(table, "step", broken(BROKEN[name]).step)

    is_noticed = any(wrong_in(log, deletes) for log in LOGS for deletes in get_args(Deletes))
    assert is_noticed or any(wrong_rows(seed) for seed in range(300))
