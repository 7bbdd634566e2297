"""Rebuild silver from bronze: compare it with the table and replace the table in one commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake import failpoints
from cdc_lake.columns import BATCH, DELETED, KEY, UNAVAILABLE, quoted
from cdc_lake.config import Config
from cdc_lake.decode.key import key_tree_from_row
from cdc_lake.decode.types import same_key
from cdc_lake.errors import ConfigError, DataLossError, TableLockedError, UnsupportedError
from cdc_lake.fold.rules import DELETES
from cdc_lake.lake.lake import SilverTarget, missing_rows
from cdc_lake.operations.time_travel import as_structs, is_same, rows_until
from cdc_lake.points import Offset, SourceTime
from cdc_lake.runs.catalog_sync import sync_catalog_after_run
from cdc_lake.runs.context import OpenRun, Run, Work, check_has_lease, select
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.batch import Batch
from cdc_lake.silver.batch_schemas import BatchSchemas
from cdc_lake.silver.events import kafka_position, sent_columns
from cdc_lake.silver.fold_result import FoldResult
from cdc_lake.silver.merge import fold_events, is_start
from cdc_lake.silver.table import SilverTable, has_former_key
from cdc_lake.tables.contract import Changes
from cdc_lake.tables.joins import as_columns_of, with_kept
from cdc_lake.tables.progress import KeyFrom, SilverProgress

_PLACE = ["topic", "generation", "partition", "offset"]
_EXAMPLES = 10
"""Maximum number of keys in the report for each kind of difference."""


@dataclass(frozen=True)
class RebuildOptions:
    """Options of a rebuild.

    Attributes:
        until: use events up to this point (default: all).
        is_dry: report the differences and write nothing.
        is_seeded: keep silver's rows whose complete history bronze no longer has.
        key: the new primary key, which must be that of the newest event; events up to the last one with another key
            are skipped. If empty, silver's key is used.
        accepts_loss: with `key`, drop rows that bronze has no complete event for.
        is_preview: write nothing, but raise the errors of a rebuild.
        shown: the reports of a preview, by table. Only these tables are rebuilt, from the versions of bronze that the
            preview compared. If silver has changed since, the rebuild is refused.
    """

    until: SourceTime | Offset | None = None
    is_dry: bool = False
    is_seeded: bool = False
    key: tuple[str, ...] = ()
    accepts_loss: bool = False
    is_preview: bool = False
    shown: Mapping[str, TableReport] | None = None


def run_rebuild(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    options: RebuildOptions | None = None,
    scheduler: TableScheduler | None = None,
) -> Report:
    """Rebuild silver tables from bronze with the current settings, each in one commit. Earlier versions stay readable.

    The report counts the rows that are `same`, `changed`, `only_before` and `only_after`.

    Args:
        tables: names or globs of tables: `<topic>`, or `<topic>@<kind>` for its further silver tables.
        options: the options (default: rebuild from all of bronze).

    Raises:
        UnknownTableError: a name or glob matches no table.
        ConfigError: a setting requires another setting.
    """
    run, options = Run.begin(config, Report(layer="rebuild")), options or RebuildOptions()
    scheduler = scheduler or TableScheduler(spark=spark)
    with scheduler.open(run, layer="silver") as opened:
        lake = opened.lake
        targets = lake.silver_tables(lake.names(opened.files))
        names = select(
            tables, list(targets), f"table in {lake.folder('silver')}", "see `storage` in the settings of its topic"
        )
        if options.shown is not None:
            names = [name for name in names if name in options.shown]
        for name in names:
            check_has_lease(config.lake.lease, name, targets[name].storage)
        scheduler.each_table(run.report, names, _Rebuild(opened, targets, options), leases=opened.leases)
        sync_catalog_after_run(opened)
        failpoints.reach("rebuild.before_report")
    return run.report


@dataclass(frozen=True)
class _Rebuild(Work):
    """The work on each table; one call of `process_next` does all of it."""

    run: OpenRun
    targets: Mapping[str, SilverTarget]
    options: RebuildOptions

    def process_next(self, spark: SparkSession, report: TableReport) -> bool:
        target, lake = self.targets[report.table], self.run.lake
        settings = self.run.config.table(target.topic)
        shown = (self.options.shown or {}).get(report.table)
        report.warn(*target.open(spark).recover())
        cure = "move its folder and its side table's folder away, then run the silver job, which creates it from bronze"
        settings.check_has_keys(target.topic, cure)
        version = shown.source_version if shown else None
        table, before = SilverTable.open_to_refold(lake, target, spark, settings, version)
        if before is None and not self.options.key:
            report.warn("the silver table does not exist yet; run the silver job to create it")
            return False
        if hole := missing_rows(table.bronze, table.landed, table.version):
            report.warn(hole)
        if before and table.bronze.reached_by(before, table.landed) is None and (what := table.missing_records(before)):
            report.warn(what)
        report.version_before = table.silver.version() if before else None
        if shown and shown.version_before != report.version_before:
            raise TableLockedError(
                report.table,
                "silver has changed since the differences were shown; nothing was written",
                "stop the runs that write the table, then run the command again",
            )
        with report.phase("fold"):
            key_from = before.key_from if before else None
            if self.options.key:
                key_from = find_key_change(table, self.options.key)
            current = table.with_current_key(key_from)
            rebuilt = _RebuiltTable.of(current, report, before, key_from, self.options)
        try:
            with report.phase("compare"):
                if self.options.key and before is not None:
                    rebuilt.check_complete(former_deletes(table, before, key_from), self.options)
                rebuilt.compare()
            report.source_version = table.version
            failpoints.reach("rebuild.after_compare")
            if not (self.options.is_dry or self.options.is_preview):
                with report.phase("write"):
                    rebuilt.commit(self.run)
                report.status, report.batches = "ok", 1
        finally:
            rebuilt.rows.unpersist()
        report.version_after = table.silver.version() if table.silver.exists() else None
        return False


@dataclass(frozen=True)
class _RebuiltTable:
    """A silver table as folded from bronze.

    Attributes:
        before: the progress of the stored table; None if it does not exist.
        key_from: where the events of its primary key begin.
        last: the last bronze batch whose rows are all included.
        rows: silver's columns and `__key`, persisted.
    """

    table: SilverTable
    report: TableReport
    before: SilverProgress | None
    key_from: KeyFrom | None
    last: int
    outcome: FoldResult
    rows: DataFrame

    @classmethod
    def of(
        cls,
        table: SilverTable,
        report: TableReport,
        before: SilverProgress | None,
        key_from: KeyFrom | None,
        options: RebuildOptions,
    ) -> "_RebuiltTable":
        """Fold bronze.

        Raises:
            DataLossError: bronze lacks the complete history of some rows, and the options do not keep them.
            UnsupportedError: bronze has no row event.
        """
        events, landed = table.bronze_rows.where(F.col("status") == "ok"), table.landed
        rows = rows_until(events, options.until, landed, table.name)
        last = landed.commit if options.until is None else _last_whole_batch(events, rows, landed.commit)
        progress = before if options.is_seeded else None
        batch = Batch.of(table, (1, landed.commit), progress, rows, is_comparison=options.is_seeded)
        batch.find_table_events()
        schemas = batch.find_schemas()
        if schemas is None:
            raise UnsupportedError(table.name, "bronze has no row event up to this point", "name a later point")
        batch.check_expectations(report)
        batch.check_casts()
        if not (options.is_seeded or options.key):
            _check_history(table, schemas, events)
        outcome = fold_events(batch)
        for warning in outcome.warnings_of_comparison():
            report.warn(warning)
        changes = outcome.changes(before.commit + 1 if before else 1)
        rows = _with_changes(table, outcome.schemas, changes) if options.is_seeded else changes.upserts()
        return cls(table, report, before, key_from, last, outcome, rows.persist())

    @cached_property
    def stored(self) -> DataFrame:
        """The stored table, with the columns and `__key` of the rebuilt table's primary key."""
        if self.before is None:
            return self.rows.limit(0)
        rows, keys = self.table.stored_rows, self.outcome.schemas.layout.keys
        columns = {name: F.col(quoted(name)) if name in rows.columns else F.lit(None) for name in keys}
        return self.outcome.schemas.with_key(
            rows.withColumns({name: value.cast(keys[name]) for name, value in columns.items()})
        )

    def check_complete(self, gone: DataFrame, options: RebuildOptions) -> None:
        """Check that bronze has a complete event, with the new key, for each row of silver.

        Rows are matched by the new key, or by the old one if silver lacks a column of the new key.

        Args:
            gone: the old keys of rows that were deleted before the key change.
        """
        assert self.before is not None, "a missing event implies that the table exists"
        old, columns = list(self.before.keys), self.table.stored_rows.columns
        rows = self.stored.where(~F.col(DELETED))
        if set(self.outcome.schemas.layout.keys) <= set(columns):
            starts = self.table.bronze_rows.where((F.col("status") == "ok") & is_start())
            rows = rows.join(starts.select(F.col("key").alias(KEY)).distinct(), KEY, "left_anti")
        elif set(old) <= set(self.rows.columns):
            is_whole = F.size(F.coalesce(UNAVAILABLE, F.array().cast("array<string>"))) == 0
            rows = rows.join(self.rows.where(is_whole).select(*map(quoted, old)), old, "left_anti")
        rows = rows.join(gone, old, "left_anti").select(F.to_json(F.struct(*map(quoted, old))).alias("key")).persist()
        try:
            if not (number := rows.count()):
                return
            some = [row["key"] for row in rows.orderBy("key").limit(_EXAMPLES).collect()]
        finally:
            rows.unpersist()
        what = f"bronze has no complete event with the new key for {number} silver rows, such as {', '.join(some)}"
        if not (options.is_dry or options.accepts_loss):
            raise DataLossError(
                self.report.table,
                what,
                "nothing was written; take a new snapshot of the table, run the bronze job and rebuild again; if "
                "the source no longer has these rows, drop them with --accept-loss",
            )
        self.report.count(without_event=number)
        self.report.examples["without_event"] = some
        self.report.warn(what)

    def compare(self) -> None:
        """Count the rows that differ from the stored table, ignoring `__batch`, and add the counts to the report."""
        columns, was, is_now = as_structs(self.stored.drop(BATCH), self.rows.drop(BATCH))
        what = (
            F.when(F.col("was").isNull(), "only_after")
            .when(F.col("is_now").isNull(), "only_before")
            .when(~is_same(columns), "changed")
        )
        both = was.join(is_now, F.col("was")[KEY] == F.col("is_now")[KEY], "full")
        key = F.coalesce(F.col("was")[KEY], F.col("is_now")[KEY])
        differing = both.select(what.alias("what"), key.alias("key")).where(F.col("what").isNotNull()).persist()
        try:
            report = self.report
            counts: dict[str, int] = {what: number for what, number in differing.groupBy("what").count().collect()}
            numbers = {name: counts.get(name, 0) for name in ("changed", "only_before", "only_after")}
            report.count(same=self.rows.count() - numbers["changed"] - numbers["only_after"], **numbers)
            for name in counts:
                some = differing.where(F.col("what") == name).orderBy("key").limit(_EXAMPLES).collect()
                report.examples[name] = [row["key"] for row in some]
        finally:
            differing.unpersist()

    def commit(self, run: OpenRun) -> None:
        """Write the side table, and then the table, in one commit."""
        outcome, before = self.outcome, self.before or SilverProgress(run_id="", commit=0)
        run.leases.check(self.table.name)
        side = outcome.batch.remember(outcome.side_entries(), before.commit + 1)
        own = {**outcome.schemas.progress_fields(), "side": side, "key_from": self.key_from}
        following = before.next(run.id, **self.table.consumed(self.last), **own)
        failpoints.reach("rebuild.after_side")
        run.leases.check(self.table.name)
        if self.before is None:
            self.table.silver.merge(outcome.changes(following.commit), following)
        else:
            self.table.silver.overwrite(self.rows, following)
        failpoints.reach("rebuild.after_overwrite")


