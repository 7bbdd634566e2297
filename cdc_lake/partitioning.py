"""Partition expressions, as `partition_by` takes them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

Part = Literal["value", "year", "month", "day", "hour", "bucket"]

_PREFIX = "partition_"
_EXPRESSION = re.compile(
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
        found = _EXPRESSION.fullmatch(expression.strip())
        if found is None:
            raise ValueError(
                f"invalid partition expression `{expression}`; write a column, year(column), month(column), "
                "day(column), hour(column) or bucket(number, column)"
            )
        if found["value"]:
            return cls(found["value"])
        if found["buckets"]:
            return cls(found["spread"], "bucket", int(found["buckets"]))
        return cls(found["moment"], cast(Part, found["part"]))

    @property
    def name(self) -> str:
        """Name of the table's partition column."""
        parts = {"value": "", "bucket": f"_bucket_{self.buckets}"}
        return f"{_PREFIX}{self.column}{parts.get(self.part, f'_{self.part}')}"


def joint_name(fields: Iterable[PartitionField]) -> str:
    """Name of the single partition column that combines `fields`, in tables with one partition level."""
    return _PREFIX + "_".join(field.name.removeprefix(_PREFIX) for field in fields)
