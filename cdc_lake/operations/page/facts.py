"""Everything that the page shows, read from reports, logs and quarantined records without Spark."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError
from pyspark.sql.types import StructType

from cdc_lake.columns import SILVER_META
from cdc_lake.config import Config, TableConfig
from cdc_lake.config.gold_models import model_names, read_model
from cdc_lake.errors import CdcLakeError, ConfigError
from cdc_lake.lake.lake import Lake, SilverTarget
from cdc_lake.lake.readers import FilesReader, without_spark
from cdc_lake.operations.quarantine import ReasonGroup, utc_time
from cdc_lake.operations.status import LatestRuns, TableStatus, read_topic
from cdc_lake.operations.story import Story, position_text
from cdc_lake.runs.context import PARALLEL_READS, lake_of, latest_reports
from cdc_lake.runs.report import Report
from cdc_lake.spark.session import lake_files
from cdc_lake.storage.files import Files
from cdc_lake.tables.newest import newest_rows, newest_schema, rows_where

_NEEDS_SPARK = "only Spark can read this table; see `cdc-lake status`"
_COORDINATES = ("generation", "partition", "offset")


class LineageColumn(NamedTuple):
    """A column of silver.

    Attributes:
        source: the source's column; empty for the columns that cdc_lake adds.
        note: `key`, which column it is a variant of, or that the source no longer sends it.
        models: gold models that read the table, and whose query contains the column's name.
    """

    name: str
    type: str
    source: str
    note: str
    models: Sequence[str]


class TopicFacts(NamedTuple):
    """A topic and its tables.

    Attributes:
        rows: how many rows bronze landed; None if unknown.
        tables: the status of bronze, and of each silver table. Bronze's lag is that of its last run.
        columns: the columns of the first silver table; None if the table does not exist, or only Spark can read them.
        reasons: why records are quarantined, the most frequent first.
    """

    name: str
    rows: int | None
    tables: Sequence[TableStatus]
    columns: Sequence[LineageColumn] | None
    models: Sequence[str]
    reasons: Sequence[ReasonGroup]


class ModelFacts(NamedTuple):
    """A gold model.

    Attributes:
        query: its SQL, without the comments of the header.
        columns: name and type; None if the table does not exist, or only Spark can read them.
        status: the last run; `commit` is None.
        error: why the model's file cannot be read.
    """

    name: str
    description: str
    keys: Sequence[str]
    topics: Sequence[str]
    query: str
    columns: Sequence[tuple[str, str]] | None
    status: TableStatus
    error: str | None = None


class PageFacts(NamedTuple):
    """The lake at one moment.

    Attributes:
        reports: oldest first.
        stories: biographies of keys.
    """

    root: str
    at: datetime
    reports: Sequence[Report]
    topics: Sequence[TopicFacts]
    models: Sequence[ModelFacts]
    stories: Sequence[Story]


def read_facts(config: Config, *, runs: int, stories: Sequence[Path] = ()) -> PageFacts:
    """Read what the page shows.

    Args:
        runs: the number of latest reports to read.
        stories: files with the output of `cdc-lake story --json`.

    Raises:
        ConfigError: the lake has no table and no report, or a file does not have a story.
        InstallationError: the lake is in a store, and Java does not start.
    """
    lake = lake_of(config)
    saved = [_story(file) for file in stories]
    files = lake_files(lake.root, None)
    reports = latest_reports(files, lake, runs)
    names = lake.names(files)
    if not names and not reports:
        raise ConfigError(
            lake.root, "there is no table and no report", "check `lake.root`, or run the bronze job first"
        )
    models = [_model(config, lake, files, name) for name in model_names(Path(config.gold.models))]
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        topics = list(pool.map(lambda name: _topic(config.table(name), lake, files, name, models), names))
    statuses = [*(status for topic in topics for status in topic.tables), *(model.status for model in models)]
    runs_of_tables = LatestRuns.of(reports)
    for status in statuses:
        runs_of_tables.add_to(status)
    _add_last_lag(statuses, reports)
    return PageFacts(lake.root, datetime.now(UTC), reports[::-1], topics, models, saved)


def _story(file: Path) -> Story:
    try:
        return Story.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as exc:
        raise ConfigError(str(file), "it is not a story", "write it with `cdc-lake story … --json`") from exc


def _topic(settings: TableConfig, lake: Lake, files: Files, name: str, models: Sequence[ModelFacts]) -> TopicFacts:
    targets = lake.silver(name)
    reader = FilesReader(lake, files)
    known = without_spark(partial(read_topic, lake, reader, name))
    reading = [model for model in models if name in model.topics]
    if known is None:
        layers = [("bronze", name), *(("silver", target.name) for target in targets)]
        tables = [TableStatus(table=table, layer=layer, commit=None, error=_NEEDS_SPARK) for layer, table in layers]
        rows, reasons = None, list[ReasonGroup]()
    else:
        progress, tables = known[0]
        rows = progress.total_rows
        reasons = _reasons(files, lake.path("bronze", name), name) if tables[0].quarantined else []
    columns = _columns(settings, targets[0], files, reading)
    return TopicFacts(name, rows, tables, columns, [model.name for model in reading], reasons)


def _reasons(files: Files, path: str, topic: str) -> list[ReasonGroup]:
    latest = newest_rows(files, path)
    columns = ["status", "error", "kafka_timestamp", *_COORDINATES]
    is_quarantined = pc.field("status") == "quarantined"
    rows = latest and rows_where(files, latest[1], is_quarantined, columns, least={"status": "quarantined"})
    if not rows:  # a run has replayed them since
        return []
    parts = ("stage", "code", "message")
    times = rows["kafka_timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    described = {name: pc.fill_null(pc.struct_field(rows["error"], name), "") for name in parts}
    table = pa.table({**described, "us": times, **{name: rows[name] for name in _COORDINATES}})
    first = [(name, "first") for name in _COORDINATES]
    groups = table.group_by(parts, use_threads=False).aggregate(
        [([], "count_all"), ("us", "min"), ("us", "max"), *first]
    )
    reasons = [
        ReasonGroup(
            table=topic,
            stage=group["stage"],
            code=group["code"],
            reason=group["message"],
            records=group["count_all"],
            first=utc_time(group["us_min"] // 1000),
            last=utc_time(group["us_max"] // 1000),
            example=position_text([group[f"{name}_first"] for name in _COORDINATES]),
        )
        for group in groups.to_pylist()
    ]
    return sorted(reasons, key=lambda reason: -reason.records)


def _columns(
    settings: TableConfig, target: SilverTarget, files: Files, models: Sequence[ModelFacts]
) -> list[LineageColumn] | None:
    newest = target.newest(files)
    schema = _schema(files, target.path, target.storage.format)
    if newest is None or schema is None:
        return None
    progress = newest.progress
    notes = {column: f"variant of {of}" for column, of in progress.variants.items()}
    notes |= dict.fromkeys(progress.retired, "no longer sent")
    notes |= dict.fromkeys(progress.keys, "key")
    sources = {silver: source for source, silver in settings.schema_.rename.items()}

    def described(name: str, type: str) -> LineageColumn:
        own = progress.variants.get(name, name)
        source = "" if name in SILVER_META else sources.get(own, own)
        naming = [model.name for model in models if _contains_name(model.query, name)]
        return LineageColumn(name, type, source, notes.get(name, ""), naming)

    return [described(field.name, field.dataType.simpleString()) for field in schema]


def _contains_name(query: str, name: str) -> bool:
    """Whether a query contains a column's name as a whole word."""
    words = "".join(character if character.isalnum() or character in "_$" else " " for character in query.casefold())
    return name.casefold() in words.split()


