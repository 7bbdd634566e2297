"""Bronze and silver of records of almost the largest size; prints each layer's report in one line of JSON.

Environment variable: LARGE_RECORDS, their number.
"""

import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import wire
from support.converters import ENVELOPE, KEY_TEXT, TABLE, VALUE_TEXT, event, numbered_registry, row
from support.events import Record
from support.fakes import FakeBroker

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import load_config
from cdc_lake.silver.run import run_silver
from cdc_lake.sources.logs import Span
from cdc_lake.spark.session import build_session
from cdc_lake.tables.progress import Identity

BYTES = 14_800_000
_FIRST_KEY = 100
"""The first key: all keys and log positions take the same number of bytes, so the text begins at the same one."""


class LargeBroker(FakeBroker):
    """A fake: Spark's executors add a long text to each value, so that only they hold it."""

    def __init__(self, records: int) -> None:
        super().__init__()
        text, starts = "x" * BYTES, set[int]()
        for offset in range(records):
            number = _FIRST_KEY + offset
            body = wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("c", row(number, text), number)))
            value, _ = wire.framed("id4", "id:2", body, "value")
            key, _ = wire.framed("id4", "id:1", wire.avro(KEY_TEXT, {"id": number}), "key")
            start, _, end = value.partition(text.encode())
            starts.add(len(start))
            at = datetime.fromtimestamp(1_700_000_000 + offset, UTC)
            self.append(Record(key, start + end, TABLE.name, 0, offset, at, []))
        (self._start,) = starts

    def read(self, spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        """See `TopicSource`."""
        found, value = super().read(spark, topic, spans), F.col("value")
        text = F.repeat(F.when(F.col("offset") >= 0, "x"), BYTES)  # no literal, which each plan's text would repeat
        end = value.substr(F.lit(self._start + 1), F.length(value))
        large = F.concat(value.substr(F.lit(1), F.lit(self._start)), text.cast("binary"), end)
        return found.coalesce(1).withColumn("value", large)  # Kafka's source has a task for each partition

    def first_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, Identity]:
        """See `TopicSource`."""
        found = {}
        for partition, offset in offsets.items():
            one = self._partitions[topic][partition].records[offset]
            assert one.value is not None
            value = one.value[: self._start] + b"x" * BYTES + one.value[self._start :]
            found[partition] = Identity.of(offset, round(one.timestamp.timestamp() * 1000), one.key, value)
        return found


if __name__ == "__main__":
    config, broker, registry = load_config(), LargeBroker(int(os.environ["LARGE_RECORDS"])), numbered_registry()
    spark = build_session("large records", config.max_record_bytes)
    reports = (
        run_bronze(config, [TABLE.name], spark, source=broker, registry=registry),
        run_silver(config, [TABLE.name], spark),
    )
    print(json.dumps({report.layer: json.loads(report.tables[0].model_dump_json()) for report in reports}))
