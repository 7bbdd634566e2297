"""What Spark and its JVM did in a process: for finding out why a run takes as long as it does."""

import json
from typing import Any

from pyspark.sql import SparkSession


def profile(spark: SparkSession) -> str:
    """A JSON object of all that a session's application has done so far.

    `jobs` and `stages` are as Spark's REST API has them: the newest 1,000 (`spark.ui.retainedJobs`). `generated` counts
    the classes that plans were compiled to, and the seconds this took. `jvm` counts the classes it loaded, and the
    seconds that its compilers and garbage collectors took. Source: Spark's monitoring page, "REST API".

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
