"""From Kafka records to bronze rows: what each record is, whether it can be read, and where it stands in the log.

Nothing is dropped here and nothing is changed: what cannot be read becomes a quarantined row with its bytes and the
reason.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial, reduce
from operator import add, or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F

from cdc_lake.bronze.sequence import check_sequence, in_sequence
from cdc_lake.bronze.typed_rows import TypedRow
from cdc_lake.columns import BRONZE, TYPED
from cdc_lake.decode import framing
from cdc_lake.decode import json as json_format
from cdc_lake.decode.column_mapping import ColumnMapping
from cdc_lake.decode.envelope import (
    ROW_OPS,
    TOMBSTONE,
    TRUNCATE,
    before_of,
    is_of_signal_table,
    metadata,
    row_fields,
    row_of,
    row_problem,
    shape_of,
)
from cdc_lake.decode.identity import NO_TIMESTAMP_MS
from cdc_lake.decode.key import canonical_key, key_fields, key_in, key_problem, key_tree_in
from cdc_lake.decode.records import (
    Decoded,
    Layouts,
    WriterSchema,
    by_name,
    layout,
    refusal,
    with_decoded_keys,
    with_decoded_values,
)
from cdc_lake.decode.schemas import SchemaError, Tree, fields
from cdc_lake.decode.types import is_garbled, mapping, number_problem
from cdc_lake.spark.literals import of_batch

_ERROR_TYPE = "struct<stage: string, code: string, message: string>"
_SEED_TYPE = (
    "struct<log_ts: bigint, last: struct<offset: bigint, key: binary, op: string, status: string>, next_log_ts: bigint>"
)
_KEY_SAID_TYPE = "struct<is_whole: boolean, is_garbled: boolean, problem: string, canonical: string>"
_VALUE_SAID_TYPE = (
    "struct<is_whole: boolean, is_garbled: boolean, problem: string, long_number: string, op: string, "
    "source_ts_ms: bigint, source_position: array<bigint>, position_domain: string, snapshot: string, "
    "transaction_id: string>"
)
_LONGEST_REASON = 500
"""In characters; a schema's names are as long as their writer likes, and each of its records holds the reason."""
MAX_IDS, MAX_LAYOUTS = 1000, 64
"""Of the keys, or the values, of a batch: so many references are looked up, and so many layouts decoded."""
_MAX_REFERENCE, _MAX_JSON_REFERENCE = 1 << 10, 64 << 10
"""Characters of a reference; one of JSON without a schema lists its fields."""
DECODE_STAGE = "decode"
NO_KEY = "no_key"
KNOWN_LOG_TS = "known_log_ts"
"""Column of records that are read again: `log_ts` of those that are in bronze already."""
TOO_LARGE = "too_large"
"""Of records whose bytes bronze does not keep."""
PAIR_STAGE = "pair"
"""Where a tombstone fails that is quarantined with its delete."""


@dataclass(frozen=True)
class Schemas:
    """What the references of a batch mean.

    Attributes:
        known: reference -> the schemas that it may mean, the likeliest first; each record tells which it was.
        problems: reference -> why its records cannot be read, for the others.
        are_all: whether no reference but these occurs; else there are more than a batch may have.
    """

    known: Mapping[str, Sequence[WriterSchema]]
    problems: Mapping[str, str]
    are_all: bool = True

    @classmethod
    def of(
        cls,
        meanings: Mapping[str, Sequence[WriterSchema]],
        problems: Mapping[str, str] | None = None,
        *,
        side: framing.Side,
        key_columns: Sequence[str] | None = (),
        sequence_by: str | None = None,
        spark: SparkSession | None = None,
        placing: ColumnMapping | None = None,
        in_hudi: bool = False,
        are_all: bool = True,
    ) -> "Schemas":
        """Sort out what can be used; a reference all of whose schemas are refused is a problem of its records.

        Args:
            meanings: reference -> the schemas that it may mean.
            problems: what is known not to be readable already.
            key_columns, sequence_by: the columns that each value's row has to have; see `with_decision`.
            spark: has to take the schemas, too, if there is one.
            placing, in_hudi: where silver has the columns, see `ColumnMapping.check`.
            are_all: see `Schemas`.
        """
        wanted = _Wanted(side == "key", key_columns, sequence_by, spark, placing or ColumnMapping(), in_hudi)
        known: dict[str, Sequence[WriterSchema]] = {}
        refused = dict(problems or {})
        for reference, schemas in meanings.items():
            reasons = {schema: _refusal(schema, wanted) for schema in schemas}
            known[reference] = tuple(schema for schema, reason in reasons.items() if reason is None)
            if not known[reference]:
                del known[reference]
                reason = str(next(iter(reasons.values())))[:_LONGEST_REASON]
                refused[reference] = f"the schema of {said(reference)} is refused: {reason}"
        for reference in _beyond_layouts(known):
            del known[reference]
            refused[reference] = f"{said(reference)} is of a layout beyond the {MAX_LAYOUTS} that a batch may have"
        return cls(known, refused, are_all)

    def without(self, references: Collection[str], problem: str) -> "Schemas":
        """The same, but that records of some references cannot be taken, and why."""
        known = {one: several for one, several in self.known.items() if one not in references}
        return replace(self, known=known, problems={**self.problems, **dict.fromkeys(references, problem)})


