"""Decodes bronze rows into typed change events, for silver and all other readers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import KAFKA, quoted
from cdc_lake.decode import framing
from cdc_lake.decode.envelope import (
    ROW_OPS,
    TRUNCATE,
    before_row_of,
    is_partial_update,
    row_fields,
    row_of,
    row_or_before,
    shape_of,
)
from cdc_lake.decode.key import key_fields, key_from_row, key_values
from cdc_lake.decode.records import DecodedLayout, DecodedLayouts, WriterSchema, with_decoded_keys, with_decoded_values
from cdc_lake.decode.schemas import Tree, fields
from cdc_lake.decode.types import stored_types, type_mapping
from cdc_lake.fold.rules import STREAMING_OPS
from cdc_lake.runs.user_sql import checked_expression
from cdc_lake.silver.batch_schemas import BatchSchemas
from cdc_lake.silver.evolution import Layout, SentColumns
from cdc_lake.silver.key_changes import key_change_id
from cdc_lake.silver.unavailable import may_contain_placeholder, unavailable


def sent_columns(
    keys: Iterable[Tree], values: Iterable[WriterSchema], newest: WriterSchema | None = None
) -> SentColumns:
    """The columns of schemas, with the types that a table stores.

    Args:
        values: the schemas of values, in order of first use.
        newest: the value schema that was used last. JSON without a schema does not list the columns.
    """
    has_all = newest is not None and newest.format != "json"
    return SentColumns(
        [stored_types(key_fields(tree)) for tree in keys],
        [stored_types(row_fields(schema.tree)) for schema in values],
        stored_types(row_fields(newest.tree)) if newest is not None and has_all else None,
    )


def events(
    bronze: DataFrame,
    schemas: BatchSchemas,
    *,
    has_key_changes: bool = True,
    is_narrow: bool = False,
    more: Sequence[str | Column] = (),
) -> DataFrame:
    """The typed events among a table's bronze rows, without truncates.

    Args:
        bronze: rows of status ok.
        has_key_changes: whether halves of key changes may be among the rows.
        is_narrow: omit `row`, and decode only the fields of values that `unavailable` needs, if the settings allow it.
        more: further bronze columns to return.

    Columns in: bronze's. Columns out: `key` string; `pk` struct of the primary key, null if rows have no key; `row`
    struct of the layout's columns, null for deletes and tombstones, or the row before a delete if rows have no key;
    `unavailable` array<string>; `op`, `source_ts_ms`, `source_position`, `position_domain`, `snapshot`; `key_change`,
    the ID of the key change that the event is half of; `batch`, `late`; `__kafka` struct; if the settings cast columns,
    `uncastable` array<string>, columns whose value does not fit.
    """
    layout, settings = schemas.layout, schemas.settings
    is_narrow = is_narrow and not settings.merge.apply_as_deletes
    rows = bronze.where(F.col("tombstone_of").isNull() & (F.col("op") != TRUNCATE))
    rows, key_layouts, value_layouts = _decoded(rows, schemas, is_narrow=is_narrow)
    rows = rows.withColumn("pk", _primary_key(schemas, key_layouts, value_layouts))
    has_row = F.col("op").isin(*(op for op in ROW_OPS if op != "d" or settings.key_of_rows is None))
    of_change = ("headers", "source_position", "position_domain", "source_ts_ms", "key")
    key_change = key_change_id(*map(F.col, of_change)) if has_key_changes else F.lit(None).cast("string")
    unsent = _unsent(schemas, value_layouts, key_change)
    row = F.when(has_row, value_layouts.chosen(lambda decoded: _row(layout, decoded)))
    uncastable = F.when(has_row, value_layouts.chosen(lambda decoded: _uncastable(layout, decoded)))
    typed_events = rows.select(
        "key",
        "pk",
        *([] if is_narrow else [row.cast(struct_type(layout.columns)).alias("row")]),
        F.when(has_row, unsent).cast("array<string>").alias("unavailable"),
        *("op", "source_ts_ms", "source_position", "position_domain", "snapshot", "batch", "late"),
        key_change.alias("key_change"),
        kafka_position().alias(KAFKA),
        *([uncastable.alias("uncastable")] if layout.column_mapping.cast and not is_narrow else []),
        *more,
    )
    condition = settings.merge.apply_as_deletes
    return with_deletes(typed_events, condition, schemas.table) if condition else typed_events


def _decoded(
    bronze: DataFrame, schemas: BatchSchemas, *, is_narrow: bool
) -> tuple[DataFrame, DecodedLayouts, DecodedLayouts]:
    """The rows with their decoded keys and values; see `events`."""
    values, key_columns, envelope = schemas.values, schemas.settings.key_of_rows, schemas.settings.envelope
    bodies = {
        side: framing.body(F.col(f"raw_{side}"), F.col("framing")[side], schemas.frames) for side in ("key", "value")
    }
    rows, key_layouts = with_decoded_keys(
        bronze,
        {schema.fingerprint: (schema,) for schema in schemas.keys} if key_columns == () else {},
        body=bodies["key"],
        named=F.col("key_schema"),
    )
    wanted = None
    if is_narrow:
        wanted = {name for schema in values for name in schemas.large_in(schema)}.union(key_columns or ())
        if not envelope.null_means_unchanged:
            values = [schema for schema in values if not wanted.isdisjoint(row_fields(schema.tree))]
        is_checked = any(schema.format != "avro" or schemas.null_columns(schema) for schema in values)
        if not (key_columns or is_checked):
            may_omit = may_contain_placeholder(bodies["value"], envelope.unavailable_value_placeholder)
            bodies["value"] = F.when(may_omit, bodies["value"])
    rows, value_layouts = with_decoded_values(
        rows,
        {schema.fingerprint: (schema,) for schema in values},
        body=bodies["value"],
        named=F.col("value_schema"),
        before=None if any(map(schemas.null_columns, values)) else key_columns,
        columns=wanted,
        column_of=schemas.layout.column_mapping.target,
    )
    return rows, key_layouts, value_layouts


def _primary_key(schemas: BatchSchemas, keys: DecodedLayouts, values: DecodedLayouts) -> Column:
    layout, key_columns = schemas.layout, schemas.settings.key_of_rows

    def of_row(value: DecodedLayout) -> Column | None:
        key = key_from_row(value, key_columns) if key_columns else None
        return _pk(layout, key) if key else None

    pk = keys.chosen(partial(_pk, layout)) if key_columns == () else values.chosen(of_row)
    return pk.cast(struct_type(layout.keys) if layout.keys else "string")


def _unsent(schemas: BatchSchemas, values: DecodedLayouts, key_change: Column) -> Column:
    """The layout's columns whose values were not sent."""
    envelope = schemas.settings.envelope
    # New rows and snapshot rows are complete: a null there is a null.
    is_complete = F.col("snapshot").isNotNull() | (F.col("op") == "r") | ((F.col("op") == "c") & key_change.isNull())

    def missing(decoded: DecodedLayout) -> Column:
        columns, row = row_fields(decoded.tree), row_of(decoded.tree, decoded.value)
        has_before = shape_of(decoded.tree) == "envelope" and "before" in fields(decoded.tree)
        before = before_row_of(decoded.tree, decoded.value) if has_before else None

        def unsent(nulls: Collection[str]) -> Column:
            placeholder, columns_of = envelope.unavailable_value_placeholder, schemas.layout.of_source
            return unavailable(columns, row, placeholder, nulls, before=before, columns_of=columns_of)

        names = unsent(())
        if envelope.null_means_unchanged:
            names = F.when(is_complete, names).otherwise(unsent(envelope.null_means_unchanged))
        is_partial = is_partial_update(decoded.tree, decoded.value)
        return names if is_partial is None else F.when(is_partial & ~is_complete, unsent(columns)).otherwise(names)

    return values.chosen(missing)


