"""Silver: the source table as it is now, folded from bronze's events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.changes import fold
from cdc_lake.changes.rows import changes, values
from cdc_lake.columns import (
    BATCH,
    DELETE,
    DELETED,
    KAFKA,
    KEEP,
    ORDER,
    SILVER_META,
    UNAVAILABLE,
)
from cdc_lake.config import Config, TableConfig
from cdc_lake.errors import DataLossError, UnsupportedError
from cdc_lake.events.envelope import TRUNCATE
from cdc_lake.events.rows import Layout, events, large_columns, layout_of, merge_columns
from cdc_lake.events.types import plain_type, quoted
from cdc_lake.layers.run import each_table, end_report, select, table_path
from cdc_lake.metrics.report import Report, TableReport, check_sum
from cdc_lake.session import build_session
from cdc_lake.sources.schemas import SchemaFiles
from cdc_lake.storage import Storage
from cdc_lake.tables.delta import LOG_FOLDER, DeltaLakeTable
from cdc_lake.tables.progress import Progress


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

    def work(done: TableReport) -> None:
        bronze = DeltaLakeTable(spark, table_path(config, "bronze", done.table))
        silver = table_path(config, "silver", done.table)
        _follow(_Run(spark, schemas, bronze, silver, config.table(done.table), report.run_id, done))

    root = f"{config.lake.root}/bronze"
    there = [folder.replace("/", ".") for folder in storage.folders(root, LOG_FOLDER)]
    each_table(report, select(tables, there, f"table in {root}", "run the bronze job first"), work)
    end_report(storage, config, report)
    return report


@dataclass(frozen=True)
class _Run:
    """One table's run."""

    spark: SparkSession
    schemas: SchemaFiles
    bronze: DeltaLakeTable
    path: str
    settings: TableConfig
    run_id: str
    done: TableReport

    def silver(self, keys: Sequence[str] = ()) -> DeltaLakeTable:
        """Silver's table; `keys` matter to the write that creates it."""
        return DeltaLakeTable(self.spark, self.path, statistics=(*keys, BATCH, "__source_ts_ms"))


def _follow(run: _Run) -> None:
    """Fold in what bronze has beyond silver's progress, in whole bronze batches of at most `max_rows` together."""
    done = run.done
    source = run.bronze.id()
    landed = run.bronze.progress()
    assert landed is not None, "a bronze table is created with progress"
    progress = run.silver().progress()
    reached = _reached(run, progress, source)
    done.consumed_from = {source: reached}
    done.version_before = run.silver().version() if progress else None
    bronze = run.bronze.read()  # a newer version than `landed` is no harm: a batch never changes once it is there
    for first, last in _batch_ranges(bronze, reached, landed.commit, run.settings.max_rows):
        rows = bronze.where(F.col("batch").between(first, last) & (F.col("status") == "ok"))
        progress = _fold_batch(run, rows, progress, {source: last})
        if progress is None:
            continue
        reached = last
        done.status, done.batches = "ok", done.batches + 1
    done.consumed_to = {source: reached}
    done.version_after = run.silver().version() if progress else None


def _reached(run: _Run, progress: Progress | None, source: str) -> int:
    if progress is None:
        return 0
    if source not in progress.sources:
        raise DataLossError(
            run.done.table,
            "silver was folded from another bronze table than the one that is there now",
            f"move {run.path} away and run again: silver is made anew from bronze",
        )
    return progress.sources[source]


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


def _fold_batch(run: _Run, rows: DataFrame, progress: Progress | None, consumed: dict[str, int]) -> Progress | None:
    done, settings = run.done, run.settings
    commit = progress.commit + 1 if progress else 1
    following = Progress(
        layer="silver", run_id=run.run_id, epoch=progress.epoch if progress else 0, commit=commit, sources=consumed
    )
    rows = rows.persist()
    try:
        with done.phase("plan"):
            counts = _counts(rows)
            if counts.truncates:
                raise UnsupportedError(
                    done.table,
                    f"{counts.truncates} TRUNCATE events",
                    "truncates are not in this version: leave them off (skipped.operations=t)",
                )
            key_schemas = [run.schemas.by_fingerprint(name) for name in counts.key_schemas]
            value_schemas = [run.schemas.by_fingerprint(name) for name in counts.value_schemas]
        if not key_schemas:
            return _move_on(run, progress, following)
        with done.phase("plan"):
            stored = _stored_columns(run) if progress else {}
            layout = _layout(done.table, layout_of(done.table, key_schemas, value_schemas), stored)
            large = large_columns(value_schemas) - layout.keys.keys()
            happened = events(
                rows.where(F.col("tombstone_of").isNull()),
                layout,
                keys=key_schemas,
                values=value_schemas,
                unavailable_value=settings.unavailable_value,
            )
        with done.phase("fold"):
            decided, rejected = _decide(run, happened, list(layout.keys), progress is not None)
        check_sum(
            done.table,
            counts.total,
            applied=decided.keys,
            superseded=decided.events - decided.keys + rejected.count,
            paired_tombstones=counts.paired_tombstones,
        )
        counted = rejected.taken_from(happened)
        columns = list(layout.columns)
        result = changes(
            decided.rows,
            values(counted, decided.rows, large=[n for n in columns if n in large], has_barriers=decided.has_barriers),
            keys=list(layout.keys),
            columns=columns,
            stored_columns=stored,
            large=large,
            deletes=settings.deletes,
            soft_delete_values=settings.soft_delete_values,
            batch=commit,
        )
        with done.phase("write"):
            _write(run, result, layout, following, is_new=progress is None)
    finally:
        rows.unpersist()
    done.count(
        events=counts.total,
        applied=decided.keys,
        superseded=decided.events - decided.keys + rejected.count,
        stale=rejected.count,
        paired_tombstones=counts.paired_tombstones,
    )
    return following


