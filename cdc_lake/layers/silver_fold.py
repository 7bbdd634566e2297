"""What a batch of silver comes to: the decision for each of its keys, the rows to write, what to remember."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.changes import fold, memory, moves
from cdc_lake.changes.rows import changes, values, with_heirs
from cdc_lake.changes.whole_table import WholeTable, with_whole_table
from cdc_lake.columns import (
    AWAITING_ENTRY,
    DELETED,
    DELETED_ENTRY,
    KAFKA,
    KAFKA_TYPE,
    KEY,
    MOVED_ENTRY,
    ORDER,
    UNAVAILABLE,
    quoted,
)
from cdc_lake.errors import DataLossError, DuplicateKeyError
from cdc_lake.events.layout import Layout
from cdc_lake.events.moves import has_move_headers, move_of
from cdc_lake.events.rows import place
from cdc_lake.fold.rules import TOMBSTONE, WHOLE_TABLE_OPS
from cdc_lake.layers.silver_batch import Batch, Schemas, schemas_and_frames
from cdc_lake.tables.progress import SidePin

_NAMED_KEYS = 10
"""So many keys are named in an error."""
_RESET_KEYS = 10
"""The source's log was reset if at least so many keys say so, and most of those that can tell."""


def folded(batch: Batch) -> "Folded":
    """Fold the batch; keys whose events stand in the log before what silver shows, from all of bronze."""
    assert batch.schemas is not None
    happened = batch.events(batch.accepted, batch.schemas, has_moves=batch.counts.moves > 0)
    decided = Folding(batch, batch.schemas, happened, batch.happened_to_all, None).decided()
    again = _to_fold_again(batch, decided, happened)
    if again is None:
        return Folded(batch, batch.schemas, happened, decided, 0)
    return _folded_again(batch, again, decided)


@dataclass(frozen=True)
class Decided:
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
    def of(cls, history: DataFrame, rejected: DataFrame | None = None, stale: int = 0) -> "Decided":
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
class Folding:
    """The way from events to decisions.

    Attributes:
        happened: to all keys, in these events' stretch of the log.
        again: the keys that are folded from all of bronze, so that nothing stored counts; none in most batches.
    """

    batch: Batch
    schemas: Schemas
    events: DataFrame
    happened: WholeTable
    again: DataFrame | None

    def decided(self) -> Decided:
        """Decide, and where any event does not count, decide without it; unless keys are to be folded again anyway."""
        marked = fold.with_suspicion(self._marked())
        if self.happened.missing:
            marked = fold.without_void(marked, keeps_behind=self.again is None and self.batch.progress is not None)
        first = Decided.of(marked)
        is_for_nothing = first.is_out_of_order and self.again is None and self.batch.progress is not None
        if not first.is_suspect or is_for_nothing:
            return first
        self._check_one_row_per_key()
        rejected = fold.rejected_events(marked.where("is_suspect")).localCheckpoint()
        is_own = ~F.col("op").isin(*WHOLE_TABLE_OPS)
        stale = rejected.where(F.col("is_new") & is_own).count()
        second = Decided.of(fold.without(marked, rejected), rejected, stale)
        return replace(second, compared=first.compared, reset=first.reset)

    def _marked(self) -> DataFrame:
        """The narrow events, what is stored of their keys, and what happened to all keys."""
        narrow = fold.narrowed(self.events, first_batch=self.batch.first)
        nothing = {name: F.lit(None).cast(kind) for name, kind in fold.STORED.items()}
        touched = _keys_of(narrow)
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

    def _check_one_row_per_key(self) -> None:
        """Check that silver has one row of each key that this batch touches.

        With two rows, the join repeats each event, and the second copy is stale. So only batches with stale events
        need this check.

        Raises:
            DuplicateKeyError: it has several.
        """
        if self.batch.progress is None:
            return
        narrow = fold.narrowed(self.events, first_batch=self.batch.first)
        rows = self._stored(_keys_of(narrow)).where(~F.coalesce(fold.IS_REMEMBERED, F.lit(False)))
        found = rows.groupBy("key").count().where("count > 1")
        keys = [row["key"] for row in found.orderBy("key").limit(_NAMED_KEYS).collect()]
        if keys:
            table = self.batch.run.done.table
            raise DuplicateKeyError(
                table,
                f"another program wrote to silver: {found.count()} keys have several rows, such as {', '.join(keys)}",
                f"run `cdc-lake rebuild --table {table}`; nothing was written",
            )

    def _stored(self, touched: DataFrame) -> DataFrame:
        """What silver and its memory hold of these keys: `key`, `pk`, `STORED`'s; of all keys, if all are concerned."""
        names = list(self.schemas.layout.keys)
        silver = self.batch.silver.alias("silver")
        same = _same_key("silver", names)
        if self.batch.happened_to_all.is_empty:
            joined = silver.join(touched.alias("touched"), same, how="inner")
            key = F.col("touched.key")
        else:
            # A key that has no event here needs its text too: what is remembered of it is found by that.
            silver = self.schemas.with_key(self.batch.silver).alias("silver")
            joined = silver.join(touched.alias("touched"), same, how="left")
            key = F.coalesce(F.col("touched.key"), F.col(f"silver.{KEY}"))
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


