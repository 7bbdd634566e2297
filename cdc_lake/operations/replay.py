"""Replay quarantined records at their Kafka positions: decode or check them again."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.bronze.decide import NO_KEY, PAIR_STAGE, TOO_LARGE
from cdc_lake.bronze.schema_resolution import decide, resolve_schemas, scan_records
from cdc_lake.columns import DELETE, KEEP
from cdc_lake.config import Config
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.operations.quarantine import (
    ALL,
    COORDINATES,
    REJECTED_STAGE,
    QuarantineWork,
    Selection,
    run_on_bronze,
    selected,
)
from cdc_lake.operations.story import position_text
from cdc_lake.registries.registry import Registry
from cdc_lake.runs.context import OpenRun
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.runs.servers import checked_registry
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
        spark: the session (default: a new one).
        registry: where schemas are looked up again (default: that of the settings).
        scheduler: runs the work (default: a new one, in the calling thread).

    Raises:
        UnknownTableError: a name or glob matches no bronze table.
        InfrastructureError: the registry does not respond.
        InstallationError: Spark cannot start with the installed packages.
    """
    report = Report(layer="bronze")
    registry = registry or checked_registry(config)
    scheduler = scheduler or TableScheduler(spark=spark)

    def work(run: OpenRun) -> _Replay:
        return _Replay(run, selection, run.lake.schema_files(run.storage, registry))

    return run_on_bronze(config, tables, report, scheduler, work)


@dataclass(frozen=True)
class _Replay(QuarantineWork):
    """Replays the selected records."""

    schemas: SchemaFiles

    def change(self, spark: SparkSession, table: BronzeTable, progress: BronzeProgress, done: TableReport) -> None:
        settings = self.run.config.table(done.table)
        waiting = selected(self.run.lake, done.table, spark, self.selection)
        is_rejected = F.col("error.stage") == REJECTED_STAGE
        records, summary = scan_records(
            _records(waiting.where(~is_rejected)), settings, of_files=bool(self.run.config.files.root)
        )
        try:
            resolved = resolve_schemas(
                records,
                summary,
                topic=done.table,
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
                with done.phase("decode"):
                    replayed, judged = late.agg(F.count("*"), F.count_if(F.size(KEEP) > 0)).collect()[0]
                if replayed:
                    self.commit(table, late, progress, done, rows=replayed, key=dict(resolved.key))
            finally:
                late.unpersist()
            stay = summary.total - (replayed - judged)
            if stay:
                _warn_remaining(done, decided)
        finally:
            records.unpersist()
        done.count(replayed=replayed, **{"still_dropped" if self.selection.dropped else "still_quarantined": stay})


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
        F.lit(False).alias(DELETE),
    )


def _rechecked_rows(rejected: DataFrame, columns: Sequence[str], batch: int) -> DataFrame:
    """Events that silver rejected, as changes of bronze that make silver check them again.

    Args:
        columns: `_replayed_rows`'.
    """
    changed = {"status": F.lit("ok"), "batch": F.lit(batch).cast("bigint"), "late": F.lit(True)}
    kept = [name for name in columns if name not in (*COORDINATES, *changed, "error", KEEP, DELETE)]
    return rejected.select(
        *COORDINATES,
        *(value.alias(name) for name, value in changed.items()),
        F.array(*map(F.lit, kept)).alias(KEEP),
        F.lit(False).alias(DELETE),
    )


def _warn_remaining(done: TableReport, records: DataFrame) -> None:
    """Warn in the report why records stay quarantined. Columns in: `_with_outcome`'s."""
    # The stored reason is more precise than the new one.
    is_same = F.col("error").isNull() | (F.col("error.stage") == F.col("failed.stage"))
    reason = F.when(is_same, F.col("failed")).otherwise(F.col("error"))
    stay = records.where(~F.col("is_late")).select(reason.alias("why"), F.struct(*COORDINATES).alias("at"))
    counted = stay.groupBy("why").agg(F.count("*").alias("n"), F.min("at").alias("at"))
    for row in counted.orderBy(F.desc("n"), "why").limit(_MAX_REASONS).collect():
        why = ": ".join(row["why"])
        done.warn(f"{row['n']} records stay quarantined, such as {position_text(row['at'])}: {why}")
