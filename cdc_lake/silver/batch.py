"""A silver batch: which of bronze's batches it merges, and what their columns tell before any record is decoded."""

import logging
import time
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from cdc_lake.columns import KAFKA, KEY_ENTRY, REJECTED_ENTRY, SILVER_META, TABLE_ENTRY
from cdc_lake.decode.envelope import TRUNCATE, is_snapshot_edge
from cdc_lake.decode.framing import GLUE_ZLIB
from cdc_lake.errors import ExpectationError, RefusedError
from cdc_lake.fold.rules import INSERTS, State
from cdc_lake.fold.table_events import SnapshotMarker, TableEvents, Truncate, table_events
from cdc_lake.runs.report import TableReport
from cdc_lake.runs.user_sql import UNMET, check_expectations, with_unmet
from cdc_lake.silver.batch_schemas import BatchSchemas, schemas_and_frames
from cdc_lake.silver.events import events, is_change, kafka_position
from cdc_lake.silver.key_changes import has_key_change_headers
from cdc_lake.silver.rows import forgotten, rejected_entries, remembered_table_events, side_rows
from cdc_lake.silver.table import SilverTable
from cdc_lake.spark.arrow_stage import fit_in_driver, in_driver
from cdc_lake.spark.expressions import built_once
from cdc_lake.tables.progress import SidePin, SilverProgress

logger = logging.getLogger(__name__)
_TIMES = 20
"""Bins of the histogram of the source times in a batch."""
_DEFAULTS = (
    "set value.converter.ignore.default.for.nullables=true (Confluent's converter; Apicurio's has no such setting), or "
    "drop the column's default"
)


def next_batch(table: SilverTable, first: int, max_bytes: int) -> tuple[int, int]:
    """Choose bronze's batches from `first` on: of at most `read.max_records_per_batch` records and `max_bytes` in
    total, but at least one batch.

    Returns:
        The last batch, and how many rows these batches have.
    """
    newest, max_rows = table.landed.commit, table.settings.read.max_records_per_batch
    if first == newest:
        return newest, table.landed.rows
    new = table.bronze_rows.where(F.col("batch") >= first)
    sizes = {row["batch"]: row["count"] for row in new.groupBy("batch").count().collect()}
    last, taken = first, sizes.get(first, 0)
    while last < newest and taken + sizes.get(last + 1, 0) <= max_rows:
        last += 1
        taken += sizes.get(last, 0)

    def bytes_up_to(batch: int) -> int:
        """Bytes of the records of all batches up to one, if they were counted."""
        progress = table.progress_of_batch(batch) if batch else None
        return progress.bytes if progress else 0

    if last > first:
        last = first + bisect_right(range(first + 1, last + 1), bytes_up_to(first - 1) + max_bytes, key=bytes_up_to)
    return last, sum(sizes.get(batch, 0) for batch in range(first, last + 1))


@dataclass(frozen=True)
class Counts:
    """Counts of a batch, from bronze's columns alone.

    Attributes:
        changes: source times of changes, ms, and the number of changes; a histogram if there are many times.
    """

    total: int
    inserts: int
    paired_tombstones: int
    truncates: int
    markers: int
    late_markers: int
    late: int
    key_changes: int
    untimed: int
    writers: Row
    changes: Sequence[tuple[int, float]] | None

    @staticmethod
    @built_once
    def columns(*, has_sequence: bool) -> Sequence[Column]:
        """The counts as aggregates of bronze's columns.

        Args:
            has_sequence: whether a column of the row orders the events, which then need no source time.
        """
        is_half = has_key_change_headers(F.col("headers")) & F.col("tombstone_of").isNull()
        is_edge, is_late = is_snapshot_edge(F.col("snapshot")), F.col("late")
        is_untimed = F.col("op").isin("c", "u", "d") & F.col("source_ts_ms").isNull() & F.lit(not has_sequence)
        is_insert, is_truncate = F.col("op").isin(*INSERTS), F.col("op") == TRUNCATE
        is_new_change = is_change(F.col("op"), F.col("snapshot")) & ~is_late & F.col("tombstone_of").isNull()
        conditions = (is_truncate, is_edge, is_edge & is_late, is_late, is_half, is_untimed)
        return (
            F.count("*"),
            F.count(F.when(is_insert, 1)),
            F.count("tombstone_of"),
            *(F.count(F.when(condition, 1)) for condition in conditions),
            schemas_and_frames(),
            F.histogram_numeric(F.when(is_new_change, F.col("source_ts_ms")), F.lit(_TIMES)),
        )