def _beyond_layouts(known: Mapping[str, Sequence[WriterSchema]]) -> list[str]:
    """References that would bring more layouts than a batch may have: each is a column of the plan."""
    if len({schema for schemas in known.values() for schema in schemas}) <= MAX_LAYOUTS:
        return []
    found, beyond = set[tuple[str, str, str]](), []
    for reference, schemas in known.items():
        more = found | {layout(schema.format, schema.tree, schema.tree) for schema in schemas}
        if len(more) > MAX_LAYOUTS:
            beyond.append(reference)
        else:
            found = more
    return beyond


def said(reference: str) -> str:
    """A reference in words."""
    kind = reference.partition(":")[0]
    words = {"id4": "schema id", "id8": "schema id", "contentId": "content id", "globalId": "global id", "id": "id"}
    return f"{words.get(kind, kind)} {framing.id_of(reference)}"


@dataclass(frozen=True)
class LastRecord:
    """The last record of a partition that is in bronze already, before those that are landed.

    Attributes:
        log_ts: the running maximum of Kafka's timestamp up to it, ms; null when there is no such record.
        offset, key, op, status: its own; null when only `log_ts` is known.
        next_log_ts: that of the first record behind those that are landed, if they are read again.
    """

    log_ts: int | None
    offset: int | None = None
    key: bytes | None = None
    op: str | None = None
    status: str | None = None
    next_log_ts: int | None = None


def with_frames(
    records: DataFrame,
    *,
    key_framing: str | None = "auto",
    value_framing: str = "auto",
    max_bytes: int,
    of_files: bool = False,
) -> DataFrame:
    """Tell the frames of keys and values.

    Args:
        key_framing, value_framing: the frame that the settings name, or `auto`; none for keys that are not looked at.
        max_bytes: a key, a value or headers that are larger become null here, before anything holds them.
        of_files: whether the records came out of files.

    Columns in: `key`, `value`, `headers`. Columns out: all, and `too_large` string, which is about what became null;
    `header_bytes` bigint; `key_framing`, `value_framing` string.
    """
    settings: tuple[tuple[framing.Side, str | None], ...] = (("key", key_framing), ("value", value_framing))
    headers = F.col("headers")
    said = F.lit(f"%d bytes are more than max_record_bytes: {max_bytes}, and are not kept")
    records = records.withColumn("header_bytes", _bytes_of(headers))
    sizes = {"value": F.length("value"), "key": F.length("key"), "headers": F.col("header_bytes")}
    too_large = (
        F.when(size > max_bytes, _named(part, F.call_function("format_string", said, size)))
        for part, size in sizes.items()
    )
    records = records.withColumn("too_large", F.coalesce(*too_large)).withColumns(
        {part: F.when(size <= max_bytes, F.col(part)) for part, size in sizes.items()}
        | {"header_bytes": F.when(sizes["headers"] <= max_bytes, sizes["headers"]).otherwise(0)}
    )
    return records.withColumns(
        {
            f"{side}_framing": F.lit(None).cast("string")
            if fixed is None
            else framing.framing(F.col(side), headers, side, fixed, of_files=of_files)
            for side, fixed in settings
        }
    )


