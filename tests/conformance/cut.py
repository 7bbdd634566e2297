"""Ways to cut a log into batches."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from .log import Log

Split = Literal["none", "halves", "each", "all-pairs"]


def cuts(log: Log, split: Split) -> list[list[range]]:
    """The ways to run a log, each a list of batches of event indexes.

    Events of the topic itself, and records lost before they are read, begin a batch with every split.
    """
    count = len(log.events)
    ways: dict[Split, list[list[int]]] = {
        "none": [[]],
        "halves": [[count // 2] if count > 1 else []],
        "each": [list(range(1, count))],
        "all-pairs": [[place] for place in range(1, count)] or [[]],
    }
    forced = [
        place
        for place, (before, event) in enumerate(pairwise(log.events), 1)
        if event.generation != before.generation or event.lost > before.lost
    ]
    return [[range(*ends) for ends in pairwise(sorted({0, *places, *forced, count}))] for places in ways[split]]


def due(log: Log, batches: Sequence[range], index: int) -> int | None:
    """The number of the batch after which a late event can be decoded; null if it can be decoded at once."""
    after = log.events[index].late_after
    return None if after is None else next(number for number, batch in enumerate(batches) if after <= batch.stop)
