"""Refreshes a model's table: all of it, or the groups that changes affect, after the checks of the result."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake import failpoints
from cdc_lake.brokers import broker_login
from cdc_lake.columns import DELETE, KEY, name_problem, quoted
from cdc_lake.config.gold_models import EVERYTHING, WATERMARK, GoldModel
from cdc_lake.errors import ExpiredError, KeyConstraintError, ModelError, NoProgressError
from cdc_lake.gold.query import Groups, Query, Source, touched_groups, translated_errors, watermark
from cdc_lake.registries import open_subjects
from cdc_lake.runs.context import OpenRun
from cdc_lake.runs.report import TableReport
from cdc_lake.runs.user_sql import check_expectations, is_met, refuse_query
from cdc_lake.sinks.kafka import KafkaSink
from cdc_lake.tables.contract import Changes, Commit, Table
from cdc_lake.tables.joins import null_safe_join
from cdc_lake.tables.partitions import check_partitions
from cdc_lake.tables.progress import GoldProgress


@dataclass(frozen=True)
class ModelRun:
    """One model's run.

    Attributes:
        session: for this model only while it runs its query, since its source names are temporary views.
    """

    run: OpenRun
    session: SparkSession
    model: GoldModel
    silver_topics: Sequence[str]
    report: TableReport

    @cached_property
    def gold(self) -> Table[GoldProgress]:
        """The model's table, which may not exist yet."""
        header = self.model.header
        return self.run.lake.gold(self.session, header.name, header.table)

    @cached_property
    def query(self) -> Query:
        return Query(self.session, self.model)

    @cached_property
    def sink(self) -> KafkaSink | None:
        """The topic to which the table is sent, if it has one.

        Raises:
            ConfigError: the settings do not say how to reach the registry, or it refuses the credentials.
            UnsupportedError: the registry's type does not register schemas.
            InfrastructureError: it does not respond.
        """
        topic, config = self.model.header.topic, self.run.config
        if topic is None:
            return None
        for warning in config.kafka.warnings:
            self.report.warn(warning)
        address, login = config.kafka.address, broker_login(config.kafka)
        subjects = open_subjects(config.registry)
        return KafkaSink(topic, address, config.kafka.timeout_seconds, subjects, Path(config.gold.schemas), login)


@dataclass(frozen=True)
class RefreshInputs:
    """What a refresh of a model's table needs: its progress, and its current sources.

    Attributes:
        before: progress of the table's newest commit; none if there is no table yet.
        has_changed: whether the model or a source changed, or there is no table yet.
    """

    sources: Mapping[str, Source]
    before: GoldProgress | None
    next_progress: GoldProgress
    has_changed: bool


def refresh(model_run: ModelRun, inputs: RefreshInputs) -> Commit[GoldProgress]:
    """Refresh the table, in one commit.

    Raises:
        ModelError: a query of the model is not one, Spark rejects it, or its columns are wrong.
        KeyConstraintError: the result has a null or a repeated key.
        ExpectationError: the result fails an expectation with `on_fail: stop`.
        IncompatibleSchemaError: its topic's schema does not fit.
    """
    query, model = model_run.query, model_run.model
    with model_run.report.phase("plan"):
        views = {alias: source.rows() for alias, source in inputs.sources.items()}
        window = model.header.window
        if window is not None and window.lateness:
            views[WATERMARK] = watermark(views[window.source], window)
        result = query.run(model.text, views, "its SQL")
        _check_columns(model_run, result)
        if model_run.sink is not None:
            model_run.sink.check(model_run.session, result.schema, keys=model.header.keys, doc=model.header.description)
        groups = _groups(model_run, inputs, result)
    if groups is None:
        return _refresh_all(model_run, inputs, result)
    with model_run.report.phase("plan"):
        model_run.report.count(groups=groups.number)
        if window is not None:
            views[window.source] = groups.in_window(views[window.source], window)
            result = query.run(model.text, views, "its SQL")
    return _refresh_groups(model_run, inputs, groups, groups.rows_in(result))


