"""The product's way from Kafka records to bronze and silver, for tests that have neither a broker nor a registry."""

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from events import FakeRegistry, Record, Topic
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.events.arrival import LastRecord, Schemas, bronze_rows, with_decision, with_frames, with_log_order
from cdc_lake.events.avro import WriterSchema
from cdc_lake.layers.silver import run_silver
from cdc_lake.metrics.report import TableReport
from cdc_lake.sources.schemas import SchemaFiles
from cdc_lake.storage import Storage
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.progress import Progress

_KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)


def kafka(spark: SparkSession, records: Iterable[Record]) -> DataFrame:
    """Records as Spark's Kafka source gives them."""
    rows = [(r.key, r.value, r.topic, r.partition, r.offset, r.timestamp, r.headers) for r in records]
    return spark.createDataFrame(rows, _KAFKA)


def decided(spark: SparkSession, registry: FakeRegistry, records: Sequence[Record]) -> DataFrame:
    """What bronze decides of each record."""
    keys, values = (
        {schema_id: _writer(registry, schema_id) for schema_id in _ids(getattr(r, side) for r in records)}
        for side in ("key", "value")
    )
    return with_decision(
        with_frames(kafka(spark, records)), Schemas.of(keys, is_key=True), Schemas.of(values, is_key=False)
    )


def by_offset(rows: DataFrame) -> list[Row]:
    """The rows, collected in the order of their offsets."""
    return rows.orderBy("offset").collect()


class Lake:
    """A lake with one topic: land records in bronze, fold them into silver, look at silver.

    Args:
        root: its folder.
        settings: `TableConfig`'s.
    """

    def __init__(self, spark: SparkSession, root: Path, topic: Topic, **settings: Any) -> None:
        self._spark = spark
        self._topic = topic
        self._schemas = SchemaFiles(Storage(spark), str(root), topic.registry)
        self._config = Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(**settings))
        folder = topic.table.replace(".", "/")
        self.bronze = DeltaLakeTable(spark, f"{root}/bronze/{folder}")
        self.silver = DeltaLakeTable(spark, f"{root}/silver/{folder}")
        self._batch = 0
        self._before: dict[int, LastRecord] = {}

    def land(self, records: Sequence[Record]) -> None:
        """One bronze batch."""
        self._batch += 1
        self._schemas.by_ids(_ids(data for r in records for data in (r.key, r.value)))
        ordered = with_log_order(decided(self._spark, self._topic.registry, records), self._before)
        rows = bronze_rows(ordered, batch=self._batch, generation=0, ingest_date=date(2026, 1, 1)).persist()
        last = rows.orderBy(F.col("offset").desc()).first()
        self._before = {0: LastRecord(last["log_ts"], last["offset"], last["raw_key"], last["op"], last["status"])}
        self.bronze.append(rows, Progress(layer="bronze", run_id="test", commit=self._batch))
        rows.unpersist()

    def fold(self) -> TableReport:
        """One silver run, which must succeed."""
        (done,) = run_silver(self._config, [self._topic.table], self._spark).tables
        assert done.error is None, done.error
        return done

    def take(self, *batches: Sequence[Record]) -> dict[Any, Row]:
        """Land and fold each batch; silver's rows by key."""
        for records in batches:
            self.land(records)
            self.fold()
        return self.rows()

    def rows(self) -> dict[Any, Row]:
        """Silver's rows by key, deleted ones included."""
        return {row["id"]: row for row in self.silver.read().collect()}


def _ids(data: Iterable[bytes | None]) -> set[int]:
    return {int.from_bytes(one[1:5], "big") for one in data if one and one[:1] == b"\0" and len(one) > 5} - {0}


def _writer(registry: FakeRegistry, schema_id: int) -> WriterSchema | None:
    text = registry.text(schema_id)
    return None if text is None else WriterSchema(text)
