"""What a batch of silver comes to: its events folded upon what is stored, the rows to write, what to remember.

One exchange brings each key's history together: its row in silver, silver's memory of it, the batch's events with their
bytes. `fold.arrow` goes through it, and what comes out is decoded once. docs/explanation/silver.md.
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
from cdc_lake.silver import inherited_values as moves
from cdc_lake.silver import side_entries as memory
from cdc_lake.silver.batch import Batch, Schemas, schemas_and_frames
from cdc_lake.silver.events import with_rows
from cdc_lake.silver.evolution import Layout
from cdc_lake.silver.key_changes import has_move_headers, move_of
from cdc_lake.silver.rows import GIVEN, INHERITED, Shape, changes, held
from cdc_lake.spark.literals import of_batch
from cdc_lake.tables.progress import SidePin

_NAMED_KEYS = 10
"""So many keys are named in an error."""
_RESET_KEYS = 10
"""The source's log was reset if at least so many keys say so, and most of those that can tell."""
_ARROW_ROWS, _ARROW_BYTES = 10_000, 64 << 20
"""At most so much goes to a worker's Python at a time, but at least one record."""
_ARROW_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"


def folded(batch: Batch) -> "Folded":
    """Fold the batch; keys with an event before the last one considered, and those related to them, from all of bronze.

    Raises:
        DuplicateKeyError: silver has several rows of a key.
    """
    assert batch.schemas is not None
    run, happened = batch.run, batch.happened_to_all
    rows = batch.accepted.withColumn("again", F.lit(False))
    if happened.is_behind and not run.is_comparison:
        happened = replace(batch.ever_happened_to_all, snapshot=happened.snapshot)
        keys = batch.history().where(F.col("key").isNotNull()).select("key").distinct()
    else:
        found = _folded(batch, batch.schemas, rows, happened, largest=batch.counts.written["largest"])
        if run.is_comparison:
            if found.totals.behind:
                run.done.warn(
                    f"{found.totals.behind} rows stand as they were: bronze holds no event that tells all of them, so "
                    "older ones in it do not count"
                )
            return found
        may_be_named_before = found.totals.left and batch.remembers(IMAGE_ENTRY)
        if not (found.totals.behind or may_be_named_before):
            return found
        keys = found.pieces.where("is_behind").select("key")
        if may_be_named_before:
            left = found.pieces.where(F.col("role") == arrow.LEFT)
            keys = keys.unionByName(moves.named_before(left, batch.remembered))
            if keys.isEmpty():
                return found
        keys = moves.relatives(_halves(batch.history()), keys)
    keys = keys.localCheckpoint()
    old = batch.history().join(keys, "key", "left_semi").withColumn("again", F.lit(True))
    rows = rows.join(keys, "key", "left_anti").unionByName(old)
    ((written,),) = rows.agg(schemas_and_frames()).collect()
    values = sorted({*written["values"], *batch.counts.written["values"]})
    schemas = batch.schemas_of(rows, written["keys"], values, written["frames"])
    return _folded(batch, schemas, rows, happened, largest=written["largest"], again=keys)


def _folded(
    batch: Batch,
    schemas: Schemas,
    rows: DataFrame,
    happened: TableEvents,
    *,
    largest: int,
    again: DataFrame | None = None,
) -> "Folded":
    """Fold bronze's rows, which say by `again` whether their key is folded again; `again` has these keys."""
    run, progress = batch.run, batch.progress
    rules = arrow.Rules(
        large=list(schemas.large),
        hard=run.settings.deletes.mode == "hard",
        truncates_hard=run.truncates == "hard",
        of_all=batch.happened_to_all.events,
        ever_of_all=() if again is None else batch.ever_happened_to_all.events,
        start=batch.remembered_of_all.start,
        seen_by_all=happened.start.considered,
        is_comparison=run.is_comparison,
    )
    history = _events(batch, schemas, rows, has_moves=again is not None or batch.counts.moves > 0)
    if progress is not None:
        history = _with_stored(batch, schemas, history, again)
    schema = StructType([*from_arrow_schema(arrow.PIECES), history.schema["pk"]])
    with _arrow_batches(run.spark, largest):
        pieces = (
            history.repartition("key")
            .sortWithinPartitions("key", "rank", "place")
            .mapInArrow(partial(arrow.fold, rules=rules), schema)
            .localCheckpoint(eager=False)
        )
        totals = Totals.of(pieces)
    found = Folded(batch, schemas, pieces, totals, happened, again)
    found.check_one_row_per_key()
    return found


