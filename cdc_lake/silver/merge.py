"""The fold of a silver batch: its events merged into the stored rows, the rows to write, and the state to remember.

One exchange brings each key's history together: its row in silver, its side-table entry, and the batch's events with
their bytes. `fold.arrow` folds it, and the result is decoded once. See docs/explanation/silver.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from cdc_lake.columns import (
    IMAGE_ENTRY,
    KAFKA,
    KAFKA_TYPE,
    KEY,
    KEY_ENTRY,
    ORDER,
    ORDER_TYPE,
    SEEN,
    UNAVAILABLE,
    quoted,
)
from cdc_lake.errors import DataLossError, DuplicateKeyError
from cdc_lake.fold import arrow
from cdc_lake.fold.rules import STARTS, STREAMING_OPS, UPSERTS
from cdc_lake.fold.table_events import TableEvents
from cdc_lake.silver import inherited_values, side_entries
from cdc_lake.silver.batch import Batch, BatchSchemas, schemas_and_frames
from cdc_lake.silver.events import with_rows
from cdc_lake.silver.evolution import Layout
from cdc_lake.silver.key_changes import has_key_change_headers, key_change_id
from cdc_lake.silver.rows import INHERITED_COLUMNS, OTHER_VALUES, RowSchema, changes, collect_large_values
from cdc_lake.spark.literals import of_batch
from cdc_lake.tables.progress import SidePin

_NAMED_KEYS = 10
"""Number of keys listed in an error."""
_RESET_KEYS = 10
"""The source's log was reset if the positions of this many keys went back, and of most comparable keys."""
_ARROW_ROWS, _ARROW_BYTES = 10_000, 64 << 20
"""Limits of an Arrow batch, which has at least one record."""
_ARROW_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"


def fold_events(batch: Batch) -> "FoldResult":
    """Fold the batch. Keys with an event older than the last one seen, and keys connected to them, are refolded from
    bronze.

    Raises:
        DuplicateKeyError: silver has several rows for a key.
    """
    assert batch.schemas is not None
    run, table_events = batch.run, batch.table_events
    rows = batch.accepted.withColumn("refold", F.lit(False))
    if table_events.is_out_of_order and not run.is_comparison:
        table_events = replace(batch.all_table_events, snapshot=table_events.snapshot)
        keys = batch.history().where(F.col("key").isNotNull()).select("key").distinct()
    else:
        found = _fold_rows(batch, batch.schemas, rows, table_events, largest=batch.counts.writers["largest"])
        if run.is_comparison:
            if found.totals.out_of_order:
                run.done.warn(
                    f"{found.totals.out_of_order} rows were kept: bronze has no event with the complete row, so "
                    "older events do not count"
                )
            return found
        may_be_named_before = found.totals.ended and batch.remembers(IMAGE_ENTRY)
        if not (found.totals.out_of_order or may_be_named_before):
            return found
        keys = found.pieces.where("is_out_of_order").select("key")
        if may_be_named_before:
            ended = found.pieces.where(F.col("role") == arrow.LIFETIME_PIECE)
            keys = keys.unionByName(inherited_values.ambiguous_key_changes(ended, batch.remembered))
            if keys.isEmpty():
                return found
        keys = inherited_values.connected_keys(_key_change_halves(batch.history()), keys)
    keys = keys.localCheckpoint()
    old = batch.history().join(keys, "key", "left_semi").withColumn("refold", F.lit(True))
    rows = rows.join(keys, "key", "left_anti").unionByName(old)
    ((writers,),) = rows.agg(schemas_and_frames()).collect()
    values = sorted({*writers["values"], *batch.counts.writers["values"]})
    schemas = batch.schemas_of(rows, writers["keys"], values, writers["frames"])
    return _fold_rows(batch, schemas, rows, table_events, largest=writers["largest"], refold=keys)


def _fold_rows(
    batch: Batch,
    schemas: BatchSchemas,
    rows: DataFrame,
    table_events: TableEvents,
    *,
    largest: int,
    refold: DataFrame | None = None,
) -> "FoldResult":
    """Fold bronze's rows. Their column `refold` says whether their key is refolded; `refold` has these keys."""
    run, progress = batch.run, batch.progress
    rules = arrow.Rules(
        large=list(schemas.large),
        hard=run.settings.deletes.mode == "hard",
        truncates_hard=run.truncates == "hard",
        table_events=batch.table_events.events,
        all_table_events=() if refold is None else batch.all_table_events.events,
        start=batch.remembered_table_events.start,
        last_table_event=table_events.start.seen_at,
        is_comparison=run.is_comparison,
    )
    history = _events(batch, schemas, rows, has_key_changes=refold is not None or batch.counts.key_changes > 0)
    if progress is not None:
        history = _with_stored(batch, schemas, history, refold)
    schema = StructType([*from_arrow_schema(arrow.PIECES), history.schema["pk"]])
    with _arrow_batches(run.spark, largest):
        pieces = (
            history.repartition("key")
            .sortWithinPartitions("key", "rank", "log_position")
            .mapInArrow(partial(arrow.fold, rules=rules), schema)
            .localCheckpoint(eager=False)
        )
        totals = Totals.of(pieces)
    found = FoldResult(batch, schemas, pieces, totals, table_events, refold)
    found.check_one_row_per_key()
    return found


