"""Reads bronze rows as typed events, with the schemas that they were written with."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import KEY, quoted
from cdc_lake.decode.envelope import TRUNCATE, is_snapshot_edge
from cdc_lake.decode.framing import header_bytes
from cdc_lake.decode.key import canonical_text, key_fields, key_tree_from_row
from cdc_lake.decode.records import WriterSchema
from cdc_lake.decode.schema_texts import columns_that_lose_nulls
from cdc_lake.decode.schemas import Tree
from cdc_lake.errors import ConfigError
from cdc_lake.fold.rules import Order
from cdc_lake.fold.table_events import KafkaPosition, SnapshotMarker, Truncate
from cdc_lake.runs.errors import first_line
from cdc_lake.silver.events import events, kafka_position, large_columns, sent_columns
from cdc_lake.silver.evolution import Layout, LayoutChange, evolve_layout
from cdc_lake.silver.table_run import SilverRun, added_columns, layout_of
from cdc_lake.spark.expressions import built_once
from cdc_lake.spark.user_sql import refuse_query
from cdc_lake.tables.partitions import check_partitions
from cdc_lake.tables.progress import SilverProgress

_LARGE_BYTES, _FEW_BYTES = 64 << 10, 128 << 20
"""A value above the first size is large; large values above the second size in total are not few."""


@built_once
def schemas_and_frames() -> Column:
    """The schemas of bronze rows, as an aggregate: `keys` and `values`, fingerprints of schemas; `frames`; `bytes`, the
    size of all records; and `largest`, that of the largest value, not counting a few large ones.
    """
    length = F.length("raw_value")
    keys_and_values = F.coalesce(length, F.lit(0)) + F.coalesce(F.length("raw_key"), F.lit(0))
    of_large = F.coalesce(F.sum(F.when(length > _LARGE_BYTES, length)), F.lit(0))
    largest = F.coalesce(F.max(length), F.lit(0))
    frames = F.array_union(F.collect_set("framing.key"), F.collect_set("framing.value"))
    return F.struct(
        F.sort_array(F.collect_set("key_schema")).alias("keys"),
        F.sort_array(F.collect_set("value_schema")).alias("values"),
        frames.alias("frames"),
        F.coalesce(F.sum(keys_and_values + header_bytes(F.col("headers"))), F.lit(0)).alias("bytes"),
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
            "variants": dict(self.layout.variants),
            "retired": tuple(sorted(self.layout_change.retired)),
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
            retired=progress.retired if progress else (),
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
            .select(kafka_position().alias("kafka_position"), "snapshot", order.alias("o"), "op")
            .collect()
        )
        truncates = [
            Truncate(KafkaPosition(*r["kafka_position"]), None if settings.is_in_log_order else Order(*r["o"]))
            for r in found
            if r["op"] == TRUNCATE
        ]
        markers = [
            SnapshotMarker(KafkaPosition(*r["kafka_position"]), r["snapshot"]) for r in found if r["op"] != TRUNCATE
        ]
        return truncates, markers


def _newest_last(fingerprints: Sequence[str], newest: str | None) -> list[str]:
    return sorted(fingerprints, key=lambda name: name == newest)


def _in_order(rows: DataFrame, column: str, fingerprints: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """The schemas of a column in order of first use, and the one used last."""
    if len(fingerprints) < 2:
        return fingerprints, next(iter(fingerprints), None)
    came = F.min(kafka_position()).alias("first"), F.max(F.when(~F.col("late"), kafka_position())).alias("last")
    writers = rows.where(F.col(column).isNotNull()).groupBy(column).agg(*came)
    found = {row[column]: row for row in writers.collect()}
    on_time = [name for name, row in found.items() if row["last"] is not None]
    newest = max(on_time, key=lambda name: found[name]["last"], default=None)
    return sorted(fingerprints, key=lambda name: (name not in found, name in found and found[name]["first"])), newest


def with_deletes(events: DataFrame, condition: str, table: str) -> DataFrame:
    """Turn events whose row meets a condition (`merge.apply_as_deletes`) into deletes.

    Args:
        events: `events()`' columns.
        condition: SQL on silver's columns; null counts as not met.
        table: its name, for messages.

    Columns out: those of `events`.

    Raises:
        ConfigError: the condition is not valid for the table's columns.
    """
    rows = events.select(F.struct(*events.columns).alias("__event"), "row.*")
    try:
        refuse_query(rows, condition, f"{table}: merge.apply_as_deletes")
        met = rows.withColumn("__is_met", F.coalesce(F.expr(condition).cast("boolean"), F.lit(False)))
    except PySparkException as exc:
        raise ConfigError(
            f"{table}: merge.apply_as_deletes", f"Spark says: {first_line(exc)}", "fix it in this table's settings"
        ) from exc
    event = F.col("__event")
    is_met = F.col("__is_met") & event["row"].isNotNull()
    own = {name: F.when(~is_met, event[name]) for name in ("row", "unavailable")}
    own["op"] = F.when(is_met, "d").otherwise(event["op"])
    return met.select(*(own.get(name, event[name]).alias(name) for name in events.columns))
