"""`fold.rules.step` against the conformance kit: every log, in every cut, with soft and hard deletes."""

from collections.abc import Sequence
from typing import get_args

import pytest
from conformance.by_reference import events_of
from conformance.cut import Split, cuts, due
from conformance.log import Deletes, Log, load
from conformance.rows import Found, differences, expected_rows

from rules.arrow_table import ArrowTable
from rules.table import Record, Table, batches_as_seen

pytestmark = pytest.mark.core

LOGS = [log for log in load() if log.stops is None]
SPLITS: tuple[Split, ...] = get_args(Split)


def batches_of(log: Log, cut: Sequence[range]) -> list[list[Record]]:
    """The log's events in silver's form."""
    numbers = [number for number, event in enumerate(log.events) if not event.lost]
    events = dict(zip(numbers, events_of(log), strict=True))
    return batches_as_seen(events, cut, {number: due(log, cut, number) for number in numbers})


def wrong_in(
    log: Log, deletes: Deletes, *, kind: type[Table] | type[ArrowTable] = Table, splits: Sequence[Split] = SPLITS
) -> list[str]:
    """The errors of the first cut whose result differs; empty if all are correct."""
    expected = expected_rows(log, deletes)
    settings = dict(log.settings)
    settings["remove_missing"] = settings.pop("remove_missing_after_snapshot", False)
    settings.pop("null_means_keep", None)
    for cut in (cut for split in splits for cut in cuts(log, split)):
        table = kind(list(log.table_columns), deletes=deletes, **settings)
        for batch in batches_of(log, cut):
            table.take(batch)
        found = {
            key: Found(values, deleted, unsent, op, tuple(kafka_position[1:]), order and (order[0], order[2]))
            for key, (values, deleted, unsent, op, kafka_position, order) in table.rows().items()
        }
        if wrong := differences(log, expected, found):
            return [f"batches {[(part.start, part.stop) for part in cut]}", *wrong]
    return []


@pytest.mark.parametrize("deletes", get_args(Deletes))
@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.log)
def test_log_ends_as_the_kit_states_in_every_cut(log: Log, deletes: Deletes) -> None:
    assert wrong_in(log, deletes) == []
