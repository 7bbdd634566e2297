"""What all runs use: the run itself, its work, its leases, its report, and the selection of tables."""

import difflib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Self

from py4j.protocol import Py4JError
from pydantic import ValidationError
from pyspark.sql import SparkSession

from cdc_lake.config import Config, LeaseConfig, StorageConfig
from cdc_lake.config.gold_models import Header, read_model
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, UnknownTableError
from cdc_lake.lake.lake import Lake, is_table_name
from cdc_lake.lake.lease import Holder, Lease
from cdc_lake.runs.report import Report, ReportedError, TableReport, time_in_name
from cdc_lake.spark.session import hadoop, lake_files
from cdc_lake.storage.exhaustion import exhaustion_error
from cdc_lake.storage.files import Files, LocalFiles, is_draft
from cdc_lake.storage.hadoop import HadoopFiles

logger = logging.getLogger(__name__)

PARALLEL_READS = 16
"""The number of tables that are read in parallel, because a store takes about 30 ms per request."""


def lake_of(config: Config) -> Lake:
    """The lake of the settings. Each command creates one and passes it on."""
    return Lake(config.lake.root, lambda topic: config.table(topic).storage, config.catalog, config.lake.iceberg)


@dataclass(frozen=True)
class Run:
    """A run, from its beginning to its report."""

    config: Config
    lake: Lake
    report: Report

    @classmethod
    def begin(cls, config: Config, report: Report) -> Self:
        return cls(config, lake_of(config), report)

    @property
    def id(self) -> str:
        """The id in its commits, leases and report."""
        return self.report.run_id


@dataclass(frozen=True)
class OpenRun(Run):
    """A run that may write; `TableScheduler.open` makes it.

    Attributes:
        layer: the layer of its tables.
        spark: the session of the first thread.
    """

    layer: str
    spark: SparkSession
    files: HadoopFiles
    leases: "Leases"


class NewData(NamedTuple):
    """The new data for a table, counted without Spark.

    Attributes:
        rows: number of new rows in the layer below; 0 if there are none.
        stored_bytes: size of the table that they change.
    """

    rows: int
    stored_bytes: int = 0


class Work(ABC):
    """The work of a run on one of its tables. `spark` is the session of the calling thread."""

    @abstractmethod
    def process_next(self, spark: SparkSession, report: TableReport) -> bool:
        """Process the next batch. Returns whether there are more."""


@dataclass
class Layer(ABC):
    """A run of a layer that updates tables with new data."""

    run: Run
    files: Files
    tables: Sequence[str]

    @abstractmethod
    def new_data(self, report: TableReport) -> NewData | None:
        """The new data for a table, found without Spark; None if only `Work.process_next` can find it.

        Args:
            report: the table's report, which gets the progress and the version if nothing is new.
        """

    @abstractmethod
    def work(self, run: OpenRun) -> Work:
        """The work on the tables with new data."""

    def topic(self, table: str) -> str:
        """The topic of a table. A later layer processes a topic right after the layer before."""
        return table

    def look_again(self, tables: Sequence[str]) -> None:
        """Clear the state of the source that `new_data` caches."""
        return

    @abstractmethod
    def before_report(self) -> None:
        """Reach the layer's failpoint."""

    def check(self) -> None:
        """Check the requirements of the work before Spark starts."""
        return


def select(patterns: Sequence[str], names: Sequence[str], what: str, cure: str) -> list[str]:
    """The names that match `patterns`, in the order of the patterns, each once.

    Args:
        what: the kind of the names, for the message.
        cure: what to do if a pattern matches nothing, for the message.

    Raises:
        UnknownTableError: a pattern matches nothing; the message lists similar names.
    """
    selected: dict[str, None] = {}
    for pattern in patterns:
        found = matching(names, [pattern])
        if not found:
            near = similar_names(pattern, names) or names[:3]
            problem = (
                f"there is no such {what}; similar names: {', '.join(near)}" if near else f"there is no {what} yet"
            )
            raise UnknownTableError(pattern, problem, cure)
        selected.update(dict.fromkeys(found))
    return list(selected)


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that any of the patterns, which are names or globs, matches."""
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def similar_names(pattern: str, names: Sequence[str]) -> list[str]:
    """Up to three names that are similar to a name that matches nothing, most similar first."""
    return difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)


def select_landed(
    lake: Lake, files: Files, patterns: Sequence[str], layer: str = "bronze", *, missing_ok: bool = False
) -> list[str]:
    """The topics with a bronze table, or models with a gold table, that match `patterns`.

    Args:
        missing_ok: whether a pattern may match none.

    Raises:
        UnknownTableError: a pattern matches none.
        ConfigError: a table's folder is inside another table's folder.
    """
    names = lake.names(files, layer)
    if missing_ok:
        return matching(names, patterns)
    for name in patterns:
        if name not in names and is_table_name(name):
            lake.check_is_in_no_table(files, layer, name)
    return select(patterns, names, f"table in {lake.folder(layer)}", f"run the {layer} job first")


def files_of(lake: Lake, spark: SparkSession | None) -> Files:
    """The lake's files for a command that only reads, without creating a session.

    Raises:
        InstallationError: Java does not start, which only a lake that is not a local folder needs.
    """
    files = lake_files(lake.root, spark)
    return HadoopFiles.of(*hadoop(spark)) if needs_hadoop(lake, files) else files


def needs_hadoop(lake: Lake, files: Files) -> bool:
    """Whether a local lake has no table, so that its path may be on Hadoop's default file system."""
    return isinstance(files, LocalFiles) and not lake.names(files)


