"""Typed `before` and `after` columns in bronze, for users who query bronze with SQL. cdc_lake never reads them.

A column whose type changed has a second field, `<name>__<type>`. Characters that column names cannot have become
`_`. The metadata of each field names its source column, under `SOURCE_COLUMN`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, _parse_datatype_string

from cdc_lake.columns import name_problem
from cdc_lake.decode.column_mapping import variant_name
from cdc_lake.decode.trees import Tree
from cdc_lake.decode.types import plain_type, type_mapping

SOURCE_COLUMN = "cdc_lake.column"


@dataclass(frozen=True)
class TypedRow:
    """The fields of a typed row.

    Attributes:
        fields: name -> source column and its type, in order.
    """

    fields: Mapping[str, tuple[str, str]]

    @classmethod
    def stored(cls, bronze: StructType) -> "TypedRow":
        """The fields that bronze has."""
        struct = next((field.dataType for field in bronze.fields if field.name == "after"), None)
        inner = struct.fields if isinstance(struct, StructType) else []
        return cls({f.name: (f.metadata.get(SOURCE_COLUMN, f.name), f.dataType.simpleString()) for f in inner})

    def with_columns(self, columns: Mapping[str, Tree]) -> "TypedRow":
        """These fields and those that a schema's columns add."""
        found = dict(self.fields)
        for name, tree in columns.items():
            kind = type_mapping(tree).type
            if self._field(found, name, kind) is None:
                taken = {other.lower() for other in found}
                plain = name if name_problem(name) is None else re.sub(r"\W", "_", name) or "_"
                found[plain if plain.lower() not in taken else variant_name(plain, kind, taken)] = name, kind
        return TypedRow(found)

    def of(self, columns: Mapping[str, Tree], row: Column) -> Column:
        """A row as a struct of these fields; null if there is no row.

        Args:
            columns: those of the row's schema.
            row: the struct with these columns, from `from_avro`.
        """
        values = {}
        for name, tree in columns.items():
            rule = type_mapping(tree)
            values[self._field(self.fields, name, rule.type)] = rule.convert(row[name])
        parts = [values.get(field, F.lit(None)).alias(field) for field in self.fields]
        return F.when(row.isNotNull(), F.struct(*parts)).cast(self.type)

    @property
    def type(self) -> StructType:
        """The struct's type, with the fields' metadata."""
        return StructType(
            [
                StructField(name, _parse_datatype_string(kind), True, {SOURCE_COLUMN: column})
                for name, (column, kind) in self.fields.items()
            ]
        )

    @staticmethod
    def _field(fields: Mapping[str, tuple[str, str]], name: str, kind: str) -> str | None:
        return next(
            (f for f, (column, k) in fields.items() if column == name and plain_type(k) == plain_type(kind)), None
        )
