"""One batch of silver: from a range of bronze's batches to one commit of the table and its side table."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake import failpoints
from cdc_lake.changes import fold, memory, moves
from cdc_lake.changes.rows import changes, values, with_heirs
from cdc_lake.changes.whole_table import Mark, Place, Truncate, WholeTable, is_mark, whole_table, with_whole_table
from cdc_lake.columns import (
    AWAITING_ENTRY,
    BATCH,
    DELETE,
    DELETED,
    DELETED_ENTRY,
    KAFKA,
    KEEP,
    MOVED_ENTRY,
    ORDER,
    SILVER_META,
    SNAPSHOT_ENTRY,
    TRUNCATED_ENTRY,
    UNAVAILABLE,
    quoted,
)
from cdc_lake.config import TableConfig
from cdc_lake.errors import DataLossError, RefusedError, UnsupportedError
from cdc_lake.events.avro import WriterSchema
from cdc_lake.events.envelope import TRUNCATE
from cdc_lake.events.moves import has_move_headers, move_of
from cdc_lake.events.rows import Layout, events, large_columns, layout_of, merge_columns
from cdc_lake.events.types import plain_type
from cdc_lake.metrics.report import TableReport, check_sum
from cdc_lake.sources.schemas import SchemaFiles
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Progress, SidePin
from cdc_lake.tables.side import SideTable

_RESET_KEYS = 10
"""The source's log was reset if at least so many keys say so, and most of those that can tell."""


@dataclass(frozen=True)
class SilverRun:
    """One table's run.

    Attributes:
        bronze: all rows, pinned to one version.
        partitions: how many the topic has.
        path: silver's folder.
        side: silver's memory.
        is_comparison: silver was folded from another bronze table, so this one may know less of a key than silver does.
        check_lease: raises when the table is another run's by now.
    """

    spark: SparkSession
    schemas: SchemaFiles
    bronze: DataFrame
    partitions: int
    path: str
    side: SideTable
    settings: TableConfig
    run_id: str
    done: TableReport
    is_comparison: bool
    check_lease: Callable[[], None]

    def silver(self, keys: Sequence[str] = ()) -> DeltaLakeTable:
        """Silver's table; `keys` matter to the write that creates it."""
        return DeltaLakeTable(self.spark, self.path, statistics=(*keys, BATCH, "__source_ts_ms"))

    @property
    def truncates(self) -> Literal["soft", "hard"]:
        """What a truncate does to rows."""
        chosen = self.settings.truncates
        return chosen if chosen in ("soft", "hard") else self.settings.deletes


def fold_batch(run: SilverRun, first: int, last: int, progress: Progress | None, source: str) -> Progress | None:
    """Fold bronze's batches `first` to `last` into silver, in one commit.

    Returns:
        The progress as read back; `progress` itself if there was nothing yet to make a table of.

    Raises:
        RefusedError: there are truncates, and the table's settings do not let them be applied.
        DataLossError: the source's log was reset, and the settings say to stop.
        UnsupportedError: a column or the key has another type than before.
        TableLockedError: another run was first; nothing is changed.
    """
    commit = progress.commit + 1 if progress else 1
    following = Progress(
        layer="silver",
        run_id=run.run_id,
        epoch=progress.epoch if progress else 0,
        commit=commit,
        sources={source: last},
        side=progress.side if progress else None,
    )
    rows = run.bronze.where(F.col("batch").between(first, last) & (F.col("status") == "ok")).persist()
    try:
        batch = _Batch(run, first, last, progress, rows)
        if not batch.counts.total:
            return _move_on(run, progress, following)
        with run.done.phase("plan"):
            happened = batch.happened_to_all
            if batch.schemas is None:
                return _move_on(run, progress, following)
        with run.done.phase("fold"):
            folded = batch.folded()
        result = folded.changes(commit)
        folded.check_log()
        counts = folded.counted()
        check_sum(run.done.table, batch.counts.total, **counts)
        failpoints.reach("silver.after_plan", batch=commit)
        with run.done.phase("write"):
            run.check_lease()
            following = following.model_copy(update={"side": folded.remember(commit)})
            failpoints.reach("silver.after_side", batch=commit)
            run.check_lease()
            following = _write(run, result, folded.layout, following, is_new=progress is None)
            failpoints.reach("silver.after_merge", batch=commit)
    finally:
        rows.unpersist()
    run.done.count(
        events=batch.counts.total,
        **counts,
        stale=folded.decided.stale,
        refolded=folded.refolded,
    )
    for warning in batch.warnings(happened):
        run.done.warn(warning)
    return following


