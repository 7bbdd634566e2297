"""The schemas that bronze rows were written with."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import KEY, quoted
from cdc_lake.config import TableConfig
from cdc_lake.decode.envelope import is_cell, is_partial_update, row_fields
from cdc_lake.decode.framing import header_bytes
from cdc_lake.decode.key import canonical_text, key_fields
from cdc_lake.decode.records import WriterSchema
from cdc_lake.decode.schema_texts import columns_that_lose_nulls
from cdc_lake.decode.schemas import Tree, non_null
from cdc_lake.silver.evolution import Layout, LayoutChange
from cdc_lake.silver.unavailable import can_be_unavailable
from cdc_lake.spark.expressions import built_once

_LARGE_BYTES, _FEW_BYTES = 64 << 10, 128 << 20
"""A value above the first size is large; large values above the second size in total are not few."""


@built_once
def schemas_and_frames() -> Column:
    """The schemas of bronze rows, as an aggregate: `keys` and `values`, fingerprints of schemas; `frames`; `bytes`, the
    size of all records; and `largest`, that of the largest value, not counting a few large ones.
    """
    length = F.length("raw_value")
    keys_and_values = F.coalesce(length, F.lit(0)) + F.coalesce(F.length("raw_key"), F.lit(0))
    of_large = F.coalesce(F.sum(F.when(length > _LARGE_BYTES, length)), F.lit(0))
    largest = F.coalesce(F.max(length), F.lit(0))
    frames = F.array_union(F.collect_set("framing.key"), F.collect_set("framing.value"))
    return F.struct(
        F.sort_array(F.collect_set("key_schema")).alias("keys"),
        F.sort_array(F.collect_set("value_schema")).alias("values"),
        frames.alias("frames"),
        F.coalesce(F.sum(keys_and_values + header_bytes(F.col("headers"))), F.lit(0)).alias("bytes"),
        F.when(of_large > _FEW_BYTES, largest).otherwise(F.least(largest, F.lit(_LARGE_BYTES))).alias("largest"),
    )


@dataclass(frozen=True)
class BatchSchemas:
    """The schemas of a batch's records, and the columns that follow from them.

    Attributes:
        keys: the schemas of Kafka's keys, the last event's last.
        key_trees: the trees of the primary keys: of `keys`, or of columns of the row if the settings name them.
        values: in order of first use.
        layout_change: silver's columns.
    """

    table: str
    settings: TableConfig
    keys: list[WriterSchema]
    key_trees: list[Tree]
    values: list[WriterSchema]
    frames: Collection[str]
    layout_change: LayoutChange

    @cached_property
    def defaulted(self) -> list[str]:
        """The source columns whose nulls arrive as their default."""
        names = {name for schema in self.values for name in columns_that_lose_nulls(schema.text)}
        return sorted(name for name in names if self.layout.column_mapping.target(name) is not None)

    @property
    def layout(self) -> Layout:
        return self.layout_change.layout

    @cached_property
    def large(self) -> dict[str, str]:
        """The columns that an event may omit, with their types."""
        nulls = self.settings.envelope.null_means_unchanged
        sources = {source for schema in self.values for source in (*self.large_in(schema), *nulls)}
        names = {name for source in sources for name in self.layout.of_source(source)} - self.layout.keys.keys()
        return {name: kind for name, kind in self.layout.columns.items() if name in names}

    def large_in(self, schema: WriterSchema) -> list[str]:
        """The source columns that an event with this value schema may omit."""
        nulls = self.null_columns(schema)
        return [name for name, tree in row_fields(schema.tree).items() if name in nulls or can_be_unavailable(tree)]

    def null_columns(self, schema: WriterSchema) -> set[str]:
        """The source columns whose null may mean that the value was not sent."""
        columns = row_fields(schema.tree)
        if is_partial_update(schema.tree, F.lit(None)) is not None:
            return set(columns)
        nulls = self.settings.envelope.null_means_unchanged
        return {name for name, tree in columns.items() if name in nulls or is_cell(non_null(tree))}

    def progress_fields(self, defaulted: Collection[str] = ()) -> dict[str, Any]:
        """The fields of silver's progress that describe its columns.

        Args:
            defaulted: the columns already recorded there as having nulls that arrive as defaults.
        """
        return {
            "keys": tuple(sorted(self.layout.keys)),
            "variants": dict(self.layout.variants),
            "retired": tuple(sorted(self.layout_change.retired)),
            "defaulted": tuple(sorted({*defaulted, *self.defaulted})),
        }

    def with_key(self, silver: DataFrame) -> DataFrame:
        """Rows of silver with `__key`, the canonical text of their key."""
        tree, target = self.key_trees[-1], self.layout.column_mapping.target
        columns = {source: F.col(quoted(target(source) or source)) for source in key_fields(tree)}
        return silver.withColumn(KEY, canonical_text(tree, columns))
