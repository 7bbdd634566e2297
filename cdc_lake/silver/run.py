"""Silver: a copy of each source table, merged from bronze's events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.catalogs.catalog import colliding
from cdc_lake.columns import BATCH
from cdc_lake.config import Config
from cdc_lake.errors import NoProgressError
from cdc_lake.failpoints import reach
from cdc_lake.lake.lake import SilverTarget, check_holds_no_tables
from cdc_lake.runs.catalog_sync import check_catalog_name
from cdc_lake.runs.context import Layer, NewData, OpenRun, Run, Work, check_has_lease, needs_hadoop, select_landed
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.batch import Batch, next_batch
from cdc_lake.silver.commit import commit_batch
from cdc_lake.silver.table import SilverTable
from cdc_lake.spark.session import batch_bytes, planned_for
from cdc_lake.tables.contract import Table
from cdc_lake.tables.progress import SilverProgress


def run_silver(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    accept_loss: bool = False,
    scheduler: TableScheduler | None = None,
) -> Report:
    """Bring silver up to date with bronze. Neither Kafka nor the registry is needed.

    Args:
        tables: topic names or globs.
        accept_loss: merge from a restored bronze table even if it lacks records that silver has merged.

    Raises:
        UnknownTableError: a name or glob matches no bronze table.
        ConfigError: a setting requires another one.
    """
    scheduler = scheduler or TableScheduler(spark=spark)
    (report,) = scheduler.run(SilverLayer.of(config, tables, scheduler, accept_loss=accept_loss))
    return report


@dataclass
class SilverLayer(Layer):
    """A run of silver; what is new is counted in bronze's batches."""

    targets: Mapping[str, SilverTarget]
    parallel: int
    accept_loss: bool

    @classmethod
    def of(
        cls,
        config: Config,
        tables: Sequence[str],
        scheduler: TableScheduler,
        *,
        accept_loss: bool = False,
        after: Sequence[str] = (),
    ) -> Self:
        """Begin a run; see `run_silver`.

        Args:
            after: the topics that bronze lands in the same process, which may be new.
        """
        run = Run.begin(config, Report(layer="silver"))
        files = scheduler.files(run.lake)
        if not after and needs_hadoop(run.lake, files):
            files = scheduler.open_files(run)
        topics = [*after, *select_landed(run.lake, files, tables, missing_ok=bool(after))]
        for topic in topics:
            config.table(topic).check(topic)
        targets = run.lake.silver_tables(list(dict.fromkeys(topics)))
        for name, target in targets.items():
            check_has_lease(config.lake.lease, name, target.storage)
        return cls(run, files, list(targets), targets, min(scheduler.parallel, len(targets)), accept_loss)

    def topic(self, table: str) -> str:
        return self.targets[table].topic

    def work(self, run: OpenRun) -> "_SilverWork":
        kinds = {name: target.storage.kind for name, target in self.targets.items()}
        collisions = colliding(run.config.catalog, "silver", kinds)
        return _SilverWork(run, self, collisions)

    def before_report(self) -> None:
        reach("silver.before_report")

    def new_data(self, report: TableReport) -> NewData | None:
        lake, target = self.run.lake, self.targets[report.table]
        bronze = lake.newest_bronze(self.files, target.topic)
        if bronze is None:
            return None if lake.holds(self.files, "bronze", target.topic) else NewData(0)
        silver, rows = target.newest(self.files), bronze.progress.rows
        if silver is None:
            is_first = bronze.progress.commit == 1 and not lake.holds(self.files, "silver", target.name)
            return NewData(max(rows, 1)) if is_first else None
        if silver.progress.is_of(bronze.table_id, bronze.progress) is False:
            return None
        reached = silver.progress.sources[bronze.table_id]
        report.consumed_from = report.consumed_to = {bronze.table_id: reached}
        lag = max(bronze.progress.commit - reached, 0)
        if lag == 1 and silver.bytes is not None:
            return NewData(max(rows, 1), silver.bytes)
        return None if lag else NewData(0)


@dataclass(frozen=True)
class _SilverWork(Work):
    run: OpenRun
    layer: SilverLayer
    collisions: Mapping[str, Mapping[str, str]]

    def process_next(self, spark: SparkSession, report: TableReport) -> bool:
        target, lake, files = self.layer.targets[report.table], self.run.lake, self.run.files
        if not report.batches:
            for layer in ("silver", "side"):
                lake.check_is_in_no_table(files, layer, target.name)
        table = SilverTable.open(lake, target, spark, self.run.config.table(target.topic))
        report.warn(*table.silver.recover())
        progress = _progress(table.silver, report)
        if progress is None:
            for path in (target.path, target.side):
                check_holds_no_tables(files, path, report.table)
            check_catalog_name(lake, files, "silver", report.table, self.collisions.get(report.table, {}))
        table.check_columns()
        reached = table.bronze.reached_by(progress, table.landed)
        if reached is None and progress is not None and not self.layer.accept_loss:
            table.check_not_behind(progress)
        return self._merge_next(
            table.with_current_key(progress.key_from if progress else None), report, progress, reached
        )

    def _merge_next(
        self, table: SilverTable, report: TableReport, progress: SilverProgress | None, reached: int | None
    ) -> bool:
        """Merge the next batch: see `next_batch`.

        Args:
            reached: the last of bronze's batches that silver has; none if it has none, or was folded from another
                bronze table, or from an earlier state of it, and is compared with all of bronze.

        Returns:
            Whether there is more.
        """
        spark, source, newest = table.spark, table.bronze.id(), table.landed.commit
        is_comparison, reached = progress is not None and reached is None, reached or 0
        if not report.batches:
            report.consumed_from = {source: reached}
            report.version_before = table.silver.version() if progress else None
        if is_comparison and progress is not None:
            why = (
                "bronze's history differs from the one that silver was folded from, as after a RESTORE or from a backup"
                if source in progress.sources
                else "silver has no progress for this bronze table"
            )
            report.warn(f"{why}; all of bronze is compared with silver")
        # Parquet's reader takes three times the bytes of large values, and their decoded copies as much again.
        max_bytes = batch_bytes(spark, table.settings.read.max_batch_bytes, self.layer.parallel, share=12)
        first = reached + 1
        while first <= newest:
            # Compare all batches at once: a key refolded from a part of bronze would go back.
            last, number = (newest, None) if is_comparison else next_batch(table, first, max_bytes)
            with planned_for(spark, rows=number), report.phase("plan"):
                stored_bytes = table.silver.size() if progress else 0
            with planned_for(spark, rows=number, stored_bytes=stored_bytes):
                with report.phase("read"):
                    rows = table.rows_between(first, last, progress.key_from if progress else None)
                    rows = rows.where(F.col("status") == "ok")
                    batch = Batch.of(table, (first, last), progress, rows, is_comparison=is_comparison)
                progress = commit_batch(self.run, report, batch)
            if progress is not None:
                reached = last
                report.status, report.batches = "ok", report.batches + 1
                break
            first = last + 1  # no keys yet, so no table
        report.consumed_to = {source: reached}
        report.version_after = table.silver.version() if progress else None
        return progress is not None and reached < newest


def _progress(silver: Table[SilverProgress], report: TableReport) -> SilverProgress | None:
    """Silver's progress; nothing consumed, if there are rows and no commit has progress."""
    try:
        return silver.progress()
    except NoProgressError as error:
        report.warn(f"{error.what}; the last commit number is read from the rows")
        last = silver.read().agg(F.max(BATCH)).collect()[0][0]
        return SilverProgress(run_id="", epoch=1, commit=last or 0)
