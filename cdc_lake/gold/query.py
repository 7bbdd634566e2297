"""A gold model's queries: their sources, each at one version, under the names that the model gives them, and the groups
that changes of the sources affect.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from typing import Any

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
from cdc_lake.config.gold_models import GoldModel, Window
from cdc_lake.errors import CdcLakeError, ModelError
from cdc_lake.runs.user_sql import first_line, parser, starts_a_program
from cdc_lake.spark.arrow_stage import from_rows
from cdc_lake.tables.contract import Table
from cdc_lake.tables.damage import damage_error
from cdc_lake.tables.joins import AFTER, BEFORE, IMAGE, as_columns_of, images, null_safe_join
from cdc_lake.tables.progress import SilverProgress

_WHILE_IT_RUNS = (
    SparkRuntimeException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
)
"""Errors that values can cause. Spark 3.5 reports all of them as `Job aborted`, which has no class in PySpark."""
_MOST_NAMED = 10_000
"""Number of groups collected to the driver for conditions that skip files."""
_MOST_RANGES = 32
_UNORDERED = ("array<", "map<", "struct<", "binary", "boolean", "float", "double")


@dataclass(frozen=True)
class Source:
    """A silver table, pinned.

    Attributes:
        progress: at that version.
    """

    silver: Table[SilverProgress]
    id: str
    progress: SilverProgress
    version: int

    def rows(self) -> DataFrame:
        """The rows that a model sees."""
        return _live_rows(self.silver.read(as_of=self.version))

    def rows_before(self, version: int) -> DataFrame:
        """The rows that a model saw at a version, in the current columns."""
        schema = self.silver.read(as_of=self.version).schema
        return _live_rows(as_columns_of(schema, self.silver.read(as_of=version)))


def _live_rows(rows: DataFrame) -> DataFrame:
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
                cure = "a model is one SELECT or WITH query, and the job writes its result"
                raise ModelError(str(self.model.file), f"{what} is a statement that is not a query", cure) from exc
            if starts_a_program(parsed):
                cure = "compute it with Spark's functions, without TRANSFORM, MAP or REDUCE"
                raise ModelError(str(self.model.file), f"{what} starts a program on executors", cure)
            return self.session.sql(text)

    @cached_property
    def _files(self) -> dict[str, DataFrame]:
        views = {}
        for alias, source in self.model.header.files.items():
            texts = ", ".join(f"{quoted(name)} string" for name in source.columns)
            rows = from_rows(self.session, self.model.files[alias], texts)
            with translated_errors(self.model):
                typed = (_typed(source.file, name, kind).alias(name) for name, kind in source.columns.items())
                views[alias] = rows.select(*typed)
        return views


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
        cure = "fix the SQL if it is the cause; otherwise run again with --debug to see where it failed"
        failed = CdcLakeError(str(model.file), f"Spark failed: {first_line(exc)}", cure)
        raise (damage_error(exc, str(model.file)) or failed) from exc
    except PySparkException as exc:
        raise ModelError(str(model.file), f"Spark says: {first_line(exc)}", "fix the SQL") from exc


def touched_groups(
    query: Query, sources: Mapping[str, Source], since: Mapping[str, int], stored: DataFrame, result: DataFrame
) -> "Groups":
    """The groups that may have changed.

    A changed row affects the groups that it was part of, given the previous sources, and those that it is part of,
    given the current ones. Any other group consists of the same rows as before.

    Args:
        sources: by the model's names for them.
        since: by a silver table's ID, the version that gold was computed from.
        stored: gold's rows.
        result: the current result of the model's query.

    Raises:
        ExpiredError: a silver table no longer retains that version.
        ModelError: a query of `touched` is wrong.
    """
    changed = {alias: source for alias, source in sources.items() if since[source.id] != source.version}
    images_of = {
        one.id: images(one.silver, one.progress.keys, since[one.id], one.version).persist() for one in changed.values()
    }
    try:
        rows_now = {alias: source.rows() for alias, source in sources.items()}
        rows_before = {**rows_now, **{alias: source.rows_before(since[source.id]) for alias, source in changed.items()}}
        named = [
            _groups_named_by(query, alias, {**world, alias: _live_rows(rows.drop(IMAGE))})
            for alias, source in changed.items()
            for rows, world in _changed_images(query, alias, images_of[source.id], changed, rows_before, rows_now)
        ]
        window, groups = query.model.header.window, query.model.header.group_columns
        if window is not None and window.lateness and window.source in changed:
            named.append(
                _closed_windows(stored, rows_before[window.source], rows_now[window.source], window).select(
                    *map(quoted, groups)
                )
            )
        if not named:  # the versions have the same rows
            return Groups.of(stored.select(*map(quoted, groups)).limit(0), result)
        with translated_errors(query.model):
            return Groups.of(reduce(DataFrame.unionByName, named), result)
    finally:
        for rows in images_of.values():
            rows.unpersist()


def _changed_images(
    query: Query,
    alias: str,
    rows: DataFrame,
    changed: Iterable[str],
    rows_before: Mapping[str, DataFrame],
    rows_now: Mapping[str, DataFrame],
) -> Iterator[tuple[DataFrame, Mapping[str, DataFrame]]]:
    """The images of one source's changed rows, each with the state of the other sources that it belongs to.

    Example: an order moved from customer 1 to 2, and customer 1 from region A to B. The order left region A, which only
    the previous customers show.

    Planning dominates a small refresh: images that do not occur are not queried, and a query of one source alone runs
    once.
    """
    other_aliases = (other for other in changed if other != alias)
    text = query.model.header.touched[alias]
    present = {row[IMAGE] for row in rows.select(IMAGE).distinct().collect()}
    if not any(re.search(rf"\b{re.escape(other)}\b", text, re.IGNORECASE) for other in other_aliases):
        yield from [(rows, rows_now)] if present else []
        return
    for image, world in ((BEFORE, rows_before), (AFTER, rows_now)):
        if image in present:
            yield rows.where(F.col(IMAGE) == image), world


def _groups_named_by(query: Query, alias: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """The groups that a query returns for one source's rows."""
    header = query.model.header
    groups = query.run(header.touched[alias], views, f"`touched` of {alias}")
    present = {name.casefold() for name in groups.columns}
    if missing := [name for name in header.group_columns if name.casefold() not in present]:
        what = f"`touched` of {alias} has no column {', '.join(missing)}, which `groups` (else `keys`) names"
        raise ModelError(str(query.model.file), what, "select it with that name")
    return groups.select(*map(quoted, header.group_columns))


