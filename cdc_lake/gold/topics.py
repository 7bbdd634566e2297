"""Gold's topics: the schemas that their subjects should have, and the rows of the tables, sent at least once.

The table is committed first. Then the rows of every key changed since the last commit that was sent completely are due,
until a commit records that they were sent: `sent` in the table's progress.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_lake import failpoints
from cdc_lake.columns import GONE, quoted
from cdc_lake.config import Config, GoldConfig
from cdc_lake.config.gold_models import GoldModel, Header, model_names, read_model
from cdc_lake.errors import ExpiredError
from cdc_lake.lake.lake import Lake
from cdc_lake.registries.subjects import KEY_SUFFIX, VALUE_SUFFIX
from cdc_lake.runs.context import lake_of, select, select_landed
from cdc_lake.runs.report import TableReport
from cdc_lake.sinks.avro import topic_schemas
from cdc_lake.sinks.kafka import KafkaSink
from cdc_lake.spark.session import build_session
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import Commit, Table
from cdc_lake.tables.joins import null_safe_join
from cdc_lake.tables.progress import GoldProgress, Sent


@dataclass(frozen=True)
class SubjectSchema:
    """The schema that a subject should have.

    Attributes:
        origin: its file, or the model whose table it follows from.
    """

    subject: str
    text: str
    origin: str


def subject_schemas(config: Config, patterns: Sequence[str]) -> list[SubjectSchema]:
    """The schemas of the subjects that match `patterns` (names or globs): handwritten, or derived from models' tables.

    Raises:
        UnknownTableError: a pattern matches none, or the table of a requested model does not exist yet.
        ModelError: the header of a model is wrong.
        IncompatibleSchemaError: Avro has no such columns, or a handwritten schema does not fit them.
    """
    files = {file.stem: file for file in sorted(Path(config.gold.schemas).glob("*.avsc"))}
    models = _by_subject(Path(config.gold.models))
    cure = f"write it to {config.gold.schemas}/<subject>.avsc, or give a model a `topic`"
    names = select(patterns, sorted({*files, *models}), "schema", cure)
    derived: Mapping[str, SubjectSchema] = {}
    if tables := {models[name].header.name: models[name] for name in names if name not in files}:
        spark = build_session("cdc_lake schemas", config.max_record_bytes)
        derived = _derived(lake_of(config), config.gold, spark, tables)
    return [
        SubjectSchema(name, files[name].read_text(encoding="utf-8"), str(files[name]))
        if name in files
        else derived[name]
        for name in names
    ]


def _by_subject(folder: Path) -> dict[str, GoldModel]:
    models = [read_model(folder / f"{name}.sql") for name in model_names(folder)]
    return {
        f"{model.header.topic.topic}{suffix}": model
        for model in models
        if model.header.topic
        for suffix in (KEY_SUFFIX, VALUE_SUFFIX)
    }


def _derived(
    lake: Lake, settings: GoldConfig, spark: SparkSession, models: Mapping[str, GoldModel]
) -> dict[str, SubjectSchema]:
    """The schemas that follow from models' tables, by subject."""
    select_landed(lake, HadoopFiles(spark), list(models), "gold")
    by_subject = {}
    for name, model in models.items():
        header = model.header
        assert header.topic is not None, "a model of a subject has a topic"
        columns = lake.gold(spark, name, header.table).read().schema
        folder, topic = Path(settings.schemas), header.topic.topic
        schemas = topic_schemas(spark, columns, header.keys, topic, folder, doc=header.description)
        for suffix, text in ((KEY_SUFFIX, schemas.key), (VALUE_SUFFIX, schemas.value)):
            by_subject[f"{topic}{suffix}"] = SubjectSchema(f"{topic}{suffix}", text, f"model {name}")
    return by_subject


def is_due(header: Header, progress: GoldProgress | None) -> bool:
    """Whether there may be rows that were not sent."""
    if header.topic is None or progress is None:
        return header.topic is not None
    return progress.sent.get(header.topic.topic) != Sent(commit=progress.commit, is_whole=True)


def send_due(
    gold: Table[GoldProgress], header: Header, sink: KafkaSink, run_id: str, report: TableReport
) -> Commit[GoldProgress]:
    """Send what is due, and commit that it was sent.

    Raises:
        IncompatibleSchemaError, ConfigError, InfrastructureError: see `KafkaSink.send`.
        TableLockedError: another run has committed meanwhile; it sends again what is due then.
    """
    progress, topic = gold.progress(), header.topic
    assert progress is not None and topic is not None, "the table was made, and has a topic"
    if topic.topic not in progress.sent:
        # Otherwise, if this send dies midway, keys deleted before the next send would get no tombstone.
        progress = gold.advance(_with_sent(progress, topic.topic, run_id, is_whole=False)).progress
    rows = _due(gold, header.keys, progress.sent[topic.topic], report).persist()
    try:
        sent = sink.send(rows, keys=header.keys, batch=progress.commit, doc=header.description)
    finally:
        rows.unpersist()
    failpoints.reach("gold.after_send", batch=progress.commit)
    report.count(sent=sent)
    return gold.advance(_with_sent(progress, topic.topic, run_id, is_whole=True))


def _with_sent(progress: GoldProgress, topic: str, run_id: str, *, is_whole: bool) -> GoldProgress:
    return progress.next(run_id, sent={topic: Sent(commit=progress.commit + 1, is_whole=is_whole)})


def _due(gold: Table[GoldProgress], keys: Sequence[str], sent: Sent, report: TableReport) -> DataFrame:
    """The rows to send: the table's columns, and `__gone`, whether the key no longer has a row.

    A table whose topic cannot be reached gets no new commits, so few commits are ever due at once.
    """
    rows = gold.read().withColumn(GONE, F.lit(False))
    try:
        touched = _touched(gold, keys, sent.commit)
    except ExpiredError as error:
        report.warn(
            f"all rows are sent again, because {error.what}; keys deleted since get no tombstone: have consumers "
            "reload from an emptied topic"
        )
        return rows
    gone = null_safe_join(touched, rows, keys, "left_anti").withColumn(GONE, F.lit(True))
    existing = null_safe_join(rows, touched, keys, "left_semi") if sent.is_whole else rows
    return existing.unionByName(gone, allowMissingColumns=True)


def _touched(gold: Table[GoldProgress], keys: Sequence[str], since: int) -> DataFrame:
    """The keys changed by the commits after `since`."""
    history = gold.history()
    start = next((entry.version for entry in history if entry.progress and entry.progress.commit == since), None)
    if start is None:
        what = f"commit {since}, the last that was sent, is no longer known"
        raise ExpiredError(gold.id(), what, "name a newer one")
    versions = [entry.version for entry in history if entry.version >= start]
    named = [_differing_keys(*gold.differing(*pair), keys) for pair in zip(versions[1:], versions, strict=False)]
    nothing = gold.read().select(*map(quoted, keys)).limit(0)
    return reduce(DataFrame.unionByName, named, nothing).distinct().localCheckpoint()


def _differing_keys(before: DataFrame, after: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The keys whose rows differ; all, if the rows cannot be compared."""
    names = [quoted(name) for name in keys]
    if before.schema.simpleString() != after.schema.simpleString() or "map<" in after.schema.simpleString():
        return before.select(*names).unionByName(after.select(*names))
    rows_before, rows_now = (
        null_safe_join(rows, others, rows.columns, "left_anti").select(*names)
        for rows, others in ((before, after), (after, before))
    )
    return rows_before.unionByName(rows_now)
