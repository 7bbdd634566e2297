"""From Kafka records to bronze and silver with the product, for tests without a broker and a registry."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.bronze.decide import with_decision
from cdc_lake.bronze.log_order import LastRecord, log_order, with_log_order
from cdc_lake.bronze.references import Names, resolve
from cdc_lake.bronze.run import run_bronze
from cdc_lake.bronze.schema_resolution import SIDES, scan_records
from cdc_lake.bronze.usable_schemas import Schemas
from cdc_lake.config import TABLE_TYPES, Config, IcebergConfig, LakeConfig, TableConfig
from cdc_lake.decode.records import WriterSchema
from cdc_lake.errors import TableLockedError
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.silver.run import run_silver
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.iceberg_catalog import IcebergName
from cdc_lake.tables.progress import Progress, SilverProgress
from support.events import FakeRegistry, Record, Topic
from support.fakes import FakeBroker, kafka

Sends = TypeVar("Sends", bound=Callable[..., list[Record]])


def decided(spark: SparkSession, registry: FakeRegistry, records: Sequence[Record], **framings: Any) -> DataFrame:
    """Bronze's decisions about each record; schemas of any table are accepted."""
    rows, seen = scan_records(kafka(spark, records), TableConfig(**framings))
    schemas = {
        side: Schemas.of(*_meanings(registry, seen.references[side]), side=side, settings=TableConfig())
        for side in SIDES
    }
    return with_decision(rows, schemas["key"], schemas["value"], seen.frames, TableConfig())


def in_log_order(records: DataFrame, before: Mapping[int, LastRecord] = MappingProxyType({})) -> DataFrame:
    """Decided records with their Kafka positions."""
    order = log_order(records, before)
    return with_log_order(records, before, order.where(~F.col("is_plain")))


def one_winner(commit: Callable[[int], object], numbers: Sequence[int]) -> int:
    """The number that was committed, of several at the same time; the others must be locked."""

    def tried(number: int) -> int | str:
        try:
            commit(number)
        except TableLockedError as error:
            return error.code
        return number

    with ThreadPoolExecutor(len(numbers)) as pool:
        ended = list(pool.map(tried, numbers))
    (winner,) = (one for one in ended if isinstance(one, int))
    assert "CDC-600" in ended
    return winner


def by_offset(rows: DataFrame) -> list[Row]:
    """The rows in the order of their offsets, sorted here: for its sample, Spark would run the plan twice."""
    return sorted(rows.collect(), key=lambda row: int(row["offset"]))


class Cases:
    """Records of many tests, decided at once, because planning takes longer than all the records.

    A case is a function that takes a registry, and a variant if it has several, and returns records.
    """

    def __init__(self) -> None:
        self._all: list[tuple[Any, ...]] = []

    def of(self, *variants: Any) -> Callable[[Sends], Sends]:
        """Make a function a case; without variants it gets only the registry."""

        def add(sends: Sends) -> Sends:
            self._all += [(sends, variant) for variant in variants] or [(sends,)]
            return sends

        return add

    def decided(self, spark: SparkSession) -> Callable[..., list[Row]]:
        """A function that returns the rows of a case, or of a variant of it, in the order of its records."""
        registry = FakeRegistry()
        sent = {case: case[0](registry, *case[1:]) for case in self._all}
        records = [record for records in sent.values() for record in records]
        numbered = [replace(record, offset=offset) for offset, record in enumerate(records)]
        rows = iter(by_offset(decided(spark, registry, numbered)))
        found = {case: list(islice(rows, len(records))) for case, records in sent.items()}
        return lambda *case: found[case]


MOVABLE_TYPES = {name: storage for name, storage in TABLE_TYPES.items() if storage.format != "iceberg"}
"""The table types whose tables can be copied: Iceberg's metadata has absolute paths."""


def in_catalog(path: str) -> IcebergName:
    """A name for the Iceberg table in a folder, in a catalog of its own."""
    folder = Path(path)
    return IcebergName(IcebergConfig(), str(folder.parent), "silver", folder.name)


def step(commit: int, **more: Any) -> Progress:
    """The progress of a silver commit."""
    return SilverProgress(run_id="a run", commit=commit, sources={"bronze": commit}, **more)


class Lake:
    """A lake with one topic: land records in bronze, fold them into silver, read silver.

    Args:
        root: its folder.
        settings: `TableConfig`'s for silver; bronze lands each batch whole.
    """

    def __init__(self, spark: SparkSession, root: Path, topic: Topic, **settings: Any) -> None:
        self._spark = spark
        self._topic = topic
        self._config = Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(**settings))
        lenient = TableConfig(quality={"on_unusable_records": "warn"})
        self._landing = Config(lake=LakeConfig(root=str(root)), defaults=lenient)
        folder = topic.table.replace(".", "/")
        self.broker = FakeBroker()
        self.bronze = DeltaLakeTable(spark, f"{root}/bronze/{folder}")
        self.silver = DeltaLakeTable(spark, f"{root}/silver/{folder}")

    def land(self, records: Sequence[Record]) -> TableReport:
        """One bronze batch, which must succeed."""
        for record in records:
            self.broker.append(record)
        return self._succeeded(
            run_bronze(
                self._landing, [self._topic.table], self._spark, source=self.broker, registry=self._topic.registry
            )
        )

    def fold(self) -> TableReport:
        """One silver run, which must succeed."""
        return self._succeeded(run_silver(self._config, [self._topic.table], self._spark))

    def take(self, *batches: Sequence[Record]) -> dict[Any, dict[str, Any]]:
        """Land and fold each batch; silver's rows by key."""
        for records in batches:
            self.land(records)
            self.fold()
        return self.rows()

    def rows(self) -> dict[Any, dict[str, Any]]:
        """Silver's rows by key, deleted ones included, read by delta-rs."""
        return {row["id"]: row for row in DeltaTable(self.silver.path).to_pyarrow_table().to_pylist()}

    @staticmethod
    def _succeeded(report: Report) -> TableReport:
        (table_report,) = report.tables
        assert table_report.error is None, table_report.error
        return table_report


def _meanings(registry: FakeRegistry, references: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    def look_up(kind: str, schema_id: str) -> list[WriterSchema]:
        found = registry.schema(kind, schema_id)
        return [] if found is None else [WriterSchema(found.text)]

    found = resolve(
        references,
        names=Names("any", allowed=("*",)),
        kinds=registry.namespaces,
        known_kinds={},
        look_up=look_up,
        samples=lambda wanted: {},
    )
    return found.meanings, found.problems
