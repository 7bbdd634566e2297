"""Quarantined records in detail: their bytes, the schemas that were tried, and where each one failed."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.bronze.explain import fields_read, reads, reason
from cdc_lake.bronze.schema_resolution import SIDES, scan_records
from cdc_lake.bronze.usable_schemas import describe_reference
from cdc_lake.columns import BRONZE, KAFKA, REJECTED_STAGE
from cdc_lake.config import Config, TableConfig
from cdc_lake.decode import json as json_format
from cdc_lake.decode.framing import Side, body, id_of
from cdc_lake.decode.records import WriterSchema
from cdc_lake.decode.schemas import SchemaError
from cdc_lake.lake.lake import Lake
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.operations.quarantine import ALL, COORDINATES, ListedRecord, Selection, selected, utc_time
from cdc_lake.operations.story import position_text, sent_values, value_text
from cdc_lake.runs.context import lake_of, select_landed
from cdc_lake.silver.events import events, kafka_position
from cdc_lake.silver.table import SilverTable
from cdc_lake.spark.session import build_session
from cdc_lake.storage.hadoop import HadoopFiles

_SHOWN_BYTES = 256
"""How many bytes of a key or a value are shown."""
_SHOWN_CHARACTERS = 200
"""How many characters of a column's or header's value are shown."""
_SHOWN_TEXT = 1000
"""How many characters of a text body are shown."""


class SchemaAttempt(BaseModel):
    """An attempt to read a key or a value with a schema.

    Attributes:
        fingerprint: the schema's fingerprint; its text is in `_schemas/<fingerprint>.avsc` of the lake.
        fields: the values read before the failure, by path, as Avro stores them.
        stops_at: the field that cannot be read.
        problem: why the schema does not fit the bytes; null if it does.
    """

    fingerprint: str
    name: str | None = None
    fields: dict[str, str | None] = {}
    stops_at: str | None = None
    problem: str | None = None


class KeyOrValue(BaseModel):
    """A key or a value.

    Attributes:
        size: the size in bytes; null without a key or value.
        head: the first 256 bytes, hexadecimal.
        frame: how the bytes name their schema (docs/explanation/bronze.md "Frames"); null if they do not.
        text: the body, if it is text.
        tried: the attempts with the schema that bronze used or, if it found none, with all schemas that the id has had
            in this lake.
    """

    size: int | None
    head: str
    frame: str | None
    reference: str | None
    text: str | None
    tried: list[SchemaAttempt]


class QuarantinedRecord(ListedRecord):
    """A quarantined record with its values.

    Attributes:
        status: as in bronze; `rejected` if silver rejected it.
        headers: names and values; hexadecimal if a value is not text.
        row: the row of an event that silver rejected.
    """

    status: str
    headers: list[tuple[str, str | None]]
    key: KeyOrValue
    value: KeyOrValue
    row: dict[str, str | None] | None = None


def show_quarantined(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    selection: Selection = ALL,
    limit: int = 1,
) -> list[QuarantinedRecord]:
    """Quarantined records with their values. Calls neither Kafka nor the registry.

    Args:
        tables: topic names or globs.
        limit: maximum number of records; the first in the log are taken.

    Raises:
        UnknownTableError: a name or glob matches no bronze table.
    """
    spark = spark or build_session("cdc_lake quarantine", config.max_record_bytes)
    files, lake, of_files = HadoopFiles(spark), lake_of(config), bool(config.files.root)
    records: list[QuarantinedRecord] = []
    for topic in select_landed(lake, files, tables):
        if len(records) < limit:
            rows = selected(lake, topic, spark, selection).orderBy(kafka_position()).limit(limit - len(records))
            records += _read_records(lake, topic, config.table(topic), spark, rows, of_files=of_files)
    return records


def _read_records(
    lake: Lake, topic: str, settings: TableConfig, spark: SparkSession, rows: DataFrame, *, of_files: bool
) -> list[QuarantinedRecord]:
    schema_files, rows = lake.schema_files(HadoopFiles(spark)), rows.localCheckpoint()
    typed = _typed_rows(lake, topic, settings, spark, rows.where(F.col("error.stage") == REJECTED_STAGE))
    of_kafka = {"timestamp": "kafka_timestamp", "key": "raw_key", "value": "raw_value"}
    records = rows.withColumns({name: F.col(column) for name, column in of_kafka.items()})
    records, summary = scan_records(records, settings, of_files=of_files)
    try:
        collected = records.select(
            *(*COORDINATES, "status", "error", "first_batch", "headers", "key_schema", "value_schema"),
            *(f"{side}_{what}" for side in SIDES for what in ("framing", "reference")),
            kafka_position().alias(KAFKA),
            F.unix_millis("kafka_timestamp").alias("written_ms"),
            *(F.length(side).alias(f"{side}_size") for side in SIDES),
            *(F.substring(side, 1, _SHOWN_BYTES).alias(f"{side}_head") for side in SIDES),
            *(_body(side, summary.frames, settings).alias(f"{side}_body") for side in SIDES),
        ).collect()
    finally:
        records.unpersist()
    return [
        QuarantinedRecord(
            table=topic,
            place=position_text(row[KAFKA]),
            written_at=utc_time(row["written_ms"]),
            batch=row["first_batch"],
            stage=row["error"]["stage"],
            code=row["error"]["code"],
            reason=row["error"]["message"],
            status="rejected" if row["status"] == "ok" else row["status"],
            headers=[(header["key"], _text_or_hex(header["value"])) for header in row["headers"] or ()],
            key=_key_or_value(row, "key", schema_files),
            value=_key_or_value(row, "value", schema_files),
            row=typed.get(tuple(row[KAFKA])),
        )
        for row in sorted(collected, key=lambda row: tuple(row[KAFKA]))
    ]


def _body(side: Side, frames: set[str], settings: TableConfig) -> Column:
    """The bytes without their frame; null if they are larger than `max_record_bytes`."""
    return F.when(F.length(side) <= settings.read.max_record_bytes, body(F.col(side), F.col(f"{side}_framing"), frames))


def _typed_rows(
    lake: Lake, topic: str, settings: TableConfig, spark: SparkSession, rows: DataFrame
) -> Mapping[tuple[Any, ...], dict[str, str | None]]:
    """The rows of rejected events by Kafka position, as silver's expectations check them."""
    if rows.isEmpty():
        return {}
    rows = rows.select(*BRONZE)
    table, _ = SilverTable.open_to_refold(lake, lake.silver(topic)[0], spark, settings)
    schemas = table.schemas_in(rows)
    assert schemas is not None, "rejected events have a key"
    sent = events(rows, schemas, has_key_changes=True).select(KAFKA, "row", "unavailable").collect()
    return {tuple(row[KAFKA]): {name: _truncated(text) for name, text in sent_values(row).items()} for row in sent}


