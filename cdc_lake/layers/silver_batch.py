"""One batch of silver: a range of bronze's batches, and what can be said of it before any of it is decoded."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.changes import fold, memory
from cdc_lake.changes.whole_table import Mark, Place, Truncate, WholeTable, is_mark, whole_table
from cdc_lake.columns import KAFKA, REJECTED_ENTRY, SILVER_META, SNAPSHOT_ENTRY, TRUNCATED_ENTRY
from cdc_lake.config import Config, SilverTable, TableConfig
from cdc_lake.errors import RefusedError, UnsupportedError
from cdc_lake.events.decode import WriterSchema
from cdc_lake.events.envelope import TRUNCATE
from cdc_lake.events.moves import has_move_headers
from cdc_lake.events.rows import Layout, check_names, events, large_columns, layout_of, merge_columns, place
from cdc_lake.events.types import plain_type
from cdc_lake.layers.expected import UNMET, judge, with_unmet
from cdc_lake.layers.run import SilverTarget
from cdc_lake.layers.written import named
from cdc_lake.metrics.report import TableReport
from cdc_lake.sources.schemas import SchemaFiles
from cdc_lake.storage import Storage
from cdc_lake.tables import Table
from cdc_lake.tables.partitions import check_partitions
from cdc_lake.tables.progress import Progress, SidePin
from cdc_lake.tables.side import SideTable


@dataclass(frozen=True)
class SilverRun:
    """One table's run.

    Attributes:
        bronze: all rows, pinned to one version.
        partitions: how many the topic has.
        silver: the table to fold into.
        held_in: what the settings say of it.
        side: silver's memory.
        is_comparison: silver was folded from another bronze table, so this one may know less of a key than silver does.
        check_lease: raises when the table is another run's by now.
    """

    spark: SparkSession
    schemas: SchemaFiles
    bronze: DataFrame
    partitions: int
    silver: Table
    held_in: SilverTable
    side: SideTable
    settings: TableConfig
    run_id: str
    done: TableReport
    is_comparison: bool
    check_lease: Callable[[], None]

    @property
    def truncates(self) -> Literal["soft", "hard"]:
        """What a truncate does to rows."""
        chosen = self.settings.truncates
        return chosen if chosen in ("soft", "hard") else self.settings.deletes


def looking(
    config: Config,
    target: SilverTarget,
    spark: SparkSession,
    *,
    bronze: DataFrame,
    partitions: int,
    settings: TableConfig,
) -> SilverRun:
    """A run in which nothing is written, for those who want to see what bronze's rows fold to.

    Args:
        target: the silver table that they would be folded into.
        bronze, partitions, settings: see `SilverRun`.
    """
    return SilverRun(
        spark=spark,
        schemas=SchemaFiles(Storage(spark), config.lake.root),
        bronze=bronze,
        partitions=partitions,
        silver=target.open(spark),
        held_in=target.held_in,
        side=SideTable(spark, target.side),
        settings=settings,
        run_id="",
        done=TableReport(table=target.topic),
        is_comparison=False,
        check_lease=lambda: None,
    )


@dataclass(frozen=True)
class Counts:
    """What a batch holds, known from bronze's columns alone."""

    total: int
    paired_tombstones: int
    truncates: int
    marks: int
    late_marks: int
    moves: int
    untimed: int
    written: Row


def schemas_and_frames() -> Column:
    """What bronze rows were written with, an aggregate: `keys` and `values`, fingerprints of schemas; `frames`."""
    frames = F.array_union(F.collect_set("framing.key"), F.collect_set("framing.value"))
    return F.struct(
        F.sort_array(F.collect_set("key_schema")).alias("keys"),
        F.sort_array(F.collect_set("value_schema")).alias("values"),
        frames.alias("frames"),
    )


@dataclass(frozen=True)
class Schemas:
    """The schemas that a batch's records were written with, and the columns that follow from them."""

    keys: list[WriterSchema]
    values: list[WriterSchema]
    frames: Collection[str]
    layout: Layout
    large: dict[str, str]


