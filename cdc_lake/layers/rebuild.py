"""Silver made anew from bronze, shown beside what it is, and put in its place by one commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake import failpoints
from cdc_lake.changes.rows import with_kept
from cdc_lake.columns import BATCH, BRONZE, DELETE, KEEP, KEY, quoted
from cdc_lake.config import Config
from cdc_lake.errors import DataLossError, UnsupportedError
from cdc_lake.layers.catalog import keep_in_step
from cdc_lake.layers.run import Leases, SilverTarget, end_report, landed, select, silver_targets, table_path
from cdc_lake.layers.silver_append import check_has_keys
from cdc_lake.layers.silver_batch import Batch, Schemas, SilverRun, looking
from cdc_lake.layers.silver_fold import Folded, folded, is_start
from cdc_lake.layers.travel import as_struct, rows_until, same
from cdc_lake.layers.turns import Workers
from cdc_lake.metrics.report import Report, TableReport
from cdc_lake.points import Offset, SourceTime
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Progress

_PLACE = ["topic", "generation", "partition", "offset"]
_EXAMPLES = 10
"""So many keys of each kind of difference are told."""


@dataclass(frozen=True)
class Asked:
    """What is asked of a rebuild.

    Attributes:
        until: the events that count; all of bronze's, if nothing is said.
        is_dry: tell the difference and write nothing.
        is_seeded: rows of which bronze has no event that tells all of them stay as they are, but for what is newer.
    """

    until: SourceTime | Offset | None = None
    is_dry: bool = False
    is_seeded: bool = False


def run_rebuild(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    asked: Asked | None = None,
    workers: Workers | None = None,
) -> Report:
    """Make silver tables anew from bronze, by today's settings, each in one commit; its versions before stay readable.

    The counts of the report are those of the difference: `same`, `changed`, `only_before`, `only_after` rows.

    Args:
        config: the settings.
        tables: names or globs of tables: a topic's, or `<topic>@<kind>` of the further ones that hold its silver.
        spark: the session; made when there is none.
        asked: what is asked; a rebuild from all of bronze, if nothing is said.
        workers: who does it; one, in the calling thread, when there are none.

    Raises:
        UnknownTableError: a name or glob fits no table.
        InstallationError: Spark cannot be started with what is installed.
    """
    report = Report(layer="rebuild")
    workers = workers or Workers(spark=spark)
    storage = workers.lake(config, report)
    leases = Leases(config, storage, report.run_id, "silver")
    targets = {target.name: target for topic in landed(config, storage) for target in silver_targets(config, topic)}
    names = select(tables, list(targets), f"table in {config.lake.root}/silver", "see `silver` in the settings")
    work = _Rebuild(config, targets, leases, report.run_id, asked or Asked())
    workers.each_table(report, names, work, leases=leases)
    keep_in_step(config, report, workers.spark(config, "rebuild"), layer="silver")
    failpoints.reach("rebuild.before_report")
    end_report(storage, config, report)
    return report


@dataclass(frozen=True)
class _Rebuild:
    """The work; one turn for each table."""

    config: Config
    targets: Mapping[str, SilverTarget]
    leases: Leases
    run_id: str
    asked: Asked

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return None

    def turn(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        target = self.targets[done.table]
        bronze = DeltaLakeTable(spark, table_path(self.config, "bronze", target.topic))
        progress, silver = bronze.progress(), target.open(spark)
        self.leases.recover(silver, done)
        before = silver.progress()
        assert progress is not None, "a bronze table is created with progress"
        todo = "move its folder and its side table's away: silver is then made anew from bronze"
        check_has_keys(self.config.table(target.topic), target.topic, todo)
        if before is None:
            done.warn("there is no silver table yet: the silver job makes it")
            return False
        done.version_before = silver.version()
        looked = looking(
            self.config,
            target,
            spark,
            bronze=bronze.read(as_of=bronze.version()).select(*BRONZE),
            partitions=len(progress.position),
            settings=self.config.table(target.topic),
        )
        run = replace(
            looked,
            run_id=self.run_id,
            done=done,
            is_comparison=self.asked.is_seeded,
            check_lease=lambda: self.leases.check(done.table),
        )
        with done.phase("fold"):
            rebuilt = _Rebuilt.of(run, progress, before, self.asked)
        try:
            with done.phase("compare"):
                rebuilt.compare()
            failpoints.reach("rebuild.after_compare")
            if not self.asked.is_dry:
                with done.phase("write"):
                    rebuilt.put_in_place(bronze)
                done.status, done.batches = "ok", 1
        finally:
            rebuilt.rows.unpersist()
        done.version_after = silver.version()
        return False


@dataclass(frozen=True)
class _Rebuilt:
    """A silver table as it comes of bronze.

    Attributes:
        before: the table's progress.
        last: the last of bronze's batches that is in it as a whole.
        rows: silver's columns and `__key`, persisted.
    """

    run: SilverRun
    before: Progress
    last: int
    schemas: Schemas
    outcome: Folded
    rows: DataFrame

    @classmethod
    def of(cls, run: SilverRun, landed: Progress, before: Progress, asked: Asked) -> "_Rebuilt":
        """Fold bronze.

        Raises:
            DataLossError: bronze has no event that tells all of some of the rows, and they are not to stay.
            UnsupportedError: bronze has no event of a row.
        """
        there = run.bronze.where(F.col("status") == "ok")
        rows = rows_until(there, asked.until, landed, run.done.table)
        last = landed.commit if asked.until is None else _last_whole_batch(there, rows, landed.commit)
        batch = Batch(run, 1, landed.commit, before if asked.is_seeded else None, rows)
        if batch.schemas is None:
            raise UnsupportedError(run.done.table, "bronze has no event of a row up to there", "name a later point")
        batch.check_casts()
        if not asked.is_seeded:
            _check_reach(run, batch.schemas, there)
        outcome = folded(batch)
        changes = outcome.changes(before.commit + 1)
        if asked.is_seeded:
            rows = _upon(run, outcome.schemas, changes)
        else:
            rows = changes.where(~F.col(DELETE)).drop(KEEP, DELETE)
        return cls(run, before, last, outcome.schemas, outcome, rows.persist())

    def compare(self) -> None:
        """Count the rows that are others than before, in any column but `__batch`, into the report."""
        stored = self.schemas.with_key(self.run.silver.read()).drop(BATCH)
        now = self.rows.drop(BATCH)
        columns = StructType([*now.schema, *(field for field in stored.schema if field.name not in now.columns)])
        was, is_now = as_struct(stored, columns, "was"), as_struct(now, columns, "is_now")
        what = (
            F.when(F.col("was").isNull(), "only_after")
            .when(F.col("is_now").isNull(), "only_before")
            .when(~same(columns, "was", "is_now"), "changed")
        )
        both = was.join(is_now, F.col("was")[KEY] == F.col("is_now")[KEY], "full")
        key = F.coalesce(F.col("was")[KEY], F.col("is_now")[KEY])
        others = both.select(what.alias("what"), key.alias("key")).where(F.col("what").isNotNull()).persist()
        try:
            done = self.run.done
            found: dict[str, int] = {what: number for what, number in others.groupBy("what").count().collect()}
            numbers = {name: found.get(name, 0) for name in ("changed", "only_before", "only_after")}
            done.count(same=self.rows.count() - numbers["changed"] - numbers["only_after"], **numbers)
            for name in found:
                some = others.where(F.col("what") == name).orderBy("key").limit(_EXAMPLES).collect()
                done.examples[name] = [row["key"] for row in some]
        finally:
            others.unpersist()

    def put_in_place(self, bronze: DeltaLakeTable) -> None:
        """Write what has to be remembered, and then the table, in one commit.

        Args:
            bronze: the table that was folded.
        """
        run, commit, source, nonce = self.run, self.before.commit + 1, bronze.id(), bronze.nonce_of(self.last)
        run.check_lease()
        now = {**self.outcome.schemas.of_progress(), "side": self.outcome.remember(commit)}
        consumed = {"sources": {source: self.last}, "nonces": {source: nonce} if nonce else {}}
        following = self.before.next(run.run_id, **consumed, **now)
        failpoints.reach("rebuild.after_side")
        run.check_lease()
        run.silver.overwrite(self.rows, following)
        failpoints.reach("rebuild.after_overwrite")


def _last_whole_batch(there: DataFrame, rows: DataFrame, newest: int) -> int:
    """The last of bronze's batches of which, as of those before it, all rows are taken."""
    left_out = there.join(rows.select(*_PLACE), _PLACE, "left_anti")
    ((first,),) = left_out.agg(F.min("batch")).collect()
    return newest if first is None else int(first) - 1


