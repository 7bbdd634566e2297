"""The fold of a silver batch: its events merged into the stored rows, the rows to write, and the state to remember.

One exchange brings each key's history together: its row in silver, its side-table entry, and the batch's events with
their bytes. `fold.arrow` folds it, and the result is decoded once. See docs/explanation/silver.md.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StructType

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
from cdc_lake.fold import arrow
from cdc_lake.fold.rules import STARTS, UPSERTS
from cdc_lake.fold.stream import EVENT, LIFETIME_PIECE, MEMORY, PIECES, ROW, ROW_PIECE, Rules
from cdc_lake.fold.table_events import TableEvents
from cdc_lake.silver import key_changes
from cdc_lake.silver.batch import Batch
from cdc_lake.silver.batch_schemas import BatchSchemas, schemas_and_frames
from cdc_lake.silver.events import events, is_change
from cdc_lake.silver.fold_result import FoldResult, Totals, rows_with_keys, string_array
from cdc_lake.spark.arrow_stage import map_in_arrow, map_in_driver
from cdc_lake.spark.expressions import built_once, of_batch
from cdc_lake.spark.session import session_settings

_ARROW_ROWS, _ARROW_BYTES = 10_000, 64 << 20
"""Limits of an Arrow batch, which has at least one record."""
_IN_ORDER = ("key", "rank", "kafka_position")
_OF_EVENTS = ("is_streaming", "is_new")
"""Columns that are false in stored rows and entries."""

_COUNTED_UP = ("tinyint", "smallint", "int", "bigint")
"""Types of key columns that sources usually count up."""
_ARROW_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"


def fold_events(batch: Batch) -> "FoldResult":
    """Fold the batch. Keys with an event older than the last one seen, and keys connected to them, are refolded from
    bronze.

    Raises:
        DuplicateKeyError: silver has several rows for a key.
    """
    assert batch.schemas is not None
    table_events = batch.table_events
    rows = batch.accepted.withColumn("refold", F.lit(False))
    if table_events.is_out_of_order and not batch.is_comparison:
        table_events = replace(batch.all_table_events, snapshot=table_events.snapshot)
        keys = batch.history().where(F.col("key").isNotNull()).select("key").distinct()
    else:
        result = _fold_rows(batch, batch.schemas, rows, table_events, writers=batch.counts.writers)
        may_be_named_before = result.totals.ended and batch.remembers(IMAGE_ENTRY)
        if batch.is_comparison or not (result.totals.out_of_order or may_be_named_before):
            return result
        keys = result.pieces.where("is_out_of_order").select("key")
        if may_be_named_before:
            ended = result.pieces.where(F.col("role") == LIFETIME_PIECE)
            keys = keys.unionByName(key_changes.ambiguous_key_changes(ended, batch.remembered))
            if keys.isEmpty():
                return result
        keys = key_changes.connected_keys(batch.history(), keys)
    keys = keys.localCheckpoint()
    old = batch.history().join(keys, "key", "left_semi").withColumn("refold", F.lit(True))
    rows = rows.join(keys, "key", "left_anti").unionByName(old)
    ((writers,),) = rows.agg(schemas_and_frames()).collect()
    values = sorted({*writers["values"], *batch.counts.writers["values"]})
    schemas = batch.table.schemas_of(rows, batch.progress, {**writers.asDict(), "values": values})
    return _fold_rows(batch, schemas, rows, table_events, writers=writers, refold=keys)


def _fold_rows(
    batch: Batch,
    schemas: BatchSchemas,
    rows: DataFrame,
    table_events: TableEvents,
    *,
    writers: Row,
    refold: DataFrame | None = None,
) -> "FoldResult":
    """Fold bronze's rows, of which `writers` is the summary. Their column `refold` says whether their key is refolded;
    `refold` has these keys.
    """
    settings = batch.table.settings
    rules = Rules(
        large=list(schemas.large),
        hard=settings.deletes.mode == "hard",
        truncates_hard=batch.table.truncates == "hard",
        table_events=batch.table_events.events,
        all_table_events=() if refold is None else batch.all_table_events.events,
        start=batch.remembered_table_events.start,
        last_table_event=table_events.start.seen_at,
        is_comparison=batch.is_comparison,
        log_may_reset=settings.log_may_reset,
    )
    has_only_own_keys = refold is None and not (batch.table_events.events or _may_end_waits(batch))
    is_in_driver = batch.is_in_driver and has_only_own_keys
    history = _events(batch, schemas, rows, has_key_changes=refold is not None or batch.counts.key_changes > 0)
    schema = StructType([*from_arrow_schema(PIECES), history.schema["pk"]])
    if refold is None and batch.may_be_inserts and _have_new_keys(batch, schemas, history):
        pieces, totals = single_inserts(history, schema, list(schemas.large)), Totals.of_inserts(batch.counts.total)
        return FoldResult(batch, schemas, pieces, totals, table_events, None, is_in_driver, are_inserts=True)
    if batch.progress is not None:
        history = _with_stored(batch, schemas, history, refold)
    fold = partial(arrow.fold, rules=rules)
    # Arrow batches stay small if records are large: Spark limits the number of rows only.
    arrow_rows = min(_ARROW_ROWS, max(_ARROW_BYTES // max(writers["largest"], 1), 1))
    with session_settings(batch.table.spark, {_ARROW_SETTING: str(arrow_rows)}):
        if is_in_driver:
            # Not `coalesce`, with which one task would read all of a large silver.
            pieces = map_in_driver(history.repartition(1).sortWithinPartitions(*_IN_ORDER), fold, schema)
        else:
            runs = history.repartition("key").sortWithinPartitions(*_IN_ORDER)
            pieces = map_in_arrow(runs, fold, schema).localCheckpoint(eager=False)
        totals = Totals.of(pieces)
    result = FoldResult(batch, schemas, pieces, totals, table_events, refold, is_in_driver)
    result.check_one_row_per_key()
    return result


def _have_new_keys(batch: Batch, schemas: BatchSchemas, history: DataFrame) -> bool:
    """Whether each event has a key of its own, and the keys are above all of silver's by the first key column.

    Reading silver's highest key takes no scan of a Delta table: it is in the statistics of the files.
    """
    name, spark_type = next(iter(schemas.layout.keys.items()))
    is_new_table = batch.progress is None
    if not is_new_table and spark_type not in _COUNTED_UP:
        return False
    # A new table's keys are not decoded here.
    lowest = F.lit(None) if is_new_table else F.min(F.col("pk")[name])
    # Hashes are smaller than keys. If two keys have the same, the batch is folded.
    number, lowest = history.agg(F.count_distinct(F.xxhash64("key")), lowest).collect()[0]
    if number < batch.counts.total:
        return False
    if is_new_table:
        return True
    ((highest,),) = batch.table.stored_rows.agg(F.max(quoted(name))).collect()
    return highest is None or lowest > highest


def single_inserts(history: DataFrame, schema: StructType, large: Sequence[str]) -> DataFrame:
    """What `fold.arrow` makes of keys with one event each, which adds a row, and without any state.

    Args:
        history: the events, in the columns that `fold.arrow` takes.
        large: the columns that an event may omit.
    """
    own = {name: F.col(name) for name in history.columns if name not in ("key_change", "seen")} | {
        "role": F.lit(ROW_PIECE),
        "source": F.col("order"),
        "order": F.when(F.col("is_streaming"), F.col("order")),
        "kept": string_array(()),
        "missing": F.array_intersect(string_array(large), "unsent"),
        "has_row": F.lit(True),
        "is_changed": F.lit(True),
        "counting": F.lit(1),
    }
    defaults: dict[DataType, Column] = {BooleanType(): F.lit(False), IntegerType(): F.lit(0), LongType(): F.lit(0)}
    columns = (own.get(field.name, defaults.get(field.dataType, F.lit(None))).cast(field.dataType) for field in schema)
    return history.select(*(column.alias(field.name) for column, field in zip(columns, schema, strict=True)))


def _events(batch: Batch, schemas: BatchSchemas, rows: DataFrame, *, has_key_changes: bool) -> DataFrame:
    """The events in the columns that `fold.arrow` takes."""
    more = ("raw_value", "value_schema", "refold", F.col("framing")["value"].alias("value_framing"))
    decoded = events(rows, schemas, has_key_changes=has_key_changes, is_narrow=True, more=more)
    is_new = F.col("batch") >= of_batch(batch.first, F.col("batch"))
    return decoded.select("key", "pk", is_new.alias("is_new"), *_event_columns(batch.table.settings.is_in_log_order))


@built_once
def _event_columns(is_in_log_order: bool) -> Sequence[Column]:
    """The columns of `_events` that depend on a row of bronze alone."""
    order = {"position": "source_position", "domain": "position_domain", "ts_ms": "source_ts_ms"}
    # In the log's order each event counts, as a snapshot row does, and no stored order is compared with.
    is_streaming = is_change(F.col("op"), F.col("snapshot")) & F.lit(not is_in_log_order)
    return (
        F.lit(EVENT).alias("rank"),
        F.col(KAFKA).alias("kafka_position"),
        F.col("op"),
        is_streaming.alias("is_streaming"),
        F.struct(*(F.col(column).alias(name) for name, column in order.items())).cast(ORDER_TYPE).alias("order"),
        F.lit(None).cast("array<bigint>").alias("read_at"),
        F.coalesce("unavailable", string_array(())).alias("unsent"),
        F.col("key_change"),
        F.lit(None).cast(KAFKA_TYPE).alias("seen"),
        F.col("snapshot"),
        F.col("refold"),
        F.when(F.col("op").isin(*UPSERTS), F.col("raw_value")).alias("raw_value"),
        F.col("value_schema"),
        F.col("value_framing").alias("framing"),
    )


def _may_end_waits(batch: Batch) -> bool:
    """Whether rows of other keys with a pending key change may inherit their values now."""
    return batch.counts.key_changes > 0 and batch.remembers(KEY_ENTRY)


def _with_stored(batch: Batch, schemas: BatchSchemas, events: DataFrame, refold: DataFrame | None) -> DataFrame:
    """The events, with the silver rows and side-table entries of their keys; of all keys if all are affected."""
    entries = batch.remembered.where(F.col("kind") == KEY_ENTRY)
    silver, remembers = batch.table.stored_rows, batch.remembers(KEY_ENTRY)
    if batch.table_events.events:
        silver = schemas.with_key(silver)
    elif _may_end_waits(batch):
        keys = events.select("key").unionByName(entries.where(F.col("awaits").isNotNull()).select("key"))
        silver = schemas.with_key(silver).join(keys, F.col(KEY) == F.col("key"), "left_semi")
        entries = entries.join(keys, "key", "left_semi")
    else:
        silver = schemas.with_key(rows_with_keys(silver, events, list(schemas.layout.keys)))
        entries = entries.join(events.select("key"), "key", "left_semi")
    new = [name for name in schemas.large if name not in batch.table.stored_rows.columns]
    pk = events.schema["pk"].dataType
    own = _stored_columns(tuple(schemas.layout.keys), pk, tuple(new), batch.table.settings.is_in_log_order)
    not_refolded = [F.lit(False).alias("refold")] if refold is None else []
    parts = [silver.select(*own, *not_refolded)]
    if remembers:
        parts.append(entries.select("key", *_remembered_columns(), *not_refolded))
    for part in parts:
        if refold is not None:
            is_refolded = refold.withColumn("refold", F.lit(True))
            part = part.join(is_refolded, "key", "left").withColumn("refold", F.coalesce("refold", F.lit(False)))
        events = events.unionByName(part, allowMissingColumns=True)
    return events


@built_once
def _stored_columns(
    keys: tuple[str, ...], pk: DataType, new: tuple[str, ...], is_in_log_order: bool
) -> Sequence[Column]:
    """Silver's rows in the columns that `fold.arrow` takes.

    Args:
        pk: the type of the events' `pk`.
        new: the columns that an event may omit and silver does not have yet.
    """
    return (
        F.col(KEY).alias("key"),
        F.struct(*(F.col(quoted(name)).alias(name) for name in keys)).cast(pk).alias("pk"),
        F.lit(ROW).alias("rank"),
        F.col(KAFKA).alias("kafka_position"),
        F.col("__op").alias("op"),
        F.when(F.lit(not is_in_log_order), F.col(ORDER)).alias("order"),
        F.when(~is_change(F.col("__op"), F.col("__snapshot")), F.col("__source_position")).alias("read_at"),
        F.concat(F.coalesce(UNAVAILABLE, string_array(())), string_array(new)).alias("unsent"),
        *(F.lit(False).alias(name) for name in _OF_EVENTS),
    )


@built_once
def _remembered_columns() -> Sequence[Column]:
    """The side table's entries in the columns that `fold.arrow` takes."""
    columns = {
        "kafka_position": F.col(KAFKA),
        "order": F.col(ORDER),
        "key_change": F.col("awaits"),
        "seen": F.col(SEEN),
    }
    return (
        F.lit(MEMORY).alias("rank"),
        *(column.alias(name) for name, column in columns.items()),
        string_array(()).alias("unsent"),
        *(F.lit(False).alias(name) for name in _OF_EVENTS),
    )


def is_start() -> Column:
    """Whether a bronze row has its table's complete row, or deletes it."""
    return F.col("op").isin(*STARTS) & F.col("tombstone_of").isNull()
