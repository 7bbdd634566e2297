"""Silver: a copy of each source table, merged from bronze's events."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake import failpoints
from cdc_lake.catalogs.naming import colliding
from cdc_lake.columns import BATCH, BRONZE, quoted
from cdc_lake.config import Config
from cdc_lake.errors import NoProgressError
from cdc_lake.fold.table_events import TableEvents
from cdc_lake.lake.lake import BronzeTable, SilverTarget, check_holds_no_tables
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.runs.catalog_sync import check_catalog_name, sync_catalog_after_run
from cdc_lake.runs.context import Leases, check_has_lease, lake_of, needs_hadoop, select_landed, silver_targets
from cdc_lake.runs.report import Report, TableReport, check_totals
from cdc_lake.runs.scheduler import NewData, TableScheduler
from cdc_lake.silver.append import ahead, appended, may_repeat, remember, statistics
from cdc_lake.silver.batch import Batch
from cdc_lake.silver.evolution import check_steps
from cdc_lake.silver.merge import fold_events
from cdc_lake.silver.reader import BatchSchemas
from cdc_lake.silver.table_run import SilverRun, check_columns
from cdc_lake.spark.session import batch_bytes, planned_for
from cdc_lake.storage.files import Files
from cdc_lake.storage.hadoop import Storage
from cdc_lake.tables.contract import Table, progress_of
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import BronzeProgress, SilverProgress


def run_silver(
    config: Config, tables: Sequence[str], spark: SparkSession | None = None, *, scheduler: TableScheduler | None = None
) -> Report:
    """Bring silver up to date with bronze. Neither Kafka nor the registry is needed.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session; created if none is given.
        workers: run the tables; by default one, in the calling thread.

    Raises:
        UnknownTableError: a name or glob matches no bronze table.
        ConfigError: a setting requires another one.
        InstallationError: the installed packages cannot start Spark.
    """
    report = Report(layer="silver")
    scheduler = scheduler or TableScheduler(spark=spark)
    files = scheduler.files(config)
    if needs_hadoop(config, files):
        files = scheduler.open_storage(config, report)
    targets = _targets(config, select_landed(config, files, tables))
    look = partial(_new_without_spark, config, files, targets)
    if scheduler.finds_nothing_new(config, report, files, list(targets), look):
        return report
    storage = scheduler.open_storage(config, report)
    leases = Leases(config, storage, report.run_id, report.layer)
    silver = _SilverWork(
        config,
        targets,
        lake_of(config).schema_files(storage),
        leases,
        report.run_id,
        colliding(config.catalog, "silver", {name: target.storage.kind for name, target in targets.items()}),
        min(scheduler.parallel, len(targets)),
    )
    scheduler.each_table(report, list(silver.targets), silver, leases=leases)
    sync_catalog_after_run(config, report, scheduler.spark(config, "silver"))
    failpoints.reach("silver.before_report")
    scheduler.end(storage, config, report)
    return report


def _targets(config: Config, topics: Sequence[str]) -> dict[str, SilverTarget]:
    """Silver's tables by name.

    Raises:
        ConfigError: a setting lacks another one that it needs.
    """
    for topic in topics:
        config.table(topic).check(topic)
    targets = {target.name: target for topic in topics for target in silver_targets(config, topic)}
    for name, target in targets.items():
        check_has_lease(config, name, target.storage)
    return targets


def _new_without_spark(
    config: Config, files: Files, targets: Mapping[str, SilverTarget], done: TableReport
) -> NewData | None:
    """What is new, if the tables' logs show it."""
    target = targets[done.table]
    bronze = lake_of(config).newest_bronze(files, target.topic)
    silver = target.newest(files)
    if bronze is None:
        return None
    rows = bronze.progress.rows
    if silver is None:
        is_first = bronze.progress.commit == 1 and not lake_of(config).holds(files, "silver", target.name)
        return NewData(max(rows, 1)) if is_first and rows is not None else None
    lag = _lag(bronze.table_id, bronze.progress, silver.progress, done)
    if lag == 0:
        return NewData(0)
    return NewData(max(rows, 1), silver.bytes) if lag == 1 and rows is not None and silver.bytes is not None else None


