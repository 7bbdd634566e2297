"""The product's way from Kafka records to bronze and silver, for tests that have neither a broker nor a registry."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from events import FakeRegistry, Record, Topic
from fakes import FakeBroker, kafka
from pyspark.sql import DataFrame, Row, SparkSession

from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.events.arrival import Schemas, with_decision, with_frames
from cdc_lake.events.avro import WriterSchema
from cdc_lake.layers.bronze import run_bronze
from cdc_lake.layers.silver import run_silver
from cdc_lake.metrics.report import Report, TableReport
from cdc_lake.tables.delta import DeltaLakeTable


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
        settings: `TableConfig`'s for silver; bronze lands each batch whole.
    """

    def __init__(self, spark: SparkSession, root: Path, topic: Topic, **settings: Any) -> None:
        self._spark = spark
        self._topic = topic
        self._config = Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(**settings))
        self._landing = Config(lake=LakeConfig(root=str(root)))
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
                self._landing, [self._topic.table], self._spark, broker=self.broker, registry=self._topic.registry
            )
        )

    def fold(self) -> TableReport:
        """One silver run, which must succeed."""
        return self._succeeded(run_silver(self._config, [self._topic.table], self._spark))

    def take(self, *batches: Sequence[Record]) -> dict[Any, Row]:
        """Land and fold each batch; silver's rows by key."""
        for records in batches:
            self.land(records)
            self.fold()
        return self.rows()

    def rows(self) -> dict[Any, Row]:
        """Silver's rows by key, deleted ones included."""
        return {row["id"]: row for row in self.silver.read().collect()}

    @staticmethod
    def _succeeded(report: Report) -> TableReport:
        (done,) = report.tables
        assert done.error is None, done.error
        return done


def _ids(data: Iterable[bytes | None]) -> set[int]:
    return {int.from_bytes(one[1:5], "big") for one in data if one and one[:1] == b"\0" and len(one) > 5} - {0}


def _writer(registry: FakeRegistry, schema_id: int) -> WriterSchema | None:
    found = registry.schema("contentId", str(schema_id))
    return WriterSchema(found.text) if found else None
