"""Expressions that Spark builds or compiles once, and not for each batch again."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from pyspark import SparkContext
from pyspark.sql import Column
from pyspark.sql import functions as F

P = ParamSpec("P")
T = TypeVar("T")


def built_once(build: Callable[P, T]) -> Callable[P, T]:
    """Keep the columns that a function builds, by its arguments, for later batches and other tables.

    Each part of an expression takes a call to the JVM and another one to release it: 0.2 ms, and a small batch has
    thousands of parts. Most of them are the same in each batch.

    Args:
        build: a function of hashable arguments.
    """

    @lru_cache(maxsize=128)
    def built(context: SparkContext | None, *arguments: P.args, **options: P.kwargs) -> T:
        return build(*arguments, **options)

    @wraps(build)
    def found(*arguments: P.args, **options: P.kwargs) -> T:
        return built(SparkContext._active_spark_context, *arguments, **options)  # type: ignore[arg-type]

    return found


def of_batch(number: int, column: Column) -> Column:
    """A number that differs between batches; bigint, the same in each row.

    Spark inlines literal numbers in generated code, and finds compiled plans by that code. With a plain literal, each
    batch would compile its plans again. Arrays are only referenced by the code.

    Args:
        column: any column that is not a literal, so that Spark does not fold the expression to a constant.
    """
    return F.get(F.array(F.lit(number).cast("bigint")), F.hash(column) % 1)
