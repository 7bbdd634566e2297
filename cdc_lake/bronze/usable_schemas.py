"""Which schemas of a batch's references are usable, within limits that keep Spark's plans small."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from cdc_lake.config import TableConfig
from cdc_lake.decode import framing
from cdc_lake.decode import json as json_format
from cdc_lake.decode.column_mapping import ColumnMapping
from cdc_lake.decode.envelope import row_fields
from cdc_lake.decode.key import key_fields, key_tree_from_row
from cdc_lake.decode.records import WriterSchema, layout, spark_refusal
from cdc_lake.decode.schemas import SchemaError, Tree
from cdc_lake.decode.types import type_mapping

_MAX_REASON = 500
"""Maximum length of a reason. Names in schemas have any length, and each record of the schema stores the reason."""
_HASH_DIGITS = 12
"""Digits of a schema's hash in messages, as in `cdc-lake quarantine show`."""
_COUNTED = ("tinyint", "smallint", "int", "bigint", "date", "timestamp")
"""Types of columns that order events."""
MAX_IDS, MAX_LAYOUTS = 1000, 64
"""Limits per batch, for keys and for values: references that are looked up, and layouts that are decoded."""


@dataclass(frozen=True)
class Schemas:
    """The schemas of a batch's references.

    Attributes:
        known: reference -> its possible schemas, the likeliest first; each record shows which one it was written with.
        problems: reference -> why its records are quarantined, for all other references.
        are_all: false if the batch has more references than it may have.
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
        settings: TableConfig,
        spark: SparkSession | None = None,
        are_all: bool = True,
    ) -> "Schemas":
        """Keep usable schemas. If all schemas of a reference are refused, its records are quarantined.

        Args:
            spark: if set, must accept the schemas, too.
        """
        known: dict[str, Sequence[WriterSchema]] = {}
        refused = dict(problems or {})
        for reference, schemas in meanings.items():
            reasons = {schema: _refusal(schema, side, settings, spark) for schema in schemas}
            known[reference] = tuple(schema for schema, reason in reasons.items() if reason is None)
            if not known[reference]:
                del known[reference]
                reason = str(next(iter(reasons.values())))[:_MAX_REASON]
                refused[reference] = f"the schema of {describe_reference(reference)} is refused: {reason}"
        for reference in _beyond_layouts(known):
            del known[reference]
            refused[reference] = (
                f"{describe_reference(reference)} exceeds the {MAX_LAYOUTS} layouts that a batch may have"
            )
        return cls(known, refused, are_all)

    def without(self, references: Collection[str], problem: str) -> "Schemas":
        """A copy in which the records of some references are quarantined for a problem."""
        known = {reference: schemas for reference, schemas in self.known.items() if reference not in references}
        return replace(self, known=known, problems={**self.problems, **dict.fromkeys(references, problem)})


def _beyond_layouts(known: Mapping[str, Sequence[WriterSchema]]) -> list[str]:
    """The references beyond the maximum number of layouts, each of which is a column of the plan.

    Schemas that records embed come last, because any producer can invent one.
    """
    if len({schema for schemas in known.values() for schema in schemas}) <= MAX_LAYOUTS:
        return []
    layouts, beyond = set[tuple[str, str, str]](), []
    for reference in sorted(known, key=lambda one: one.partition(":")[0] in json_format.REFERENCES):
        schemas = known[reference]
        more = layouts | {layout(schema.format, schema.tree, schema.tree) for schema in schemas}
        if len(more) > MAX_LAYOUTS:
            beyond.append(reference)
        else:
            layouts = more
    return beyond


def describe_reference(reference: str) -> str:
    kind = reference.partition(":")[0]
    if kind == json_format.CONNECT_REFERENCE:
        return f"embedded schema {framing.id_of(reference)[:_HASH_DIGITS]}"
    words = {"id4": "schema id", "id8": "schema id", "contentId": "content id", "globalId": "global id", "id": "id"}
    words[framing.EXT_JSON] = "Apicurio's ExtJsonConverter wrapped the record: its schemaId"
    return f"{words.get(kind, kind)} {framing.id_of(reference)}"


def _refusal(schema: WriterSchema, side: framing.Side, settings: TableConfig, spark: SparkSession | None) -> str | None:
    """Why a schema cannot be used, so that it does not fail a Spark plan later; None if it can."""
    column_mapping = ColumnMapping(settings.schema_.exclude, settings.schema_.rename)
    try:
        if side == "key" or schema.shape != "control":
            columns = key_fields(schema.tree) if side == "key" else row_fields(schema.tree)
            column_mapping.check(columns, settings.formats)
            for tree in columns.values():
                type_mapping(tree)
            if settings.key_of_rows and side == "value":
                key_tree_from_row(schema.tree, settings.key_of_rows)
            if settings.merge.sequence_by and side == "value":
                _check_sequence(schema.tree, settings.merge.sequence_by)
        return spark_refusal(schema, spark) if spark else None
    except SchemaError as exc:
        return str(exc)


def _check_sequence(tree: Tree, column: str) -> None:
    """Check that a value's schema has the column, with a type that can order events."""
    row = row_fields(tree)
    if column not in row:
        raise SchemaError(f"the row does not have the column {column} of `merge.sequence_by`")
    spark_type = type_mapping(row[column]).type
    if spark_type not in _COUNTED:
        raise SchemaError(
            f"`merge.sequence_by` is {column}, a {spark_type}, but must be an integer, a date or a timestamp; for JSON "
            "without a schema, declare its type in `value.columns`"
        )
