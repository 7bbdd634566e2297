"""Changes quarantined rows in one commit to each bronze table, for drop and replay."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cdc_lake.bronze.dead_letters import sent_after
from cdc_lake.config import Config
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.operations.quarantine import COORDINATES, Selection
from cdc_lake.runs.context import OpenRun, Run, select_landed
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.runs.work import Work
from cdc_lake.tables.contract import progress_of
from cdc_lake.tables.progress import BronzeProgress


def run_on_bronze(
    config: Config,
    tables: Sequence[str],
    report: Report,
    scheduler: TableScheduler,
    work: Callable[[OpenRun], "QuarantineWork"],
) -> Report:
    """Do the work on each bronze table that matches, and write the report.

    Raises:
        UnknownTableError: a name or glob matches no bronze table.
        InstallationError: Spark cannot start with the installed packages.
    """
    with scheduler.open(Run.begin(config, report)) as run:
        topics = select_landed(run.lake, run.storage, tables)
        scheduler.each_table(report, topics, work(run), leases=run.leases)
    return report


@dataclass(frozen=True)
class QuarantineWork(Work):
    """The work on each table; one call of `process_next` does all of it."""

    run: OpenRun
    selection: Selection

    def process_next(self, spark: SparkSession, done: TableReport) -> bool:
        table = self.run.lake.bronze(spark, done.table)
        progress = progress_of(table)
        done.version_before = table.version()
        self.change(spark, table, progress, done)
        done.version_after = table.version()
        return False

    @abstractmethod
    def change(self, spark: SparkSession, table: BronzeTable, progress: BronzeProgress, done: TableReport) -> None:
        """Change the selected rows of a table, with `commit`."""

    def commit(
        self, table: BronzeTable, changes: DataFrame, progress: BronzeProgress, done: TableReport, **following: Any
    ) -> None:
        """Commit changes of rows.

        Args:
            changes: `COORDINATES` and the changed columns.
            progress: the table's progress before the commit.
            following: fields of the progress that change.
        """
        sent = sent_after(self.run.config.dead_letter_topic(done.table), progress)
        self.run.leases.check(done.table)
        with done.phase("write"):
            table.merge(changes, COORDINATES, progress.next(self.run.id, sent=sent, **following))
        done.status, done.batches = "ok", 1
