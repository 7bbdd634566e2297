"""Gold: a table for each SQL model, made anew from silver when silver or the model has changed."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake import failpoints
from cdc_lake.columns import DELETED, SILVER_META, quoted
from cdc_lake.config import Config
from cdc_lake.errors import CdcLakeError, KeyConstraintError, ModelError, NoProgressError
from cdc_lake.layers.catalog import keep_in_step
from cdc_lake.layers.run import Leases, end_report, select, silver_targets, table_path
from cdc_lake.layers.turns import Workers, first_line
from cdc_lake.metrics.report import Report, TableReport
from cdc_lake.models import GoldModel, model_names, read_model
from cdc_lake.session import sibling
from cdc_lake.storage import Storage
from cdc_lake.tables import Commit, Table
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Progress
from cdc_lake.tables.silver import TABLE_FOLDERS

_NOT_IN_NAMES = set(" ,;{}()\n\t=")
"""What Delta takes in no column's name."""


def run_gold(
    config: Config, models: Sequence[str], spark: SparkSession | None = None, *, workers: Workers | None = None
) -> Report:
    """Make the tables of models anew where silver, or the model, has changed since.

    Args:
        config: the settings.
        models: names or globs.
        spark: the session; made when there is none.
        workers: who does it; one, in the calling thread, when there are none.

    Raises:
        UnknownTableError: a name or glob fits no model.
        ModelError: the header of one of them is wrong.
        InstallationError: Spark cannot be started with what is installed.
    """
    report = Report(layer="gold")
    folder = Path(config.gold.models)
    todo = "see --model, and `gold.models` in the settings"
    names = select(models, model_names(folder), f"model in {folder}", todo)
    chosen = {name: read_model(folder / f"{name}.sql") for name in names}
    workers = workers or Workers(spark=spark)
    storage = Storage(workers.spark("cdc_lake gold"))
    leases = Leases(config, storage, report.run_id, report.layer)
    folded = [path.replace("/", ".") for path in storage.folders(f"{config.lake.root}/silver", *TABLE_FOLDERS)]
    workers.each_table(report, names, _Gold(config, chosen, folded, leases, report.run_id), leases=leases)
    keep_in_step(config, report, workers.spark("cdc_lake gold"))
    failpoints.reach("gold.before_report")
    end_report(storage, config, report, unless_idle=workers.is_continuous)
    return report


@dataclass(frozen=True)
class _Gold:
    """The layer's work.

    Attributes:
        folded: the topics that silver has.
    """

    config: Config
    models: Mapping[str, GoldModel]
    folded: Sequence[str]
    leases: Leases
    run_id: str

    def lag(self, spark: SparkSession, done: TableReport) -> int | None:
        """See `Work`."""
        return None if _compared(self._run(spark, done)).has_changed else 0

    def turn(self, spark: SparkSession, done: TableReport) -> bool:
        """See `Work`."""
        run = self._run(sibling(spark), done)
        compared = _compared(run)
        if compared.has_changed:
            commit = _make(run, compared)
            done.status, done.batches = "ok", 1
            done.consumed_to, done.version_after = commit.progress.sources, commit.version
        return False

    def _run(self, session: SparkSession, done: TableReport) -> "_Run":
        return _Run(session, self.config, self.models[done.table], self.folded, self.leases, self.run_id, done)


@dataclass(frozen=True)
class _Run:
    """One model's turn.

    Attributes:
        session: its own when it runs its query, because the names of its sources are nobody else's.
        folded: the topics that silver has.
    """

    session: SparkSession
    config: Config
    model: GoldModel
    folded: Sequence[str]
    leases: Leases
    run_id: str
    done: TableReport


@dataclass(frozen=True)
class _Source:
    """A silver table, pinned.

    Attributes:
        id: the table's.
        progress: what it carries.
        version: the one that is read.
    """

    silver: Table
    id: str
    progress: Progress
    version: int

    def rows(self) -> DataFrame:
        """What a model sees of it: the rows that are not deleted, in the source's columns."""
        return self.silver.read(as_of=self.version).where(~F.col(DELETED).eqNullSafe(True)).drop(*SILVER_META)


@dataclass(frozen=True)
class _Compared:
    """What a model's table is made from, beside what it would be made from now.

    Attributes:
        has_changed: whether it is another model, or other sources, or there is no table yet.
    """

    gold: DeltaLakeTable
    sources: Mapping[str, _Source]
    following: Progress
    has_changed: bool


def _compared(run: _Run) -> _Compared:
    done = run.done
    gold = DeltaLakeTable(run.session, table_path(run.config, "gold", run.model.header.name))
    with done.phase("plan"):
        # Before the sources: then a run that commits in between is noticed, not overwritten from an older silver.
        before = _progress(gold, done)
        sources = _sources(run)
        following = _following(run, before, sources.values())
        done.version_before = done.version_after = gold.version() if before else None
    done.consumed_from = done.consumed_to = before.sources if before else {}
    is_same = before is not None and _is_made_from_the_same(before, following)
    return _Compared(gold, sources, following, not is_same)


def _make(run: _Run, compared: _Compared) -> Commit:
    """Put the model's result in the place of all rows, in one commit."""
    done, model, following = run.done, run.model, compared.following
    with done.phase("plan"):
        rows = _result(run, compared.sources).persist()
    try:
        with done.phase("check"), _in_our_words(model):
            count = _checked(rows, model)
        failpoints.reach("gold.after_plan", batch=following.commit)
        run.leases.check(done.table)
        with done.phase("write"), _in_our_words(model):
            commit = compared.gold.overwrite(rows, following)
        failpoints.reach("gold.after_overwrite", batch=following.commit)
    finally:
        rows.unpersist()
    done.count(written=count)
    return commit


