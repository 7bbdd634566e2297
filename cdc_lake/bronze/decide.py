"""Turns Kafka records into bronze rows: decides the status of each record, and its position in the log.

No record is lost or changed: a record that does not decode becomes a quarantined row with its bytes and the reason.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import date
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.bronze.frames import about
from cdc_lake.bronze.usable_schemas import MAX_IDS, MAX_LAYOUTS, Schemas
from cdc_lake.columns import BRONZE
from cdc_lake.config import TableConfig
from cdc_lake.decode import framing
from cdc_lake.decode.envelope import (
    ROW_OPS,
    TOMBSTONE,
    TRUNCATE,
    Metadata,
    before_fields,
    before_row_of,
    is_of_signal_table,
    metadata,
    row_fields,
    row_of,
    row_or_before,
    row_problem,
    shape_of,
)
from cdc_lake.decode.key import canonical_key, key_from_row, key_problem
from cdc_lake.decode.records import DecodedLayout, DecodedLayouts, by_name, with_decoded_keys, with_decoded_values
from cdc_lake.decode.schemas import fields
from cdc_lake.decode.types import is_garbled, type_mapping, value_problem
from cdc_lake.fold.rules import SHARED
from cdc_lake.spark.expressions import built_once, of_batch
from cdc_lake.tables.progress import NO_TIMESTAMP_MS

_ERROR_TYPE = "struct<stage: string, code: string, message: string>"
_KEY_RESULT_TYPE = "struct<is_exact: boolean, is_garbled: boolean, problem: string, canonical: string>"
_VALUE_RESULT_TYPE = (
    "struct<is_exact: boolean, is_garbled: boolean, problem: string, misfit: string, op: string, "
    "source_ts_ms: bigint, source_position: array<bigint>, position_domain: string, snapshot: string, "
    "transaction_id: string>"
)
DECODE_STAGE = "decode"
NO_KEY = "no_key"
TOO_LARGE = "too_large"
"""Code of records whose bytes bronze does not keep."""
PAIR_STAGE = "pair"
"""Stage of a tombstone that is quarantined with its delete."""


def with_decision(
    records: DataFrame,
    keys: Schemas,
    values: Schemas,
    frames: Collection[str],
    settings: TableConfig,
) -> DataFrame:
    """Decide the status of each record, by decoding it and checking that the schema consumes every byte.

    Args:
        records: the columns of `with_references`.
        keys, values: the schemas of their references.
        frames: the frames of the records.

    Columns out: all, and `status`, `error`, `op`, `source_ts_ms`, `source_position`, `position_domain`, `snapshot`,
    `transaction_id`, `canonical_key`, `key_schema`, `value_schema`.
    """
    key_columns, sequence_by, given = settings.key_of_rows, settings.merge.sequence_by, records.columns
    bodies = {side: framing.body(F.col(side), F.col(f"{side}_framing"), frames) for side in ("key", "value")}
    records, key_layouts = with_decoded_keys(records, keys.known, body=bodies["key"], named=F.col("key_reference"))
    records, value_layouts = with_decoded_values(
        records,
        values.known,
        body=bodies["value"],
        named=F.col("value_reference"),
        before=None if key_columns is None else (*key_columns, *filter(None, [sequence_by])),
    )
    value_result = value_layouts.chosen(partial(_value_result, sequence_by=sequence_by))
    # The decoded columns end here: each further step with them would take several times as long to plan.
    records = records.select(
        *given,
        key_layouts.schema.alias("key_schema"),
        value_layouts.schema.alias("value_schema"),
        _is_control(key_layouts, value_layouts).alias("is_control"),
        _chosen_key_result(key_layouts, value_layouts, key_columns).cast(_KEY_RESULT_TYPE).alias("__key_result"),
        value_result.cast(_VALUE_RESULT_TYPE).alias("__value_result"),
    )
    op = F.when(F.col("is_tombstone"), TOMBSTONE).otherwise(F.col("__value_result")["op"])
    records = records.withColumn("sent_op", op).withColumn("problem", _problem(keys, values, key_columns))
    return records.select(*given, "key_schema", "value_schema", *_decided_columns())


def _chosen_key_result(keys: DecodedLayouts, values: DecodedLayouts, key_columns: Sequence[str] | None) -> Column:
    """See `_key_result`; the key is Kafka's, or in the columns of the value's row."""
    if key_columns == ():
        return keys.chosen(_key_result)

    def in_value(value: DecodedLayout) -> Column | None:
        key = key_from_row(value, key_columns) if key_columns else None
        if not (key and key_columns):
            return None
        nulls = (
            F.when(key.value[name].isNull(), f"`{name}`, a column of `merge.keys`, is null or missing")
            for name in key_columns
        )
        return _key_result(key, F.coalesce(*nulls))

    return values.chosen(in_value)


@built_once
def _decided_columns() -> Sequence[Column]:
    """The columns of `with_decision` that depend on a record's problem."""
    key, value = F.col("__key_result"), F.col("__value_result")
    status = F.when(F.col("problem").isNotNull(), "quarantined").when(F.col("is_control"), "control").otherwise("ok")
    is_ok = status == "ok"
    has_op = F.col("problem").isNull() | (F.col("problem")["stage"] == "type")
    of_value = ("source_ts_ms", "source_position", "snapshot", "transaction_id")
    return (
        status.alias("status"),
        F.col("problem").alias("error"),
        F.when(has_op, F.col("sent_op")).alias("op"),
        key["canonical"].alias("canonical_key"),
        *(F.when(is_ok, value[name]).alias(name) for name in of_value),
        F.when(is_ok & ~F.col("is_tombstone"), value["position_domain"]).alias("position_domain"),
    )


