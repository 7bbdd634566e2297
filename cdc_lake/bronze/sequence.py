"""Which of two events is newer, by a column of the row (`merge.sequence_by`), where no source's log says it."""

from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc_lake.decode.envelope import TRUNCATE, Metadata, known_of, row_fields
from cdc_lake.decode.records import Decoded
from cdc_lake.decode.schemas import SchemaError, Tree
from cdc_lake.decode.types import mapping

_NUMBERS = ("smallint", "int", "bigint")


def check_sequence(tree: Tree, column: str) -> None:
    """See that a value's schema has the column, of a type that goes up.

    Raises:
        SchemaError: it has not.
    """
    row = row_fields(tree)
    if column not in row:
        raise SchemaError(f"the row has no column {column}, which `merge.sequence_by` names")
    kind = mapping(row[column]).type
    if kind not in (*_NUMBERS, "date", "timestamp"):
        raise SchemaError(
            f"`merge.sequence_by` names {column}, a {kind}: it has to be a whole number, a date or a timestamp; JSON "
            "without a schema says no types, declare it in `value.columns`"
        )


def in_sequence(said: Metadata, value: Decoded, column: str) -> tuple[Metadata, Column]:
    """What a value says of itself with the column in the place of the source's log, and what is wrong with it.

    Of two events with the same number the later one in Kafka is the newer. A timestamp is the source's time, too.

    Args:
        said: by its own fields.
        value: with Kafka's `topic`, `timestamp` and `offset` beside it.
    """
    held = mapping(row_fields(value.tree)[column])
    sent = held.convert(known_of(value.tree, value.value, [column])[column])
    time_ms = F.lit(None).cast("bigint")
    if held.type == "timestamp":
        number, time_ms = F.unix_micros(sent), F.unix_millis(sent)
    elif held.type == "date":
        number = F.unix_date(sent)
    else:
        number = sent
    position = F.array(number.cast("bigint"), F.unix_millis("timestamp"), F.col("offset"))
    missing = F.when(number.isNull() & (said.op != TRUNCATE), f"`{column}` is null, which `merge.sequence_by` names")
    placed = replace(
        said,
        source_ts_ms=time_ms,
        source_position=F.when(number.isNotNull(), position),
        position_domain=F.col("topic"),
    )
    return placed, missing
