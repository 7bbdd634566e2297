"""Avro's limits in the executors' JVM: of an application that was started without them, and of one of cdc_lake's."""

import json

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_lake.errors import InstallationError
from cdc_lake.spark.session import avro_limits, build_session

MAX_RECORD_BYTES = 100_000_000
NAMES = (*avro_limits(MAX_RECORD_BYTES), "mine")

if __name__ == "__main__":
    # More cores than a worker has, so none of these executors starts.
    own = {"spark.executor.extraJavaOptions": "-Dmine=1", "spark.executor.cores": "2"}
    found = SparkSession.builder.config(map=own).getOrCreate()
    try:
        build_session("found", MAX_RECORD_BYTES)
    except InstallationError as error:
        refusal = str(error)
    found.stop()
    spark = build_session("made", MAX_RECORD_BYTES)
    asked = [F.expr(f"reflect('java.lang.System', 'getProperty', '{name}')").alias(name) for name in NAMES]
    (row,) = spark.newSession().range(1).select(*asked).collect()  # sessions of cdc_lake have no `reflect`
    print(json.dumps({"refusal": refusal, "executor": row.asDict()}))