def _bytes_of(headers: Column) -> Column:
    """The bytes of a record's headers, bigint; never null."""

    def more(so_far: Column, one: Column) -> Column:
        return so_far + F.octet_length(one["key"]) + F.coalesce(F.length(one["value"]), F.lit(0))

    return F.coalesce(F.aggregate(headers, F.lit(0).cast("bigint"), more), F.lit(0).cast("bigint"))


def with_unpacked_bytes(records: DataFrame, max_bytes: int) -> DataFrame:
    """Count what compressed bodies unpack to. One of more than `max_bytes` becomes null, as any large one.

    Spark hands a hundred bodies to Python at once, and takes back as many, so their sum has to be known before.

    Columns in: `with_frames`'. Columns out: all, and `unpacked_bytes` bigint.
    """
    sizes = {side: F.col(f"__unpacked_{side}") for side in ("value", "key")}
    is_large = {side: F.coalesce(size > max_bytes, F.lit(False)) for side, size in sizes.items()}
    said = f"it unpacks to more bytes than max_record_bytes: {max_bytes}, and is not kept"
    too_large = (F.when(is_large[side], _named(side, F.lit(said))) for side in sizes)
    counted = (F.when(~is_large[side], size).otherwise(0) for side, size in sizes.items())
    return (
        records.withColumns(
            {
                f"__unpacked_{side}": framing.unpacked_bytes(F.col(side), F.col(f"{side}_framing"), max_bytes)
                for side in sizes
            }
        )
        .withColumns(
            {
                "too_large": F.coalesce("too_large", *too_large),
                "unpacked_bytes": reduce(add, (F.coalesce(size, F.lit(0)) for size in counted)),
                **{side: F.when(~is_large[side], F.col(side)) for side in sizes},
            }
        )
        .drop(*(f"__unpacked_{side}" for side in sizes))
    )


def with_references(
    records: DataFrame,
    frames: Collection[str],
    *,
    key_framing: str | None = "auto",
    value_framing: str = "auto",
) -> DataFrame:
    """Read off how keys and values name their schemas.

    Args:
        records: `with_frames`' columns.
        frames: the names of those that are to be read; nothing is planned for others, and records in them get nothing.
        key_framing, value_framing: as `with_frames` was given them.

    Columns out: all, and `key_reference`, `value_reference`, `frame_problem` string, `is_tombstone` boolean.
    """
    fixed = {"key": key_framing, "value": value_framing}
    sides: tuple[framing.Side, ...] = ("value", "key")
    references, short, problems = {}, {}, []
    for side in sides:
        if fixed[side] is None:
            references[f"{side}_reference"] = F.lit(None).cast("string")
            continue
        data, frame, reference = F.col(side), F.col(f"{side}_framing"), F.col(f"{side}_reference")
        found = framing.reference(data, F.col("headers"), side, frame, frames)
        if framing.JSON in frames:
            plain = fixed[side] == framing.JSON
            text = json_format.reference(data.cast("string"), side, plain=plain)
            found = F.when(frame == framing.JSON, text).otherwise(found)
        references[f"{side}_reference"] = found
        most = F.when(frame == framing.JSON, _MAX_JSON_REFERENCE).otherwise(_MAX_REFERENCE)
        is_short = F.length(reference) <= most
        too_long = F.when(~is_short, F.format_string("what names its schema has more than %d characters", most))
        problem = F.coalesce(too_long, framing.frame_problem(data, frame, reference, frames))
        problems.append(_named(side, problem))
        short[f"{side}_reference"] = F.when(is_short, reference)
    is_tombstone = F.col("value").isNull() & F.col("too_large").isNull()
    if framing.JSON in frames:
        is_null = json_format.is_null(F.col("value").cast("string"))
        is_tombstone = is_tombstone | ((F.col("value_framing") == framing.JSON) & is_null)
        references["value_reference"] = F.when(~F.col("is_tombstone"), references["value_reference"])
        problems[0] = F.when(~F.col("is_tombstone"), problems[0])
    return (
        records.withColumn("is_tombstone", F.coalesce(is_tombstone, F.lit(False)))
        .withColumns(references)
        .withColumn("frame_problem", F.coalesce(*problems))
        .withColumns(short)
    )