@contextmanager
def _arrow_batches(spark: SparkSession, largest: int) -> Iterator[None]:
    """Keep batches of Arrow small where records are large: Spark counts rows only."""
    before = spark.conf.get(_ARROW_SETTING)
    spark.conf.set(_ARROW_SETTING, str(min(_ARROW_ROWS, max(_ARROW_BYTES // max(largest, 1), 1))))
    try:
        yield
    finally:
        spark.conf.set(_ARROW_SETTING, str(before))


def _events(batch: Batch, schemas: Schemas, rows: DataFrame, *, has_moves: bool) -> DataFrame:
    """The events as `fold.arrow` takes them."""
    more = ("raw_value", "value_schema", "again")
    rows = rows.withColumn("value_framing", F.col("framing")["value"])
    events = batch.events(rows, schemas, has_moves=has_moves, is_narrow=True, more=(*more, "value_framing"))
    order = {"position": "source_position", "domain": "position_domain", "ts_ms": "source_ts_ms"}
    return events.select(
        *("key", "pk"),
        F.lit(arrow.EVENT).alias("rank"),
        F.col(KAFKA).alias("place"),
        "op",
        (F.col("op").isin(*STREAMING_OPS) & F.col("snapshot").isNull()).alias("is_streaming"),
        F.struct(*(F.col(column).alias(name) for name, column in order.items())).cast(ORDER_TYPE).alias("order"),
        F.coalesce("unavailable", _names(())).alias("unsent"),
        "move",
        F.lit(None).cast(KAFKA_TYPE).alias("seen"),
        "snapshot",
        (F.col("batch") >= of_batch(batch.first, F.col("batch"))).alias("is_new"),
        "again",
        F.when(F.col("op").isin(*UPSERTS), F.col("raw_value")).alias("raw_value"),
        "value_schema",
        F.col("value_framing").alias("framing"),
    )


def _with_stored(batch: Batch, schemas: Schemas, events: DataFrame, again: DataFrame | None) -> DataFrame:
    """The events, and what silver and its memory hold of their keys; of all keys, if all are concerned."""
    entries = batch.remembered.where(F.col("kind") == KEY_ENTRY)
    silver, remembers = batch.silver, batch.remembers(KEY_ENTRY)
    if batch.happened_to_all.events:
        silver = schemas.with_key(silver)
    elif remembers and batch.counts.moves:
        # A row that waits for what a key change left may get it now.
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
        F.col(KAFKA).alias("place"),
        F.col("__op").alias("op"),
        F.col(ORDER).alias("order"),
        F.concat(F.coalesce(UNAVAILABLE, _names(())), _names(new)).alias("unsent"),
    )
    parts = [rows]
    if remembers:
        columns = {"place": F.col(KAFKA), "order": F.col(ORDER), "move": F.col("awaits"), "seen": F.col(SEEN)}
        remembered = (column.alias(name) for name, column in columns.items())
        parts.append(entries.select("key", F.lit(arrow.MEMORY).alias("rank"), *remembered))
    for part in parts:
        if again is None:
            part = part.withColumn("again", F.lit(False))
        else:
            is_again = again.withColumn("again", F.lit(True))
            part = part.join(is_again, "key", "left").withColumn("again", F.coalesce("again", F.lit(False)))
        fillings = {"is_streaming": F.lit(False), "is_new": F.lit(False), "unsent": _names(())}
        said = {name: F.col(name) for name in part.columns}
        columns = fillings | said
        filled = (columns.get(one.name, F.lit(None)).cast(one.dataType).alias(one.name) for one in events.schema)
        events = events.unionByName(part.select(*filled))
    return events


def _names(names: Iterable[str]) -> Column:
    return F.array(*map(F.lit, names)).cast("array<string>")


def _of_keys(silver: DataFrame, events: DataFrame, names: Sequence[str]) -> DataFrame:
    """The rows of silver that have a key of these events."""
    same = F.lit(True)
    for name in names:
        same = same & F.col(f"silver.{quoted(name)}").eqNullSafe(F.col("event.pk")[name])
    return silver.alias("silver").join(events.select("pk").alias("event"), same, "left_semi")


def _halves(history: DataFrame) -> DataFrame:
    """The halves of key changes: `key`, `move`."""
    own = F.col("headers"), F.col("source_position"), F.col("position_domain"), F.col("source_ts_ms"), F.col("key")
    halves = history.where(has_move_headers(F.col("headers")) & F.col("tombstone_of").isNull())
    return halves.select("key", move_of(*own).alias("move")).where(F.col("move").isNotNull())


@dataclass(frozen=True)
class Totals:
    """What can be said of all pieces together; see `fold.arrow`.

    Attributes:
        keys: those with a new event that counts.
        refolded: those that were folded from all of bronze.
        entries: the keys that are, or were, in silver's memory.
    """

    keys: int
    counting: int
    stale: int
    behind: int
    twice: int
    compared: int
    reset: int
    refolded: int
    given: int
    left: int
    waiting: int
    entries: int

    @classmethod
    def of(cls, pieces: DataFrame) -> "Totals":
        """Count; the one action that computes the pieces."""

        def number(is_so: Column) -> Column:
            return F.count(F.when(is_so, 1))

        role = F.col("role")
        found = pieces.agg(
            number(F.col("counting") > 0),
            F.coalesce(F.sum("counting"), F.lit(0)),
            F.coalesce(F.sum("stale"), F.lit(0)),
            *(number(F.col(name)) for name in ("is_behind", "is_twice", "is_compared", "is_reset", "is_again")),
            number(role == arrow.GIVEN),
            number(role == arrow.LEFT),
            number(F.col("came_by").isNotNull() & (role == arrow.OF_ROW)),
            number((role == arrow.OF_ROW) & (memory.key_is_remembered() | F.col("has_memory"))),
        )
        return cls(*found.collect()[0])


@dataclass(frozen=True)
class Folded:
    """What a batch comes to.

    Attributes:
        pieces: `fold.arrow`'s, computed.
        happened: to all keys.
        again: the keys that were folded from all of bronze: `key`; none if there are none.
    """

    batch: Batch
    schemas: Schemas
    pieces: DataFrame
    totals: Totals
    happened: TableEvents
    again: DataFrame | None = None

    @property
    def layout(self) -> Layout:
        """Silver's columns."""
        return self.schemas.layout

    def counted(self) -> dict[str, int]:
        """The parts that the batch's rows add up to."""
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
        rows, large = self._decoded(self._rows), self._shape.large
        if self.totals.given:
            given = held(self._decoded(self._of_role(arrow.GIVEN)), ["key"], large).withColumnRenamed("real", GIVEN)
            rows = rows.join(given, "key", "left")
        return changes(rows, self._shape, batch=commit)

    @property
    def _shape(self) -> Shape:
        batch, layout = self.batch, self.layout
        return Shape(
            list(layout.keys),
            list(layout.columns),
            batch.stored_columns,
            list(self.schemas.large),
            batch.run.settings.deletes.keep_values,
        )

    @cached_property
    def _rows(self) -> DataFrame:
        """The pieces of rows, with what they take from lifetimes that key changes ended."""
        waits = F.when(~self._shape.is_emptied(), F.col("came_by"))
        rows = self._of_role(arrow.OF_ROW).withColumn("came_by", waits)
        if self._lifetimes is None:
            return rows.withColumn(INHERITED, _names(()))
        heirs = rows.where(F.col("came_by").isNotNull()).select("key", "came_by", "missing")
        taken = moves.taken(self._lifetimes, heirs, self._shape.large).localCheckpoint()
        rows = rows.join(taken, "key", "left")
        inherited = F.coalesce(INHERITED, _names(()))
        missing = F.array_except("missing", inherited)
        waits = F.when(F.size(missing) > 0, F.col("came_by"))
        return rows.withColumns({INHERITED: inherited, "missing": missing, "came_by": waits})

    @cached_property
    def _lifetimes(self) -> DataFrame | None:
        """The lifetimes that key changes ended, computed; none if no key moves, or no value is large."""
        if not self.schemas.large or not (self.totals.left or self.totals.waiting):
            return None
        return self._ended.unionByName(self._images).localCheckpoint()

    @cached_property
    def _ended(self) -> DataFrame:
        """The lifetimes that this batch's key changes ended."""
        batch, large = self.batch, self.schemas.large
        left = self._decoded(self._of_role(arrow.LEFT))
        stored = None
        if batch.progress is not None:
            rows = _of_keys(batch.silver, left, list(self.layout.keys))
            rows = self.schemas.with_key(rows).withColumnRenamed(KEY, "key")
            stored = moves.stored_values(rows, large)
        return moves.ended(left, stored, list(large)).localCheckpoint()

    @property
    def _images(self) -> DataFrame:
        """Those that earlier batches ended; but for keys that were folded again, whose lifetimes are all here."""
        found = moves.images(self.batch.remembered, self.schemas.large)
        return found if self.again is None else found.join(self.again, "key", "left_anti")

    def _of_role(self, role: str) -> DataFrame:
        return self.pieces.where(F.col("role") == role)

    def _decoded(self, pieces: DataFrame) -> DataFrame:
        return with_rows(pieces, self.layout, values=self.schemas.values, frames=self.schemas.frames)

    def remember(self, commit: int) -> SidePin | None:
        """Write what has to be remembered; the pin for silver's commit."""
        batch, large = self.batch, list(self.schemas.large)
        parts = []
        if self.totals.entries:
            parts.append(memory.key_entries(self._rows))
        of_all = memory.table_entries(batch.run.spark, batch.remembered_of_all, self.happened)
        if of_all is not None:
            parts.append(of_all)
        if large and self.totals.left:
            parts.append(moves.image_entries(self._ended, large))
        if self.again is not None and batch.remembers(IMAGE_ENTRY):
            old = batch.remembered.where(F.col("kind") == IMAGE_ENTRY).join(self.again, "key", "left_semi")
            parts.append(memory.forgotten(old.join(self._ended.select("id"), "id", "left_anti")))
        if batch.rejected is not None:
            parts.append(memory.rejected_entries(batch.rejected))
        if batch.readmitted is not None:
            parts.append(memory.forgotten(batch.readmitted))
        return batch.remember(parts, commit)

    def check_one_row_per_key(self) -> None:
        """See that silver has one row of each key that the batch touches.

        Raises:
            DuplicateKeyError: it has several.
        """
        if not self.totals.twice:
            return
        table = self.batch.run.done.table
        keys = self.pieces.where("is_twice").select("key").orderBy("key").limit(_NAMED_KEYS).collect()
        raise DuplicateKeyError(
            table,
            f"another program wrote to silver: {self.totals.twice} keys have several rows, such as "
            f"{', '.join(row['key'] for row in keys)}",
            f"run `cdc-lake rebuild --table {table}`; the batch was not committed",
        )

    def check_log(self) -> None:
        """See that the source's log goes on where it was.

        Raises:
            DataLossError: its positions went back on many keys while its clock went on, and the settings say to stop.
        """
        totals, run = self.totals, self.batch.run
        if totals.reset < _RESET_KEYS or 2 * totals.reset <= totals.compared:
            return
        what = (
            f"the source's log positions went back on {totals.reset} of {totals.compared} keys while its clock went "
            "on, as after a restore or a move to another server: rows that it lost then are still in silver"
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
    """Whether a bronze row tells all of its table's row, or that it is gone."""
    return F.col("op").isin(*STARTS) & F.col("tombstone_of").isNull()
