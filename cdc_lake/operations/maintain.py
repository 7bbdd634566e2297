"""Maintenance: compact the files of small commits, and delete files past their retention."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from cdc_lake.config import Config, Layer
from cdc_lake.lake.lake import check_holds_no_tables
from cdc_lake.lake.side import SideTable
from cdc_lake.runs.context import (
    Leases,
    check_has_lease,
    gold_storage,
    lake_of,
    select_landed,
    silver_targets,
)
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.storage.hadoop import Storage
from cdc_lake.tables.contract import Table


def run_maintain(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    layer: Layer = "silver",
    scheduler: TableScheduler | None = None,
) -> Report:
    """Maintain a layer's tables, each under its lease: another run of a table exits with 40 meanwhile.

    Args:
        config: the settings.
        tables: topic names or globs; for gold, names of models.
        spark: the session (default: a new one).
        layer: the layer of the tables; for silver, also their side tables.
        scheduler: runs the work (default: a new one, in the calling thread).

    Raises:
        UnknownTableError: a name or glob matches no table.
        ConfigError: a setting lacks another one that it needs.
        InstallationError: Spark cannot start with the installed packages.
    """
    report = Report(layer="maintain")
    scheduler = scheduler or TableScheduler(spark=spark)
    storage = scheduler.open_storage(config, report)
    leases = Leases(config, storage, report.run_id, layer)
    work = _Maintain(_maintained_tables(config, storage, layer, tables), leases)
    scheduler.each_table(report, list(work.tables), work, leases=leases)
    scheduler.end(storage, config, report)
    return report


@dataclass(frozen=True)
class _MaintainedTable:
    """A table with its path, and the path of its side table."""

    open: Callable[[SparkSession], Table[Any]]
    path: str
    side: str | None = None


def _maintained_tables(
    config: Config, storage: Storage, layer: Layer, tables: Sequence[str]
) -> Mapping[str, _MaintainedTable]:
    if layer != "silver":
        names = select_landed(config, storage, tables, layer)
        open_table = _open_gold if layer == "gold" else _open_bronze
        return {
            name: _MaintainedTable(partial(open_table, config, name), lake_of(config).path(layer, name))
            for name in names
        }
    topics = select_landed(config, storage, tables)
    targets = [target for topic in topics for target in silver_targets(config, topic)]
    for target in targets:
        check_has_lease(config, target.name, target.storage)
    return {target.name: _MaintainedTable(target.open, target.path, target.side) for target in targets}


def _open_gold(config: Config, name: str, spark: SparkSession) -> Table[Any]:
    stored_in = gold_storage(config, name)  # only here, so that a missing model fails no other table
    check_has_lease(config, name, stored_in)
    return lake_of(config).gold(spark, name, stored_in)


def _open_bronze(config: Config, name: str, spark: SparkSession) -> Table[Any]:
    return lake_of(config).bronze(spark, name)


@dataclass(frozen=True)
class _Maintain:
    """The work on each table; only `process_next` knows how much there is to do."""

    tables: Mapping[str, _MaintainedTable]
    leases: Leases

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return None

    def process_next(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        maintained = self.tables[done.table]
        table = maintained.open(spark)
        self.leases.recover(table, done)
        if not table.exists():
            return False
        done.version_before = table.version()
        for path in filter(None, (maintained.path, maintained.side)):
            check_holds_no_tables(Storage(spark), path, done.table)
        self.leases.check(done.table)
        with done.phase("maintain"):
            done.count(**table.maintain())
        if maintained.side is not None:
            progress = table.progress()
            with done.phase("side"):
                done.count(bytes_removed=SideTable(spark, maintained.side).vacuum(progress.side if progress else None))
        done.version_after = table.version()
        done.status = "ok" if any(done.rows.values()) else "unchanged"
        return False
