"""What a gold model's queries see: its sources, each at one version, under the names that it gave them."""

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
from cdc_lake.runs.errors import first_line
from cdc_lake.spark.user_sql import parser, starts_a_program
from cdc_lake.tables.contract import Table
from cdc_lake.tables.damage import damage_error
from cdc_lake.tables.images import as_columns_of
from cdc_lake.tables.progress import SilverProgress

_WHILE_IT_RUNS = (
    SparkRuntimeException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
)
"""What a value can do to a query. Spark 3.5 calls all of these `Job aborted`, which PySpark has no class for."""


@dataclass(frozen=True)
class Source:
    """A silver table, pinned.

    Attributes:
        id: the table's.
        progress: what it carries.
        version: the one that is read.
    """

    silver: Table[SilverProgress]
    id: str
    progress: SilverProgress
    version: int

    def rows(self) -> DataFrame:
        """What a model sees of it."""
        return live_rows(self.silver.read(as_of=self.version))

    def rows_before(self, version: int) -> DataFrame:
        """What a model saw of it, in the columns of now."""
        now = self.silver.read(as_of=self.version)
        return live_rows(as_columns_of(now, self.silver.read(as_of=version)))


def live_rows(rows: DataFrame) -> DataFrame:
    """Of silver's rows those that are not deleted, in the source's columns."""
    if DELETED in rows.columns:  # a table of `merge.mode: append` has no such row
        rows = rows.where(~F.col(DELETED).eqNullSafe(True))
    return rows.drop(*SILVER_META)


@dataclass(frozen=True)
class Query:
    """Asks a model's queries.

    Attributes:
        session: its own, because the names of its sources are nobody else's.
    """

    session: SparkSession
    model: GoldModel

    def run(self, text: str, views: Mapping[str, DataFrame], what: str) -> DataFrame:
        """What a query says of these rows, not yet computed.

        Args:
            text: the query.
            views: the rows of the model's topics, by the names that it gave them.
            what: which query it is, for messages.

        Raises:
            ModelError: it is not a query, or Spark does not take it.
        """
        for alias, rows in {**views, **self._files}.items():
            rows.createOrReplaceTempView(alias)
        # What a query reads by a path is in no progress.
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
            rows = self.session.createDataFrame(list(self.model.files[alias]), texts)
            with translated_errors(self.model):
                typed = (_typed(source.file, name, kind).alias(name) for name, kind in source.columns.items())
                found[alias] = rows.select(*typed)
        return found


def _typed(file: str, name: str, kind: str) -> Column:
    """A text as the type that its column is said to have."""
    text = F.col(quoted(name))
    wrong = F.raise_error(F.concat(F.lit(f"{file}: no {kind} in the column {name}: "), text))
    return F.coalesce(text.cast(kind), F.when(text.isNotNull(), wrong).cast(kind))


@contextmanager
def translated_errors(model: GoldModel) -> Iterator[None]:
    """Tell what Spark says of a model with the model's file.

    Raises:
        ModelError: Spark does not take the SQL, or the engine the result.
        DamagedFileError: a file that it reads is missing or damaged.
        CdcLakeError: Spark failed at it; it may have been the SQL or not.
    """
    try:
        yield
    except (*_WHILE_IT_RUNS, Py4JJavaError) as exc:
        todo = "mend the SQL if it is that; else run again with --debug to see where"
        failed = CdcLakeError(str(model.file), f"Spark failed: {first_line(exc)}", todo)
        raise (damage_error(exc, str(model.file)) or failed) from exc
    except PySparkException as exc:
        raise ModelError(str(model.file), f"Spark says: {first_line(exc)}", "mend the SQL") from exc
