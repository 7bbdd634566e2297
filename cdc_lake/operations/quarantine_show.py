"""A record in quarantine, gone through: its bytes, the schemas that were tried, and how far each of them reads it."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.bronze.decide import said
from cdc_lake.bronze.explain import fields_read, reads, reason
from cdc_lake.bronze.schema_resolution import SIDES, look_over
from cdc_lake.columns import BRONZE, KAFKA
from cdc_lake.config import Config, TableConfig
from cdc_lake.decode import json as json_format
from cdc_lake.decode.framing import Side, body, id_of
from cdc_lake.decode.records import WriterSchema
from cdc_lake.decode.schemas import SchemaError
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.operations.quarantine import ALL, COORDINATES, REJECTED_STAGE, Selection, Waiting, moment, selected
from cdc_lake.operations.story import place_text, sent_values, value_text
from cdc_lake.runs.context import lake_of, select_landed, silver_targets
from cdc_lake.silver.batch import Reading, looking
from cdc_lake.silver.events import place
from cdc_lake.spark.session import build_session
from cdc_lake.storage.files import Storage

_SHOWN_BYTES = 256
"""Of a key or a value."""
_SHOWN_CHARACTERS = 200
"""Of a value of a column, or of a header."""
_SHOWN_TEXT = 1000
"""Characters of a body that is text."""


class Tried(BaseModel):
    """A schema that a key or a value may have been written with.

    Attributes:
        fingerprint: its text is `_schemas/<fingerprint>.avsc` in the lake.
        name: of the record, in Avro.
        fields: what it reads, by the path of the field, up to where it stops; as Avro has them, before any meaning.
        stops_at: the field that it does not read.
        problem: why it is not what the bytes were written with; null if it is.
    """

    fingerprint: str
    name: str | None = None
    fields: dict[str, str | None] = {}
    stops_at: str | None = None
    problem: str | None = None


class Bytes(BaseModel):
    """A key or a value.

    Attributes:
        size: in bytes; null if there is none.
        head: the first 256 bytes, in hexadecimal digits.
        frame: how they name their schema, see docs/explanation/bronze.md "Frames"; null if they do not.
        reference: what they name, in words.
        text: the body, if that is text.
        tried: the schemas that bronze tried, or if it knew none, those that the id has ever meant in this lake.
    """

    size: int | None
    head: str
    frame: str | None
    reference: str | None
    text: str | None
    tried: list[Tried]


class Shown(Waiting):
    """A record in quarantine with all that it holds.

    Attributes:
        status: as bronze has it; `rejected` if it was silver that did not take it.
        headers: names and values; what is no text in hexadecimal digits.
        row: of an event that silver rejected, what it says the row is.
    """

    status: str
    headers: list[tuple[str, str | None]]
    key: Bytes
    value: Bytes
    row: dict[str, str | None] | None = None


def show_quarantined(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    selection: Selection = ALL,
    limit: int = 1,
) -> list[Shown]:
    """Records in quarantine, with what they hold. Neither Kafka nor the registry is asked.

    Args:
        config: the settings.
        tables: topic names or globs.
        spark: the session; made when there is none.
        selection: which records.
        limit: so many of them at most, the first in the log.

    Raises:
        UnknownTableError: a name or glob fits no bronze table.
        InstallationError: Spark cannot be started with what is installed.
    """
    spark = spark or build_session("cdc_lake quarantine", config.max_record_bytes)
    storage = Storage(spark)
    files = lake_of(config).schema_files(storage)
    found: list[Shown] = []
    for topic in select_landed(config, storage, tables):
        if len(found) < limit:
            rows = selected(config, topic, spark, selection).orderBy(place()).limit(limit - len(found))
            found += _shown(config, topic, spark, files, rows)
    return found


def _shown(config: Config, topic: str, spark: SparkSession, files: SchemaFiles, rows: DataFrame) -> list[Shown]:
    settings = config.table(topic)
    rows = rows.localCheckpoint()
    typed = _typed(config, topic, spark, rows.where(F.col("error.stage") == REJECTED_STAGE))
    of_kafka = {"timestamp": "kafka_timestamp", "key": "raw_key", "value": "raw_value"}
    records = rows.withColumns({name: F.col(column) for name, column in of_kafka.items()})
    records, seen = look_over(records, settings, of_files=bool(config.files.root))
    try:
        collected = records.select(
            *(*COORDINATES, "status", "error", "first_batch", "headers", "key_schema", "value_schema"),
            *(f"{side}_{what}" for side in SIDES for what in ("framing", "reference")),
            place().alias(KAFKA),
            F.unix_millis("kafka_timestamp").alias("written_ms"),
            *(F.length(side).alias(f"{side}_size") for side in SIDES),
            *(F.substring(side, 1, _SHOWN_BYTES).alias(f"{side}_head") for side in SIDES),
            *(_body(side, seen.frames, settings).alias(f"{side}_body") for side in SIDES),
        ).collect()
    finally:
        records.unpersist()
    return [
        Shown(
            table=topic,
            place=place_text(row[KAFKA]),
            written_at=moment(row["written_ms"]),
            batch=row["first_batch"],
            stage=row["error"]["stage"],
            code=row["error"]["code"],
            reason=row["error"]["message"],
            status="rejected" if row["status"] == "ok" else row["status"],
            headers=[(header["key"], _readable(header["value"])) for header in row["headers"] or ()],
            key=_bytes(row, "key", files),
            value=_bytes(row, "value", files),
            row=typed.get(tuple(row[KAFKA])),
        )
        for row in sorted(collected, key=lambda row: tuple(row[KAFKA]))
    ]


def _body(side: Side, frames: set[str], settings: TableConfig) -> Column:
    """What a schema would read; null for what bronze did not look at."""
    return F.when(F.length(side) <= settings.read.max_record_bytes, body(F.col(side), F.col(f"{side}_framing"), frames))


def _typed(
    config: Config, topic: str, spark: SparkSession, rows: DataFrame
) -> Mapping[tuple[Any, ...], dict[str, str | None]]:
    """By place in the log, the rows that events say, as silver's expectations see them."""
    if rows.isEmpty():
        return {}
    target, rows = silver_targets(config, topic)[0], rows.select(*BRONZE)
    reading = Reading(looking(lake_of(config), target, spark, bronze=rows, partitions=1, settings=config.table(topic)))
    schemas = reading.schemas_in(rows)
    assert schemas is not None, "what was rejected has a key"
    sent = reading.events(rows, schemas, has_moves=True).select(KAFKA, "row", "unavailable").collect()
    return {tuple(row[KAFKA]): {name: _cut(text) for name, text in sent_values(row).items()} for row in sent}


