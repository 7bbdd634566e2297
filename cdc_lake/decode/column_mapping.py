"""Which silver column takes a source column (`schema.exclude`, `rename`, `cast`), and names that no table can have."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from cdc_lake.columns import DELETE, HUDI_PREFIX, ICEBERG_NAMES, KEEP, KEY, SILVER_META, name_problem
from cdc_lake.decode.schemas import SchemaError, Tree, field_names
from cdc_lake.errors import ConfigError

RENAME_OR_EXCLUDE = "rename it with `schema.rename`, or exclude it with `schema.exclude`"
_RESERVED = frozenset((*SILVER_META, KEY, KEEP, DELETE))


def variant_name(name: str, kind: str, reserved: Collection[str]) -> str:
    """The name of the variant column of `name` for values of another type.

    Args:
        reserved: names that it must not have, regardless of case.
    """
    variant = f"{name}__{re.sub(r'[^A-Za-z0-9]+', '_', kind).strip('_')}"
    lower = {other.lower() for other in reserved}
    while variant.lower() in lower:
        variant += "_"
    return variant


@dataclass(frozen=True)
class ColumnMapping:
    """The mapping from source columns to silver's, by the settings and the engine.

    Attributes:
        excluded: source columns that silver does not have.
        renamed: source column -> target column.
        cast: target column -> the Spark type set for it.
        stored_type: from a Spark type to the one in which the table stores it.
    """

    excluded: Collection[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    cast: Mapping[str, str] = field(default_factory=dict)
    stored_type: Callable[[str], str] = str

    def target(self, source: str) -> str | None:
        """The target column of a source column; none if it is excluded."""
        return None if source in self.excluded else self.renamed.get(source, source)

    def target_types(self, table: str, columns: Mapping[str, str]) -> dict[str, str]:
        """The target columns of a schema's columns, and the types of their values.

        Raises:
            ConfigError: two of them have the same target.
        """
        types: dict[str, str] = {}
        for source, kind in columns.items():
            target = self.target(source)
            if target in types:
                raise ConfigError(
                    f"{table}.{target}",
                    f"`schema.rename` maps `{source}` and another column to it",
                    "use another name in `schema.rename`",
                )
            if target is not None:
                types[target] = self.type_of(target, kind)
        return types

    def check(self, columns: Mapping[str, Tree], formats: Collection[str]) -> None:
        """Check that a table can have a schema's columns.

        Args:
            formats: the formats of the topic's silver tables.

        Raises:
            SchemaError: it cannot.
        """
        sources: dict[str, str] = {}
        for source, tree in columns.items():
            target = self.target(source)
            if target is None:
                continue
            if target in sources:
                raise SchemaError(f"`schema.rename` maps `{sources[target]}` and {source!r} to one column, `{target}`")
            sources[target] = source
            if problem := column_problem(target, formats):
                raise SchemaError(f"{problem}; {RENAME_OR_EXCLUDE}")
            if problem := next(filter(None, (name_problem(name, formats) for name in field_names(tree))), None):
                raise SchemaError(
                    f"{problem}; exclude the column {source!r} with `schema.exclude`: renaming cannot help"
                )

    def key(self, columns: Mapping[str, str]) -> dict[str, str]:
        """The target columns of a key's columns, and the types of their values."""
        return {target: self.type_of(target, kind) for name, kind in columns.items() if (target := self.target(name))}

    def type_of(self, target: str, kind: str) -> str:
        """The type in which a target column stores values of a type."""
        return self.stored_type(self.cast.get(target, kind))


def column_problem(name: str, formats: Collection[str] = ()) -> str | None:
    """Why silver cannot have a column of this name; none if it can."""
    if name in _RESERVED or name.startswith(HUDI_PREFIX):
        return f"`{name}` is the name of one of cdc_lake's own columns, or of Hudi's"
    if "iceberg" in formats and name in ICEBERG_NAMES:
        return f"`{name}` is the name of one of Iceberg's own columns"
    return name_problem(name, formats)
