"""Rules on columns, all cases in one DataFrame: planning takes longer than the rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F


class Case(NamedTuple):
    """A rule on one column, and its input.

    Attributes:
        type: the column's.
        rule: takes the column, and gives what is looked at.
        values: one a row.
    """

    type: str
    rule: Callable[[Column], Column]
    values: Sequence[Any]


def evaluated(spark: SparkSession, cases: Mapping[str, Case]) -> dict[str, list[Any]]:
    """The results of each case's rule for its values."""
    rows = range(max(len(case.values) for case in cases.values()))
    given = [(row, *(case.values[row] if row < len(case.values) else None for case in cases.values())) for row in rows]
    columns = [f"c{number} {case.type}" for number, case in enumerate(cases.values())]
    frame = spark.createDataFrame(given, ", ".join(["row int", *columns]))
    found = frame.select(
        "row", *(case.rule(F.col(f"c{number}")).alias(name) for number, (name, case) in enumerate(cases.items()))
    )
    by_row = sorted(found.collect(), key=lambda row: int(row["row"]))
    return {name: [row[name] for row in by_row[: len(case.values)]] for name, case in cases.items()}
