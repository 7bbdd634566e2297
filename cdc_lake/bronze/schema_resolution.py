"""Resolves the schemas of a batch, stores them in the lake, and determines the primary key that they give the topic.

A registry or the settings define the key reliably. In JSON, each record contains the columns of its key, so one bad
record could change the table's primary key, which stops silver. Therefore only many records can change it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.bronze.decide import with_decision
from cdc_lake.bronze.frames import with_frames, with_references, with_unpacked_bytes
from cdc_lake.bronze.json_fields import MAX_FIELDS, JsonFields, by_reference, fields_by_reference
from cdc_lake.bronze.references import Names, SchemaSource, resolve
from cdc_lake.bronze.usable_schemas import MAX_IDS, MAX_LAYOUTS, Schemas
from cdc_lake.config import TableConfig
from cdc_lake.decode import json as json_format
from cdc_lake.decode.column_mapping import ColumnMapping
from cdc_lake.decode.envelope import is_of_signal_table, shape_of
from cdc_lake.decode.framing import COMMON, DECLARED, GLUE_ZLIB, JSON, NUMBERED, Side
from cdc_lake.decode.key import key_fields, key_tree_from_row
from cdc_lake.decode.types import same_key, stored_types
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.spark.expressions import built_once
from cdc_lake.tables.progress import BronzeProgress, Identity, identity

SIDES: tuple[Side, ...] = ("key", "value")
MIN_RECORDS = 10
"""This many JSON records of a batch change the primary key, if fewer have the previous key."""


@dataclass(frozen=True)
class ScanSummary:
    """Summary of a range of records, made without decoding them.

    Attributes:
        bytes: size of keys and values.
        header_bytes: size of headers.
        unpacked_bytes: size of compressed bodies after they are unpacked.
        references: the references to schemas, by side: of each partition the lowest, up to one more than a batch may
            have, so that what the driver collects is bounded.
        fields: by reference, the fields of JSON without a schema, likewise.
        tombstones: number of records without a value.
        first_is_tombstone: the partitions whose first record has no value.
        last: the last record of each partition, unless it is too large.
    """

    total: int
    bytes: int
    header_bytes: int
    unpacked_bytes: int
    references: Mapping[Side, set[str]]
    fields: Mapping[str, set[str]]
    frames: set[str]
    tombstones: int
    first_is_tombstone: set[int]
    last: Mapping[int, Identity]

    @property
    def memory_bytes(self) -> int:
        """Memory that a batch of them needs."""
        return self.bytes + self.header_bytes + self.unpacked_bytes


def scan_records(
    records: DataFrame, settings: TableConfig, *, known_frames: Collection[str] = (), of_files: bool = False
) -> tuple[DataFrame, ScanSummary]:
    """Detect the frames and references of records, and summarize them.

    Nearly all topics have only frames with a number. Planning for all frames costs as much as decoding, so others are
    planned for only if the records have them. If that is not known before, the records are read twice.

    Args:
        records: Kafka's columns.
        known_frames: the frames of earlier records, to plan for.
        of_files: whether the records come from files.

    Returns:
        The records with the columns of `with_references`, persisted, and their summary.
    """
    framed = with_frames(records, settings, of_files=of_files)

    def scan(frames: Collection[str]) -> tuple[DataFrame, ScanSummary]:
        unpacked = with_unpacked_bytes(framed, settings.read.max_record_bytes) if GLUE_ZLIB in frames else framed
        return _persist(with_references(unpacked, frames, settings))

    planned = {*COMMON, *known_frames}
    records, summary = scan(planned)
    if not summary.frames <= planned:
        records.unpersist()
        records, summary = scan(summary.frames)
    return records, summary


def _persist(records: DataFrame) -> tuple[DataFrame, ScanSummary]:
    records.persist()
    try:
        return records, _summarize(records)
    except BaseException:
        records.unpersist()
        raise


@built_once
def _totals(layouts: int, ids: int, fields: int, *, has_unpacked: bool, has_names: bool) -> Sequence[Column]:
    """The aggregates of a `ScanSummary`, of one partition.

    Args:
        layouts, ids, fields: how many of each to return at most.
    """
    sets = {f"{side}_{what}": F.collect_set(f"{side}_{what}") for side in SIDES for what in ("reference", "framing")}
    references = {f"{side}_reference" for side in SIDES}
    return (
        F.count("*").alias("total"),
        F.sum(F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))).alias("bytes"),
        F.sum("header_bytes").alias("header_bytes"),
        F.sum("unpacked_bytes" if has_unpacked else F.lit(0)).alias("unpacked_bytes"),
        F.count_if("is_tombstone").alias("tombstones"),
        F.min_by("is_tombstone", "offset").alias("first_is_tombstone"),
        F.max_by(F.when(F.col("too_large").isNull(), identity("timestamp", "key", "value")), "offset").alias("last"),
        *(
            (_lowest(column, layouts, ids) if name in references else column).alias(name)
            for name, column in sets.items()
        ),
        (fields_by_reference(fields) if has_names else F.array()).alias("fields"),
    )


def _summarize(records: DataFrame) -> ScanSummary:
    columns = records.columns
    # One more than a batch may have shows that it has too many.
    most = (limit + 1 for limit in (MAX_LAYOUTS, MAX_IDS, MAX_FIELDS))
    totals = _totals(*most, has_unpacked="unpacked_bytes" in columns, has_names="value_names" in columns)
    rows = records.groupBy("partition").agg(*totals).collect()
    return ScanSummary(
        total=sum(row["total"] for row in rows),
        bytes=sum(row["bytes"] for row in rows),
        header_bytes=sum(row["header_bytes"] for row in rows),
        unpacked_bytes=sum(row["unpacked_bytes"] for row in rows),
        references={side: {reference for row in rows for reference in row[f"{side}_reference"]} for side in SIDES},
        fields=by_reference(pair for row in rows for pair in row["fields"]),
        frames={frame for row in rows for side in SIDES for frame in row[f"{side}_framing"]},
        tombstones=sum(row["tombstones"] for row in rows),
        first_is_tombstone={row["partition"] for row in rows if row["first_is_tombstone"]},
        last={row["partition"]: Identity.model_validate(row["last"].asDict()) for row in rows if row["last"]},
    )


def _lowest(references: Column, most_layouts: int, most_ids: int) -> Column:
    layouts, ids = F.filter(references, _is_layout), F.filter(references, lambda reference: ~_is_layout(reference))
    limited = ((layouts, most_layouts), (ids, most_ids))
    return F.concat(*(F.slice(F.sort_array(group), 1, most) for group, most in limited))


def _is_layout(reference: Column) -> Column:
    return F.substring_index(reference, ":", 1).isin(*json_format.REFERENCES)


@dataclass(frozen=True)
class ResolvedSchemas:
    """The schemas that keys and values were written with.

    Attributes:
        fields: the fields of JSON without a schema, which give values their final reference.
        kinds, owners, key: see `BronzeProgress`.
    """

    keys: Schemas
    values: Schemas
    fields: JsonFields
    kinds: Mapping[str, str]
    owners: Mapping[str, tuple[str, ...]]
    key: Mapping[str, str]


def resolve_schemas(
    records: DataFrame,
    summary: ScanSummary,
    *,
    topic: str,
    files: SchemaFiles,
    settings: TableConfig,
    before: BronzeProgress,
    quarantine_unknown_ids: bool,
    takes_any_key: bool = False,
) -> ResolvedSchemas:
    """Resolve the schemas of a batch.

    Args:
        records: the columns of `with_references`.
        files: the lake's schemas and the registry.
        before: bronze's progress, with what earlier batches resolved.
        quarantine_unknown_ids: quarantine unknown schema ids even if the registry knows none of them.
        takes_any_key: whether one JSON record may change the primary key.

    Raises:
        InfrastructureError: the registry does not respond, or has lost its content.
    """
    kinds, owners = dict(before.kinds), dict(before.owners)
    schemas: dict[Side, Schemas] = {}
    fields = JsonFields.of(records, summary.references["value"], summary.fields, settings)
    records = fields.applied(records)
    for side in SIDES:
        source = SchemaSource(records, summary.frames, files, settings, side, fields)
        sent = fields.references(records, summary.references[side], side)
        references = _limited(records, sent, files, side)
        known_kinds = {frame: kind for of, kind in kinds.items() for s, _, frame in [of.partition(".")] if s == side}
        resolution = resolve(
            references,
            names=Names(topic, owners.get(side, ()), settings.envelope.record_names),
            kinds=files.kinds,
            known_kinds=known_kinds,
            look_up=source.look_up,
            samples=source.samples,
        )
        is_declared = settings.wire(side).wire_format in (*DECLARED, JSON)
        if not (quarantine_unknown_ids or is_declared):
            files.check_has_content(source.asked)
        kinds |= {f"{side}.{frame}": kind for frame, kind in resolution.kinds.items()}
        owners |= {side: resolution.owners} if resolution.owners else {}
        resolution.problems |= fields.problems
        schemas[side] = Schemas.of(
            resolution.meanings,
            resolution.problems,
            side=side,
            settings=settings,
            spark=records.sparkSession,
            are_all=len(references) == len(sent),
        )
    key: Mapping[str, str] = before.key
    if settings.key_of_rows is not None:
        key_side: Side = "value" if settings.key_of_rows else "key"
        key, with_other_key = _primary_key(records, schemas[key_side], key_side, settings, key, takes_any=takes_any_key)
        schemas[key_side] = schemas[key_side].without(with_other_key, _other_key(key))
    return ResolvedSchemas(schemas["key"], schemas["value"], fields, kinds, owners, key)


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
        schemas: the schemas of the side that has the key.
    """
    type_mapping = ColumnMapping(settings.schema_.exclude, settings.schema_.rename, settings.schema_.cast)
    given, embedded = dict[str, Mapping[str, str]](), dict[str, Mapping[str, str]]()
    for reference, possible_schemas in schemas.known.items():
        tree = possible_schemas[0].tree
        if is_of_signal_table(tree) if side == "key" else shape_of(tree) == "control":
            continue
        tree = key_tree_from_row(tree, settings.merge.keys) if side == "value" else tree
        is_embedded = reference.partition(":")[0] in json_format.REFERENCES
        (embedded if is_embedded else given)[reference] = type_mapping.key(stored_types(key_fields(tree)))

    def count(references: Collection[str]) -> Mapping[str, int]:
        reference = F.col(f"{side}_reference")
        counts = records.where(reference.isin(*references)).groupBy(reference.alias("reference")).count()
        return {row["reference"]: row["count"] for row in counts.collect()}

    return primary_key(known, given, embedded, count, takes_any=takes_any)


