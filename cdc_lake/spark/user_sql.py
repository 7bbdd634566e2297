"""SQL that settings and models bring. It may compute, but start no program and read no file.

Functions that call Java, which could read the environment and with it secrets, are unknown to our sessions, and texts
as `${env:NAME}` stay as they are (`cdc_lake.spark.session`).
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cdc_lake.errors import CdcLakeError, ConfigError

_SCRIPT = "ScriptTransformation"


def parser(session: SparkSession) -> Any:
    """The JVM's parser of SQL."""
    return session._jsparkSession.sessionState().sqlParser()


def starts_a_program(plan: Any) -> bool:
    """Whether a parsed query has a `TRANSFORM … USING`, or Hive's words for it, which run a command on executors."""
    return any(node.nodeName() == _SCRIPT for node in _nodes(plan))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for inner in (plan.children(), plan.innerChildren()):  # the latter: queries in expressions, and those of WITH
        for number in range(inner.size()):
            yield from _nodes(inner.apply(number))


def refuse_query(rows: DataFrame, expression: str, where: str, error: type[CdcLakeError] = ConfigError) -> None:
    """See that an expression on columns has no query in it, which could read files and start programs.

    Raises:
        CdcLakeError: of the class `error`; it has one.
        ParseException: it is not an expression.
    """
    patterns = rows.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]
    if parser(rows.sparkSession).parseExpression(expression).containsPattern(patterns.PLAN_EXPRESSION()):
        raise error(where, "the expression has a query in it", "write it with the table's columns only")
