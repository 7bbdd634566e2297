"""The database that the demo replicates: the sample, whole or small, or a dump; and the workload on it."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Protocol

import psycopg

from cdc_lake.config import PACKAGE
from cdc_lake.config.gold_models import read_model
from cdc_lake.demo import sample
from cdc_lake.demo.dump import AnyChanges, load_dump
from cdc_lake.errors import ConfigError
from cdc_lake.reconcile.postgres_catalog import SourceTable, read_tables
from cdc_lake.runs.context import matching

logger = logging.getLogger(__name__)

SAMPLE: Final = "pagila"
"""The sample's database, connector and topic prefix."""
FLOOR: Final = {"updates": 1000, "deletes": 50, "ties": 50, "key_changes": 20, "placeholders": 20}
"""Minimum counts of difficult events in the sample's stream. A proof with an easy stream would prove little."""
SMALL_TABLES: Final = ("film", "customer", "inventory", "rental", "payment")
SMALL_FLOOR: Final = {
    "updates": 50,
    "deletes": 20,
    "ties": 10,
    "key_changes": 2,
    "placeholders": 10,
    "replayed": 1,
    "broken": 1,
}
_SMALL_GOLD: Final = ("films_by_rating", "rentals_per_store_day")
_SMALL_ONE_IN: Final = 20
_SMALL_TRANSACTIONS: Final = 90
_DUMP_TRANSACTIONS: Final = 500
"""Minimum number of transactions of the workload on a dump."""
_ERRORS_NAMED = 5
_PAUSE_SECONDS = 0.05
"""Pause between background transactions, so that the readers get CPU time."""


class Workload(Protocol):
    """A workload. Its changes depend only on the seed and the initial rows, not on a clock."""

    def make(self) -> str:
        """Make the changes of a transaction, which the caller begins and commits; return their kind."""


WorkloadOn = Callable[[psycopg.Connection, Random], Workload]


@dataclass(frozen=True)
class SourceDatabase:
    """A source database and its workload.

    Attributes:
        name: the name of the database and the connector; also the topics' prefix.
        pattern: a glob that matches its topics.
        left_out: other table -> why it is not replicated.
        skipped: error of a statement of the dump that failed -> how often it occurred.
        envelope_tables: replicated tables whose records are complete change events.
        signal_table: the connector's signal table, if it has one.
        changes_to: creates the workload.
        transactions: minimum number of transactions that it commits.
        floor: minimum counts of difficult events in the stream, by the names of `StreamStats`.
        gold: model -> query of the source for the expected content of its table.
    """

    name: str
    dsn: str
    pattern: str
    tables: Sequence[SourceTable]
    left_out: Mapping[str, str]
    skipped: Mapping[str, int]
    envelope_tables: Sequence[str]
    signal_table: str | None
    changes_to: WorkloadOn
    transactions: int
    floor: Mapping[str, int]
    gold: Mapping[str, str]

    @property
    def topics(self) -> dict[str, SourceTable]:
        """The replicated tables by their topics."""
        return {table.topic(self.name): table for table in self.tables}


def sample_source(dsn_admin: str, *, one_in: int = 1) -> SourceDatabase:
    """Create and load the sample database.

    Args:
        one_in: see `sample.create`.
    """
    dsn = sample.create(dsn_admin, SAMPLE, one_in=one_in)
    with psycopg.connect(dsn) as source:
        tables = {table.name: table for table in read_tables(source)}
    return SourceDatabase(
        name=SAMPLE,
        dsn=dsn,
        pattern=f"{SAMPLE}.public.*",
        tables=[tables[name] for name in sample.TABLES],
        left_out={},
        skipped={},
        envelope_tables=[tables[name].place for name in sample.ENVELOPE_TABLES],
        signal_table=tables[sample.SIGNAL_TABLE].place,
        changes_to=sample.Shop,
        transactions=sample.ENOUGH,
        floor=FLOOR,
        gold=sample.GOLD,
    )