def with_decision(
    records: DataFrame,
    keys: Schemas,
    values: Schemas,
    frames: Collection[str],
    typed: TypedRow | None = None,
    *,
    key_columns: Sequence[str] | None = (),
    sequence_by: str | None = None,
) -> DataFrame:
    """Decide what each record is, by decoding it and seeing that every byte is accounted for.

    Args:
        records: `with_references`' columns.
        keys, values: what their references mean.
        frames: the names of the frames among them.
        typed: the fields of `before` and `after`, if they are wanted.
        key_columns: those of the row that make the key; empty where Kafka's key does, none where rows have no key.
        sequence_by: the row's column that takes the place of the source's log position.

    Columns out: all, and `status`, `error`, `op`, `source_ts_ms`, `source_position`, `position_domain`, `snapshot`,
    `transaction_id`, `canonical_key`, `key_schema`, `value_schema`; `before`, `after` struct, if `typed`.
    """
    bodies = {side: framing.body(F.col(side), F.col(f"{side}_framing"), frames) for side in ("key", "value")}
    records, key_layouts = with_decoded_keys(records, keys.known, body=bodies["key"], named=F.col("key_reference"))
    records, value_layouts = with_decoded_values(
        records,
        values.known,
        body=bodies["value"],
        named=F.col("value_reference"),
        before=typed is not None or bool(key_columns or sequence_by),
    )

    def said_by_key_in(value: Decoded) -> Column | None:
        found = key_in(value, key_columns) if key_columns else None
        if not (found and key_columns):
            return None
        is_null = reduce(or_, (found.value[name].isNull() for name in key_columns))
        return _said_by_key(found, F.when(is_null, "a column that `merge.keys` names is null"))

    said_by_key = key_layouts.chosen(_said_by_key) if key_columns == () else value_layouts.chosen(said_by_key_in)
    records = records.withColumns(
        {
            "key_schema": key_layouts.schema,
            "value_schema": value_layouts.schema,
            "is_control": _is_control(key_layouts, value_layouts),
            "__key_said": said_by_key.cast(_KEY_SAID_TYPE),
            "__value_said": value_layouts.chosen(partial(_said_by_value, sequence_by=sequence_by)).cast(
                _VALUE_SAID_TYPE
            ),
        }
    )
    key, value = F.col("__key_said"), F.col("__value_said")
    records = records.withColumn("sent_op", F.when(F.col("is_tombstone"), TOMBSTONE).otherwise(value["op"]))
    records = records.withColumn("problem", _problem(keys, values, key_columns)).withColumn(
        "status",
        F.when(F.col("problem").isNotNull(), "quarantined").when(F.col("is_control"), "control").otherwise("ok"),
    )
    is_ok = F.col("status") == "ok"
    return records.select(
        *(name for name in records.columns if not name.startswith(("__key_", "__value_")) and name != "sent_op"),
        F.col("problem").alias("error"),
        F.when(F.col("problem").isNull() | (F.col("problem")["stage"] == "type"), F.col("sent_op")).alias("op"),
        key["canonical"].alias("canonical_key"),
        F.when(is_ok, value["source_ts_ms"]).alias("source_ts_ms"),
        F.when(is_ok, value["source_position"]).alias("source_position"),
        F.when(is_ok & ~F.col("is_tombstone"), value["position_domain"]).alias("position_domain"),
        F.when(is_ok, value["snapshot"]).alias("snapshot"),
        F.when(is_ok, value["transaction_id"]).alias("transaction_id"),
        *(_typed_rows(value_layouts, typed) if typed else ()),
    ).drop("problem", "is_control")


