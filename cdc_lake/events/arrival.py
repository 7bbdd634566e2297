"""From Kafka records to bronze rows: what each record is, whether it can be read, and where it stands in the log.

Nothing is dropped here and nothing is changed: what cannot be read becomes a quarantined row with its bytes and the
reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.columns import BRONZE
from cdc_lake.events import framing
from cdc_lake.events.avro import Decoded, WriterSchema, one_of, with_decoded_keys, with_decoded_values
from cdc_lake.events.envelope import ROW_OPS, TOMBSTONE, TRUNCATE, Metadata, is_of_signal_table, metadata, row_fields
from cdc_lake.events.key import canonical_key, key_fields
from cdc_lake.events.schemas import SchemaError
from cdc_lake.events.types import mapping

_ERROR_TYPE = "struct<stage: string, code: string, message: string>"
_SEED_TYPE = "struct<log_ts: bigint, last: struct<offset: bigint, key: binary, op: string, status: string>>"
DECODE_STAGE = "decode"
PAIR_STAGE = "pair"
"""Where a tombstone fails that is quarantined with its delete."""


@dataclass(frozen=True)
class Schemas:
    """What the schema ids of a batch mean.

    Attributes:
        known: id -> schema, for the ids whose schema can be used.
        problems: id -> why its records cannot be read, for the others.
    """

    known: Mapping[int, WriterSchema]
    problems: Mapping[int, str]

    @classmethod
    def of(cls, answers: Mapping[int, WriterSchema | None], *, is_key: bool) -> "Schemas":
        """Sort a registry's answers; a schema that is refused is a problem of its records."""
        known: dict[int, WriterSchema] = {}
        problems: dict[int, str] = {}
        for schema_id, schema in answers.items():
            if schema is None:
                problems[schema_id] = f"schema id {schema_id} is not in the registry"
                continue
            try:
                _check_usable(schema, is_key=is_key)
                known[schema_id] = schema
            except SchemaError as exc:
                problems[schema_id] = f"the schema of id {schema_id} is refused: {exc}"
        return cls(known, problems)


@dataclass(frozen=True)
class LastRecord:
    """The last record of a partition that is in bronze already.

    Attributes:
        log_ts: the running maximum of Kafka's timestamp up to it, ms.
        offset, key, op, status: its own; null when only `log_ts` is known.
    """

    log_ts: int
    offset: int | None = None
    key: bytes | None = None
    op: str | None = None
    status: str | None = None


def with_frames(records: DataFrame) -> DataFrame:
    """Look at the frames of keys and values.

    Columns in: `key`, `value`, `headers`. Columns out: all, and `key_framing`, `value_framing` string,
    `key_id`, `value_id` bigint, `frame_problem` string.
    """
    problem = F.coalesce(
        _named("value", framing.frame_problem(F.col("value"), F.col("headers"), "value")),
        _named("key", framing.frame_problem(F.col("key"), F.col("headers"), "key")),
    )
    return records.withColumns(
        {
            "key_framing": framing.framing(F.col("key")),
            "value_framing": framing.framing(F.col("value")),
            "key_id": framing.schema_id(F.col("key")),
            "value_id": framing.schema_id(F.col("value")),
            "frame_problem": problem,
        }
    )


