"""A silver batch: a range of bronze's batches, and what its columns tell before any record is decoded."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import (
    KAFKA,
    KEY,
    META,
    OLD_KINDS,
    REJECTED_ENTRY,
    SILVER_META,
    TABLE_ENTRY,
    quoted,
    type_text,
)
from cdc_lake.config import StorageConfig, TableConfig
from cdc_lake.decode.column_mapping import ColumnMapping
from cdc_lake.decode.declared import columns_that_lose_nulls
from cdc_lake.decode.envelope import TRUNCATE, is_snapshot_edge
from cdc_lake.decode.key import canonical_text, key_fields, key_tree_from_row
from cdc_lake.decode.records import WriterSchema
from cdc_lake.decode.schemas import Tree
from cdc_lake.errors import ConfigError, ExpectationError, RefusedError
from cdc_lake.fold.rules import Order
from cdc_lake.fold.table_events import KafkaPosition, SnapshotMarker, TableEvents, Truncate, table_events
from cdc_lake.lake.lake import Lake, SilverTarget
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.lake.side import SideTable
from cdc_lake.runs.expectations import UNMET, check_expectations, with_unmet
from cdc_lake.runs.report import TableReport
from cdc_lake.silver import side_entries
from cdc_lake.silver.conditional_deletes import with_deletes
from cdc_lake.silver.events import events, large_columns, log_position, sent_columns
from cdc_lake.silver.evolution import Layout, LayoutChange, evolve_layout
from cdc_lake.silver.key_changes import has_key_change_headers
from cdc_lake.storage.files import Storage
from cdc_lake.tables.contract import Table
from cdc_lake.tables.partitions import check_partitions
from cdc_lake.tables.progress import BronzeProgress, KeyFrom, SidePin, SilverProgress

_LARGE_BYTES, _FEW_BYTES = 64 << 10, 128 << 20
"""A value above the first size is large; large values above the second size in total are not few."""
_DEFAULTS = (
    "set value.converter.ignore.default.for.nullables=true (Confluent's converter; Apicurio's has no such setting), or "
    "drop the column's default"
)


@dataclass(frozen=True)
class SilverRun:
    """One table's run.

    Attributes:
        bronze: all rows, pinned to one version.
        partitions: number of partitions of the topic.
        silver: the table to merge into.
        storage: its format, type and partitions.
        side: its side table.
        is_comparison: silver was folded from another bronze table, which may have known more of a key than this one.
        check_lease: raises if another run has taken the table's lease.
        known: the columns of the table whose layout to follow; none if that is silver itself.
    """

    spark: SparkSession
    schemas: SchemaFiles
    bronze: DataFrame
    partitions: int
    silver: Table[SilverProgress]
    storage: StorageConfig
    side: SideTable
    settings: TableConfig
    run_id: str
    done: TableReport
    is_comparison: bool
    check_lease: Callable[[], None]
    known: Layout | None = None

    @property
    def column_mapping(self) -> ColumnMapping:
        """Which silver column takes each source column."""
        return column_mapping(self.settings, self.silver)

    def with_current_key(self, landed: BronzeProgress, key_from: KeyFrom | None) -> "SilverRun":
        """The same run on the bronze rows with the current primary key; see `has_former_key`."""
        return replace(self, bronze=self.bronze.where(~has_former_key(landed, key_from)))

    @property
    def truncates(self) -> Literal["soft", "hard"]:
        """How a truncate deletes rows."""
        chosen = self.settings.deletes.truncates
        return chosen if chosen in ("soft", "hard") else self.settings.deletes.mode


def read_only_run(
    lake: Lake,
    target: SilverTarget,
    spark: SparkSession,
    *,
    bronze: DataFrame,
    partitions: int,
    settings: TableConfig,
) -> SilverRun:
    """A run that writes nothing, for commands that show how bronze's rows fold.

    Args:
        target: the silver table.
        bronze, partitions, settings: see `SilverRun`.
    """
    silver = target.open(spark)
    progress = silver.progress()
    return SilverRun(
        spark=spark,
        schemas=lake.schema_files(Storage(spark)),
        bronze=bronze,
        partitions=partitions,
        silver=silver,
        storage=target.storage,
        side=target.open_side(spark),
        settings=settings,
        run_id="",
        done=TableReport(table=target.name),
        is_comparison=False,
        check_lease=lambda: None,
        known=layout_of(silver.read().schema, progress, added=added_columns(settings)) if progress else None,
    )


def check_columns(run: SilverRun) -> None:
    """Check that no other program removed or renamed silver's columns, unless the settings do the same.

    Raises:
        ConfigError: one did. A run would add the columns again, without values in the rows that it does not change.
    """
    settings, table, path = run.settings, run.done.table, run.silver.path
    for name, now in run.silver.lost_columns().items():
        if name in settings.schema_.rename or name in settings.schema_.exclude:
            continue
        if now is None:
            todo = f"to restore it, run `cdc-lake rebuild --table {table}`; the run wrote nothing"
            raise ConfigError(f"{table}.{name}", "another program removed the column from silver", todo)
        raise ConfigError(
            f"{table}.{name}",
            f"another program renamed the column to `{now}` in silver",
            f"rename it back: ALTER TABLE delta.{quoted(path)} RENAME COLUMN {quoted(now)} TO "
            f"{quoted(name)}; or set `schema.rename: {{{name}: {now}}}` for this table",
        )


def has_former_key(landed: BronzeProgress, key_from: KeyFrom | None) -> Column:
    """Whether a bronze row is older than the current primary key.

    Args:
        landed: bronze's progress.
        key_from: silver's.
    """
    topics = list(landed.offsets)
    if key_from is None or key_from.topic_id not in topics:
        return F.lit(False)
    return is_before(key_from.start, topics.index(key_from.topic_id))


def is_before(offsets: Mapping[int, int], generation: int) -> Column:
    """Whether a bronze row precedes a position in a generation of its topic.

    Args:
        offsets: partition -> the first offset at or after that position.
    """
    before = ((F.col("partition") == number) & (F.col("offset") < to) for number, to in offsets.items())
    is_in_it = (F.col("generation") == generation) & reduce(or_, before, F.lit(False))
    return (F.col("generation") < generation) | is_in_it


def column_mapping(settings: TableConfig, silver: Table[SilverProgress]) -> ColumnMapping:
    """Which column of a table takes each source column."""
    return ColumnMapping(settings.schema_.exclude, settings.schema_.rename, settings.schema_.cast, silver.stored_type)


def added_columns(settings: TableConfig) -> tuple[str, ...]:
    """Silver columns that neither come from the source nor exist in every silver table."""
    return (META, *settings.merge.derive) if settings.merge.mode == "append" else ()


def layout_of(
    silver: StructType, progress: SilverProgress, keys: Collection[str] = (), added: Collection[str] = ()
) -> Layout:
    """The source's columns as silver stores them.

    Args:
        silver: its columns.
        keys: the primary key's columns, if the progress no longer has them.
        added: columns that do not come from the source.
    """
    ours = {*SILVER_META, *added}
    columns = {field.name: type_text(field.dataType) for field in silver if field.name not in ours}
    own = progress.keys or [name for name in keys if name in columns]
    return Layout({name: columns[name] for name in own if name in columns}, columns, progress.beside)


@dataclass(frozen=True)
class Counts:
    """Counts of a batch, from bronze's columns alone."""

    total: int
    paired_tombstones: int
    truncates: int
    markers: int
    late_markers: int
    late: int
    key_changes: int
    untimed: int
    writers: Row