def with_rows(records: DataFrame, schemas: BatchSchemas) -> DataFrame:
    """Decode the rows of records whose bytes the fold has kept.

    Args:
        records: `pk`, `raw_value`, `value_schema`, `framing`.

    Columns out: all; `row` struct of the layout's columns, null if there are no bytes.
    """
    layout = schemas.layout
    body = framing.body(F.col("raw_value"), F.col("framing"), schemas.frames)
    by_name = {schema.fingerprint: (schema,) for schema in schemas.values}
    column_of = layout.column_mapping.target
    rows, layouts = with_decoded_values(records, by_name, body=body, named=F.col("value_schema"), column_of=column_of)
    row = layouts.chosen(lambda decoded: _row(layout, decoded))
    row = F.when(F.col("raw_value").isNotNull(), row).cast(struct_type(layout.columns))
    return rows.select(*records.columns, row.alias("row"))


def is_change(op: Column, snapshot: Column) -> Column:
    """Whether an event is a change from the source's log; a snapshot row is not."""
    return op.isin(*STREAMING_OPS) & snapshot.isNull()


def kafka_position() -> Column:
    """A bronze row's Kafka position, in log order: the fields of `__kafka`."""
    return F.struct("log_ts", "topic", "generation", "partition", "offset")


def struct_type(columns: Mapping[str, str]) -> str:
    """The Spark type of a struct with these columns."""
    return "struct<" + ", ".join(f"{quoted(name)}: {kind}" for name, kind in columns.items()) + ">"


