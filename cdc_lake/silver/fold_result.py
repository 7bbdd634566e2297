"""The result of a batch's fold: checks, the rows to write, and the state to remember."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import IMAGE_ENTRY, KEY, quoted
from cdc_lake.errors import DataLossError, DuplicateKeyError
from cdc_lake.fold.stream import LIFETIME_PIECE, ROW_PIECE, VALUES_PIECE
from cdc_lake.fold.table_events import TableEvents
from cdc_lake.silver import key_changes
from cdc_lake.silver.batch import Batch
from cdc_lake.silver.batch_schemas import BatchSchemas
from cdc_lake.silver.events import with_rows
from cdc_lake.silver.rows import (
    INHERITED_COLUMNS,
    OTHER_VALUES,
    RowSchema,
    changes,
    collect_large_values,
    forgotten,
    key_entries,
    key_is_remembered,
    table_entries,
)
from cdc_lake.spark.expressions import built_once
from cdc_lake.tables.contract import Changes

_NAMED_KEYS = 10
"""Number of keys listed in an error."""
_CLOCK_LAG_MS = 1000
"""Events that are older than this by the clock alone are reported."""
_RESET_KEYS = 10
"""The source's log was reset if the positions of this many keys went back, and of most comparable keys."""


def string_array(names: Iterable[str]) -> Column:
    return F.array(*map(F.lit, names)).cast("array<string>")


def rows_with_keys(silver: DataFrame, events: DataFrame, names: Sequence[str]) -> DataFrame:
    """The silver rows that have a key of these events."""
    sent, same = "__sent_pk", F.lit(True)
    for name in names:
        same = same & F.col(quoted(name)).eqNullSafe(F.col(sent)[name])
    return silver.join(events.select(F.col("pk").alias(sent)), same, "left_semi")


@dataclass(frozen=True)
class Totals:
    """Totals over all pieces; see `fold.arrow`.

    Attributes:
        keys: with a new event that counts.
        unplaced: keys of which a snapshot row without a position replaced what changes had written.
        refolded: keys that were refolded from bronze.
        entries: keys that have, or had, a side-table entry.
    """

    keys: int
    counting: int
    stale: int
    outdated: int
    behind_clock: int
    behind_ms: int
    unplaced: int
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
    def of_inserts(cls, keys: int) -> "Totals":
        """The totals of this many keys with one event each, which adds a row."""
        return cls(**dict.fromkeys((one.name for one in fields(cls)), 0) | {"keys": keys, "counting": keys})

    @classmethod
    def of(cls, pieces: DataFrame) -> "Totals":
        """Count; this action computes the pieces."""
        return cls(*pieces.agg(*cls._columns()).collect()[0])

    @staticmethod
    @built_once
    def _columns() -> Sequence[Column]:
        """The totals as aggregates of the pieces' columns, in the order of the attributes: `of` passes them so."""

        def number(is_so: Column) -> Column:
            return F.count(F.when(is_so, 1))

        role = F.col("role")
        return (
            number(F.col("counting") > 0),
            F.coalesce(F.sum("counting"), F.lit(0)),
            *(F.coalesce(F.sum(name), F.lit(0)) for name in ("stale", "outdated", "behind_clock")),
            F.coalesce(F.max("behind_ms"), F.lit(0)),
            *(
                number(F.col(name))
                for name in (
                    "is_unplaced",
                    "is_out_of_order",
                    "has_duplicates",
                    "is_compared",
                    "is_log_reset",
                    "is_refolded",
                )
            ),
            number(role == VALUES_PIECE),
            number(role == LIFETIME_PIECE),
            number(F.col("moved_by").isNotNull() & (role == ROW_PIECE)),
            number((role == ROW_PIECE) & (key_is_remembered() | F.col("has_memory"))),
        )


