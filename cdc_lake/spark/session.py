"""Create the SparkSession of a job.

`SPARK_DEFAULTS` supports Delta and Hudi in one session, by path and by name (docs/explanation/runs.md); a
table in Iceberg sets its catalog when it is opened. `cdc-lake jars fetch` writes the template to the local
spark-defaults.conf. On a cluster, the cluster's defaults take precedence.
"""

import os
import sys
import time
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
from cdc_lake.spark.conf import short_jvm, without_hudi
from cdc_lake.spark.java import JAVA_DEFAULTS, start_jvm
from cdc_lake.spark.versions import (
    CATALOG,
    DELTA_CATALOG,
    DELTA_EXTENSION,
    EXTENSIONS,
    FILE_MANAGER,
    HUDI_EXTENSION,
    KRYO,
    SERIALIZER,
    check,
    check_jars,
    file_manager,
    jvm_names,
    reads_changes_by_extension,
    running,
    session_class,
)
from cdc_lake.storage.exhaustion import TEMPORARY, exhaustion_error
from cdc_lake.storage.files import Files, LocalFiles
from cdc_lake.storage.hadoop import HadoopFiles

DRIVER_OPTIONS: Final = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS: Final = "spark.executor.extraJavaOptions"
LOCAL_DIR: Final = "spark.local.dir"
_AVRO_LIMITS: Final = "org.apache.avro.limits."
_LARGEST_JAVA_ARRAY: Final = (1 << 31) - 9
_MAX_RECORD_BYTES: Final = TableConfig().read.max_record_bytes


def avro_limits(max_record_bytes: int) -> dict[str, int]:
    """Avro's system properties that limit lengths, because Avro allocates them before it reads the data.

    No text in a record is longer than the largest body, which for compressed frames is `MAX_INFLATED_BYTES`. Silver
    stores bytes as base64, which is a third longer, in Hudi's logs, which are Avro: so the limit is twice that length.
    An item takes at least one byte in the record and four on the heap, so the limit of items is the largest record.
    """
    longest = min(2 * max(max_record_bytes, MAX_INFLATED_BYTES), _LARGEST_JAVA_ARRAY)
    return {
        f"{_AVRO_LIMITS}string.maxLength": longest,
        f"{_AVRO_LIMITS}bytes.maxLength": longest,
        f"{_AVRO_LIMITS}collectionItems.maxLength": min(max_record_bytes, _LARGEST_JAVA_ARRAY),
    }


def with_avro_limits(options: str, limits: Mapping[str, int]) -> str:
    """Java options with these limits, replacing other limits for Avro."""
    kept = [option for option in options.split(" ") if not option.startswith(f"-D{_AVRO_LIMITS}")]
    return " ".join([*kept, *(f"-D{name}={most}" for name, most in limits.items())]).lstrip()


_JAVA_OPTIONS = with_avro_limits("-Dorg.apache.avro.fastread=true", avro_limits(_MAX_RECORD_BYTES))

SPARK_DEFAULTS = {
    EXTENSIONS: f"{HUDI_EXTENSION},{DELTA_EXTENSION}",
    CATALOG: DELTA_CATALOG,
    SERIALIZER: KRYO,
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    # Spark puts these before the `extraJavaOptions`, so users' own options are added, and take precedence.
    "spark.driver.defaultJavaOptions": JAVA_DEFAULTS,
    "spark.executor.defaultJavaOptions": JAVA_DEFAULTS,
    DRIVER_OPTIONS: _JAVA_OPTIONS,
    EXECUTOR_OPTIONS: _JAVA_OPTIONS,
    # Without it Spark 3.5 keeps the partitioning of a checkpoint as an expression, and cannot join it with itself.
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Spark 4 enables it: then expressions that are null in Spark 3.5 raise errors.
    "spark.sql.ansi.enabled": "false",
    # Otherwise `${env:NAME}` in a model's SQL could read a secret from the environment.
    "spark.sql.variable.substitute": "false",
    # Other readers read Spark's default, INT96, as nanoseconds, which end in the year 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # Hudi's files do not name their writer, so Spark would reject their old dates; and its arrays could have no nulls.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.hadoop.parquet.avro.write-old-list-structure": "false",
    # Otherwise flipped bits in a data file would be read as values, if the store does not detect them.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Otherwise sending a date before 1582 to a topic fails.
    "spark.sql.avro.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.join.preferSortMergeJoin": "false",
    # The jobs have more plans than Spark's default of 100, and each batch would compile them again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # No table is bucketed. If it is on, every `persist` clones the session to switch it off there.
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    # Otherwise Delta 4 rejects versions older than the retention of removed files, even the newest one. Gold and side
    # tables are read by version, and may be unchanged for longer.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Limits the driver's memory in long runs with many tables (docs/explanation/runs.md).
    "spark.buffer.pageSize": "2m",
    # A broadcast takes a whole block, and blocks of Spark's 4 MB make Java collect garbage at once: each stage has one.
    "spark.broadcast.blockSize": "256k",
    "spark.databricks.delta.delta.log.cacheSize": "64",
    "spark.sql.ui.retainedExecutions": "50",
    # Spark 4 records the line of code of every expression, with five calls instead of one. With that, PySpark 4.1
    # cannot convert Delta's errors, because it does not find their texts.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # The Kafka sink's plan has its options; the default pattern misses private keys and connection strings.
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
"""Settings that users cannot override, because results or security depend on them."""
_LOGS_OF_FAILURES = (
    "executor.Executor",
    "scheduler.TaskSetManager",
    "sql.delta.files.DeltaFileFormatWriter",
    "sql.execution.datasources.FileFormatWriter",
    "sql.execution.datasources.v2",
)
_REFLECTION = ("java_method", "reflect", "try_reflect")
"""SQL functions that can call any Java method, for example to read the environment."""

_SMALL_ROWS, _SMALL_BYTES = 20_000, 64 << 20
_SMALL_PLANS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.merge.materializeSource": "none",
}
"""For a few thousand rows, compiling plans and adaptive execution take longer than they save
(docs/explanation/runs.md).
"""


