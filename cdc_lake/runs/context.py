"""Shared by the runs of all layers: selecting tables, leases, and writing the report."""

import difflib
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from cdc_lake.config import Config, StorageConfig
from cdc_lake.config.gold_models import read_model
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, UnknownTableError
from cdc_lake.lake.lake import Lake, SilverTarget, is_table_name
from cdc_lake.lake.lease import Holder, Lease
from cdc_lake.runs.metrics import export
from cdc_lake.runs.report import Failure, Report, TableReport, time_in_name
from cdc_lake.storage.exhaustion import exhaustion_error
from cdc_lake.storage.files import Files, is_draft
from cdc_lake.storage.hadoop import Storage
from cdc_lake.storage.local import LocalFiles
from cdc_lake.tables.contract import P, Table
from cdc_lake.tables.progress import GoldProgress

logger = logging.getLogger(__name__)

PARALLEL_READS = 16
"""Tables that are read in parallel: a store takes about 30 ms per request."""


def lake_of(config: Config) -> Lake:
    """The lake of the settings."""
    return Lake(config.lake.root)


def silver_targets(config: Config, topic: str) -> list[SilverTarget]:
    """The tables that a topic's silver is stored in, in the order of the settings."""
    return lake_of(config).silver(topic, config.table(topic).storage)


def select(patterns: Sequence[str], there: Sequence[str], what: str, todo: str) -> list[str]:
    """The names that match `patterns`, in the order of the patterns, each once.

    Args:
        patterns: names or globs.
        there: all names.
        what: what the names are of, for the message.
        todo: the cure if a pattern matches nothing.

    Raises:
        UnknownTableError: a pattern matches nothing; the message lists similar names.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = [name for name in there if fnmatchcase(name, pattern)]
        if not matching:
            near = difflib.get_close_matches(pattern, there, n=3, cutoff=0.5) or there[:3]
            similar = f"; similar names: {', '.join(near)}" if near else "; there is none"
            raise UnknownTableError(pattern, f"there is no such {what}{similar}", todo)
        found.update(dict.fromkeys(matching))
    return list(found)


def select_landed(config: Config, storage: Files, patterns: Sequence[str], layer: str = "bronze") -> list[str]:
    """The topics with a bronze table, or models with a gold table, that match `patterns`.

    Raises:
        UnknownTableError: a pattern matches none.
        ConfigError: a name is that of a table inside another table's folder.
    """
    lake = lake_of(config)
    there = lake.names(storage, layer)
    for name in patterns:
        if name not in there and is_table_name(name):
            lake.check_is_in_no_table(storage, layer, name)
    return select(patterns, there, f"table in {lake.folder(layer)}", f"run the {layer} job first")


def needs_hadoop(config: Config, files: Files) -> bool:
    """Whether a local lake has no table, so that its path may be on Hadoop's default file system."""
    return isinstance(files, LocalFiles) and not lake_of(config).names(files)


def gold_storage(config: Config, name: str) -> StorageConfig:
    """The format of a model's table.

    Raises:
        ModelError: the model does not exist, or its header is wrong.
    """
    return read_model(Path(config.gold.models) / f"{name}.sql").header.table


def open_gold(config: Config, name: str, spark: SparkSession) -> Table[GoldProgress]:
    """A model's table, which may not exist yet.

    Raises:
        ModelError: the model does not exist, or its header is wrong.
    """
    return lake_of(config).gold(spark, name, gold_storage(config, name))


def only_one(found: Sequence[str], pattern: str) -> str:
    """The single name that a pattern matched.

    Raises:
        UnknownTableError: it matched several.
    """
    if len(found) > 1:
        raise UnknownTableError(pattern, f"it matches {len(found)} tables: {', '.join(found)}", "name one of them")
    return found[0]


def check_has_lease(config: Config, table: str, stored_in: StorageConfig) -> None:
    """Check that a table of a run that writes has a lease, if its format needs one (`cdc_lake.lake.lease`).

    Raises:
        ConfigError: it has none.
    """
    if stored_in.format == "hudi" and not config.lake.lease.enabled:
        raise ConfigError(
            f"{table}: lake.lease.enabled: false",
            "the table is stored in Hudi, where two runs at once can undo each other's commits",
            "remove the setting, or store the table in Delta",
        )


class Leases:
    """The leases of one run, one per table while it is processed; none if `lease.enabled` is false.

    Args:
        layer: the layer of the tables.
    """

    def __init__(self, config: Config, storage: Storage, run_id: str, layer: str) -> None:
        self._config = config
        self._storage = storage
        self._run_id = run_id
        self._layer = layer
        self._held: dict[str, Lease] = {}

    @contextmanager
    def hold(self, table: str) -> Iterator[None]:
        """Hold the lease of a table inside the block.

        Raises:
            TableLockedError: another run holds it.
        """
        if not self._config.lake.lease.enabled:
            yield
            return
        with self._lease(table) as lease:
            self._held[table] = lease
            try:
                yield
            finally:
                del self._held[table]

    def holder(self, table: str) -> Holder | None:
        """The holder of a table's lease; None if it is free."""
        return self._lease(table).holder() if self._config.lake.lease.enabled else None

    def check(self, table: str) -> None:
        """Check right before a commit that this run still holds the table's lease.

        Raises:
            TableLockedError: another run has taken it over.
        """
        if table in self._held:
            self._held[table].check()

    def recover(self, table: Table[P], done: TableReport) -> None:
        """Repair what a killed run left incomplete in a table, and add warnings to the report.

        Raises:
            DamagedFileError: a commit is incomplete, and later ones build on it.
        """
        for what in table.recover():
            done.warn(what)

    def _lease(self, table: str) -> Lease:
        seconds = self._config.lake.lease.seconds
        return lake_of(self._config).lease(self._storage, self._layer, table, self._run_id, seconds)


def end_report(storage: Files, config: Config, report: Report) -> None:
    """Close the report, export its metrics, and write it to `<root>/_runs` if it has news.

    A report that cannot be written is logged instead.
    """
    report.end()
    export(config.run.metrics, report)
    if not report.is_news:
        return
    folder = lake_of(config).reports
    path = f"{folder}/{report.file_name}"
    try:
        storage.write_once(path, report.model_dump_json(indent=2))
    except (CdcLakeError, OSError, Py4JError) as exc:
        error = exc if isinstance(exc, CdcLakeError) else exhaustion_error(path, exc, folder)
        todo = "check that the folder is writable; the log has the report, and the tables are as it says"
        cause = str(exc).strip().splitlines()[0]
        report.unwritten = Failure.of(error or InfrastructureError(path, f"cannot write the report: {cause}", todo))
        logger.warning("the report of this run: %s", report.model_dump_json())


def remove_expired_reports(storage: Storage, config: Config) -> None:
    """Remove reports older than `run.report_days`, and unfinished files of killed runs."""
    now = datetime.now(UTC)
    oldest = time_in_name(now - timedelta(days=config.run.report_days))
    folder, writing_ms = lake_of(config).reports, 1000 * (now.timestamp() - config.lake.lease.seconds)
    for name in storage.names_with_drafts(folder):
        path = f"{folder}/{name}"
        if is_draft(name):
            is_over = (storage.modified_ms(path) or math.inf) < writing_ms
        else:
            is_over = name < oldest and name.endswith(".json")
        if is_over:
            storage.remove(path)