def _other_key(key: Mapping[str, str]) -> str:
    columns = ", ".join(f"{name} {spark_type}" for name, spark_type in sorted(key.items()))
    return (
        f"its primary key has other columns or types than the table's ({columns}), and too few JSON records have it; "
        "if the key has changed, `cdc-lake quarantine replay --offset` lands the records that you select"
    )


def _limited(records: DataFrame, references: Collection[str], files: SchemaFiles, side: Side) -> set[str]:
    """The references to look up: first known ones, then the lowest ids, because invented ids are high.

    Args:
        references: the references in the summary of the records.
    """
    column = F.col(f"{side}_reference")
    layouts = {one for one in references if one.partition(":")[0] in json_format.REFERENCES}
    limited = set[str]()
    for group, are_layouts, most in ((layouts, True, MAX_LAYOUTS), (set(references) - layouts, False, MAX_IDS)):
        if len(group) > most:
            is_known = (_is_layout(column) == are_layouts) & _id_of(column).isin(*files.known_ids())
            known = records.where(is_known).select(column.alias("one")).distinct().orderBy("one").limit(most).collect()
            first = {row["one"] for row in known}
            group = first.union(sorted(group - first)[: most - len(first)])
        limited |= group
    return limited


def _id_of(reference: Column) -> Column:
    frame = F.substring_index(reference, ":", 1)
    schema_id = reference.substr(F.length(frame) + 2, F.length(reference))
    return F.when(frame.isin(*NUMBERED), F.conv(schema_id, 16, 10)).otherwise(schema_id)