def schemas_and_frames() -> Column:
    """The schemas of bronze rows, as an aggregate: `keys` and `values`, fingerprints of schemas; `frames`; and
    `largest`, the size of the largest value in bytes, not counting a few large ones.
    """
    length = F.length("raw_value")
    of_large = F.coalesce(F.sum(F.when(length > _LARGE_BYTES, length)), F.lit(0))
    largest = F.coalesce(F.max(length), F.lit(0))
    frames = F.array_union(F.collect_set("framing.key"), F.collect_set("framing.value"))
    return F.struct(
        F.sort_array(F.collect_set("key_schema")).alias("keys"),
        F.sort_array(F.collect_set("value_schema")).alias("values"),
        frames.alias("frames"),
        F.when(of_large > _FEW_BYTES, largest).otherwise(F.least(largest, F.lit(_LARGE_BYTES))).alias("largest"),
    )


@dataclass(frozen=True)
class BatchSchemas:
    """The schemas of a batch's records, and the columns that follow from them."""

    keys: list[WriterSchema]
    key_trees: list[Tree]
    values: list[WriterSchema]
    frames: Collection[str]
    layout_change: LayoutChange
    large: dict[str, str]

    @cached_property
    def defaulted(self) -> list[str]:
        """The source columns whose nulls arrive as their default."""
        found = {name for one in self.values for name in columns_that_lose_nulls(one.text)}
        return sorted(name for name in found if self.layout.column_mapping.target(name) is not None)

    @property
    def layout(self) -> Layout:
        """Silver's columns."""
        return self.layout_change.layout

    def progress_fields(self, defaulted: Collection[str] = ()) -> dict[str, Any]:
        """The fields of silver's progress that describe its columns.

        Args:
            defaulted: the columns already recorded there as having nulls that arrive as defaults.
        """
        return {
            "keys": tuple(sorted(self.layout.keys)),
            "beside": dict(self.layout.variants),
            "gone": tuple(sorted(self.layout_change.retired)),
            "defaulted": tuple(sorted({*defaulted, *self.defaulted})),
        }

    def with_key(self, silver: DataFrame) -> DataFrame:
        """Rows of silver with `__key`, the canonical text of their key."""
        tree, target = self.key_trees[-1], self.layout.column_mapping.target
        columns = {source: F.col(quoted(target(source) or source)) for source in key_fields(tree)}
        return silver.withColumn(KEY, canonical_text(tree, columns))


