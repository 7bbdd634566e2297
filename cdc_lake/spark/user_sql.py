"""Check the SQL of settings and models, which must not start programs or read files.

Sessions have no functions that call Java, which could read secrets from the environment, and do not substitute
`${env:NAME}` (`cdc_lake.spark.session`).
"""

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.errors import CdcLakeError, ConfigError

_SCRIPT = "ScriptTransformation"


def parser(session: SparkSession) -> Any:
    """Spark's SQL parser in the JVM."""
    return session._jsparkSession.sessionState().sqlParser()


def starts_a_program(plan: Any) -> bool:
    """Whether a parsed query has `TRANSFORM … USING` or Hive's syntax for it, which run a command on executors."""
    return any(node.nodeName() == _SCRIPT for node in _nodes(plan))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for inner in (plan.children(), plan.innerChildren()):  # inner: subqueries in expressions and WITH
        for number in range(inner.size()):
            yield from _nodes(inner.apply(number))


def refuse_query(rows: DataFrame, expression: str, where: str, error: type[CdcLakeError] = ConfigError) -> None:
    """Check that an expression on columns has no subquery, which could read files and start programs.

    Raises:
        CdcLakeError: it has one; of the class `error`.
        ParseException: it is not an expression.
    """
    patterns = rows.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]
    if parser(rows.sparkSession).parseExpression(expression).containsPattern(patterns.PLAN_EXPRESSION()):
        raise error(where, "the expression contains a subquery", "use only the table's columns")


def checked_expression(rows: DataFrame, expression: str, where: str) -> Column:
    """A setting's expression as a column.

    Args:
        rows: the rows with the columns that it may use.
        where: the setting, for messages.

    Raises:
        ConfigError: it is not valid for these columns, or has a subquery.
    """
    try:
        refuse_query(rows, expression, where)
        found = F.expr(expression)
        rows.select(found)
    except PySparkException as exc:
        raise ConfigError(where, f"Spark says: {first_line(exc)}", "fix it in this table's settings") from exc
    return found


def first_line(error: Exception) -> str:
    """The first line of Spark's message, without the line that py4j adds."""
    message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return ((message or "").strip() or type(error).__name__).splitlines()[0][:300]