@dataclass(frozen=True)
class _Counts:
    """What a batch holds, known from bronze's columns alone."""

    total: int
    paired_tombstones: int
    truncates: int
    marks: int
    moves: int
    untimed: int
    key_schemas: list[str]
    value_schemas: list[str]


@dataclass(frozen=True)
class _Decided:
    """The decisions of a batch, computed, and what can be said of all of them.

    Attributes:
        rows: `fold.decisions`' columns.
        history: the events that count, `fold.with_suspicion`'s columns.
        rejected: those that do not, `fold.rejected_events`' columns; none when all count.
        stale: how many new events do not count.
    """

    rows: DataFrame
    history: DataFrame
    rejected: DataFrame | None
    stale: int
    keys: int
    events: int
    compared: int
    reset: int
    has_barriers: bool
    has_deletes: bool
    has_returned: bool
    is_suspect: bool
    is_out_of_order: bool

    @classmethod
    def of(cls, history: DataFrame, rejected: DataFrame | None = None, stale: int = 0) -> "_Decided":
        """Decide, and keep what was decided: it is read several times."""
        rows = fold.decisions(history).localCheckpoint()
        is_gone = fold.is_delete(F.col("winner")["op"])
        returned = F.coalesce(F.col(fold.IS_REMEMBERED), F.lit(False)) & ~is_gone
        found = rows.agg(
            F.count(F.when(F.col("new_count") > 0, 1)),
            F.coalesce(F.sum("new_count"), F.lit(0)),
            F.count(F.when(F.col("is_compared"), 1)),
            F.count(F.when(F.col("is_reset"), 1)),
            *(
                F.coalesce(F.max(column), F.lit(False))
                for column in (
                    F.col("barrier").isNotNull(),
                    is_gone,
                    returned,
                    F.col("is_suspect"),
                    F.col("is_out_of_order"),
                )
            ),
        ).collect()[0]
        return cls(rows, history, rejected, stale, *found)

    def taken_from(self, events: DataFrame) -> DataFrame:
        """The events that count."""
        return events if self.rejected is None else fold.without(events, self.rejected)


@dataclass(frozen=True)
class _Schemas:
    """The schemas that a batch's records were written with, and the columns that follow from them."""

    keys: list[WriterSchema]
    values: list[WriterSchema]
    layout: Layout
    large: dict[str, str]


