"""The schemas that the subjects of gold's topics should have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from cdc_lake.config import Config, GoldConfig
from cdc_lake.config.gold_models import GoldModel, model_names, read_model
from cdc_lake.lake.lake import Lake
from cdc_lake.registries.subjects import KEY_SUFFIX, VALUE_SUFFIX
from cdc_lake.runs.context import lake_of, open_gold, select, select_landed
from cdc_lake.sinks.avro import topic_schemas
from cdc_lake.spark.session import build_session
from cdc_lake.storage.hadoop import Storage


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
    todo = f"write it to {config.gold.schemas}/<subject>.avsc, or give a model a `topic`"
    names = select(patterns, sorted({*files, *models}), "schema", todo)
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
    select_landed(lake, Storage(spark), list(models), "gold")
    found = {}
    for name, model in models.items():
        header = model.header
        assert header.topic is not None, "a model of a subject has a topic"
        columns = open_gold(lake, settings.models, name, spark).read().schema
        folder, topic = Path(settings.schemas), header.topic.topic
        schemas = topic_schemas(spark, columns, header.keys, topic, folder, doc=header.description)
        for suffix, text in ((KEY_SUFFIX, schemas.key), (VALUE_SUFFIX, schemas.value)):
            found[f"{topic}{suffix}"] = SubjectSchema(f"{topic}{suffix}", text, f"model {name}")
    return found
