"""Changes to a source while it is being read."""

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
"""Between two transactions in the background, which leaves the processor to those who read."""


class Changes(Protocol):
    """Somebody who changes a source; what is done follows from the seed and the rows that were there, never a clock."""

    def make(self) -> str:
        """Make the changes of one transaction, which the caller has begun and commits; their kind."""


ChangesTo = Callable[[psycopg.Connection, Random], Changes]


def change(dsn: str, changes_to: ChangesTo, *, seed: int, transactions: int) -> Counter[str]:
    """Commit a number of transactions.

    Args:
        dsn: DSN of the source.
        changes_to: who makes the changes.
        seed: decides everything; the same seed on the same rows makes the same changes.
        transactions: how many to commit.

    Returns:
        How many transactions of each kind were committed.
    """
    return _change(dsn, changes_to, seed, transactions, done=Counter(), stop=None)


@contextmanager
def changing(dsn: str, changes_to: ChangesTo, *, seed: int, at_least: int) -> Iterator[Counter[str]]:
    """Commit transactions on a thread of its own while the body runs, and afterwards until there are enough.

    Args:
        dsn: DSN of the source.
        changes_to: who makes the changes.
        seed: decides everything but how many transactions there are.
        at_least: how many to commit, however soon the body ends.

    Yields:
        How many transactions of each kind have been committed so far.
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
    """Commit transactions until told to stop, slowly; and `at_least` so many."""
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