def with_log_order(records: DataFrame, before: Mapping[int, LastRecord]) -> DataFrame:
    """Place each record in the log.

    A tombstone right behind the delete of its key says nothing new: `tombstone_of` is that delete's offset. Kafka's own
    timestamps may step back; `log_ts` never does inside a partition.

    Args:
        records: one topic's records, `with_decision`'s columns; where they are read again, with `known_log_ts`, that of
            those which are in bronze already.
        before: by partition, the last record before these.

    Columns out: all, and `log_ts`, `tombstone_of` bigint; `status` and `error` of a tombstone follow its delete's.
    """
    seed = _seed(before)
    in_partition = W.partitionBy("partition").orderBy("offset")
    last = F.lag(F.struct("offset", "key", "op", "status")).over(in_partition)
    last = F.coalesce(last, seed["last"])
    follows = F.col("is_tombstone") & F.col("key").eqNullSafe(last["key"])
    # What was dropped from quarantine meanwhile takes its tombstone with it.
    after_quarantined = follows & last["status"].isin("quarantined", "dropped") & last["op"].isNull()
    written = F.coalesce(F.unix_millis("timestamp"), F.lit(NO_TIMESTAMP_MS))
    is_again = KNOWN_LOG_TS in records.columns
    own = F.coalesce(KNOWN_LOG_TS, written) if is_again else written
    log_ts = F.greatest(F.max(own).over(in_partition.rowsBetween(W.unboundedPreceding, W.currentRow)), seed["log_ts"])
    if is_again:
        behind = F.min(KNOWN_LOG_TS).over(in_partition.rowsBetween(W.currentRow, W.unboundedFollowing))
        log_ts = F.least(log_ts, behind, seed["next_log_ts"])
    paired_error = _error(
        PAIR_STAGE, "delete_quarantined", F.lit("the record before it, with the same key, is quarantined")
    )
    is_paired = F.coalesce(follows & (last["op"] == "d"), F.lit(False))
    # Whose key is in the values (`merge.keys`) does not say it itself; its delete has.
    is_said = is_paired & F.coalesce(F.col("error.code") == NO_KEY, F.lit(False))
    return records.withColumns(
        {
            "log_ts": log_ts,
            "tombstone_of": F.when(is_paired, last["offset"]),
            "status": F.when(after_quarantined, last["status"]).when(is_said, "ok").otherwise(F.col("status")),
            "error": F.when(after_quarantined, paired_error).when(~is_said, F.col("error")),
        }
    )


def bronze_rows(records: DataFrame, *, batch: int, generation: int, ingest_date: date, late: bool = False) -> DataFrame:
    """Records as bronze holds them: `columns.BRONZE`, in its order and types.

    Args:
        records: `with_log_order`'s columns.
        batch: the commit that brings them.
        generation: of the topic.
        ingest_date: the day of the commit, UTC.
        late: whether they are replayed: records behind them came before.
    """
    own = {
        "batch": of_batch(batch, F.col("partition")),
        "first_batch": of_batch(batch, F.col("partition")),
        "ingest_date": F.lit(ingest_date),
        "generation": F.lit(generation),
        "kafka_timestamp": F.coalesce("timestamp", F.timestamp_millis(F.lit(NO_TIMESTAMP_MS))),
        "late": F.lit(late),
        "key": F.col("canonical_key"),
        "framing": F.struct("key_framing", "value_framing"),
        "raw_key": F.col("key"),
        "raw_value": F.col("value"),
    }
    return records.select(
        *(own.get(name, F.col(name)).cast(kind).alias(name) for name, kind in BRONZE.items()),
        *(name for name in TYPED if name in records.columns),
    )


class _Wanted(NamedTuple):
    """What a schema has to have."""

    is_key: bool
    key_columns: Sequence[str] | None
    sequence_by: str | None
    spark: SparkSession | None
    placing: ColumnMapping
    in_hudi: bool


def _refusal(schema: WriterSchema, wanted: _Wanted) -> str | None:
    """Why a schema cannot be used, found out now and not in the middle of a plan."""
    is_key = wanted.is_key
    try:
        if is_key or schema.shape != "control":
            columns = key_fields(schema.tree) if is_key else row_fields(schema.tree)
            wanted.placing.check(columns, in_hudi=wanted.in_hudi)
            for tree in columns.values():
                mapping(tree)
            if wanted.key_columns and not is_key:
                key_tree_in(schema.tree, wanted.key_columns)
            if wanted.sequence_by and not is_key:
                check_sequence(schema.tree, wanted.sequence_by)
        return refusal(schema, wanted.spark) if wanted.spark else None
    except SchemaError as exc:
        return str(exc)