def _groups(model_run: ModelRun, inputs: RefreshInputs, result: DataFrame) -> Groups | None:
    """The groups to refresh; none to refresh the whole table."""
    header, before = model_run.model.header, inputs.before
    if header.refresh == "full" or before is None or before.model != inputs.next_progress.model:
        return None
    if before.versions.keys() != inputs.next_progress.versions.keys():
        return None
    changed = {alias for alias, source in inputs.sources.items() if before.versions[source.id] != source.version}
    if any(header.touched[alias] == EVERYTHING for alias in changed):
        return None
    if {name: model_run.gold.stored_type(kind) for name, kind in result.dtypes} != dict(model_run.gold.read().dtypes):
        return None
    if not all(source.progress.keys for source in inputs.sources.values()):
        return None  # silver was created or repaired by hand, and its keys are not known yet
    if another := sorted(alias for alias, source in inputs.sources.items() if not _is_read(source, before)):
        model_run.report.warn(
            f"full refresh: silver's history of {', '.join(another)} differs from the one that gold was computed from, "
            "as after a restore from a backup"
        )
        return None
    if not changed:  # a restore brought back the version that was read, or only progress changed
        return Groups.of(result.select(*map(quoted, header.group_columns)).limit(0), result)
    try:
        return touched_groups(model_run.query, inputs.sources, before.versions, model_run.gold.read(), result)
    except ExpiredError as error:
        model_run.report.warn(f"full refresh: {error}")
        return None


def _is_read(source: Source, before: GoldProgress) -> bool:
    """Whether the version that gold was computed from is still that version of the table."""
    version = before.versions[source.id]
    if version > source.version:
        return False
    try:
        progress = source.silver.progress(as_of=version)
    except NoProgressError:
        return True  # vacuumed; reading its rows reports that
    return progress is not None and progress.nonce == before.nonces[source.id]


def _refresh_all(model_run: ModelRun, inputs: RefreshInputs, result: DataFrame) -> Commit[GoldProgress]:
    rows = result.persist()
    try:
        rows, count = _check_rows(model_run, rows)
        _before_write(model_run, inputs)
        with model_run.report.phase("write"), translated_errors(model_run.model):
            commit = model_run.gold.overwrite(_with_key(rows, model_run.model), inputs.next_progress)
    finally:
        result.unpersist()
    failpoints.reach("gold.after_overwrite", batch=inputs.next_progress.commit)
    model_run.report.count(written=count)
    return commit


def _refresh_groups(
    model_run: ModelRun, inputs: RefreshInputs, groups: Groups, result: DataFrame
) -> Commit[GoldProgress]:
    made = result.persist()
    gold, keys = model_run.gold, model_run.model.header.keys
    try:
        rows, _ = _check_rows(model_run, made)
        stored = groups.rows_in(gold.read())
        if not set(groups.names) <= set(keys):
            _check_keys_across_groups(model_run, rows, groups.rows_outside(gold.read()))
        with model_run.report.phase("check"), translated_errors(model_run.model):
            vanished = null_safe_join(stored, rows, keys, "left_anti")
            new = rows if _has_map(rows) else null_safe_join(rows, stored, rows.columns, "left_anti")
            both = new.withColumn(DELETE, F.lit(False)).unionByName(vanished.withColumn(DELETE, F.lit(True)))
            # Not a cache, which Spark may compute again: a model may have rand() or a clock.
            changes = Changes.of(_with_key(both, model_run.model).localCheckpoint(eager=False), keys)
            counts = {row[DELETE]: row["count"] for row in changes.rows.groupBy(DELETE).count().collect()}
        _before_write(model_run, inputs)
        with model_run.report.phase("write"), translated_errors(model_run.model):
            next_progress = inputs.next_progress
            commit = gold.merge(changes, next_progress) if counts else gold.advance(next_progress)
            for note in commit.notes:
                model_run.report.warn(note)
    finally:
        made.unpersist()
    failpoints.reach("gold.after_merge", batch=inputs.next_progress.commit)
    model_run.report.count(written=counts.get(False, 0), removed=counts.get(True, 0))
    return commit


def _before_write(model_run: ModelRun, inputs: RefreshInputs) -> None:
    failpoints.reach("gold.after_plan", batch=inputs.next_progress.commit)
    model_run.run.leases.check(model_run.report.table)