def bronze_rows(records: DataFrame, *, batch: int, generation: int, ingest_date: date, late: bool = False) -> DataFrame:
    """Records as bronze stores them: `columns.BRONZE`, in its order and types.

    Args:
        records: the columns of `with_log_order`.
        batch: the commit that lands them.
        ingest_date: the day of the commit, UTC.
        late: whether they are replayed, that is, landed after later records.
    """
    number = of_batch(batch, F.col("partition"))
    of_commit = {"batch": number, "first_batch": number, "ingest_date": F.lit(ingest_date)}
    columns = {
        **_columns_of_records(generation, late),
        **{name: column.cast(BRONZE[name]).alias(name) for name, column in of_commit.items()},
    }
    return records.select(*(columns[name] for name in BRONZE))


@built_once
def _columns_of_records(generation: int, late: bool) -> dict[str, Column]:
    """Bronze's columns, of which the commit's own are only placeholders."""
    own = {
        "generation": F.lit(generation),
        "kafka_timestamp": F.coalesce("timestamp", F.timestamp_millis(F.lit(NO_TIMESTAMP_MS))),
        "late": F.lit(late),
        "key": F.col("canonical_key"),
        "framing": F.struct("key_framing", "value_framing"),
        "raw_key": F.col("key"),
        "raw_value": F.col("value"),
    }
    return {name: own.get(name, F.col(name)).cast(kind).alias(name) for name, kind in BRONZE.items()}


def _is_control(keys: DecodedLayouts, values: DecodedLayouts) -> Column:
    """Whether a record belongs to no table; for a tombstone, by its key. Never null."""
    return values.among(lambda tree: shape_of(tree) == "control") | (
        F.col("is_tombstone") & keys.among(is_of_signal_table)
    )


