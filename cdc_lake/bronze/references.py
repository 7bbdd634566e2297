"""Resolves the references of one topic: which kind of id its numbers are, and which schemas belong to the topic.

Apicurio numbers contents and versions separately, and a number of the wrong kind is often the id of another table's
schema, which may even read the bytes. So samples decide the kind: the schema's record must be named after the topic,
and it must consume every byte. The kind is then stored in bronze's progress. A schema of another table never decodes a
record of this one. See docs/explanation/bronze.md, "Which schema".
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from fastavro.schema import fingerprint as avro_fingerprint
from fastavro.schema import to_parsing_canonical_form
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.bronze.explain import reads
from cdc_lake.bronze.json_fields import JsonFields
from cdc_lake.bronze.usable_schemas import describe_reference
from cdc_lake.config import TableConfig
from cdc_lake.decode import json as json_format
from cdc_lake.decode.framing import CSV, EXT_JSON, NUMBERED, STRING, Side, body, id_of
from cdc_lake.decode.records import WriterSchema, avro_schema, schema_text
from cdc_lake.decode.schemas import SchemaError
from cdc_lake.errors import ConfigError
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.registries.registry import is_id

LookUp = Callable[[str, str], Sequence[WriterSchema]]
"""From kind and id to the schemas that they have had, the latest first."""
Samples = Callable[[Collection[str]], Mapping[str, Sequence[bytes]]]
"""From references to a few bodies of each."""

_SAMPLES_BYTES = 64 << 20
"""Total size of the bodies that the driver reads, two per schema id."""
_DEBEZIUM_NAMES = re.compile(r"(?P<owner>.+)\.(Key|Value|Envelope)")


@dataclass(frozen=True)
class Names:
    """The owners of schemas that a topic's records may be written with.

    Attributes:
        topic: the topic's name, after which Debezium names records.
        accepted: the owners of the topic's first schemas; empty before.
        allowed: globs from `envelope.record_names`.
    """

    topic: str
    accepted: Sequence[str] = ()
    allowed: Sequence[str] = ()

    def fit(self, schema: WriterSchema) -> bool:
        """Whether the schema may belong to the topic; a schema without an owner may belong to any topic."""
        owner = owner_of(schema)
        if owner is None or owner in self.accepted or _plain(owner) == _plain(self.topic):
            return True
        return any(fnmatchcase(owner, glob) for glob in self.allowed)


@dataclass
class Resolution:
    """The resolved references.

    Attributes:
        meanings: reference -> its possible schemas.
        problems: reference -> why its records are quarantined, for all other references.
        kinds: frame -> the kind of its ids, if it is known.
        owners: what the topic's records are named after; empty as long as no schema has an owner.
    """

    meanings: dict[str, Sequence[WriterSchema]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    owners: tuple[str, ...] = ()


def owner_of(schema: WriterSchema) -> str | None:
    """What a schema's record is named after; for Debezium, the table. None for control records and unnamed ones."""
    try:
        tree = schema.tree
        if tree["type"] != "record" or schema.format not in ("avro", "connect", "kconnect", "json-schema"):
            return None
        if schema.shape == "control":
            return None
    except SchemaError:
        return None  # refused, so its records are quarantined
    named = _DEBEZIUM_NAMES.fullmatch(tree["name"])
    return named["owner"] if named else tree["name"]


