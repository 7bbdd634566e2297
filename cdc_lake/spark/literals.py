"""Numbers that each batch has of its own, in plans whose generated code is the same for all."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def of_batch(number: int, column: Column) -> Column:
    """A number that the next batch has otherwise; bigint, the same in each row.

    Spark writes literal numbers into the code that it generates, and knows a plan that is compiled already by that
    code: each batch would compile its plans, and warm them up, anew. To an array the code only refers.

    Args:
        column: any column of the rows that is no literal, so that Spark does not work the number out beforehand.
    """
    return F.get(F.array(F.lit(number).cast("bigint")), F.hash(column) % 1)