def _last_whole_batch(events: DataFrame, rows: DataFrame, newest: int) -> int:
    """The last bronze batch up to which all rows are included."""
    left_out = events.join(rows.select(*_PLACE), _PLACE, "left_anti")
    ((first,),) = left_out.agg(F.min("batch")).collect()
    return newest if first is None else int(first) - 1


def _check_history(table: SilverTable, schemas: BatchSchemas, events: DataFrame) -> None:
    """Check that bronze has the complete history of each silver row."""
    ((first,),) = events.agg(F.min("first_batch")).collect()
    if first == 1:
        return
    starts = events.where(is_start()).select(F.col("key").alias(KEY)).distinct()
    number = schemas.with_key(table.stored_rows).join(starts, KEY, "left_anti").count()
    if number:
        raise DataLossError(
            table.name,
            f"bronze no longer has the complete history of {number} silver rows",
            "nothing was written; pass --seed-from-silver to keep these rows and refold the others",
        )


def _with_changes(table: SilverTable, schemas: BatchSchemas, changes: Changes) -> DataFrame:
    """Silver's rows with `changes` applied, and `__key`."""
    stored = schemas.with_key(table.stored_rows)
    unchanged = stored.join(changes.rows.select(KEY), KEY, "left_anti")
    untouched = as_columns_of(changes.upserts().schema, unchanged)
    return untouched.unionByName(with_kept(changes, stored).upserts())