def resolve(
    references: Iterable[str],
    *,
    names: Names,
    kinds: Sequence[str],
    known_kinds: Mapping[str, str],
    look_up: LookUp,
    samples: Samples,
) -> Resolution:
    """Resolve references to schemas.

    Args:
        references: the references of the keys, or of the values, of one topic.
        kinds: the kinds of ids in this registry, the likeliest first.
        known_kinds: frame -> the kind of its ids, found before.
        look_up: looks in the registry and in the lake's schema files.
        samples: called only if a kind is not known, with the references whose schemas differ by kind.
    """
    resolution = Resolution(kinds=dict(known_kinds))
    by_frame: dict[str, list[str]] = {}
    for reference in sorted(set(references)):
        by_frame.setdefault(reference.partition(":")[0], []).append(reference)
    chosen: dict[str, Sequence[WriterSchema]] = {}
    for frame, frame_references in by_frame.items():
        if frame not in NUMBERED:
            chosen |= {one: look_up(frame, id_of(one)) for one in frame_references}
        elif frame in known_kinds or len(kinds) == 1:
            real = known_kinds.get(frame, kinds[0])
            resolution.kinds[frame] = real
            chosen |= {one: look_up(real, id_of(one)) for one in frame_references}
        else:
            answers = {one: {kind: look_up(kind, id_of(one)) for kind in kinds} for one in frame_references}
            unclear = [one for one, by_kind in answers.items() if _differ(by_kind)]
            id_kind, read, found_problems = _choose_id_kind(answers, names, samples(unclear) if unclear else {})
            resolution.kinds |= {frame: id_kind} if id_kind else {}
            chosen |= read
            resolution.problems |= found_problems
    _reject_foreign_schemas(chosen, names, resolution)
    return resolution


def _differ(by_kind: Mapping[str, Sequence[WriterSchema]]) -> bool:
    """Whether a reference leads to other schemas by one kind than by another."""
    return len(set(map(tuple, by_kind.values()))) > 1


def _choose_id_kind(
    answers: Mapping[str, Mapping[str, Sequence[WriterSchema]]], names: Names, bodies: Mapping[str, Sequence[bytes]]
) -> tuple[str | None, dict[str, Sequence[WriterSchema]], dict[str, str]]:
    """Choose the kind of ids with which references lead to schemas that read the samples.

    A kind fits a reference if one of its schemas may belong to the topic, by its name, and consumes every byte of each
    sample. A reference votes if exactly one kind fits. Examples from Apicurio, for the topic `shop.public.film`:

    - Content id 7 is film's schema, and global id 7 is actor's: it votes for contentId, even if actor's schema would
      read the bytes.
    - Content id 9 and global id 9 are versions of film's schema, and both read the samples, such as a column of text
      that was renamed. It does not vote, and follows the vote of 7.
    - Without a vote, or with votes for both kinds, 9 is a problem: either schema could be wrong, and nothing would
      show it. References that one kind fits are resolved by that kind.

    Args:
        answers: reference -> kind -> its schemas.
        bodies: reference -> samples.

    Returns:
        The kind, if all decisive references agree; reference -> its schemas; reference -> why its records are
        quarantined.
    """
    every = [schema for by_kind in answers.values() for schemas in by_kind.values() for schema in schemas]
    # If no schema is named after the topic, names do not decide. Schemas without an owner, such as a key `"long"`, say
    # nothing about that.
    is_named = any(owner_of(schema) is not None and names.fit(schema) for schema in every)

    def fits(schema: WriterSchema, reference: str) -> bool:
        # A reference has no samples if its bodies are too large, or if all kinds lead to the same schemas.
        is_own = not is_named or names.fit(schema)
        return is_own and all(reads(schema, body) for body in bodies.get(reference, ()))

    fitting = {
        one: {kind: schemas for kind, schemas in by_kind.items() if any(fits(schema, one) for schema in schemas)}
        for one, by_kind in answers.items()
    }
    votes = {next(iter(by_kind)) for by_kind in fitting.values() if len(by_kind) == 1}
    voted = next(iter(votes)) if len(votes) == 1 else None
    chosen: dict[str, Sequence[WriterSchema]] = {}
    problems: dict[str, str] = {}
    for schema_reference, by_kind in fitting.items():
        if _differ(by_kind):
            if voted is None:
                problems[schema_reference] = (
                    f"{describe_reference(schema_reference)} is a schema of this topic as {' and as '.join(by_kind)}: "
                    "set `registry.ids`"
                )
                continue
            by_kind = {voted: by_kind[voted]} if voted in by_kind else {}
        # None fits, for example because a sample is damaged: take the voted kind, else the likeliest. Records that its
        # schema does not read are quarantined with a reason.
        exists = {kind: schemas for kind, schemas in answers[schema_reference].items() if schemas}
        likeliest = {voted: exists[voted]} if voted in exists else exists
        chosen[schema_reference] = next(iter((by_kind or likeliest).values()), ())
    return voted, chosen, problems