class _Moved(NamedTuple):
    """The lives of the keys that move, with what they inherit, and what earlier batches left to inherit from."""

    lives: DataFrame
    images: DataFrame


@dataclass(frozen=True)
class Folded:
    """What a batch comes to.

    Attributes:
        events: the events it was folded from, `events()`' columns.
        refolded: how many keys were folded from all of bronze.
        again: these keys: `key`.
    """

    batch: Batch
    schemas: Schemas
    events: DataFrame
    decided: Decided
    refolded: int
    again: DataFrame | None = None

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
            "rejected": self.batch.rejected.count() if self.batch.rejected is not None else 0,
        }

    def changes(self, commit: int) -> DataFrame:
        """The rows to write."""
        settings, decided, large = self.batch.run.settings, self.decided, self.schemas.large
        found = values(
            decided.taken_from(self.events), decided.rows, large=list(large), has_barriers=decided.has_barriers
        )
        if self.moved is not None:
            found = with_heirs(found, moves.heirs(self.moved.lives), large=list(large))
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
    def moved(self) -> "_Moved | None":
        """The keys that move; none when none does, or no value is large."""
        batch, large = self.batch, self.schemas.large
        if not large or not (batch.counts.moves or self.refolded):
            return None
        movers = moves.movers(self.decided.history).localCheckpoint()
        history = self.decided.history.join(movers, "key", how="left_semi")
        sent = self.decided.taken_from(self.events).join(movers, "key", how="left_semi")
        living = moves.lives(history, sent, self._stored_values(movers), large).localCheckpoint()
        images = moves.images(batch.remembered, large)
        if self.again is not None:  # all of their lives are here
            closed = living.where(F.col("closes").isNotNull()).join(self.again, "key", how="left_semi")
            images = images.join(closed, "closes", how="left_anti")
        images = images.localCheckpoint()
        for _ in range(moves.MAX_ROUNDS):
            living = moves.inherited(living, images, list(large)).localCheckpoint()
            is_going_on = F.col("is_found") & F.col("awaits").isNotNull()
            if living.where(is_going_on).isEmpty():
                break
        return _Moved(living.drop("is_found"), images)

    def _stored_values(self, movers: DataFrame) -> DataFrame | None:
        if self.batch.progress is None:
            return None
        own = self.decided.rows.join(movers, "key", how="left_semi").select("key", "pk").alias("touched")
        silver = self.batch.silver.alias("silver")
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
        if batch.rejected is not None:
            parts.append(memory.rejected_entries(batch.rejected))
        if batch.readmitted is not None:
            parts.append(memory.readmitted_entries(batch.readmitted))
        if self.moved is not None:
            parts.append(moves.entries(*self.moved, batch.remembered, list(self.schemas.large)))
        return batch.remember(parts, commit)

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


def _to_fold_again(batch: Batch, decided: Decided, happened: DataFrame) -> DataFrame | None:
    """The keys to fold from all of bronze: `key`; none when there are none."""
    keys = None
    if decided.is_out_of_order and batch.progress is not None:
        keys = decided.rows.where("is_out_of_order").select("key")
        if batch.counts.truncates:
            keys = batch.history().select("key").where(F.col("key").isNotNull())
    if batch.counts.moves and batch.remembers(AWAITING_ENTRY, MOVED_ENTRY):
        closed = happened.where((F.col("op") == "d") & F.col("move").isNotNull())
        waiting = batch.remembered.where(F.col("awaits").isNotNull()).select("key", "awaits")
        found = waiting.join(closed.select(F.col("move").alias("awaits")), "awaits", how="left_semi").select("key")
        keys = found if keys is None else keys.unionByName(found)
    late = _missing_before(batch)
    if late is not None:
        keys = late if keys is None else keys.unionByName(late)
    if keys is None:
        return None
    keys = keys.distinct().localCheckpoint()
    return None if keys.isEmpty() else _with_relatives(batch, keys)