def _pk(layout: Layout, decoded: DecodedLayout) -> Column:
    values = key_values(decoded.tree, decoded.value)
    by_target = {layout.column_mapping.target(source): value for source, value in values.items()}
    return F.struct(*(by_target[name].alias(name) for name in layout.keys))


def _row(layout: Layout, decoded: DecodedLayout) -> Column:
    values = {name: F.col("pk")[name] for name in layout.keys}
    values = _sent(layout, decoded) | values
    nothing = {name: F.lit(None).cast(kind) for name, kind in layout.columns.items()}
    return F.struct(*(values.get(name, nothing[name]).alias(name) for name in layout.columns))


def _sent(layout: Layout, decoded: DecodedLayout) -> dict[str, Column]:
    """The values of silver's columns in a decoded value."""
    columns, values = row_fields(decoded.tree), {}
    row = row_or_before(decoded.tree, decoded.value, list(columns))
    for source, tree in columns.items():
        stored = type_mapping(tree)
        name = layout.column_for(source, stored.type)
        if name is not None:
            values[name] = stored.convert(row[source])
    return values


def _uncastable(layout: Layout, decoded: DecodedLayout) -> Column:
    sent, cast = _sent(layout, decoded), layout.column_mapping.cast
    is_uncastable = {
        name: sent[name].isNotNull() & sent[name].cast(cast[name]).isNull() for name in cast if name in sent
    }
    names = [F.when(is_so, name) for name, is_so in is_uncastable.items()]
    return F.array_compact(F.array(*names)) if names else F.array().cast("array<string>")


def with_deletes(events: DataFrame, condition: str, table: str) -> DataFrame:
    """Turn events whose row meets a condition (`merge.apply_as_deletes`) into deletes.

    Args:
        events: `events()`' columns.
        condition: SQL on silver's columns; null counts as not met.

    Columns out: those of `events`.

    Raises:
        ConfigError: the condition is not valid for the table's columns.
    """
    rows = events.select(F.struct(*events.columns).alias("__event"), "row.*")
    is_met = checked_expression(rows, condition, f"{table}: merge.apply_as_deletes", kind="boolean")
    met = rows.withColumn("__is_met", F.coalesce(is_met, F.lit(False)))
    event = F.col("__event")
    is_met = F.col("__is_met") & event["row"].isNotNull()
    own = {name: F.when(~is_met, event[name]) for name in ("row", "unavailable")}
    own["op"] = F.when(is_met, "d").otherwise(event["op"])
    return met.select(*(own.get(name, event[name]).alias(name) for name in events.columns))
