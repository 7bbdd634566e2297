"""What the runs of all layers share: paths, which tables, their leases, the report."""

import difflib
import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from cdc_lake.config import Config, SilverTable
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, UnknownTableError
from cdc_lake.lake.lease import Holder, Lease
from cdc_lake.lake.open import TABLE_FOLDERS, gold_table, silver_table
from cdc_lake.models import read_model
from cdc_lake.runs.metrics import export
from cdc_lake.runs.report import Failure, Report, TableReport, time_in_name
from cdc_lake.storage.exhausted import exhausted
from cdc_lake.storage.files import LocalFiles, Storage, is_draft
from cdc_lake.tables.contract import Table

logger = logging.getLogger(__name__)

LOOKS = 16
"""Looks at tables at one time: a store answers each request in some 30 ms."""
_SEGMENT = re.compile(r"[a-zA-Z0-9_-]+")
_TOPIC = re.compile(rf"{_SEGMENT.pattern}(\.{_SEGMENT.pattern})*")


def table_path(config: Config, layer: str, topic: str) -> str:
    """The folder of a topic's table: `<root>/<layer>/<prefix>/<schema>/<table>`; of a table named `<topic>@<kind>`
    `<root>/<layer>_<kind>/…`.

    Raises:
        ConfigError: the name would not stay inside the lake.
    """
    topic, _, kind = topic.partition("@")
    layer = f"{layer}_{kind}" if kind else layer
    if not is_table_name(topic):
        raise ConfigError(topic, "this is not a topic name of letters, digits, `_`, `-` between dots", "see --table")
    return f"{config.lake.root}/{layer}/{topic.replace('.', '/')}"


def is_table_name(topic: str) -> bool:
    """Whether a topic can have tables: other names would not stay inside the lake."""
    return len(topic) <= 249 and _TOPIC.fullmatch(topic) is not None


def check_is_in_no_table(config: Config, storage: Storage | LocalFiles, layer: str, table: str) -> None:
    """Check that a table's folder is not inside another table's folder; to be called before the table is opened.

    Files inside a table that its log does not name are removed by VACUUM, and `landed` does not look for tables there.
    The names of gold's models have no dots, so their folders cannot nest.

    Args:
        config, layer, table: see `table_path`.
        storage: of the lake.

    Raises:
        ConfigError: it is, or the name has a segment that is a table's log folder.
    """
    path = table_path(config, layer, table)
    segments = table.partition("@")[0].split(".")
    if reserved := set(segments).intersection(TABLE_FOLDERS):
        raise ConfigError(
            table, f"`{min(reserved)}` is the name of a table's log folder", "leave the topic out of --table"
        )
    for depth in range(1, len(segments)):
        outer = ".".join(segments[:depth])
        if storage.holds("/".join(path.split("/")[: depth - len(segments)]), *TABLE_FOLDERS):
            raise _nested(table, f"its folder {path} is inside the table of `{outer}`")


def check_holds_no_tables(storage: Storage, path: str, table: str) -> None:
    """Check that the folder of a table does not contain other tables; see `check_is_in_no_table`.

    Args:
        storage: of the lake.
        path: the table's folder.
        table: its name.

    Raises:
        ConfigError: it does.
    """
    if inner := next(_tables_below(storage, path), None):
        raise _nested(table, f"its folder {path} contains the table of `{table.partition('@')[0]}.{inner}`")


def _tables_below(storage: Storage, path: str) -> Iterator[str]:
    """The names of the tables below a folder, relative to it. Only names that a topic's segment can have are looked at,
    so that data files and partitions cost nothing.
    """
    for name in storage.names(path):
        if not _SEGMENT.fullmatch(name) or name in TABLE_FOLDERS:
            continue
        if storage.holds(f"{path}/{name}", *TABLE_FOLDERS):
            yield name
        else:
            yield from (f"{name}.{below}" for below in _tables_below(storage, f"{path}/{name}"))


def _nested(table: str, what: str) -> ConfigError:
    return ConfigError(
        table, what, "use another lake.root for one of the two topics (docs/running.md#topics-whose-folders-nest)"
    )


@dataclass(frozen=True)
class SilverTarget:
    """One of the tables that a topic's silver is held in.

    Attributes:
        name: the topic's; of all but the first with what it is held in behind it, `<topic>@hudi_mor`.
        path, side: its folder, and that of its side table.
    """

    name: str
    topic: str
    held_in: SilverTable
    path: str
    side: str

    def open(self, spark: SparkSession) -> Table:
        """The table; see `tables.silver`."""
        return silver_table(spark, self.path, self.held_in)


def silver_targets(config: Config, topic: str) -> list[SilverTarget]:
    """The tables that a topic's silver is held in, in the order of the settings."""
    found = []
    for number, held_in in enumerate(config.table(topic).silver):
        name = f"{topic}@{held_in.kind}" if number else topic
        path, side = (table_path(config, layer, name) for layer in ("silver", "side"))
        found.append(SilverTarget(name, topic, held_in, path, side))
    return found


