"""A batch to land: the run, the topic and its table, and the progress that the batch continues from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.bronze.log_ends import rewritten_offsets
from cdc_lake.bronze.offsets import continue_from, describe_loss
from cdc_lake.config import TableConfig
from cdc_lake.errors import DataLossError, NoProgressError
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.runs.context import OpenRun
from cdc_lake.runs.report import TableReport
from cdc_lake.sources.logs import TopicLog, TopicSource, offsets_of
from cdc_lake.spark.session import batch_bytes
from cdc_lake.tables.progress import BronzeProgress


@dataclass(frozen=True)
class BronzeRun:
    """What a run of bronze shares between its tables.

    Attributes:
        run: the run.
        schemas: the lake's schema files, with the registry.
        accept_loss, quarantine_unknown_ids: see `run_bronze`.
        collisions: by topic, see `check_catalog_name`.
        parallel: how many tables are processed in parallel.
        is_continuous: whether more runs will follow in this process.
    """

    run: OpenRun
    source: TopicSource
    schemas: SchemaFiles
    accept_loss: bool
    quarantine_unknown_ids: bool
    collisions: Mapping[str, Mapping[str, str]]
    parallel: int
    is_continuous: bool


@dataclass(frozen=True)
class Landing:
    """The landing of one batch of a topic."""

    spark: SparkSession
    bronze: BronzeRun
    log: TopicLog
    table: BronzeTable
    settings: TableConfig
    done: TableReport

    @cached_property
    def max_bytes(self) -> int:
        """The bytes of a batch; see `max_batch_bytes`."""
        return batch_bytes(self.spark, self.settings.read.max_batch_bytes, self.bronze.parallel)

    @property
    def dead_letters(self) -> str | None:
        """The topic for dead letters."""
        return self.bronze.run.config.dead_letter_topic(self.log.name)


def stored_progress(run: Landing) -> BronzeProgress | None:
    """The table's progress; derived from its rows if no remaining commit has it."""
    try:
        return run.table.progress()
    except NoProgressError as exc:
        run.done.warn(
            f"{exc.what}: it was derived from the rows; records are missing if the topic was re-created since"
        )
    rows = run.table.read().groupBy("generation", "partition")
    found = rows.agg(F.max("offset").alias("offset"), F.max("log_ts").alias("log_ts"), F.max("batch").alias("batch"))
    ends = sorted(found.collect(), key=lambda end: (end["log_ts"], end["generation"]))
    newest = max((end["generation"] for end in ends), default=0)
    reached = {end["partition"]: end["offset"] + 1 for end in ends if end["generation"] == newest}
    return BronzeProgress(
        run_id=run.bronze.run.id,
        epoch=1,
        commit=max((end["batch"] for end in ends), default=0),
        offsets={**{f"unknown-{generation}": {} for generation in range(newest)}, run.log.id: reached},
        log_ts={end["partition"]: end["log_ts"] for end in ends},
    )


def rewritten(run: Landing, progress: BronzeProgress | None) -> Mapping[int, int]:
    """See `log_ends.rewritten_offsets`; checks the partitions whose end differs from bronze's position."""
    if progress is None or run.log.id not in progress.offsets:
        return {}
    reached = progress.offsets[run.log.id]
    news = [p for p, span in run.log.partitions.items() if span.end != reached.get(p, span.start)]
    return rewritten_offsets(run.spark, run.table, progress, run.log, run.bronze.source, news)


def starting_progress(
    run: Landing, progress: BronzeProgress | None, replaced: Mapping[int, int] = MappingProxyType({})
) -> BronzeProgress:
    """The progress to continue from: `offsets` of the topic's id are the next offsets to read.

    Args:
        run: the batch to land.
        progress: that of the table; None if it does not exist.
        replaced: see `log_ends.rewritten_offsets`.

    Raises:
        DataLossError: records are gone, and `accept_loss` is not set.
    """
    log = run.log
    if progress is None:
        begin = offsets_of(run.settings.read.start, log, run.bronze.source)
        if skipped := sum(offset - log.partitions[partition].start for partition, offset in begin.items()):
            run.done.warn(
                f"bronze starts at `read.start: {run.settings.read.start}` and skips {skipped} offsets before it; "
                f"to read them, run `cdc-lake seek --table {log.name} --to earliest`"
            )
        return BronzeProgress(run_id=run.bronze.run.id, commit=0, offsets={log.id: begin}, total_rows=0)
    offsets, gaps = continue_from(log, progress.offsets, replaced)
    losses = [describe_loss(log, gap, offsets[log.id]) for gap in gaps]
    if losses and not run.bronze.accept_loss:
        raise DataLossError(
            log.name,
            "; ".join(losses),
            f"to continue and record the gap, run `cdc-lake run bronze --table {log.name} --accept-loss`; "
            "to lose nothing, move the table away and load it from a new snapshot",
        )
    for loss in losses:
        run.done.warn(f"continued past a loss: {loss}")
    if losses:
        run.done.warn(
            "silver keeps rows whose later changes or deletes were lost, such as the rows of a dropped table: take a "
            "new snapshot with a signal (docs/how-to/backfill.md). A snapshot of the whole table also deletes rows "
            "that the source no longer has, if `deletes.missing_after_snapshot` is true"
        )
    again = progress.again if list(offsets) == list(progress.offsets) else {}
    reached = progress.offsets.get(log.id, {})
    last = {p: one for p, one in progress.last.items() if offsets[log.id].get(p) == reached.get(p, -1)}
    return progress.model_copy(update={"offsets": offsets, "gaps": gaps, "again": again, "last": last})