@dataclass
class _Batch:
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
    def counts(self) -> _Counts:
        """One look over the rows, without decoding any."""
        is_half = has_move_headers(F.col("headers")) & F.col("tombstone_of").isNull()
        is_untimed = F.col("op").isin("c", "u", "d") & F.col("source_ts_ms").isNull()
        found = self.rows.agg(
            F.count("*"),
            F.count("tombstone_of"),
            F.count(F.when(F.col("op") == TRUNCATE, 1)),
            F.count(F.when(is_mark(F.col("snapshot")), 1)),
            F.count(F.when(is_half, 1)),
            F.count(F.when(is_untimed, 1)),
            F.sort_array(F.collect_set("key_schema")),
            F.sort_array(F.collect_set("value_schema")),
        ).collect()[0]
        return _Counts(*found)

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
        before = self.remembered_of_all
        if not (self.counts.truncates or self.counts.marks):
            return before
        return self._whole_table(self.rows, truncated=before.truncated, snapshot=before.snapshot)

    def _whole_table(
        self, rows: DataFrame, *, truncated: Truncate | None = None, snapshot: Place | None = None
    ) -> WholeTable:
        settings = self.run.settings
        is_truncate = F.col("op") == TRUNCATE
        is_wanted = is_truncate | (is_mark(F.col("snapshot")) & F.lit(settings.remove_missing_after_snapshot))
        order = F.struct("source_position", "position_domain", "source_ts_ms")
        found = rows.where(is_wanted).select(_place().alias("place"), "snapshot", order.alias("o"), "op").collect()
        truncates = [Truncate(Place(*r["place"]), fold.Order(*r["o"])) for r in found if r["op"] == TRUNCATE]
        marks = [Mark(Place(*r["place"]), r["snapshot"]) for r in found if r["op"] != TRUNCATE]
        if truncates:
            self._check_truncates(len(truncates))
        return whole_table(truncates, marks, truncated=truncated, snapshot=snapshot)

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
    def stored_columns(self) -> dict[str, str]:
        """The source's columns in silver, name to Spark type."""
        if self.progress is None:
            return {}
        schema = self.run.silver().read().schema
        return {field.name: field.dataType.simpleString() for field in schema if field.name not in SILVER_META}

    @cached_property
    def schemas(self) -> _Schemas | None:
        """None when no event has had a key yet, so that nothing is known of the table."""
        key_schemas = self.counts.key_schemas or self._last_key_schema()
        return self.schemas_of(key_schemas, self.counts.value_schemas) if key_schemas else None

    def schemas_of(self, key_schemas: Sequence[str], value_schemas: Sequence[str]) -> _Schemas:
        """Read schemas and settle on the columns they need."""
        run = self.run
        keys = [run.schemas.by_fingerprint(name) for name in key_schemas]
        values = [run.schemas.by_fingerprint(name) for name in value_schemas]
        layout = _layout(run.done.table, layout_of(run.done.table, keys, values), self.stored_columns)
        large = large_columns(values, run.settings.null_means_keep) - layout.keys.keys()
        return _Schemas(keys, values, layout, {n: kind for n, kind in layout.columns.items() if n in large})

    def _last_key_schema(self) -> list[str]:
        """Truncates have no key: the one of the events before them."""
        before = self.run.bronze.where((F.col("batch") <= self.last) & (F.col("status") == "ok"))
        found = before.agg(F.max_by("key_schema", F.when(F.col("key_schema").isNotNull(), F.col("batch")))).collect()
        return [found[0][0]] if found[0][0] else []

    def folded(self) -> "_Folded":
        """Fold the batch; keys whose events stand in the log before what silver shows, from all of bronze."""
        assert self.schemas is not None
        happened = self._events(self.rows, self.schemas)
        decided = _Folding(self, self.schemas, happened, self.happened_to_all, None).decided()
        again = self._to_fold_again(decided, happened)
        if again is None:
            return _Folded(self, self.schemas, happened, decided, 0)
        return self._folded_again(again, decided)

    def _events(self, rows: DataFrame, schemas: _Schemas) -> DataFrame:
        settings = self.run.settings
        return events(
            rows.where(F.col("tombstone_of").isNull() & (F.col("op") != TRUNCATE)),
            schemas.layout,
            keys=schemas.keys,
            values=schemas.values,
            unavailable_value=settings.unavailable_value,
            null_means_keep=settings.null_means_keep,
        )

    def _to_fold_again(self, decided: _Decided, happened: DataFrame) -> DataFrame | None:
        """The keys to fold from all of bronze: `key`; none when there are none."""
        keys = None
        if decided.is_out_of_order and self.progress is not None:
            keys = decided.rows.where("is_out_of_order").select("key")
            if self.counts.truncates:
                keys = self._history().select("key").where(F.col("key").isNotNull())
        if self.counts.moves and self.remembers(AWAITING_ENTRY, MOVED_ENTRY):
            closed = happened.where((F.col("op") == "d") & F.col("move").isNotNull())
            waiting = self.remembered.where(F.col("awaits").isNotNull()).select("key", "awaits")
            found = waiting.join(closed.select(F.col("move").alias("awaits")), "awaits", how="left_semi").select("key")
            keys = found if keys is None else keys.unionByName(found)
        if keys is None:
            return None
        keys = keys.distinct().localCheckpoint()
        return None if keys.isEmpty() else self._with_relatives(keys)

    def _history(self) -> DataFrame:
        """All of bronze up to this batch."""
        return self.run.bronze.where((F.col("batch") <= self.last) & (F.col("status") == "ok"))

    def _with_relatives(self, keys: DataFrame) -> DataFrame:
        """These keys and those that any of their rows moved from or to."""
        own = F.col("headers"), F.col("source_position"), F.col("position_domain"), F.col("source_ts_ms"), F.col("key")
        halves = self._history().where(has_move_headers(F.col("headers")) & F.col("tombstone_of").isNull())
        halves = halves.select("key", move_of(*own).alias("move")).where(F.col("move").isNotNull()).localCheckpoint()
        if halves.isEmpty():
            return keys
        before, number = 0, keys.count()
        while number > before:
            related = halves.join(keys, "key", how="left_semi").select("move").distinct()
            more = halves.join(related, "move", how="left_semi").select("key")
            keys = keys.unionByName(more).distinct().localCheckpoint()
            before, number = number, keys.count()
        return keys

    def _folded_again(self, keys: DataFrame, decided: _Decided) -> "_Folded":
        old, fresh, behind = self._history().join(keys, "key", how="left_semi"), self.rows, 0
        if self.run.is_comparison:
            keys, old, fresh, behind = self._from_their_starts(keys, old, decided)
        of_all = self._whole_table(self._history().where((F.col("op") == TRUNCATE) | is_mark(F.col("snapshot"))))
        rows = fresh.join(keys, "key", how="left_anti").unionByName(old)
        found = rows.agg(F.collect_set("key_schema"), F.collect_set("value_schema")).collect()[0]
        schemas = self.schemas_of(sorted(found[0]), sorted({*found[1], *self.counts.value_schemas}))
        happened = self._events(rows, schemas)
        again = _Folding(self, schemas, happened, of_all, keys).decided()
        again = replace(again, stale=again.stale + behind)
        return _Folded(self, schemas, happened, again, keys.count())

    def _from_their_starts(
        self, keys: DataFrame, old: DataFrame, decided: _Decided
    ) -> tuple[DataFrame, DataFrame, DataFrame, int]:
        """Leave the rows alone of which bronze does not know enough to fold them again.

        A row can be folded from an event on that tells all of it, or that it is gone. Where bronze has none at or
        below what silver shows, the row stands, and only what is newer counts.

        Returns:
            The keys to fold again, their events, this batch's rows, and how many of these do not count.
        """
        is_start = F.col("op").isin("r", "c", "d", fold.TOMBSTONE) & F.col("tombstone_of").isNull()
        starts = old.where(is_start).groupBy("key").agg(F.min(_place()).alias("start"))
        shown = decided.rows.select("key", F.col(fold.STORED_KAFKA).alias("shown"))
        known = keys.join(starts, "key", how="left").join(shown, "key", how="left")
        known = known.withColumn("can", F.coalesce(F.col("start") <= F.col("shown"), F.lit(False))).localCheckpoint()
        can, cannot = known.where("can"), known.where(~F.col("can"))
        old = old.join(can.select("key", "start"), "key").where(_place() >= F.col("start")).drop("start")
        is_behind = F.coalesce(_place() <= F.col("shown"), F.lit(False))
        marked = self.rows.join(cannot.select("key", "shown"), "key", how="left").withColumn("is_behind", is_behind)
        number = cannot.count()
        if number:
            self.run.done.warn(
                f"{number} rows stand as they were: bronze holds no event that tells all of them, so older ones in it "
                "do not count"
            )
        fresh = marked.where(~F.col("is_behind")).select(*self.rows.columns)
        return can.select("key"), old, fresh, marked.where("is_behind").count()

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


