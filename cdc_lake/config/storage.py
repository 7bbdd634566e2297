"""What a table is stored in."""

import difflib
from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from cdc_lake.config.base import Model
from cdc_lake.partitioning import PartitionField

_PROPERTIES: Mapping[str, frozenset[str]] = {
    "delta": frozenset(
        {
            *("delta.checkpointInterval", "delta.dataSkippingNumIndexedCols", "delta.deletedFileRetentionDuration"),
            *("delta.enableChangeDataFeed", "delta.enableDeletionVectors", "delta.logRetentionDuration"),
            *("delta.autoOptimize.autoCompact", "delta.autoOptimize.optimizeWrite", "delta.targetFileSize"),
        }
    ),
    "hudi": frozenset(
        {
            *("hoodie.clean.commits.retained", "hoodie.keep.max.commits", "hoodie.keep.min.commits"),
            *("hoodie.clustering.inline", "hoodie.clustering.inline.max.commits"),
            *("hoodie.compact.inline", "hoodie.compact.inline.max.delta.commits"),
            *("hoodie.parquet.compression.codec", "hoodie.parquet.max.file.size", "hoodie.parquet.small.file.limit"),
        }
    ),
}
"""What of an engine's own settings a table may have otherwise: nothing that decides which rows are right, as Hudi's
index does once there are any."""


Kind = Literal["delta", "hudi_cow", "hudi_mor"]


class SilverTable(Model):
    """What a silver table is held in."""

    format: Literal["delta", "hudi"] = "delta"
    type: Literal["cow", "mor"] | None = Field(
        default=None, description="Of hudi: copy-on-write, if nothing is said, or merge-on-read."
    )
    partition_by: tuple[str, ...] = Field(
        default=(),
        description="What to partition by: a column, year, month, day or hour of one, bucket(n, column). Cannot be "
        "changed once there is a table.",
    )
    buckets: int | None = Field(
        default=None,
        gt=0,
        description="Of hudi: so many file groups a partition, a row's told by its key (Hudi's bucket index), where no "
        "row can change its partition. Cannot be changed once there is a table.",
    )
    table_version: Literal[6] | None = Field(
        default=None,
        description="Of hudi: 6 for readers from before Hudi 1.0, such as Athena's; if nothing is said, the newest "
        "that the Hudi in use writes. Cannot be changed once there is a table.",
    )
    properties: dict[str, str] = Field(
        default_factory=dict, description="The engine's own settings of the table, from a list."
    )

    @model_validator(mode="after")
    def _fits_its_format(self) -> Self:
        if self.format == "delta" and self.type is not None:
            raise ValueError("only tables of format hudi have a `type`")
        if self.format == "delta" and (self.buckets, self.table_version) != (None, None):
            raise ValueError("only tables of format hudi have `buckets` and a `table_version`")
        if len({field.name for field in self.partitions}) < len(self.partition_by):
            raise ValueError("`partition_by` says the same twice")
        for name in self.properties.keys() - _PROPERTIES[self.format]:
            near = difflib.get_close_matches(name, sorted(_PROPERTIES[self.format]), n=1, cutoff=0.5)
            meant = f" (did you mean `{near[0]}`?)" if near else ""
            raise ValueError(f"`{name}` is no property that a table of format {self.format} may have{meant}")
        return self

    @property
    def partitions(self) -> tuple[PartitionField, ...]:
        """What `partition_by` says."""
        return tuple(map(PartitionField.parse, self.partition_by))

    @property
    def kind(self) -> Kind:
        """Its format and type in a word."""
        if self.format == "delta":
            return "delta"
        return "hudi_mor" if self.type == "mor" else "hudi_cow"


TableType = Literal["delta", "hudi-cow", "hudi-mor"]


TABLE_TYPES: Mapping[TableType, SilverTable] = {
    "delta": SilverTable(),
    "hudi-cow": SilverTable(format="hudi", type="cow"),
    "hudi-mor": SilverTable(format="hudi", type="mor"),
}
"""All there are, by a short name."""
