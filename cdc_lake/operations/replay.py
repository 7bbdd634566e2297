"""Change the quarantine: replay records at their Kafka positions, to be decoded or checked again, or drop them.

Dropped records stay in bronze, with the user who dropped them and the reason.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.bronze.dead_letters import sent_after
from cdc_lake.bronze.decide import NO_KEY, PAIR_STAGE, TOO_LARGE
from cdc_lake.bronze.schema_resolution import decide, resolve_schemas, scan_records
from cdc_lake.columns import KEEP, REJECTED_STAGE
from cdc_lake.config import Config
from cdc_lake.errors import ConfigError
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.operations.quarantine import ALL, COORDINATES, NOT_DROPPABLE, Selection, selected
from cdc_lake.operations.story import position_text
from cdc_lake.registries.registry import Registry
from cdc_lake.runs.context import OpenRun, Run, Work, select_landed
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.runs.servers import checked_registry
from cdc_lake.tables.contract import Changes, progress_of
from cdc_lake.tables.progress import BronzeProgress

_DECIDED = (
    *("status", "error", "tombstone_of", "op", "source_ts_ms", "source_position", "position_domain"),
    *("snapshot", "transaction_id", "key_schema", "value_schema"),
)
"""Bronze columns that decoding fills, with their names in the result of `with_decision`."""
_MAX_REASONS = 5
"""How many reasons why records stay quarantined the report names, the most frequent first."""


def replay_quarantined(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    selection: Selection = ALL,
    registry: Registry | None = None,
    scheduler: TableScheduler | None = None,
) -> Report:
    """Replay quarantined records, in one commit per table. Silver's next run merges them.

    Records that failed to decode are decoded again. Events that silver rejected are checked against the current
    expectations in silver's next run. Replayed records keep their coordinates and `log_ts`, and so their Kafka
    position; they are marked `late` in a batch of their own. A tombstone that is quarantined with its delete is
    replayed with it. All other records do not change.

    Args:
        tables: topic names or globs.
        registry: where schemas are looked up again (default: that of the settings).

    Raises:
        UnknownTableError: a name or glob matches no bronze table.
        InfrastructureError: the registry does not respond.
        InstallationError: Spark cannot start with the installed packages.
    """
    report = Report(layer="bronze")
    registry = registry or checked_registry(config)
    scheduler = scheduler or TableScheduler(spark=spark)

    def work(run: OpenRun) -> _Replay:
        return _Replay(run, selection, run.lake.schema_files(run.files, registry))

    return _run_on_bronze(config, tables, report, scheduler, work)


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

    return _run_on_bronze(config, tables, report, scheduler, work)


def _run_on_bronze(
    config: Config,
    tables: Sequence[str],
    report: Report,
    scheduler: TableScheduler,
    work: Callable[[OpenRun], "_QuarantineWork"],
) -> Report:
    """Do the work on each bronze table that matches, and write the report."""
    with scheduler.open(Run.begin(config, report)) as run:
        topics = select_landed(run.lake, run.files, tables)
        scheduler.each_table(report, topics, work(run), leases=run.leases)
    return report


@dataclass(frozen=True)
class _QuarantineWork(Work):
    """The work on each table; one call of `process_next` does all of it."""

    run: OpenRun
    selection: Selection

    def process_next(self, spark: SparkSession, report: TableReport) -> bool:
        table = self.run.lake.bronze(spark, report.table)
        progress = progress_of(table)
        report.version_before = table.version()
        self.change(spark, table, progress, report)
        report.version_after = table.version()
        return False

    @abstractmethod
    def change(self, spark: SparkSession, table: BronzeTable, progress: BronzeProgress, report: TableReport) -> None:
        """Change the selected rows of a table, with `commit`."""

    def commit(
        self, table: BronzeTable, changes: DataFrame, progress: BronzeProgress, report: TableReport, **following: Any
    ) -> None:
        """Commit changes of rows.

        Args:
            changes: `COORDINATES` and the changed columns; `__keep`, if rows keep values of these.
            progress: the table's progress before the commit.
            following: fields of the progress that change.
        """
        sent = sent_after(self.run.config.dead_letter_topic(report.table), progress)
        self.run.leases.check(report.table)
        with report.phase("write"):
            table.merge(Changes.of(changes, COORDINATES), progress.next(self.run.id, sent=sent, **following))
        report.status, report.batches = "ok", 1


@dataclass(frozen=True)
class _Replay(_QuarantineWork):
    schemas: SchemaFiles

    def change(self, spark: SparkSession, table: BronzeTable, progress: BronzeProgress, report: TableReport) -> None:
        settings = self.run.config.table(report.table)
        waiting = selected(self.run.lake, report.table, spark, self.selection)
        is_rejected = F.col("error.stage") == REJECTED_STAGE
        records, summary = scan_records(
            _records(waiting.where(~is_rejected)), settings, of_files=bool(self.run.config.files.root)
        )
        try:
            resolved = resolve_schemas(
                records,
                summary,
                topic=report.table,
                files=self.schemas,
                settings=settings,
                before=progress,
                quarantine_unknown_ids=True,
                takes_any_key=bool(self.selection.offsets),
            )
            decided = _with_outcome(decide(records, summary, resolved, settings))
            batch = progress.commit + 1
            late = _replayed_rows(decided, batch)
            again = _rechecked_rows(waiting.where(is_rejected), late.columns, batch)
            late = late.unionByName(again, allowMissingColumns=True).persist()
            try:
                with report.phase("decode"):
                    replayed, judged = late.agg(F.count("*"), F.count_if(F.size(KEEP) > 0)).collect()[0]
                if replayed:
                    self.commit(table, late, progress, report, rows=replayed, key=dict(resolved.key))
            finally:
                late.unpersist()
            stay = summary.total - (replayed - judged)
            if stay:
                _warn_remaining(report, decided)
        finally:
            records.unpersist()
        report.count(replayed=replayed, **{"still_dropped" if self.selection.dropped else "still_quarantined": stay})


def _records(rows: DataFrame) -> DataFrame:
    """Quarantined rows as Kafka records, with `generation` and their error, `failed`."""
    return rows.select(
        *COORDINATES,
        "headers",
        F.col("kafka_timestamp").alias("timestamp"),
        F.col("raw_key").alias("key"),
        F.col("raw_value").alias("value"),
        F.col("error").alias("failed"),
    )


def _with_outcome(records: DataFrame) -> DataFrame:
    """Decide which decoded records are replayed.

    A tombstone that was quarantined with the record right before it is replayed only with that record. With
    `merge.keys`, it needs no key of its own: its delete has it.

    Columns out: `with_decision`'s, and `is_late`; `tombstone_of`.
    """
    in_partition = W.partitionBy("generation", "partition").orderBy("offset")
    passes = (F.col("status") != "quarantined") & (F.col("failed.code") != TOO_LARGE)
    last = F.lag(F.struct("offset", "op", passes.alias("passes"))).over(in_partition)
    is_paired = F.col("failed.stage") == PAIR_STAGE
    of_delete = is_paired & (last["op"] == "d")
    has_key_of_delete = F.coalesce(of_delete & last["passes"] & (F.col("error.code") == NO_KEY), F.lit(False))
    return records.withColumns(
        {
            "is_late": has_key_of_delete | (passes & (~is_paired | F.coalesce(last["passes"], F.lit(False)))),
            "tombstone_of": F.when(of_delete, last["offset"]),
            "status": F.when(has_key_of_delete, "ok").otherwise(F.col("status")),
            "error": F.when(~has_key_of_delete, F.col("error")),
        }
    )


def _replayed_rows(records: DataFrame, batch: int) -> DataFrame:
    """The replayed records, as changes of bronze.

    Columns in: `_with_outcome`'s. Columns out: the coordinates and the columns that change.
    """
    return records.where("is_late").select(
        *COORDINATES,
        *(F.col(name) for name in _DECIDED),
        F.col("canonical_key").alias("key"),
        F.struct(F.col("key_framing").alias("key"), F.col("value_framing").alias("value")).alias("framing"),
        F.lit(batch).cast("bigint").alias("batch"),
        F.lit(True).alias("late"),
        F.array().cast("array<string>").alias(KEEP),
    )


def _rechecked_rows(rejected: DataFrame, columns: Sequence[str], batch: int) -> DataFrame:
    """Events that silver rejected, as changes of bronze that make silver check them again.

    Args:
        columns: `_replayed_rows`'.
    """
    changed = {"status": F.lit("ok"), "batch": F.lit(batch).cast("bigint"), "late": F.lit(True)}
    kept = [name for name in columns if name not in (*COORDINATES, *changed, "error", KEEP)]
    return rejected.select(
        *COORDINATES,
        *(value.alias(name) for name, value in changed.items()),
        F.array(*map(F.lit, kept)).alias(KEEP),
    )


def _warn_remaining(report: TableReport, records: DataFrame) -> None:
    """Warn in the report why records stay quarantined. Columns in: `_with_outcome`'s."""
    # The stored reason is more precise than the new one.
    is_same = F.col("error").isNull() | (F.col("error.stage") == F.col("failed.stage"))
    reason = F.when(is_same, F.col("failed")).otherwise(F.col("error"))
    stay = records.where(~F.col("is_late")).select(reason.alias("why"), F.struct(*COORDINATES).alias("at"))
    counted = stay.groupBy("why").agg(F.count("*").alias("n"), F.min("at").alias("at"))
    for row in counted.orderBy(F.desc("n"), "why").limit(_MAX_REASONS).collect():
        why = ": ".join(row["why"])
        report.warn(f"{row['n']} records stay quarantined, such as {position_text(row['at'])}: {why}")


class _Drop(_QuarantineWork):
    def change(self, spark: SparkSession, table: BronzeTable, progress: BronzeProgress, report: TableReport) -> None:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        message = F.concat("error.message", F.lit(f"; dropped {now} by {self.run.report.because}"))
        rows = selected(self.run.lake, report.table, spark, self.selection).select(
            *(*COORDINATES, NOT_DROPPABLE),
            F.lit("dropped").alias("status"),
            F.col("error").withField("message", message).alias("error"),
        )
        rows.persist()
        try:
            with report.phase("read"):
                counts = {row[NOT_DROPPABLE]: row["count"] for row in rows.groupBy(NOT_DROPPABLE).count().collect()}
            dropped = counts.pop(None, 0)
            if dropped:
                self.commit(table, rows.where(F.col(NOT_DROPPABLE).isNull()).drop(NOT_DROPPABLE), progress, report)
        finally:
            rows.unpersist()
        for why, number in counts.items():
            report.warn(f"{number} records were not dropped: {why}")
        report.count(dropped=dropped, not_dropped=sum(counts.values()))