def model_header(models: str, name: str) -> Header:
    """The header of a model.

    Raises:
        ModelError: the model does not exist, or its header is wrong.
    """
    return read_model(Path(models) / f"{name}.sql").header


def only_one(names: Sequence[str], pattern: str) -> str:
    """The single name that a pattern matched.

    Raises:
        UnknownTableError: it matched several.
    """
    if len(names) > 1:
        raise UnknownTableError(pattern, f"it matches {len(names)} tables: {', '.join(names)}", "name one of them")
    return names[0]


def check_has_lease(settings: LeaseConfig, table: str, stored_in: StorageConfig) -> None:
    """Check that a table of a run that writes has a lease, if its format needs one (`cdc_lake.lake.lease`).

    Raises:
        ConfigError: it has no lease.
    """
    if stored_in.format == "hudi" and not settings.enabled:
        raise ConfigError(
            f"{table}: lake.lease.enabled: false",
            "the table is stored in Hudi, where concurrent runs can undo each other's commits",
            "remove the setting, or store the table in Delta",
        )


class Leases:
    """The leases of one run, one per table while it is processed; none if `lease.enabled` is false."""

    def __init__(self, lake: Lake, settings: LeaseConfig, files: HadoopFiles, run_id: str, layer: str) -> None:
        self._lake = lake
        self._settings = settings
        self._files = files
        self._run_id = run_id
        self._layer = layer
        self._held: dict[str, Lease] = {}

    @contextmanager
    def hold(self, table: str) -> Iterator[None]:
        """Hold the lease of a table inside the block.

        Raises:
            TableLockedError: another run holds it.
        """
        if not self._settings.enabled:
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
        return self._lease(table).holder() if self._settings.enabled else None

    def check(self, table: str) -> None:
        """Check right before a commit that this run still holds the table's lease.

        Raises:
            TableLockedError: another run has taken it over.
        """
        if table in self._held:
            self._held[table].check()

    def _lease(self, table: str) -> Lease:
        return self._lake.lease(self._files, self._layer, table, self._run_id, self._settings.seconds)


def write_report(run: Run, files: Files) -> None:
    """Write the report to `<root>/_runs`. A report that cannot be written is logged instead."""
    report, folder = run.report, run.lake.reports
    path = f"{folder}/{report.file_name}"
    try:
        files.write_once(path, report.model_dump_json(indent=2))
    except (CdcLakeError, OSError, Py4JError) as exc:
        error = exc if isinstance(exc, CdcLakeError) else exhaustion_error(path, exc, folder)
        cure = "check that the folder is writable; the log has the report, and the tables have the state in it"
        what = f"cannot write the report: {str(exc).strip().splitlines()[0]}"
        report.unwritten = ReportedError.of(error or InfrastructureError(path, what, cure))
        logger.warning("the report of this run: %s", report.model_dump_json())


def latest_reports(files: Files, lake: Lake, limit: int) -> list[Report]:
    """The latest reports of a lake, newest first. A file that is not a report is skipped, with a warning in the log."""
    names = [name for name in files.names(lake.reports) if name.endswith(".json")]
    paths = [f"{lake.reports}/{name}" for name in reversed(names[-limit:])]
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        contents = list(pool.map(files.read_bytes, paths))
    reports = []
    for path, content in zip(paths, contents, strict=True):
        try:
            # A run may have removed the file since, because it expired.
            reports += [] if content is None else [Report.model_validate_json(content)]
        except ValidationError:
            logger.warning("%s: it is not a report of this version, and was skipped", path)
    return reports


def remove_expired_reports(run: Run, files: HadoopFiles) -> None:
    """Remove reports older than `run.report_days`, and unfinished files of killed runs."""
    now = datetime.now(UTC)
    oldest = time_in_name(now - timedelta(days=run.config.run.report_days))
    folder, writing_ms = run.lake.reports, 1000 * (now.timestamp() - run.config.lake.lease.seconds)
    for name in files.names_with_drafts(folder):
        path = f"{folder}/{name}"
        if is_draft(name):
            is_over = (files.modified_ms(path) or math.inf) < writing_ms
        else:
            is_over = name < oldest and name.endswith(".json")
        if is_over:
            files.remove(path)
