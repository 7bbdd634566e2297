"""Records dropped from quarantine: nobody is to mend them. They stay in bronze, with who dropped them and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.bronze.dead_letters import sent_by
from cdc_lake.columns import DELETE, KEEP
from cdc_lake.config import Config
from cdc_lake.errors import ConfigError
from cdc_lake.operations.quarantine import COORDINATES, STAYS, Selection, selected
from cdc_lake.runs.context import Leases, end_report, lake_of, select_landed
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import Workers
from cdc_lake.tables.contract import progress_of


def drop_quarantined(
    config: Config,
    tables: Sequence[str],
    because: str,
    spark: SparkSession | None = None,
    *,
    selection: Selection,
    workers: Workers | None = None,
) -> Report:
    """Drop records from quarantine: they wait no more, and are no events. One commit per table.

    Their status is `dropped`, and when, who and why stands in bronze behind the reason that they were there for, and in
    the report. Nothing of them is removed: they can be looked at, and be brought back. A tombstone that waits with its
    delete goes with it. An event that silver rejected stays if a table that silver is held in has taken it, or if it
    begins or ends a snapshot.

    Args:
        config: the settings.
        tables: topic names or globs.
        because: why, for people.
        spark: the session; made when there is none.
        selection: which records.
        workers: who does it; one, in the calling thread, when there are none.

    Raises:
        ConfigError: no reason is given.
        UnknownTableError: a name or glob fits no bronze table.
        InstallationError: Spark cannot be started with what is installed.
    """
    if not because.strip():
        raise ConfigError("--because", "it is empty", "say why these records are not to be mended")
    workers = workers or Workers(spark=spark)
    session = workers.spark(config, "bronze")
    report = Report(layer="bronze", because=f"{session.sparkContext.sparkUser()}: {because.strip()}")
    storage = workers.lake(config, report)
    leases = Leases(config, storage, report.run_id, report.layer)
    work = _Drop(config, leases, report, selection)
    workers.each_table(report, select_landed(config, storage, tables), work, leases=leases)
    end_report(storage, config, report)
    return report


@dataclass(frozen=True)
class _Drop:
    """What is done to each table, in one turn."""

    config: Config
    leases: Leases
    report: Report
    selection: Selection

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return None

    def turn(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        table = lake_of(self.config).bronze(spark, done.table)
        progress = progress_of(table)
        done.version_before = table.version()
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        message = F.concat("error.message", F.lit(f"; dropped {now} by {self.report.because}"))
        rows = selected(self.config, done.table, spark, self.selection).select(
            *(*COORDINATES, STAYS),
            F.lit("dropped").alias("status"),
            F.col("error").withField("message", message).alias("error"),
            F.array().cast("array<string>").alias(KEEP),
            F.lit(False).alias(DELETE),
        )
        rows.persist()
        try:
            with done.phase("read"):
                counts = {row[STAYS]: row["count"] for row in rows.groupBy(STAYS).count().collect()}
            dropped = counts.pop(None, 0)
            if dropped:
                sent = sent_by(self.config.dead_letter_topic(done.table), progress)
                self.leases.check(done.table)
                changes = rows.where(F.col(STAYS).isNull()).drop(STAYS)
                with done.phase("write"):
                    table.merge(changes, COORDINATES, progress.next(self.report.run_id, sent=sent))
                done.status, done.batches = "ok", 1
        finally:
            rows.unpersist()
        for why, number in counts.items():
            done.warn(f"{number} records stay: {why}")
        done.count(dropped=dropped, stay=sum(counts.values()))
        done.version_after = table.version()
        return False
