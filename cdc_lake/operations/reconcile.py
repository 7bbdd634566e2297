"""Compare silver with the source database: checksums of key ranges, then the rows of ranges that differ."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic

from pyspark.sql import DataFrame, SparkSession

from cdc_lake.config import Config, DatabaseConfig
from cdc_lake.errors import CdcLakeError, SourceDifferenceError, UnknownTableError
from cdc_lake.lake.lake import SilverTarget, missing_rows
from cdc_lake.reconcile.canonical import Shared, shared_columns
from cdc_lake.reconcile.comparison import Differences, RangeBuckets, differing_ranges
from cdc_lake.reconcile.postgres_catalog import QUARANTINED_KEY, SourceTable, read_tables
from cdc_lake.reconcile.sides import SilverRows, SourceRows, lsn_of_silver, lsn_of_source, open_snapshot
from cdc_lake.runs.context import Run, Work, select_landed
from cdc_lake.runs.report import DifferentRow, ReconcileResult, Report, TableReport, check_totals
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.table import column_mapping, layout_of
from cdc_lake.tables.contract import progress_of

_MAX_RECHECKED_KEYS = 1_000
"""At most this many keys are rechecked, because their rows are in memory."""
_RECHECK_SECONDS = 2.0


def run_reconcile(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    wait_seconds: float = 0.0,
    keys: int = 20,
    scheduler: TableScheduler | None = None,
) -> Report:
    """Compare silver with the source database, each table in its own snapshot. Writes only the report.

    Args:
        tables: topic names or globs.
        wait_seconds: how long to recheck keys that differ, so that changes in flight can arrive.
        keys: how many differing keys of each table are in the report.

    Raises:
        UnknownTableError: a name or glob matches no bronze table.
        ConfigError: files cannot be written, read or deleted in the lake.
    """
    run = Run.begin(config, Report(layer="reconcile"))
    scheduler = scheduler or TableScheduler(spark=spark)
    with scheduler.open(run, layer="silver") as opened:
        targets = run.lake.silver_tables(select_landed(run.lake, opened.files, tables))
        work = _Reconcile(run, targets, scheduler, wait_seconds, keys)
        scheduler.each_table(run.report, list(targets), work, leases=None)
    return run.report


@dataclass(frozen=True)
class _Snapshot:
    """A table in the source and in silver, each at one point in time.

    Attributes:
        columns: the columns that are not compared -> the reason.
        rows, version: silver's rows and their version.
        source_lsn: `ReconcileResult.source_lsn` as a number.
    """

    shared: Shared
    columns: Mapping[str, str]
    source: SourceRows
    silver: SilverRows
    rows: DataFrame
    version: int
    source_lsn: int

    @classmethod
    @contextmanager
    def at(cls, run: Run, target: SilverTarget, spark: SparkSession) -> Iterator["_Snapshot"]:
        """Open a snapshot of the source table, and read a fixed version of silver."""
        config, settings = run.config, run.config.table(target.topic)
        settings.check_has_keys(target.topic, "reconcile other tables: rows are compared by key")
        stored = target.open(spark)
        progress = stored.progress()
        if progress is None:
            raise UnknownTableError(target.name, "the silver table does not exist yet", "run the silver job first")
        prefix = _prefix(config.databases, target.topic)
        with open_snapshot(config.database_url(prefix), f"databases.{prefix}") as connection:
            source_lsn = lsn_of_source(connection)
            version = stored.version()
            rows = stored.read(as_of=version)
            table = _table_of(read_tables(connection), target.topic, prefix)
            layout = replace(layout_of(rows.schema, progress), column_mapping=column_mapping(settings, stored))
            shared, columns = shared_columns(table, rows.schema, progress.keys, layout.of_source)
            sides = SourceRows(connection, shared), SilverRows(rows, shared)
            yield cls(shared, columns, *sides, rows, version, source_lsn)


def _prefix(databases: Mapping[str, DatabaseConfig], topic: str) -> str:
    """The topic prefix in the settings, which may have dots."""
    known = (prefix for prefix in databases if topic.startswith(f"{prefix}."))
    return max(known, key=len, default=topic.partition(".")[0])


def _table_of(tables: Sequence[SourceTable], topic: str, prefix: str) -> SourceTable:
    source_table = next((table for table in tables if table.topic(prefix) == topic), None)
    if source_table is None:
        what = f"the database of `databases.{prefix}` has no table with this topic"
        raise UnknownTableError(topic, what, "check which database the topic comes from")
    return source_table


@dataclass(frozen=True)
class _Reconcile(Work):
    run: Run
    targets: Mapping[str, SilverTarget]
    scheduler: TableScheduler
    wait_seconds: float
    keys: int

    def process_next(self, spark: SparkSession, report: TableReport) -> bool:
        target = self.targets[report.table]
        try:
            bronze = self.run.lake.bronze(spark, target.topic)
            if hole := missing_rows(bronze, progress_of(bronze), bronze.version()):
                report.warn(hole)
        except CdcLakeError as error:
            report.warn(f"bronze's rows were not counted: {error}")
        with _Snapshot.at(self.run, target, spark) as look:
            diff = self._compare(look, report)
        silver_lsn = lsn_of_silver(look.rows)
        if diff.counts and self.wait_seconds:
            with report.phase("recheck"):
                diff = self._recheck(target, spark, diff, report)
        report.version_before = report.version_after = look.version
        report.count(**diff.counts)
        report.reconciled = ReconcileResult(
            source_lsn=_lsn_text(look.source_lsn),
            silver_lsn=None if silver_lsn is None else _lsn_text(silver_lsn),
            columns=dict(look.columns),
            losses=dict(diff.losses),
            first=[
                DifferentRow(kind=row.kind, key=look.shared.key_values(row.key), columns=row.columns)
                for row in diff.first[: self.keys]
            ],
        )
        report.status = "ok"
        if diff.lost_keys:
            report.warn(
                f"{diff.lost_keys} of the missing keys have dates before 15 October 1582, which Debezium may send as "
                "other dates, that is, as keys of other rows (docs/reference/types.md)"
            )
        if diff.counts:
            report.warn(
                f"the source was read at {report.reconciled.source_lsn}, and silver had changes up to "
                f"{report.reconciled.silver_lsn or 'no source position'}; the changes between may have been in flight: "
                "pass --wait to recheck such keys"
            )
            if silver_lsn is None and not self.run.config.table(target.topic).is_in_log_order:
                report.warn(
                    "silver's events have no position, so their source time orders them. If the source's clock was set "
                    "back, set `merge.order: log` and run `cdc-lake rebuild`"
                )
            report.fail(_difference(report.table, diff))
        return False

    def _compare(self, look: _Snapshot, report: TableReport) -> Differences:
        with report.phase("ranges"):
            ranges = differing_ranges(look.source.split, look.silver.sum, look.source.count())
        diff = Differences(look.shared, max(self.keys, _MAX_RECHECKED_KEYS if self.wait_seconds else 0))
        if ranges.differing:
            with report.phase("rows"):
                buckets = RangeBuckets.of(ranges.differing)
                diff.compare(look.source.rows(buckets), look.silver.rows(buckets, ranges.differing_rows))
        report.count(
            source=ranges.source_rows,
            silver=ranges.silver_rows,
            ranges=ranges.compared,
            ranges_differing=len(ranges.differing),
        )
        surplus = diff.counts["extra"] + diff.counts["repeated"]
        missing = diff.counts["missing"] + diff.losses[QUARANTINED_KEY]
        check_totals(report.table, ranges.source_rows + surplus, silver=ranges.silver_rows, missing=missing)
        return diff

    def _recheck(
        self, target: SilverTarget, spark: SparkSession, diff: Differences, report: TableReport
    ) -> Differences:
        """Recheck the keys that differ until they are equal or the time is up."""
        if diff.counts.total() > len(diff.first):
            report.warn(f"more keys differ than can be rechecked ({_MAX_RECHECKED_KEYS})")
            return diff
        until = monotonic() + self.wait_seconds
        while diff.counts and (left := until - monotonic()) > 0:
            if self.scheduler.wait(min(left, _RECHECK_SECONDS)):
                break
            with _Snapshot.at(self.run, target, spark) as look:
                again = Differences(look.shared, diff.kept)
                keys = list(dict.fromkeys(row.key for row in diff.first))
                again.compare(look.source.rows_of(keys), look.silver.rows_of(keys))
            again.losses = diff.losses  # counted by the first comparison
            diff = again
        return diff


def _lsn_text(place: int) -> str:
    return f"{place >> 32:X}/{place & 0xFFFFFFFF:X}"


def _difference(table: str, diff: Differences) -> SourceDifferenceError:
    counts = ", ".join(f"{number} {kind}" for kind, number in diff.counts.items())
    cure = "run `cdc-lake story` for these keys; an incremental snapshot of the table sends missed rows again"
    return SourceDifferenceError(table, f"silver differs from the source: {counts}", cure)