@contextmanager
def _arrow_batches(spark: SparkSession, largest: int) -> Iterator[None]:
    """Keep Arrow batches small if records are large: Spark limits the number of rows only."""
    before = spark.conf.get(_ARROW_SETTING)
    spark.conf.set(_ARROW_SETTING, str(min(_ARROW_ROWS, max(_ARROW_BYTES // max(largest, 1), 1))))
    try:
        yield
    finally:
        spark.conf.set(_ARROW_SETTING, str(before))


def _events(batch: Batch, schemas: BatchSchemas, rows: DataFrame, *, has_key_changes: bool) -> DataFrame:
    """The events in the columns that `fold.arrow` takes."""
    more = ("raw_value", "value_schema", "refold")
    rows = rows.withColumn("value_framing", F.col("framing")["value"])
    events = batch.events(rows, schemas, has_key_changes=has_key_changes, is_narrow=True, more=(*more, "value_framing"))
    order = {"position": "source_position", "domain": "position_domain", "ts_ms": "source_ts_ms"}
    return events.select(
        *("key", "pk"),
        F.lit(arrow.EVENT).alias("rank"),
        F.col(KAFKA).alias("log_position"),
        "op",
        (F.col("op").isin(*STREAMING_OPS) & F.col("snapshot").isNull()).alias("is_streaming"),
        F.struct(*(F.col(column).alias(name) for name, column in order.items())).cast(ORDER_TYPE).alias("order"),
        F.coalesce("unavailable", _names(())).alias("unsent"),
        "key_change",
        F.lit(None).cast(KAFKA_TYPE).alias("seen"),
        "snapshot",
        (F.col("batch") >= of_batch(batch.first, F.col("batch"))).alias("is_new"),
        "refold",
        F.when(F.col("op").isin(*UPSERTS), F.col("raw_value")).alias("raw_value"),
        "value_schema",
        F.col("value_framing").alias("framing"),
    )


def _with_stored(batch: Batch, schemas: BatchSchemas, events: DataFrame, refold: DataFrame | None) -> DataFrame:
    """The events, with the silver rows and side-table entries of their keys; of all keys if all are affected."""
    entries = batch.remembered.where(F.col("kind") == KEY_ENTRY)
    silver, remembers = batch.silver, batch.remembers(KEY_ENTRY)
    if batch.table_events.events:
        silver = schemas.with_key(silver)
    elif remembers and batch.counts.key_changes:
        # A row with a pending key change may inherit its values now.
        keys = events.select("key").unionByName(entries.where(F.col("awaits").isNotNull()).select("key"))
        silver = schemas.with_key(silver).join(keys, F.col(KEY) == F.col("key"), "left_semi")
        entries = entries.join(keys, "key", "left_semi")
    else:
        silver = schemas.with_key(_of_keys(silver, events, list(schemas.layout.keys)))
        entries = entries.join(events.select("key"), "key", "left_semi")
    new = [name for name in schemas.large if name not in batch.silver.columns]
    rows = silver.select(
        F.col(KEY).alias("key"),
        F.struct(*(F.col(quoted(name)).alias(name) for name in schemas.layout.keys)).alias("pk"),
        F.lit(arrow.ROW).alias("rank"),
        F.col(KAFKA).alias("log_position"),
        F.col("__op").alias("op"),
        F.col(ORDER).alias("order"),
        F.concat(F.coalesce(UNAVAILABLE, _names(())), _names(new)).alias("unsent"),
    )
    parts = [rows]
    if remembers:
        columns = {
            "log_position": F.col(KAFKA),
            "order": F.col(ORDER),
            "key_change": F.col("awaits"),
            "seen": F.col(SEEN),
        }
        remembered = (column.alias(name) for name, column in columns.items())
        parts.append(entries.select("key", F.lit(arrow.MEMORY).alias("rank"), *remembered))
    for part in parts:
        if refold is None:
            part = part.withColumn("refold", F.lit(False))
        else:
            is_refolded = refold.withColumn("refold", F.lit(True))
            part = part.join(is_refolded, "key", "left").withColumn("refold", F.coalesce("refold", F.lit(False)))
        defaults = {"is_streaming": F.lit(False), "is_new": F.lit(False), "unsent": _names(())}
        own = {name: F.col(name) for name in part.columns}
        columns = defaults | own
        filled = (columns.get(one.name, F.lit(None)).cast(one.dataType).alias(one.name) for one in events.schema)
        events = events.unionByName(part.select(*filled))
    return events


def _names(names: Iterable[str]) -> Column:
    return F.array(*map(F.lit, names)).cast("array<string>")


def _of_keys(silver: DataFrame, events: DataFrame, names: Sequence[str]) -> DataFrame:
    """The silver rows that have a key of these events."""
    same = F.lit(True)
    for name in names:
        same = same & F.col(f"silver.{quoted(name)}").eqNullSafe(F.col("event.pk")[name])
    return silver.alias("silver").join(events.select("pk").alias("event"), same, "left_semi")


def _key_change_halves(history: DataFrame) -> DataFrame:
    """The halves of key changes: `key`, `key_change`."""
    own = F.col("headers"), F.col("source_position"), F.col("position_domain"), F.col("source_ts_ms"), F.col("key")
    halves = history.where(has_key_change_headers(F.col("headers")) & F.col("tombstone_of").isNull())
    return halves.select("key", key_change_id(*own).alias("key_change")).where(F.col("key_change").isNotNull())


@dataclass(frozen=True)
class Totals:
    """Totals over all pieces; see `fold.arrow`.

    Attributes:
        keys: with a new event that counts.
        refolded: keys that were refolded from bronze.
        entries: keys that have, or had, a side-table entry.
    """

    keys: int
    counting: int
    stale: int
    out_of_order: int
    duplicates: int
    compared: int
    reset: int
    refolded: int
    other_values: int
    ended: int
    waiting: int
    entries: int

    @classmethod
    def of(cls, pieces: DataFrame) -> "Totals":
        """Count; this action computes the pieces."""

        def number(is_so: Column) -> Column:
            return F.count(F.when(is_so, 1))

        role = F.col("role")
        found = pieces.agg(
            number(F.col("counting") > 0),
            F.coalesce(F.sum("counting"), F.lit(0)),
            F.coalesce(F.sum("stale"), F.lit(0)),
            *(
                number(F.col(name))
                for name in ("is_out_of_order", "has_duplicates", "is_compared", "is_log_reset", "is_refolded")
            ),
            number(role == arrow.VALUES_PIECE),
            number(role == arrow.LIFETIME_PIECE),
            number(F.col("moved_by").isNotNull() & (role == arrow.ROW_PIECE)),
            number((role == arrow.ROW_PIECE) & (side_entries.key_is_remembered() | F.col("has_memory"))),
        )
        return cls(*found.collect()[0])


@dataclass(frozen=True)
class FoldResult:
    """The result of a batch's fold.

    Attributes:
        pieces: `fold.arrow`'s, computed.
        table_events: the events of all keys.
        refold: the keys that were refolded from bronze, in `key`; none if there are none.
    """

    batch: Batch
    schemas: BatchSchemas
    pieces: DataFrame
    totals: Totals
    table_events: TableEvents
    refold: DataFrame | None = None

    @property
    def layout(self) -> Layout:
        """Silver's columns."""
        return self.schemas.layout

    def counted(self) -> dict[str, int]:
        """The outcomes that add up to the batch's rows."""
        counts, totals = self.batch.counts, self.totals
        return {
            "applied": totals.keys,
            "superseded": totals.counting - totals.keys + totals.stale,
            "paired_tombstones": counts.paired_tombstones,
            "truncates": counts.truncates,
            "rejected": self.batch.rejected.count() if self.batch.rejected is not None else 0,
        }

    def changes(self, commit: int) -> DataFrame:
        """The rows to write."""
        rows, large = self._decoded(self._rows), self._row_schema.large
        if self.totals.other_values:
            other_values = collect_large_values(
                self._decoded(self._of_role(arrow.VALUES_PIECE)), ["key"], large
            ).withColumnRenamed("large_values", OTHER_VALUES)
            rows = rows.join(other_values, "key", "left")
        return changes(rows, self._row_schema, batch=commit)

    @property
    def _row_schema(self) -> RowSchema:
        batch, layout = self.batch, self.layout
        return RowSchema(
            list(layout.keys),
            list(layout.columns),
            batch.stored_columns,
            list(self.schemas.large),
            batch.run.settings.deletes.keep_values,
        )

    @cached_property
    def _rows(self) -> DataFrame:
        """The pieces of rows, with the values that they inherit from ended lifetimes."""
        waits = F.when(~self._row_schema.is_emptied(), F.col("moved_by"))
        rows = self._of_role(arrow.ROW_PIECE).withColumn("moved_by", waits)
        if self._lifetimes is None:
            return rows.withColumn(INHERITED_COLUMNS, _names(()))
        moved_rows = rows.where(F.col("moved_by").isNotNull()).select("key", "moved_by", "missing")
        inherited = inherited_values.inherit(self._lifetimes, moved_rows, self._row_schema.large).localCheckpoint()
        rows = rows.join(inherited, "key", "left")
        inherited_columns = F.coalesce(INHERITED_COLUMNS, _names(()))
        missing = F.array_except("missing", inherited_columns)
        waits = F.when(F.size(missing) > 0, F.col("moved_by"))
        return rows.withColumns({INHERITED_COLUMNS: inherited_columns, "missing": missing, "moved_by": waits})

    @cached_property
    def _lifetimes(self) -> DataFrame | None:
        """The lifetimes that key changes ended, computed; none if no key changed, or no column is large."""
        if not self.schemas.large or not (self.totals.ended or self.totals.waiting):
            return None
        return self._ended_lifetimes.unionByName(self._stored_lifetimes).localCheckpoint()

    @cached_property
    def _ended_lifetimes(self) -> DataFrame:
        """The lifetimes that this batch's key changes ended."""
        batch, large = self.batch, self.schemas.large
        ended = self._decoded(self._of_role(arrow.LIFETIME_PIECE))
        stored = None
        if batch.progress is not None:
            rows = _of_keys(batch.silver, ended, list(self.layout.keys))
            rows = self.schemas.with_key(rows).withColumnRenamed(KEY, "key")
            stored = inherited_values.stored_values(rows, large)
        return inherited_values.ended_lifetimes(ended, stored, list(large)).localCheckpoint()

    @property
    def _stored_lifetimes(self) -> DataFrame:
        """The lifetimes that earlier batches ended, except those of refolded keys, which this batch has."""
        found = inherited_values.stored_lifetimes(self.batch.remembered, self.schemas.large)
        return found if self.refold is None else found.join(self.refold, "key", "left_anti")

    def _of_role(self, role: str) -> DataFrame:
        return self.pieces.where(F.col("role") == role)

    def _decoded(self, pieces: DataFrame) -> DataFrame:
        return with_rows(pieces, self.layout, values=self.schemas.values, frames=self.schemas.frames)

    def remember(self, commit: int) -> SidePin | None:
        """Write the side-table entries; the pin for silver's commit."""
        batch, large = self.batch, list(self.schemas.large)
        parts = []
        if self.totals.entries:
            parts.append(side_entries.key_entries(self._rows))
        table_events = side_entries.table_entries(batch.run.spark, batch.remembered_table_events, self.table_events)
        if table_events is not None:
            parts.append(table_events)
        if large and self.totals.ended:
            parts.append(inherited_values.lifetime_entries(self._ended_lifetimes, large))
        if self.refold is not None and batch.remembers(IMAGE_ENTRY):
            old = batch.remembered.where(F.col("kind") == IMAGE_ENTRY).join(self.refold, "key", "left_semi")
            parts.append(side_entries.forgotten(old.join(self._ended_lifetimes.select("id"), "id", "left_anti")))
        if batch.rejected is not None:
            parts.append(side_entries.rejected_entries(batch.rejected))
        if batch.readmitted is not None:
            parts.append(side_entries.forgotten(batch.readmitted))
        return batch.remember(parts, commit)

    def check_one_row_per_key(self) -> None:
        """Check that silver has one row for each key of the batch.

        Raises:
            DuplicateKeyError: it has several.
        """
        if not self.totals.duplicates:
            return
        table = self.batch.run.done.table
        keys = self.pieces.where("has_duplicates").select("key").orderBy("key").limit(_NAMED_KEYS).collect()
        raise DuplicateKeyError(
            table,
            f"another program wrote to silver: {self.totals.duplicates} keys have several rows, for example "
            f"{', '.join(row['key'] for row in keys)}",
            f"run `cdc-lake rebuild --table {table}`; the batch was not committed",
        )

    def check_log(self) -> None:
        """Check that the source's log positions continue.

        Raises:
            DataLossError: positions went back on many keys while time advanced, and `read.on_log_reset` is stop.
        """
        totals, run = self.totals, self.batch.run
        if totals.reset < _RESET_KEYS or 2 * totals.reset <= totals.compared:
            return
        what = (
            f"the source's log positions went back on {totals.reset} of {totals.compared} keys while its clock "
            "advanced, as after a restore or a failover: silver still has the rows that the source lost"
        )
        if run.settings.read.on_log_reset == "stop":
            raise DataLossError(
                run.done.table,
                what,
                "set `read.on_log_reset: warn` for this table and run again, then have the connector take a new "
                "snapshot (with `deletes.missing_after_snapshot: true` for the rows that are gone)",
            )
        run.done.warn(what)


def is_start() -> Column:
    """Whether a bronze row has its table's complete row, or deletes it."""
    return F.col("op").isin(*STARTS) & F.col("tombstone_of").isNull()