@dataclass
class Batch:
    """A range of bronze's batches.

    Attributes:
        rows: its rows of status ok.
        progress: of silver, before it.
    """

    run: SilverRun
    first: int
    last: int
    progress: Progress | None
    rows: DataFrame

    @cached_property
    def counts(self) -> Counts:
        """One look over the rows, without decoding any."""
        is_half = has_move_headers(F.col("headers")) & F.col("tombstone_of").isNull()
        is_untimed = F.col("op").isin("c", "u", "d") & F.col("source_ts_ms").isNull()
        found = self.rows.agg(
            F.count("*"),
            F.count("tombstone_of"),
            F.count(F.when(F.col("op") == TRUNCATE, 1)),
            F.count(F.when(is_mark(F.col("snapshot")), 1)),
            F.count(F.when(is_mark(F.col("snapshot")) & F.col("late"), 1)),
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
        """The side table's entries that belong to silver's last commit."""
        return self.run.side.read(self.pin)

    def remembers(self, *kinds: str) -> bool:
        """Whether there may be entries of one of these kinds."""
        return self.pin is not None and not set(kinds).isdisjoint(self.pin.kinds)

    @cached_property
    def remembered_of_all(self) -> WholeTable:
        """What earlier batches left to remember of all keys."""
        if not self.remembers(TRUNCATED_ENTRY, SNAPSHOT_ENTRY):
            return WholeTable()
        return memory.remembered(memory.of_all_keys(self.remembered).collect())

    @cached_property
    def happened_to_all(self) -> WholeTable:
        """The truncates and completed snapshots of this batch."""
        before, counts = self.remembered_of_all, self.counts
        if not (counts.truncates or counts.marks):
            return before
        truncates, marks = self._of_all(self.rows)
        earlier: list[Mark] = []
        if marks and (counts.late_marks or self.run.partitions > 1):
            before_it = self._landed().where((F.col("batch") < self.first) & is_mark(F.col("snapshot")))
            _, earlier = self._of_all(before_it)
        return whole_table(truncates, marks, earlier=earlier, truncated=before.truncated, snapshot=before.snapshot)

    @property
    def ever_happened_to_all(self) -> WholeTable:
        """The truncates and completed snapshots of all of bronze up to this batch."""
        return whole_table(*self._of_all(self._landed()), snapshot=self.remembered_of_all.snapshot)

    def _of_all(self, rows: DataFrame) -> tuple[list[Truncate], list[Mark]]:
        """The truncates among bronze's rows, and the markers, if the settings make anything of them."""
        settings = self.run.settings
        is_truncate = F.col("op") == TRUNCATE
        is_wanted = is_truncate | (is_mark(F.col("snapshot")) & F.lit(settings.remove_missing_after_snapshot))
        order = F.struct("source_position", "position_domain", "source_ts_ms")
        found = rows.where(is_wanted).select(place().alias("place"), "snapshot", order.alias("o"), "op").collect()
        truncates = [Truncate(Place(*r["place"]), fold.Order(*r["o"])) for r in found if r["op"] == TRUNCATE]
        marks = [Mark(Place(*r["place"]), r["snapshot"]) for r in found if r["op"] != TRUNCATE]
        if truncates:
            self._check_truncates(len(truncates))
        return truncates, marks

    def _check_truncates(self, number: int) -> None:
        settings, table = self.run.settings, self.run.done.table
        if settings.truncates == "refuse":
            raise RefusedError(
                table,
                f"{number} TRUNCATE events, and `truncates` is refuse",
                "set `truncates` to hard or soft for this table and run again, or leave them off at the connector "
                "(skipped.operations=t)",
            )
        if self.run.partitions > 1 and not settings.truncates_across_partitions:
            raise RefusedError(
                table,
                f"{number} TRUNCATE events in a topic of {self.run.partitions} partitions, where nothing but Kafka's "
                "time says which rows came before",
                "set `truncates_across_partitions: true` for this table if that is good enough, or let the topic have "
                "one partition",
            )

    @cached_property
    def silver(self) -> DataFrame:
        """The table as it is before this batch."""
        return self.run.silver.read()

    @cached_property
    def stored_columns(self) -> dict[str, str]:
        """The source's columns in silver, name to Spark type."""
        if self.progress is None:
            return {}
        fields = self.silver.schema
        return {field.name: field.dataType.simpleString() for field in fields if field.name not in SILVER_META}

    @cached_property
    def schemas(self) -> Schemas | None:
        """None when no event has had a key yet, so that nothing is known of the table."""
        written = self.counts.written
        keys = written["keys"] or self._last_key_schema()
        return self.schemas_of(keys, written["values"], written["frames"]) if keys else None

    def schemas_of(self, key_schemas: Iterable[str], value_schemas: Iterable[str], frames: Collection[str]) -> Schemas:
        """Read schemas and settle on the columns they need."""
        run = self.run
        keys = [run.schemas.by_fingerprint(name) for name in key_schemas]
        values = [named(run.schemas.by_fingerprint(name), run.settings) for name in value_schemas]
        known_keys = self.progress.keys if self.progress else ()
        found = layout_of(run.done.table, keys, values).held_as(run.silver.held_as)
        layout = _layout(run.done.table, found, self.stored_columns, known_keys)
        check_partitions(run.done.table, run.held_in, layout.columns, layout.keys)
        large = large_columns(values, run.settings.null_means_keep) - layout.keys.keys()
        return Schemas(keys, values, frames, layout, {n: kind for n, kind in layout.columns.items() if n in large})

    def _last_key_schema(self) -> list[str]:
        """Truncates have no key: the one of the events before them."""
        newest = F.max_by("key_schema", F.when(F.col("key_schema").isNotNull(), F.col("batch")))
        found = self._landed().agg(newest).collect()
        return [found[0][0]] if found[0][0] else []

    @cached_property
    def unmet(self) -> DataFrame | None:
        """The new events that are not what they are expected to be, `expected.with_unmet`'s columns; none if all are.

        Raises:
            ConfigError: a condition is none.
            ExpectationError: some do not meet one that is to stop the run.
        """
        expectations, done = self.run.settings.expectations, self.run.done
        if not expectations or self.schemas is None:
            return None
        sent = self.events(self.rows, self.schemas, has_moves=self.counts.moves > 0)
        unmet = with_unmet(sent, expectations, done.table).localCheckpoint()
        numbers = unmet.select(F.explode(UNMET).alias("name")).groupBy("name").count().collect()
        judge(done, expectations, {one.name: 0 for one in expectations} | {name: number for name, number in numbers})
        return unmet if numbers else None

    @cached_property
    def rejected(self) -> DataFrame | None:
        """Those of them that do not count, `unmet`'s columns; none if all count."""
        if self.unmet is None:
            return None
        rejecting = [one.name for one in self.run.settings.expectations if one.on_fail == "reject"]
        found = self.unmet.where(F.arrays_overlap(UNMET, F.array(*map(F.lit, rejecting)).cast("array<string>")))
        return None if found.isEmpty() else found

    @property
    def accepted(self) -> DataFrame:
        """The batch's rows without those of rejected events."""
        return self._without_rejected(self.rows)

    def _without_rejected(self, rows: DataFrame) -> DataFrame:
        if self.rejected is not None:
            rows = rows.join(self.rejected.select(KAFKA), place() == F.col(KAFKA), "left_anti")
        return rows

    def _landed(self) -> DataFrame:
        """All of bronze up to this batch."""
        return self.run.bronze.where((F.col("batch") <= self.last) & (F.col("status") == "ok"))

    def history(self) -> DataFrame:
        """All of bronze up to this batch that counts: nothing that was rejected."""
        rows = self._landed()
        if self.remembers(REJECTED_ENTRY):
            entries = self.remembered.where(F.col("kind") == REJECTED_ENTRY).select(KAFKA)
            rows = rows.join(entries, place() == F.col(KAFKA), "left_anti")
        return self._without_rejected(rows)

    def events(self, rows: DataFrame, schemas: Schemas, *, has_moves: bool) -> DataFrame:
        """The typed events among bronze's rows, without truncates; see `events.rows.events`."""
        settings = self.run.settings
        return events(
            rows.where(F.col("tombstone_of").isNull() & (F.col("op") != TRUNCATE)),
            schemas.layout,
            keys=schemas.keys,
            values=schemas.values,
            frames=schemas.frames,
            unavailable_value=settings.unavailable_value,
            null_means_keep=settings.null_means_keep,
            has_moves=has_moves,
        )

    def warnings(self, happened: WholeTable) -> list[str]:
        """What the operator should know of these events."""
        found = []
        if self.counts.untimed:
            found.append(
                f"{self.counts.untimed} events say no source time: their order is the log's "
                "(add.fields=source.ts_ms on the connector)"
            )
        if happened.unpaired_ends:
            found.append(
                f"{happened.unpaired_ends} snapshots ended whose start is not in bronze: no row was removed for them"
            )
        return found


def _layout(table: str, found: Layout, stored: Mapping[str, str], keys: Collection[str]) -> Layout:
    """The layout of silver: what it has, and behind it what this batch adds.

    Args:
        keys: the primary key's columns so far; none when nobody knows any more.
    """
    if not stored:
        return found
    known_keys = set(keys) or set(found.keys) & stored.keys()
    if known_keys != set(found.keys):
        raise UnsupportedError(
            table,
            f"its primary key was {', '.join(sorted(known_keys))} and now is {', '.join(sorted(found.keys))}",
            "rebuild the table from a snapshot taken after the change",
        )
    known = {name: plain_type(kind) for name, kind in stored.items()}
    merge_columns(table, known, {name: plain_type(kind) for name, kind in found.columns.items()})
    order = [*found.keys, *(name for name in known if name not in found.keys)]
    check_names(table, order)
    return Layout(found.keys, {name: found.columns.get(name) or stored[name] for name in order})
