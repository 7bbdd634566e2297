"""Literals that change with each batch but do not change Spark's generated code."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def of_batch(number: int, column: Column) -> Column:
    """A number that differs between batches; bigint, the same in each row.

    Spark inlines literal numbers in generated code, and finds compiled plans by that code. With a plain literal, each
    batch would compile its plans again. Arrays are only referenced by the code.

    Args:
        column: any column that is not a literal, so that Spark does not fold the expression to a constant.
    """
    return F.get(F.array(F.lit(number).cast("bigint")), F.hash(column) % 1)
