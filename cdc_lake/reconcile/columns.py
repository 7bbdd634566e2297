"""Select the columns of a table that can be compared."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.types import StructField, StructType

from cdc_lake.columns import SILVER_META
from cdc_lake.errors import UnsupportedError
from cdc_lake.reconcile.canonical import Key, Rule, rule, split_texts
from cdc_lake.reconcile.postgres_catalog import SourceColumn, SourceTable, is_of_other_calendar, loss_of_key

SilverColumns = Callable[[str], Sequence[str]]
"""Source column, by its name in the lake -> its columns in silver: several with variant columns, none if it is excluded
or has not arrived yet."""


class Cell(NamedTuple):
    """A value that differs in silver; see `postgres_catalog.LossCandidate`."""

    column: str
    source: object
    lake: object
    kind: str = "cell"
    key: None = None


@dataclass(frozen=True)
class SharedColumn:
    """A column that both sides have.

    Attributes:
        rules: its columns in silver -> the rules for their values. Each value is in one of them.
    """

    column: SourceColumn
    rules: Mapping[str, Rule]

    @property
    def rule(self) -> Rule:
        """The rule for the source's values, which is the same for all columns of silver."""
        return next(iter(self.rules.values()))


@dataclass(frozen=True)
class Shared:
    """The columns of a table that are compared.

    Attributes:
        key: the key columns.
        others: the other columns.
    """

    table: SourceTable
    key: Sequence[SharedColumn]
    others: Sequence[SharedColumn]

    @property
    def has_number_as_key(self) -> bool:
        """Whether keys are single integers, which are compared as numbers."""
        (first, *more) = (one.column for one in self.key)
        return not more and not first.is_array and first.type in ("int2", "int4", "int8")

    def key_values(self, key: Key) -> dict[str, str]:
        """A key for display: column -> text of its value."""
        return {column.name: "null" if value is None else str(value) for column, value in self._parts(key)}

    def may_be_another_key(self, key: Key) -> bool:
        """Whether a key may be sent as another row's key."""
        return any(is_of_other_calendar(column, value) for column, value in self._parts(key))

    def loss_of(self, key: Key) -> str | None:
        """The kind of loss that explains a missing key."""
        return loss_of_key(self._parts(key))

    def _parts(self, key: Key) -> Iterator[tuple[SourceColumn, object]]:
        texts = split_texts(key) if len(self.key) > 1 and isinstance(key, str) else (str(key),)
        for one, text in zip(self.key, texts, strict=True):
            yield one.column, None if text is None else one.rule.read(text)


def shared_columns(
    table: SourceTable, silver: StructType, keys: Collection[str], columns_in_silver: SilverColumns
) -> tuple[Shared, Mapping[str, str]]:
    """The columns to compare, and why others are not compared, by name.

    Args:
        table: the source's table.
        silver: silver's columns.
        keys: names of the key columns in silver.
        columns_in_silver: maps a source column to its columns in silver.

    Raises:
        UnsupportedError: a key column cannot be compared.
    """
    compared: list[SharedColumn] = []
    reasons: dict[str, str] = {}
    others = {field.name for field in silver} - SILVER_META.keys()
    for column in table.columns:
        fields = [silver[name] for name in columns_in_silver(column.lake_name)]
        others.difference_update(field.name for field in fields)
        rules = {field.name: rule(column, field.dataType) for field in fields if column.is_sent}
        known = {name: found for name, found in rules.items() if found}
        # The source's text of a value must not depend on the column of silver that has it.
        if known and len(known) == len(fields) and len({found.source for found in known.values()}) == 1:
            compared.append(SharedColumn(column, known))
        else:
            reasons[column.name] = _reason(table, column, fields)
    reasons |= dict.fromkeys(sorted(others), "the source does not have it")
    key = [one for one in compared if not one.rules.keys().isdisjoint(keys)]
    if not key or len(key) < len(keys):
        raise UnsupportedError(
            table.place,
            f"a column of silver's key ({', '.join(sorted(keys))}) cannot be compared",
            "exclude this table from the comparison",
        )
    return Shared(table, key, [one for one in compared if one not in key]), reasons


def _reason(table: SourceTable, column: SourceColumn, fields: Sequence[StructField]) -> str:
    loss = table.loss(Cell(column.name, None, None, kind="column"))
    if loss or not fields:
        return loss or "silver does not have it"
    kind = f"{column.type}[]" if column.is_array else column.type
    types = " and ".join(field.dataType.simpleString() for field in fields)
    return f"silver stores it as {types}, the source as {kind}"