def _named(side: str, problem: Column) -> Column:
    return F.concat(F.lit(f"{side}: "), problem)


def _typed_rows(layouts: Layouts, typed: TypedRow) -> Iterator[Column]:
    is_ok, is_delete = F.col("status") == "ok", F.col("sent_op") == "d"
    is_envelope = layouts.among(lambda tree: shape_of(tree) == "envelope")

    def chosen(row: Callable[[Tree, Column], Column]) -> Column:
        def made(one: Decoded) -> Column | None:
            if shape_of(one.tree) == "control":
                return None
            return typed.of(row_fields(one.tree), row(one.tree, one.value))

        return layouts.chosen(made)

    sides = {"before": (before_of, is_envelope | is_delete), "after": (row_of, ~is_delete)}
    for name, (row, is_there) in sides.items():
        yield F.when(is_ok & is_there, chosen(row)).cast(typed.type).alias(name)


def _is_control(keys: Layouts, values: Layouts) -> Column:
    """Whether a record concerns no table; a tombstone has only its key to tell. Never null."""
    return values.among(lambda tree: shape_of(tree) == "control") | (
        F.col("is_tombstone") & keys.among(is_of_signal_table)
    )


def _said_by_key(one: Decoded, problem: Column | None = None) -> Column:
    """What a key says, as `_KEY_SAID_TYPE`.

    Args:
        problem: what is known to be wrong with it.
    """
    lost = key_problem(one.tree, one.value)
    lost = lost if problem is None else F.coalesce(problem, lost)
    garbled = _is_garbled(one)
    canonical = F.when(one.is_whole & ~garbled & lost.isNull(), canonical_key(one.tree, one.value))
    return F.struct(one.is_whole, garbled, lost, canonical).cast(_KEY_SAID_TYPE)


def _said_by_value(one: Decoded, sequence_by: str | None) -> Column:
    """What a value says, as `_VALUE_SAID_TYPE`."""
    said = metadata(one.tree, one.value, F.col("topic"))
    problem = row_problem(one.tree, one.value)
    if sequence_by and shape_of(one.tree) != "control":
        said, missing = in_sequence(said, one, sequence_by)
        problem = F.coalesce(problem, missing)
    told = problem, _long_number(one), *vars(said).values()
    return F.struct(one.is_whole, _is_garbled(one), *told).cast(_VALUE_SAID_TYPE)


def _is_garbled(one: Decoded) -> Column:
    found = is_garbled(one.tree, one.value)
    return F.lit(False) if found is None else found


def _long_number(one: Decoded) -> Column:
    """Why a row that a value holds has a number that is not written out, string; null if it has none."""
    if shape_of(one.tree) == "control":
        return F.lit(None).cast("string")
    rows = [row_of(one.tree, one.value)]
    if shape_of(one.tree) == "envelope" and "before" in fields(one.tree):
        rows.append(before_of(one.tree, one.value))
    columns = row_fields(one.tree).items()
    return number_problem([(name, tree, row[name]) for row in rows for name, tree in columns])


