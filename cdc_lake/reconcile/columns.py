"""Which columns of a table are compared, and why the others are not."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.types import StructField, StructType

from cdc_lake.columns import SILVER_META
from cdc_lake.errors import UnsupportedError
from cdc_lake.reconcile.canonical import Key, Rule, rule, split
from cdc_lake.reconcile.catalogue import Column, Table


def held_in(column: Column, silver: StructType) -> StructField | None:
    """The column of silver that holds a column of the source: the one of its name in the lake."""
    return next((field for field in silver if field.name == column.lake_name), None)


class Cell(NamedTuple):
    """A value that is another in silver, as `catalogue.Table.loss` takes it."""

    column: str
    source: object
    lake: object
    kind: str = "cell"


@dataclass(frozen=True)
class SharedColumn:
    """A column that both sides hold.

    Attributes:
        held_as: its name in silver.
    """

    column: Column
    held_as: str
    rule: Rule


@dataclass(frozen=True)
class Shared:
    """What of a table can be compared.

    Attributes:
        key: the columns that tell rows apart.
        others: the other columns.
    """

    table: Table
    key: Sequence[SharedColumn]
    others: Sequence[SharedColumn]

    @property
    def has_number_as_key(self) -> bool:
        """Whether keys are whole numbers, and so are compared as such."""
        (first, *more) = (one.column for one in self.key)
        return not more and not first.is_array and first.type in ("int2", "int4", "int8")

    def key_values(self, key: Key) -> dict[str, str]:
        """A key as a person reads it: by column the value's text."""
        texts = split(key) if len(self.key) > 1 and isinstance(key, str) else (str(key),)
        return {
            one.column.name: "null" if text is None else str(one.rule.read(text))
            for one, text in zip(self.key, texts, strict=True)
        }


def shared_columns(table: Table, silver: StructType, keys: Collection[str]) -> tuple[Shared, Mapping[str, str]]:
    """What both sides hold, and by name why a column is not compared.

    Args:
        table: of the source.
        silver: its columns there.
        keys: silver's names of those that are the key.

    Raises:
        UnsupportedError: the key is not among what can be compared.
    """
    compared: list[SharedColumn] = []
    reasons: dict[str, str] = {}
    others = {field.name for field in silver} - SILVER_META.keys()
    for column in table.columns:
        field = held_in(column, silver)
        others.discard(field.name if field else "")
        found = rule(column, field.dataType) if field and column.is_sent else None
        if field and found:
            compared.append(SharedColumn(column, field.name, found))
        else:
            reasons[column.name] = _reason(table, column, field)
    reasons |= dict.fromkeys(sorted(others), "the source does not have it")
    key = [one for one in compared if one.held_as in keys]
    if not key or len(key) < len(keys):
        raise UnsupportedError(
            table.place,
            f"silver's key ({', '.join(sorted(keys))}) is not of columns that can be compared",
            "compare another table",
        )
    return Shared(table, key, [one for one in compared if one.held_as not in keys]), reasons


def _reason(table: Table, column: Column, field: StructField | None) -> str:
    loss = table.loss(Cell(column.name, None, None, kind="column"))
    if loss or field is None:
        return loss or "silver does not have it"
    kind = f"{column.type}[]" if column.is_array else column.type
    return f"silver holds it as {field.dataType.simpleString()}, the source as {kind}"