@dataclass(frozen=True)
class FoldResult:
    """The result of a batch's fold.

    Attributes:
        pieces: `fold.arrow`'s, computed.
        table_events: the events of all keys.
        refold: the keys that were refolded from bronze, in `key`; none if there are none.
        is_in_driver: whether the driver can hold the rows to write: the batch is small, and no other keys change.
        are_inserts: whether all pieces are rows of keys that silver does not have.
    """

    batch: Batch
    schemas: BatchSchemas
    pieces: DataFrame
    totals: Totals
    table_events: TableEvents
    refold: DataFrame | None = None
    is_in_driver: bool = False
    are_inserts: bool = False

    def counted(self) -> dict[str, int]:
        """The outcomes that add up to the batch's rows.

        Example: a key has four new events, of which one is stale and three count. The last of the three is `applied`,
        and the other three of the four are `superseded`.
        """
        counts, totals = self.batch.counts, self.totals
        return {
            "applied": totals.keys,
            "superseded": totals.counting - totals.keys + totals.stale,
            "paired_tombstones": counts.paired_tombstones,
            "truncates": counts.truncates,
            "rejected": self.batch.rejected.count() if self.batch.rejected is not None else 0,
        }

    def changes(self, commit: int) -> Changes:
        rows, large = self._decoded(self._rows), self._row_schema.large
        if self.totals.other_values:
            other_values = collect_large_values(
                self._decoded(self._of_role(VALUES_PIECE)), ["key"], large
            ).withColumnRenamed("large_values", OTHER_VALUES)
            rows = rows.join(other_values, "key", "left")
        return changes(rows, self._row_schema, batch=commit, are_inserts=self.are_inserts)

    @property
    def _row_schema(self) -> RowSchema:
        batch, layout = self.batch, self.schemas.layout
        return RowSchema(
            tuple(layout.keys),
            tuple(layout.columns),
            frozenset(batch.stored_columns),
            tuple(self.schemas.large),
            batch.table.settings.deletes.keep_values,
        )

    @cached_property
    def _rows(self) -> DataFrame:
        """The pieces of rows, with the values that they inherit from ended lifetimes."""
        # With `moved_by`, a row waits for values. Deleted rows that have nulls do not, nor, below, rows that got all.
        waits = F.when(~self._row_schema.is_emptied(), F.col("moved_by"))
        rows = self._of_role(ROW_PIECE)
        if self._lifetimes is None:
            return rows.withColumns({"moved_by": waits, INHERITED_COLUMNS: string_array(())})
        rows = rows.withColumn("moved_by", waits)
        moved_rows = rows.where(F.col("moved_by").isNotNull()).select("key", "moved_by", "missing")
        inherited = key_changes.inherit(self._lifetimes, moved_rows, self._row_schema.large).localCheckpoint()
        rows = rows.join(inherited, "key", "left")
        inherited_columns = F.coalesce(INHERITED_COLUMNS, string_array(()))
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
        ended = self._decoded(self._of_role(LIFETIME_PIECE))
        stored = None
        # Values that were sent before this batch are in silver's row; the pieces list their columns as `kept`.
        if batch.progress is not None:
            rows = rows_with_keys(batch.table.stored_rows, ended, list(self.schemas.layout.keys))
            rows = self.schemas.with_key(rows).withColumnRenamed(KEY, "key")
            stored = key_changes.stored_values(rows, large)
        return key_changes.ended_lifetimes(ended, stored, list(large)).localCheckpoint()

    @property
    def _stored_lifetimes(self) -> DataFrame:
        """The lifetimes that earlier batches ended, except those of refolded keys, which this batch has."""
        lifetimes = key_changes.stored_lifetimes(self.batch.remembered, self.schemas.large)
        return lifetimes if self.refold is None else lifetimes.join(self.refold, "key", "left_anti")

    def _of_role(self, role: str) -> DataFrame:
        return self.pieces.where(F.col("role") == role)

    def _decoded(self, pieces: DataFrame) -> DataFrame:
        return with_rows(pieces, self.schemas)

    def side_entries(self) -> list[DataFrame]:
        """The side-table entries that remember the fold's state."""
        batch, large = self.batch, list(self.schemas.large)
        parts = []
        if self.totals.entries:
            parts.append(key_entries(self._rows))
        table_events = table_entries(batch.table.spark, batch.remembered_table_events, self.table_events)
        if table_events is not None:
            parts.append(table_events)
        if large and self.totals.ended:
            parts.append(key_changes.lifetime_entries(self._ended_lifetimes, large))
        if self.refold is not None and batch.remembers(IMAGE_ENTRY):
            # The refold writes images again. Those with other IDs are of lifetimes that it did not find.
            old = batch.remembered.where(F.col("kind") == IMAGE_ENTRY).join(self.refold, "key", "left_semi")
            parts.append(forgotten(old.join(self._ended_lifetimes.select("id"), "id", "left_anti")))
        return parts

    def check_one_row_per_key(self) -> None:
        """Check that silver has one row for each key of the batch.

        Raises:
            DuplicateKeyError: it has several.
        """
        if not self.totals.duplicates:
            return
        table = self.batch.table.name
        keys = self.pieces.where("has_duplicates").select("key").orderBy("key").limit(_NAMED_KEYS).collect()
        raise DuplicateKeyError(
            table,
            f"another program wrote to silver: {self.totals.duplicates} keys have several rows, for example "
            f"{', '.join(row['key'] for row in keys)}",
            f"run `cdc-lake rebuild --table {table}`; the batch was not committed",
        )

    def warnings(self) -> list[str]:
        """What may be wrong because the source's order is not known well enough."""
        totals, warnings = self.totals, self.warnings_of_comparison()
        if self._went_back:
            warnings.append(self._went_back)
        if totals.behind_ms > _CLOCK_LAG_MS:
            warnings.append(
                f"{totals.behind_clock} events were ignored as replays: they have no position, and their source time "
                f"is up to {totals.behind_ms / 1000:,.0f} s older than that of an earlier event of their key. If the "
                "source's clock was set back, set `merge.order: log` and run `cdc-lake rebuild`; to be sure, send the "
                "position's fields (docs/reference/connectors.md)"
            )
        if totals.outdated:
            warnings.append(
                f"{totals.outdated} snapshot rows were ignored: by their position they are older than changes that "
                "silver has. If the source was restored from a backup, set `read.on_log_reset: warn` and run "
                "`cdc-lake rebuild`"
            )
        if totals.unplaced:
            warnings.append(
                f"snapshot rows without a position replaced {totals.unplaced} rows that changes had written. If the "
                "connector sends rows of a snapshot after newer changes, send the position's fields "
                "(docs/reference/connectors.md)"
            )
        return warnings

    def warnings_of_comparison(self) -> list[str]:
        """What stays although bronze does not show it."""
        if not (self.batch.is_comparison and self.totals.out_of_order):
            return []
        return [
            f"{self.totals.out_of_order} rows were kept: bronze has no event with the complete row, so older events do "
            "not count"
        ]

    @property
    def _went_back(self) -> str | None:
        """Describe that source positions went back; none if they continue."""
        totals = self.totals
        if totals.reset < _RESET_KEYS or 2 * totals.reset <= totals.compared:
            return None
        return (
            f"the source positions went back on {totals.reset} of {totals.compared} keys while its clock "
            "advanced, as after a restore or a failover: silver still has the rows that the source lost"
        )

    def check_log(self) -> None:
        """Check that the source positions continue.

        Raises:
            DataLossError: positions went back on many keys while time advanced, and `read.on_log_reset` is stop.
        """
        if self._went_back and self.batch.table.settings.read.on_log_reset == "stop":
            raise DataLossError(
                self.batch.table.name,
                self._went_back,
                "set `read.on_log_reset: warn` for this table and run again, then have the connector take a new "
                "snapshot (with `deletes.missing_after_snapshot: true` for the rows that the source lost)",
            )
