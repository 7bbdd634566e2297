"""The input of a gold model's queries: its sources, each at one version, under the names that the model gives them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from py4j.protocol import Py4JJavaError
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    ParseException,
    PySparkException,
    SparkRuntimeException,
)
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake.columns import DELETED, SILVER_META, quoted
from cdc_lake.config.gold_models import GoldModel
from cdc_lake.errors import CdcLakeError, ModelError
from cdc_lake.runs.user_sql import first_line, parser, starts_a_program
from cdc_lake.spark.arrow_stage import from_rows
from cdc_lake.tables.contract import Table
from cdc_lake.tables.damage import damage_error
from cdc_lake.tables.joins import as_columns_of
from cdc_lake.tables.progress import SilverProgress

_WHILE_IT_RUNS = (
    SparkRuntimeException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
)
"""Errors that values can cause. Spark 3.5 reports all of them as `Job aborted`, which has no class in PySpark."""


@dataclass(frozen=True)
class Source:
    """A silver table, pinned.

    Attributes:
        id: the table's.
        progress: at that version.
        version: the one to read.
    """

    silver: Table[SilverProgress]
    id: str
    progress: SilverProgress
    version: int

    def rows(self) -> DataFrame:
        """The rows that a model sees."""
        return live_rows(self.silver.read(as_of=self.version))

    def rows_before(self, version: int) -> DataFrame:
        """The rows that a model saw at a version, in the current columns."""
        now = self.silver.read(as_of=self.version).schema
        return live_rows(as_columns_of(now, self.silver.read(as_of=version)))


def live_rows(rows: DataFrame) -> DataFrame:
    """Silver's rows that are not deleted, in the source's columns."""
    if DELETED in rows.columns:  # a table with `merge.mode: append` has no deleted rows
        rows = rows.where(~F.col(DELETED).eqNullSafe(True))
    return rows.drop(*SILVER_META)


@dataclass(frozen=True)
class Query:
    """Runs a model's queries.

    Attributes:
        session: for this model only, since its source names are temporary views.
    """

    session: SparkSession
    model: GoldModel

    def run(self, text: str, views: Mapping[str, DataFrame], what: str) -> DataFrame:
        """The result of a query on these rows, not yet computed.

        Args:
            text: the query.
            views: the rows of the model's topics, by the model's names for them.
            what: which query it is, for messages.

        Raises:
            ModelError: it is not a query, or Spark rejects it.
        """
        for alias, rows in {**views, **self._files}.items():
            rows.createOrReplaceTempView(alias)
        # The progress does not track what a query reads by path.
        self.session.conf.set("spark.sql.runSQLOnFiles", "false")
        with translated_errors(self.model):
            parser(self.session).parsePlan(text)  # any one statement
            try:
                parsed = parser(self.session).parseQuery(text)
            except ParseException as exc:
                todo = "a model is one SELECT or WITH query, and the job writes its result"
                raise ModelError(str(self.model.file), f"{what} is a statement that is not a query", todo) from exc
            if starts_a_program(parsed):
                todo = "compute it with Spark's functions, without TRANSFORM, MAP or REDUCE"
                raise ModelError(str(self.model.file), f"{what} starts a program on executors", todo)
            return self.session.sql(text)

    @cached_property
    def _files(self) -> dict[str, DataFrame]:
        found = {}
        for alias, source in self.model.header.files.items():
            texts = ", ".join(f"{quoted(name)} string" for name in source.columns)
            rows = from_rows(self.session, self.model.files[alias], texts)
            with translated_errors(self.model):
                typed = (_typed(source.file, name, kind).alias(name) for name, kind in source.columns.items())
                found[alias] = rows.select(*typed)
        return found


def _typed(file: str, name: str, kind: str) -> Column:
    """Text cast to its column's declared type."""
    text = F.col(quoted(name))
    wrong = F.raise_error(F.concat(F.lit(f"{file}: no {kind} in the column {name}: "), text))
    return F.coalesce(text.cast(kind), F.when(text.isNotNull(), wrong).cast(kind))


@contextmanager
def translated_errors(model: GoldModel) -> Iterator[None]:
    """Translate Spark's errors to ones that name the model's file.

    Raises:
        ModelError: Spark rejects the SQL, or the engine the result.
        DamagedFileError: a file that it reads is missing or damaged.
        CdcLakeError: Spark failed, because of the SQL or not.
    """
    try:
        yield
    except (*_WHILE_IT_RUNS, Py4JJavaError) as exc:
        todo = "fix the SQL if it is the cause; otherwise run again with --debug to see where it failed"
        failed = CdcLakeError(str(model.file), f"Spark failed: {first_line(exc)}", todo)
        raise (damage_error(exc, str(model.file)) or failed) from exc
    except PySparkException as exc:
        raise ModelError(str(model.file), f"Spark says: {first_line(exc)}", "fix the SQL") from exc