def _problem(keys: Schemas, values: Schemas, key_columns: Sequence[str] | None) -> Column:
    """The first that is wrong with a record, as an error; null when nothing is.

    Columns in: `with_references`', `key_schema`, `value_schema`, `__key_said`, `__value_said`, `is_control`, `sent_op`.
    """
    key, value, op = F.col("__key_said"), F.col("__value_said"), F.col("sent_op")
    is_row = ~F.col("is_control")
    unknown = is_row & ~F.coalesce(op.isin(*ROW_OPS, TRUNCATE, TOMBSTONE), F.lit(False))
    is_keyed = is_row & (op != TRUNCATE)
    no_key = is_keyed & (F.col("key").isNull() if key_columns == () else op == TOMBSTONE)
    nothing = no_key & (op == TOMBSTONE) & F.col("key").isNull()
    if key_columns == ():
        how = "the record has no key; set message.key.columns on the connector, or `merge.keys`"
    elif key_columns is None:
        how = (
            "the record has no value, of which `merge.mode: append` makes its row; it follows no delete of the same key"
        )
    else:
        how = (
            "the record has no value, from which `merge.keys` takes the key; it follows no delete of the same Kafka key"
        )
    other_op = f"op is none of {', '.join((*ROW_OPS, TRUNCATE))}"
    undecodable = "not every byte is consumed by the schema, or the bytes do not fit it"
    not_utf8 = "one of its texts is not UTF-8"
    no_timestamp = (
        "its Kafka timestamp is beyond what Spark can hold, such as nanoseconds in the place of milliseconds; "
        "`cdc-lake quarantine replay` lands the record without one"
    )
    return F.coalesce(
        _error("frame", "no_timestamp", F.when(F.col("timestamp").isNull(), no_timestamp)),
        _error("frame", TOO_LARGE, F.col("too_large")),
        _error("frame", "unreadable_frame", F.col("frame_problem")),
        _error("lookup", "unusable_schema", _named("value", _id_problem("value", values))),
        _error("lookup", "unusable_schema", _named("key", _id_problem("key", keys))),
        _error("lookup", "ambiguous_schema", _named("value", _ambiguity("value"))),
        _error("lookup", "ambiguous_schema", F.when(is_row, _named("key", _ambiguity("key")))),
        _error(DECODE_STAGE, "undecodable", F.when(~value["is_whole"], f"value: {undecodable}")),
        _error(DECODE_STAGE, "undecodable", F.when(is_row & ~key["is_whole"], f"key: {undecodable}")),
        _error(DECODE_STAGE, "not_utf8", F.when(value["is_garbled"], f"value: {not_utf8}")),
        _error(DECODE_STAGE, "not_utf8", F.when(is_row & key["is_garbled"], f"key: {not_utf8}")),
        _error("type", "unknown_op", F.when(unknown, F.when(op.isNull(), "op is null").otherwise(other_op))),
        _error("type", "null_record", F.when(nothing, "key and value are both null")),
        _error("type", NO_KEY, F.when(no_key, how)),
        _error("type", "key_out_of_range", F.when(is_keyed, key["problem"])),
        _error("type", "no_row", F.when(is_row, value["problem"])),
        _error("type", "number_too_long", F.when(is_row, value["long_number"])),
    )


def _id_problem(side: str, schemas: Schemas) -> Column:
    named = F.col(f"{side}_reference")
    found = by_name(schemas.problems, named, "string")
    if schemas.are_all:
        return found
    is_other = named.isNotNull() & ~named.isin(*schemas.known, *schemas.problems)
    too_many = f"its batch names more schemas than the {MAX_IDS} ids, or {MAX_LAYOUTS} in JSON, that it may have"
    return F.when(is_other, too_many).otherwise(found)


def _ambiguity(side: str) -> Column:
    """That none, or several, of the schemas that a reference has meant fit the record."""
    is_unknown = F.col(f"{side}_reference").isNotNull() & F.col(f"{side}_schema").isNull()
    return F.when(is_unknown, "the reference has meant several schemas, and not exactly one of them fits the bytes")


def _error(stage: str, code: str, message: Column) -> Column:
    error = F.struct(F.lit(stage).alias("stage"), F.lit(code).alias("code"), message.alias("message"))
    return F.when(message.isNotNull(), error.cast(_ERROR_TYPE))


def _seed(before: Mapping[int, LastRecord]) -> Column:
    known = [F.when(F.col("partition") == partition, _seed_of(one)) for partition, one in before.items()]
    return F.coalesce(*known, F.lit(None).cast(_SEED_TYPE))


def _seed_of(one: LastRecord) -> Column:
    last = F.struct(F.lit(one.offset), F.lit(one.key), F.lit(one.op), F.lit(one.status))
    last = last if one.offset is not None else F.lit(None)
    return F.struct(F.lit(one.log_ts), last, F.lit(one.next_log_ts)).cast(_SEED_TYPE)
