"""`fold.arrow` and `fold.key_changes` on the kit and on random logs.

Against what is written and the reference; by index arithmetic as by `step`; and however the stream is cut into batches.
"""

import random
from collections.abc import Iterable
from typing import get_args

import numpy as np
import pytest
from conformance.log import Deletes, Log
from support import reference
from support.histories import LARGE, batches, random_log

from cdc_lake.fold.rules import Order, State
from cdc_lake.fold.stream import MEMORY, ROW, ROW_PIECE, VALUES_PIECE, Rules
from rules import arrow_table
from rules.arrow_table import ArrowTable, Row, event_row, folded, read_at
from rules.test_histories import wrong_rows
from rules.test_kit import LOGS, wrong_in

pytestmark = pytest.mark.core

KIT = [log for log in LOGS if "null_means_keep" not in log.settings]
SEEDS = range(25)
WHOLE = 1_000_000
"""More rows than a stream has."""


def stored_rows(pieces: Iterable[Row]) -> list[Row]:
    """The rows that the next batch reads after these pieces were written."""
    found = []
    for piece in pieces:
        if piece["role"] != ROW_PIECE:
            continue
        known = {"key": piece["key"], "kafka_position": piece["kafka_position"], "order": piece["order"], "unsent": []}
        known |= {"is_streaming": False, "is_new": False, "refold": False}
        if piece["has_row"]:
            unsent = piece["missing"]
            of_row = {"pk": piece["pk"], "rank": ROW, "op": piece["op"], "unsent": unsent, "read_at": read_at(piece)}
            found.append({**known, **of_row})
        if not piece["has_row"] or piece["seen"] or piece["moved_by"]:
            found.append({**known, "rank": MEMORY, "seen": piece["seen"], "key_change": piece["moved_by"]})
    return found


def two_batches(seed: int) -> tuple[list[Row], list[Row], Rules]:
    """Two batches of a random log: the first, the second after the first's result, and the rules to fold them by."""
    rng = random.Random(seed)
    log = random_log(rng, 12, breaks_off=rng.random() < 0.5)
    start = rng.choice((State(), State(op="t", order=Order([0], "source", 0))))
    rules = Rules(LARGE, hard=rng.random() < 0.5, truncates_hard=False, start=start)
    early = {(log.events[number].partition, log.events[number].offset) for number in batches(rng, log, 2)[0]}
    parts: tuple[list[Row], list[Row]] = [], []
    for kafka_position, event in reference.in_log_order(log.events):
        parts[(kafka_position.partition, kafka_position.offset) not in early].append(event_row(kafka_position, event))
    one, other = parts
    assert one and other
    return one, [*stored_rows(folded(one, rules, size=WHOLE)), *other], rules


def depends_on_size(seed: int) -> bool:
    """Whether the pieces differ if the stream comes in small batches."""
    *streams, rules = two_batches(seed)
    return any(folded(rows, rules, size=size) != folded(rows, rules, size=WHOLE) for rows in streams for size in (1, 7))


def depends_on_index_arithmetic(seed: int) -> bool:
    """Whether the pieces differ if every event goes through `step`."""
    *streams, rules = two_batches(seed)
    by_index = [folded(rows, rules, size=WHOLE) for rows in streams]
    with pytest.MonkeyPatch.context() as patch:
        kind = arrow_table.arrow.WholeBatch
        patch.setattr(kind, "_find_slow", lambda batch: np.ones(len(batch._first), bool))
        patch.setattr(kind, "fast_pieces", lambda batch, runs: None)
        return [folded(rows, rules, size=WHOLE) for rows in streams] != by_index


def wrong_by_arrow(log: Log) -> list[str]:
    """The errors of a log of the kit that is folded in one batch, or event by event."""
    wrong = (wrong_in(log, deletes, kind=ArrowTable, splits=("none", "each")) for deletes in get_args(Deletes))
    return [line for lines in wrong for line in lines]


@pytest.mark.parametrize("log", KIT, ids=lambda log: log.log)
def test_log_ends_as_the_kit_states(log: Log) -> None:
    assert wrong_by_arrow(log) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_random_log_matches_the_reference(seed: int) -> None:
    assert wrong_rows(seed, kind=ArrowTable) == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_batch_size_does_not_change_the_result(seed: int) -> None:
    assert not depends_on_size(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_index_arithmetic_matches_step(seed: int) -> None:
    assert not depends_on_index_arithmetic(seed)


def test_index_arithmetic_decides_at_least_a_third_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would compare `step` with itself. Random logs are difficult."""
    kind = arrow_table.arrow.WholeBatch
    is_slow: list[bool] = []
    found = kind._find_slow

    def noted(batch: arrow_table.arrow.WholeBatch) -> np.ndarray:
        runs = found(batch)
        is_slow.extend(runs)
        return runs

    monkeypatch.setattr(kind, "_find_slow", noted)
    pieces = []
    for seed in range(20):
        rows, _, rules = two_batches(seed)
        pieces += folded(rows, rules, size=WHOLE)

    assert is_slow.count(False) > len(is_slow) / 3
    assert any(piece["role"] == VALUES_PIECE for piece in pieces)