def _key_or_value(row: Row, side: Side, schema_files: SchemaFiles) -> KeyOrValue:
    data, reference = row[f"{side}_body"], row[f"{side}_reference"]
    return KeyOrValue(
        size=row[f"{side}_size"],
        head=bytes(row[f"{side}_head"] or b"").hex(),
        frame=row[f"{side}_framing"],
        reference=None if reference is None else describe_reference(reference),
        text=None if data is None else _text(bytes(data)),
        tried=[] if data is None else [_attempt(one, bytes(data)) for one in _schemas(row, side, schema_files)],
    )


def _schemas(row: Row, side: Side, schema_files: SchemaFiles) -> Sequence[WriterSchema]:
    """The schema that bronze used or, if it found none, all schemas that the reference has had in this lake."""
    fingerprint, reference = row[f"{side}_schema"], row[f"{side}_reference"]
    if fingerprint is not None:
        return [schema_files.by_fingerprint(fingerprint)]
    if reference is None:
        return []
    kind, _, name = reference.partition(":")
    if kind == json_format.CONNECT_REFERENCE:
        embedded = schema_files.embedded(name)
        return [] if embedded is None else [embedded]
    return schema_files.known(id_of(reference))


def _attempt(schema: WriterSchema, data: bytes) -> SchemaAttempt:
    attempt = SchemaAttempt(fingerprint=schema.fingerprint)
    try:
        attempt.name = schema.tree.get("name")
        if schema.format == "avro":
            fields, attempt.stops_at = fields_read(schema, data)
            attempt.fields = {name: _truncated(value_text(value)) for name, value in fields.items()}
        if not reads(schema, data):
            attempt.problem = reason(schema, data)
    except SchemaError as exc:
        attempt.problem = f"the schema is refused: {exc}"
    return attempt


def _text_or_hex(data: bytes | None) -> str | None:
    if data is None:
        return None
    return _truncated(_text(bytes(data)) or bytes(data).hex())


def _text(data: bytes) -> str | None:
    """Bytes as text; None if they are not text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text[:_SHOWN_TEXT] if all(character.isprintable() or character in "\n\r\t" for character in text) else None


def _truncated(text: str | None) -> str | None:
    return text if text is None or len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