def _key_result(decoded: DecodedLayout, problem: Column | None = None) -> Column:
    """The result of decoding a key, as `_KEY_RESULT_TYPE`.

    Args:
        decoded: the decoded record.
        problem: a problem found before.
    """
    lost = key_problem(decoded.tree, decoded.value)
    lost = lost if problem is None else F.coalesce(problem, lost)
    garbled = _is_garbled(decoded)
    canonical = F.when(decoded.is_exact & ~garbled & lost.isNull(), canonical_key(decoded.tree, decoded.value))
    return F.struct(decoded.is_exact, garbled, lost, canonical).cast(_KEY_RESULT_TYPE)


def _value_result(decoded: DecodedLayout, sequence_by: str | None) -> Column:
    """The result of decoding a value, as `_VALUE_RESULT_TYPE`."""
    facts = metadata(decoded.tree, decoded.value, F.col("topic"))
    problem = row_problem(decoded.tree, decoded.value)
    if sequence_by and shape_of(decoded.tree) != "control":
        facts, missing = _in_sequence(facts, decoded, sequence_by)
        problem = F.coalesce(problem, missing)
    rest = problem, _misfit(decoded), *vars(facts).values()
    return F.struct(decoded.is_exact, _is_garbled(decoded), *rest).cast(_VALUE_RESULT_TYPE)


def _in_sequence(facts: Metadata, value: DecodedLayout, column: str) -> tuple[Metadata, Column]:
    """A value's metadata with a column of its row (`merge.sequence_by`) as source position, and its problem, if any.

    Events with the same value in the column form a group, in which the order in Kafka decides. A timestamp is also the
    source time.

    Args:
        facts: the metadata from the value's own fields.
        value: the decoded value; its rows also have Kafka's `topic`.
    """
    rule = type_mapping(row_fields(value.tree)[column])
    sent = rule.convert(row_or_before(value.tree, value.value, [column])[column])
    time_ms = F.lit(None).cast("bigint")
    if rule.type == "timestamp":
        number, time_ms = F.unix_micros(sent), F.unix_millis(sent)
    elif rule.type == "date":
        number = F.unix_date(sent)
    else:
        number = sent
    position = F.array(number.cast("bigint"), F.lit(SHARED).cast("bigint"))
    missing = F.when(
        number.isNull() & (facts.op != TRUNCATE), f"`{column}`, the column of `merge.sequence_by`, is null"
    )
    placed = replace(
        facts,
        source_ts_ms=time_ms,
        source_position=F.when(number.isNotNull(), position),
        position_domain=F.col("topic"),
    )
    return placed, missing


def _is_garbled(decoded: DecodedLayout) -> Column:
    garbled = is_garbled(decoded.tree, decoded.value)
    return F.lit(False) if garbled is None else garbled


def _misfit(decoded: DecodedLayout) -> Column:
    """Which value of a row does not fit its column's type, string; null if all do. See `value_problem`."""
    if shape_of(decoded.tree) == "control":
        return F.lit(None).cast("string")
    rows = [(row_of(decoded.tree, decoded.value), row_fields(decoded.tree))]
    if shape_of(decoded.tree) == "envelope" and "before" in fields(decoded.tree):
        rows.append((before_row_of(decoded.tree, decoded.value), before_fields(decoded.tree)))
    return value_problem([(name, tree, row[name]) for row, columns in rows for name, tree in columns.items()])


def _problem(keys: Schemas, values: Schemas, key_columns: Sequence[str] | None) -> Column:
    """The first problem of a record, as an error; null if it has none.

    Columns in: those of `with_references`, `key_schema`, `value_schema`, `__key_result`, `__value_result`,
    `is_control`, `sent_op`.
    """
    before, after = _other_problems(None if key_columns is None else tuple(key_columns))
    unusable = (
        error_of("lookup", "unusable_schema", about(side, _id_problem(side, schemas)))
        for side, schemas in (("value", values), ("key", keys))
    )
    return F.coalesce(*before, *unusable, *after)


