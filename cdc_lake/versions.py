"""Which Java, Spark and jars work together, and the check of them before a job does anything."""

import re
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cdc_lake.errors import InstallationError
from cdc_lake.jars import PROFILES
from cdc_lake.java import JAVA_VERSION

_NEEDED_CLASSES = {
    "Delta Lake": "io.delta.sql.DeltaSparkSessionExtension",
    "Spark's Kafka source": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "Spark's Avro functions": "org.apache.spark.sql.avro.AvroDataToCatalyst",
}


def check_spark() -> None:
    """Refuse a Spark line nothing here was tried with."""
    line = ".".join(pyspark.__version__.split(".")[:2])
    if line not in PROFILES:
        raise InstallationError(
            f"Spark {pyspark.__version__}",
            f"cdc_lake works with Spark {' and '.join(PROFILES)}",
            "install one of its extras: pip install 'cdc-lake[spark35]'",
        )


def check_java() -> None:
    """Refuse another Java than Spark and the jars run on, in words, before Spark's own stack trace."""
    version = _java_version(_jvm())
    if version != str(JAVA_VERSION):
        raise InstallationError(
            f"Java {version}",
            f"Spark {pyspark.__version__} with Delta and Hudi runs on Java {JAVA_VERSION}",
            "point JAVA_HOME at one, or unset it and let `make setup` bring its own",
        )


def check_classes(spark: SparkSession) -> None:
    """Refuse a session whose jars are missing or damaged."""
    del spark
    loader = _jvm().java.lang.Thread.currentThread().getContextClassLoader()
    for what, name in _NEEDED_CLASSES.items():
        try:
            loader.loadClass(name)
        except Exception as exc:
            raise InstallationError(
                what, f"class {name} cannot be loaded, its jar is missing or damaged", "run `cdc-lake jars fetch`"
            ) from exc


def _jvm() -> Any:
    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _java_version(jvm: Any) -> str:
    text: str = jvm.java.lang.System.getProperty("java.specification.version")
    match = re.fullmatch(r"(?:1\.)?(\d+)", text)
    return match.group(1) if match else text
