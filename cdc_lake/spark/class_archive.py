"""The JVM of a short run, and an archive of the classes that it needs.

Half of a short run is spent on reading, checking and linking the same 20,000 classes. Java's class-data sharing maps
them from a file, as they were at the end of a process that had used them. `cdc-lake jars archive` makes that file, for
the jars and the Java of this environment; the JVM ignores it where one of them has changed since. It takes only classes
of the class path, so the jars are named there and not by `spark.jars`; and no folder on the class path may hold a file,
so Spark's settings come by `--properties-file`. Source: the java command of JDK 17, "Application class data sharing".
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cdc_lake.errors import InstallationError
from cdc_lake.spark.jars import CONF_FILES, spark_home
from cdc_lake.spark.java import SHORT_JVM, find_java

_FIRST_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable with the first options of a JVM that PySpark starts; those of the submission win."""
_CHOSEN_BY_THE_USER = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Or the JVM says on stdout that it does not take the archive."""


@contextmanager
def short_jvm() -> Iterator[None]:
    """If a JVM is started meanwhile, it is one for a short run; where there is an archive that fits, with that.

    Raises:
        InstallationError: there is no Java for it.
    """
    folder, archive = _folder(), _archive()
    is_ours = not any(map(os.environ.get, _CHOSEN_BY_THE_USER))
    if archive and is_ours and _settings() == (folder / "spark.properties").read_text(encoding="utf-8"):
        variables = _variables(_option("-XX:SharedArchiveFile", folder / "java.jsa", archive))
    else:
        variables = {_FIRST_OPTIONS: _before_the_users(SHORT_JVM)}
    with _environment(variables):
        yield


@contextmanager
def recorded() -> Iterator[None]:
    """Make the archive of the classes that the JVM uses which is started meanwhile; it has ended afterwards.

    Raises:
        InstallationError: Java or PySpark's jars are missing; or there is a file in Spark's folder of settings, which
            would not be read; or the JVM has made no archive.
    """
    folder = _folder()
    settings = _settings()
    if settings is None:
        conf = spark_home() / "conf"
        todo = f"run `cdc-lake jars fetch`, and leave {', '.join(sorted(CONF_FILES))} alone there"
        raise InstallationError(str(conf), "Spark's settings are not as `cdc-lake jars fetch` writes them", todo)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "empty").mkdir(parents=True)
    (folder / "spark.properties").write_text(settings, encoding="utf-8")
    base, draft = folder / "java.jsa", folder / "classes.draft"
    on_base = _option("-XX:SharedArchiveFile", base)
    _run_java("-Xshare:dump", on_base)  # not every Java comes with one
    with _environment(_variables(on_base, _option("-XX:ArchiveClassesAtExit", draft))):
        yield
    _end_jvm()
    if not draft.is_file():
        raise InstallationError("Java", "it made no archive of classes", f"see what it said above; {find_java()}")
    _run_java(_option("-XX:SharedArchiveFile", base, draft), "-version")  # one that was cut short crashes Java
    draft.replace(folder / f"classes-{draft.stat().st_size}.jsa")


def _folder() -> Path:
    return spark_home() / "short-runs"


def _archive() -> Path | None:
    """The archive, if it has the size that its name says."""
    found = _folder().glob("classes-*.jsa")
    return next((file for file in found if file.name == f"classes-{file.stat().st_size}.jsa"), None)


def _variables(*options: str) -> dict[str, str]:
    folder = _folder()
    log = _option("-Dlog4j2.configurationFile", spark_home() / "conf" / "log4j2.properties")
    return {
        "JAVA_HOME": str(find_java().resolve().parents[1]),
        "SPARK_CONF_DIR": str(folder / "empty"),
        "PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(str(folder / 'spark.properties'))} pyspark-shell",
        _FIRST_OPTIONS: _before_the_users(f"{SHORT_JVM} {_QUIET} {shlex.join((log, *options))}"),
    }


def _option(name: str, *files: Path) -> str:
    return f"{name}={':'.join(map(str, files))}"


def _before_the_users(options: str) -> str:
    return " ".join(filter(None, (options, os.environ.get(_FIRST_OPTIONS))))


def _settings() -> str | None:
    """Spark's settings with the jars on the class path; None if what `cdc-lake jars fetch` wrote is not all of them."""
    conf = spark_home() / "conf"
    if not conf.is_dir() or {file.name for file in conf.iterdir()} != CONF_FILES:
        return None
    text = (conf / "spark-defaults.conf").read_text(encoding="utf-8")
    lines = [line.partition(" ") for line in text.splitlines()]
    return "".join(
        f"spark.driver.extraClassPath {value.replace(',', ':')}\n" if key == "spark.jars" else f"{key} {value}\n"
        for key, _, value in lines
    )


def _run_java(*options: str) -> None:
    done = subprocess.run([find_java(), *options], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise InstallationError(f"java {' '.join(options)}", f"it failed: {''.join(said)}", "free some disk space")


def _end_jvm() -> None:
    """End this process's JVM, which writes its archive now."""
    from pyspark import SparkContext

    if (context := SparkContext._active_spark_context) is not None:
        context.stop()
    if (gateway := SparkContext._gateway) is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
