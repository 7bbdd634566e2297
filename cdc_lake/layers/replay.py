"""Quarantined records brought back: decoded again, in their old places in the log."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.columns import DELETE, KEEP, TYPED
from cdc_lake.config import Config
from cdc_lake.events.arrival import PAIR_STAGE, with_decision
from cdc_lake.layers.bronze import answering_registry, bronze_table
from cdc_lake.layers.run import Leases, end_report, select_landed
from cdc_lake.layers.turns import Workers
from cdc_lake.layers.written import look_over, typed_row, written_with
from cdc_lake.metrics.report import Report, TableReport
from cdc_lake.registries.registry import Registry
from cdc_lake.sources.schemas import SchemaFiles
from cdc_lake.storage import Storage
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Progress

_COORDINATES = ("topic", "generation", "partition", "offset")
_DECIDED = (
    *("status", "error", "tombstone_of", "op", "source_ts_ms", "source_position", "position_domain"),
    *("snapshot", "transaction_id", "key_schema", "value_schema"),
)
"""Columns of bronze that decoding decides, under the names that it gives them."""


def replay_quarantined(
    config: Config, tables: Sequence[str], spark: SparkSession | None = None, *, registry: Registry | None = None
) -> Report:
    """Decode bronze's quarantined rows again; those that can be read now become events, in one commit per table.

    They keep their coordinates and `log_ts`, so their place in the log, and are marked `late` in a batch of their own.
    A tombstone that was quarantined with its delete follows it. The others stay as they are.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session; made when there is none.
        registry: asked for the schemas anew; the settings' when there is none.

    Raises:
        UnknownTableError: a name or glob fits no bronze table.
        InfrastructureError: the registry does not answer.
        InstallationError: Spark cannot be started with what is installed.
    """
    report = Report(layer="bronze")
    registry = registry or answering_registry(config)
    workers = Workers(spark=spark)
    storage = Storage(workers.spark("cdc_lake bronze"))
    schemas = SchemaFiles(storage, config.lake.root, registry)
    leases = Leases(config, storage, report.run_id, report.layer)

    work = _Replay(config, schemas, leases, report.run_id)
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

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return None

    def turn(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        table = bronze_table(spark, self.config, done.table)
        progress = table.progress()
        assert progress is not None, "a bronze table is created with progress"
        done.version_before = table.version()
        settings = self.config.table(done.table)
        records, seen = look_over(_quarantined(table), settings)
        try:
            written = written_with(
                records,
                seen,
                topic=done.table,
                files=self.schemas,
                settings=settings,
                before=progress,
                quarantine_unknown_ids=True,
            )
            typed = typed_row(table, settings, written)
            decided = with_decision(records, written.keys, written.values, seen.frames, typed)
            late = _late_rows(decided, progress.commit + 1).persist()
            try:
                replayed = late.count()
                if replayed:
                    own = {"run_id": self.run_id, "commit": progress.commit + 1, "rows": replayed, "gaps": ()}
                    following = Progress.model_validate(progress.model_dump(exclude={"nonce"}) | own)
                    self.leases.check(done.table)
                    table.merge(late, _COORDINATES, following)
                    done.status, done.batches = "ok", 1
            finally:
                late.unpersist()
        finally:
            records.unpersist()
        done.count(replayed=replayed, still_quarantined=seen.total - replayed)
        done.version_after = table.version()
        return False


def _quarantined(table: DeltaLakeTable) -> DataFrame:
    """The quarantined rows as the records they were, with their `generation` and the stage that they failed in."""
    return (
        table.read()
        .where(F.col("status") == "quarantined")
        .select(
            *_COORDINATES,
            "headers",
            F.col("kafka_timestamp").alias("timestamp"),
            F.col("raw_key").alias("key"),
            F.col("raw_value").alias("value"),
            F.col("error.stage").alias("failed_stage"),
        )
    )


def _late_rows(records: DataFrame, batch: int) -> DataFrame:
    """Of quarantined records that were decided upon again, those that pass, as changes of bronze.

    A tombstone that was quarantined with the record right before it goes with that one again.

    Columns out: the coordinates and the columns that change.
    """
    in_partition = W.partitionBy("generation", "partition").orderBy("offset")
    passes = F.col("status") != "quarantined"
    last = F.lag(F.struct("offset", "op", passes.alias("passes"))).over(in_partition)
    is_paired = F.col("failed_stage") == PAIR_STAGE
    return (
        records.withColumns(
            {
                "is_late": passes & (~is_paired | last["passes"]),
                "tombstone_of": F.when(is_paired & (last["op"] == "d"), last["offset"]),
            }
        )
        .where("is_late")
        .select(
            *_COORDINATES,
            *(F.col(name) for name in _DECIDED),
            *(F.col(name) for name in TYPED if name in records.columns),
            F.col("canonical_key").alias("key"),
            F.struct(F.col("key_framing").alias("key"), F.col("value_framing").alias("value")).alias("framing"),
            F.lit(batch).cast("bigint").alias("batch"),
            F.lit(True).alias("late"),
            F.array().cast("array<string>").alias(KEEP),
            F.lit(False).alias(DELETE),
        )
    )