@dataclass(frozen=True)
class _Folding:
    """The way from events to decisions.

    Attributes:
        happened: to all keys, in these events' stretch of the log.
        again: the keys that are folded from all of bronze, so that nothing stored counts; none in most batches.
    """

    batch: _Batch
    schemas: _Schemas
    events: DataFrame
    happened: WholeTable
    again: DataFrame | None

    def decided(self) -> _Decided:
        """Decide, and where any event does not count, decide without it; unless keys are to be folded again anyway."""
        marked = fold.with_suspicion(self._marked())
        if self.happened.missing:
            marked = fold.without_void(marked)
        first = _Decided.of(marked)
        is_for_nothing = first.is_out_of_order and self.again is None and self.batch.progress is not None
        if not first.is_suspect or is_for_nothing:
            return first
        rejected = fold.rejected_events(marked.where("is_suspect")).localCheckpoint()
        is_own = ~F.col("op").isin(*fold.WHOLE_TABLE_OPS)
        stale = rejected.where(F.col("is_new") & is_own).count()
        second = _Decided.of(fold.without(marked, rejected), rejected, stale)
        return replace(second, compared=first.compared, reset=first.reset)

    def _marked(self) -> DataFrame:
        """The narrow events, what is stored of their keys, and what happened to all keys."""
        narrow = fold.narrowed(self.events, first_batch=self.batch.first)
        nothing = {name: F.lit(None).cast(kind) for name, kind in fold.STORED.items()}
        touched = narrow.groupBy("key").agg(F.first("pk").alias("pk"))
        before = self.batch.remembered_of_all.truncated
        has_to_all = not self.happened.is_empty or before is not None
        if self.batch.progress is None:
            marked = narrow.withColumns(nothing)
            keys = touched.withColumns(nothing)
        else:
            stored = self._stored(touched)
            marked = narrow.join(stored.drop("pk"), "key", how="left")
            keys = stored.unionByName(touched.join(stored, "key", how="left_anti").withColumns(nothing))
        if not has_to_all:
            return marked
        if self.again is None:
            return with_whole_table(marked, keys, self.happened, remembered=before, is_new=True)
        old, fresh = keys.join(self.again, "key", how="left_semi"), keys.join(self.again, "key", how="left_anti")
        marked = with_whole_table(marked, old, self.happened, remembered=None, is_new=False)
        return with_whole_table(marked, fresh, self.batch.happened_to_all, remembered=before, is_new=True)

    def _stored(self, touched: DataFrame) -> DataFrame:
        """What silver and its memory hold of these keys: `key`, `pk`, `STORED`'s; of all keys, if all are concerned."""
        names = list(self.schemas.layout.keys)
        silver = self.batch.run.silver().read().alias("silver")
        same = _same_key("silver", names)
        if self.batch.happened_to_all.is_empty:
            joined = silver.join(touched.alias("touched"), same, how="inner")
            key = F.col("touched.key")
        else:
            joined = silver.join(touched.alias("touched"), same, how="left")
            # A key that has no event here needs a text of its own, and nothing more of it.
            pk = F.struct(*(F.col(f"silver.{quoted(name)}") for name in names))
            key = F.coalesce(F.col("touched.key"), F.concat(F.lit("\0"), F.to_json(pk, {"ignoreNullFields": "false"})))
        found = joined.select(
            key.alias("key"),
            F.struct(*(F.col(f"silver.{quoted(name)}").alias(name) for name in names)).alias("pk"),
            F.col(f"silver.{ORDER}").alias(fold.STORED_ORDER),
            F.col(f"silver.{KAFKA}").alias(fold.STORED_KAFKA),
            F.col(f"silver.{DELETED}").alias(fold.STORED_DELETED),
            F.col(f"silver.{UNAVAILABLE}").alias(fold.STORED_UNAVAILABLE),
            F.lit(False).alias(fold.IS_REMEMBERED),
        )
        if self.batch.remembers(DELETED_ENTRY):
            gone = self.batch.remembered.where(F.col("kind") == DELETED_ENTRY)
            found = found.unionByName(
                touched.join(gone, "key").select(
                    "key",
                    "pk",
                    F.col(ORDER).alias(fold.STORED_ORDER),
                    F.col(KAFKA).alias(fold.STORED_KAFKA),
                    F.lit(True).alias(fold.STORED_DELETED),
                    F.array().cast("array<string>").alias(fold.STORED_UNAVAILABLE),
                    F.lit(True).alias(fold.IS_REMEMBERED),
                )
            )
        return found if self.again is None else self._forgotten(found, self.again)

    @staticmethod
    def _forgotten(stored: DataFrame, again: DataFrame) -> DataFrame:
        """Without what is stored of the keys that are folded again, but for whether their row is gone."""
        marked = stored.join(again.withColumn("is_again", F.lit(True)), "key", how="left")
        kept = [name for name in fold.STORED if name != fold.IS_REMEMBERED]
        return marked.withColumns({name: F.when(F.col("is_again").isNull(), F.col(name)) for name in kept}).drop(
            "is_again"
        )


