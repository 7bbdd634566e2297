"""What a batch's records were written with: references looked up, settled per topic, and kept in the lake."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastavro.schema import fingerprint as avro_fingerprint
from fastavro.schema import to_parsing_canonical_form
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.bronze.decide import (
    MAX_IDS,
    MAX_LAYOUTS,
    Schemas,
    with_decision,
    with_frames,
    with_references,
    with_unpacked_bytes,
)
from cdc_lake.bronze.primary_key import primary_key
from cdc_lake.bronze.references import Names, resolve
from cdc_lake.bronze.typed_rows import TypedRow
from cdc_lake.config import TableConfig
from cdc_lake.decode import json as json_format
from cdc_lake.decode.column_mapping import ColumnMapping
from cdc_lake.decode.envelope import is_of_signal_table, row_fields, shape_of
from cdc_lake.decode.framing import CSV, DECLARED, GLUE_ZLIB, JSON, NUMBERED, STRING, Side, body, id_of
from cdc_lake.decode.identity import Identity, identity
from cdc_lake.decode.key import key_fields, key_tree_in
from cdc_lake.decode.records import WriterSchema, avro_schema, schema_text
from cdc_lake.decode.types import held_types
from cdc_lake.errors import ConfigError
from cdc_lake.lake.lake import BronzeTable
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.registries.registry import is_id
from cdc_lake.tables.progress import BronzeProgress

SIDES: tuple[Side, ...] = ("key", "value")
_SAMPLES_BYTES = 64 << 20
"""Of the bodies that the driver looks at, two of each schema id, together."""


@dataclass(frozen=True)
class Seen:
    """What a range of records holds, before anything is decoded.

    Attributes:
        bytes: of keys and values.
        header_bytes: of headers.
        unpacked_bytes: of those that are compressed, once they are not.
        references: how keys, and how values, name their schemas.
        frames: the frames among them.
        first_is_tombstone: the partitions whose first record has no value.
        last: by partition, its last record; none where that is too large.
    """

    total: int
    bytes: int
    header_bytes: int
    unpacked_bytes: int
    references: Mapping[Side, set[str]]
    frames: set[str]
    first_is_tombstone: set[int]
    last: Mapping[int, Identity]

    @property
    def held_bytes(self) -> int:
        """What a batch of them takes in memory."""
        return self.bytes + self.header_bytes + self.unpacked_bytes


def look_over(records: DataFrame, settings: TableConfig, *, of_files: bool = False) -> tuple[DataFrame, Seen]:
    """Tell the frames of records, and read off the references for the frames that are among them.

    Nearly all topics have frames with a number. To plan for all there are costs each batch as much again as its
    decoding, so what else there is, is planned for when it has been seen.

    Args:
        records: Kafka's columns.
        settings: the table's.
        of_files: whether the records came out of files.

    Returns:
        The records with `with_references`' columns, persisted, and what they hold.
    """
    framings: dict[str, Any] = {
        "key_framing": settings.key.wire_format if settings.key_of_rows == () else None,
        "value_framing": settings.value.wire_format,
    }
    framed = with_frames(records, **framings, max_bytes=settings.read.max_record_bytes, of_files=of_files)
    records, seen = _persisted(with_references(framed, NUMBERED, **framings))
    if not seen.frames <= set(NUMBERED):
        records.unpersist()
        if GLUE_ZLIB in seen.frames:
            framed = with_unpacked_bytes(framed, settings.read.max_record_bytes)
        records, seen = _persisted(with_references(framed, seen.frames, **framings))
    return records, seen


def _persisted(records: DataFrame) -> tuple[DataFrame, Seen]:
    records.persist()
    try:
        return records, _seen(records)
    except BaseException:
        records.unpersist()
        raise


def _seen(records: DataFrame) -> Seen:
    sets = {f"{side}_{what}": F.collect_set(f"{side}_{what}") for side in SIDES for what in ("reference", "framing")}
    found = (
        records.groupBy("partition")
        .agg(
            F.count("*").alias("total"),
            F.sum(F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))).alias("bytes"),
            F.sum("header_bytes").alias("header_bytes"),
            F.sum("unpacked_bytes" if "unpacked_bytes" in records.columns else F.lit(0)).alias("unpacked_bytes"),
            F.min_by("is_tombstone", "offset").alias("first_is_tombstone"),
            F.max_by(F.when(F.col("too_large").isNull(), identity("timestamp", "key", "value")), "offset").alias(
                "last"
            ),
            *(column.alias(name) for name, column in sets.items()),
        )
        .collect()
    )
    return Seen(
        total=sum(row["total"] for row in found),
        bytes=sum(row["bytes"] for row in found),
        header_bytes=sum(row["header_bytes"] for row in found),
        unpacked_bytes=sum(row["unpacked_bytes"] for row in found),
        references={side: {one for row in found for one in row[f"{side}_reference"]} for side in SIDES},
        frames={one for row in found for side in SIDES for one in row[f"{side}_framing"]},
        first_is_tombstone={row["partition"] for row in found if row["first_is_tombstone"]},
        last={row["partition"]: Identity.model_validate(row["last"].asDict()) for row in found if row["last"]},
    )


@dataclass(frozen=True)
class Written:
    """What keys and values were written with.

    Attributes:
        kinds, owners, key: as bronze's progress holds them.
    """

    keys: Schemas
    values: Schemas
    kinds: Mapping[str, str]
    owners: Mapping[str, tuple[str, ...]]
    key: Mapping[str, str]


def written_with(
    records: DataFrame,
    seen: Seen,
    *,
    topic: str,
    files: SchemaFiles,
    settings: TableConfig,
    before: BronzeProgress,
    quarantine_unknown_ids: bool,
    takes_any_key: bool = False,
) -> Written:
    """Look up the schemas of a batch.

    Args:
        records: `with_references`' columns.
        files: the lake's schemas and the registry.
        before: bronze's progress: what is settled.
        quarantine_unknown_ids: quarantine records of unknown ids even where the registry knows none of them.
        takes_any_key: whether one JSON record may change the primary key.

    Raises:
        InfrastructureError: the registry does not answer, or has lost its content.
    """
    kinds, owners = dict(before.kinds), dict(before.owners)
    schemas: dict[Side, Schemas] = {}
    for side in SIDES:
        source = _Source(records, seen.frames, files, settings, side)
        references = _limited(seen.references[side], files)
        settled = {frame: kind for of, kind in kinds.items() for s, _, frame in [of.partition(".")] if s == side}
        found = resolve(
            references,
            names=Names(topic, owners.get(side, ()), settings.envelope.record_names),
            kinds=files.kinds,
            settled=settled,
            look_up=source.look_up,
            samples=source.samples,
        )
        is_declared = settings.wire(side).wire_format in (*DECLARED, JSON)
        if not (quarantine_unknown_ids or is_declared):
            files.check_has_content(source.asked)
        kinds |= {f"{side}.{frame}": kind for frame, kind in found.kinds.items()}
        owners |= {side: found.owners} if found.owners else {}
        schemas[side] = Schemas.of(
            found.meanings,
            found.problems,
            side=side,
            key_columns=settings.key_of_rows,
            sequence_by=settings.merge.sequence_by,
            spark=records.sparkSession,
            placing=ColumnMapping(settings.schema_.exclude, settings.schema_.rename),
            in_hudi=any(one.format == "hudi" for one in settings.storage),
            are_all=len(references) == len(seen.references[side]),
        )
    key: Mapping[str, str] = before.key
    if settings.key_of_rows is not None:
        told_by: Side = "value" if settings.key_of_rows else "key"
        key, others = _primary_key(records, schemas[told_by], told_by, settings, key, takes_any=takes_any_key)
        schemas[told_by] = schemas[told_by].without(others, _other_key(key))
    return Written(schemas["key"], schemas["value"], kinds, owners, key)


def _primary_key(
    records: DataFrame,
    schemas: Schemas,
    side: Side,
    settings: TableConfig,
    known: Mapping[str, str],
    *,
    takes_any: bool,
) -> tuple[Mapping[str, str], set[str]]:
    """See `primary_key`.

    Args:
        schemas: of the side that tells the key.
    """
    mapping = ColumnMapping(settings.schema_.exclude, settings.schema_.rename, settings.schema_.cast)
    given, said = dict[str, Mapping[str, str]](), dict[str, Mapping[str, str]]()
    for reference, several in schemas.known.items():
        tree = several[0].tree
        if is_of_signal_table(tree) if side == "key" else shape_of(tree) == "control":
            continue
        tree = key_tree_in(tree, settings.merge.keys) if side == "value" else tree
        is_said = reference.partition(":")[0] in json_format.REFERENCES
        (said if is_said else given)[reference] = mapping.key(held_types(key_fields(tree)))

    def count(references: Collection[str]) -> Mapping[str, int]:
        reference = F.col(f"{side}_reference")
        found = records.where(reference.isin(*references)).groupBy(reference.alias("reference")).count()
        return {row["reference"]: row["count"] for row in found.collect()}

    return primary_key(known, given, said, count, takes_any=takes_any)


def _other_key(key: Mapping[str, str]) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in sorted(key.items()))
    return (
        f"its primary key has other columns or types than the table's ({columns}), which few JSON records cannot "
        "change; if it has changed, `cdc-lake quarantine replay --offset` lands the records that it is given"
    )


def _limited(references: Collection[str], files: SchemaFiles) -> set[str]:
    """Those that are looked up: first what the lake knows; then the lowest ids, as ids that are made up are high."""
    in_records = {one for one in references if one.partition(":")[0] in json_format.REFERENCES}
    found = set[str]()
    for several, most in ((in_records, MAX_LAYOUTS), (set(references) - in_records, MAX_IDS)):
        if len(several) > most:
            known = files.known_ids()
            several = set(sorted(several, key=lambda one: (id_of(one) not in known, one))[:most])
        found |= several
    return found


def decide(
    records: DataFrame, seen: Seen, written: Written, typed: TypedRow | None, settings: TableConfig
) -> DataFrame:
    """What each record is: see `arrival.with_decision`."""
    return with_decision(
        records,
        written.keys,
        written.values,
        seen.frames,
        typed,
        key_columns=settings.key_of_rows,
        sequence_by=settings.merge.sequence_by,
    )


def typed_row(table: BronzeTable, settings: TableConfig, written: Written) -> TypedRow | None:
    """The fields of bronze's `before` and `after`, with those that a batch adds; none when they are not wanted."""
    if not settings.value.decoded:
        return None
    found = TypedRow.stored(table.read().schema) if table.exists() else TypedRow({})
    for schema in (one for several in written.values.known.values() for one in several if one.shape != "control"):
        found = found.with_columns(row_fields(schema.tree))
    return found if found.fields else None


