"""Drop records from quarantine. They stay in bronze, with the user who dropped them and the reason."""

from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import DELETE, KEEP
from cdc_lake.config import Config
from cdc_lake.errors import ConfigError
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.operations.quarantine import (
    COORDINATES,
    NOT_DROPPABLE,
    QuarantineWork,
    Selection,
    run_on_bronze,
    selected,
)
from cdc_lake.runs.context import OpenRun
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.tables.progress import BronzeProgress


def drop_quarantined(
    config: Config,
    tables: Sequence[str],
    because: str,
    spark: SparkSession | None = None,
    *,
    selection: Selection,
    scheduler: TableScheduler | None = None,
) -> Report:
    """Drop records from quarantine, in one commit per table.

    Their status becomes `dropped`. Time, user and reason are appended to the error in bronze, and are in the report.
    Bronze keeps the records, and they can still be listed and replayed. A tombstone that is quarantined with its delete
    is dropped with it. An event that silver rejected is not dropped if another silver table of the topic has merged it,
    or if it begins or ends a snapshot.

    Args:
        tables: topic names or globs.
        because: the reason.
        spark: the session (default: a new one).
        scheduler: runs the work (default: a new one, in the calling thread).

    Raises:
        ConfigError: no reason is given.
        UnknownTableError: a name or glob matches no bronze table.
        InstallationError: Spark cannot start with the installed packages.
    """
    if not because.strip():
        raise ConfigError("--because", "it is empty", "give the reason to drop these records")
    scheduler = scheduler or TableScheduler(spark=spark)
    session = scheduler.spark(config, "bronze")
    report = Report(layer="bronze", because=f"{session.sparkContext.sparkUser()}: {because.strip()}")

    def work(run: OpenRun) -> _Drop:
        return _Drop(run, selection)

    return run_on_bronze(config, tables, report, scheduler, work)


class _Drop(QuarantineWork):
    """Drops the selected records."""

    def change(self, spark: SparkSession, table: BronzeTable, progress: BronzeProgress, done: TableReport) -> None:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        message = F.concat("error.message", F.lit(f"; dropped {now} by {self.run.report.because}"))
        rows = selected(self.run.lake, done.table, spark, self.selection).select(
            *(*COORDINATES, NOT_DROPPABLE),
            F.lit("dropped").alias("status"),
            F.col("error").withField("message", message).alias("error"),
            F.array().cast("array<string>").alias(KEEP),
            F.lit(False).alias(DELETE),
        )
        rows.persist()
        try:
            with done.phase("read"):
                counts = {row[NOT_DROPPABLE]: row["count"] for row in rows.groupBy(NOT_DROPPABLE).count().collect()}
            dropped = counts.pop(None, 0)
            if dropped:
                changes = rows.where(F.col(NOT_DROPPABLE).isNull()).drop(NOT_DROPPABLE)
                self.commit(table, changes, progress, done)
        finally:
            rows.unpersist()
        for why, number in counts.items():
            done.warn(f"{number} records were not dropped: {why}")
        done.count(dropped=dropped, stay=sum(counts.values()))