@dataclass(frozen=True)
class _Folded:
    """What a batch comes to.

    Attributes:
        events: the events it was folded from, `events()`' columns.
        refolded: how many keys were folded from all of bronze.
    """

    batch: _Batch
    schemas: _Schemas
    events: DataFrame
    decided: _Decided
    refolded: int

    @property
    def layout(self) -> Layout:
        """Silver's columns."""
        return self.schemas.layout

    def counted(self) -> dict[str, int]:
        """The parts that the batch's rows add up to."""
        counts = self.batch.counts
        return {
            "applied": self.decided.keys,
            "superseded": self.decided.events - self.decided.keys + self.decided.stale,
            "paired_tombstones": counts.paired_tombstones,
            "truncates": counts.truncates,
        }

    def changes(self, commit: int) -> DataFrame:
        """The rows to write."""
        settings, decided, large = self.batch.run.settings, self.decided, self.schemas.large
        found = values(
            decided.taken_from(self.events), decided.rows, large=list(large), has_barriers=decided.has_barriers
        )
        if self.lives is not None:
            found = with_heirs(found, moves.heirs(self.lives), large=list(large))
        return changes(
            decided.rows,
            found,
            keys=list(self.layout.keys),
            columns=list(self.layout.columns),
            stored_columns=self.batch.stored_columns,
            large=list(large),
            deletes=settings.deletes,
            truncates=self.batch.run.truncates,
            soft_delete_values=settings.soft_delete_values,
            batch=commit,
        )

    @cached_property
    def lives(self) -> DataFrame | None:
        """The lives of the keys that move, with what they inherit; none when there are no moves, or no large values."""
        batch, large = self.batch, self.schemas.large
        if not large or not (batch.counts.moves or self.refolded):
            return None
        movers = moves.movers(self.decided.history).localCheckpoint()
        history = self.decided.history.join(movers, "key", how="left_semi")
        sent = self.decided.taken_from(self.events).join(movers, "key", how="left_semi")
        living = moves.lives(history, sent, self._stored_values(movers), large).localCheckpoint()
        known = moves.images(batch.remembered, large)
        known = known.join(living.where(F.col("closes").isNotNull()), "closes", how="left_anti").localCheckpoint()
        for _ in range(moves.MAX_ROUNDS):
            living = moves.inherited(living, known, list(large)).localCheckpoint()
            is_going_on = F.col("is_found") & F.col("awaits").isNotNull()
            if living.where(is_going_on).isEmpty():
                break
        return living.drop("is_found")

    def _stored_values(self, movers: DataFrame) -> DataFrame | None:
        if self.batch.progress is None:
            return None
        own = self.decided.rows.join(movers, "key", how="left_semi").select("key", "pk").alias("touched")
        silver = self.batch.run.silver().read().alias("silver")
        rows = silver.join(own, _same_key("silver", list(self.layout.keys)), how="inner")
        return moves.stored_values(rows.select("touched.key", "silver.*"), self.batch.remembered, self.schemas.large)

    def remember(self, commit: int) -> SidePin | None:
        """Write what has to be remembered; the pin for silver's commit."""
        batch, run, settings = self.batch, self.batch.run, self.batch.run.settings
        parts = []
        # A soft delete leaves its row, which remembers: nothing to look for, unless others are remembered.
        can_go = self.decided.has_deletes and (settings.deletes == "hard" or batch.remembers(DELETED_ENTRY))
        if can_go or self.decided.has_returned:
            parts.append(memory.deleted_entries(self.decided.rows, deletes=settings.deletes))
        before, after = batch.remembered_of_all, batch.happened_to_all
        if (before.truncated, before.snapshot) != (after.truncated, after.snapshot):
            parts.append(memory.whole_table_entries(run.spark, before, after))
        if self.lives is not None:
            parts.append(moves.entries(self.lives, batch.remembered, list(self.schemas.large)))
        if not parts:
            return batch.pin
        now_ms = time.time_ns() // 1_000_000
        entries = memory.side_rows(parts, batch=commit, at_ms=now_ms)
        return run.side.write(batch.pin, entries, at_ms=now_ms, memory_days=settings.delete_memory_days)

    def check_log(self) -> None:
        """See that the source's log goes on where it was.

        Raises:
            DataLossError: its positions went back on many keys while its clock went on, and the settings say to stop.
        """
        decided, run = self.decided, self.batch.run
        if decided.reset < _RESET_KEYS or 2 * decided.reset <= decided.compared:
            return
        what = (
            f"the source's log positions went back on {decided.reset} of {decided.compared} keys while its clock went "
            "on, as after a restore or a move to another server: rows that it lost then are still in silver"
        )
        if run.settings.on_log_reset == "stop":
            raise DataLossError(
                run.done.table,
                what,
                "set `on_log_reset: warn` for this table and run again, then have the connector take a new snapshot "
                "(with `remove_missing_after_snapshot: true` for the rows that are gone)",
            )
        run.done.warn(what)


def _same_key(silver: str, names: Sequence[str]) -> Column:
    same = F.lit(True)
    for name in names:
        same = same & F.col(f"{silver}.{quoted(name)}").eqNullSafe(F.col("touched.pk")[name])
    return same


def _place() -> Column:
    return F.struct("log_ts", "topic", "generation", "partition", "offset")


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


def _write(run: SilverRun, rows: DataFrame, layout: Layout, following: Progress, *, is_new: bool) -> Progress:
    keys = list(layout.keys)
    silver = run.silver(keys)
    if is_new:
        return silver.append(rows.where(~F.col(DELETE)).drop(KEEP, DELETE), following).progress
    return silver.merge(rows, keys, following).progress


def _move_on(run: SilverRun, progress: Progress | None, following: Progress) -> Progress | None:
    """Consume batches that hold nothing to fold: control records, quarantine."""
    if progress is None:
        return None
    with run.done.phase("write"):
        run.check_lease()
        silver = run.silver()
        return silver.append(silver.read().limit(0), following).progress