def select(patterns: Sequence[str], there: Sequence[str], what: str, todo: str) -> list[str]:
    """The names among `there` that `patterns` (names or globs) name, in the order asked for, each once.

    Args:
        patterns: what was asked for.
        there: what there is.
        what: what the names are of, for the message.
        todo: what to do when a pattern fits nothing.

    Raises:
        UnknownTableError: a pattern fits nothing; the message lists the nearest.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = [name for name in there if fnmatchcase(name, pattern)]
        if not matching:
            near = difflib.get_close_matches(pattern, there, n=3, cutoff=0.5) or there[:3]
            nearest = f"; the nearest: {', '.join(near)}" if near else "; there is none at all"
            raise UnknownTableError(pattern, f"there is no such {what}{nearest}", todo)
        found.update(dict.fromkeys(matching))
    return list(found)


def select_landed(
    config: Config, storage: Storage | LocalFiles, patterns: Sequence[str], layer: str = "bronze"
) -> list[str]:
    """The topics with a bronze table that `patterns` name; or the models with a gold one.

    Raises:
        UnknownTableError: a pattern fits none.
        ConfigError: it is the name of a table inside another table's folder.
    """
    there = landed(config, storage, layer)
    for name in patterns:
        if name not in there and _TOPIC.fullmatch(name):
            check_is_in_no_table(config, storage, layer, name)
    return select(patterns, there, f"table in {config.lake.root}/{layer}", f"run the {layer} job first")


def landed(config: Config, storage: Storage | LocalFiles, layer: str = "bronze") -> list[str]:
    """The topics with a bronze table; or the models with a gold one."""
    return [folder.replace("/", ".") for folder in storage.folders(f"{config.lake.root}/{layer}", *TABLE_FOLDERS)]


def is_elsewhere(config: Config, files: Storage | LocalFiles) -> bool:
    """Whether a lake in a local folder holds no table, so that Hadoop may know another place by its path."""
    return isinstance(files, LocalFiles) and not any(files.folders(f"{config.lake.root}/bronze", *TABLE_FOLDERS))


def open_gold(config: Config, name: str, spark: SparkSession) -> Table:
    """A model's table, which may not be there yet.

    Raises:
        ModelError: there is no such model, or its header is wrong.
    """
    wanted = read_model(Path(config.gold.models) / f"{name}.sql").header.table
    return gold_table(spark, table_path(config, "gold", name), wanted)


def only_one(found: Sequence[str], pattern: str) -> str:
    """The one name that a pattern named.

    Raises:
        UnknownTableError: there are several.
    """
    if len(found) > 1:
        raise UnknownTableError(pattern, f"it names {len(found)} tables: {', '.join(found)}", "name one of them")
    return found[0]


class Leases:
    """The leases of one run, one for each table while it is worked on; none at all if the settings say so.

    Args:
        layer: whose tables they are.
    """

    def __init__(self, config: Config, storage: Storage, run_id: str, layer: str) -> None:
        self._config = config
        self._storage = storage
        self._run_id = run_id
        self._layer = layer
        self._held: dict[str, Lease] = {}

    @contextmanager
    def hold(self, table: str) -> Iterator[None]:
        """Have a table.

        Raises:
            TableLockedError: another run has it.
        """
        if not self._config.lease.enabled:
            yield
            return
        with self._lease(table) as lease:
            self._held[table] = lease
            try:
                yield
            finally:
                del self._held[table]

    def holder(self, table: str) -> Holder | None:
        """Who has a table now, if anybody has."""
        return self._lease(table).holder() if self._config.lease.enabled else None

    def check(self, table: str) -> None:
        """See that a table is still this run's, right before a commit.

        Raises:
            TableLockedError: another run has taken it over.
        """
        if table in self._held:
            self._held[table].check()

    def recover(self, table: Table, done: TableReport) -> None:
        """Repair what a killed run left incomplete in a table of this run, and report it as warnings.

        Without leases another run may be writing these files: those that changed in a lease's time are left.

        Raises:
            DamagedFileError: a commit is incomplete, and later ones build on it.
        """
        quiet_seconds = 0 if done.table in self._held else self._config.lease.seconds
        for what in table.recover(quiet_seconds):
            done.warn(what)

    def _lease(self, table: str) -> Lease:
        folder = table_path(self._config, f"_leases/{self._layer}", table)
        return Lease(self._storage, folder, table, self._run_id, self._config.lease.seconds)


def end_report(storage: Storage | LocalFiles, config: Config, report: Report) -> None:
    """Close the report, export its numbers, and write it next to the tables if it says something new.

    One that cannot be written is logged, and never hides what it says.
    """
    report.end()
    export(config.metrics, report)
    if not report.is_news:
        return
    folder = f"{config.lake.root}/_runs"
    path = f"{folder}/{report.file_name}"
    try:
        storage.write_once(path, report.model_dump_json(indent=2))
    except (CdcLakeError, OSError, Py4JError) as exc:
        error = exc if isinstance(exc, CdcLakeError) else exhausted(path, exc, folder)
        todo = "see that it can be written there; the log has the report, and the tables are as it says"
        said = str(exc).strip().splitlines()[0]
        report.unwritten = Failure.of(error or InfrastructureError(path, f"the report cannot be written: {said}", todo))
        logger.warning("the report of this run: %s", report.model_dump_json())


def remove_expired_reports(storage: Storage, config: Config) -> None:
    """Remove the reports of runs that began more than `run.report_days` ago, and what runs left that were killed while
    they wrote one.
    """
    now = datetime.now(UTC)
    oldest = time_in_name(now - timedelta(days=config.run.report_days))
    folder, writing_ms = f"{config.lake.root}/_runs", 1000 * (now.timestamp() - config.lease.seconds)
    for name in storage.names_with_drafts(folder):
        path = f"{folder}/{name}"
        if is_draft(name):
            is_over = (storage.modified_ms(path) or math.inf) < writing_ms
        else:
            is_over = name < oldest and name.endswith(".json")
        if is_over:
            storage.remove(path)