def _progress(gold: DeltaLakeTable, done: TableReport) -> Progress | None:
    """What gold was made from; nothing known, if there are commits and none says so."""
    try:
        return gold.progress()
    except NoProgressError as error:
        done.warn(f"{error.what}; it is made anew")
        return Progress(layer="gold", run_id="", commit=gold.version() + 1)  # no commit of ours had a higher number


def _sources(run: _Run) -> dict[str, _Source]:
    """The model's sources by alias, each pinned to one version; a table with several aliases is pinned once.

    Raises:
        UnknownTableError: silver does not have one; the message names the nearest.
    """
    header, root = run.model.header, f"{run.config.lake.root}/silver"
    todo = f"run the silver job first, or mend `sources` in {run.model.file}"
    topics = select(list(header.sources.values()), run.folded, f"table in {root}", todo)
    pinned = {topic: _pinned(silver_targets(run.config, topic)[0].open(run.session)) for topic in topics}
    return {alias: pinned[topic] for alias, topic in header.sources.items()}


def _pinned(silver: Table) -> _Source:
    # In this order a commit in between is read although it is not in the progress, and then once more: never missed.
    progress = silver.progress()
    assert progress is not None, "a silver table is created with progress"
    return _Source(silver, silver.id(), progress, silver.version())


def _following(run: _Run, before: Progress | None, sources: Iterable[_Source]) -> Progress:
    read = {source.id: source.progress for source in sources}
    return Progress(
        layer="gold",
        run_id=run.run_id,
        epoch=before.epoch if before else 0,
        commit=before.commit + 1 if before else 1,
        sources={table: progress.commit for table, progress in read.items()},
        epochs={table: progress.epoch for table, progress in read.items()},
        model=run.model.fingerprint,
    )


def _is_made_from_the_same(one: Progress, other: Progress) -> bool:
    return (one.sources, one.epochs, one.model) == (other.sources, other.epochs, other.model)


def _result(run: _Run, sources: Mapping[str, _Source]) -> DataFrame:
    """What the model's query says, not yet computed.

    Raises:
        ModelError: it is not a query, Spark does not take it, or its columns are not what they have to be.
    """
    session, model = run.session, run.model
    for alias, source in sources.items():
        source.rows().createOrReplaceTempView(alias)
    # What a query reads by a path is in no progress.
    session.conf.set("spark.sql.runSQLOnFiles", "false")
    with _in_our_words(model):
        parser = session._jsparkSession.sessionState().sqlParser()
        parser.parsePlan(model.text)  # any one statement
        try:
            parser.parseQuery(model.text)
        except ParseException as exc:
            todo = "a model is one SELECT or WITH query, and the job writes its result"
            raise ModelError(str(model.file), "its SQL is a statement that is not a query", todo) from exc
        rows = session.sql(model.text)
    _check_columns(rows.columns, model)
    return rows


def _check_columns(columns: Sequence[str], model: GoldModel) -> None:
    """See that the result has the keys, and names that Delta takes: of a wrong one it does not say which it is.

    Raises:
        ModelError: it does not.
    """
    unnamed = [name for name in columns if set(name) & _NOT_IN_NAMES]
    if unnamed:
        what = f"columns of the result need a name of letters and digits: {', '.join(unnamed)}"
        raise ModelError(str(model.file), what, "name them with AS")
    there = {name.casefold() for name in columns}
    for key in model.header.keys:
        if key.casefold() not in there:
            near = difflib.get_close_matches(key, columns, n=1, cutoff=0.5) or columns
            what = f"`keys`: the result has no column `{key}`; the nearest: {', '.join(near)}"
            raise ModelError(str(model.file), what, "select it, or mend `keys`")


def _checked(rows: DataFrame, model: GoldModel) -> int:
    """How many rows there are, once their keys are seen to be what the header says.

    Raises:
        KeyConstraintError: a key is null, or stands in several rows.
    """
    names = model.header.keys
    keys = [F.col(quoted(name)) for name in names]
    has_null = reduce(or_, (key.isNull() for key in keys))
    by_key = rows.groupBy(*keys).agg(F.count("*").alias("__rows"))
    found = by_key.agg(
        F.sum("__rows").alias("rows"),
        F.sum(F.when(has_null, F.col("__rows"))).alias("nulls"),
        F.count_if(F.col("__rows") > 1).alias("repeated"),
    ).collect()[0]
    if found["nulls"] or found["repeated"]:
        raise KeyConstraintError(
            model.header.name,
            f"of {found['rows']} rows {found['nulls'] or 0} have a null in their key ({', '.join(names)}), and "
            f"{found['repeated']} keys stand in several rows; nothing was written",
            f"mend the query, or name in `keys` what tells its rows apart ({model.file})",
        )
    return found["rows"] or 0


@contextmanager
def _in_our_words(model: GoldModel) -> Iterator[None]:
    """Tell what Spark says of a model with the model's file.

    Raises:
        ModelError: Spark does not take the SQL, or Delta the result.
        CdcLakeError: Spark failed at it; it may have been the SQL or not.
    """
    try:
        yield
    except PySparkException as exc:
        raise ModelError(str(model.file), f"Spark says: {first_line(exc)}", "mend the SQL") from exc
    except Py4JJavaError as exc:
        todo = "mend the SQL if it is that; else run again with --debug to see where"
        raise CdcLakeError(str(model.file), f"Spark failed: {first_line(exc)}", todo) from exc