def build_session(
    app_name: str, max_record_bytes: int = _MAX_RECORD_BYTES, *, is_short: bool = False, has_user_sql: bool = True
) -> SparkSession:
    """Create the session of this process, with `SPARK_DEFAULTS` for settings that the submission does not set.

    Args:
        max_record_bytes: size of the largest record to decode; see `avro_limits`.
        is_short: optimize the JVM for a process that ends after a few small batches.
        has_user_sql: whether users' statements may use Hudi's SQL. Its extension checks each plan, 5 % of a small
            batch's CPU time, and cdc_lake writes no such SQL.

    Raises:
        InfrastructureError: the disk is full, or a limit of files or threads is too low.
        InstallationError: Java, Spark or a jar is missing, damaged or incompatible, or Avro's limits cannot be set.
    """
    with short_jvm() if is_short else nullcontext():
        builds = running()
    submitted = dict(SparkConf().getAll())
    defaults = SPARK_DEFAULTS if builds.hudi else without_hudi(SPARK_DEFAULTS)
    ours = {key: value for key, value in defaults.items() if key in REQUIRED or key not in submitted}
    if not has_user_sql and not reads_changes_by_extension(builds):
        ours[EXTENSIONS] = without_hudi(submitted | ours).get(EXTENSIONS, "")
    check(builds, submitted | ours)
    check_jars(submitted)
    ours[FILE_MANAGER] = submitted.get(FILE_MANAGER, file_manager(builds.spark))
    limits = avro_limits(max_record_bytes)
    _limit_avro_here(limits)
    ours[EXECUTOR_OPTIONS] = with_avro_limits(submitted.get(EXECUTOR_OPTIONS, defaults[EXECUTOR_OPTIONS]), limits)
    if submitted.get("spark.master", "local").startswith("local"):
        # Workers need the packages of this Python; Spark's default is the `python3` on PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    for key, value in ours.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Py4JError as exc:
        raise exhaustion_error("Spark", exc, *scratch_folders(submitted.get(LOCAL_DIR))) or exc from None
    _check_executors(spark.sparkContext, limits)
    spark.sparkContext.setLogLevel("ERROR")
    _log_no_failed_tasks(spark)
    _remember_names(spark)
    return _without_reflection(spark)


def _log_no_failed_tasks(spark: SparkSession) -> None:
    """Keep the traces of failed tasks and writes out of the log: the driver gets them as an exception, too, which the
    run reports, or which makes it try in another way.
    """
    log4j: Any = getattr(spark._jvm, "org.apache.logging.log4j")
    for name in _LOGS_OF_FAILURES:
        log4j.core.config.Configurator.setLevel(f"org.apache.spark.{name}", log4j.Level.OFF)


def _limit_avro_here(limits: Mapping[str, int]) -> None:
    """Set Avro's limits in this JVM, which is running already, as system properties. Avro reads them once."""
    jvm: Any = SparkContext._jvm
    for name, most in limits.items():
        jvm.java.lang.System.setProperty(name, str(most))
    avro = jvm.org.apache.avro.SystemLimitException  # py4j initializes a class when it looks for it
    if isinstance(avro, JavaPackage):
        raise InstallationError(
            "Avro in Spark's jars",
            "this version has no limits of lengths, so a damaged record can exhaust the memory",
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
                f"it cannot be set to {most}, because this process has used Avro with another limit",
                "start a new process, and create its session with the largest `read.max_record_bytes`",
            )


