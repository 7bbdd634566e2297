"""The demo without servers: a recorded topic goes through bronze, silver and gold, and is compared with its source.

`recording/film.json.gz` has the bytes that Debezium and a registry sent for the sample's table `film`, and the rows
that Postgres had at the end. `python -m tests.record demo` makes it. The layers run in this process, in one Spark
session.
"""

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, GoldConfig, LakeConfig
from cdc_lake.demo.comparer import ComparedColumn, Row, columns_of, compare_rows, count_differences, frozen
from cdc_lake.demo.result import Show, run_step
from cdc_lake.errors import CdcLakeError, ConfigError
from cdc_lake.gold.run import run_gold
from cdc_lake.registries.registry import RegisteredSchema
from cdc_lake.runs.report import Report
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver
from cdc_lake.sources.logs import RECORD_COLUMNS, Span, TopicLog
from cdc_lake.spark.arrow_stage import from_rows
from cdc_lake.spark.session import build_session
from cdc_lake.tables.progress import Identity

MODELS: Final = Path(__file__).with_name("recording")
RECORDING: Final = MODELS / "film.json.gz"
TOPIC: Final = "pagila.public.film"
MODEL: Final = "films_per_rating"
SETTINGS: Final = "recorded-demo.yml"
"""The file in the demo's folder with the lake's settings, which marks the folder as the demo's."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class RecordedMessage:
    """A record of the topic, with the bytes of its key and value."""

    partition: int
    offset: int
    timestamp_ms: int
    headers: Sequence[tuple[str, bytes]]
    key: bytes
    value: bytes


class RecordedTopic:
    """A recorded topic instead of Kafka; see `cdc_lake.sources.logs.TopicSource`.

    Args:
        records: the records of one partition, in order.
    """

    name = "a recorded topic"

    def __init__(self, records: Sequence[RecordedMessage]) -> None:
        self._records = records

    def warnings(self, topic: str) -> Sequence[str]:
        return ()

    def topics(self) -> list[str]:
        return [TOPIC]

    def logs(self, topics: Sequence[str]) -> dict[str, TopicLog]:
        first, last = self._records[0], self._records[-1]
        return {TOPIC: TopicLog(TOPIC, "recorded", {first.partition: Span(first.offset, last.offset + 1)})}

    def read(self, spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        rows = [
            (r.key, r.value, topic, r.partition, r.offset, _EPOCH + timedelta(milliseconds=r.timestamp_ms), r.headers)
            for r in self._records
            if spans[r.partition].start <= r.offset < spans[r.partition].end
        ]
        return from_rows(spark, rows, RECORD_COLUMNS)

    def read_around(
        self, spark: SparkSession, topic: str, spans: Mapping[int, Span]
    ) -> tuple[Mapping[int, Span], DataFrame]:
        """See `TopicSource`. All timestamps are in Spark's range."""
        return spans, self.read(spark, topic, spans)

    def offsets_at(self, log: TopicLog, timestamp_ms: int) -> dict[int, int]:
        return {
            partition: next((r.offset for r in self._records if r.timestamp_ms >= timestamp_ms), span.end)
            for partition, span in log.partitions.items()
        }

    def timestamps_ms(self, topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        return {r.partition: r.timestamp_ms for r in self._first(offsets)}

    def first_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Identity]:
        return {r.partition: Identity.of(r.offset, r.timestamp_ms, r.key, r.value) for r in self._first(offsets)}

    def skipped_records(self, spans: Mapping[int, Span], records: int) -> int:
        return 0

    def _first(self, offsets: Mapping[int, int]) -> list[RecordedMessage]:
        """The first record at or after each offset."""
        return [r for offset in offsets.values() for r in [r for r in self._records if r.offset >= offset][:1]]


@dataclass(frozen=True)
class RecordedRegistry:
    """Recorded responses instead of a registry; see `cdc_lake.registries.registry.Registry`.

    Args:
        texts: the schemas by kind and id, such as `contentId:3`.
    """

    texts: Mapping[str, str]
    name = "a recorded registry"
    namespaces = ("contentId", "globalId")

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        text = self.texts.get(f"{kind}:{schema_id}")
        return None if text is None else RegisteredSchema(text)

    def check(self) -> None:
        """See `Registry`. A recording always responds."""