def _reject_foreign_schemas(chosen: Mapping[str, Sequence[WriterSchema]], names: Names, resolution: Resolution) -> None:
    owned = {owner: schema for group in chosen.values() for schema in group if (owner := owner_of(schema)) is not None}
    if not names.accepted:
        # The first schemas decide the owners: the topic, or something else.
        first = {owner for owner, schema in owned.items() if names.fit(schema)} or owned.keys()
        names = Names(names.topic, tuple(sorted(first)), names.allowed)
    resolution.owners = tuple(names.accepted)
    for reference, schemas in chosen.items():
        own = tuple(schema for schema in schemas if names.fit(schema))
        if own:
            resolution.meanings[reference] = own
        elif schemas:
            frame = reference.partition(":")[0]
            has_kinds = frame in NUMBERED and resolution.kinds.get(frame) != "id"
            resolution.problems[reference] = _foreign_schema(reference, schemas[0], has_kinds=has_kinds)
        else:
            cure = ": check registry.url and registry.ids" if reference.startswith(EXT_JSON) else ""
            resolution.problems[reference] = f"{describe_reference(reference)} is not in the registry{cure}"


def _foreign_schema(reference: str, schema: WriterSchema, *, has_kinds: bool) -> str:
    """Why records of another table's schema are quarantined, and what to do if they belong to this topic.

    Args:
        has_kinds: whether the registry has several kinds of ids, so that the number may mean another schema.
    """
    cure = (
        f"if this topic has rows of that table too, as with RegexRouter or partitions, list `{owner_of(schema)}` or a "
        "glob in `envelope.record_names`, and replay the record"
    )
    other = "; if the id means another schema, check `registry.ids`" if has_kinds else ""
    name = schema.tree["name"]
    return f"{describe_reference(reference)} is the schema `{name}`, which belongs to another topic; {cure}{other}"


def _plain(name: str) -> str:
    """A name as Debezium adjusts it for Avro: the first character of the whole name is not a digit."""
    return re.sub(r"^\d|[^A-Za-z0-9.]", "_", name).replace("._", ".").strip("_")


class SchemaSource:
    """Finds the schemas of one side's references: in the lake, in the registry, in files, or in the records."""

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
        match kind:
            case "declared":
                return self._keep(self._declared())
            case "crc":
                return self._keep(schema for schema in self._declared() if _crc(schema) == schema_id)
            case "file":
                return [self._of_table(self._files.by_fingerprint(schema_id))]
            case json_format.PLAIN_REFERENCE:
                return self._keep([self._plain(schema_id)])
            case json_format.CONNECT_REFERENCE:
                embedded = self._files.embedded(schema_id) or self._embedded(schema_id)
                return (self._of_table(embedded),)
        if is_id(kind, schema_id):
            self.asked.append((kind, schema_id))
        return [self._of_table(schema) for schema in self._files.look_up(kind, schema_id)]

    def samples(self, references: Collection[str]) -> Mapping[str, Sequence[bytes]]:
        """See `Samples`; the first and the last body of each reference that are not too large."""
        reference = F.col(f"{self._side}_reference")
        rows = (
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
        return {row["reference"]: [bytes(row["first"]), bytes(row["last"])] for row in rows}

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
        columns = self._settings.value.columns
        declared = {name: columns[name] for name in columns if name in listed}
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