def _model(config: Config, lake: Lake, files: Files, name: str) -> ModelFacts:
    status = TableStatus(table=name, layer="gold", commit=None)
    try:
        model = read_model(Path(config.gold.models) / f"{name}.sql")
    except CdcLakeError as error:
        return ModelFacts(name, "", (), (), "", None, status, str(error))
    header = model.header
    schema = _schema(files, lake.path("gold", name), header.table.format)
    columns = None if schema is None else [(field.name, field.dataType.simpleString()) for field in schema]
    topics = list(dict.fromkeys(header.topics.values()))
    query = "\n".join(line for line in model.text.splitlines() if not line.startswith("--"))
    return ModelFacts(name, header.description, header.keys, topics, query, columns, status)


def _schema(files: Files, path: str, format: str) -> StructType | None:
    """The columns of a table; None for Hudi, whose types only Spark converts."""
    return newest_schema(files, path) if format == "delta" else None


def _add_last_lag(statuses: Sequence[TableStatus], reports: Sequence[Report]) -> None:
    """Add the offsets that bronze's last run did not read.

    Args:
        reports: newest first.
    """
    lags: dict[str, int] = {}
    for report in reports:
        for table_report in report.tables if report.layer == "bronze" else ():
            if table_report.lag_after:
                lags.setdefault(table_report.table, sum(table_report.lag_after.values()))
    for status in statuses:
        if status.layer == "bronze":
            status.behind_records = lags.get(status.table)