def small_source(dsn_admin: str) -> SourceDatabase:
    """Create and load the sample database with fewer rows, of which five tables are replicated."""
    source = sample_source(dsn_admin, one_in=_SMALL_ONE_IN)
    return replace(
        with_tables(source, [f"{SAMPLE}.public.{table}" for table in SMALL_TABLES]),
        signal_table=None,
        transactions=_SMALL_TRANSACTIONS,
        floor=SMALL_FLOOR,
        gold={model: sample.GOLD[model] for model in _SMALL_GOLD},
    )


def dump_source(dsn_admin: str, files: Sequence[Path]) -> SourceDatabase:
    """Load a user's dump, with a workload that only knows the database's catalog.

    Raises:
        ConfigError: a file cannot be loaded, or no table has a usable primary key.
    """
    dsn, skipped = load_dump(dsn_admin, "dump", files)
    with psycopg.connect(dsn) as source:
        tables = read_tables(source)
    replicated = [table for table in tables if table.trouble is None]
    if not replicated:
        wrong = "no table in it has a usable primary key"
        if skipped:
            wrong += f". Postgres reported: {'; '.join(list(skipped)[:_ERRORS_NAMED])}"
        raise ConfigError(", ".join(map(str, files)), wrong, "use another dump")
    return SourceDatabase(
        name="dump",
        dsn=dsn,
        pattern="dump.*",
        tables=replicated,
        left_out={table.place: table.trouble for table in tables if table.trouble},
        skipped=skipped,
        envelope_tables=[table.place for table in replicated[::2]],
        signal_table=None,
        changes_to=partial(AnyChanges, replicated),
        transactions=_DUMP_TRANSACTIONS,
        floor={"updates": 1},
        gold={},
    )


def check_sample_globs(globs: Sequence[str]) -> None:
    """Check globs before the sample is loaded.

    Raises:
        ConfigError: a glob matches no topic of the sample.
    """
    _matching(globs, [f"{SAMPLE}.public.{table}" for table in sample.TABLES])


def with_tables(source: SourceDatabase, globs: Sequence[str]) -> SourceDatabase:
    """The source with the tables that any of the globs matches, and the models that read no others.

    Its stream only needs an update, because the difficult events may be in the other tables.

    Raises:
        ConfigError: a glob matches no topic.
    """
    topics = source.topics
    selected = {topic: topics[topic] for topic in _matching(globs, list(topics))}
    places = {table.place for table in selected.values()}
    return replace(
        source,
        tables=list(selected.values()),
        envelope_tables=[place for place in source.envelope_tables if place in places],
        floor={"updates": 1},
        gold=models_reading_only(selected, source.gold),
    )


def models_reading_only(topics: Collection[str], gold: Mapping[str, str]) -> dict[str, str]:
    """The models of `gold` that read no topics other than these."""
    return {model: query for model, query in gold.items() if set(topics) >= topics_of(model)}


def topics_of(model: str) -> set[str]:
    return set(read_model(PACKAGE / "conf" / "gold" / f"{model}.sql").header.topics.values())


def _matching(globs: Sequence[str], topics: Sequence[str]) -> list[str]:
    for glob in globs:
        if not matching(topics, [glob]):
            raise ConfigError(glob, "it matches no topic", f"the topics are {', '.join(topics)}")
    return matching(topics, globs)


def change(dsn: str, changes_to: WorkloadOn, *, seed: int, transactions: int) -> Counter[str]:
    """Commit a number of transactions.

    Args:
        changes_to: creates the workload.
        seed: the same seed and rows give the same changes.

    Returns:
        Number of committed transactions by kind.
    """
    return _change(dsn, changes_to, seed, transactions, done=Counter(), stop=None)


@contextmanager
def changing(dsn: str, changes_to: WorkloadOn, *, seed: int, at_least: int) -> Iterator[Counter[str]]:
    """Commit transactions on a separate thread while the body runs, and afterwards until there are enough.

    Args:
        seed: determines everything except the number of transactions.

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
    dsn: str, changes_to: WorkloadOn, seed: int, at_least: int, done: Counter[str], stop: threading.Event | None
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
