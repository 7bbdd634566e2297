"""Commits one batch to silver: merges or appends its rows, and widens columns first if the batch needs it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake import failpoints
from cdc_lake.columns import BATCH, KAFKA, META, META_TYPE, quoted, type_text
from cdc_lake.errors import ConfigError
from cdc_lake.runs.context import OpenRun
from cdc_lake.runs.report import TableReport, check_totals
from cdc_lake.runs.user_sql import checked_expression
from cdc_lake.silver.batch import Batch
from cdc_lake.silver.batch_schemas import BatchSchemas
from cdc_lake.silver.events import events
from cdc_lake.silver.evolution import check_steps
from cdc_lake.silver.merge import fold_events
from cdc_lake.silver.table import SilverTable
from cdc_lake.spark.arrow_stage import in_driver
from cdc_lake.spark.expressions import of_batch
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.delta_write import first_with_statistics
from cdc_lake.tables.partitions import check_partitions
from cdc_lake.tables.progress import SilverProgress


def commit_batch(run: OpenRun, report: TableReport, batch: Batch) -> SilverProgress | None:
    """Merge a batch into silver, in one commit.

    Returns:
        Silver's progress as read back; none if no event has had a key yet, so that the table is still unknown.

    Raises:
        RefusedError: the batch has truncates that `deletes` does not allow.
        DataLossError: the source's log was reset, and `read.on_log_reset` is stop.
        UnsupportedError: the primary key's columns changed.
        SchemaChangeError: `schema.evolution` does not allow a change of the columns.
        ExpectationError: values do not fit the types in `schema.cast`, or rows do not meet an expectation.
        TableLockedError: another run has committed first. This commit was not made.
    """
    table, progress = batch.table, batch.progress
    is_append = table.settings.merge.mode == "append"
    consumed = table.consumed(batch.last)
    if progress is None:
        next_progress = SilverProgress(run_id=run.id, commit=1, **consumed)
    else:
        next_progress = progress.next(run.id, **consumed)
        is_at_end = batch.last == table.landed.commit
        if is_append and (batch.is_comparison or (progress.reread_to and is_at_end)):
            next_progress = next_progress.model_copy(update={"reread_to": ahead(table)})
    commit = _Commit(run, report, batch, next_progress)
    if not batch.counts.total:
        return commit.skip()
    with report.phase("read"):
        batch.hold_if_few()
    with report.phase("plan"):
        if not is_append:  # appending does not change existing rows
            batch.find_table_events()
        schemas = batch.find_schemas()
        if schemas is None:
            return commit.skip()
        check_steps(table.name, schemas.layout_change.steps, table.settings.schema_.evolution)
        batch.check_expectations(report)
        batch.check_casts()
    return commit.append(schemas) if is_append else commit.merge()


@dataclass
class _Commit:
    """The commit of a batch, whose rows are counted in the table's report.

    Attributes:
        progress: silver's after the commit.
    """

    run: OpenRun
    report: TableReport
    batch: Batch
    progress: SilverProgress

    def skip(self) -> SilverProgress | None:
        """Consume batches without events: control records, quarantined records."""
        if self.batch.progress is None:
            return None
        with self.report.phase("write"):
            self._check_lease()
            return self.batch.table.silver.advance(self.progress).progress

    def merge(self) -> SilverProgress:
        batch, report = self.batch, self.report
        with report.phase("fold"):
            outcome = fold_events(batch)
        outcome.check_log()
        counts, totals = outcome.counted(), outcome.totals
        check_totals(report.table, batch.counts.total, **counts)
        is_wider = batch.progress is not None and outcome.schemas.layout_change.is_wider
        # Before widening: Delta rejects plans that read the table's earlier schema.
        changes = outcome.changes(self.progress.commit + (1 if is_wider else 0))
        if outcome.is_in_driver:
            changes = replace(changes, rows=in_driver(changes.rows))  # a MERGE plans its source several times
        if is_wider:
            self._widen(outcome.schemas)
        with self._write(outcome.schemas, outcome.side_entries()):
            made = batch.table.silver.merge(changes, self.progress)
        self._report(*outcome.warnings(), *made.notes, **counts, stale=totals.stale, refolded=totals.refolded)
        return made.progress

    def append(self, schemas: BatchSchemas) -> SilverProgress:
        """Append the batch's rows, one per event, without a fold or keys."""
        batch, counts, silver = self.batch, self.batch.counts, self.batch.table.silver
        assert isinstance(silver, DeltaLakeTable), "`TableConfig.check` allows Delta only"
        if schemas.layout_change.is_wider:
            self._widen(schemas)
        rows = appended(batch, schemas, self.progress.commit)
        parts = {
            "truncates": counts.truncates,
            "paired_tombstones": counts.paired_tombstones,
            "rejected": batch.rejected.count() if batch.rejected is not None else 0,
        }
        with self._write(schemas, ()):
            statistics = first_with_statistics(rows.schema)
            made = silver.append(rows, self.progress, adds_columns=True, statistics=statistics)
        expected = counts.total - sum(parts.values())
        number = silver.rows_added(made.version)
        if number is None:  # a concurrent maintenance run committed first
            number = expected
        if may_repeat(batch):
            parts["already_there"] = expected - number
        check_totals(self.report.table, counts.total, appended=number, **parts)
        self._report(appended=number, **parts)
        self.progress = made.progress
        return self.progress

    @contextmanager
    def _write(self, schemas: BatchSchemas, side_entries: Sequence[DataFrame]) -> Iterator[None]:
        """Write the side table; the block then writes the table."""
        number = self.progress.commit
        failpoints.reach("silver.after_plan", batch=number)
        with self.report.phase("write"):
            self._check_lease()
            side = self.batch.remember(side_entries, number)
            own = schemas.progress_fields(self.progress.defaulted)
            self.progress = self.progress.model_copy(update={**own, "side": side})
            failpoints.reach("silver.after_side", batch=number)
            self._check_lease()
            yield
            failpoints.reach("silver.after_merge", batch=number)

    def _widen(self, schemas: BatchSchemas) -> None:
        """Rewrite the table, with unchanged rows, in columns wide enough for the batch, as a separate commit."""
        before, stored = self.batch.progress, self.batch.table.stored_rows
        assert before is not None, "a new table has no rows to rewrite"
        with self.report.phase("widen"):
            rows = schemas.with_key(stored) if schemas.layout.keys else stored
            columns = schemas.layout.columns.items()
            rows = rows.withColumns(
                {name: F.col(quoted(name)).cast(kind) for name, kind in columns if name in rows.columns}
            )
            self._check_lease()
            wide = before.next(self.run.id)
            self.batch.table.silver.overwrite(rows, wide)
            failpoints.reach("silver.after_widen", batch=self.progress.commit)
        self.progress = self.progress.model_copy(update={"commit": self.progress.commit + 1, "follows": wide.nonce})

    def _report(self, *warnings: str, **counts: int) -> None:
        self.report.add_changes(self.batch.counts.changes or ())
        self.report.count(events=self.batch.counts.total, **counts)
        for warning in (*self.batch.warnings(), *warnings):
            self.report.warn(warning)

    def _check_lease(self) -> None:
        self.run.leases.check(self.report.table)


