"""SQL of models and settings cannot read the environment or files, and cannot start programs."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from test_gold import PER_KIND, THING, THINGS, Lake

from cdc_lake.config import Expectation
from cdc_lake.errors import ConfigError
from cdc_lake.runs.user_sql import with_unmet
from cdc_lake.silver.commit import _derived
from cdc_lake.silver.events import with_deletes

pytestmark = pytest.mark.core

ENVIRONMENT = "'java.lang.System', 'getenv', 'HOME'"
QUERIES = {
    "reflect": f"SELECT kind, /* '' */ ReFlect({ENVIRONMENT}) AS x FROM thing",
    "java_method": f"SELECT kind, `java_method`({ENVIRONMENT}) AS x FROM thing",
    "qualified": f"SELECT kind, system.builtin.reflect({ENVIRONMENT}) AS x FROM thing",
    "transform": "SELECT TRANSFORM(kind) USING 'env' AS (kind) FROM thing",
    "within": "WITH a AS (SELECT TRANSFORM(kind) USING 'env' AS (kind) FROM thing) SELECT * FROM a",
    "nested": "SELECT kind, (SELECT max(v) FROM (FROM thing MAP kind USING 'env' AS (v))) AS v FROM thing",
    "file": "SELECT kind, (SELECT first(value) FROM text.`/etc/hostname`) AS v FROM thing",
}
REFUSED = ("UNRESOLVED_ROUTINE", "REQUIRES_SINGLE_PART_NAMESPACE", "TABLE_OR_VIEW_NOT_FOUND", "starts a program")
HARMLESS = "SELECT DISTINCT kind, '${env:HOME} reflect(TRANSFORM) ${system:user.home}' AS x FROM thing"
EXPRESSIONS = {
    "reflect": f"reflect({ENVIRONMENT}) = 'x'",
    "file": "(SELECT first(value) FROM text.`/etc/hostname`) = 'x'",
    "program": "EXISTS (SELECT TRANSFORM(1) USING 'env' AS (v))",
    "in": "id IN (SELECT 1)",
}


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, dict[str, tuple[str, str]]]:
    """All models at once; each one's status and message."""
    lake = Lake(spark, tmp_path_factory.mktemp("lake"))
    lake.fold(THING, THINGS, [(1, "a", None), (2, "b", None)])
    for name, sql in QUERIES.items():
        lake.model(name, sql)
    lake.model("harmless", HARMLESS)
    lake.model("fine", PER_KIND).write_text(
        f"-- name: fine\n-- keys: [kind]\n-- sources: {{thing: {THING}}}\n"
        f"-- expectations: [{{name: q, holds: kind IN (SELECT kind FROM thing)}}]\n{PER_KIND}\n"
    )
    report = lake.refresh()
    return lake, {
        table_report.table: (table_report.status, table_report.error.message if table_report.error else "")
        for table_report in report.tables
    }


@pytest.mark.parametrize("name", QUERIES)
def test_model_that_could_read_secrets_is_refused(name: str, made: tuple[Lake, dict[str, tuple[str, str]]]) -> None:
    status, message = made[1][name]

    assert status == "failed"
    assert f"{name}.sql: " in message
    assert any(words in message for words in REFUSED), message


def test_query_in_an_expectation_of_a_model_is_refused(made: tuple[Lake, dict[str, tuple[str, str]]]) -> None:
    status, message = made[1]["fine"]

    assert status == "failed"
    assert "fine.sql: the expression contains a subquery" in message


def test_variables_in_sql_are_plain_text(made: tuple[Lake, dict[str, tuple[str, str]]]) -> None:
    lake, said = made

    assert said["harmless"] == ("ok", "")
    assert {row[1] for row in lake.rows("harmless")} == {"${env:HOME} reflect(TRANSFORM) ${system:user.home}"}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expression_that_could_read_secrets_is_refused(spark: SparkSession, name: str) -> None:
    text = EXPRESSIONS[name]
    row = F.struct(F.col("id"))
    events = spark.range(1).select(
        F.lit("k").alias("key"), F.lit("u").alias("op"), F.struct("id").alias("__kafka"), row.alias("row"),
        F.array().cast("array<string>").alias("unavailable"),
    )  # fmt: skip
    expectation = Expectation(name="e", holds=text)
    uses: dict[str, Callable[[], object]] = {
        "t: merge.apply_as_deletes": lambda: with_deletes(events, text, "t"),
        "t: e": lambda: with_unmet(events, [expectation], "t"),
        "t: merge.derive: x": lambda: _derived(spark.range(1), {"x": text}, "t"),
    }

    for where, use in uses.items():
        with pytest.raises(ConfigError) as caught:
            use()
        assert str(caught.value).startswith(f"{where}: ")
        assert name == "reflect" or "contains a subquery" in str(caught.value)


@pytest.mark.parametrize("text", ["row_number", "array(1)", "count(*) > 1"])
def test_condition_that_is_not_boolean_names_its_setting(spark: SparkSession, text: str) -> None:
    events = spark.range(1).select(F.struct("id").alias("row"), F.lit("u").alias("op"))

    with pytest.raises(ConfigError, match=r"^t: merge\.apply_as_deletes: Spark says: "):
        with_deletes(events, text, "t")