class BronzeReader:
    """Reads bronze rows as events.

    Args:
        progress: silver's, whose columns stay as they are; none if the run has the columns.
    """

    def __init__(self, run: SilverRun, progress: SilverProgress | None = None) -> None:
        self.run = run
        self.progress = progress

    @cached_property
    def silver(self) -> DataFrame:
        """The table before any of the rows is folded."""
        return self.run.silver.read()

    def schemas_in(self, rows: DataFrame, writers: Mapping[str, Any] | None = None) -> BatchSchemas | None:
        """The schemas of these rows; none if no event among them has a key, so that the table is still unknown.

        Args:
            writers: the result of `schemas_and_frames`, if it is known already.
        """
        writers = writers or rows.agg(schemas_and_frames()).collect()[0][0].asDict()
        is_by_row = self.run.settings.key_of_rows != ()
        if not writers["values" if is_by_row else "keys"]:
            return None
        return self.schemas_of(rows, () if is_by_row else writers["keys"], writers["values"], writers["frames"])

    def schemas_of(
        self, rows: DataFrame, key_schemas: Sequence[str], value_schemas: Sequence[str], frames: Collection[str]
    ) -> BatchSchemas:
        """Read schemas, and determine the columns that they need.

        Args:
            rows: bronze rows that use them.
        """
        run, progress = self.run, self.progress
        first_came, newest = _in_order(rows, "value_schema", value_schemas)
        key_names, newest_key = _in_order(rows, "key_schema", key_schemas)
        keys = [run.schemas.by_fingerprint(name) for name in _newest_last(key_names, newest_key)]
        values = {name: run.schemas.by_fingerprint(name).of_table(run.settings) for name in first_came}
        columns = run.settings.merge.keys
        trees = [one.tree for one in keys]
        if columns:
            trees = [key_tree_from_row(values[name].tree, columns) for name in _newest_last(first_came, newest)]
        key_columns = [
            target for one in trees for name in key_fields(one) if (target := run.column_mapping.target(name))
        ]
        found = evolve_layout(
            run.done.table,
            sent_columns(trees, values.values(), values[newest] if newest else None),
            stored=layout_of(self.silver.schema, progress, key_columns, added_columns(run.settings))
            if progress
            else None,
            retired=progress.gone if progress else (),
            known=run.known,
            column_mapping=run.column_mapping,
            is_keyless=run.settings.key_of_rows is None,
        )
        if found.layout.keys:  # otherwise the table may be partitioned by a derived column
            check_partitions(run.done.table, run.storage, found.layout.columns, found.layout.keys)
        large = large_columns(values.values(), found.layout, run.settings.envelope.null_means_unchanged)
        return BatchSchemas(keys, trees, list(values.values()), frames, found, large)

    def events(
        self,
        rows: DataFrame,
        schemas: BatchSchemas,
        *,
        has_key_changes: bool,
        is_narrow: bool = False,
        more: Sequence[str] = (),
    ) -> DataFrame:
        """The typed events among bronze's rows, without truncates; see `silver.events.events`."""
        settings = self.run.settings
        found = events(
            rows.where(F.col("tombstone_of").isNull() & (F.col("op") != TRUNCATE)),
            schemas.layout,
            keys=schemas.keys,
            values=schemas.values,
            frames=schemas.frames,
            unavailable_value=settings.envelope.unavailable_value_placeholder,
            key_columns=settings.key_of_rows,
            null_means_unchanged=settings.envelope.null_means_unchanged,
            has_key_changes=has_key_changes,
            is_narrow=is_narrow and not settings.merge.apply_as_deletes,
            more=more,
        )
        condition = settings.merge.apply_as_deletes
        return with_deletes(found, condition, self.run.done.table) if condition else found

    def truncates_and_markers(self, rows: DataFrame) -> tuple[list[Truncate], list[SnapshotMarker]]:
        """The truncates among bronze's rows, and the snapshot markers, if the settings use them."""
        settings = self.run.settings
        is_truncate = F.col("op") == TRUNCATE
        is_wanted = is_truncate | (is_snapshot_edge(F.col("snapshot")) & F.lit(settings.deletes.missing_after_snapshot))
        order = F.struct("source_position", "position_domain", "source_ts_ms")
        found = (
            rows.where(is_wanted)
            .select(log_position().alias("log_position"), "snapshot", order.alias("o"), "op")
            .collect()
        )
        truncates = [Truncate(KafkaPosition(*r["log_position"]), Order(*r["o"])) for r in found if r["op"] == TRUNCATE]
        markers = [
            SnapshotMarker(KafkaPosition(*r["log_position"]), r["snapshot"]) for r in found if r["op"] != TRUNCATE
        ]
        return truncates, markers