def appended(batch: Batch, schemas: BatchSchemas, commit: int) -> DataFrame:
    """The rows that a batch appends.

    Columns out: the layout's; `meta` struct, which identifies the record; `__op`, `__source_ts_ms`, `__batch`; those in
    `merge.derive`.

    Raises:
        ConfigError: an expression in `derive` is not valid for these columns, changes its type, or its name is in use.
    """
    table, merge = batch.table, batch.table.settings.merge
    rows = events(batch.accepted, schemas, has_key_changes=False, more=["kafka_timestamp"])
    place = F.col(KAFKA)
    kafka = [place[name].alias(name) for name in ("topic", "generation", "partition", "offset")]
    meta = F.struct(F.struct(*kafka, F.col("kafka_timestamp").alias("timestamp")).alias("kafka")).cast(META_TYPE)
    rows = rows.select(
        "row.*",
        meta.alias(META),
        F.col("op").alias("__op"),
        F.col("source_ts_ms").alias("__source_ts_ms"),
        of_batch(commit, place["offset"]).cast("bigint").alias(BATCH),
    )
    if may_repeat(batch):
        rows = rows.join(table.silver.read().select(META), META, "left_anti").select(*map(quoted, rows.columns))
    rows = _derived(rows, merge.derive, table.name)
    if batch.progress is not None:
        _check_types(rows.schema, table.silver.schema(), merge.derive, table.name)
    columns = {field.name: type_text(field.dataType) for field in rows.schema}
    check_partitions(table.name, table.storage, columns, ())
    return rows


def may_repeat(batch: Batch) -> bool:
    """Whether silver may already have records of a batch: bronze was deleted, restored or replaced by a backup.

    Bronze then reads them again, or they return from quarantine or a gap as replayed records (`late`).
    """
    has_more = batch.progress is not None and bool(batch.progress.reread_to or batch.counts.late)
    return batch.is_comparison or has_more


def ahead(table: SilverTable) -> dict[int, int]:
    """Up to which offset of each partition silver has records that bronze has yet to read again."""
    place = F.col(META)["kafka"]
    newest = F.max(F.struct(place["generation"], place["offset"])).alias("newest")
    rows = table.silver.read().groupBy(place["partition"].alias("partition")).agg(newest).collect()
    generation = len(table.landed.offsets) - 1
    return {
        partition: offset + 1
        for partition, (silver_generation, offset) in rows
        if (silver_generation, offset) >= (generation, table.landed.position.get(partition, 0))
    }


def _derived(rows: DataFrame, derive: Mapping[str, str], table: str) -> DataFrame:
    columns = []
    for name, expression in derive.items():
        where = f"{table}: merge.derive: {name}"
        if name in rows.columns:
            raise ConfigError(where, "a column of that name already exists", "use another name")
        columns.append(checked_expression(rows, expression, where).alias(name))
    return rows.select("*", *columns)


def _check_types(rows: StructType, stored: StructType, derive: Mapping[str, str], table: str) -> None:
    for name in derive:
        if name in stored.names and stored[name].dataType != rows[name].dataType:
            was, becomes = type_text(stored[name].dataType), type_text(rows[name].dataType)
            raise ConfigError(
                f"{table}: merge.derive: {name}",
                f"its type changed from {was} to {becomes}",
                "use another name for the new column, or cast it",
            )
