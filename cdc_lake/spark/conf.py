"""Configure Spark in this Python environment: its jars, settings, log and Java, for `spark-submit` and PySpark."""

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from cdc_lake.errors import InstallationError
from cdc_lake.spark.jars import Jar
from cdc_lake.spark.java import JAVA_VERSION, bundled_java_home

CONF_FILES = frozenset(("spark-defaults.conf", "spark-env.sh", "log4j2.properties"))
"""The files that `write_spark_defaults` writes."""
ARCHIVE_FOLDER = "class-archive"
"""Folder in PySpark's folder that `cdc-lake jars archive` writes."""
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


def spark_home() -> Path:
    """The folder of the installed PySpark.

    Raises:
        InstallationError: PySpark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InstallationError("pyspark", "it is not installed", "run `make setup`")
    return Path(spec.origin).parent


def write_spark_defaults(
    jars: Sequence[Jar],
    cache: Path,
    settings: Mapping[str, str],
    *,
    conf: Path | None = None,
    java_module: str | None = None,
) -> Path:
    """Configure the jars and `settings` for every `spark-submit` of this environment.

    Args:
        conf: the folder to write to, for use with SPARK_CONF_DIR; default: PySpark's own.
        java_module: a Java module that this Spark requires.

    Returns:
        The path of spark-defaults.conf.
    """
    conf = conf or spark_home() / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    if not any(jar.group == "org.apache.hudi" for jar in jars):
        settings = without_hudi(settings)
    lines = {"spark.jars": ",".join(str(jar.path(cache)) for jar in jars), **_ON_THIS_MACHINE, **settings}
    defaults = conf / "spark-defaults.conf"
    text = "# Written by `cdc-lake jars fetch`.\n" + "".join(
        f"{key} {_property(value)}\n" for key, value in lines.items()
    )
    _write(defaults, text)
    _write(conf / "spark-env.sh", _spark_env(java_module))
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


def _spark_env(java_module: str | None) -> str:
    """A script that selects Java, rejects versions with which Spark fails before a job can report it, and lets local
    submissions read the jars in place.
    """
    home = bundled_java_home()
    text = "# Written by `cdc-lake jars fetch`.\n"
    if home is not None and _has_module(home, java_module):
        text += f"""# Use the bundled Java if there is no Java {JAVA_VERSION}.
if [ -z "${{JAVA_HOME:-}}" ] && ! java -version 2>&1 | grep -q 'version "{JAVA_VERSION}'; then
  export JAVA_HOME={shlex.quote(str(home))}
fi
"""
    wanted = f"Java {JAVA_VERSION}" + (f" with the module {java_module}" if java_module else "")
    has_module = f""" && grep -q '^MODULES=.*{re.escape(java_module)}' "$release\"""" if java_module else ""
    return f"""{text}# The file `release` has Java's version and modules.
java="${{JAVA_HOME:+$JAVA_HOME/bin/java}}"
java=$(readlink -f "${{java:-$(command -v java)}}")
if [ -z "$java" ]; then
  echo "error CDC-202 ${{JAVA_HOME:-Java}}: Java is missing; install {wanted} and set JAVA_HOME to it" >&2
  exit 2
fi
release="${{java%/bin/java}}/release"
if [ -f "$release" ] && ! {{ grep -q '^JAVA_VERSION="{JAVA_VERSION}[".]' "$release"{has_module}; }}; then
  echo "error CDC-202 $java: this Spark requires {wanted}; set JAVA_HOME to a complete Java {JAVA_VERSION}" >&2
  exit 2
fi
unset java release
# Without a cluster, Spark needs no copies of the jars (124 MB per start), and can use the archive of their classes
# (`cdc-lake jars archive`).
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
      ! grep -qE '^spark[.](master|submit[.]deployMode|driver[.]extraClassPath)' "$defaults"; then
      set -- "$1" --conf spark.jars= --driver-class-path "${{jars//,/:}}" "${{@:2}}"
    fi
    ;;
esac
unset arguments defaults jars
"""


def _has_module(home: Path, module: str | None) -> bool:
    modules = re.search(r'^MODULES="(.*)"', (home / "release").read_text(encoding="utf-8"), re.MULTILINE)
    return module is None or (modules is not None and module in modules.group(1).split())


def _property(value: str) -> str:
    # Backslashes are escapes in Java properties files.
    return value.replace("\\", "\\\\")


def _write(file: Path, text: str) -> None:
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return
    # A `spark-submit` that starts now must not read half of the file.
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    shutil.move(draft, file)
