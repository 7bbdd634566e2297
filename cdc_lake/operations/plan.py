"""A preview of the next bronze and silver runs. Writes nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, reduce
from operator import and_

from pydantic import BaseModel
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from cdc_lake.bronze.topic_run import unread
from cdc_lake.config import Config, TableConfig
from cdc_lake.decode import framing
from cdc_lake.decode.envelope import before_row_of, row_fields, shape_of, source_fields
from cdc_lake.decode.key import key_fields
from cdc_lake.decode.records import DecodedLayout, avro_schema, with_decoded_values
from cdc_lake.decode.schemas import SchemaError, fields
from cdc_lake.errors import CdcLakeError, ConfigError, UnsupportedError
from cdc_lake.lake.lake import Lake, SilverTarget, check_holds_no_tables, is_table_name, missing_rows, topic_of
from cdc_lake.registries import open_subjects
from cdc_lake.registries.subjects import VALUE_SUFFIX, Subjects, SubjectVersion
from cdc_lake.runs.context import Leases, files_of, lake_of, select, similar_names
from cdc_lake.runs.servers import SourceView
from cdc_lake.silver.batch import Batch
from cdc_lake.silver.batch_schemas import BatchSchemas
from cdc_lake.silver.events import is_change, sent_columns
from cdc_lake.silver.evolution import LayoutChange, check_steps, evolve_layout
from cdc_lake.silver.table import SilverTable
from cdc_lake.sources.logs import TopicLog, TopicSource, count_offsets, offsets_of
from cdc_lake.spark.session import build_session, is_little
from cdc_lake.storage.files import Files
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import progress_of


class PlannedStep(BaseModel):
    """A schema change of silver.

    Attributes:
        ddl: the change in SQL; None if no column changes.
        rewritten_bytes: size of the files that the change rewrites.
    """

    words: str
    ddl: str | None = None
    rewritten_bytes: int = 0


class TablePlan(BaseModel):
    """What the next run of a layer would do to a table.

    Attributes:
        what: a description of the action, or `nothing`.
        consumed_from, consumed_to: as in a report: bronze `{partition: offset}`, silver `{bronze: batch}`.
        records: how many records the run would read. For bronze, a difference of offsets, some of which may not exist.
        steps: schema changes that these records cause in silver.
        announced: schema changes that the latest registry schema would cause, before its first records.
        refused: why the run would stop, or why the table's policy refuses an announced change.
        warnings: why silver's rows may differ from the source's.
        held_by: the run that holds the table's lease; until it ends, another run exits with 40.
    """

    table: str
    layer: str
    what: str
    why: list[str] = []
    consumed_from: dict[str, int] = {}
    consumed_to: dict[str, int] = {}
    records: int = 0
    steps: list[PlannedStep] = []
    announced: list[PlannedStep] = []
    refused: list[str] = []
    warnings: list[str] = []
    held_by: str | None = None


class Plan(BaseModel):
    """What the next runs would do.

    Attributes:
        broker_error: why Kafka's offsets are unknown.
        registry_error: why the latest schemas are unknown.
        warnings: settings that cause problems, such as entries of `tables` that match no topic and no bronze table
            (unknown if Kafka does not respond); and bronze tables with missing rows.
    """

    tables: list[TablePlan] = []
    broker_error: str | None = None
    registry_error: str | None = None
    warnings: list[str] = []

    @property
    def refused(self) -> list[str]:
        """All reasons to refuse a change or a run."""
        return [reason for table in self.tables for reason in table.refused]


def plan(
    config: Config,
    tables: Sequence[str],
    spark: SparkSession | None = None,
    *,
    source: TopicSource | None = None,
    subjects: Subjects | None = None,
) -> Plan:
    """Preview the next runs of bronze and silver.

    Args:
        tables: topic names or globs.
        source: where the topics are (default: that of the settings).
        subjects: where the latest schemas are (default: the registry of the settings).

    Raises:
        UnknownTableError: a name or glob matches no topic and no bronze table.
        InfrastructureError, ConfigError: Kafka does not respond, and there is no bronze table to show.
    """

    @cache
    def session() -> SparkSession:
        return spark or build_session("cdc_lake plan", config.max_record_bytes)

    lake = lake_of(config)
    files = files_of(lake, spark)
    landed, view = lake.names(files), SourceView.of(config, session, source)
    run_plan, every = Plan(warnings=config.lake.warnings), sorted({*landed, *view.topics})
    if view.error is None:
        topics = select(tables, every, "topic or bronze table", "name a topic of Kafka")
        run_plan.warnings += _unmatched_settings(config, every)
    elif landed:
        topics = select(tables, landed, "bronze table", "name one of them, or run again when Kafka responds")
    else:
        raise view.error
    logs = view.logs(topics)
    run_plan.broker_error = str(view.error) if view.error else None
    newest = dict[str, SubjectVersion | None]()
    try:
        subjects = subjects or open_subjects(config.registry)
        newest = {topic: subjects.version(f"{topic}{VALUE_SUFFIX}") for topic in topics if topic in landed}
    except CdcLakeError as error:
        run_plan.registry_error = str(error)
    for topic in topics:
        look = _TopicPlanner(lake, topic, config.table(topic), newest.get(topic), topic in landed, session)
        run_plan.tables.append(look.bronze(files, logs.get(topic), view.source))
        if look.is_landed:
            run_plan.warnings += look.warnings()
            run_plan.tables += [look.silver(target) for target in lake.silver(topic)]
    for table in run_plan.tables:
        if is_table_name(topic_of(table.table)) and lake.was_leased(files, table.layer, table.table):
            leases = Leases(lake, config.lake.lease, HadoopFiles(session()), "", table.layer)
            holder = leases.holder(table.table)
            table.held_by = str(holder) if holder else None
    return run_plan


def _unmatched_settings(config: Config, topics: Sequence[str]) -> list[str]:
    """A warning for each entry of `tables` that matches none of the topics, for example because of a typo."""
    warnings = []
    for pattern in config.tables:
        if not any(fnmatchcase(topic, pattern) for topic in topics):
            near = similar_names(pattern, topics)
            hint = f"; similar names: {', '.join(near)}" if near else ""
            warnings.append(f"tables: {pattern} matches no topic{hint}")
    return warnings


@dataclass(frozen=True)
class _TopicPlanner:
    """Plans the next runs of one topic.

    Attributes:
        newest: the latest schema of the topic's values; None if the registry has none or does not respond.
        is_landed: whether bronze has a table; without one, the plan does not need Spark.
    """

    lake: Lake
    topic: str
    settings: TableConfig
    newest: SubjectVersion | None
    is_landed: bool
    session: Callable[[], SparkSession]

    def bronze(self, files: Files, log: TopicLog | None, source: TopicSource | None) -> TablePlan:
        table_plan = TablePlan(
            table=self.topic, layer="bronze", what="unknown: Kafka does not respond, or does not have the topic"
        )
        try:
            self.lake.check_is_in_no_table(files, "bronze", self.topic)
            progress = self.lake.bronze(self.session(), self.topic).progress() if self.is_landed else None
            if progress is None:
                check_holds_no_tables(files, self.lake.path("bronze", self.topic), self.topic)
        except ConfigError as error:
            table_plan.what = "nothing"
            table_plan.refused.append(str(error))
            return table_plan
        before = progress.position if progress else {}
        if log is None or source is None:
            return table_plan
        try:
            if log.problem:
                raise log.problem
            self.settings.check(self.topic)
            before = before if progress else offsets_of(self.settings.read.start, log, source)
        except CdcLakeError as error:
            table_plan.refused.append(str(error))
        left = unread(log, progress.offsets.get(log.id, {}) if progress else before)
        table_plan.consumed_from = {str(p): offset for p, offset in before.items()}
        table_plan.consumed_to = {str(p): span.end for p, span in log.partitions.items()}
        table_plan.records = count_offsets(left)
        if progress is None:
            table_plan.what = "creates the table" if table_plan.records else "nothing: the topic is empty"
        else:
            table_plan.what = "appends" if table_plan.records else "nothing"
            if log.id not in progress.offsets:
                table_plan.why.append("the topic was re-created: its records are landed as a new generation")
        most = self.settings.read.max_records_per_batch
        batches = -(-table_plan.records // most)
        if batches > 1:
            table_plan.why.append(f"in {batches} batches of at most {most} records")
        return table_plan

    def warnings(self) -> list[str]:
        bronze = self.lake.bronze(self.session(), self.topic)
        hole = missing_rows(bronze, progress_of(bronze), bronze.version())
        return [f"{self.topic}: {hole}"] if hole else []

    def silver(self, target: SilverTarget) -> TablePlan:
        settings = self.settings
        table, progress = SilverTable.open_to_refold(self.lake, target, self.session(), settings)
        table, landed = table.with_current_key(progress.key_from if progress else None), table.landed
        known = table.bronze.reached_by(progress, landed)
        is_compared, reached = progress is not None and known is None, known or 0
        table_plan = TablePlan(
            table=target.name,
            layer="silver",
            what="nothing",
            consumed_from={"bronze": reached},
            consumed_to={"bronze": landed.commit},
        )
        after = None if progress is None or table.known is None else LayoutChange(table.known, (), progress.retired)
        batch = None
        if reached < landed.commit:
            rows = table.bronze_rows.where((F.col("batch") > reached) & (F.col("status") == "ok"))
            batch = Batch.of(table, (reached + 1, landed.commit), progress, rows, is_comparison=is_compared)
            table_plan.records = batch.counts.total
            table_plan.what, table_plan.why = _describe_merge(batch)
        try:
            table.check_columns()
            if is_compared and progress is not None:
                table.check_not_behind(progress)
            if batch is not None and batch.counts.total and (schemas := batch.find_schemas()) is not None:
                after = schemas.layout_change
                table_plan.warnings = [*_partial_rows(batch, schemas), *_order_by_time(batch)]
                table_plan.steps = _planned_steps(table, after)
                check_steps(target.name, after.steps, settings.schema_.evolution)
            if after is not None:
                announced = self._announced(table, after)
                table_plan.announced = _planned_steps(table, announced)
                check_steps(f"{self.topic}{VALUE_SUFFIX} in the registry", announced.steps, settings.schema_.evolution)
        except CdcLakeError as error:
            table_plan.refused.append(str(error))
        return table_plan

    def _announced(self, table: SilverTable, after: LayoutChange) -> LayoutChange:
        """The columns with the latest registry schema.

        Args:
            after: the columns with bronze's records.
        """
        if self.newest is None:
            return replace(after, steps=())
        schema = avro_schema(self.newest.text).of_table(table.settings)
        try:
            sent = sent_columns([], [schema], schema)
        except SchemaError as exc:
            cure = "fix the schema in the registry, or its records will be quarantined"
            raise UnsupportedError(f"{self.topic}{VALUE_SUFFIX}, version {self.newest.number}", str(exc), cure) from exc
        return evolve_layout(
            table.name, sent, stored=after.layout, retired=after.retired, column_mapping=table.column_mapping
        )


def _planned_steps(table: SilverTable, after: LayoutChange) -> list[PlannedStep]:
    size = table.silver.size() if after.is_wider else 0
    return [
        PlannedStep(words=step.words, ddl=step.ddl(table.name), rewritten_bytes=size if step.kind == "widen" else 0)
        for step in after.steps
    ]


def _partial_rows(batch: Batch, schemas: BatchSchemas) -> list[str]:
    """Warnings about updates that send null for unchanged columns."""
    if batch.table.settings.envelope.null_means_unchanged:
        return []
    sources = [source_fields(schema.tree) for schema in schemas.values]
    advice = "set binlog_row_image=full on the database server, or list such columns in envelope.null_means_unchanged"
    if any("vgtid" in names for names in sources):
        return [f"Vitess sends null for columns that the binlog omits; {advice}"]
    if not any("server_id" in names for names in sources):
        return []
    keys = {name for tree in schemas.key_trees for name in key_fields(tree)}
    rows, layouts = with_decoded_values(
        batch.rows.where(F.col("op") == "u"),
        {schema.fingerprint: (schema,) for schema in schemas.values},
        body=framing.body(F.col("raw_value"), F.col("framing")["value"], schemas.frames),
        named=F.col("value_schema"),
        before=None,
    )

    def is_bare(layout: DecodedLayout) -> Column | None:
        """Whether `before` has only the key's columns; null if there is no `before`."""
        non_keys = [name for name in row_fields(layout.tree) if name not in keys]
        if shape_of(layout.tree) != "envelope" or "before" not in fields(layout.tree) or not non_keys:
            return None
        before = before_row_of(layout.tree, layout.value)
        return F.when(before.isNotNull(), reduce(and_, (before[name].isNull() for name in non_keys)))

    if rows.agg(F.bool_and(layouts.chosen(is_bare).cast("boolean"))).collect()[0][0]:
        return [f"the updates have only the key in `before`, so unchanged columns are null; {advice}"]
    return []


