"""The random logs contain all cases, and look like a connector's."""

import random
from collections import Counter, defaultdict

import pytest
from support.histories import COLUMNS, Log, batches, random_log
from support.reference import fold

pytestmark = pytest.mark.core

SEEDS = range(50)
ACTS = {
    "insert",
    "update",
    "transaction",
    "delete",
    "delete and insert",
    "lone tombstone",
    "key change",
    "key change with unsent",
    "incremental row",
    "snapshot",
    "truncate",
    "replay",
    "replay broken off",
    "partition moved",
    "log reset",
    "clock stepped back",
    "unsent",
    "lost",
}


def logs(**settings: bool | float) -> list[Log]:
    return [random_log(random.Random(seed), 10, **settings) for seed in SEEDS]


def test_fifty_logs_contain_every_ingredient() -> None:
    found = logs(truncates=True, losses=True)

    acts = sum((log.acts for log in found), Counter())
    assert {act for act, times in acts.items() if times >= 10} >= ACTS
    assert sum(len(log.late) for log in found) > 100


def test_fifty_logs_contain_stale_carried_and_missing_values() -> None:
    found = [(log, fold(log.events, COLUMNS)) for log in logs()]

    rows = [row for _, folded in found for row in folded.values()]
    partitions: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for place, (log, _) in enumerate(found):
        for event in log.events:
            partitions[place, event.key].add(event.partition)
    ops = Counter(row.op for row in rows)
    assert all(ops[op] > 10 for op in ("r", "c", "u", "d", "tombstone"))
    assert sum(bool(row.unavailable) for row in rows) > 10
    assert sum(len(there) == 2 for there in partitions.values()) > 100
    assert sum(row.deleted for row in rows) > 100


def test_records_are_in_sent_order_within_a_partition() -> None:
    for log in logs():
        for partition in (0, 1):
            events = [event for event in log.events if event.partition == partition]
            offsets = [event.offset for event in events]
            times = [event.kafka_ts for event in events]
            assert offsets == sorted(set(offsets))
            assert times == sorted(times)


def test_batches_have_every_event_once_in_partition_order() -> None:
    for seed, log in zip(SEEDS, logs(), strict=True):
        read = [index for batch in batches(random.Random(seed), log, 3) for index in batch]
        assert sorted(read) == list(range(len(log.events)))
        for partition in (0, 1):
            there = [index for index in read if log.events[index].partition == partition]
            assert there == sorted(there)


def test_fold_of_complete_log_equals_the_source_table() -> None:
    """Except for rows without any record, and values that were not sent."""
    wrong = []
    compared = 0
    for seed, log in zip(SEEDS, logs(breaks_off=False), strict=True):
        for key, row in fold(log.events, COLUMNS).items():
            known = None if row.deleted else {name: row.values[name] for name in COLUMNS if name not in row.unavailable}
            there = log.rows.get(key)
            compared += 1
            if known != (there and {name: there[name] for name in known or ()}):
                wrong.append((seed, key))

    assert compared > 1000
    assert wrong == []
