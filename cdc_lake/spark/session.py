"""The one SparkSession of a job.

`SPARK_DEFAULTS` serves Delta and Hudi at once, by path and by name (docs/explanation/runs.md). `cdc-lake jars
fetch` writes it into the local environment's spark-defaults.conf; on a cluster whose own defaults say something else,
theirs stands.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final, cast

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from cdc_lake.config import TableConfig
from cdc_lake.decode.framing import MAX_INFLATED_BYTES
from cdc_lake.errors import InstallationError
from cdc_lake.spark.class_archive import short_jvm
from cdc_lake.spark.jars import without_hudi
from cdc_lake.spark.versions import (
    CATALOG,
    DELTA_CATALOG,
    DELTA_EXTENSION,
    EXTENSIONS,
    HUDI_EXTENSION,
    KRYO,
    SERIALIZER,
    check,
    check_jars,
    jvm_names,
    running,
    start_jvm,
)
from cdc_lake.storage.exhausted import TEMPORARY, exhausted
from cdc_lake.storage.files import LocalFiles, Storage

DRIVER_OPTIONS: Final = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS: Final = "spark.executor.extraJavaOptions"
LOCAL_DIR: Final = "spark.local.dir"
_AVRO_LIMITS: Final = "org.apache.avro.limits."
_LARGEST_JAVA_ARRAY: Final = (1 << 31) - 9
_MAX_RECORD_BYTES: Final = TableConfig().read.max_record_bytes


def avro_limits(max_record_bytes: int) -> dict[str, int]:
    """Avro's system properties that limit the lengths it accepts, because it allocates them before it reads a byte.

    No text in a record is longer than the largest body, which for compressed frames is `MAX_INFLATED_BYTES`. Silver
    holds bytes as base64, which is a third longer, and Hudi's logs are Avro, too: hence twice that length. An item
    takes at least one byte in the record and four on the heap, so the limit of items is the largest record as it
    arrives.
    """
    longest = min(2 * max(max_record_bytes, MAX_INFLATED_BYTES), _LARGEST_JAVA_ARRAY)
    return {
        f"{_AVRO_LIMITS}string.maxLength": longest,
        f"{_AVRO_LIMITS}bytes.maxLength": longest,
        f"{_AVRO_LIMITS}collectionItems.maxLength": min(max_record_bytes, _LARGEST_JAVA_ARRAY),
    }


def with_avro_limits(options: str, limits: Mapping[str, int]) -> str:
    """Java options with these limits, in place of any others for Avro."""
    kept = [option for option in options.split(" ") if not option.startswith(f"-D{_AVRO_LIMITS}")]
    return " ".join([*kept, *(f"-D{name}={most}" for name, most in limits.items())]).lstrip()


_JAVA_OPTIONS = with_avro_limits("-Dorg.apache.avro.fastread=true", avro_limits(_MAX_RECORD_BYTES))

SPARK_DEFAULTS = {
    EXTENSIONS: f"{HUDI_EXTENSION},{DELTA_EXTENSION}",
    CATALOG: DELTA_CATALOG,
    SERIALIZER: KRYO,
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    DRIVER_OPTIONS: _JAVA_OPTIONS,
    EXECUTOR_OPTIONS: _JAVA_OPTIONS,
    # Without it Spark 3.5 keeps the partitioning of a checkpoint as an expression, and cannot join it with itself.
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Spark 4 has it on: a value that cannot be computed, null in Spark 3.5, would end the run.
    "spark.sql.ansi.enabled": "false",
    # Or `${env:NAME}` in a model's SQL is a variable of the environment, which may be a secret.
    "spark.sql.variable.substitute": "false",
    # Spark's own default, INT96, is nanoseconds to other readers: years after 2262 do not fit.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # Hudi's files do not say who wrote them, so that Spark refuses their old dates; and its arrays would have no nulls.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.hadoop.parquet.avro.write-old-list-structure": "false",
    # Or flipped bits in a data file are taken as values, where the store does not find them.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Or a topic's record with a date before 1582 fails.
    "spark.sql.avro.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.join.preferSortMergeJoin": "false",
    # Bronze's, silver's and a merge's plans are more than Spark's 100: each batch would compile them anew.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Nothing is bucketed; with it, every `persist` clones the session to switch it off there.
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    # Or Delta 4 refuses any version older than the table keeps removed files, the newest too: gold and side tables are
    # read by version, and may have been left alone for longer.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # What a long run with many tables keeps in the driver's memory (docs/explanation/runs.md).
    "spark.buffer.pageSize": "2m",
    "spark.databricks.delta.delta.log.cacheSize": "64",
    "spark.sql.ui.retainedExecutions": "50",
    # Spark 4 notes for every expression which line of code made it: five calls instead of one. And where it has noted
    # it, PySpark 4.1 cannot tell Delta's errors, whose texts it looks up among its own.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # Options of the Kafka sink are in its plan: a client's private key and a connection string are no `password` there.
    "spark.redaction.regex": "(?i)secret|passw|token|access[.]?key|sasl|jaas|keystore|credential|basic.auth|user.info|"
    "api[._-]?key",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
REQUIRED = {
    "spark.sql.adaptive.enabled",
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.variable.substitute",
    "spark.sql.parquet.outputTimestampType",
    "spark.sql.parquet.datetimeRebaseModeInRead",
    "spark.sql.parquet.datetimeRebaseModeInWrite",
    "spark.hadoop.parquet.avro.write-old-list-structure",
    "spark.sql.avro.datetimeRebaseModeInWrite",
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration",
}
"""What a result depends on, whether there is one, or what it can show, and so cannot be chosen."""
_REFLECTION = ("java_method", "reflect", "try_reflect")
"""SQL functions that call any method of Java, such as the one that reads the environment."""

_SMALL_ROWS, _SMALL_BYTES = 20_000, 64 << 20
_SMALL_PLANS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
}
"""Compiling a plan to bytecode takes longer than going through a few thousand rows without, and planning each stage
when the one before has ended takes longer than what it could save (docs/explanation/runs.md).
"""


def build_session(app_name: str, max_record_bytes: int = _MAX_RECORD_BYTES, *, is_short: bool = False) -> SparkSession:
    """The session of this process, made with `SPARK_DEFAULTS` where the submission left a setting open.

    Args:
        app_name: Spark's name of the application.
        max_record_bytes: the size of the largest record that is to be decoded; see `avro_limits`.
        is_short: the process ends after a few small batches; a JVM that it starts is one for that.

    Raises:
        InfrastructureError: there is no space for Spark's files, or too few files or threads are allowed.
        InstallationError: Java, Spark or a jar is missing or damaged, or they are known not to work together; or Avro's
            limits cannot be set.
    """
    with short_jvm() if is_short else nullcontext():
        found = running()
    submitted = dict(SparkConf().getAll())
    defaults = SPARK_DEFAULTS if found.hudi else without_hudi(SPARK_DEFAULTS)
    ours = {key: value for key, value in defaults.items() if key in REQUIRED or key not in submitted}
    check(found, submitted | ours)
    check_jars(submitted)
    limits = avro_limits(max_record_bytes)
    _limit_avro_here(limits)
    ours[EXECUTOR_OPTIONS] = with_avro_limits(submitted.get(EXECUTOR_OPTIONS, defaults[EXECUTOR_OPTIONS]), limits)
    if submitted.get("spark.master", "local").startswith("local"):
        # The workers' Python has to have what this one has; Spark's own choice is the `python3` on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    for key, value in ours.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Py4JError as exc:
        raise exhausted("Spark", exc, *scratch_folders(submitted.get(LOCAL_DIR))) or exc from None
    _check_executors(spark.sparkContext, limits)
    spark.sparkContext.setLogLevel("ERROR")
    _remember_names(spark)
    return _without_reflection(spark)


def _limit_avro_here(limits: Mapping[str, int]) -> None:
    """Set Avro's limits in this JVM, which runs already, so that its options are too late. Avro reads them once.

    Raises:
        InstallationError: this Avro has no limits, or has read them before.
    """
    jvm: Any = SparkContext._jvm
    for name, most in limits.items():
        jvm.java.lang.System.setProperty(name, str(most))
    avro = jvm.org.apache.avro.SystemLimitException  # py4j initializes a class when it looks for it
    if isinstance(avro, JavaPackage):
        raise InstallationError(
            "Avro in Spark's jars",
            "it allocates the length that a record claims, so a damaged record can end the run",
            "use Avro 1.11.3 or newer; Spark 3.5.7 has 1.11.4",
        )
    checks = (
        avro.checkMaxStringLength,
        avro.checkMaxBytesLength,
        lambda items: avro.checkMaxCollectionLength(0, items),
    )
    for (name, most), check_length in zip(limits.items(), checks, strict=True):
        if not _is_accepted(check_length, most) or _is_accepted(check_length, most + 1):
            raise InstallationError(
                name,
                f"it cannot be set to {most}, because this process used Avro with another limit",
                "start a new process, and build its session with the largest `read.max_record_bytes`",
            )


def _is_accepted(check_length: Callable[[int], object], length: int) -> bool:
    try:
        check_length(length)
    except Py4JJavaError:
        return False
    return True


def _check_executors(context: SparkContext, limits: Mapping[str, int]) -> None:
    """Refuse executors that were started without Avro's limits, by an application that was there before.

    Raises:
        InstallationError: they were.
    """
    options = context.getConf().get(EXECUTOR_OPTIONS) or ""
    if not context._jsc.isLocal() and options != with_avro_limits(options, limits):
        raise InstallationError(
            EXECUTOR_OPTIONS,
            "the application's executors were started without Avro's limits",
            f"add {with_avro_limits('', limits)} where the application is submitted",
        )


def _remember_names(spark: SparkSession) -> None:
    """Ask the JVM once what these names are. PySpark asks for every expression, and each time every jar is searched."""
    for steps in jvm_names(spark.version):
        holder: Any = spark.sparkContext._jvm
        for name in steps:
            found = getattr(holder, name)
            setattr(holder, name, found)
            holder = found


def lake_files(root: str, spark: SparkSession | None) -> LocalFiles | Storage:
    """The files of a lake. If there is no session yet, none is made; and no JVM, if the lake is in a local folder.

    Args:
        root: the lake's.
        spark: the session, if there is one.

    Raises:
        InstallationError: Java does not start.
    """
    return LocalFiles.of(root) or Storage.of(*hadoop(spark))


def hadoop(spark: SparkSession | None) -> tuple[Any, Any]:
    """The JVM, and Hadoop's configuration. If there is no session yet, none is made.

    Args:
        spark: the session, if there is one.

    Raises:
        InstallationError: Java does not start.
    """
    if spark is not None:
        return spark._jvm, spark._jsc.hadoopConfiguration()
    jvm = start_jvm()
    return jvm, jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(SparkConf()._jconf)


def sibling(spark: SparkSession) -> SparkSession:
    """A session of the same application for another thread, with settings of its own."""
    own = _without_reflection(spark.newSession())
    for name in SPARK_DEFAULTS:
        value = spark.conf.get(name, None)
        if value is not None and spark.conf.isModifiable(name):
            own.conf.set(name, value)
    return own


def _without_reflection(spark: SparkSession) -> SparkSession:
    """Have a session not know Spark's functions that call Java."""
    named: Any = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier  # type: ignore[union-attr]
    for name in _REFLECTION:
        spark._jsparkSession.sessionState().functionRegistry().dropFunction(named(name))
    return spark


