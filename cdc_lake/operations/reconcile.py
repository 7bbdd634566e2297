"""Silver beside the source database: checksums of ranges of the key, and the rows where these differ."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic

from pyspark.sql import DataFrame, SparkSession

from cdc_lake.config import Config, database_url
from cdc_lake.errors import SourceDifferenceError, UnknownTableError
from cdc_lake.lake.lake import SilverTarget
from cdc_lake.reconcile import postgres, silver
from cdc_lake.reconcile.catalogue import QUARANTINED_KEY, Table, read_tables
from cdc_lake.reconcile.columns import Shared, shared_columns
from cdc_lake.reconcile.ranges import RangeBuckets, differing_ranges
from cdc_lake.reconcile.rows import Differences
from cdc_lake.runs.context import end_report, select_landed, silver_targets
from cdc_lake.runs.report import DifferentRow, Reconciled, Report, TableReport, check_sum
from cdc_lake.runs.scheduler import Workers
from cdc_lake.silver.append import check_has_keys
from cdc_lake.silver.batch import layout_of, placing
from cdc_lake.storage.files import Storage

_MOST_AGAIN = 1_000
"""So many keys are looked at again: the rows of all of them are in memory."""
_SECONDS_BETWEEN_LOOKS = 2.0


def run_reconcile(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    wait_seconds: float = 0.0,
    keys: int = 20,
    workers: Workers | None = None,
) -> Report:
    """Compare silver with the source database, each table in a snapshot of its own. Nothing but the report is written.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session; made when there is none.
        wait_seconds: how long keys that differ are looked at again, until silver has the changes that are under way.
        keys: how many keys that differ are named, of each table.
        workers: who does it; one, in the calling thread, when there are none.

    Raises:
        UnknownTableError: a name or glob fits no bronze table.
        InstallationError: Spark cannot be started with what is installed.
    """
    report = Report(layer="reconcile")
    workers = workers or Workers(spark=spark)
    storage = Storage(workers.spark(config, "reconcile"))
    topics = select_landed(config, storage, tables)
    targets = {target.name: target for topic in topics for target in silver_targets(config, topic)}
    workers.each_table(report, list(targets), _Reconcile(config, targets, workers, wait_seconds, keys), leases=None)
    end_report(storage, config, report)
    return report


@dataclass(frozen=True)
class _Look:
    """Both sides of a table, each as it is at one moment.

    Attributes:
        columns: by name, why a column is not compared.
        rows, version: silver's.
        source_lsn: see `Reconciled`, as a number.
    """

    shared: Shared
    columns: Mapping[str, str]
    source: postgres.SourceRows
    silver: silver.SilverRows
    rows: DataFrame
    version: int
    source_lsn: int

    @classmethod
    @contextmanager
    def at(cls, config: Config, target: SilverTarget, spark: SparkSession) -> Iterator["_Look"]:
        """Look at a table; the source stays as it is inside."""
        check_has_keys(config.table(target.topic), target.topic, "there is nothing to compare it by")
        held = target.open(spark)
        progress = held.progress()
        if progress is None:
            raise UnknownTableError(target.name, "bronze has it, and silver has not yet", "run the silver job first")
        prefix = _prefix(config, target.topic)
        url = database_url(config, prefix)
        with postgres.open_snapshot(url, f"databases.{prefix}") as connection:
            source_lsn = postgres.lsn(connection)
            version = held.version()
            rows = held.read(as_of=version)
            table = _table_of(read_tables(connection), target.topic, prefix)
            layout = replace(layout_of(rows.schema, progress), placing=placing(config.table(target.topic), held))
            shared, columns = shared_columns(table, rows.schema, progress.keys, layout.of_source)
            sides = postgres.SourceRows(connection, shared), silver.SilverRows(rows, shared)
            yield cls(shared, columns, *sides, rows, version, source_lsn)


def _prefix(config: Config, topic: str) -> str:
    """What the topic's name begins with, as the settings have it; they may have dots in it."""
    known = (prefix for prefix in config.databases if topic.startswith(f"{prefix}."))
    return max(known, key=len, default=topic.partition(".")[0])


