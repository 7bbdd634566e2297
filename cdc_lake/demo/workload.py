"""Change a source database while the jobs read it."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Protocol

import psycopg

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.05
"""Pause between background transactions, so that the readers get CPU time."""


class Changes(Protocol):
    """A workload. Its changes depend only on the seed and the initial rows, not on a clock."""

    def make(self) -> str:
        """Make the changes of a transaction, which the caller begins and commits; return their kind."""


ChangesTo = Callable[[psycopg.Connection, Random], Changes]


def change(dsn: str, changes_to: ChangesTo, *, seed: int, transactions: int) -> Counter[str]:
    """Commit a number of transactions.

    Args:
        dsn: DSN of the source.
        changes_to: creates the workload.
        seed: the same seed and rows give the same changes.
        transactions: number of transactions to commit.

    Returns:
        Number of committed transactions by kind.
    """
    return _change(dsn, changes_to, seed, transactions, done=Counter(), stop=None)


@contextmanager
def changing(dsn: str, changes_to: ChangesTo, *, seed: int, at_least: int) -> Iterator[Counter[str]]:
    """Commit transactions on a separate thread while the body runs, and afterwards until there are enough.

    Args:
        dsn: DSN of the source.
        changes_to: creates the workload.
        seed: determines everything except the number of transactions.
        at_least: minimum number of transactions.

    Yields:
        Number of committed transactions by kind so far.
    """
    done: Counter[str] = Counter()
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="workload") as pool:
        changing = pool.submit(_change, dsn, changes_to, seed, at_least, done, stop)
        try:
            yield done
        finally:
            stop.set()
        changing.result()


def _change(
    dsn: str, changes_to: ChangesTo, seed: int, at_least: int, done: Counter[str], stop: threading.Event | None
) -> Counter[str]:
    """Commit transactions until `stop` is set, with pauses, but at least `at_least`."""
    with psycopg.connect(dsn, autocommit=True) as source:
        changes = changes_to(source, Random(seed))
        while done.total() < at_least or (stop is not None and not stop.is_set()):
            with source.transaction():
                kind = changes.make()
            done[kind] += 1
            if stop is not None:
                stop.wait(_PAUSE_SECONDS)
    logger.info("workload: seed %d, %d transactions", seed, done.total())
    return done