def _missing_before(batch: Batch) -> DataFrame | None:
    """The keys without a row that are remembered as missing at a snapshot's end, where an end of this batch stands
    before it: they may have been missing then. Columns out: `key`.
    """
    new = batch.happened_to_all.missing
    if not (new and batch.remembers(DELETED_ENTRY) and (batch.counts.late_marks or batch.run.partitions > 1)):
        return None
    later = [one.place for one in batch.ever_happened_to_all.missing if one.place > new[0].place]
    ends = batch.run.spark.createDataFrame([(end,) for end in later], f"{KAFKA} {KAFKA_TYPE}")
    gone = batch.remembered.where(F.col("kind") == DELETED_ENTRY)
    return gone.join(F.broadcast(ends), KAFKA, how="left_semi").select("key")


def _with_relatives(batch: Batch, keys: DataFrame) -> DataFrame:
    """These keys and those that any of their rows moved from or to."""
    own = F.col("headers"), F.col("source_position"), F.col("position_domain"), F.col("source_ts_ms"), F.col("key")
    halves = batch.history().where(has_move_headers(F.col("headers")) & F.col("tombstone_of").isNull())
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


def _folded_again(batch: Batch, keys: DataFrame, decided: Decided) -> "Folded":
    old, fresh, behind = batch.history().join(keys, "key", how="left_semi"), batch.accepted, 0
    if batch.run.is_comparison:
        keys, old, fresh, behind = _from_their_starts(batch, keys, old, decided)
    of_all = batch.ever_happened_to_all
    rows = fresh.join(keys, "key", how="left_anti").unionByName(old)
    ((found,),) = rows.agg(schemas_and_frames()).collect()
    values = sorted({*found["values"], *batch.counts.written["values"]})
    schemas = batch.schemas_of(rows, found["keys"], values, found["frames"])
    happened = batch.events(rows, schemas, has_moves=True)
    again = Folding(batch, schemas, happened, of_all, keys).decided()
    again = replace(again, stale=again.stale + behind)
    return Folded(batch, schemas, happened, again, keys.count(), keys)


def is_start() -> Column:
    """Whether a bronze row tells all of its table's row, or that it is gone."""
    return F.col("op").isin("r", "c", "d", TOMBSTONE) & F.col("tombstone_of").isNull()


def _from_their_starts(
    batch: Batch, keys: DataFrame, old: DataFrame, decided: Decided
) -> tuple[DataFrame, DataFrame, DataFrame, int]:
    """Leave the rows alone of which bronze does not know enough to fold them again.

    A row can be folded from an event on that tells all of it, or that it is gone. Where bronze has none at or
    below what silver shows, the row stands, and only what is newer counts.

    Returns:
        The keys to fold again, their events, this batch's rows, and how many of these do not count.
    """
    starts = old.where(is_start()).groupBy("key").agg(F.min(place()).alias("start"))
    shown = decided.rows.select("key", F.col(fold.STORED_KAFKA).alias("shown"))
    known = keys.join(starts, "key", how="left").join(shown, "key", how="left")
    known = known.withColumn("can", F.coalesce(F.col("start") <= F.col("shown"), F.lit(False))).localCheckpoint()
    can, cannot = known.where("can"), known.where(~F.col("can"))
    old = old.join(can.select("key", "start"), "key").where(place() >= F.col("start")).drop("start")
    is_behind = F.coalesce(place() <= F.col("shown"), F.lit(False))
    marked = batch.accepted.join(cannot.select("key", "shown"), "key", how="left").withColumn("is_behind", is_behind)
    number = cannot.count()
    if number:
        batch.run.done.warn(
            f"{number} rows stand as they were: bronze holds no event that tells all of them, so older ones in it "
            "do not count"
        )
    fresh = marked.where(~F.col("is_behind")).select(*batch.rows.columns)
    return can.select("key"), old, fresh, marked.where("is_behind").count()


def _keys_of(events: DataFrame) -> DataFrame:
    """The keys of events, one row each: `key`, `pk`."""
    return events.groupBy("key").agg(F.first("pk").alias("pk"))


def _same_key(silver: str, names: Sequence[str]) -> Column:
    same = F.lit(True)
    for name in names:
        same = same & F.col(f"{silver}.{quoted(name)}").eqNullSafe(F.col("touched.pk")[name])
    return same
