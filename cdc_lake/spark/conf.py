"""Configure Spark in this Python environment: its jars, settings, log and Java, for `spark-submit` and PySpark.

A short run spends half of its time on loading and linking the same 20,000 classes. Java's class-data sharing maps them
from a file instead. The second short run of an environment, or `cdc-lake jars archive`, creates that file for the jars
and the Java of this environment; the JVM ignores it if one of them has changed. Java archives only classes of the class
path, so the jars are listed there and not in `spark.jars`. Folders on the class path must be empty, so Spark gets its
settings by `--properties-file`. Source: the java command of JDK 17, "Application class data sharing".

PySpark and `spark-submit` start their JVM with the same script, which sources `spark-env.sh` in Spark's conf folder.
`write_spark_defaults` writes that file. It sources another script, which `_finish_archive` writes next to the archive.
"""

import atexit
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from cdc_lake.errors import InstallationError
from cdc_lake.spark.jars import Jar
from cdc_lake.spark.java import JAVA_VERSION, SHORT_JVM, bundled_java_home, find_java

logger = logging.getLogger(__name__)

_CONF_FILES = frozenset(("spark-defaults.conf", "spark-env.sh", "log4j2.properties"))
"""The files that `write_spark_defaults` writes."""
ARCHIVE_FOLDER = "class-archive"
"""Folder in PySpark's folder for the archive of classes, its script, and the spark-defaults.conf that it belongs to."""
_BEGUN = "begun"
"""File in it: an archive was begun, so no later run begins one, even if it failed."""
_ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Makes local sessions listen on loopback; Spark's default is the address of the host name."""
_LOG_SETTINGS = """# Written by `cdc-lake jars fetch`: Spark logs warnings only, so that a job's own lines are visible.
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %p %c{1} %m%n%ex
logger.hostname.name = org.apache.spark.util.Utils
logger.hostname.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""
_FIRST_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Environment variable with options of a JVM that PySpark starts; the submission's options override them."""
_OWN_SETTINGS = (
    *("SPARK_CONF_DIR", "SPARK_HOME", "MASTER", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"),
    *(_FIRST_OPTIONS, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"),
)
"""Environment variables with which a run archives no classes: the user's settings, or the port of a running JVM."""
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""Otherwise the JVM prints to stdout that it rejects the archive."""
_BASE, _CLASSES = "java.jsa", "classes.jsa"
"""The archives of Java's own classes, which not every Java includes, and of Spark's and cdc_lake's."""
_CHECKSUM = "cat {base} {classes} 2>/dev/null | cksum"
_AGENTS = "-(java)?agent|FlightRecord"
"""Java options with which Java 17 crashes when it loads a class from the archive (SIGSEGV in
check_shared_class_file_load_hook).
"""
_OTHER_DRIVER = "^spark[.](master|submit[.]deployMode|driver[.]extraClassPath)"
"""Settings with which the jars on the class path would hide other versions, or executors would not get them."""
_ARCHIVE_ENV = r"""# Written with the class archive, and sourced by spark-env.sh for local submissions.
if [[ ! "$* $SPARK_SUBMIT_OPTS $JAVA_TOOL_OPTIONS $JDK_JAVA_OPTIONS" =~ {agents} ]] &&
  cmp -s {defaults} "$SPARK_CONF_DIR/spark-defaults.conf" &&
  [ "$(cd "$SPARK_CONF_DIR" && echo *)" = '{conf_files}' ] && [ "$({checksum})" = '{sum}' ]; then
  SPARK_CONF_DIR={empty}
  SPARK_SUBMIT_OPTS={options}"${{SPARK_SUBMIT_OPTS:+ $SPARK_SUBMIT_OPTS}}"
  set -- "$1" --properties-file {properties} "${{@:2}}"
fi
"""


def spark_home() -> Path:
    """The folder of the installed PySpark.

    Raises:
        InstallationError: PySpark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InstallationError("pyspark", "it is not installed", "run `pip install 'cdc-lake[spark35]'`")
    return Path(spec.origin).parent


def write_spark_defaults(
    jars: Sequence[Jar],
    cache: Path,
    settings: Mapping[str, str],
    *,
    conf: Path | None = None,
    java_versions: Collection[int] = (JAVA_VERSION,),
    java_module: str | None = None,
) -> Path:
    """Configure the jars and `settings` for every `spark-submit` of this environment.

    Args:
        conf: the folder to write to, for use with SPARK_CONF_DIR; default: PySpark's own.
        java_versions, java_module: versions of Java that this Spark may have, and a module that it requires.

    Returns:
        The path of spark-defaults.conf.
    """
    conf = conf or spark_home() / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    if not any(jar.group == "org.apache.hudi" for jar in jars):
        settings = without_hudi(settings)
    lines = {"spark.jars": ",".join(str(jar.path(cache)) for jar in jars), **_ON_THIS_MACHINE, **settings}
    defaults = conf / "spark-defaults.conf"
    escaped = (f"{key} {value}\n".replace("\\", "\\\\") for key, value in lines.items())  # as in Java properties files
    _write(defaults, "".join(["# Written by `cdc-lake jars fetch`.\n", *escaped]))
    _write(conf / "spark-env.sh", _spark_env(java_versions, java_module))
    _write(conf / "log4j2.properties", _LOG_SETTINGS)
    return defaults


def reads_s3a(conf: Path | None) -> bool:
    """Whether the jars for s3a:// are configured in this conf folder; default: PySpark's own."""
    defaults = (conf or spark_home() / "conf") / "spark-defaults.conf"
    return defaults.is_file() and "/hadoop-aws-" in defaults.read_text(encoding="utf-8")


def without_hudi(settings: Mapping[str, str]) -> dict[str, str]:
    """`settings` without Hudi's classes, because a session with a missing class does not start.

    A setting with classes of Delta and Hudi keeps Delta's; one with Hudi's alone is dropped.
    """
    kept = {
        key: ",".join(
            name for name in value.split(",") if not re.match(r"org\.apache\.(spark\.)?(sql\.)?hudi|.*Hoodie", name)
        )
        for key, value in settings.items()
    }
    return {key: value for key, value in kept.items() if value}


def _spark_env(java_versions: Collection[int], java_module: str | None) -> str:
    """A script that selects Java, rejects versions with which Spark fails before a job can report it, and lets local
    submissions read the jars in place.
    """
    home, pattern = bundled_java_home(), f"({'|'.join(map(str, java_versions))})"
    text = "# Written by `cdc-lake jars fetch`.\n"
    if home is not None and _has_module(home, java_module):
        text += f"""# Use the bundled Java if there is no right one.
if [ -z "${{JAVA_HOME:-}}" ] && ! java -version 2>&1 | grep -qE 'version "{pattern}[."]'; then
  export JAVA_HOME={shlex.quote(str(home))}
fi
"""
    wanted = f"Java {' or '.join(map(str, java_versions))}" + (f" with the module {java_module}" if java_module else "")
    has_module = f""" && grep -q '^MODULES=.*{re.escape(java_module)}' "$release\"""" if java_module else ""
    return f"""{text}# The file `release` has Java's version and modules.
java="${{JAVA_HOME:+$JAVA_HOME/bin/java}}"
java=$(readlink -f "${{java:-$(command -v java)}}")
if [ -z "$java" ]; then
  echo "error CDC-202 ${{JAVA_HOME:-Java}}: Java is missing; install {wanted} and set JAVA_HOME to it" >&2
  exit 2
fi
release="${{java%/bin/java}}/release"
if [ -f "$release" ] && ! {{ grep -qE '^JAVA_VERSION="{pattern}[".]' "$release"{has_module}; }}; then
  echo "error CDC-202 $java: this Spark requires {wanted}; set JAVA_HOME to a complete Java {JAVA_VERSION}" >&2
  exit 2
fi
unset java release
# Without a cluster, Spark needs no copies of the jars (124 MB per start), and can use the archive of their classes.
# `set --` changes the arguments with which Spark's script goes on after it has sourced this file, for example to
#   org.apache.spark.deploy.SparkSubmit --conf spark.jars= --driver-class-path a.jar:b.jar jobs/bronze.py
# A --master other than `local[`, and $MASTER, may be a cluster. So is `local-cluster[2,1,1024]`.
arguments="$* ${{MASTER:+--master}}"
case "${{arguments/--master local[[]/}}" in
  *--master* | *--deploy-mode* | *--jars* | *--packages* | *--properties-file* | *--driver-class-path*) ;;
  *spark.master* | *spark.jars* | *spark.driver.extraClassPath* | *spark.submit.deployMode*) ;;
  org.apache.spark.deploy.SparkSubmit\\ *)
    defaults="$SPARK_CONF_DIR/spark-defaults.conf"
    if [ "$SPARK_CONF_DIR" = "${{SPARK_HOME:-}}/conf" ] && [ -f "$SPARK_HOME/{ARCHIVE_FOLDER}/spark-env.sh" ]; then
      . "$SPARK_HOME/{ARCHIVE_FOLDER}/spark-env.sh"
    fi
    # With the archive, `$2` is --properties-file, and that file has the jars.
    jars=$(sed -n 's/^spark[.]jars //p' "$defaults" 2>/dev/null)
    if [ "$2" != --properties-file ] && [ -n "$jars" ] &&
      ! grep -qE '{_OTHER_DRIVER}' "$defaults"; then
      set -- "$1" --conf spark.jars= --driver-class-path "${{jars//,/:}}" "${{@:2}}"
    fi
    ;;
esac
unset arguments defaults jars
"""


def _has_module(home: Path, module: str | None) -> bool:
    modules = re.search(r'^MODULES="(.*)"', (home / "release").read_text(encoding="utf-8"), re.MULTILINE)
    return module is None or (modules is not None and module in modules.group(1).split())


def _write(file: Path, text: str) -> None:
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return
    # A `spark-submit` that starts now must not read half of the file.
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    shutil.move(draft, file)


@contextmanager
def short_jvm() -> Iterator[None]:
    """Within this context, a new JVM gets the options for a short run."""
    with _environment({_FIRST_OPTIONS: _before_the_users(SHORT_JVM)}):
        yield


@contextmanager
def archived_if_due() -> Iterator[None]:
    """Within this context, a new JVM for a short run archives its classes when this process exits, if `_is_due`."""
    folder, variables = spark_home() / ARCHIVE_FOLDER, dict[str, str]()
    try:
        if _is_due(folder):
            variables = _begin_archive(folder)
            atexit.register(_archive_at_exit, folder)
    except (OSError, InstallationError) as exc:
        logger.debug("Spark's classes are not archived: %s", exc)
    with _environment(variables):
        yield


def _is_due(folder: Path) -> bool:
    """Whether a new JVM of this process is the second one for short runs with these jars. Remembers the first.

    A single run would only take longer. With `_OWN_SETTINGS`, the JVM must have these instead of the archive's.
    """
    from pyspark import SparkContext

    conf = spark_home() / "conf"
    if SparkContext._gateway is not None or any(map(os.environ.get, _OWN_SETTINGS)) or not _is_as_fetched(conf):
        return False
    current, known = conf / "spark-defaults.conf", folder / "spark-defaults.conf"
    if not known.is_file() or known.read_bytes() != current.read_bytes():
        _start_over(folder)
        return False
    return not (folder / _BEGUN).exists()


def _is_as_fetched(conf: Path) -> bool:
    """Whether Spark's conf folder has only files of `cdc-lake jars fetch`, and no settings that prevent an archive."""
    if not conf.is_dir() or {file.name for file in conf.iterdir()} != _CONF_FILES:
        return False
    settings = (conf / "spark-defaults.conf").read_text(encoding="utf-8")
    return not re.search(f"{_OTHER_DRIVER}|{_AGENTS}", settings, re.MULTILINE)


@contextmanager
def recorded() -> Iterator[None]:
    """Archive the classes that this process's JVM loads within this context, which must start it; then end the JVM.

    Raises:
        InstallationError: Java or PySpark's jars are missing; Spark's conf folder has other files or settings, which
            would not be read; or the JVM does not write an archive.
    """
    folder, conf = spark_home() / ARCHIVE_FOLDER, spark_home() / "conf"
    if not _is_as_fetched(conf):
        cure = f"remove files other than {', '.join(sorted(_CONF_FILES))} there, and run `cdc-lake jars fetch`"
        raise InstallationError(str(conf), "Spark's settings are not those of `cdc-lake jars fetch`", cure)
    _start_over(folder)
    with _environment(_begin_archive(folder)):
        yield
    _finish_archive(folder)


def _start_over(folder: Path) -> None:
    """Remove an archive, and remember the settings that the next one belongs to."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copyfile(spark_home() / "conf" / "spark-defaults.conf", folder / "spark-defaults.conf")


def _begin_archive(folder: Path) -> dict[str, str]:
    """The environment variables for a JVM that archives its classes when it ends.

    Raises:
        FileExistsError: another process has begun.
        InstallationError: Java is missing, or it cannot write the archive of its own classes.
    """
    (folder / _BEGUN).touch(exist_ok=False)
    (folder / "empty").mkdir()
    settings = _on_class_path((folder / "spark-defaults.conf").read_text(encoding="utf-8"))
    (folder / "spark.properties").write_text(settings, encoding="utf-8")
    on_base = _java_option("-XX:SharedArchiveFile", folder / _BASE)
    _run_java("-Xshare:dump", on_base)
    options = _java_options(on_base, _java_option("-XX:ArchiveClassesAtExit", folder / _CLASSES))
    return {
        _FIRST_OPTIONS: _before_the_users(options),
        "JAVA_HOME": str(find_java().resolve().parents[1]),
        "SPARK_CONF_DIR": str(folder / "empty"),
        "PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(str(folder / 'spark.properties'))} pyspark-shell",
    }


def _archive_at_exit(folder: Path) -> None:
    from py4j.protocol import Py4JError

    logger.info("archiving Spark's classes, once, so that later runs start faster")
    try:
        _finish_archive(folder)
    except (OSError, Py4JError, InstallationError) as exc:
        logger.warning("Spark's classes are not archived: %s", exc)


def _finish_archive(folder: Path) -> None:
    """End this process's JVM, which then writes its archive, and let later ones take it.

    Raises:
        InstallationError: there is no archive, or Java cannot read it.
    """
    _end_jvm()
    if not (folder / _CLASSES).is_file():
        raise InstallationError("Java", "it created no class archive", f"see the output above of {find_java()}")
    _run_java(_use_archive(folder), "-version")
    _write(folder / "spark-env.sh", _archive_env(folder))


def _archive_env(folder: Path) -> str:
    """A script that makes `spark-submit` use the archive, unless it is damaged: Java would crash or not start."""
    checksum = _CHECKSUM.format(base=shlex.quote(str(folder / _BASE)), classes=shlex.quote(str(folder / _CLASSES)))
    return _ARCHIVE_ENV.format(
        agents=_AGENTS,
        checksum=checksum,
        sum=subprocess.run(["sh", "-c", checksum], capture_output=True, text=True, check=True).stdout.strip(),
        defaults=shlex.quote(str(folder / "spark-defaults.conf")),
        conf_files=" ".join(sorted(_CONF_FILES)),
        empty=shlex.quote(str(folder / "empty")),
        options=shlex.quote(_java_options(_use_archive(folder))),
        properties=shlex.quote(str(folder / "spark.properties")),
    )


def _use_archive(folder: Path) -> str:
    return _java_option("-XX:SharedArchiveFile", folder / _BASE, folder / _CLASSES)


def _java_options(*options: str) -> str:
    log = _java_option("-Dlog4j2.configurationFile", spark_home() / "conf" / "log4j2.properties")
    return f"{_QUIET} {shlex.join((log, *options))}"


def _java_option(name: str, *files: Path) -> str:
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
