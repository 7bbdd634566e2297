"""A contender: a pipeline to measure, as a process of its own that updates the tables of the requested topics.

    python -m benchmarks.contender NAME FOLDER

It reads lines of JSON, `{"topics": [...]}`, from standard input, and answers each with a line when it is done.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.log import ORDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_lake.config import DeletionVectors, TableType

BUCKETS = 4
LAYERS = ("bronze", "silver")
Take = Callable[[Sequence[str]], None]


def cdc_lake(
    folder: Path,
    *,
    layers: Sequence[str] = LAYERS,
    table_type: "TableType" = "delta",
    buckets: int | None = None,
    deletion_vectors: "DeletionVectors" = "off",
) -> Take:
    """cdc_lake's bronze and silver in one application; `buckets` and `deletion_vectors` apply to the large table."""
    from cdc_lake.bronze.run import run_bronze
    from cdc_lake.config import TABLE_TYPES, Config, KafkaConfig, LakeConfig, RegistryConfig, TableConfig
    from cdc_lake.runs.scheduler import TableScheduler
    from cdc_lake.silver.run import run_silver

    of_large = {"buckets": buckets, "deletion_vectors": deletion_vectors}
    config = Config(
        kafka=KafkaConfig(bootstrap_servers=os.environ["BENCH_KAFKA"]),
        registry=RegistryConfig(url=os.environ["BENCH_REGISTRY"]),
        lake=LakeConfig(root=str(folder)),
        defaults=TableConfig(storage=(TABLE_TYPES[table_type],)),
        tables={ORDERS: TableConfig(storage=(TABLE_TYPES[table_type].model_copy(update=of_large),))},
    )
    scheduler = TableScheduler(config.parallel)
    scheduler.spark(config, "benchmark")
    runs = {"bronze": run_bronze, "silver": run_silver}

    def take(topics: Sequence[str]) -> None:
        for layer in layers:
            failed = [table.error for table in runs[layer](config, topics, scheduler=scheduler).tables if table.error]
            assert not failed, failed

    return take


def textbook(folder: Path, *, is_tuned: bool = False) -> Take:
    """A pipeline as in many tutorials: Structured Streaming, the newest schema, a MERGE for each micro-batch.

    Args:
        is_tuned: also enable adaptive execution and set 4 shuffle partitions inside the micro-batch.
    """
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame
    from pyspark.sql import Window as W
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    spark = _session("textbook")

    def merge(path: str, batch: DataFrame) -> None:
        session = batch.sparkSession
        if is_tuned:
            session.conf.set("spark.sql.adaptive.enabled", "true")
            session.conf.set("spark.sql.shuffle.partitions", "4")
        newest_first = W.partitionBy("id").orderBy(F.desc("__source_ts_ms"))
        latest = batch.withColumn("n", F.row_number().over(newest_first)).where("n = 1").drop("n")
        if not DeltaTable.isDeltaTable(session, path):
            latest.limit(0).write.format("delta").save(path)
        (
            DeltaTable.forPath(session, path)
            .alias("t")
            .merge(latest.alias("s"), "t.id = s.id")
            .whenMatchedDelete("s.__deleted = 'true'")
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll("s.__deleted = 'false'")
            .execute()
        )

    def take_one(topic: str) -> None:
        path = f"{folder}/{topic}"
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", os.environ["BENCH_KAFKA"])
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        row = from_avro(F.expr("substring(value, 6)"), _newest_schema(topic), {"mode": "PERMISSIVE"})

        def merge_batch(batch: DataFrame, number: int) -> None:
            merge(path, batch)

        query = records.select(row.alias("r")).select("r.*").writeStream.foreachBatch(merge_batch)
        query.option("checkpointLocation", f"{path}.checkpoint").trigger(availableNow=True).start().awaitTermination()

    def take(topics: Sequence[str]) -> None:
        for topic in topics:
            take_one(topic)

    return take


def floor(folder: Path) -> Take:
    """Minimal landing: read, decode with one schema, write the bytes."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    spark = _session("floor")
    reached: dict[str, dict[int, int]] = {}

    def take(topics: Sequence[str]) -> None:
        for topic in topics:
            ends = _ends(topic)
            starts = reached.get(topic) or dict.fromkeys(ends, 0)
            records = (
                spark.read.format("kafka")
                .option("kafka.bootstrap.servers", os.environ["BENCH_KAFKA"])
                .option("subscribe", topic)
                .option("startingOffsets", json.dumps({topic: starts}))
                .option("endingOffsets", json.dumps({topic: ends}))
                .load()
            )
            row = from_avro(F.expr("substring(value, 6)"), _newest_schema(topic), {"mode": "PERMISSIVE"})
            landed = records.select("key", "value", "partition", "offset", "timestamp", row["__op"].alias("op"))
            landed.write.format("delta").mode("append").save(f"{folder}/{topic}")
            reached[topic] = ends

    return take


def _session(name: str) -> "SparkSession":
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.appName(name)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.schema.autoMerge.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _ends(topic: str) -> dict[int, int]:
    """End offsets of a topic's partitions."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": os.environ["BENCH_KAFKA"], "group.id": "floor"})
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in partitions}
    finally:
        consumer.close()


def _newest_schema(topic: str) -> str:
    import requests

    with requests.Session() as session:
        session.trust_env = False
        groups = f"{os.environ['BENCH_REGISTRY']}/apis/registry/v3/groups"
        answer = session.get(f"{groups}/default/artifacts/{topic}-value/versions/branch=latest/content", timeout=30)
        answer.raise_for_status()
        return answer.text


PIPELINES: Mapping[str, Callable[[Path], Take]] = {
    "cdc_lake": cdc_lake,
    "textbook": textbook,
    "tuned": lambda folder: textbook(folder, is_tuned=True),
}
IN_OTHER_FORMATS: Mapping[str, Callable[[Path], Take]] = {
    "hudi-cow": lambda folder: cdc_lake(folder, table_type="hudi-cow"),
    "hudi-mor": lambda folder: cdc_lake(folder, table_type="hudi-mor"),
    "mor-buckets": lambda folder: cdc_lake(folder, table_type="hudi-mor", buckets=BUCKETS),
    "iceberg-cow": lambda folder: cdc_lake(folder, table_type="iceberg-cow"),
    "iceberg-mor": lambda folder: cdc_lake(folder, table_type="iceberg-mor"),
}
"""cdc_lake with silver in Hudi or Iceberg."""
CONTENDERS: Mapping[str, Callable[[Path], Take]] = {
    **PIPELINES,
    **IN_OTHER_FORMATS,
    "bronze": lambda folder: cdc_lake(folder, layers=["bronze"]),
    "floor": floor,
}


def main() -> None:
    """Process requests until standard input ends."""
    name, folder = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that Spark's output does not mix with the answers
    take = CONTENDERS[name](Path(folder))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        take(json.loads(line)["topics"])
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