def _order_by_time(batch: Batch) -> list[str]:
    """A warning if changes have a time but no position."""
    settings = batch.table.settings
    if settings.is_in_log_order or settings.merge.mode == "append":
        return []
    has_only_time = F.col("source_position").isNull() & F.col("source_ts_ms").isNotNull()
    is_unplaced = is_change(F.col("op"), F.col("snapshot")) & has_only_time
    if batch.rows.where(is_unplaced).isEmpty():
        return []
    return [
        "changes have no position, so a clock that is set back makes newer ones look replayed; send the position's "
        "fields (docs/reference/connectors.md), or set merge.order: log"
    ]


def _describe_merge(batch: Batch) -> tuple[str, list[str]]:
    """How silver would process a batch, with the reasons."""
    counts, table = batch.counts, batch.table
    if not counts.total:
        return "advances", ["bronze's new batches contain no events"]
    if batch.progress is None:
        return "creates the table", []
    if table.settings.merge.mode == "append":
        return "appends", []
    if batch.is_comparison:
        return "compares all of bronze with silver, key by key", [
            "silver was merged from another bronze table, from an earlier state of it, or has no known position"
        ]
    why = []
    if is_little(rows=counts.total, stored_bytes=table.silver.size()):
        why.append("few records: one partition, without code generation")
    if counts.late:
        why.append(f"{counts.late} records were replayed: their keys are refolded from all of bronze")
    if counts.truncates:
        why.append(f"{counts.truncates} truncates: every row of the table is read")
    if counts.markers and table.settings.deletes.missing_after_snapshot:
        why.append("a snapshot began or ended: rows that are not in it are deleted")
    if table.partitions > 1:
        why.append(f"{table.partitions} partitions: keys that changed partition are refolded from all of bronze")
    return "merges", why