def find_key_change(table: SilverTable, key: Sequence[str]) -> KeyFrom:
    """Where the events with bronze's newest primary key begin: after the last event with another key.

    Raises:
        ConfigError: the newest key has other columns than the options name.
    """
    side, keys = _keys(table)
    events = table.bronze_rows.where((F.col("status") == "ok") & F.col(side).isin(*keys))
    came = {row[side]: row["last"] for row in events.groupBy(side).agg(F.max(kafka_position()).alias("last")).collect()}
    newest = keys[max(came, key=lambda name: came[name])]
    if set(newest) != set(key):
        raise ConfigError(
            f"--key-from {','.join(key)}",
            f"the newest key of {table.name} is {','.join(sorted(newest))}",
            "name these columns",
        )
    former_schemas = [name for name, one in keys.items() if same_key(one, newest) is None]
    landed, topics = table.landed, list(table.landed.offsets)
    if not former_schemas:
        return KeyFrom(topic_id=topics[0], start={}, whole=landed.position)
    last = max(came[name] for name in former_schemas)
    behind = F.max(F.when(F.col(side).isin(former_schemas), F.col("offset") + 1))
    # In partitions without such an event: the records with a later timestamp.
    later = F.min(F.when(F.col("log_ts") >= last["log_ts"], F.col("offset")))
    of_topic = table.bronze_rows.where(F.col("generation") == last["generation"])
    partitions = of_topic.groupBy("partition").agg(F.greatest(behind, later).alias("start")).collect()
    topic_id = topics[last["generation"]]
    starts = {row["partition"]: row["start"] for row in partitions if row["start"] is not None}
    return KeyFrom(topic_id=topic_id, start={**landed.offsets[topic_id], **starts}, whole=landed.position)


