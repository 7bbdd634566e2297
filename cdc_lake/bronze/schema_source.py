"""Finds the schemas of a batch's references: in the lake, in the registry, in files, or in the records."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from fastavro.schema import fingerprint as avro_fingerprint
from fastavro.schema import to_parsing_canonical_form
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.bronze.json_fields import JsonFields
from cdc_lake.config import TableConfig
from cdc_lake.decode import json as json_format
from cdc_lake.decode.framing import CSV, STRING, Side, body
from cdc_lake.decode.records import WriterSchema, avro_schema, schema_text
from cdc_lake.errors import ConfigError
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.registries.registry import is_id

_SAMPLES_BYTES = 64 << 20
"""Total size of the bodies that the driver reads, two per schema id."""


class SchemaSource:
    """Finds the schemas of one side's references."""

    def __init__(
        self,
        records: DataFrame,
        frames: Collection[str],
        files: SchemaFiles,
        settings: TableConfig,
        side: Side,
        fields: JsonFields,
    ) -> None:
        self._records = records
        self._frames = frames
        self._files = files
        self._settings = settings
        self._side = side
        self._fields = fields
        self.asked: list[tuple[str, str]] = []

    def look_up(self, kind: str, schema_id: str) -> Sequence[WriterSchema]:
        """See `references.LookUp`."""
        match kind:
            case "declared":
                return self._keep(self._declared())
            case "crc":
                return self._keep(one for one in self._declared() if _crc(one) == schema_id)
            case "file":
                return [self._of_table(self._files.by_fingerprint(schema_id))]
            case json_format.PLAIN_REFERENCE:
                return self._keep([self._plain(schema_id)])
            case json_format.CONNECT_REFERENCE:
                found = self._files.embedded(schema_id) or self._embedded(schema_id)
                return (self._of_table(found),)
        if is_id(kind, schema_id):
            self.asked.append((kind, schema_id))
        return [self._of_table(one) for one in self._files.look_up(kind, schema_id)]

    def samples(self, references: Collection[str]) -> Mapping[str, Sequence[bytes]]:
        """See `references.Samples`; the first and the last body of each reference that are not too large."""
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

    def _keep(self, schemas: Iterable[WriterSchema]) -> Sequence[WriterSchema]:
        return tuple(self._of_table(self._files.keep(schema)) for schema in schemas)

    def _of_table(self, schema: WriterSchema) -> WriterSchema:
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
        shape, listed = self._fields.read_by(schema_id)
        declared = {name: kind for name, kind in self._settings.value.columns.items() if name in listed}
        return WriterSchema(schema_text("json", shape=shape, names=listed, columns=declared))

    def _embedded(self, name: str) -> WriterSchema:
        """The schema that records with this reference embed next to their payload."""
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
            file, f"cannot read the schema file ({type(exc).__name__})", "check `key.schemas` and `value.schemas`"
        ) from exc


def _crc(schema: WriterSchema) -> str:
    return str(avro_fingerprint(to_parsing_canonical_form(json.loads(schema.text)), "CRC-64-AVRO"))
