"""Commits one batch to silver: merges or appends its rows, and widens columns first if the batch needs it."""

from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake import failpoints
from cdc_lake.columns import quoted
from cdc_lake.fold.table_events import TableEvents
from cdc_lake.runs.report import check_totals
from cdc_lake.silver.append import ahead, appended, may_repeat, remember
from cdc_lake.silver.batch import Batch, BronzeInput
from cdc_lake.silver.evolution import check_steps
from cdc_lake.silver.merge import fold_events
from cdc_lake.silver.reader import BatchSchemas
from cdc_lake.silver.table_run import SilverRun
from cdc_lake.spark.arrow_stage import in_driver
from cdc_lake.spark.expressions import of_batch
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.delta_write import first_with_statistics
from cdc_lake.tables.progress import SilverProgress


def commit_batch(
    run: SilverRun, first: int, last: int, progress: SilverProgress | None, bronze: BronzeInput
) -> SilverProgress | None:
    """Merge bronze's batches `first` to `last` into silver, in one commit.

    Returns:
        The progress as read back; `progress` if the table's columns are not known yet.

    Raises:
        RefusedError: the batch has truncates that `deletes` does not allow.
        DataLossError: the source's log was reset, and `read.on_log_reset` is stop.
        UnsupportedError: the primary key's columns changed.
        SchemaChangeError: `schema.evolution` does not allow a change of the columns.
        ExpectationError: values do not fit the types in `schema.cast`, or rows do not meet an expectation.
        TableLockedError: another run has committed first. This commit was not made.
    """
    consumed = bronze.consumed(last)
    if progress is None:
        next_progress = SilverProgress(run_id=run.run_id, commit=1, **consumed)
    else:
        next_progress = progress.next(run.run_id, **consumed)
        is_at_end = last == bronze.landed.commit
        if run.settings.merge.mode == "append" and (run.is_comparison or (progress.reread_to and is_at_end)):
            next_progress = next_progress.model_copy(update={"reread_to": ahead(run, bronze.landed)})
    rows = _landed(run, first, last, progress, bronze).where(F.col("status") == "ok")
    batch = Batch(run, first, last, progress, rows)
    with run.done.phase("read"):
        if batch.counts.total:
            batch.hold_if_few()
    return _commit(batch, next_progress) if batch.counts.total else _skip(run, progress, next_progress)


def _landed(run: SilverRun, first: int, last: int, progress: SilverProgress | None, bronze: BronzeInput) -> DataFrame:
    """The rows of bronze's batches; those of the newest batch from its own files, if bronze has not changed since."""
    is_newest = first == last == bronze.landed.commit
    added = bronze.table.added_by(last, run.bronze) if is_newest else None
    if added is None:
        return run.bronze.where(F.col("batch").between(first, last))
    own = replace(run, bronze=added).with_current_key(progress.key_from if progress else None)
    return own.bronze.where(F.col("batch") == of_batch(last, F.col("partition")))


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
    # Before widening: Delta rejects plans that read the table's earlier schema.
    result = outcome.changes(commit)
    if batch.is_in_driver:
        result = in_driver(result)  # a MERGE plans its source several times
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
        keys = list(outcome.layout.keys)
        made = run.silver.merge(result, keys, next_progress, are_inserts=outcome.are_inserts)
        failpoints.reach("silver.after_merge", batch=commit)
    run.done.add_changes(batch.counts.changes or ())
    run.done.count(events=batch.counts.total, **counts, stale=outcome.totals.stale, refolded=outcome.totals.refolded)
    for warning in (*batch.warnings(happened), *outcome.warnings(), *made.notes):
        run.done.warn(warning)
    return made.progress


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
        made = run.silver.append(rows, next_progress, adds_columns=True, statistics=first_with_statistics(rows.schema))
        failpoints.reach("silver.after_merge", batch=commit)
    expected = counts.total - sum(parts.values())
    number = run.silver.rows_added(made.version)
    if number is None:  # a concurrent maintenance run committed first
        number = expected
    if may_repeat(batch):
        parts["already_there"] = expected - number
    check_totals(run.done.table, counts.total, appended=number, **parts)
    run.done.add_changes(counts.changes or ())
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