def with_decision(records: DataFrame, keys: Schemas, values: Schemas) -> DataFrame:
    """Decide what each record is, by decoding it and seeing that every byte is accounted for.

    Columns in: `with_frames`'. Columns out: all, and `status`, `error`, `op`, `source_ts_ms`, `source_position`,
    `position_domain`, `snapshot`, `transaction_id`, `canonical_key`, `key_schema`, `value_schema`.
    """
    records = records.withColumns(
        {
            "key_schema": _fingerprint_of(F.col("key_id"), keys),
            "value_schema": _fingerprint_of(F.col("value_id"), values),
        }
    )
    key_schema, value_schema = F.col("key_schema"), F.col("value_schema")
    records, key_layouts = with_decoded_keys(
        records, keys.known.values(), body=framing.body(F.col("key")), schema=key_schema
    )
    records, value_layouts = with_decoded_values(
        records, values.known.values(), body=framing.body(F.col("value")), schema=value_schema
    )
    said = _metadata(value_layouts, value_schema)
    records = records.withColumns(
        {
            "is_control": _is_control(keys, values),
            "sent_op": F.when(F.col("value").isNull(), TOMBSTONE).otherwise(said.op),
            "problem": _problem(keys, values, key_layouts, value_layouts),
        }
    )
    is_ok = F.col("status") == "ok"
    decoded_key = one_of(
        key_layouts, key_schema, [F.when(k.is_whole, canonical_key(k.tree, k.value)) for k in key_layouts]
    )
    records = records.withColumns(
        {"canonical_key": decoded_key.cast("string"), "problem": _first_problem(F.col("problem"))}
    ).withColumn(
        "status",
        F.when(F.col("problem").isNotNull(), "quarantined").when(F.col("is_control"), "control").otherwise("ok"),
    )
    return records.select(
        *(name for name in records.columns if not name.startswith(("__key_", "__value_")) and name != "sent_op"),
        F.col("problem").alias("error"),
        F.when(F.col("problem").isNull() | (F.col("problem")["stage"] == "type"), F.col("sent_op")).alias("op"),
        F.when(is_ok, said.source_ts_ms).alias("source_ts_ms"),
        F.when(is_ok, said.source_position).alias("source_position"),
        F.when(is_ok & F.col("value").isNotNull(), said.position_domain).alias("position_domain"),
        F.when(is_ok, said.snapshot).alias("snapshot"),
        F.when(is_ok, said.transaction_id).alias("transaction_id"),
    ).drop("problem", "is_control")


def with_log_order(records: DataFrame, before: Mapping[int, LastRecord]) -> DataFrame:
    """Place each record in the log.

    A tombstone right behind the delete of its key says nothing new: `tombstone_of` is that delete's offset. Kafka's own
    timestamps may step back; `log_ts` never does inside a partition.

    Args:
        records: one topic's records, `with_decision`'s columns.
        before: by partition, the last record before these.

    Columns out: all, and `log_ts`, `tombstone_of` bigint; `status` and `error` of a tombstone follow its delete's.
    """
    seed = _seed(before)
    in_partition = W.partitionBy("partition").orderBy("offset")
    last = F.lag(F.struct("offset", "key", "op", "status")).over(in_partition)
    last = F.coalesce(last, seed["last"])
    follows = F.col("value").isNull() & F.col("key").eqNullSafe(last["key"])
    after_quarantined = follows & (last["status"] == "quarantined") & last["op"].isNull()
    running = F.max(F.unix_millis("timestamp")).over(in_partition.rowsBetween(W.unboundedPreceding, W.currentRow))
    paired_error = _error(
        PAIR_STAGE, "delete_quarantined", F.lit("the record before it, with the same key, is quarantined")
    )
    return records.withColumns(
        {
            "log_ts": F.greatest(running, seed["log_ts"]),
            "tombstone_of": F.when(follows & (last["op"] == "d"), last["offset"]),
            "status": F.when(after_quarantined, "quarantined").otherwise(F.col("status")),
            "error": F.when(after_quarantined, paired_error).otherwise(F.col("error")),
        }
    )


def bronze_rows(records: DataFrame, *, batch: int, generation: int, ingest_date: date) -> DataFrame:
    """Records as bronze holds them: `columns.BRONZE`, in its order and types.

    Args:
        records: `with_log_order`'s columns.
        batch: the commit that brings them.
        generation: of the topic.
        ingest_date: the day of the commit, UTC.
    """
    own = {
        "batch": F.lit(batch),
        "first_batch": F.lit(batch),
        "ingest_date": F.lit(ingest_date),
        "generation": F.lit(generation),
        "kafka_timestamp": F.col("timestamp"),
        "late": F.lit(False),
        "key": F.col("canonical_key"),
        "framing": F.struct("key_framing", "value_framing"),
        "raw_key": F.col("key"),
        "raw_value": F.col("value"),
    }
    return records.select(*(own.get(name, F.col(name)).cast(kind).alias(name) for name, kind in BRONZE.items()))


def _check_usable(schema: WriterSchema, *, is_key: bool) -> None:
    """Find out now, not in the middle of a plan, that a schema cannot be mapped."""
    if not is_key and schema.shape == "control":
        return
    for tree in (key_fields(schema.tree) if is_key else row_fields(schema.tree)).values():
        mapping(tree)


def _named(side: str, problem: Column) -> Column:
    return F.when(problem.isNotNull(), F.concat(F.lit(f"{side}: "), problem))


