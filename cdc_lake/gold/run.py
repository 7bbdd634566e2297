"""Gold: a table for each SQL model, refreshed if silver or the model has changed.

A refresh computes the whole table, or, if the model maps sources to groups, only the groups that changes affect.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pyspark.sql import SparkSession

from cdc_lake.config import Config
from cdc_lake.config.gold_models import GoldModel, model_names, read_model
from cdc_lake.errors import NoProgressError
from cdc_lake.failpoints import reach
from cdc_lake.gold.query import Source
from cdc_lake.gold.refresh import ModelRun, RefreshInputs, refresh
from cdc_lake.gold.topics import is_due, send_due
from cdc_lake.runs.context import Layer, NewData, OpenRun, Run, Work, check_has_lease, select
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.spark.session import planned_for, sibling
from cdc_lake.tables.contract import Commit, Table, progress_of
from cdc_lake.tables.iceberg_catalog import close_catalog
from cdc_lake.tables.progress import GoldProgress, SilverProgress

_BYTES_OF_A_ROW = 400
"""For guessing how much work a refresh is. Few rows are so long; a refresh has many plans, and compiling them takes
longer than interpreting them for a few more rows.
"""


def run_gold(
    config: Config, models: Sequence[str], spark: SparkSession | None = None, *, scheduler: TableScheduler | None = None
) -> Report:
    """Refresh the tables of models whose silver sources, or whose model, have changed.

    Args:
        models: names or globs.

    Raises:
        UnknownTableError: a name or glob matches no model.
        ModelError: the header of one of them is wrong.
        ConfigError: a setting requires another setting.
    """
    scheduler = scheduler or TableScheduler(spark=spark)
    (report,) = scheduler.run(_GoldLayer.of(config, models, scheduler))
    return report


@dataclass
class _GoldLayer(Layer):
    models: Mapping[str, GoldModel]

    @classmethod
    def of(cls, config: Config, models: Sequence[str], scheduler: TableScheduler) -> Self:
        """Begin a run; see `run_gold`."""
        run = Run.begin(config, Report(layer="gold"))
        folder = Path(config.gold.models)
        cure = "see --model, and `gold.models` in the settings"
        names = select(models, model_names(folder), f"model in {folder}", cure)
        chosen = {name: read_model(folder / f"{name}.sql") for name in names}
        for name, model in chosen.items():
            check_has_lease(config.lake.lease, name, model.header.table)
        return cls(run, scheduler.files(run.lake), names, chosen)

    def work(self, run: OpenRun) -> "_GoldWork":
        return _GoldWork(run, self.models, run.lake.names(run.files, "silver"))

    def before_report(self) -> None:
        reach("gold.before_report")

    def new_data(self, report: TableReport) -> NewData | None:
        model, lake, files = self.models[report.table], self.run.lake, self.files
        header = model.header
        before = lake.newest_gold(files, header.name, header.table)
        if before is None:
            return None
        targets = [lake.silver(topic)[0] for topic in header.topics.values()]
        sources = [target.newest(files) for target in targets]
        if not all(sources) or is_due(header, before.progress):
            return None
        read = {source.table_id: source.progress for source in sources if source}
        if not _is_made_from(before.progress, read, model):
            sizes = [table.bytes for table in (before, *sources) if table and table.bytes is not None]
            if len(sizes) <= len(sources):
                return None
            return NewData(max(sum(sizes[1:]) // _BYTES_OF_A_ROW, 1), sizes[0])
        report.version_before = report.version_after = before.version
        report.consumed_from = report.consumed_to = before.progress.sources
        return NewData(0)


def _is_made_from(progress: GoldProgress, sources: Mapping[str, SilverProgress], model: GoldModel) -> bool:
    """Whether gold was computed from these states of silver tables, by ID, and from this model."""
    numbers = progress.sources, progress.epochs, progress.model
    now = ({table: one.commit for table, one in sources.items()}, {table: one.epoch for table, one in sources.items()})
    return numbers == (*now, model.fingerprint) and all(
        progress.is_of(table, newest) for table, newest in sources.items()
    )


@dataclass(frozen=True)
class _GoldWork(Work):
    run: OpenRun
    models: Mapping[str, GoldModel]
    silver_topics: Sequence[str]

    def process_next(self, spark: SparkSession, report: TableReport) -> bool:
        session = sibling(spark)
        try:
            return self._refresh(ModelRun(self.run, session, self.models[report.table], self.silver_topics, report))
        finally:
            close_catalog(session)

    def _refresh(self, model_run: ModelRun) -> bool:
        report = model_run.report
        report.warn(*model_run.gold.recover())
        inputs = _inputs(model_run)
        if inputs.has_changed:
            stored_bytes = sum(source.silver.size() for source in {s.id: s for s in inputs.sources.values()}.values())
            with planned_for(model_run.session, rows=stored_bytes // _BYTES_OF_A_ROW):
                commit = refresh(model_run, inputs)
            _report_commit(report, commit)
        header = model_run.model.header
        if model_run.sink is not None and is_due(header, model_run.gold.progress()):
            with report.phase("send"):
                sent = send_due(model_run.gold, header, model_run.sink, self.run.id, report)
            _report_commit(report, sent)
        return False


def _report_commit(report: TableReport, commit: Commit[GoldProgress]) -> None:
    report.status, report.batches = "ok", 1
    report.consumed_to, report.version_after = commit.progress.sources, commit.version


def _inputs(model_run: ModelRun) -> RefreshInputs:
    report, gold = model_run.report, model_run.gold
    with report.phase("plan"):
        # Before the sources, so that a concurrent commit is noticed, not overwritten from an older silver.
        before = _progress(gold, report)
        sources = _sources(model_run)
        next_progress = _following(model_run, before, sources.values())
        report.version_before = report.version_after = gold.version() if before else None
    report.consumed_from = report.consumed_to = before.sources if before else {}
    read = {source.id: source.progress for source in sources.values()}
    has_changed = before is None or not _is_made_from(before, read, model_run.model)
    return RefreshInputs(sources, before, next_progress, has_changed)


def _progress(gold: Table[GoldProgress], report: TableReport) -> GoldProgress | None:
    """Gold's progress; nothing consumed, if there are commits and none has progress."""
    try:
        return gold.progress()
    except NoProgressError as error:
        report.warn(f"{error.what}; the table is rebuilt")
        return GoldProgress(run_id="", commit=gold.version() + 1)  # no commit of cdc_lake has a higher number


