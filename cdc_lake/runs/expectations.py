"""Checks the expectations of tables and models on rows."""

from collections.abc import Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.columns import KAFKA
from cdc_lake.config import Expectation
from cdc_lake.errors import ConfigError, ExpectationError
from cdc_lake.runs.report import TableReport
from cdc_lake.spark.user_sql import first_line, refuse_query

UNMET = "unmet"


def is_met(expectation: Expectation) -> Column:
    """Whether a row meets an expectation. A null condition is met."""
    return F.coalesce(F.expr(expectation.holds), F.lit(True))


def check_expectations(done: TableReport, expectations: Sequence[Expectation], unmet: Mapping[str, int]) -> None:
    """Report how many rows do not meet each expectation.

    Raises:
        ExpectationError: rows do not meet an expectation with `on_fail: stop`.
    """
    for one in expectations:
        number = unmet[one.name]
        done.unmet[one.name] = done.unmet.get(one.name, 0) + number
        if not number:
            continue
        what = f"{number} rows do not meet the expectation `{one.name}`: {one.holds}"
        if one.on_fail == "stop":
            todo = "the commit was aborted; fix the rows at the source, or set `on_fail` to warn or reject"
            raise ExpectationError(done.table, what, todo)
        done.warn(f"{what}{'; they are rejected' if one.on_fail == 'reject' else ''}")


def with_unmet(events: DataFrame, expectations: Sequence[Expectation], table: str) -> DataFrame:
    """The events that do not meet all expectations.

    Args:
        events: the columns of `events()`. Events without a row, and conditions on unavailable values, are not checked.
        expectations: the expectations.
        table: the name of the table, for the message.

    Columns out: `key`, `__kafka`, `unmet` array<string>, the names of the expectations.

    Raises:
        ConfigError: a condition does not fit the table's columns.
    """
    rows = events.where(F.col("row").isNotNull()).select(
        F.struct("key", KAFKA, "unavailable").alias("__event"), "row.*"
    )
    unmet = [F.when(~_met_or_unknown(rows, one, table), one.name) for one in expectations]
    found = rows.select(F.col("__event.key"), F.col(f"__event.{KAFKA}"), F.array_compact(F.array(*unmet)).alias(UNMET))
    return found.where(F.size(UNMET) > 0)


def _met_or_unknown(rows: DataFrame, one: Expectation, table: str) -> Column:
    try:
        refuse_query(rows, one.holds, f"{table}: {one.name}")
        plan = rows.where(one.holds)._jdf.queryExecution().analyzed()
    except PySparkException as exc:
        todo = "fix `quality.expectations` in this table's settings"
        raise ConfigError(f"{table}: {one.name}", f"Spark says: {first_line(exc)}", todo) from exc
    read = plan.condition().references().toSeq()
    names = F.array(*(F.lit(read.apply(number).name()) for number in range(read.size())))
    return is_met(one) | F.arrays_overlap(F.col("__event.unavailable"), names.cast("array<string>"))