@built_once
def _other_problems(key_columns: Sequence[str] | None) -> tuple[Sequence[Column], Sequence[Column]]:
    """The errors of `_problem` that take precedence over unusable schemas, and the others."""
    key, value, op = F.col("__key_result"), F.col("__value_result"), F.col("sent_op")
    is_row = ~F.col("is_control")
    unknown = is_row & ~F.coalesce(op.isin(*ROW_OPS, TRUNCATE, TOMBSTONE), F.lit(False))
    is_keyed = is_row & (op != TRUNCATE)
    no_key = is_keyed & (F.col("key").isNull() if key_columns == () else op == TOMBSTONE)
    nothing = no_key & (op == TOMBSTONE) & F.col("key").isNull()
    if key_columns == ():
        how = "the record has no key; set message.key.columns on the connector, or `merge.keys`"
    elif key_columns is None:
        how = "the record has no value, which `merge.mode: append` needs, and does not follow a delete of the same key"
    else:
        how = "the record has no value, which `merge.keys` needs, and does not follow a delete of the same Kafka key"
    other_op = f"op is not one of {', '.join((*ROW_OPS, TRUNCATE))}"
    undecodable = "not every byte is consumed by the schema, or the bytes do not fit it"
    not_utf8 = "one of its texts is not UTF-8"
    no_timestamp = (
        "its Kafka timestamp is out of Spark's range, for example nanoseconds instead of milliseconds; "
        "`cdc-lake quarantine replay` lands the record without a timestamp"
    )
    before = (
        error_of("frame", "no_timestamp", F.when(F.col("timestamp").isNull(), no_timestamp)),
        error_of("frame", TOO_LARGE, F.col("too_large")),
        error_of("frame", "unreadable_frame", F.col("frame_problem")),
    )
    return before, (
        error_of("lookup", "ambiguous_schema", about("value", _ambiguity("value"))),
        error_of("lookup", "ambiguous_schema", F.when(is_row, about("key", _ambiguity("key")))),
        error_of(DECODE_STAGE, "undecodable", F.when(~value["is_exact"], f"value: {undecodable}")),
        error_of(DECODE_STAGE, "undecodable", F.when(is_row & ~key["is_exact"], f"key: {undecodable}")),
        error_of(DECODE_STAGE, "not_utf8", F.when(value["is_garbled"], f"value: {not_utf8}")),
        error_of(DECODE_STAGE, "not_utf8", F.when(is_row & key["is_garbled"], f"key: {not_utf8}")),
        error_of("type", "unknown_op", F.when(unknown, F.when(op.isNull(), "op is null").otherwise(other_op))),
        error_of("type", "null_record", F.when(nothing, "key and value are both null")),
        error_of("type", NO_KEY, F.when(no_key, how)),
        error_of("type", "key_out_of_range", F.when(is_keyed, key["problem"])),
        error_of("type", "no_row", F.when(is_row, value["problem"])),
        error_of("type", "unfit_value", F.when(is_row, value["misfit"])),
    )


def _id_problem(side: str, schemas: Schemas) -> Column:
    named = F.col(f"{side}_reference")
    problem = by_name(schemas.problems, named, "string")
    if schemas.are_all:
        return problem
    is_other = named.isNotNull() & ~named.isin(*schemas.known, *schemas.problems)
    too_many = f"its batch has more than {MAX_IDS} schema ids, or more than {MAX_LAYOUTS} schemas in JSON"
    return F.when(is_other, too_many).otherwise(problem)


def _ambiguity(side: str) -> Column:
    """The problem that none, or several, of the possible schemas of a reference fit the record."""
    is_unknown = F.col(f"{side}_reference").isNotNull() & F.col(f"{side}_schema").isNull()
    return F.when(is_unknown, "the reference has had several schemas, and not exactly one of them fits the bytes")


def error_of(stage: str, code: str, message: Column) -> Column:
    """An error as bronze stores it; null if the message is null."""
    error = F.struct(F.lit(stage).alias("stage"), F.lit(code).alias("code"), message.alias("message"))
    return F.when(message.isNotNull(), error.cast(_ERROR_TYPE))
