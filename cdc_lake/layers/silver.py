"""Silver: the source table as it is now, folded from bronze's events."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake import failpoints
from cdc_lake.columns import BATCH
from cdc_lake.config import Config
from cdc_lake.errors import NoProgressError
from cdc_lake.layers.run import Leases, each_table, end_report, select_landed, table_path
from cdc_lake.layers.silver_batch import SilverRun, fold_batch
from cdc_lake.metrics.report import Report, TableReport
from cdc_lake.session import build_session
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
        progress = fold_batch(run, first, last, progress, source)
        if progress is None:
            continue
        reached = last
        done.status, done.batches = "ok", done.batches + 1
    done.consumed_to = {source: reached}
    done.version_after = run.silver().version() if progress else None


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
