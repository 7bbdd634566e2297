"""Hudi's settings for reads and writes, the properties that a table must have, and the limits of its schemas.

The fold determines the rows before they are written, so Hudi must not order them again: the last write wins
(`COMMIT_TIME_ORDERING`). docs/decisions/hudi.md has the reasons.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from cdc_lake.columns import KEY, quoted
from cdc_lake.config import PartitionField, joint_name
from cdc_lake.errors import UnsupportedError
from cdc_lake.tables.progress import METADATA_KEY

HudiType = Literal["cow", "mor"]
_TYPES = {"cow": "COPY_ON_WRITE", "mor": "MERGE_ON_READ"}

READ = {
    # Hudi reads its statistics through Spark's cache, which deadlocks inside a plan that is being cached.
    "hoodie.metadata.enable": "false",
    "hoodie.enable.data.skipping": "false",
}
COMPACT_NOW = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "1"}
"""Settings of a write after which Hudi compacts all logs."""
_MERGE_MODE = "COMMIT_TIME_ORDERING"
_WRITE = {
    **READ,
    "hoodie.write.record.merge.mode": _MERGE_MODE,
    # The key's canonical text: Hudi rejects empty keys, and its own text of several columns is ambiguous.
    "hoodie.datasource.write.recordkey.field": KEY,
    "hoodie.datasource.write.hive_style_partitioning": "true",
    # For values with characters that are not allowed in folder names.
    "hoodie.datasource.write.partitionpath.urlencode": "true",
    "hoodie.datasource.write.commitmeta.key.prefix": METADATA_KEY,
    "hoodie.table.timeline.timezone": "UTC",
    # It takes half a megabyte in each file, for an index that is not used.
    "hoodie.parquet.bloom.filter.enabled": "false",
    # Number of retained versions; the timeline must be a little longer.
    "hoodie.clean.commits.retained": "50",
    "hoodie.keep.min.commits": "60",
    "hoodie.keep.max.commits": "80",
}
_WRITE_OF_TYPE = {
    "cow": {},
    # No other process compacts, and this limits the logs that a reader merges.
    "mor": {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "10"},
}
_WRITE_IN_PLACE = {"hoodie.write.markers.type": "DIRECT"}
"""Hudi's default, a server that saves requests to object stores, waits for five minutes on a full disk."""
_WRITE_VERSION_6 = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
_STORED = {"hoodie.record.merge.mode": _MERGE_MODE}
_STORED_VERSION_6 = {
    "hoodie.table.version": "6",
    # The merge mode's equivalent in this version.
    "hoodie.compaction.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
}
"""Expected table properties about the ordering of rows, and the table version for old readers."""
_LONG_DIGITS = 18


@dataclass(frozen=True)
class HudiSettings:
    """The settings of one table.

    Attributes:
        partitions: partition fields, combined in one column: several partition columns need Hudi's ComplexKeyGenerator
            or CustomKeyGenerator, whose tables not all readers support.
        buckets: file groups per partition; None for as many as needed, in which rows are looked up.
        is_version_6: whether the table has version 6 of Hudi's format, for old readers.
        properties: Hudi's settings for each write, which override the defaults.
    """

    table_type: HudiType
    partitions: Sequence[PartitionField]
    buckets: int | None
    is_version_6: bool
    properties: Mapping[str, str]

    @property
    def partition(self) -> str:
        """The name of the partition column; empty without partitions."""
        return joint_name(self.partitions) if self.partitions else ""

    def differing(self, stored: Mapping[str, str]) -> str | None:
        """Description of the first stored table property that differs from these settings; none if all match."""
        wanted = {
            "hoodie.table.type": _TYPES[self.table_type],
            **(_STORED_VERSION_6 if self.is_version_6 else _STORED),
            "hoodie.table.recordkey.fields": KEY,
            "hoodie.table.partition.fields": self.partition,
        }
        other = (f"{name} is {stored.get(name)}" for name, value in wanted.items() if stored.get(name, "") != value)
        return next(other, None)

    def of_write(
        self, path: str, operation: str, keys: Sequence[str], *, is_atomic: bool, uses_row_writer: bool
    ) -> dict[str, str]:
        """Hudi's settings of a write.

        Args:
            keys: the primary key, if rows are changed.
            is_atomic: whether the store shows files only when they are complete.
            uses_row_writer: whether Hudi writes Spark's rows without converting them to Avro.
        """
        return {
            **_WRITE,
            **_WRITE_OF_TYPE[self.table_type],
            **self._of_index(keys),
            **(_WRITE_VERSION_6 if self.is_version_6 else {}),
            **({} if is_atomic else _WRITE_IN_PLACE),
            **self.properties,
            "hoodie.table.name": path.rstrip("/").rpartition("/")[2],
            "hoodie.datasource.write.table.type": _TYPES[self.table_type],
            "hoodie.datasource.write.operation": operation,
            "hoodie.datasource.write.row.writer.enable": str(uses_row_writer).lower(),
            # Only an overwrite can drop columns.
            "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",
        }

    def _of_index(self, keys: Sequence[str]) -> dict[str, str]:
        """How Hudi finds the file of a row, and its partition."""
        generator = "Simple" if self.partitions else "Nonpartitioned"
        if self.buckets:
            index = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": str(self.buckets)}
        elif all(field.column in keys for field in self.partitions):
            index = {"hoodie.index.type": "SIMPLE"}
        else:
            index = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "true"}
        return {
            "hoodie.datasource.write.partitionpath.field": self.partition,
            "hoodie.datasource.write.keygenerator.class": f"org.apache.hudi.keygen.{generator}KeyGenerator",
            **index,
        }


def check_names(path: str, data_type: DataType) -> None:
    """Check that Avro, the format of Hudi's schema, allows all names.

    Raises:
        UnsupportedError: Avro does not allow a name.
    """
    if isinstance(data_type, StructType):
        for field in data_type:
            if not field.name.isidentifier():
                raise UnsupportedError(
                    path,
                    f"Hudi does not allow the column or field name `{field.name}`: use letters, digits and `_` only",
                    "set field.name.adjustment.mode=avro on the connector, or store this table in Delta",
                )
            check_names(path, field.dataType)
    elif isinstance(data_type, ArrayType):
        check_names(path, data_type.elementType)
    elif isinstance(data_type, MapType):
        check_names(path, data_type.valueType)


def nullable_columns(schema: StructType) -> list[Column]:
    """The columns, nullable at every depth: Hudi requires this of new columns, and later batches may have nulls."""
    return [
        F.when(F.lit(True), F.col(quoted(field.name)).cast(_nullable(field.dataType))).alias(field.name)
        for field in schema
    ]


def _nullable(data_type: DataType) -> DataType:
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable(data_type.elementType))
    if isinstance(data_type, MapType):
        return MapType(data_type.keyType, _nullable(data_type.valueType))
    if isinstance(data_type, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in data_type])
    return data_type


def has_short_decimals(schema: StructType) -> bool:
    """Whether the schema has a decimal that fits into a long.

    If so, Hudi's row writer writes arrays in a form that its Avro reader cannot read: a later commit that copies such a
    file writes null into the arrays of all unchanged rows.
    """
    precisions = re.findall(r"\bdecimal\((\d+),", schema.simpleString())
    return any(int(precision) <= _LONG_DIGITS for precision in precisions)


def may_lose_arrays(schema: StructType) -> bool:
    """Whether a table with this schema loses arrays if Hudi's row writer wrote it; see `has_short_decimals`."""
    return has_short_decimals(schema) and "array<" in schema.simpleString()