def watermark(rows: DataFrame, window: Window) -> DataFrame:
    """One row, `at`: the newest time of a window's source minus the lateness; null if it has no rows."""
    return rows.agg((F.max(quoted(window.time)) - F.expr(f"INTERVAL {window.lateness}")).alias("at"))


def _closed_windows(stored: DataFrame, rows_before: DataFrame, rows_now: DataFrame, window: Window) -> DataFrame:
    """Gold's rows whose windows end between the previous watermark and the current one."""
    before, now = (
        watermark(rows, window).withColumnRenamed("at", name)
        for rows, name in ((rows_before, "was"), (rows_now, "now"))
    )
    end = F.col(f"g.{quoted(window.start)}").cast("timestamp") + F.expr(f"INTERVAL {window.length}")
    is_between = (end > F.least("m.was", "m.now")) & (end <= F.greatest("m.was", "m.now"))
    return stored.alias("g").crossJoin(before.crossJoin(now).alias("m")).where(is_between).select("g.*")


@dataclass(frozen=True)
class Groups:
    """Groups that changes affect.

    Attributes:
        rows: their columns, in the types of the model's result.
    """

    rows: DataFrame
    names: Sequence[str]
    number: int

    @classmethod
    def of(cls, rows: DataFrame, result: DataFrame) -> "Groups":
        """Groups in the types of the columns that they are compared with."""
        kinds = dict(result.select(*map(quoted, rows.columns)).dtypes)
        typed = rows.select(*(F.col(quoted(name)).cast(kind).alias(name) for name, kind in kinds.items()))
        # Coalesced: a checkpoint partitioned by columns differs from a copy of itself, so plans with it are not cached.
        typed = typed.distinct().coalesce(1).localCheckpoint()
        return cls(typed, list(kinds), typed.count())

    def rows_in(self, rows: DataFrame) -> DataFrame:
        is_in_ranges = reduce(and_, map(self._within, self._values), F.lit(True))  # by which Spark skips files
        return null_safe_join(rows.where(is_in_ranges), self.rows, self.names, "left_semi")

    def rows_outside(self, rows: DataFrame) -> DataFrame:
        return null_safe_join(rows, self.rows, self.names, "left_anti")

    def in_window(self, rows: DataFrame, window: Window) -> DataFrame:
        """A source's rows whose time is in the groups' windows."""
        starts = self._values.get(window.start)
        if starts is None or None in starts:
            return rows
        time = F.col(quoted(window.time))
        moments = (
            (self._literal(window.start, first).cast("timestamp"), self._literal(window.start, last).cast("timestamp"))
            for first, last in _ranges(sorted(starts))
        )
        length = F.expr(f"INTERVAL {window.length}")
        return rows.where(reduce(or_, ((time >= first) & (time < last + length) for first, last in moments)))

    def _within(self, name: str) -> Column:
        values, column = self._values[name], F.col(quoted(name))
        ranges = (
            column.between(self._literal(name, first), self._literal(name, last))
            for first, last in _ranges(sorted(values - {None}))
        )
        return reduce(or_, [*ranges, *([column.isNull()] if None in values else [])])

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return dict(self.rows.dtypes)

    @cached_property
    def _values(self) -> dict[str, set[Any]]:
        """The values of each column with an order; empty if there are too many groups, or none.

        Timestamps are microseconds since 1970: Python's have one hour of autumn twice.
        """
        names = [name for name in self.names if not self._kinds[name].startswith(_UNORDERED)]
        if not 0 < self.number <= _MOST_NAMED:
            return {}
        columns = (F.unix_micros(name) if self._kinds[name] == "timestamp" else F.col(quoted(name)) for name in names)
        rows = self.rows.select(*columns).collect()
        return {name: {row[place] for row in rows} for place, name in enumerate(names)}

    def _literal(self, name: str, value: Any) -> Column:
        literal = F.lit(value)
        return F.timestamp_micros(literal) if self._kinds[name] == "timestamp" else literal.cast(self._kinds[name])


def _ranges(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Sorted values in a few ranges, split at the widest gaps if the type has gaps."""
    ends = list(range(1, len(values)))
    if len(values) > _MOST_RANGES and not isinstance(values[0], str):
        ends.sort(key=lambda number: values[number] - values[number - 1], reverse=True)
        ends = sorted(ends[: _MOST_RANGES - 1])
    elif len(values) > _MOST_RANGES:
        ends = ends[:: -(-len(values) // _MOST_RANGES)]
    starts = [0, *ends]
    return [(values[start], values[end - 1]) for start, end in zip(starts, [*ends, len(values)], strict=True) if values]