def _table_of(tables: Sequence[Table], topic: str, prefix: str) -> Table:
    found = next((table for table in tables if table.topic(prefix) == topic), None)
    if found is None:
        what = f"the database of `databases.{prefix}` has no table that is sent there"
        raise UnknownTableError(topic, what, "see which database it comes from")
    return found


@dataclass(frozen=True)
class _Reconcile:
    """The work; what there is to do only a turn can say."""

    config: Config
    targets: Mapping[str, SilverTarget]
    workers: Workers
    wait_seconds: float
    keys: int

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return None

    def turn(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        target = self.targets[done.table]
        with _Look.at(self.config, target, spark) as look:
            found = self._compared(look, done)
        silver_lsn = silver.lsn(look.rows)
        if found.counts and self.wait_seconds:
            with done.phase("again"):
                found = self._again(target, spark, found, done)
        done.version_before = done.version_after = look.version
        done.count(**found.counts)
        done.reconciled = Reconciled(
            source_lsn=_lsn_text(look.source_lsn),
            silver_lsn=None if silver_lsn is None else _lsn_text(silver_lsn),
            columns=dict(look.columns),
            losses=dict(found.losses),
            first=[
                DifferentRow(kind=one.kind, key=look.shared.key_values(one.key), columns=one.columns)
                for one in found.first[: self.keys]
            ],
        )
        done.status = "ok"
        if found.lost_keys:
            done.warn(
                f"{found.lost_keys} of the missing keys have dates before 15 October 1582: Debezium may send these as "
                "other dates, which are other rows' keys (docs/reference/types.md)"
            )
        if found.counts:
            done.warn(
                f"the source was read at {done.reconciled.source_lsn}, silver had changes up to "
                f"{done.reconciled.silver_lsn or 'no place'}: what is between may have been under way; "
                "--wait looks at such keys again"
            )
            done.fail(_difference(done.table, found))
        return False

    def _compared(self, look: _Look, done: TableReport) -> Differences:
        with done.phase("ranges"):
            ranges = differing_ranges(look.source.split, look.silver.sum, look.source.count())
        found = Differences(look.shared, max(self.keys, _MOST_AGAIN if self.wait_seconds else 0))
        if ranges.differing:
            with done.phase("rows"):
                buckets = RangeBuckets.of(ranges.differing)
                found.compare(look.source.rows(buckets), look.silver.rows(buckets, ranges.differing_rows))
        done.count(
            source=ranges.source_rows,
            silver=ranges.silver_rows,
            ranges=ranges.compared,
            ranges_differing=len(ranges.differing),
        )
        surplus = found.counts["extra"] + found.counts["repeated"]
        missing = found.counts["missing"] + found.losses[QUARANTINED_KEY]
        check_sum(done.table, ranges.source_rows + surplus, silver=ranges.silver_rows, missing=missing)
        return found

    def _again(self, target: SilverTarget, spark: SparkSession, found: Differences, done: TableReport) -> Differences:
        """Look at the keys that differ until they agree, or the time is over."""
        if found.counts.total() > len(found.first):
            done.warn(f"more keys differ than are looked at again ({_MOST_AGAIN})")
            return found
        until = monotonic() + self.wait_seconds
        while found.counts and (left := until - monotonic()) > 0:
            if self.workers.wait(min(left, _SECONDS_BETWEEN_LOOKS)):
                break
            with _Look.at(self.config, target, spark) as look:
                again = Differences(look.shared, found.kept)
                keys = list(dict.fromkeys(one.key for one in found.first))
                again.compare(look.source.rows_of(keys), look.silver.rows_of(keys))
            again.losses = found.losses  # which were counted
            found = again
        return found


def _lsn_text(place: int) -> str:
    """A place in Postgres' log as Postgres writes it."""
    return f"{place >> 32:X}/{place & 0xFFFFFFFF:X}"


def _difference(table: str, found: Differences) -> SourceDifferenceError:
    said = ", ".join(f"{number} {kind}" for kind, number in found.counts.items())
    todo = "see `cdc-lake story` of these keys; an incremental snapshot of the table brings what was missed"
    return SourceDifferenceError(table, f"silver is not what the source holds: {said}", todo)