@dataclass
class Batch(BronzeReader):
    """A range of bronze's batches.

    Attributes:
        rows: its rows of status ok.
        progress: silver's, before the batch.
    """

    run: SilverRun
    first: int
    last: int
    progress: SilverProgress | None
    rows: DataFrame

    @cached_property
    def counts(self) -> Counts:
        """One pass over the rows, which decodes none."""
        is_half = has_key_change_headers(F.col("headers")) & F.col("tombstone_of").isNull()
        is_untimed = F.col("op").isin("c", "u", "d") & F.col("source_ts_ms").isNull()
        if self.run.settings.merge.sequence_by:
            is_untimed = F.lit(False)
        found = self.rows.agg(
            F.count("*"),
            F.count("tombstone_of"),
            F.count(F.when(F.col("op") == TRUNCATE, 1)),
            F.count(F.when(is_snapshot_edge(F.col("snapshot")), 1)),
            F.count(F.when(is_snapshot_edge(F.col("snapshot")) & F.col("late"), 1)),
            F.count(F.when(F.col("late"), 1)),
            F.count(F.when(is_half, 1)),
            F.count(F.when(is_untimed, 1)),
            schemas_and_frames(),
        ).collect()[0]
        return Counts(*found)

    @cached_property
    def pin(self) -> SidePin | None:
        return self.progress.side if self.progress else None

    @cached_property
    def remembered(self) -> DataFrame:
        """The side-table entries of silver's last commit."""
        return self.run.side.read(self.pin)

    def remembers(self, *kinds: str) -> bool:
        """Whether entries of one of these kinds may exist."""
        return self.pin is not None and any(OLD_KINDS.get(kind, kind) in kinds for kind in self.pin.kinds)

    @cached_property
    def remembered_table_events(self) -> TableEvents:
        """The state of all keys after earlier batches."""
        if not self.remembers(TABLE_ENTRY):
            return TableEvents()
        return side_entries.remembered(side_entries.of_all_keys(self.remembered).collect())

    @cached_property
    def table_events(self) -> TableEvents:
        """The truncates and completed snapshots of this batch."""
        before, counts = self.remembered_table_events, self.counts
        if not (counts.truncates or counts.markers):
            return before
        truncates, markers = self._truncates_and_markers(self.rows)
        earlier: list[SnapshotMarker] = []
        if markers and (counts.late_markers or self.run.partitions > 1):
            before_it = self._landed().where((F.col("batch") < self.first) & is_snapshot_edge(F.col("snapshot")))
            _, earlier = self._truncates_and_markers(before_it)
        return table_events(truncates, markers, earlier=earlier, before=before)

    @cached_property
    def all_table_events(self) -> TableEvents:
        """The truncates and completed snapshots in all of bronze up to this batch."""
        return table_events(*self._truncates_and_markers(self._landed()))

    def _truncates_and_markers(self, rows: DataFrame) -> tuple[list[Truncate], list[SnapshotMarker]]:
        """See `truncates_and_markers`; refuses truncates that the settings do not allow."""
        truncates, markers = self.truncates_and_markers(rows)
        if truncates:
            self._check_truncates(len(truncates))
        return truncates, markers

    def _check_truncates(self, number: int) -> None:
        settings, table = self.run.settings, self.run.done.table
        if settings.deletes.truncates == "refuse":
            raise RefusedError(
                table,
                f"the batch has {number} TRUNCATE events, and `deletes.truncates` is refuse",
                "set `deletes.truncates` to hard or soft for this table, or have the connector skip them "
                "(skipped.operations=t)",
            )
        if self.run.partitions > 1 and not settings.deletes.across_partitions:
            raise RefusedError(
                table,
                f"the batch has {number} TRUNCATE events, and the topic has {self.run.partitions} partitions: only "
                "Kafka's timestamps order them relative to rows",
                "set `deletes.across_partitions: true` for this table to accept that, or use a topic with one "
                "partition",
            )

    @property
    def stored_columns(self) -> Collection[str]:
        """The source's columns in silver."""
        return [] if self.progress is None else [name for name in self.silver.columns if name not in SILVER_META]

    @cached_property
    def schemas(self) -> BatchSchemas | None:
        """None if no event has had a key yet, so that the table is still unknown."""
        writers = self.counts.writers.asDict()
        if self.run.settings.key_of_rows == ():
            writers["keys"] = writers["keys"] or self._last_key_schema()
        return self.schemas_in(self.rows, writers)

    def _last_key_schema(self) -> list[str]:
        """Truncates have no key: use the key schema of the events before them."""
        newest = F.max_by("key_schema", F.when(F.col("key_schema").isNotNull(), F.col("batch")))
        found = self._landed().agg(newest).collect()
        return [found[0][0]] if found[0][0] else []

    @cached_property
    def unmet(self) -> DataFrame | None:
        """The new events that fail expectations, `expectations.with_unmet`'s columns; none if all pass.

        Raises:
            ConfigError: an expectation is not a valid condition.
            ExpectationError: events fail an expectation with `on_fail: stop`.
        """
        expectations, done = self.run.settings.quality.expectations, self.run.done
        if not expectations or self.schemas is None:
            return None
        sent = self.events(self.rows, self.schemas, has_key_changes=self.counts.key_changes > 0)
        unmet = with_unmet(sent, expectations, done.table).localCheckpoint()
        numbers = unmet.select(F.explode(UNMET).alias("name")).groupBy("name").count().collect()
        check_expectations(
            done, expectations, {one.name: 0 for one in expectations} | {name: number for name, number in numbers}
        )
        return unmet if numbers else None

    @cached_property
    def rejected(self) -> DataFrame | None:
        """The failing events that are rejected, `unmet`'s columns; none if all are accepted."""
        if self.unmet is None:
            return None
        rejecting = [one.name for one in self.run.settings.quality.expectations if one.on_fail == "reject"]
        found = self.unmet.where(F.arrays_overlap(UNMET, F.array(*map(F.lit, rejecting)).cast("array<string>")))
        return None if found.isEmpty() else found

    @property
    def accepted(self) -> DataFrame:
        """The batch's rows without rejected events."""
        return self._without_rejected(self.rows)

    def _without_rejected(self, rows: DataFrame) -> DataFrame:
        if self.rejected is not None:
            rows = rows.join(self.rejected.select(KAFKA), log_position() == F.col(KAFKA), "left_anti")
        return rows

    def _landed(self) -> DataFrame:
        """All of bronze up to this batch."""
        return self.run.bronze.where((F.col("batch") <= self.last) & (F.col("status") == "ok"))

    def history(self) -> DataFrame:
        """All rows of bronze up to this batch, without rejected events."""
        rows = self._landed()
        if self.remembers(REJECTED_ENTRY):
            entries = self._rejected_before(are_back=False).select(KAFKA)
            rows = rows.join(entries, log_position() == F.col(KAFKA), "left_anti")
        return self._without_rejected(rows)

    @cached_property
    def readmitted(self) -> DataFrame | None:
        """The side-table entries of rejected events that this batch replays and accepts; none if there are none."""
        if not (self.counts.late and self.remembers(REJECTED_ENTRY)):
            return None
        entries = self._rejected_before(are_back=True)
        return entries if self.rejected is None else entries.join(self.rejected.select(KAFKA), KAFKA, "left_anti")

    def _rejected_before(self, *, are_back: bool) -> DataFrame:
        """The entries of events that earlier batches rejected: those that this batch replays, and judges again, or
        the others.
        """
        entries = self.remembered.where(F.col("kind") == REJECTED_ENTRY)
        back = self.rows.where("late").select(log_position().alias(KAFKA))
        return entries.join(back, KAFKA, "left_semi" if are_back else "left_anti")

    def remember(self, parts: Sequence[DataFrame], commit: int) -> SidePin | None:
        """Write side-table entries, and return the pin for silver's commit; the previous pin if there are none.

        Args:
            parts: entries with some of the columns; no two with the same kind and id.
            commit: silver's commit number.
        """
        if not parts:
            return self.pin
        now_ms = time.time_ns() // 1_000_000
        entries = side_entries.side_rows(parts, batch=commit, at_ms=now_ms)
        retention_days = self.run.settings.deletes.retention_days
        return self.run.side.write(self.pin, entries, at_ms=now_ms, memory_days=retention_days)

    def check_casts(self) -> None:
        """Check that the new events' values fit the types set in `schema.cast`.

        Raises:
            ExpectationError: some do not.
        """
        if self.schemas is None or not self.run.settings.schema_.cast:
            return
        uncastable = F.array_except("uncastable", "unavailable")
        sent = self.events(self.accepted, self.schemas, has_key_changes=self.counts.key_changes > 0)
        numbers = sent.select(F.explode(uncastable).alias("name")).groupBy("name").count().orderBy("name").collect()
        if numbers:
            counts = ", ".join(
                f"{number} values of `{name}` as {self.run.settings.schema_.cast[name]}" for name, number in numbers
            )
            raise ExpectationError(
                self.run.done.table,
                f"`schema.cast` cannot store {counts}",
                "the commit was aborted; set a type that holds them, or remove the columns from it, and run again",
            )

    def warnings(self, table_events: TableEvents) -> list[str]:
        """What an operator should know of these events."""
        found = []
        if self.schemas is not None:
            found += [step.words for step in self.schemas.layout_change.steps]
            known = self.progress.defaulted if self.progress else ()
            if new := [f"`{name}`" for name in self.schemas.defaulted if name not in known]:
                found.append(f"a null in {', '.join(new)} arrives as the column's default: {_DEFAULTS}")
        if self.counts.untimed:
            found.append(
                f"{self.counts.untimed} events have no source time, so only the log orders them; "
                "set add.fields=source.ts_ms on the connector"
            )
        if table_events.unpaired_ends:
            found.append(
                f"{table_events.unpaired_ends} snapshots ended whose start is not in bronze; they removed no rows"
            )
        return found


def _newest_last(fingerprints: Sequence[str], newest: str | None) -> list[str]:
    return sorted(fingerprints, key=lambda name: name == newest)


def _in_order(rows: DataFrame, column: str, fingerprints: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """The schemas of a column in order of first use, and the one used last."""
    if len(fingerprints) < 2:
        return fingerprints, next(iter(fingerprints), None)
    came = F.min(log_position()).alias("first"), F.max(F.when(~F.col("late"), log_position())).alias("last")
    writers = rows.where(F.col(column).isNotNull()).groupBy(column).agg(*came)
    found = {row[column]: row for row in writers.collect()}
    on_time = [name for name, row in found.items() if row["last"] is not None]
    newest = max(on_time, key=lambda name: found[name]["last"], default=None)
    return sorted(fingerprints, key=lambda name: (name not in found, name in found and found[name]["first"])), newest