def decide(records: DataFrame, summary: ScanSummary, resolved: ResolvedSchemas, settings: TableConfig) -> DataFrame:
    """Decide the status of each record; see `with_decision`."""
    return with_decision(resolved.fields.applied(records), resolved.keys, resolved.values, summary.frames, settings)


@dataclass
class _Key:
    columns: Mapping[str, str]
    references: list[str] = field(default_factory=list)


def primary_key(
    known: Mapping[str, str],
    given: Mapping[str, Mapping[str, str]],
    embedded: Mapping[str, Mapping[str, str]],
    count: Callable[[Collection[str]], Mapping[str, int]],
    *,
    takes_any: bool = False,
) -> tuple[Mapping[str, str], set[str]]:
    """The primary key of a topic after a batch of its records.

    Args:
        known: the key's columns before, name to Spark type; empty if not known.
        given: the key's columns by reference, for schemas from a registry or the settings.
        embedded: the key's columns by reference, for records that contain them.
        count: from references to the number of their records; called only if some have another key.
        takes_any: whether one record is enough to change the key.

    Returns:
        The key's columns, with types wide enough for all records, and the references whose records have another key.
    """
    keys = [_Key(known)] if known else []
    for reference in sorted(given):
        _add(keys, reference, given[reference])
    now = next((key for key in reversed(keys) if key.references), keys[0] if keys else None)
    other_keys: list[_Key] = []
    for reference in sorted(embedded):
        if not _is_added(keys, reference, embedded[reference]):
            _add(other_keys, reference, embedded[reference])
    if other_keys:
        numbers = count([one for key in (*keys, *other_keys) for one in key.references])

        def records(key: _Key) -> int:
            return sum(numbers.get(reference, 0) for reference in key.references)

        most = max(other_keys, key=records)
        before = max(map(records, keys), default=0)
        if now is None or takes_any or records(most) >= max(MIN_RECORDS, before + 1):
            now = most
            other_keys = [] if takes_any else [key for key in other_keys if key is not most]
    return now.columns if now else {}, {one for key in other_keys for one in key.references}


def _add(keys: list[_Key], reference: str, columns: Mapping[str, str]) -> None:
    if not _is_added(keys, reference, columns):
        keys.append(_Key(columns, [reference]))


def _is_added(keys: list[_Key], reference: str, columns: Mapping[str, str]) -> bool:
    """Add a reference to the key that it has. Returns false if that is not among these."""
    for key in keys:
        if (both := same_key(key.columns, columns)) is not None:
            key.columns = both
            key.references.append(reference)
            return True
    return False