def _sources(model_run: ModelRun) -> dict[str, Source]:
    """The model's silver tables by alias, each pinned to one version; a table with several aliases is pinned once.

    Raises:
        UnknownTableError: silver does not have one; the message names the nearest.
    """
    topics_of, lake = model_run.model.header.topics, model_run.run.lake
    cure = f"run the silver job first, or correct `sources` in {model_run.model.file}"
    topics = select(list(topics_of.values()), model_run.silver_topics, f"table in {lake.folder('silver')}", cure)
    pinned = {topic: _pinned(lake.silver(topic)[0].open(model_run.session)) for topic in topics}
    return {alias: pinned[topic] for alias, topic in topics_of.items()}


def _pinned(silver: Table[SilverProgress]) -> Source:
    version = silver.version()
    progress = progress_of(silver, version)
    return Source(silver, silver.id(), progress, version)


def _following(model_run: ModelRun, before: GoldProgress | None, sources: Iterable[Source]) -> GoldProgress:
    read = {source.id: source for source in sources}
    return GoldProgress(
        run_id=model_run.run.id,
        follows=before.nonce if before else "",
        epoch=before.epoch if before else 0,
        commit=before.commit + 1 if before else 1,
        sources={table: source.progress.commit for table, source in read.items()},
        nonces={table: source.progress.nonce for table, source in read.items()},
        epochs={table: source.progress.epoch for table, source in read.items()},
        versions={table: source.version for table, source in read.items()},
        sent=before.sent if before else {},
        model=model_run.model.fingerprint,
    )
