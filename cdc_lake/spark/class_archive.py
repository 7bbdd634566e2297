"""Start the JVM faster: from an archive of the classes that Spark and cdc_lake load, or with options for short runs.

A short run spends half of its time on loading and linking the same 20,000 classes. Java's class-data sharing maps them
from a file instead. `cdc-lake jars archive` creates that file for the jars and the Java of this environment; the JVM
ignores it if one of them has changed. Java archives only classes of the class path, so the jars are listed there and
not in `spark.jars`. Folders on the class path must be empty, so Spark gets its settings by `--properties-file`.
Source: the java command of JDK 17, "Application class data sharing".

PySpark and `spark-submit` start their JVM with the same script, which sources `spark-env.sh` in Spark's conf folder.
That file sources the script that this module writes.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cdc_lake.errors import InstallationError
from cdc_lake.spark.conf import ARCHIVE_FOLDER, CONF_FILES, spark_home
from cdc_lake.spark.java import SHORT_JVM, find_java

_FIRST_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Environment variable with options of a JVM that PySpark starts; the submission's options override them."""
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Otherwise the JVM prints to stdout that it rejects the archive."""
_BASE, _CLASSES = "java.jsa", "classes.jsa"
"""The archives of Java's own classes, which not every Java includes, and of Spark's and cdc_lake's."""
_CHECKSUM = "cat {base} {classes} 2>/dev/null | cksum"
_AGENTS = "-(java)?agent|FlightRecord"
"""Java options with which Java 17 crashes when it loads a class from the archive (SIGSEGV in
check_shared_class_file_load_hook).
"""
_SPARK_ENV = r"""# Written by `cdc-lake jars archive`, and sourced by spark-env.sh for local submissions.
if [[ ! "$* $SPARK_SUBMIT_OPTS $JAVA_TOOL_OPTIONS $JDK_JAVA_OPTIONS" =~ {agents} ]] &&
  cmp -s {defaults} "$SPARK_CONF_DIR/spark-defaults.conf" &&
  [ "$(cd "$SPARK_CONF_DIR" && echo *)" = '{conf_files}' ] && [ "$({checksum})" = '{sum}' ]; then
  SPARK_CONF_DIR={empty}
  SPARK_SUBMIT_OPTS={options}"${{SPARK_SUBMIT_OPTS:+ $SPARK_SUBMIT_OPTS}}"
  set -- "$1" --properties-file {properties} "${{@:2}}"
fi
"""


@contextmanager
def short_jvm() -> Iterator[None]:
    """Within this context, a new JVM gets the options for a short run."""
    with _environment({_FIRST_OPTIONS: _before_the_users(SHORT_JVM)}):
        yield


@contextmanager
def recorded() -> Iterator[None]:
    """Archive the classes that this process's JVM loads within this context, which must start it; then end the JVM.

    Raises:
        InstallationError: Java or PySpark's jars are missing; Spark's conf folder has other files, which would not be
            read; or the JVM does not write an archive.
    """
    folder, conf = _folder(), spark_home() / "conf"
    if not conf.is_dir() or {file.name for file in conf.iterdir()} != CONF_FILES:
        todo = f"remove files other than {', '.join(sorted(CONF_FILES))} there, and run `cdc-lake jars fetch`"
        raise InstallationError(str(conf), "Spark's settings are not those of `cdc-lake jars fetch`", todo)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "empty").mkdir(parents=True)
    shutil.copyfile(conf / "spark-defaults.conf", folder / "spark-defaults.conf")
    settings = _on_class_path((folder / "spark-defaults.conf").read_text(encoding="utf-8"))
    (folder / "spark.properties").write_text(settings, encoding="utf-8")
    on_base = _option("-XX:SharedArchiveFile", folder / _BASE)
    _run_java("-Xshare:dump", on_base)
    options = _options(on_base, _option("-XX:ArchiveClassesAtExit", folder / _CLASSES))
    with _environment(
        {
            "JAVA_HOME": str(find_java().resolve().parents[1]),
            "SPARK_CONF_DIR": str(folder / "empty"),
            "PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(str(folder / 'spark.properties'))} pyspark-shell",
            _FIRST_OPTIONS: _before_the_users(f"{SHORT_JVM} {options}"),
        }
    ):
        yield
    _end_jvm()
    if not (folder / _CLASSES).is_file():
        raise InstallationError("Java", "it created no class archive", f"see the output above of {find_java()}")
    _run_java(_use_archive(folder), "-version")
    (folder / "spark-env.sh").write_text(_spark_env(folder), encoding="utf-8")


def _spark_env(folder: Path) -> str:
    """A script that makes `spark-submit` use the archive, unless it is damaged: Java would crash or not start."""
    checksum = _CHECKSUM.format(base=shlex.quote(str(folder / _BASE)), classes=shlex.quote(str(folder / _CLASSES)))
    return _SPARK_ENV.format(
        agents=_AGENTS,
        checksum=checksum,
        sum=subprocess.run(["sh", "-c", checksum], capture_output=True, text=True, check=True).stdout.strip(),
        defaults=shlex.quote(str(folder / "spark-defaults.conf")),
        conf_files=" ".join(sorted(CONF_FILES)),
        empty=shlex.quote(str(folder / "empty")),
        options=shlex.quote(_options(_use_archive(folder))),
        properties=shlex.quote(str(folder / "spark.properties")),
    )


def _use_archive(folder: Path) -> str:
    return _option("-XX:SharedArchiveFile", folder / _BASE, folder / _CLASSES)


def _folder() -> Path:
    return spark_home() / ARCHIVE_FOLDER


def _options(*options: str) -> str:
    log = _option("-Dlog4j2.configurationFile", spark_home() / "conf" / "log4j2.properties")
    return f"{_QUIET} {shlex.join((log, *options))}"


def _option(name: str, *files: Path) -> str:
    return f"{name}={':'.join(map(str, files))}"


def _before_the_users(options: str) -> str:
    return " ".join(filter(None, (options, os.environ.get(_FIRST_OPTIONS))))


def _on_class_path(settings: str) -> str:
    """Spark's settings with the jars on the class path."""
    lines = [line.partition(" ") for line in settings.splitlines()]
    return "".join(
        f"spark.driver.extraClassPath {value.replace(',', ':')}\n" if key == "spark.jars" else f"{key} {value}\n"
        for key, _, value in lines
    )


def _run_java(*options: str) -> None:
    done = subprocess.run([find_java(), *options], capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise InstallationError(f"java {' '.join(options)}", f"it failed: {''.join(output)}", "free disk space")


def _end_jvm() -> None:
    """End this process's JVM, which then writes its archive."""
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
