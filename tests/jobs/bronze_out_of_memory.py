"""`cdc-lake run bronze` with fakes: the second of three tables needs more memory than the JVM has."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from bronze_of_fakes import servers
from pyspark.sql import DataFrame, SparkSession
from support.events import TABLE

from cdc_lake.bronze import run as bronze
from cdc_lake.cli.app import main
from cdc_lake.sources.logs import Span

LARGE, LAST = "pagila.public.too_large", "pagila.public.unreached"


if __name__ == "__main__":
    broker, registry = servers()
    read = broker.read
    first = broker._partitions[TABLE][0].records[0]
    for topic in (LARGE, LAST):
        broker.append(replace(first, topic=topic))

    def read_large(spark: SparkSession, topic: str, spans: Mapping[int, Span]) -> DataFrame:
        if topic == LARGE:
            spark.range(1).selectExpr("length(repeat('x', int(id) + 1900000000))").collect()
        return read(spark, topic, spans)

    broker.read = read_large  # type: ignore[method-assign]
    bronze.BronzeLayer.of = partial(bronze.BronzeLayer.of, source=broker, registry=registry)
    main("run", "bronze", "--table", "pagila.public.*", "--parallel", "1")