@dataclass(frozen=True)
class _Rejected:
    """The stale events of a batch, by their coordinates."""

    count: int
    rows: DataFrame | None

    def taken_from(self, events: DataFrame) -> DataFrame:
        """The events that count."""
        return events if self.rows is None else fold.without(events, self.rows)


@dataclass(frozen=True)
class _Decided:
    """The decisions of a batch, computed, and what can be said of all of them."""

    rows: DataFrame
    keys: int
    events: int
    has_barriers: bool
    is_suspect: bool
    is_out_of_order: bool

    @classmethod
    def of(cls, marked: DataFrame) -> "_Decided":
        """Decide, and keep what was decided: it is read twice."""
        rows = fold.decisions(marked).localCheckpoint()
        found = rows.agg(
            F.count("*"),
            F.coalesce(F.sum("event_count"), F.lit(0)),
            F.coalesce(F.max(F.col("barrier").isNotNull()), F.lit(False)),
            F.coalesce(F.max("is_suspect"), F.lit(False)),
            F.coalesce(F.max("is_out_of_order"), F.lit(False)),
        ).collect()[0]
        return cls(rows, *found)


@dataclass(frozen=True)
class _Counts:
    """What a batch holds, known from bronze's columns alone."""

    total: int
    paired_tombstones: int
    truncates: int
    key_schemas: list[str]
    value_schemas: list[str]


def _counts(rows: DataFrame) -> _Counts:
    found = rows.agg(
        F.count("*"),
        F.count("tombstone_of"),
        F.count(F.when(F.col("op") == TRUNCATE, 1)),
        F.sort_array(F.collect_set("key_schema")),
        F.sort_array(F.collect_set("value_schema")),
    ).collect()[0]
    return _Counts(*found)


def _stored_columns(run: _Run) -> dict[str, str]:
    """The source's columns in silver, name to Spark type."""
    return {f.name: f.dataType.simpleString() for f in run.silver().read().schema if f.name not in SILVER_META}


def _layout(table: str, found: Layout, stored: Mapping[str, str]) -> Layout:
    """The layout of silver: what it has, and behind it what this batch adds."""
    if not stored:
        return found
    missing_keys = [name for name in found.keys if name not in stored]
    if missing_keys:
        raise UnsupportedError(
            table,
            f"its primary key now has {', '.join(missing_keys)}, which silver does not",
            "rebuild the table from a snapshot taken after the change",
        )
    known = {name: plain_type(kind) for name, kind in stored.items()}
    merge_columns(table, known, {name: plain_type(kind) for name, kind in found.columns.items()})
    order = [*found.keys, *(name for name in known if name not in found.keys)]
    return Layout(found.keys, {name: found.columns.get(name) or stored[name] for name in order})


def _decide(run: _Run, happened: DataFrame, keys: Sequence[str], has_stored: bool) -> tuple[_Decided, _Rejected]:
    """The decision for each key, and the events that do not count."""
    narrow = fold.narrowed(happened)
    if has_stored:
        marked = narrow.join(_stored(run, narrow, keys), "key", how="left")
    else:
        marked = narrow.withColumns({name: F.lit(None).cast(kind) for name, kind in fold.STORED.items()})
    marked = fold.with_suspicion(marked)
    decided = _Decided.of(marked)
    if decided.is_out_of_order:
        raise UnsupportedError(
            run.done.table,
            "some events stand in the log before what silver already shows of their keys",
            "folding keys again from bronze is not in this version: move silver's table away and run again",
        )
    if not decided.is_suspect:
        return decided, _Rejected(0, None)
    stale = fold.stale_events(marked.where("is_suspect")).localCheckpoint()
    return _Decided.of(fold.without(marked, stale)), _Rejected(stale.count(), stale)


def _stored(run: _Run, narrow: DataFrame, keys: Sequence[str]) -> DataFrame:
    """What silver holds of the keys this batch touches."""
    touched = narrow.groupBy("key").agg(F.first("pk").alias("pk")).alias("touched")
    silver = run.silver().read().alias("silver")
    same = F.lit(True)
    for name in keys:
        same = same & F.col(f"silver.{quoted(name)}").eqNullSafe(F.col("touched.pk")[name])
    return silver.join(touched, same, how="inner").select(
        F.col("touched.key").alias("key"),
        F.col(f"silver.{ORDER}").alias(fold.STORED_ORDER),
        F.col(f"silver.{KAFKA}").alias(fold.STORED_KAFKA),
        F.col(f"silver.{DELETED}").alias(fold.STORED_DELETED),
        F.col(f"silver.{UNAVAILABLE}").alias(fold.STORED_UNAVAILABLE),
    )


def _write(run: _Run, rows: DataFrame, layout: Layout, following: Progress, *, is_new: bool) -> None:
    keys = list(layout.keys)
    silver = run.silver(keys)
    if is_new:
        silver.append(rows.where(~F.col(DELETE)).drop(KEEP, DELETE), following)
    else:
        silver.merge(rows, keys, following)


def _move_on(run: _Run, progress: Progress | None, following: Progress) -> Progress | None:
    """Consume batches that hold nothing to fold: control records, quarantine."""
    if progress is None:
        return None
    with run.done.phase("write"):
        silver = run.silver()
        silver.append(silver.read().limit(0), following)
    return following
