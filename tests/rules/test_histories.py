"""`fold.rules.step` on random logs in random cuts, compared with the reference, which folds the whole log at once."""

import random
from dataclasses import replace
from typing import Any

import pytest
from support import reference
from support.histories import COLUMNS, batches, random_log

from rules.arrow_table import ArrowTable
from rules.table import Table, batches_as_seen

pytestmark = pytest.mark.core

HISTORIES_OF_A_LOG = 6
SEEDS_OF_A_TEST = 250


def wrong_rows(seed: int, *, kind: type[Table] | type[ArrowTable] = Table) -> dict[Any, Any]:
    """Fold a random log in 5 to 29 batches; the keys whose rows differ from the reference's, with both rows."""
    rng = random.Random(seed)
    truncates = rng.random() < 0.2
    losses = rng.random() < 0.3
    settings: dict[str, Any] = {
        "deletes": rng.choice(("soft", "hard")),
        "soft_delete_values": rng.choice(("last", "last", "null")),
        "truncates_across_partitions": truncates,
        "remove_missing": losses,
    }
    log = random_log(rng, HISTORIES_OF_A_LOG, truncates=truncates, losses=losses)
    cut = batches(rng, log, rng.randrange(5, 30))
    last = len(cut) - 1
    due = {
        number: rng.choice((batch, rng.randint(batch, last), None))
        for batch, numbers in enumerate(cut)
        for number in numbers
        if number in log.late
    }
    events = [
        replace(event, status="quarantined") if due.get(number, 0) is None else event
        for number, event in enumerate(log.events)
    ]
    expected = {
        key: (row.values, row.deleted, row.unavailable, row.op, tuple(row.place), row.order and tuple(row.order))
        for key, row in reference.fold(events, list(COLUMNS), **settings).items()
    }
    table = kind(list(COLUMNS), **settings)
    for batch in batches_as_seen(dict(enumerate(events)), cut, due):
        table.take(batch)
    found = table.rows()
    return {
        key: (found.get(key), expected.get(key))
        for key in sorted({*found, *expected})
        if found.get(key) != expected.get(key)
    }


@pytest.mark.parametrize("part", range(8))
def test_random_logs_match_the_reference_in_any_cut(part: int) -> None:
    seeds = range(part * SEEDS_OF_A_TEST, (part + 1) * SEEDS_OF_A_TEST)

    assert {seed: wrong for seed in seeds if (wrong := wrong_rows(seed))} == {}