@dataclass(frozen=True)
class Recording:
    """The content of a recording.

    Attributes:
        snapshot: how many of them the snapshot sent.
        schemas: see `RecordedRegistry`.
        story_key: a film with a long story, which includes the replayed and the broken record.
        catalog: the table's columns, as `comparer.CATALOG` returns them.
        rows: the table's rows at the end, each as a JSON array from Postgres with the columns that the comparer reads.
        gold: the rows of the model, each a JSON object that Postgres computed and wrote.
    """

    records: Sequence[RecordedMessage]
    snapshot: int
    schemas: Mapping[str, str]
    story_key: int
    catalog: Sequence[Sequence[Any]]
    rows: Sequence[str]
    gold: Sequence[str]


def read_recording() -> Recording:
    """Read the recording of the package."""
    content = json.loads(gzip.decompress(RECORDING.read_bytes()))
    records = [
        RecordedMessage(
            partition=record["partition"],
            offset=record["offset"],
            timestamp_ms=record["timestamp_ms"],
            headers=[(name, bytes.fromhex(value)) for name, value in record["headers"]],
            key=bytes.fromhex(record["key"]),
            value=bytes.fromhex(record["value"]),
        )
        for record in content["records"]
    ]
    names = ("snapshot", "schemas", "story_key", "rows", "gold")
    return Recording(records, catalog=content["catalogue"], **{name: content[name] for name in names})