def _lag(source: str, landed: BronzeProgress | None, progress: SilverProgress | None, done: TableReport) -> int | None:
    """See `Work`.

    Args:
        source: the bronze table's id.
        landed: bronze's progress.
        progress: silver's.
    """
    if landed is None or progress is None or progress.is_of(source, landed) is False:
        return None
    done.consumed_from = done.consumed_to = {source: progress.sources[source]}
    return max(landed.commit - progress.sources[source], 0)


@dataclass(frozen=True)
class _SilverWork:
    """The layer's work; its lag is counted in bronze's batches."""

    config: Config
    targets: Mapping[str, SilverTarget]
    schemas: SchemaFiles
    leases: Leases
    run_id: str
    collisions: Mapping[str, Mapping[str, str]]
    parallel: int

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        target = self.targets[done.table]
        bronze = lake_of(self.config).bronze(spark, target.topic)
        landed = bronze.progress()
        return _lag(bronze.id(), landed, target.open(spark).progress(), done)

    def process_next(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        target = self.targets[done.table]
        bronze = lake_of(self.config).bronze(spark, target.topic)
        landed = progress_of(bronze)
        storage = Storage(spark)
        if not done.batches:
            for layer in ("silver", "side"):
                lake_of(self.config).check_is_in_no_table(storage, layer, target.name)
        silver = target.open(spark)
        self.leases.recover(silver, done)
        progress = _progress(silver, done)
        if progress is None:
            for path in (target.path, target.side):
                check_holds_no_tables(storage, path, done.table)
            others = self.collisions.get(done.table, {})
            check_catalog_name(self.config, storage, "silver", done.table, others)
        reached = bronze.reached_by(progress, landed)
        run = SilverRun(
            spark=spark,
            schemas=self.schemas,
            bronze=bronze.read(as_of=bronze.version()).select(*BRONZE),
            partitions=len(landed.position),
            silver=silver,
            storage=target.storage,
            side=target.open_side(spark),
            settings=self.config.table(target.topic),
            run_id=self.run_id,
            done=done,
            is_comparison=progress is not None and reached is None,
            check_lease=lambda: self.leases.check(done.table),
        )
        check_columns(run)
        run = run.with_current_key(landed, progress.key_from if progress else None)
        max_bytes = batch_bytes(spark, run.settings.read.max_batch_bytes, self.parallel)
        return _fold_next(run, progress, _BronzeState(bronze, bronze.id(), landed), reached or 0, max_bytes)


@dataclass(frozen=True)
class _BronzeState:
    """The bronze table, and its progress when it was read."""

    table: BronzeTable
    id: str
    landed: BronzeProgress

    def bytes_up_to(self, batch: int) -> int:
        """Of the records of all batches up to one, as far as they were counted."""
        found = self.table.progress_of_commit(batch) if batch else None
        return found.bytes if found else 0

    def consumed(self, last: int) -> dict[str, Any]:
        """The sources in silver's progress once the batches up to this one are folded."""
        nonce = self.landed.nonce if last == self.landed.commit else self.table.nonce_of(last)
        return {"sources": {self.id: last}, "nonces": {self.id: nonce} if nonce else {}}


def _fold_next(
    run: SilverRun, progress: SilverProgress | None, bronze: _BronzeState, reached: int, max_bytes: int
) -> bool:
    """Fold in what bronze has beyond silver's progress: whole bronze batches, of at most
    `read.max_records_per_batch` records and `max_bytes` together, but at least one.

    Args:
        run: the table's.
        progress: silver's.
        reached: the last of bronze's batches that silver has; 0 if it has none, or is to be compared.
        max_bytes: of the records of a batch.

    Returns:
        Whether there is more.
    """
    done, source, newest = run.done, bronze.id, bronze.landed.commit
    if not done.batches:
        done.consumed_from = {source: reached}
        done.version_before = run.silver.version() if progress else None
    if run.is_comparison and progress is not None:
        why = (
            "bronze's history differs from the one that silver was folded from, as after a RESTORE or from a backup"
            if source in progress.sources
            else "silver has no progress for this bronze table"
        )
        done.warn(f"{why}; all of bronze is compared with silver")
    first = 1 if run.is_comparison else reached + 1
    while first <= newest:
        # Compare all batches at once: a key refolded from a part of bronze would go back.
        last, rows = (newest, None) if run.is_comparison else _next_batch(run, first, bronze, max_bytes)
        with planned_for(run.spark, rows=rows), run.done.phase("plan"):
            stored_bytes = run.silver.size() if progress else 0
        with planned_for(run.spark, rows=rows, stored_bytes=stored_bytes):
            progress = _fold_batch(run, first, last, progress, bronze)
        if progress is not None:
            reached = last
            done.status, done.batches = "ok", done.batches + 1
            break
        first = last + 1  # no keys yet, so no table
    done.consumed_to = {source: reached}
    done.version_after = run.silver.version() if progress else None
    return progress is not None and reached < newest


def _fold_batch(
    run: SilverRun, first: int, last: int, progress: SilverProgress | None, bronze: _BronzeState
) -> SilverProgress | None:
    """Fold bronze's batches `first` to `last` into silver, in one commit.

    Returns:
        The progress as read back; `progress` itself if there was nothing yet to make a table of.

    Raises:
        RefusedError: there are truncates, and the table's settings do not let them be applied.
        DataLossError: the source's log was reset, and the settings say to stop.
        UnsupportedError: the primary key is another than before.
        SchemaChangeError: the columns are others, and the settings do not allow what that brings.
        ExpectationError: values do not go into the types that the settings name, or are not what they are to be.
        TableLockedError: another run was first; nothing is changed.
    """
    consumed = bronze.consumed(last)
    if progress is None:
        next_progress = SilverProgress(run_id=run.run_id, commit=1, **consumed)
    else:
        next_progress = progress.next(run.run_id, **consumed)
        is_at_end = last == bronze.landed.commit
        if run.settings.merge.mode == "append" and (run.is_comparison or (progress.again and is_at_end)):
            next_progress = next_progress.model_copy(update={"again": ahead(run, bronze.landed)})
    with run.done.phase("read"):
        rows = run.bronze.where(F.col("batch").between(first, last) & (F.col("status") == "ok")).persist()
    try:
        batch = Batch(run, first, last, progress, rows)
        with run.done.phase("read"):
            total = batch.counts.total
        return _commit(batch, next_progress) if total else _skip(run, progress, next_progress)
    finally:
        rows.unpersist()


def _commit(batch: Batch, next_progress: SilverProgress) -> SilverProgress | None:
    run = batch.run
    with run.done.phase("plan"):
        # Appending does not change existing rows.
        happened = TableEvents() if run.settings.merge.mode == "append" else batch.table_events
        if batch.schemas is None:
            return _skip(run, batch.progress, next_progress)
        check_steps(run.done.table, batch.schemas.layout_change.steps, run.settings.schema_.evolution)
        batch.check_casts()
    if run.settings.merge.mode == "append":
        return _append(batch, batch.schemas, next_progress)
    with run.done.phase("fold"):
        outcome = fold_events(batch)
    outcome.check_log()
    counts = outcome.counted()
    check_totals(run.done.table, batch.counts.total, **counts)
    is_wider = batch.progress is not None and outcome.schemas.layout_change.is_wider
    commit = next_progress.commit + (1 if is_wider else 0)  # widening is a commit of its own
    # Before widening: Delta refuses plans that read the table's earlier schema.
    result = outcome.changes(commit)
    if is_wider:
        with run.done.phase("widen"):
            next_progress = _widen(batch, outcome.schemas, next_progress)
    failpoints.reach("silver.after_plan", batch=commit)
    with run.done.phase("write"):
        run.check_lease()
        now = {**outcome.schemas.progress_fields(next_progress.defaulted), "side": outcome.remember(commit)}
        next_progress = next_progress.model_copy(update=now)
        failpoints.reach("silver.after_side", batch=commit)
        run.check_lease()
        next_progress = run.silver.merge(result, list(outcome.layout.keys), next_progress).progress
        failpoints.reach("silver.after_merge", batch=commit)
    run.done.count(events=batch.counts.total, **counts, stale=outcome.totals.stale, refolded=outcome.totals.refolded)
    for warning in batch.warnings(happened):
        run.done.warn(warning)
    return next_progress


def _append(batch: Batch, schemas: BatchSchemas, next_progress: SilverProgress) -> SilverProgress:
    """Append the batch's rows; see `silver.append`."""
    run, counts = batch.run, batch.counts
    if schemas.layout_change.is_wider:
        with run.done.phase("widen"):
            next_progress = _widen(batch, schemas, next_progress)
    commit = next_progress.commit
    rows = appended(batch, schemas, commit)
    parts = {
        "truncates": counts.truncates,
        "paired_tombstones": counts.paired_tombstones,
        "rejected": batch.rejected.count() if batch.rejected is not None else 0,
    }
    failpoints.reach("silver.after_plan", batch=commit)
    with run.done.phase("write"):
        run.check_lease()
        now = {**schemas.progress_fields(next_progress.defaulted), "side": remember(batch, commit)}
        next_progress = next_progress.model_copy(update=now)
        failpoints.reach("silver.after_side", batch=commit)
        run.check_lease()
        assert isinstance(run.silver, DeltaLakeTable), "`TableConfig.check` allows Delta only"
        made = run.silver.append(rows, next_progress, adds_columns=True, statistics=statistics(rows))
        failpoints.reach("silver.after_merge", batch=commit)
    expected = counts.total - sum(parts.values())
    number = run.silver.rows_added(made.version)
    if number is None:  # a concurrent maintenance run committed first
        number = expected
    if may_repeat(batch):
        parts["already_there"] = expected - number
    check_totals(run.done.table, counts.total, appended=number, **parts)
    run.done.count(events=counts.total, appended=number, **parts)
    for warning in batch.warnings(TableEvents()):
        run.done.warn(warning)
    next_progress = made.progress
    return next_progress


def _widen(batch: Batch, schemas: BatchSchemas, next_progress: SilverProgress) -> SilverProgress:
    """Rewrite the table, with unchanged rows, in columns wide enough for the batch, as a separate commit.

    Returns:
        The progress for the batch's own commit, which is the next.
    """
    run, before = batch.run, batch.progress
    assert before is not None, "a new table has no rows to rewrite"
    rows = schemas.with_key(batch.silver) if schemas.layout.keys else batch.silver
    columns = {
        name: F.col(quoted(name)).cast(kind) for name, kind in schemas.layout.columns.items() if name in rows.columns
    }
    rows = rows.withColumns(columns)
    run.check_lease()
    wide = before.next(run.run_id)
    run.silver.overwrite(rows, wide)
    failpoints.reach("silver.after_widen", batch=next_progress.commit)
    return next_progress.model_copy(update={"commit": next_progress.commit + 1, "follows": wide.nonce})


def _skip(run: SilverRun, progress: SilverProgress | None, next_progress: SilverProgress) -> SilverProgress | None:
    """Consume batches without events: control records, quarantined records."""
    if progress is None:
        return None
    with run.done.phase("write"):
        run.check_lease()
        return run.silver.advance(next_progress).progress


def _progress(silver: Table[SilverProgress], done: TableReport) -> SilverProgress | None:
    """Silver's progress; nothing consumed, if there are rows and no commit has progress."""
    try:
        return silver.progress()
    except NoProgressError as error:
        done.warn(f"{error.what}; the last commit number is read from the rows")
        last = silver.read().agg(F.max(BATCH)).collect()[0][0]
        return SilverProgress(run_id="", epoch=1, commit=last or 0)


def _next_batch(run: SilverRun, first: int, bronze: _BronzeState, max_bytes: int) -> tuple[int, int | None]:
    """Up to which bronze batch to take, and how many rows that is: at most `max_rows` and `max_bytes` together, but at
    least one batch.
    """
    newest, max_rows = bronze.landed.commit, run.settings.read.max_records_per_batch
    if first == newest:
        return newest, bronze.landed.rows
    new = run.bronze.where(F.col("batch") >= first)
    sizes = {row["batch"]: row["count"] for row in new.groupBy("batch").count().collect()}
    last, taken = first, sizes.get(first, 0)
    while last < newest and taken + sizes.get(last + 1, 0) <= max_rows:
        last += 1
        taken += sizes.get(last, 0)
    if last > first:
        most = bronze.bytes_up_to(first - 1) + max_bytes
        last = first + bisect_right(range(first + 1, last + 1), most, key=bronze.bytes_up_to)
    return last, sum(sizes.get(batch, 0) for batch in range(first, last + 1))
