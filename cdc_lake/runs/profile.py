"""A profile of Spark and its JVM, to find out where a run spends its time."""

import json
from typing import Any

from pyspark.sql import SparkSession


def profile(spark: SparkSession) -> str:
    """The profile of a session's application so far, as a JSON object.

    `jobs` and `stages` are those of Spark's REST API, the latest 1,000 (`spark.ui.retainedJobs`). `generated` counts
    the classes that plans were compiled to, and the seconds that took. `jvm` counts the loaded classes, and the seconds
    of its compilers and garbage collectors. Source: Spark's monitoring page, "REST API".

    Args:
        spark: any session of the application.
    """
    jvm: Any = spark._jvm
    store = spark.sparkContext._jsc.sc().statusStore()
    quantiles = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Double.TYPE, 0)
    writer = jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
    compilations = getattr(getattr(jvm.org.apache.spark.metrics.source, "CodegenMetrics$"), "MODULE$")
    times = compilations.METRIC_COMPILATION_TIME()
    beans = jvm.java.lang.management.ManagementFactory
    found = {
        "jobs": json.loads(writer.writeValueAsString(store.jobsList(None))),
        "stages": json.loads(
            writer.writeValueAsString(store.stageList(None, False, False, quantiles, jvm.java.util.ArrayList()))
        ),
        "generated": {
            "classes": compilations.METRIC_GENERATED_CLASS_BYTECODE_SIZE().getCount(),
            "seconds": round(times.getCount() * times.getSnapshot().getMean() / 1e3, 3),
        },
        "jvm": {
            "loaded_classes": beans.getClassLoadingMXBean().getTotalLoadedClassCount(),
            "compiler_seconds": beans.getCompilationMXBean().getTotalCompilationTime() / 1e3,
            "collector_seconds": sum(bean.getCollectionTime() for bean in beans.getGarbageCollectorMXBeans()) / 1e3,
        },
    }
    return json.dumps(found, indent=1)
