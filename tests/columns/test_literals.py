"""No batch compiles another batch's plans again, or builds its expressions again."""

from collections.abc import Callable, Iterator
from datetime import date

import pytest
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from support.events import Topic
from support.lake import decided, in_log_order

from cdc_lake.bronze.decide import bronze_rows
from cdc_lake.bronze.log_order import LastRecord
from cdc_lake.fold.stream import PIECES
from cdc_lake.silver.rows import INHERITED_COLUMNS, RowSchema, changes
from cdc_lake.spark.expressions import built_once, of_batch

pytestmark = pytest.mark.core

Plan = Callable[[SparkSession, int], DataFrame]


@pytest.fixture
def compiling(spark: SparkSession) -> Iterator[SparkSession]:
    """The tests' session, with plans compiled as in the product."""
    compiled = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: str(spark.conf.get(name)) for name in compiled}
    for name, value in compiled.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def generated(rows: DataFrame) -> list[str]:
    rows.collect()  # plans after an exchange are made only when it has run
    parts = rows._jdf.queryExecution().debug().codegenToSeq()
    return [parts.apply(number)._2() for number in range(parts.size())]


def in_bronze(spark: SparkSession, batch: int) -> DataFrame:
    topic = Topic({"name": "string"})
    records = [topic.change("c", 1, {"name": "x"}), topic.tombstone(1)]
    rows = in_log_order(decided(spark, topic.registry, records), {0: LastRecord(batch, batch)})
    return bronze_rows(rows, batch=batch, generation=0, ingest_date=date(2026, 1, 1))


def in_the_fold(spark: SparkSession, batch: int) -> DataFrame:
    row_schema = RowSchema(("id",), ("id", "n"), stored=frozenset({"id", "n"}), large=(), keep_values=True)
    given = {
        "has_row": F.lit(True),
        "is_changed": F.lit(True),
        "key": F.col("id").cast("string"),
        "pk": F.struct("id"),
        "row": F.struct(F.lit(None).cast("int").alias("n")),
        INHERITED_COLUMNS: F.array().cast("array<string>"),
    }
    nothing = {one.name: F.lit(None).cast(one.dataType) for one in from_arrow_schema(PIECES)}
    rows = spark.range(3).select(*(column.alias(name) for name, column in (nothing | given).items()))
    return changes(rows, row_schema, batch=batch).rows


@pytest.mark.parametrize("plan", [in_bronze, in_the_fold])
def test_two_batches_generate_the_same_code(compiling: SparkSession, plan: Plan) -> None:
    code = generated(plan(compiling, 1_234_567))

    assert code
    assert code == generated(plan(compiling, 1_234_568))
    assert not any("1234567" in part for part in code)


def test_batch_number_is_equal_in_all_rows_and_not_in_the_code(compiling: SparkSession) -> None:
    def numbered(column: Column) -> DataFrame:
        return compiling.range(3).withColumn("batch", column)

    mine, plain = numbered(of_batch(1_234_567, F.col("id"))), numbered(F.lit(1_234_567))

    assert [tuple(row) for row in mine.collect()] == [(number, 1_234_567) for number in range(3)]
    assert "1234567" not in "".join(generated(mine))
    assert "1234567" in "".join(generated(plain))


def test_columns_are_built_once_per_argument_and_context(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[str, int]] = []

    @built_once
    def column(name: str, *, number: int) -> list[str]:
        built.append((name, number))
        return [name]

    assert column("a", number=1) is column("a", number=1)
    column("a", number=2)
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    column("a", number=1)

    assert built == [("a", 1), ("a", 2), ("a", 1)]
