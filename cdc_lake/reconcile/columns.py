"""Which columns of a table are compared, and why the others are not."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.types import StructField, StructType

from cdc_lake.columns import SILVER_META
from cdc_lake.errors import UnsupportedError
from cdc_lake.reconcile.canonical import Key, Rule, rule, split
from cdc_lake.reconcile.catalogue import Column, Table, is_of_other_calendar, loss_of_key

Holding = Callable[[str], Sequence[str]]
"""The columns of silver that hold a source column's values, by its name in the lake: in several where values of another
type stand beside; in none where it is left out or has not come yet."""


class Cell(NamedTuple):
    """A value that is another in silver, as `catalogue.Table.loss` takes it."""

    column: str
    source: object
    lake: object
    kind: str = "cell"
    key: None = None


@dataclass(frozen=True)
class SharedColumn:
    """A column that both sides hold.

    Attributes:
        held: by name the columns of silver that its values are in, each in one of them.
    """

    column: Column
    held: Mapping[str, Rule]

    @property
    def rule(self) -> Rule:
        """How the source's values become texts, and these are read: the same for all that hold them."""
        return next(iter(self.held.values()))


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
        return {column.name: "null" if value is None else str(value) for column, value in self._parts(key)}

    def may_be_another_key(self, key: Key) -> bool:
        """Whether a key of the source may be sent as another row's."""
        return any(is_of_other_calendar(column, value) for column, value in self._parts(key))

    def loss_of(self, key: Key) -> str | None:
        """The kind of loss that explains why silver has no row of a key."""
        return loss_of_key(self._parts(key))

    def _parts(self, key: Key) -> Iterator[tuple[Column, object]]:
        texts = split(key) if len(self.key) > 1 and isinstance(key, str) else (str(key),)
        for one, text in zip(self.key, texts, strict=True):
            yield one.column, None if text is None else one.rule.read(text)


def shared_columns(
    table: Table, silver: StructType, keys: Collection[str], holding: Holding
) -> tuple[Shared, Mapping[str, str]]:
    """What both sides hold, and by name why a column is not compared.

    Args:
        table: of the source.
        silver: its columns there.
        keys: silver's names of those that are the key.
        holding: which of them hold a column of the source.

    Raises:
        UnsupportedError: the key is not among what can be compared.
    """
    compared: list[SharedColumn] = []
    reasons: dict[str, str] = {}
    others = {field.name for field in silver} - SILVER_META.keys()
    for column in table.columns:
        fields = [silver[name] for name in holding(column.lake_name)]
        others.difference_update(field.name for field in fields)
        rules = {field.name: rule(column, field.dataType) for field in fields if column.is_sent}
        held = {name: found for name, found in rules.items() if found}
        # One text in the source for each of its values, whichever column of silver has it.
        if held and len(held) == len(fields) and len({found.source for found in held.values()}) == 1:
            compared.append(SharedColumn(column, held))
        else:
            reasons[column.name] = _reason(table, column, fields)
    reasons |= dict.fromkeys(sorted(others), "the source does not have it")
    key = [one for one in compared if not one.held.keys().isdisjoint(keys)]
    if not key or len(key) < len(keys):
        raise UnsupportedError(
            table.place,
            f"silver's key ({', '.join(sorted(keys))}) is not of columns that can be compared",
            "compare another table",
        )
    return Shared(table, key, [one for one in compared if one not in key]), reasons


def _reason(table: Table, column: Column, fields: Sequence[StructField]) -> str:
    loss = table.loss(Cell(column.name, None, None, kind="column"))
    if loss or not fields:
        return loss or "silver does not have it"
    kind = f"{column.type}[]" if column.is_array else column.type
    held = " and ".join(field.dataType.simpleString() for field in fields)
    return f"silver holds it as {held}, the source as {kind}"