def heap_bytes(spark: SparkSession) -> int:
    """The heap of the driver, or of an executor if that is smaller."""
    driver = int(cast(Any, spark.sparkContext._jvm).java.lang.Runtime.getRuntime().maxMemory())
    context = spark.sparkContext._jsc
    return driver if context.isLocal() else min(driver, context.sc().executorMemory() << 20)


def batch_bytes(spark: SparkSession, setting: int | None, parallel: int) -> int:
    """How many bytes of records a batch may have; see `max_batch_bytes`.

    Args:
        parallel: the tables side by side.
    """
    return setting or max(heap_bytes(spark) // (8 * parallel), 1)


def is_alive(spark: SparkSession) -> bool:
    """Whether the session's JVM has not ended."""
    try:
        cast(Any, spark.sparkContext._jvm).java.lang.System.nanoTime()
    except (Py4JNetworkError, OSError):
        return False
    return True


def is_little(*, rows: int, stored_bytes: int) -> bool:
    """Whether work is so small that compiling and splitting it takes longer than doing it; see `planned_for`."""
    return rows <= _SMALL_ROWS and stored_bytes <= _SMALL_BYTES


def scratch_folders(local_dir: str | None) -> list[str]:
    """Where Spark and Java write what does not fit in memory.

    Args:
        local_dir: the setting `spark.local.dir`.
    """
    named = os.environ.get("LOCAL_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or local_dir  # the first is YARN's
    return list(dict.fromkeys([*(named or TEMPORARY).split(","), TEMPORARY]))


@contextmanager
def planned_for(spark: SparkSession, *, rows: int | None, stored_bytes: int = 0) -> Iterator[None]:
    """Plan what is done meanwhile for its size: little work is interpreted, in one partition.

    Args:
        spark: the session; no other thread may plan with it meanwhile.
        rows: how many there are to work on; none when that is not known.
        stored_bytes: size of the table that they change, all of which a merge may have to copy.
    """
    if rows is None or not is_little(rows=rows, stored_bytes=stored_bytes):
        yield
        return
    before = {name: str(spark.conf.get(name)) for name in _SMALL_PLANS}
    try:
        for name, value in _SMALL_PLANS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