@dataclass
class RecordedResult:
    """The result of the demo.

    Attributes:
        bronze_rows: the number of bronze rows, of which `quarantined` are quarantined.
        silver_rows: without deleted ones.
        source_rows: the number of rows in Postgres at the end.
        differences: layer -> records that bronze lacks, has twice or with other bytes; differing rows or cells of
            silver; rows of gold that only one of both has.
        samples: the first differences of silver.
        parts: name of a step -> its seconds, in the order in which they ran.
        seconds: time of all steps.
    """

    records: int = 0
    bronze_rows: int = 0
    quarantined: int = 0
    silver_rows: int = 0
    source_rows: int = 0
    gold_rows: int = 0
    differences: dict[str, int] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 only if nothing differs."""
        return 1 if any(self.differences.values()) else 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def run_recorded(folder: Path, recording: Recording, show: Show) -> RecordedResult:
    """Run the three layers twice, on the snapshot and on the changes, and compare the lake with the recording.

    Args:
        folder: for the lake; an earlier lake of this demo is replaced.
        recording: what to process, and what to compare the lake with.

    Raises:
        ConfigError: the folder has other files.
        InstallationError: Java, Spark or a jar is missing.
        CdcLakeError: a layer failed.
    """
    config, result = _prepare(folder.resolve()), RecordedResult()
    layers = _Layers(config, RecordedRegistry(recording.schemas))
    snapshot, all_records = recording.records[: recording.snapshot], recording.records
    steps: tuple[tuple[str, str, Callable[[], str]], ...] = (
        ("session", "start Spark", layers.start),
        ("bronze", "store the snapshot", lambda: layers.bronze(snapshot)),
        ("silver", "merge the snapshot", layers.silver),
        ("gold", "compute the SQL model", layers.gold),
        ("bronze again", "store the changes", lambda: layers.bronze(all_records)),
        ("silver again", "merge the changes", layers.silver),
        ("gold again", "refresh the SQL model", layers.gold),
        ("compare", "each row with Postgres' rows", lambda: prove(recording, folder / "lake", result)),
    )
    for part, text, do in steps:
        with run_step(show, result.parts, part.split()[0], text, part=part) as step:
            step.text = do()
    result.seconds = round(sum(result.parts.values()), 1)
    return result


def _prepare(folder: Path) -> Config:
    """Make the folder, without a lake, and the settings of the runs, which are also written for later commands."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / SETTINGS).is_file():
        raise ConfigError(str(folder), "it contains files that the demo did not create", "use another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "lake", ignore_errors=True)
    settings = {"lake": {"root": "lake"}, "gold": {"models": str(MODELS)}}
    (folder / SETTINGS).write_text(yaml.safe_dump(settings), encoding="utf-8")
    return Config(lake=LakeConfig(root=str(folder / "lake")), gold=GoldConfig(models=str(MODELS)))


class _Layers:
    """The runs of the layers in one Spark session. Each returns what it did."""

    def __init__(self, config: Config, registry: RecordedRegistry) -> None:
        self._config = config
        self._registry = registry
        self._scheduler = TableScheduler()

    def start(self) -> str:
        self._scheduler = TableScheduler(spark=build_session("cdc_lake demo", is_short=True))
        return "Spark is started, once for the three layers"

    def bronze(self, records: Sequence[RecordedMessage]) -> str:
        topic = RecordedTopic(records)
        report = run_bronze(self._config, [TOPIC], source=topic, registry=self._registry, scheduler=self._scheduler)
        rows = _rows(report)
        return f"{rows['read']} records stored, {rows['quarantined']} of them quarantined"

    def silver(self) -> str:
        rows = _rows(run_silver(self._config, [TOPIC], scheduler=self._scheduler))
        return f"{rows['events']} events merged by primary key, {rows['stale']} of them stale"

    def gold(self) -> str:
        rows = _rows(run_gold(self._config, [MODEL], scheduler=self._scheduler))
        return f"{rows['written']} rows of 1 SQL model written"


def _rows(report: Report) -> Mapping[str, int]:
    """The counts of the only table of a run."""
    (table_report,) = report.tables
    if table_report.error:
        cure = "report this with your versions of Java and Spark"
        raise CdcLakeError(f"the {report.layer} layer", f"it failed: {table_report.error.message}", cure)
    return Counter(table_report.rows)


def prove(recording: Recording, lake: Path, result: RecordedResult) -> str:
    """Compare the lake with the recording, add the outcome to the result, and return a description.

    It reads the lake with delta-rs. What it expects are the recorded bytes, and what Postgres wrote.
    """
    columns = columns_of(recording.catalog)
    bronze = DeltaTable(str(lake.joinpath("bronze", *TOPIC.split(".")))).to_pyarrow_table()
    landed = zip(*(bronze[name].to_pylist() for name in ("partition", "offset", "raw_key", "raw_value")), strict=True)
    silver = str(lake.joinpath("silver", *TOPIC.split(".")))
    compared = compare_rows(columns, partial(_source_rows, recording, columns), silver)
    expected = [_of_postgres(row) for row in recording.gold]
    gold = DeltaTable(str(lake / "gold" / MODEL)).to_pyarrow_table(columns=list(expected[0])).to_pylist()
    result.records, result.bronze_rows = len(recording.records), bronze.num_rows
    result.quarantined = bronze["status"].to_pylist().count("quarantined")
    result.silver_rows, result.source_rows, result.gold_rows = compared.lake_rows, compared.source_rows, len(gold)
    result.differences = {
        "bronze": count_differences(((r.partition, r.offset, r.key, r.value) for r in recording.records), landed),
        "silver": compared.differences,
        "gold": count_differences(map(_items, expected), map(_items, gold)),
    }
    result.samples = list(map(str, compared.samples))
    total = sum(result.differences.values())
    return f"{compared.source_rows} rows of {len(columns)} columns with Postgres' rows: {total} differences"


def _items(row: Mapping[str, Hashable]) -> Hashable:
    return tuple(row.items())


def _of_postgres(text: str) -> Any:
    """JSON that Postgres wrote; decimals keep their digits."""
    return json.loads(text, parse_float=Decimal)


def _source_rows(
    recording: Recording, table: Sequence[ComparedColumn], columns: Sequence[ComparedColumn]
) -> Iterator[Row]:
    """The recorded values of some columns of the table, in the form that `compare_rows` takes."""
    places = [table.index(column) for column in columns]
    is_binary = [recording.catalog[place][1] == "bytea" for place in places]
    for row in map(_of_postgres, recording.rows):
        yield frozen(
            bytes.fromhex(cell.removeprefix("\\x")) if binary and cell is not None else cell
            for cell, binary in zip((row[place] for place in places), is_binary, strict=True)
        )