def _bytes(row: Row, side: Side, files: SchemaFiles) -> Bytes:
    data, reference = row[f"{side}_body"], row[f"{side}_reference"]
    return Bytes(
        size=row[f"{side}_size"],
        head=bytes(row[f"{side}_head"] or b"").hex(),
        frame=row[f"{side}_framing"],
        reference=None if reference is None else said(reference),
        text=None if data is None else _text(bytes(data)),
        tried=[] if data is None else [_tried(one, bytes(data)) for one in _schemas(row, side, files)],
    )


def _schemas(row: Row, side: Side, files: SchemaFiles) -> Sequence[WriterSchema]:
    """The schema that bronze tried; if it was none, what its reference has ever meant in this lake."""
    fingerprint, reference = row[f"{side}_schema"], row[f"{side}_reference"]
    if fingerprint is not None:
        return [files.by_fingerprint(fingerprint)]
    if reference is None:
        return []
    kind, _, name = reference.partition(":")
    if kind == json_format.CONNECT_REFERENCE:
        embedded = files.embedded(name)
        return [] if embedded is None else [embedded]
    return files.known(id_of(reference))


def _tried(schema: WriterSchema, data: bytes) -> Tried:
    found = Tried(fingerprint=schema.fingerprint)
    try:
        found.name = schema.tree.get("name")
        if schema.format == "avro":
            fields, found.stops_at = fields_read(schema, data)
            found.fields = {name: _cut(value_text(value)) for name, value in fields.items()}
        if not reads(schema, data):
            found.problem = reason(schema, data)
    except SchemaError as exc:
        found.problem = f"it is refused: {exc}"
    return found


def _readable(data: bytes | None) -> str | None:
    if data is None:
        return None
    return _cut(_text(bytes(data)) or bytes(data).hex())


def _text(data: bytes) -> str | None:
    """Bytes as text; null if they are none."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text[:_SHOWN_TEXT] if all(one.isprintable() or one in "\n\r\t" for one in text) else None


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
