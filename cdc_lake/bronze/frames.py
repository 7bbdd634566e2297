"""Detects the frames of keys and values, and extracts the references by which they name their schemas."""

from collections.abc import Collection, Sequence
from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.config import TableConfig
from cdc_lake.decode import framing
from cdc_lake.decode import json as json_format
from cdc_lake.spark.expressions import built_once

_MAX_REFERENCE, _MAX_JSON_REFERENCE = 1 << 10, 64 << 10
"""Maximum length of a reference, and of the names of the fields of JSON without a schema."""


def with_frames(records: DataFrame, settings: TableConfig, *, of_files: bool = False) -> DataFrame:
    """Detect the frames of keys and values. Keys, values and headers above `read.max_record_bytes` become null.

    Args:
        records: Kafka's columns.
        of_files: whether the records come from files.

    Columns in: `key`, `value`, `headers`. Columns out: all, and `too_large` string, the reason if one became null;
    `header_bytes` bigint; `key_framing`, `value_framing` string.
    """
    for columns in _frame_columns(*_configured(settings), settings.read.max_record_bytes, of_files=of_files):
        records = records.withColumns(columns)
    return records


def _configured(settings: TableConfig) -> tuple[str | None, str, tuple[str, ...]]:
    """The frame of keys and that of values in the settings, or `auto`, and the columns that they declare. Keys that are
    not decoded have none.
    """
    key = settings.key.wire_format if settings.key_of_rows == () else None
    return key, settings.value.wire_format, tuple(settings.value.columns)


@built_once
def _frame_columns(
    key_framing: str | None, value_framing: str, declared: Collection[str], max_bytes: int, *, of_files: bool
) -> Sequence[dict[str, Column]]:
    """The columns of `with_frames`, by step."""
    settings: tuple[tuple[framing.Side, str | None], ...] = (("key", key_framing), ("value", value_framing))
    headers = F.col("headers")
    message = F.lit(f"%d bytes are more than `read.max_record_bytes`: {max_bytes}, and are not kept")
    sizes = {"value": F.length("value"), "key": F.length("key"), "headers": F.col("header_bytes")}
    too_large = (
        F.when(size > max_bytes, about(part, F.call_function("format_string", message, size)))
        for part, size in sizes.items()
    )
    kept = {part: F.when(size <= max_bytes, F.col(part)) for part, size in sizes.items()}
    kept["header_bytes"] = F.when(sizes["headers"] <= max_bytes, sizes["headers"]).otherwise(0)
    frames = {
        f"{side}_framing": F.lit(None).cast("string")
        if fixed is None
        else framing.framing(F.col(side), headers, side, fixed, declared=declared, of_files=of_files)
        for side, fixed in settings
    }
    return {"header_bytes": framing.header_bytes(headers)}, {"too_large": F.coalesce(*too_large), **kept}, frames


def with_unpacked_bytes(records: DataFrame, max_bytes: int) -> DataFrame:
    """Count the bytes that compressed bodies unpack to. Bodies of more than `max_bytes` become null.

    Spark passes a hundred bodies to Python at once, and gets as many back, so their total size must be known before.

    Columns in: `with_frames`'. Columns out: all, and `unpacked_bytes` bigint.
    """
    sizes = {side: F.col(f"__unpacked_{side}") for side in ("value", "key")}
    is_large = {side: F.coalesce(size > max_bytes, F.lit(False)) for side, size in sizes.items()}
    message = f"it unpacks to more bytes than `read.max_record_bytes`: {max_bytes}, and is not kept"
    too_large = (F.when(is_large[side], about(side, F.lit(message))) for side in sizes)
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


def with_references(records: DataFrame, frames: Collection[str], settings: TableConfig) -> DataFrame:
    """Extract the references by which keys and values name their schemas.

    Args:
        records: the columns of `with_frames`.
        frames: the frames to read; other frames are not planned for, and their records get no reference.

    Columns out: all, and `key_reference`, `value_reference`, `frame_problem` string, `is_tombstone` boolean; if JSON is
    among the frames, `value_names` string, the names of the row's fields of JSON without a schema.
    """
    for columns in _reference_columns(frozenset(frames), *_configured(settings)):
        records = records.withColumns(columns)
    return records


@built_once
def _reference_columns(
    frames: Collection[str], key_framing: str | None, value_framing: str, declared: Collection[str]
) -> Sequence[dict[str, Column]]:
    """The columns of `with_references`, by step."""
    fixed = {"key": key_framing, "value": value_framing}
    sides: tuple[framing.Side, ...] = ("value", "key")
    references, short, problems, texts = {}, {}, [], dict[framing.Side, Column]()
    has_json = not set(framing.TEXTS).isdisjoint(frames)
    for side in sides:
        configured = fixed[side]
        if configured is None:
            references[f"{side}_reference"] = F.lit(None).cast("string")
            continue
        data, frame, reference = F.col(side), F.col(f"{side}_framing"), F.col(f"{side}_reference")
        expression = framing.reference(data, F.col("headers"), side, frame, frames)
        is_json, json_problem = frame.isin(framing.JSON, framing.PAYLOAD), F.lit(None)
        if has_json:
            texts[side] = text = framing.body(data, frame, frames).cast("string")
            plain = configured == framing.JSON
            by_text = json_format.reference(text, side, plain=plain, declared=declared)
            expression = F.when(is_json, by_text).otherwise(expression)
            json_problem = F.when(is_json & reference.isNull(), json_format.problem(text, declared))
        references[f"{side}_reference"] = expression
        most = F.when(is_json, _MAX_JSON_REFERENCE).otherwise(_MAX_REFERENCE)
        is_short = F.length(reference) <= most
        too_long = F.when(~is_short, F.format_string("the reference to its schema has more than %d characters", most))
        problem = F.coalesce(too_long, json_problem, framing.frame_problem(side, frame, reference, frames, configured))
        problems.append(about(side, problem))
        short[f"{side}_reference"] = F.when(is_short, reference)
    is_tombstone = F.col("value").isNull() & F.col("too_large").isNull()
    steps = [{"is_tombstone": F.coalesce(is_tombstone, F.lit(False)), **references}]
    if has_json:
        is_null = F.col("value_framing").isin(*framing.TEXTS) & json_format.is_null(texts["value"])
        references["value_reference"] = F.when(~F.col("is_tombstone"), references["value_reference"])
        problems[0] = F.when(~F.col("is_tombstone"), problems[0])
        steps = [{"is_tombstone": F.coalesce(is_tombstone | is_null, F.lit(False))}, references]
        steps.append({"value_names": json_format.row_names(texts["value"], F.col("value_reference"))})
        are_short = F.coalesce(F.length("value_names") <= _MAX_JSON_REFERENCE, F.lit(True))
        short["value_reference"] = F.when(are_short, short["value_reference"])
        short["value_names"] = F.when(are_short, F.col("value_names"))
        reason = f"value: the names of its fields have more than {_MAX_JSON_REFERENCE} characters"
        problems.append(F.when(~are_short, reason))
    return *steps, {"frame_problem": F.coalesce(*problems), **short}


def about(part: str, problem: Column) -> Column:
    """A problem with the part of the record that it is about: key, value or headers."""
    return F.concat(F.lit(f"{part}: "), problem)
