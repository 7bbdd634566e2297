"""Case T6: a connector without a placeholder for a column's type sends null for what it did not send."""

import json

from events import PLACEHOLDER, decimal
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.events.schemas import parse
from cdc_lake.events.unavailable import unavailable

NUMBERS = {"type": "array", "items": decimal(4, 2)}
FIELDS = {name: parse(json.dumps(kind)) for name, kind in {"n": "int", "body": "string", "numbers": NUMBERS}.items()}
ROWS = [(0, 1, "x"), (1, None, None), (2, 2, PLACEHOLDER)]


def not_sent(spark: SparkSession, null_means_keep: tuple[str, ...]) -> list[list[str]]:
    """Of each row the names of the columns that were not sent; `numbers` is null in all of them."""
    rows = spark.createDataFrame(ROWS, "place int, n int, body string").withColumn(
        "numbers", F.lit(None).cast("array<decimal(4,2)>")
    )
    found = rows.select("place", unavailable(FIELDS, F.struct("n", "body", "numbers"), PLACEHOLDER, null_means_keep))
    return [names for _, names in sorted(found.collect())]


def test_a_null_is_a_value_unless_it_is_said_to_mean_not_sent(spark: SparkSession) -> None:
    assert not_sent(spark, ()) == [[], [], ["body"]]


def test_a_null_means_not_sent_in_the_columns_named_whatever_their_type(spark: SparkSession) -> None:
    assert not_sent(spark, ("n", "numbers")) == [["numbers"], ["n", "numbers"], ["body", "numbers"]]


def test_a_column_where_null_means_not_sent_still_knows_its_placeholder(spark: SparkSession) -> None:
    assert not_sent(spark, ("body",)) == [[], ["body"], ["body"]]


def test_a_name_that_is_no_column_of_the_row_is_passed_over(spark: SparkSession) -> None:
    assert not_sent(spark, ("gone",)) == [[], [], ["body"]]