def _with_key(rows: DataFrame, model: GoldModel) -> DataFrame:
    """Rows with their key's text, by which an engine may find them."""
    keys = F.struct(*map(quoted, model.header.keys))
    return rows.withColumn(KEY, F.to_json(keys, {"ignoreNullFields": "false"}))


def _has_map(rows: DataFrame) -> bool:
    """Spark cannot compare maps."""
    return any("map<" in kind for _, kind in rows.dtypes)


def _check_columns(model_run: ModelRun, rows: DataFrame) -> None:
    """Check that the result has the keys and groups, can be partitioned, and has names that Delta accepts: its own
    error does not name the column.

    Raises:
        ModelError: it does not.
        ConfigError: it cannot be partitioned.
    """
    model, columns = model_run.model, rows.columns
    unnamed = [name for name in columns if name_problem(name)]
    if unnamed:
        what = f"columns of the result need a name of letters and digits: {', '.join(unnamed)}"
        raise ModelError(str(model.file), what, "name them with AS")
    present = {name.casefold() for name in columns}
    for setting, names in (("keys", model.header.keys), ("groups", model.header.groups)):
        for name in names:
            if name.casefold() not in present:
                near = difflib.get_close_matches(name, columns, n=1, cutoff=0.5) or columns
                what = f"`{setting}`: the result has no column `{name}`; the nearest: {', '.join(near)}"
                raise ModelError(str(model.file), what, f"select it, or correct `{setting}`")
    storage, keys = model.header.table, model.header.keys
    check_partitions(str(model.file), storage, dict(rows.dtypes), keys, "correct `partition_by` in the model's `table`")


def _check_rows(model_run: ModelRun, rows: DataFrame) -> tuple[DataFrame, int]:
    """The rows that are not rejected, and their number, after all checks of the header.

    Raises:
        KeyConstraintError: a key is null, or in several rows.
        ExpectationError: rows fail an expectation with `on_fail: stop`.
    """
    model = model_run.model
    names, expectations = model.header.keys, model.header.expectations
    with model_run.report.phase("check"), translated_errors(model):
        for expectation in expectations:
            refuse_query(rows, expectation.holds, str(model.file), ModelError)
        if expectations:
            unmet = rows.agg(*(F.count_if(~is_met(one)).alias(one.name) for one in expectations)).collect()[0]
            check_expectations(model_run.report, expectations, unmet.asDict())
        rejecting = (is_met(one) for one in expectations if one.on_fail == "reject")
        kept = rows.where(reduce(and_, rejecting, F.lit(True)))
        keys = [F.col(quoted(name)) for name in names]
        has_null = reduce(or_, (key.isNull() for key in keys))
        by_key = kept.groupBy(*keys).agg(F.count("*").alias("__rows"))
        totals = by_key.agg(
            F.sum("__rows").alias("rows"),
            F.sum(F.when(has_null, F.col("__rows"))).alias("nulls"),
            F.count_if(F.col("__rows") > 1).alias("repeated"),
        ).collect()[0]
    if totals["nulls"] or totals["repeated"]:
        raise KeyConstraintError(
            model.header.name,
            f"of {totals['rows']} rows {totals['nulls'] or 0} have a null in their key ({', '.join(names)}), and "
            f"{totals['repeated']} keys are in several rows; nothing was written",
            f"fix the query, or list in `keys` the columns that identify a row ({model.file})",
        )
    return kept, totals["rows"] or 0


def _check_keys_across_groups(model_run: ModelRun, rows: DataFrame, other_rows: DataFrame) -> None:
    """Check that no key is in a refreshed group and in another one."""
    header = model_run.model.header
    with model_run.report.phase("check"), translated_errors(model_run.model):
        repeated = null_safe_join(rows, other_rows, header.keys, "left_semi").count()
    if repeated:
        raise KeyConstraintError(
            header.name,
            f"{repeated} keys ({', '.join(header.keys)}) are in several rows of different groups "
            f"({', '.join(header.group_columns)}); nothing was written",
            f"fix the query or `touched`, or list in `keys` the columns that identify a row ({model_run.model.file})",
        )
