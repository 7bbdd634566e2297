"""Events that a condition on their row turns into deletes (`merge.apply_as_deletes`)."""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_lake.errors import ConfigError
from cdc_lake.runs.errors import first_line
from cdc_lake.spark.user_sql import refuse_query

_OF_ROWS = ("row", "unavailable")


def with_deletes(events: DataFrame, condition: str, table: str) -> DataFrame:
    """Turn events whose row meets a condition into deletes.

    Args:
        events: `events()`' columns.
        condition: SQL on silver's columns; null counts as not met.
        table: its name, for messages.

    Columns out: those of `events`.

    Raises:
        ConfigError: the condition is not valid for the table's columns.
    """
    rows = events.select(F.struct(*events.columns).alias("__event"), "row.*")
    try:
        refuse_query(rows, condition, f"{table}: merge.apply_as_deletes")
        met = rows.withColumn("__is_met", F.coalesce(F.expr(condition).cast("boolean"), F.lit(False)))
    except PySparkException as exc:
        raise ConfigError(
            f"{table}: merge.apply_as_deletes", f"Spark says: {first_line(exc)}", "fix it in this table's settings"
        ) from exc
    event = F.col("__event")
    is_met = F.col("__is_met") & event["row"].isNotNull()
    own = {name: F.when(~is_met, event[name]) for name in _OF_ROWS}
    own["op"] = F.when(is_met, "d").otherwise(event["op"])
    return met.select(*(own.get(name, event[name]).alias(name) for name in events.columns))