def _fingerprint_of(schema_id: Column, schemas: Schemas) -> Column:
    found = [F.when(schema_id == number, schema.fingerprint) for number, schema in schemas.known.items()]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _is_control(keys: Schemas, values: Schemas) -> Column:
    """Whether a record concerns no table; a tombstone has only its key to tell."""
    control = {schema.fingerprint for schema in values.known.values() if schema.shape == "control"}
    signals = {schema.fingerprint for schema in keys.known.values() if is_of_signal_table(schema.tree)}
    by_value, by_key = F.col("value_schema").isin(control), F.col("value").isNull() & F.col("key_schema").isin(signals)
    return F.coalesce(by_value, by_key, F.lit(False))


def _metadata(layouts: Sequence[Decoded], schema: Column) -> Metadata:
    said = [metadata(layout.tree, layout.value, F.col("topic")) for layout in layouts]

    def of(name: str, kind: str) -> Column:
        return one_of(layouts, schema, [getattr(one, name) for one in said]).cast(kind)

    return Metadata(
        op=of("op", "string"),
        source_ts_ms=of("source_ts_ms", "bigint"),
        source_position=of("source_position", "array<bigint>"),
        position_domain=of("position_domain", "string"),
        snapshot=of("snapshot", "string"),
        transaction_id=of("transaction_id", "string"),
    )


def _problem(
    keys: Schemas, values: Schemas, key_layouts: Sequence[Decoded], value_layouts: Sequence[Decoded]
) -> Column:
    """Why the bytes cannot be read, as an error; null when they can."""
    undecodable = "not every byte is consumed by the schema, or the bytes do not fit it"
    is_row = ~_is_control(keys, values)
    return F.coalesce(
        _error("frame", "unreadable_frame", F.col("frame_problem")),
        _error("lookup", "unusable_schema", _named("value", _id_problem(F.col("value_id"), values))),
        _error("lookup", "unusable_schema", _named("key", _id_problem(F.col("key_id"), keys))),
        _error(DECODE_STAGE, "undecodable", _unless_whole("value", value_layouts, undecodable)),
        _error(DECODE_STAGE, "undecodable", F.when(is_row, _unless_whole("key", key_layouts, undecodable))),
    )


def _first_problem(problem: Column) -> Column:
    op = F.col("sent_op")
    is_row = ~F.col("is_control")
    unknown = is_row & ~F.coalesce(op.isin(*ROW_OPS, TRUNCATE, TOMBSTONE), F.lit(False))
    no_key = is_row & (op != TRUNCATE) & F.col("key").isNull()
    nothing = no_key & (op == TOMBSTONE)
    return F.coalesce(
        problem,
        _error("type", "unknown_op", F.when(unknown, F.concat(F.lit("op is "), F.coalesce(op, F.lit("null"))))),
        _error("type", "null_record", F.when(nothing, "key and value are both null")),
        _error("type", "no_key", F.when(no_key, "the record has no key; set message.key.columns on the connector")),
    )


def _id_problem(schema_id: Column, schemas: Schemas) -> Column:
    found = [F.when(schema_id == number, text) for number, text in schemas.problems.items()]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _unless_whole(side: str, layouts: Sequence[Decoded], message: str) -> Column:
    schema = F.col(f"{side}_schema")
    found = [F.when(layout.of(schema) & ~layout.is_whole, f"{side}: {message}") for layout in layouts]
    return F.coalesce(*found, F.lit(None).cast("string"))


def _error(stage: str, code: str, message: Column) -> Column:
    error = F.struct(F.lit(stage).alias("stage"), F.lit(code).alias("code"), message.alias("message"))
    return F.when(message.isNotNull(), error.cast(_ERROR_TYPE))


def _seed(before: Mapping[int, LastRecord]) -> Column:
    known = [F.when(F.col("partition") == partition, _seed_of(one)) for partition, one in before.items()]
    return F.coalesce(*known, F.lit(None).cast(_SEED_TYPE))


def _seed_of(one: LastRecord) -> Column:
    last = F.struct(F.lit(one.offset), F.lit(one.key), F.lit(one.op), F.lit(one.status))
    return F.struct(F.lit(one.log_ts), last if one.offset is not None else F.lit(None)).cast(_SEED_TYPE)