@dataclass
class Batch:
    """A range of bronze's batches. A run, or a command, asks for what it needs in this order: `hold_if_few`,
    `find_table_events`, `find_schemas`, `check_expectations`, `check_casts`; then it folds the batch.

    Attributes:
        progress: silver's, before the batch.
        rows: the batch's rows of status ok.
        is_comparison: silver was folded from another bronze table, which may have known more of a key than this one.
        is_in_driver: whether the driver holds the rows.
        counts: the result of one pass over the rows, which decodes none.
        remembered_table_events: the state of all keys after earlier batches.
        table_events: the truncates and completed snapshots of this batch.
        schemas: none if no event has had a key yet, so that the table is still unknown.
        rejected: the new events that fail expectations and are rejected, `user_sql.with_unmet`'s columns; none if
            all are accepted.
    """

    table: SilverTable
    first: int
    last: int
    progress: SilverProgress | None
    rows: DataFrame
    counts: Counts
    is_comparison: bool = False
    is_in_driver: bool = field(default=False, init=False)
    remembered_table_events: TableEvents = field(default_factory=TableEvents, init=False)
    table_events: TableEvents = field(default_factory=TableEvents, init=False)
    schemas: BatchSchemas | None = field(default=None, init=False)
    rejected: DataFrame | None = field(default=None, init=False)

    @classmethod
    def of(
        cls,
        table: SilverTable,
        batches: tuple[int, int],
        progress: SilverProgress | None,
        rows: DataFrame,
        *,
        is_comparison: bool = False,
    ) -> Self:
        """Count the rows of bronze's first to last of these batches."""
        columns = Counts.columns(has_sequence=bool(table.settings.merge.sequence_by))
        return cls(table, *batches, progress, rows, Counts(*rows.agg(*columns).collect()[0]), is_comparison)

    def hold_if_few(self) -> None:
        """Hold few and small rows in the driver, because otherwise each action plans and reads them again."""
        writers = self.counts.writers
        is_compressed = GLUE_ZLIB in writers["frames"]
        self.is_in_driver = not is_compressed and fit_in_driver(rows=self.counts.total, record_bytes=writers["bytes"])
        if self.is_in_driver:
            self.rows = in_driver(self.rows)

    def find_table_events(self) -> None:
        """Find the truncates and completed snapshots.

        Raises:
            RefusedError: the batch has truncates that the settings do not allow.
        """
        if self.remembers(TABLE_ENTRY):
            self.remembered_table_events = remembered_table_events(self.remembered)
        self.table_events, counts = self.remembered_table_events, self.counts
        if not (counts.truncates or counts.markers):
            return
        truncates, markers = self._truncates_and_markers(self.rows)
        earlier: list[SnapshotMarker] = []
        if markers and (counts.late_markers or self.table.partitions > 1):
            before_it = self._landed().where((F.col("batch") < self.first) & is_snapshot_edge(F.col("snapshot")))
            _, earlier = self._truncates_and_markers(before_it)
        self.table_events = table_events(truncates, markers, earlier=earlier, before=self.remembered_table_events)

    @cached_property
    def all_table_events(self) -> TableEvents:
        """The truncates and completed snapshots in all of bronze up to this batch, which is read when first asked."""
        return table_events(*self._truncates_and_markers(self._landed()))

    def _truncates_and_markers(self, rows: DataFrame) -> tuple[list[Truncate], list[SnapshotMarker]]:
        """See `SilverTable.truncates_and_markers`; refuses truncates that the settings do not allow."""
        truncates, markers = self.table.truncates_and_markers(rows)
        if truncates:
            self._check_truncates(len(truncates))
        return truncates, markers

    def _check_truncates(self, number: int) -> None:
        settings, name = self.table.settings, self.table.name
        if settings.deletes.truncates == "refuse":
            raise RefusedError(
                name,
                f"the batch has {number} TRUNCATE events, and `deletes.truncates` is refuse",
                "set `deletes.truncates` to hard or soft for this table, or have the connector skip them "
                "(skipped.operations=t)",
            )
        if self.table.partitions > 1 and not settings.deletes.across_partitions:
            raise RefusedError(
                name,
                f"the batch has {number} TRUNCATE events, and the topic has {self.table.partitions} partitions: only "
                "Kafka's timestamps order them relative to rows",
                "set `deletes.across_partitions: true` for this table to accept that, or use a topic with one "
                "partition",
            )

    def find_schemas(self) -> BatchSchemas | None:
        """Find the schemas of the rows, and the columns that they need."""
        writers = self.counts.writers.asDict()
        if self.table.settings.key_of_rows == ():
            writers["keys"] = writers["keys"] or self._last_key_schema()
        self.schemas = self.table.schemas_in(self.rows, self.progress, writers)
        return self.schemas

    def _last_key_schema(self) -> list[str]:
        """Truncates have no key: use the key schema of the events before them."""
        newest = F.max_by("key_schema", F.when(F.col("key_schema").isNotNull(), F.col("batch")))
        rows = self._landed().agg(newest).collect()
        return [rows[0][0]] if rows[0][0] else []

    def check_expectations(self, report: TableReport) -> None:
        """Count the new events that fail expectations, and find those that are rejected.

        Raises:
            ConfigError: an expectation is not a valid condition.
            ExpectationError: events fail an expectation with `on_fail: stop`.
        """
        expectations = self.table.settings.quality.expectations
        if not expectations or self.schemas is None:
            return
        sent = events(self.rows, self.schemas, has_key_changes=self.counts.key_changes > 0)
        unmet = with_unmet(sent, expectations, self.table.name).localCheckpoint()
        counted = unmet.select(F.explode(UNMET).alias("name")).groupBy("name").count().collect()
        numbers = {one.name: 0 for one in expectations} | {name: number for name, number in counted}
        check_expectations(report, expectations, numbers)
        rejecting = [one.name for one in expectations if one.on_fail == "reject" and numbers[one.name]]
        if rejecting:
            self.rejected = unmet.where(F.arrays_overlap(UNMET, F.array(*map(F.lit, rejecting))))
            logger.warning(
                "%s: events are rejected, because they do not meet %s; run `cdc-lake quarantine list --table %s`",
                self.table.name,
                ", ".join(f"{name} ({numbers[name]})" for name in rejecting),
                self.table.name.partition("@")[0],
            )

    def check_casts(self) -> None:
        """Check that the new events' values fit the types set in `schema.cast`.

        Raises:
            ExpectationError: some do not.
        """
        casts = self.table.settings.schema_.cast
        if self.schemas is None or not casts:
            return
        uncastable = F.array_except("uncastable", "unavailable")
        sent = events(self.accepted, self.schemas, has_key_changes=self.counts.key_changes > 0)
        numbers = sent.select(F.explode(uncastable).alias("name")).groupBy("name").count().orderBy("name").collect()
        if numbers:
            counts = ", ".join(f"{number} values of `{name}` as {casts[name]}" for name, number in numbers)
            raise ExpectationError(
                self.table.name,
                f"`schema.cast` cannot store {counts}",
                "the commit was aborted; set a type that holds them, or remove the columns from it, and run again",
            )

    @property
    def may_be_inserts(self) -> bool:
        """Whether each event adds a row, provided that each has a key of its own, which silver does not have."""
        settings, counts = self.table.settings, self.counts
        has_only_inserts = counts.inserts == counts.total and not (
            counts.key_changes or self.table_events.events or settings.merge.apply_as_deletes
        )
        may_be_stale = self.remembers(KEY_ENTRY) or self.remembered_table_events.start != State()
        return has_only_inserts and not may_be_stale and not self.is_comparison and self.rejected is None

    @property
    def stored_columns(self) -> Collection[str]:
        """The source's columns in silver."""
        if self.progress is None:
            return []
        return [name for name in self.table.stored_rows.columns if name not in SILVER_META]

    @property
    def accepted(self) -> DataFrame:
        """The batch's rows without rejected events."""
        return self._without_rejected(self.rows)

    def history(self) -> DataFrame:
        """All rows of bronze up to this batch, without rejected events."""
        rows = self._landed()
        if self.remembers(REJECTED_ENTRY):
            entries = self._rejected_before(are_back=False).select(KAFKA)
            rows = rows.join(entries, kafka_position() == F.col(KAFKA), "left_anti")
        return self._without_rejected(rows)

    def _without_rejected(self, rows: DataFrame) -> DataFrame:
        if self.rejected is not None:
            rows = rows.join(self.rejected.select(KAFKA), kafka_position() == F.col(KAFKA), "left_anti")
        return rows

    def _landed(self) -> DataFrame:
        """All of bronze up to this batch."""
        return self.table.bronze_rows.where((F.col("batch") <= self.last) & (F.col("status") == "ok"))

    @property
    def pin(self) -> SidePin | None:
        return self.progress.side if self.progress else None

    @cached_property
    def remembered(self) -> DataFrame:
        """The side-table entries of silver's last commit."""
        return self.table.side.read(self.pin)

    def remembers(self, *kinds: str) -> bool:
        """Whether entries of one of these kinds may exist."""
        return self.pin is not None and not set(kinds).isdisjoint(self.pin.kinds)

    def _judged_entries(self) -> list[DataFrame]:
        """The side-table entries of the events that this batch rejects, and of events that it accepts although earlier
        batches rejected them.
        """
        parts = []
        if self.rejected is not None:
            parts.append(rejected_entries(self.rejected))
        if self.counts.late and self.remembers(REJECTED_ENTRY):
            entries = self._rejected_before(are_back=True)
            if self.rejected is not None:
                entries = entries.join(self.rejected.select(KAFKA), KAFKA, "left_anti")
            parts.append(forgotten(entries))
        return parts

    def _rejected_before(self, *, are_back: bool) -> DataFrame:
        """The entries of events that earlier batches rejected: those that this batch replays, and judges again, or
        the others.
        """
        entries = self.remembered.where(F.col("kind") == REJECTED_ENTRY)
        back = self.rows.where("late").select(kafka_position().alias(KAFKA))
        return entries.join(back, KAFKA, "left_semi" if are_back else "left_anti")

    def remember(self, parts: Sequence[DataFrame], commit: int) -> SidePin | None:
        """Write side-table entries, and return the pin for silver's commit; the previous pin if there are none.

        Args:
            parts: entries with some of the columns; no two with the same kind and id.
            commit: silver's commit number.
        """
        parts = [*parts, *self._judged_entries()]
        if not parts:
            return self.pin
        now_ms = time.time_ns() // 1_000_000
        entries = side_rows(parts, batch=commit, at_ms=now_ms)
        retention_days = self.table.settings.deletes.retention_days
        return self.table.side.write(self.pin, entries, at_ms=now_ms, memory_days=retention_days)

    def warnings(self) -> list[str]:
        """What an operator should know of these events."""
        warnings = []
        if self.schemas is not None:
            warnings += [step.words for step in self.schemas.layout_change.steps]
            known = self.progress.defaulted if self.progress else ()
            if new := [f"`{name}`" for name in self.schemas.defaulted if name not in known]:
                warnings.append(f"a null in {', '.join(new)} arrives as the column's default: {_DEFAULTS}")
        if self.counts.untimed:
            warnings.append(
                f"{self.counts.untimed} events have no source time, so only the log orders them; "
                "set add.fields=source.ts_ms on the connector"
            )
        if ends := self.table_events.unpaired_ends:
            warnings.append(f"{ends} snapshots ended whose start is not in bronze; they removed no rows")
        return warnings
