"""What a table may be partitioned by: an expression of one of its columns."""

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
        column: of the source.
        part: what of its value: all of it, a date's, or one of so many `buckets`.
    """

    column: str
    part: Part = "value"
    buckets: int = 0

    @classmethod
    def parse(cls, expression: str) -> "PartitionField":
        """Read an expression.

        Raises:
            ValueError: it is none.
        """
        found = _EXPRESSION.fullmatch(expression.strip())
        if found is None:
            raise ValueError(
                f"`{expression}` is none of: a column, year(column), month(column), day(column), hour(column), "
                "bucket(number, column)"
            )
        if found["value"]:
            return cls(found["value"])
        if found["buckets"]:
            return cls(found["spread"], "bucket", int(found["buckets"]))
        return cls(found["moment"], cast(Part, found["part"]))

    @property
    def name(self) -> str:
        """The column of the table that holds it."""
        parts = {"value": "", "bucket": f"_bucket_{self.buckets}"}
        return f"{_PREFIX}{self.column}{parts.get(self.part, f'_{self.part}')}"


def joint_name(fields: Iterable[PartitionField]) -> str:
    """The column that holds all of them, in tables that have one level only."""
    return _PREFIX + "_".join(field.name.removeprefix(_PREFIX) for field in fields)
