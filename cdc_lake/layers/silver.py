"""Silver: the source table as it is now, folded from bronze's events."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake import failpoints
from cdc_lake.columns import BATCH, DELETE, KEEP
from cdc_lake.config import Config
from cdc_lake.errors import NoProgressError
from cdc_lake.events.rows import Layout
from cdc_lake.layers.run import Leases, each_table, end_report, select_landed, table_path
from cdc_lake.layers.silver_batch import Batch, SilverRun
from cdc_lake.layers.silver_fold import folded
from cdc_lake.metrics.report import Report, TableReport, check_sum
from cdc_lake.session import build_session, planned_for
from cdc_lake.sources.schemas import SchemaFiles
from cdc_lake.storage import Storage
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Progress
from cdc_lake.tables.side import SideTable


def run_silver(config: Config, tables: Sequence[str], spark: SparkSession | None = None) -> Report:
    """Bring silver up to date with bronze. Neither Kafka nor the registry is needed.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session; made when there is none.

    Raises:
        UnknownTableError: a name or glob fits no bronze table.
        InstallationError: Spark cannot be started with what is installed.
    """
    report = Report(layer="silver")
    spark = spark or build_session("cdc_lake silver")
    storage = Storage(spark)
    schemas = SchemaFiles(storage, config.lake.root)
    leases = Leases(config, storage, report)

    def work(done: TableReport) -> None:
        bronze = DeltaLakeTable(spark, table_path(config, "bronze", done.table))
        landed = bronze.progress()
        assert landed is not None, "a bronze table is created with progress"
        path = table_path(config, "silver", done.table)
        progress = _progress(DeltaLakeTable(spark, path), done)
        source = bronze.id()
        run = SilverRun(
            spark=spark,
            schemas=schemas,
            bronze=bronze.read(as_of=bronze.version()),
            partitions=len(landed.offsets[list(landed.offsets)[-1]]),
            path=path,
            side=SideTable(spark, table_path(config, "side", done.table)),
            settings=config.table(done.table),
            run_id=report.run_id,
            done=done,
            is_comparison=progress is not None and source not in progress.sources,
            check_lease=lambda: leases.check(done.table),
        )
        _follow(run, progress, source, landed.commit)

    each_table(report, select_landed(config, storage, tables), work, leases=leases)
    failpoints.reach("silver.before_report")
    end_report(storage, config, report)
    return report


def _follow(run: SilverRun, progress: Progress | None, source: str, newest: int) -> None:
    """Fold in what bronze has beyond silver's progress, in whole bronze batches of at most `max_rows` together.

    Args:
        run: the table's.
        progress: silver's.
        source: the bronze table's id.
        newest: its last batch.
    """
    done = run.done
    reached = progress.sources.get(source, 0) if progress else 0
    done.consumed_from = {source: reached}
    done.version_before = run.silver().version() if progress else None
    if run.is_comparison:
        done.warn(
            "silver does not know this bronze table, or how far it was folded: all of it is compared with silver, key "
            "by key"
        )
        ranges = [(1, newest)]  # in one go: a key folded again from a part of bronze would step back
    else:
        ranges = _batch_ranges(run.bronze, reached, newest, run.settings.max_rows)
    for first, last in ranges:
        progress = _fold_batch(run, first, last, progress, source)
        if progress is None:
            continue
        reached = last
        done.status, done.batches = "ok", done.batches + 1
    done.consumed_to = {source: reached}
    done.version_after = run.silver().version() if progress else None


def _fold_batch(run: SilverRun, first: int, last: int, progress: Progress | None, source: str) -> Progress | None:
    """Fold bronze's batches `first` to `last` into silver, in one commit.

    Returns:
        The progress as read back; `progress` itself if there was nothing yet to make a table of.

    Raises:
        RefusedError: there are truncates, and the table's settings do not let them be applied.
        DataLossError: the source's log was reset, and the settings say to stop.
        UnsupportedError: a column or the key has another type than before.
        TableLockedError: another run was first; nothing is changed.
    """
    commit = progress.commit + 1 if progress else 1
    following = Progress(
        layer="silver",
        run_id=run.run_id,
        epoch=progress.epoch if progress else 0,
        commit=commit,
        sources={source: last},
        side=progress.side if progress else None,
    )
    rows = run.bronze.where(F.col("batch").between(first, last) & (F.col("status") == "ok")).persist()
    try:
        batch = Batch(run, first, last, progress, rows)
        if not batch.counts.total:
            return _move_on(run, progress, following)
        stored_bytes = run.silver().size() if progress else 0
        with planned_for(run.spark, rows=batch.counts.total, stored_bytes=stored_bytes):
            return _commit(batch, following)
    finally:
        rows.unpersist()


def _commit(batch: Batch, following: Progress) -> Progress | None:
    run, commit = batch.run, following.commit
    with run.done.phase("plan"):
        happened = batch.happened_to_all
        if batch.schemas is None:
            return _move_on(run, batch.progress, following)
    with run.done.phase("fold"):
        done = folded(batch)
    result = done.changes(commit)
    done.check_log()
    counts = done.counted()
    check_sum(run.done.table, batch.counts.total, **counts)
    failpoints.reach("silver.after_plan", batch=commit)
    with run.done.phase("write"):
        run.check_lease()
        following = following.model_copy(update={"side": done.remember(commit)})
        failpoints.reach("silver.after_side", batch=commit)
        run.check_lease()
        following = _write(run, result, done.layout, following, is_new=batch.progress is None)
        failpoints.reach("silver.after_merge", batch=commit)
    run.done.count(events=batch.counts.total, **counts, stale=done.decided.stale, refolded=done.refolded)
    for warning in batch.warnings(happened):
        run.done.warn(warning)
    return following


def _write(run: SilverRun, rows: DataFrame, layout: Layout, following: Progress, *, is_new: bool) -> Progress:
    keys = list(layout.keys)
    silver = run.silver(keys)
    if is_new:
        return silver.append(rows.where(~F.col(DELETE)).drop(KEEP, DELETE), following).progress
    return silver.merge(rows, keys, following).progress


def _move_on(run: SilverRun, progress: Progress | None, following: Progress) -> Progress | None:
    """Consume batches that hold nothing to fold: control records, quarantine."""
    if progress is None:
        return None
    with run.done.phase("write"):
        run.check_lease()
        silver = run.silver()
        return silver.append(silver.read().limit(0), following).progress


def _progress(silver: DeltaLakeTable, done: TableReport) -> Progress | None:
    """What silver has consumed; nothing known, if there are rows and no commit says so."""
    try:
        return silver.progress()
    except NoProgressError as error:
        done.warn(f"{error.what}; its last commit number is taken from the rows")
        last = silver.read().agg(F.max(BATCH)).collect()[0][0]
        return Progress(layer="silver", run_id="", epoch=1, commit=last or 0)


def _batch_ranges(bronze: DataFrame, reached: int, newest: int, max_rows: int) -> list[tuple[int, int]]:
    """Ranges of bronze batches, each of at most `max_rows` rows or of a single batch."""
    if reached >= newest:
        return []
    if newest == reached + 1:
        return [(newest, newest)]
    new = bronze.where(F.col("batch") > reached)
    sizes = {row["batch"]: row["count"] for row in new.groupBy("batch").count().collect()}
    ranges: list[tuple[int, int]] = []
    first, taken = reached + 1, 0
    for batch in range(reached + 1, newest + 1):
        size = sizes.get(batch, 0)
        if taken and taken + size > max_rows:
            ranges.append((first, batch - 1))
            first, taken = batch, 0
        taken += size
    return [*ranges, (first, newest)]