def former_deletes(table: SilverTable, before: SilverProgress, key_from: KeyFrom | None) -> DataFrame:
    """The silver keys whose last unmerged event before the key change is a delete."""
    side, keys = _keys(table)
    of_silver = [name for name, one in keys.items() if set(one) == set(before.keys)]
    former = table.with_current_key(before.key_from).bronze_rows.where(
        has_former_key(table.landed, key_from)
        & (F.col("status") == "ok")
        & (F.col("batch") > before.sources.get(table.bronze.id(), 0))
        & F.col("tombstone_of").isNull()
        & F.col("key").isNotNull()
        & F.col(side).isin(of_silver)
    )
    last = former.groupBy("key").agg(F.max_by("op", kafka_position()).alias("op"))
    deleted = last.where(F.col("op").isin(*DELETES)).select(F.col("key").alias(KEY))
    schemas, silver = table.schemas_in(former, before), table.stored_rows
    rows = silver.limit(0) if schemas is None else schemas.with_key(silver).join(deleted, KEY, "left_semi")
    return rows.select(*map(quoted, before.keys))


def _keys(table: SilverTable) -> tuple[str, dict[str, dict[str, str]]]:
    """The primary keys of bronze's events: the column that names the schema; by schema, the key's columns and types."""
    columns = table.settings.merge.keys
    side = "value_schema" if columns else "key_schema"
    events = table.bronze_rows.where((F.col("status") == "ok") & F.col("key").isNotNull() & F.col(side).isNotNull())
    trees = {}
    for (name,) in events.select(side).distinct().collect():
        tree = table.schemas.by_fingerprint(name).of_table(table.settings).tree
        trees[name] = key_tree_from_row(tree, columns) if columns else tree
    if not trees:
        raise UnsupportedError(table.name, "bronze has no event with a key", "run the bronze job first")
    sent = zip(trees, sent_columns(trees.values(), []).keys, strict=True)
    return side, {name: table.column_mapping.target_types(table.name, key) for name, key in sent}
