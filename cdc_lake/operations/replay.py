"""Records brought back from quarantine: decoded again, or judged again, in their old places in the log."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.bronze.dead_letters import sent_by
from cdc_lake.bronze.decide import PAIR_STAGE, TOO_LARGE
from cdc_lake.bronze.run import answering_registry
from cdc_lake.bronze.schema_resolution import decide, look_over, typed_row, written_with
from cdc_lake.columns import DELETE, KEEP, TYPED
from cdc_lake.config import Config
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.operations.quarantine import ALL, COORDINATES, REJECTED_STAGE, Selection, selected
from cdc_lake.operations.story import place_text
from cdc_lake.registries.registry import Registry
from cdc_lake.runs.context import Leases, end_report, lake_of, select_landed
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import Workers
from cdc_lake.tables.contract import progress_of

_DECIDED = (
    *("status", "error", "tombstone_of", "op", "source_ts_ms", "source_position", "position_domain"),
    *("snapshot", "transaction_id", "key_schema", "value_schema"),
)
"""Columns of bronze that decoding decides, under the names that it gives them."""
_TOLD_REASONS = 5
"""Why records stay in quarantine is told of so many reasons, the commonest ones."""


def replay_quarantined(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    selection: Selection = ALL,
    registry: Registry | None = None,
    workers: Workers | None = None,
) -> Report:
    """Bring records back from quarantine; silver's next run takes them. One commit per table.

    What could not be read is decoded again, and is an event if it can be read now. What silver rejected is put before
    it again, to be judged by the expectations of today. They keep their coordinates and `log_ts`, so their place in the
    log, and are marked `late` in a batch of their own. A tombstone that waits with its delete follows it. The others
    stay as they are.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session; made when there is none.
        selection: which records.
        registry: asked for the schemas anew; the settings' when there is none.
        workers: who does it; one, in the calling thread, when there are none.

    Raises:
        UnknownTableError: a name or glob fits no bronze table.
        InfrastructureError: the registry does not answer.
        InstallationError: Spark cannot be started with what is installed.
    """
    report = Report(layer="bronze")
    registry = registry or answering_registry(config)
    workers = workers or Workers(spark=spark)
    storage = workers.lake(config, report)
    schemas = lake_of(config).schema_files(storage, registry)
    leases = Leases(config, storage, report.run_id, report.layer)

    work = _Replay(config, schemas, leases, report.run_id, selection)
    workers.each_table(report, select_landed(config, storage, tables), work, leases=leases)
    end_report(storage, config, report)
    return report


@dataclass(frozen=True)
class _Replay:
    """What is done to each table, in one turn."""

    config: Config
    schemas: SchemaFiles
    leases: Leases
    run_id: str
    selection: Selection

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return None

    def turn(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        table = lake_of(self.config).bronze(spark, done.table)
        progress = progress_of(table)
        done.version_before = table.version()
        settings = self.config.table(done.table)
        waiting = selected(self.config, done.table, spark, self.selection)
        is_rejected = F.col("error.stage") == REJECTED_STAGE
        records, seen = look_over(
            _records(waiting.where(~is_rejected)), settings, of_files=bool(self.config.files.root)
        )
        try:
            written = written_with(
                records,
                seen,
                topic=done.table,
                files=self.schemas,
                settings=settings,
                before=progress,
                quarantine_unknown_ids=True,
                takes_any_key=bool(self.selection.places),
            )
            typed = typed_row(table, settings, written)
            decided = _followed(decide(records, seen, written, typed, settings))
            batch = progress.commit + 1
            late = _late_rows(decided, batch)
            again = _again_rows(waiting.where(is_rejected), late.columns, batch)
            late = late.unionByName(again, allowMissingColumns=True).persist()
            try:
                with done.phase("decode"):
                    replayed, judged = late.agg(F.count("*"), F.count_if(F.size(KEEP) > 0)).collect()[0]
                if replayed:
                    sent = sent_by(self.config.dead_letter_topic(done.table), progress)
                    following = progress.next(self.run_id, rows=replayed, sent=sent, key=dict(written.key))
                    self.leases.check(done.table)
                    with done.phase("write"):
                        table.merge(late, COORDINATES, following)
                    done.status, done.batches = "ok", 1
            finally:
                late.unpersist()
            stay = seen.total - (replayed - judged)
            if stay:
                _tell_why(done, decided)
        finally:
            records.unpersist()
        done.count(replayed=replayed, **{"still_dropped" if self.selection.dropped else "still_quarantined": stay})
        done.version_after = table.version()
        return False


def _records(rows: DataFrame) -> DataFrame:
    """Quarantined rows as the records they were, with their `generation` and why they are there, `failed`."""
    return rows.select(
        *COORDINATES,
        "headers",
        F.col("kafka_timestamp").alias("timestamp"),
        F.col("raw_key").alias("key"),
        F.col("raw_value").alias("value"),
        F.col("error").alias("failed"),
    )


def _followed(records: DataFrame) -> DataFrame:
    """Say of records that were decided upon again which of them come back.

    A tombstone that was quarantined with the record right before it goes with that one again.

    Columns out: `with_decision`'s, and `is_late`; `tombstone_of`.
    """
    in_partition = W.partitionBy("generation", "partition").orderBy("offset")
    passes = (F.col("status") != "quarantined") & (F.col("failed.code") != TOO_LARGE)
    last = F.lag(F.struct("offset", "op", passes.alias("passes"))).over(in_partition)
    is_paired = F.col("failed.stage") == PAIR_STAGE
    return records.withColumns(
        {
            "is_late": passes & (~is_paired | F.coalesce(last["passes"], F.lit(False))),
            "tombstone_of": F.when(is_paired & (last["op"] == "d"), last["offset"]),
        }
    )


def _late_rows(records: DataFrame, batch: int) -> DataFrame:
    """Those that come back, as changes of bronze.

    Columns in: `_followed`'s. Columns out: the coordinates and the columns that change.
    """
    return records.where("is_late").select(
        *COORDINATES,
        *(F.col(name) for name in _DECIDED),
        *(F.col(name) for name in TYPED if name in records.columns),
        F.col("canonical_key").alias("key"),
        F.struct(F.col("key_framing").alias("key"), F.col("value_framing").alias("value")).alias("framing"),
        F.lit(batch).cast("bigint").alias("batch"),
        F.lit(True).alias("late"),
        F.array().cast("array<string>").alias(KEEP),
        F.lit(False).alias(DELETE),
    )


def _again_rows(rejected: DataFrame, columns: Sequence[str], batch: int) -> DataFrame:
    """Events that silver rejected, as changes of bronze that put them before it again: they stay what they are.

    Args:
        columns: `_late_rows`'.
    """
    changed = {"status": F.lit("ok"), "batch": F.lit(batch).cast("bigint"), "late": F.lit(True)}
    kept = [name for name in columns if name not in (*COORDINATES, *changed, "error", KEEP, DELETE)]
    return rejected.select(
        *COORDINATES,
        *(value.alias(name) for name, value in changed.items()),
        F.array(*map(F.lit, kept)).alias(KEEP),
        F.lit(False).alias(DELETE),
    )


def _tell_why(done: TableReport, records: DataFrame) -> None:
    """Say in the report why records stay where they are. Columns in: `_followed`'s."""
    # What was found out of a record that did not decode is more than that it still does not.
    is_same = F.col("error").isNull() | (F.col("error.stage") == F.col("failed.stage"))
    reason = F.when(is_same, F.col("failed")).otherwise(F.col("error"))
    stay = records.where(~F.col("is_late")).select(reason.alias("why"), F.struct(*COORDINATES).alias("at"))
    counted = stay.groupBy("why").agg(F.count("*").alias("n"), F.min("at").alias("at"))
    for row in counted.orderBy(F.desc("n"), "why").limit(_TOLD_REASONS).collect():
        why = ": ".join(row["why"])
        done.warn(f"{row['n']} records stay, such as {place_text(row['at'])}: {why}")
