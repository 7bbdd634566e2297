"""Orders events by a column of the row (`merge.sequence_by`) if they have no source position of the source."""

from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.decode.envelope import TRUNCATE, Metadata, row_fields, row_or_before
from cdc_lake.decode.records import DecodedLayout
from cdc_lake.decode.schemas import SchemaError, Tree
from cdc_lake.decode.types import type_mapping
from cdc_lake.fold.rules import SHARED

_NUMBERS = ("tinyint", "smallint", "int", "bigint")


def check_sequence(tree: Tree, column: str) -> None:
    """Check that a value's schema has the column, with a type that can order events.

    Raises:
        SchemaError: it does not.
    """
    row = row_fields(tree)
    if column not in row:
        raise SchemaError(f"the row does not have the column {column} of `merge.sequence_by`")
    kind = type_mapping(row[column]).type
    if kind not in (*_NUMBERS, "date", "timestamp"):
        raise SchemaError(
            f"`merge.sequence_by` is {column}, a {kind}, but must be an integer, a date or a timestamp; for JSON "
            "without a schema, declare its type in `value.columns`"
        )


def in_sequence(facts: Metadata, value: DecodedLayout, column: str) -> tuple[Metadata, Column]:
    """A value's metadata with the column as source position, and its problem, if any.

    Events with the same value in the column form a group, in which the order in Kafka decides. A timestamp is also the
    source time.

    Args:
        facts: the metadata from the value's own fields.
        value: the decoded value; its rows also have Kafka's `topic`.
        column: the name of the column.
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
