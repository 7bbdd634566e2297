"""Maintenance: compact the files of small commits, and delete files past their retention."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from cdc_lake.config import Config, Layer
from cdc_lake.lake.lake import check_holds_no_tables
from cdc_lake.lake.side import SideTable
from cdc_lake.runs.context import OpenRun, Run, Work, check_has_lease, model_header, select_landed
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import Table


def run_maintain(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    layer: Layer = "silver",
    scheduler: TableScheduler | None = None,
) -> Report:
    """Maintain a layer's tables, each under its lease, so that other runs of the table exit with 40.

    Args:
        tables: topic names or globs; for gold, names of models.
        layer: the layer of the tables; for silver, also their side tables.

    Raises:
        UnknownTableError: a name or glob matches no table.
        ConfigError: a setting requires another setting.
    """
    scheduler = scheduler or TableScheduler(spark=spark)
    with scheduler.open(Run.begin(config, Report(layer="maintain")), layer=layer) as run:
        work = _Maintain(run, _maintained_tables(run, layer, tables))
        scheduler.each_table(run.report, list(work.tables), work, leases=run.leases)
    return run.report


@dataclass(frozen=True)
class _MaintainedTable:
    """A table with its path, and the path of its side table."""

    open: Callable[[SparkSession], Table[Any]]
    path: str
    side: str | None = None


def _maintained_tables(run: OpenRun, layer: Layer, tables: Sequence[str]) -> Mapping[str, _MaintainedTable]:
    lake = run.lake
    if layer == "silver":
        targets = lake.silver_tables(select_landed(lake, run.files, tables))
        for name, target in targets.items():
            check_has_lease(run.config.lake.lease, name, target.storage)
        return {name: _MaintainedTable(target.open, target.path, target.side) for name, target in targets.items()}
    return {
        name: _MaintainedTable(
            partial(_open_gold, run, name) if layer == "gold" else partial(lake.bronze, topic=name),
            lake.path(layer, name),
        )
        for name in select_landed(lake, run.files, tables, layer)
    }


def _open_gold(run: OpenRun, name: str, spark: SparkSession) -> Table[Any]:
    # Here, so that a missing model fails only its own table.
    stored_in = model_header(run.config.gold.models, name).table
    check_has_lease(run.config.lake.lease, name, stored_in)
    return run.lake.gold(spark, name, stored_in)


@dataclass(frozen=True)
class _Maintain(Work):
    run: OpenRun
    tables: Mapping[str, _MaintainedTable]

    def process_next(self, spark: SparkSession, report: TableReport) -> bool:
        maintained = self.tables[report.table]
        table = maintained.open(spark)
        report.warn(*table.recover())
        if not table.exists():
            return False
        report.version_before = table.version()
        for path in filter(None, (maintained.path, maintained.side)):
            check_holds_no_tables(HadoopFiles(spark), path, report.table)
        self.run.leases.check(report.table)
        with report.phase("maintain"):
            report.count(**table.maintain())
        if maintained.side is not None:
            progress = table.progress()
            side = SideTable(spark, maintained.side)
            with report.phase("side"):
                report.count(bytes_removed=side.vacuum(progress.side if progress else None))
        report.version_after = table.version()
        report.status = "ok" if any(report.rows.values()) else "unchanged"
        return False