def _check_reach(run: SilverRun, schemas: Schemas, there: DataFrame) -> None:
    """See that bronze tells all of each row that silver has.

    Raises:
        DataLossError: its beginning is gone, and of some rows with it.
    """
    ((first,),) = there.agg(F.min("first_batch")).collect()
    if first == 1:
        return
    starts = there.where(is_start()).select(F.col("key").alias(KEY)).distinct()
    number = schemas.with_key(run.silver.read()).join(starts, KEY, "left_anti").count()
    if number:
        raise DataLossError(
            run.done.table,
            f"bronze no longer reaches back to the first event: of {number} rows in silver it has none that tells all "
            "of them",
            "nothing was written. To let these rows stay as they are and fold the others anew: --seed-from-silver",
        )


def _upon(run: SilverRun, schemas: Schemas, changes: DataFrame) -> DataFrame:
    """Silver's rows, those changed that `changes` names; with `__key`."""
    stored = schemas.with_key(run.silver.read())
    others = {field.name: field.dataType for field in changes.schema if field.name not in (KEEP, DELETE)}
    there = set(stored.columns)
    values = ((F.col(quoted(n)) if n in there else F.lit(None)).cast(kind).alias(n) for n, kind in others.items())
    untouched = stored.join(changes.select(KEY), KEY, "left_anti").select(*values)
    return untouched.unionByName(with_kept(changes.where(~F.col(DELETE)), stored).drop(KEEP, DELETE))
