"""Check the SQL of settings and models, which must not start programs or read files; and the expectations in it.

Sessions have no functions that call Java, which could read secrets from the environment, and do not substitute
`${env:NAME}` (`cdc_lake.spark.session`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import KAFKA
from cdc_lake.config import Expectation
from cdc_lake.errors import CdcLakeError, ConfigError, ExpectationError
from cdc_lake.runs.report import TableReport

UNMET = "unmet"
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


def checked_expression(rows: DataFrame, expression: str, where: str, *, kind: str | None = None) -> Column:
    """A setting's expression as a column.

    Args:
        rows: the rows with the columns that it may use.
        where: the setting, for messages.
        kind: the type that it must have or be cast to.

    Raises:
        ConfigError: it is not valid for these columns, has a subquery, or has another type.
    """
    try:
        refuse_query(rows, expression, where)
        column = F.expr(expression) if kind is None else F.expr(expression).cast(kind)
        rows.withColumn("__checked", column)  # `select` would accept an aggregate of all rows
    except PySparkException as exc:
        raise ConfigError(where, f"Spark says: {first_line(exc)}", "fix it in this table's settings") from exc
    return column


def first_line(error: Exception) -> str:
    """The first line of Spark's message, without the line that py4j adds."""
    message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return ((message or "").strip() or type(error).__name__).splitlines()[0][:300]


def is_met(expectation: Expectation) -> Column:
    """Whether a row meets an expectation. A null condition is met."""
    return F.coalesce(F.expr(expectation.holds), F.lit(True))


def check_expectations(report: TableReport, expectations: Sequence[Expectation], unmet: Mapping[str, int]) -> None:
    """Report how many rows do not meet each expectation.

    Raises:
        ExpectationError: rows do not meet an expectation with `on_fail: stop`.
    """
    for expectation in expectations:
        number = unmet[expectation.name]
        report.unmet[expectation.name] = report.unmet.get(expectation.name, 0) + number
        if not number:
            continue
        what = f"{number} rows do not meet the expectation `{expectation.name}`: {expectation.holds}"
        if expectation.on_fail == "stop":
            cure = "the commit was aborted; fix the rows at the source, or set `on_fail` to warn or reject"
            raise ExpectationError(report.table, what, cure)
        report.warn(f"{what}{'; they are rejected' if expectation.on_fail == 'reject' else ''}")


def with_unmet(events: DataFrame, expectations: Sequence[Expectation], table: str) -> DataFrame:
    """The events that do not meet all expectations.

    Args:
        events: the columns of `events()`. Events without a row, and conditions on unavailable values, are not checked.

    Columns out: `key`, `__kafka`, `unmet` array<string>, the names of the expectations.

    Raises:
        ConfigError: a condition does not fit the table's columns.
    """
    rows = events.where(F.col("row").isNotNull()).select(
        F.struct("key", KAFKA, "unavailable").alias("__event"), "row.*"
    )
    unmet = [F.when(~_met_or_unknown(rows, one, table), one.name) for one in expectations]
    checks = rows.select(F.col("__event.key"), F.col(f"__event.{KAFKA}"), F.array_compact(F.array(*unmet)).alias(UNMET))
    return checks.where(F.size(UNMET) > 0)


def _met_or_unknown(rows: DataFrame, expectation: Expectation, table: str) -> Column:
    try:
        refuse_query(rows, expectation.holds, f"{table}: {expectation.name}")
        plan = rows.where(expectation.holds)._jdf.queryExecution().analyzed()
    except PySparkException as exc:
        cure = "fix `quality.expectations` in this table's settings"
        raise ConfigError(f"{table}: {expectation.name}", f"Spark says: {first_line(exc)}", cure) from exc
    read = plan.condition().references().toSeq()
    names = F.array(*(F.lit(read.apply(number).name()) for number in range(read.size())))
    return is_met(expectation) | F.arrays_overlap(F.col("__event.unavailable"), names.cast("array<string>"))
