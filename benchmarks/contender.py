"""One contender as a process: told which topics have news, it brings its tables up to date and says so.

    python -m benchmarks.contender cdc_lake|textbook|tuned FOLDER

Reads lines of JSON, `{"topics": [...]}`, from standard input; answers each with a line.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Take = Callable[[Sequence[str]], None]

_TEXTBOOK_DEFAULTS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.shuffle.partitions": "200",
    "spark.databricks.delta.snapshotPartitions": "50",
    "spark.sql.join.preferSortMergeJoin": "true",
    "spark.driver.extraJavaOptions": "-Dunused=true",
}
"""Spark's and Delta's own, in place of what `cdc-lake jars fetch` wrote into spark-defaults.conf."""


def cdc_lake(folder: Path) -> Take:
    """Our own bronze and silver, in one application."""
    from cdc_lake.config import Config, KafkaConfig, LakeConfig, RegistryConfig, TableConfig
    from cdc_lake.layers.bronze import run_bronze
    from cdc_lake.layers.silver import run_silver
    from cdc_lake.layers.turns import Workers

    config = Config(
        kafka=KafkaConfig(bootstrap_servers=os.environ["BENCH_KAFKA"]),
        registry=RegistryConfig(url=os.environ["BENCH_REGISTRY"]),
        lake=LakeConfig(root=str(folder)),
        defaults=TableConfig(deletes="hard"),
    )
    workers = Workers(4)
    workers.spark("benchmark")

    def take(topics: Sequence[str]) -> None:
        for report in (run_bronze(config, topics, workers=workers), run_silver(config, topics, workers=workers)):
            failed = [table.error for table in report.tables if table.error]
            assert not failed, failed

    return take


def textbook(folder: Path, *, is_tuned: bool = False) -> Take:
    """As it is told in many places: Structured Streaming, the newest schema, a MERGE for each micro-batch."""
    import requests
    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import Window as W
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    builder = SparkSession.builder.appName("textbook")
    for key, value in _TEXTBOOK_DEFAULTS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def newest_schema(topic: str) -> str:
        with requests.Session() as session:
            session.trust_env = False
            where = f"{os.environ['BENCH_REGISTRY']}/apis/registry/v3/groups/default/artifacts/{topic}-value"
            return session.get(f"{where}/versions/branch=latest/content", timeout=30).text

    def take_one(topic: str) -> None:
        path = f"{folder}/{topic}"
        body = F.expr("substring(value, 6)")
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", os.environ["BENCH_KAFKA"])
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        rows = records.select(from_avro(body, newest_schema(topic), {"mode": "PERMISSIVE"}).alias("r")).select("r.*")

        def merge(batch: DataFrame, number: int) -> None:
            if is_tuned:
                batch.sparkSession.conf.set("spark.sql.adaptive.enabled", "true")
                batch.sparkSession.conf.set("spark.sql.shuffle.partitions", "4")
            newest_first = W.partitionBy("id").orderBy(F.desc("__source_ts_ms"))
            latest = batch.withColumn("n", F.row_number().over(newest_first)).where("n = 1").drop("n")
            if not DeltaTable.isDeltaTable(batch.sparkSession, path):
                latest.limit(0).write.format("delta").save(path)
            (
                DeltaTable.forPath(batch.sparkSession, path)
                .alias("t")
                .merge(latest.alias("s"), "t.id = s.id")
                .whenMatchedDelete("s.__deleted = 'true'")
                .whenMatchedUpdateAll()
                .whenNotMatchedInsertAll("s.__deleted = 'false'")
                .execute()
            )

        query = rows.writeStream.foreachBatch(merge).option("checkpointLocation", f"{path}.checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()

    def take(topics: Sequence[str]) -> None:
        for topic in topics:
            take_one(topic)

    return take


CONTENDERS: Mapping[str, Callable[[Path], Take]] = {
    "cdc_lake": cdc_lake,
    "textbook": textbook,
    "tuned": lambda folder: textbook(folder, is_tuned=True),
}


def main() -> None:
    """Answer until standard input ends."""
    name, folder = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints is not an answer
    take = CONTENDERS[name](Path(folder))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        take(json.loads(line)["topics"])
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    main()