def _is_accepted(check_length: Callable[[int], object], length: int) -> bool:
    try:
        check_length(length)
    except Py4JJavaError:
        return False
    return True


def _check_executors(context: SparkContext, limits: Mapping[str, int]) -> None:
    """Check that the executors of an existing application were started with Avro's limits."""
    options = context.getConf().get(EXECUTOR_OPTIONS) or ""
    if not context._jsc.isLocal() and options != with_avro_limits(options, limits):
        raise InstallationError(
            EXECUTOR_OPTIONS,
            "the application's executors were started without Avro's limits",
            f"add {with_avro_limits('', limits)} to the application's submission",
        )


def _remember_names(spark: SparkSession) -> None:
    """Cache classes that PySpark looks up for every expression, each time by a search in all jars."""
    for steps in jvm_names(spark.version):
        holder: Any = spark.sparkContext._jvm
        for name in steps:
            member = getattr(holder, name)
            setattr(holder, name, member)
            holder = member


def lake_files(root: str, spark: SparkSession | None) -> Files:
    """The files of a lake, without creating a session, and for local lakes without a JVM."""
    return LocalFiles.of(root) or HadoopFiles.of(*hadoop(spark))


def hadoop(spark: SparkSession | None) -> tuple[Any, Any]:
    """The JVM and Hadoop's configuration, without creating a session.

    Raises:
        InstallationError: Java does not start.
    """
    if spark is not None:
        return spark._jvm, spark._jsc.hadoopConfiguration()
    jvm = start_jvm()
    return jvm, jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(SparkConf()._jconf)


def sibling(spark: SparkSession) -> SparkSession:
    """A session of the same application for another thread, with its own settings."""
    own = _without_reflection(spark.newSession())
    for name in SPARK_DEFAULTS:
        value = spark.conf.get(name, None)
        if value is not None and spark.conf.isModifiable(name):
            own.conf.set(name, value)
    return own


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread, for code that does not know its session otherwise."""
    sessions = session_class(spark)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        sessions.setActiveSession(before.get()) if before.isDefined() else sessions.clearActiveSession()


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session, and restore the former ones at the end."""
    # Spark does not know the defaults of Delta's settings before it has used Delta.
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, stored in before.items():
            spark.conf.unset(name) if stored is None else spark.conf.set(name, stored)


def _without_reflection(spark: SparkSession) -> SparkSession:
    """Remove Spark's functions that call Java from a session."""
    named: Any = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier  # type: ignore[union-attr]
    for name in _REFLECTION:
        spark._jsparkSession.sessionState().functionRegistry().dropFunction(named(name))
    return spark


def heap_bytes(spark: SparkSession) -> int:
    """The heap size of the driver, or of an executor if that is smaller."""
    driver = int(cast(Any, spark.sparkContext._jvm).java.lang.Runtime.getRuntime().maxMemory())
    context = spark.sparkContext._jsc
    return driver if context.isLocal() else min(driver, context.sc().executorMemory() << 20)


def batch_bytes(spark: SparkSession, setting: int | None, parallel: int, *, share: int = 8) -> int:
    """How many bytes of records a batch may have; see `read.max_batch_bytes`.

    Args:
        parallel: the tables side by side.
        share: without a setting, one table's batch may have one in this many bytes of the heap.
    """
    return setting or max(heap_bytes(spark) // (share * parallel), 1)


def is_alive(spark: SparkSession) -> bool:
    try:
        cast(Any, spark.sparkContext._jvm).java.lang.System.nanoTime()
    except (Py4JNetworkError, OSError):
        return False
    return True


def ends_within(seconds: float, spark: SparkSession) -> bool:
    """Whether the session's JVM has ended, or ends in this time."""
    deadline = time.monotonic() + seconds
    while is_alive(spark):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)
    return True


def is_little(*, rows: int, stored_bytes: int) -> bool:
    """Whether a batch is so small that interpreting its plans is faster; see `planned_for`."""
    return rows <= _SMALL_ROWS and stored_bytes <= _SMALL_BYTES


def scratch_folders(local_dir: str | None) -> list[str]:
    """The folders to which Spark and Java spill."""
    named = os.environ.get("LOCAL_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or local_dir  # the first is YARN's
    return list(dict.fromkeys([*(named or TEMPORARY).split(","), TEMPORARY]))


@contextmanager
def planned_for(spark: SparkSession, *, rows: int | None, stored_bytes: int = 0) -> Iterator[None]:
    """Set the session's planning for the size of a batch: small batches are interpreted, in one partition.

    Args:
        spark: the session; other threads must not plan with it in this context.
        rows: number of rows; none if unknown.
        stored_bytes: size of the table to change, all of which a merge may copy.
    """
    is_small = rows is not None and is_little(rows=rows, stored_bytes=stored_bytes)
    with session_settings(spark, _SMALL_PLANS if is_small else {}):
        yield
