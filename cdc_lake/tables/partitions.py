"""The partition that a row belongs to, as a text column of the table beside the source's own.

Not the source's column itself: an engine keeps a partition's value as a text in a path, which loses some values
(Delta's empty text is a null). The row's own value is in its file, whatever the partition is called.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import quoted
from cdc_lake.config import StorageConfig
from cdc_lake.errors import ConfigError
from cdc_lake.partitioning import PartitionField, joint_name

_FORMATS = {"year": "yyyy", "month": "yyyy-MM", "day": "yyyy-MM-dd", "hour": "yyyy-MM-dd-HH"}
_MOMENTS = frozenset({"date", "timestamp", "timestamp_ntz"})
_WITHOUT_TEXT = ("array<", "map<", "struct<", "binary")
_LONGEST = 64
"""Characters of a partition's name: a folder's has at most 255 bytes, and an escaped character takes three."""


def check_partitions(
    table: str,
    held_in: StorageConfig,
    columns: Mapping[str, str],
    keys: Collection[str],
    todo: str = "mend `partition_by` in the `storage` of this table's settings",
) -> None:
    """See that a table can be partitioned as the settings say.

    Args:
        columns: its columns, name to Spark type, without our own.
        keys: of the primary key. Where there are no others yet, nothing is known of the rest.
        todo: what to do if it cannot.

    Raises:
        ConfigError: there is no such column, or it has no such part; or there are `buckets`, and rows could leave them.
    """
    fields = held_in.partitions
    if clash := fields and columns.keys() & {joint_name(fields), *(field.name for field in fields)}:
        raise ConfigError(table, f"there is a column {min(clash)}, which is what partitions would be in", todo)
    for field in fields:
        if held_in.buckets and field.column not in keys:
            what = f"`buckets` find a row by its key alone, and `{field.column}`, which partitions go by, is not in it"
            raise ConfigError(table, what, f"leave `buckets` out, or {todo}")
        kind = columns.get(field.column)
        if kind is None:
            if columns.keys() > set(keys):
                raise ConfigError(table, f"`partition_by` names `{field.column}`, and there is no such column", todo)
            continue
        if kind.startswith(_WITHOUT_TEXT) or (field.part in _FORMATS and kind not in _MOMENTS):
            part = "" if field.part == "value" else f"{field.part} of "
            raise ConfigError(table, f"`partition_by` has {part}`{field.column}`, which is {kind}", todo)


def partition_columns(
    fields: Iterable[PartitionField], columns: Collection[str], value: Callable[[str], Column]
) -> dict[str, Column]:
    """The partition columns by name, each a string.

    Args:
        columns: the table's.
        value: what a row has in one of them.
    """
    return {
        field.name: _partition(field, value(field.column)) if field.column in columns else F.lit(None).cast("string")
        for field in fields
    }


def with_partitions(rows: DataFrame, fields: Sequence[PartitionField]) -> DataFrame:
    """Rows with their partition columns behind."""
    found = partition_columns(fields, rows.columns, lambda name: F.col(quoted(name)))
    return rows.withColumns(found) if found else rows


def with_one_partition(rows: DataFrame, fields: Sequence[PartitionField]) -> DataFrame:
    """Rows with one column behind that stands for all partition columns."""
    if len(fields) < 2:
        return with_partitions(rows, fields)
    found = partition_columns(fields, rows.columns, lambda name: F.col(quoted(name)))
    joined = F.concat_ws(",", *(F.coalesce(value, F.lit("null")) for value in found.values()))
    return rows.withColumn(joint_name(fields), F.substring(joined, 1, _LONGEST))


def _partition(field: PartitionField, value: Column) -> Column:
    """Null and the empty text share one, and so do long texts that begin alike."""
    if field.part == "bucket":
        return F.pmod(F.xxhash64(value.cast("string")), F.lit(field.buckets)).cast("string")
    if field.part in _FORMATS:
        return F.date_format(value, _FORMATS[field.part])
    text = value.cast("string")
    # Whether a JVM can name a file beyond ASCII depends on where it was started.
    plain = F.when(text.rlike("^[ -~]*$"), text).otherwise(F.translate(F.url_encode(text), "%+", "_ "))
    return F.when(text != "", F.substring(plain, 1, _LONGEST))