class _Source:
    """Where the schemas of one side's references come from."""

    def __init__(
        self, records: DataFrame, frames: Collection[str], files: SchemaFiles, settings: TableConfig, side: Side
    ) -> None:
        self._records = records
        self._frames = frames
        self._files = files
        self._settings = settings
        self._side = side
        self.asked: list[tuple[str, str]] = []

    def look_up(self, kind: str, schema_id: str) -> Sequence[WriterSchema]:
        """See `references.LookUp`."""
        match kind:
            case "declared":
                return self._kept(self._declared())
            case "crc":
                return self._kept(one for one in self._declared() if _crc(one) == schema_id)
            case "file":
                return [self._named(self._files.by_fingerprint(schema_id))]
            case json_format.PLAIN_REFERENCE:
                return self._kept([self._plain(schema_id)])
            case json_format.CONNECT_REFERENCE:
                found = self._files.embedded(schema_id) or self._embedded(schema_id)
                return (self._named(found),)
        if is_id(kind, schema_id):
            self.asked.append((kind, schema_id))
        return [self._named(one) for one in self._files.look_up(kind, schema_id)]

    def samples(self, references: Collection[str]) -> Mapping[str, Sequence[bytes]]:
        """See `references.Samples`: the first and the last body of each, of those that are not too large for it."""
        reference = F.col(f"{self._side}_reference")
        found = (
            self._records.where(reference.isin(*references))
            .select(
                reference.alias("reference"),
                "offset",
                body(F.col(self._side), F.col(f"{self._side}_framing"), self._frames).alias("body"),
            )
            .where(F.length("body") <= _SAMPLES_BYTES // (2 * len(references)))
            .groupBy("reference")
            .agg(F.min_by("body", "offset").alias("first"), F.max_by("body", "offset").alias("last"))
            .collect()
        )
        return {row["reference"]: [bytes(row["first"]), bytes(row["last"])] for row in found}

    def _kept(self, schemas: Iterable[WriterSchema]) -> Sequence[WriterSchema]:
        return tuple(self._named(self._files.keep(schema)) for schema in schemas)

    def _named(self, schema: WriterSchema) -> WriterSchema:
        return schema.of_table(self._settings) if self._side == "value" else schema

    def _declared(self) -> list[WriterSchema]:
        wire = self._settings.wire(self._side)
        if wire.wire_format in (CSV, STRING):
            return [WriterSchema(schema_text(wire.wire_format, columns=self._columns()))]
        return [avro_schema(_read(file)) for file in wire.schemas]

    def _columns(self) -> dict[str, str]:
        columns, keys = self._settings.value.columns, self._settings.key.columns
        if self._side == "value":
            return columns
        return {name: columns.get(name, "string") for name in keys or ("key",)}

    def _plain(self, schema_id: str) -> WriterSchema:
        shape, _, names = schema_id.partition(":")
        listed = json.loads(names)
        declared = {name: kind for name, kind in self._settings.value.columns.items() if name in listed}
        return WriterSchema(schema_text("json", shape=shape, names=listed, columns=declared))

    def _embedded(self, name: str) -> WriterSchema:
        """The schema beside the payload of the records that name it so."""
        is_of = F.col(f"{self._side}_reference") == f"{json_format.CONNECT_REFERENCE}:{name}"
        text = body(F.col(self._side), F.col(f"{self._side}_framing"), self._frames).cast("string")
        row = self._records.where(is_of).select(json_format.embedded_schema(text).alias("schema")).head()
        assert row is not None, "a reference comes from a record"
        schema = WriterSchema(schema_text("connect", schema=row["schema"]))
        return self._files.keep_embedded(name, schema)


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            file, f"the schema file cannot be read ({type(exc).__name__})", "see `key.schemas` and `value.schemas`"
        ) from exc


def _crc(schema: WriterSchema) -> str:
    return str(avro_fingerprint(to_parsing_canonical_form(json.loads(schema.text)), "CRC-64-AVRO"))
