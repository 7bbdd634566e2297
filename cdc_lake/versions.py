"""Which Java, Spark and jars work together, and the check of them before a job does anything."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from cdc_lake.errors import InstallationError
from cdc_lake.jars import PROFILES, cache_folder, lock_file, profile_name, read_lock, require
from cdc_lake.java import JAVA_VERSION

HUDI_CLASS = "org.apache.spark.sql.hudi.HoodieSparkSessionExtension"
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


def check_jars(spark_jars: str) -> None:
    """Refuse missing and damaged jars, before a class of them is needed in the middle of a run.

    Args:
        spark_jars: the setting `spark.jars`. Jars that are there because `cdc-lake jars fetch` put them there are
            compared with their lock; how a cluster brings its own is its own affair, as long as the classes are there.
    """
    cache = cache_folder()
    if any(Path(urlsplit(jar).path).is_relative_to(cache) for jar in spark_jars.split(",") if jar):
        require(read_lock(lock_file(profile_name())), cache)
    for what, name in _NEEDED_CLASSES.items():
        if not has_class(name):
            raise InstallationError(
                what, f"class {name} cannot be loaded, its jar is missing or damaged", "run `cdc-lake jars fetch`"
            )


def has_class(name: str) -> bool:
    """Whether the JVM finds a class."""
    try:
        _jvm().java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _jvm() -> Any:
    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _java_version(jvm: Any) -> str:
    text: str = jvm.java.lang.System.getProperty("java.specification.version")
    match = re.fullmatch(r"(?:1\.)?(\d+)", text)
    return match.group(1) if match else text
