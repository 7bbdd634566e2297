"""Partition columns: a text column per partition field, in addition to the source's columns.

The source's column itself is not used, because table formats store partition values as text in paths, which loses some
values: Delta reads an empty text as null. The source's value stays in the data file.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import quoted
from cdc_lake.config import PartitionField, StorageConfig, joint_name
from cdc_lake.errors import ConfigError

_FORMATS = {"year": "yyyy", "month": "yyyy-MM", "day": "yyyy-MM-dd", "hour": "yyyy-MM-dd-HH"}
_MOMENTS = frozenset({"date", "timestamp", "timestamp_ntz"})
_WITHOUT_TEXT = ("array<", "map<", "struct<", "binary")
_TRUNCATED = ("string", "tinyint", "smallint", "int", "bigint", "decimal")
_NOT_IN_ICEBERG = {"hour": ("date",), "bucket": ("boolean", "float", "double")}
_MAX_LENGTH = 64
"""Maximum length of a partition's name: folder names have at most 255 bytes, and an escaped character needs three."""


def check_partitions(
    table: str,
    storage: StorageConfig,
    columns: Mapping[str, str],
    keys: Collection[str],
    cure: str = "correct `partition_by` in the `storage` setting of this table",
) -> None:
    """Check that a table can be partitioned as its settings say.

    Args:
        columns: the source's columns, name -> Spark type.
        keys: its primary key. If `columns` has only these, the other columns are not known yet.

    Raises:
        ConfigError: a column does not exist or has the wrong type; or with `buckets`, a partition column is not part
            of the key.
    """
    fields = storage.partitions
    if clash := fields and columns.keys() & {joint_name(fields), *(field.name for field in fields)}:
        raise ConfigError(table, f"its column {min(clash)} has the name of a partition column", cure)
    for field in fields:
        if storage.buckets and field.column not in keys:
            what = f"with `buckets`, partition columns must be part of the key, but `{field.column}` is not"
            raise ConfigError(table, what, f"remove `buckets`, or {cure}")
        kind = columns.get(field.column)
        if kind is None:
            if columns.keys() > set(keys):
                raise ConfigError(table, f"the column `{field.column}` of `partition_by` does not exist", cure)
            continue
        if (
            kind.startswith(_WITHOUT_TEXT)
            or (field.part in _FORMATS and kind not in _MOMENTS)
            or (field.part == "truncate" and not kind.startswith(_TRUNCATED))
            or (storage.format == "iceberg" and kind in _NOT_IN_ICEBERG.get(field.part, ()))
        ):
            part = "" if field.part == "value" else f"{field.part} of "
            raise ConfigError(table, f"`partition_by` does not support {part}`{field.column}` of type {kind}", cure)


def partition_columns(
    fields: Iterable[PartitionField], columns: Collection[str], value: Callable[[str], Column]
) -> dict[str, Column]:
    """The partition columns by name, each a string.

    Args:
        value: the expression for a column's value.
    """
    return {
        field.name: _partition(field, value(field.column)) if field.column in columns else F.lit(None).cast("string")
        for field in fields
    }


def with_partitions(rows: DataFrame, fields: Sequence[PartitionField]) -> DataFrame:
    columns = partition_columns(fields, rows.columns, lambda name: F.col(quoted(name)))
    return rows.withColumns(columns) if columns else rows


def with_one_partition(rows: DataFrame, fields: Sequence[PartitionField]) -> DataFrame:
    """Add one column to rows that combines all partition columns."""
    if len(fields) < 2:
        return with_partitions(rows, fields)
    columns = partition_columns(fields, rows.columns, lambda name: F.col(quoted(name)))
    joined = F.concat_ws(",", *(F.coalesce(value, F.lit("null")) for value in columns.values()))
    return rows.withColumn(joint_name(fields), F.substring(joined, 1, _MAX_LENGTH))


def _partition(field: PartitionField, value: Column) -> Column:
    """A partition's name. Null and the empty text share one, and so do long texts with the same beginning."""
    if field.part == "bucket":
        return F.pmod(F.xxhash64(value.cast("string")), F.lit(field.number)).cast("string")
    if field.part in _FORMATS:
        return F.date_format(value, _FORMATS[field.part])
    text = value.cast("string")
    # Whether a JVM supports non-ASCII file names depends on its locale.
    plain = F.when(text.rlike("^[ -~]*$"), text).otherwise(F.translate(F.url_encode(text), "%+", "_ "))
    return F.when(text != "", F.substring(plain, 1, _MAX_LENGTH))
