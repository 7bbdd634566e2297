"""Table formats and partitions."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Self, cast

from pydantic import Field, model_validator

from cdc_lake.config.base import Model

_PROPERTIES: Mapping[str, frozenset[str]] = {
    "delta": frozenset(
        {
            *("delta.checkpointInterval", "delta.dataSkippingNumIndexedCols", "delta.deletedFileRetentionDuration"),
            *("delta.enableChangeDataFeed", "delta.logRetentionDuration"),
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
"""Table properties that users may set. Properties that affect the rows, such as Hudi's index, are excluded."""


Part = Literal["value", "year", "month", "day", "hour", "bucket"]

_PARTITION_PREFIX = "partition_"
_PARTITION_EXPRESSION = re.compile(
    r"""(?P<part>year|month|day|hour) \( \s* (?P<moment>[^()]+?) \s* \)
      | bucket \( \s* (?P<buckets>[1-9][0-9]{0,5}) \s* , \s* (?P<spread>[^()]+?) \s* \)
      | (?P<value>[^()]+)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class PartitionField:
    """One level of partitions: `nationality`, `month(payment_date)`, `bucket(16, film_id)`.

    Attributes:
        column: the source's column.
        part: the whole value, a part of its date, or one of `buckets` hash buckets.
    """

    column: str
    part: Part = "value"
    buckets: int = 0

    @classmethod
    def parse(cls, expression: str) -> "PartitionField":
        """Parse an expression.

        Raises:
            ValueError: the expression is invalid.
        """
        match = _PARTITION_EXPRESSION.fullmatch(expression.strip())
        if match is None:
            raise ValueError(
                f"invalid partition expression `{expression}`; write a column, year(column), month(column), "
                "day(column), hour(column) or bucket(number, column)"
            )
        if match["value"]:
            return cls(match["value"])
        if match["buckets"]:
            return cls(match["spread"], "bucket", int(match["buckets"]))
        return cls(match["moment"], cast(Part, match["part"]))

    @property
    def name(self) -> str:
        """Name of the table's partition column."""
        parts = {"value": "", "bucket": f"_bucket_{self.buckets}"}
        return f"{_PARTITION_PREFIX}{self.column}{parts.get(self.part, f'_{self.part}')}"


def joint_name(fields: Iterable[PartitionField]) -> str:
    """Name of the single partition column that combines `fields`, in tables with one partition level."""
    return _PARTITION_PREFIX + "_".join(field.name.removeprefix(_PARTITION_PREFIX) for field in fields)


Kind = Literal["delta", "hudi_cow", "hudi_mor"]
DeletionVectors = Literal["auto", "on", "off"]


class StorageConfig(Model):
    """How a table is stored: its format, type and partitions."""

    format: Literal["delta", "hudi"] = Field(default="delta", description="Sets the table format: `delta` or `hudi`.")
    type: Literal["cow", "mor"] | None = Field(
        default=None,
        description="For Hudi: `cow` (copy-on-write, the default) or `mor` (merge-on-read).",
    )
    partition_by: tuple[str, ...] = Field(
        default=(),
        description='Partitions the table, as in `[month(payment_date), "bucket(16, id)"]`: by a column, by its year, '
        "month, day or hour, or by a bucket. Cannot be changed later.",
    )
    buckets: int | None = Field(
        default=None,
        gt=0,
        description="For Hudi: stores each partition in this many file groups (Hudi's bucket index), for large tables "
        "whose rows never change their partition. Cannot be changed later.",
    )
    table_version: Literal[6] | None = Field(
        default=None,
        description="For Hudi: 6 for readers older than Hudi 1.0, such as Athena's. Without it: the newest version "
        "that the Hudi release writes. Cannot be changed later.",
    )
    deletion_vectors: DeletionVectors = Field(
        default="off",
        description="For Delta: `on` marks changed rows as deleted instead of copying the rest of their files; `auto` "
        "does so once a merge copies much more than it changes. All readers must support deletion vectors.",
    )
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Sets allowed table properties of the format, such as `delta.checkpointInterval`.",
    )

    @model_validator(mode="after")
    def _fits_its_format(self) -> Self:
        if self.format == "delta" and self.type is not None:
            raise ValueError("only tables of format hudi have a `type`")
        if self.format == "delta" and (self.buckets, self.table_version) != (None, None):
            raise ValueError("only tables of format hudi have `buckets` and a `table_version`")
        if len({field.name for field in self.partitions}) < len(self.partition_by):
            raise ValueError("`partition_by` names the same field twice")
        if self.format == "hudi" and self.deletion_vectors != "off":
            raise ValueError("only tables of format delta have `deletion_vectors`")
        for name in self.properties.keys() - _PROPERTIES[self.format]:
            near = difflib.get_close_matches(name, sorted(_PROPERTIES[self.format]), n=1, cutoff=0.5)
            meant = f" (did you mean `{near[0]}`?)" if near else ""
            raise ValueError(f"`{name}` is not a property that you can set for a {self.format} table{meant}")
        return self

    @property
    def partitions(self) -> tuple[PartitionField, ...]:
        """`partition_by`, parsed."""
        return tuple(map(PartitionField.parse, self.partition_by))

    @property
    def kind(self) -> Kind:
        """Format and type as one word."""
        if self.format == "delta":
            return "delta"
        return "hudi_mor" if self.type == "mor" else "hudi_cow"


TableType = Literal["delta", "hudi-cow", "hudi-mor"]


TABLE_TYPES: Mapping[TableType, StorageConfig] = {
    "delta": StorageConfig(),
    "hudi-cow": StorageConfig(format="hudi", type="cow"),
    "hudi-mor": StorageConfig(format="hudi", type="mor"),
}
"""The table types by short name."""
