"""Which submissions read the jars in place and use the class archive, without starting a JVM."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark import SparkContext

from cdc_lake.spark import conf as conf_module
from cdc_lake.spark.conf import ARCHIVE_FOLDER, spark_home, write_spark_defaults
from cdc_lake.spark.jars import Jar
from cdc_lake.spark.java import find_java

pytestmark = pytest.mark.core

SUBMIT = ("org.apache.spark.deploy.SparkSubmit", "jobs/bronze.py", "--table", "shop.public.*")
SHOW = '. "$SPARK_CONF_DIR/spark-env.sh"; printf "%s\\n" "$SPARK_CONF_DIR" "$SPARK_SUBMIT_OPTS" "$@"'
"""Like `spark-class`, which then starts Spark with these variables and arguments."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PySpark's folder after `cdc-lake jars fetch` and `cdc-lake jars archive`."""
    home = tmp_path / "my spark"
    monkeypatch.setattr(conf_module, "spark_home", lambda: home)
    jars = [Jar(("spark",), "a", "b", version, "jar", "", "") for version in "12"]
    write_spark_defaults(jars, tmp_path, {"spark.ui.enabled": "false"})
    folder = home / ARCHIVE_FOLDER
    (folder / "empty").mkdir(parents=True)
    (folder / "java.jsa").write_text("base")
    (folder / "classes.jsa").write_text("cafe")
    (folder / "spark-defaults.conf").write_text((home / "conf" / "spark-defaults.conf").read_text())
    (folder / "spark-env.sh").write_text(conf_module._archive_env(folder))
    return home


def spark_class(home: Path, *arguments: str, **variables: str) -> list[str]:
    """The folder of settings, Java's first options, and Spark's arguments."""
    environment = {"PATH": "/usr/bin:/bin", "SPARK_HOME": str(home), "SPARK_CONF_DIR": f"{home}/conf", **variables}
    java = find_java().resolve().parents[1]
    done = subprocess.run(
        ["bash", "-c", SHOW, "bash", *arguments],
        env={"JAVA_HOME": str(java), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.splitlines()


def is_taken(home: Path, *arguments: str, **variables: str) -> bool:
    """Whether the archive is taken; if not, settings and options are unchanged."""
    conf, options, *passed = spark_class(home, *arguments, **variables)
    if options == variables.get("SPARK_SUBMIT_OPTS", ""):
        assert conf == variables.get("SPARK_CONF_DIR", f"{home}/conf")
        assert passed in (list(arguments), with_jars_in_place(home, arguments))
        return False
    return True


def reads_jars_in_place(home: Path, *arguments: str, **variables: str) -> bool:
    """Whether the jars are on the class path; if not, the arguments are unchanged."""
    _conf, _options, *passed = spark_class(home, *arguments, **variables)
    if passed == list(arguments):
        return False
    assert passed == with_jars_in_place(home, arguments)
    return True


def with_jars_in_place(home: Path, arguments: Sequence[str]) -> list[str]:
    jars = f"{home.parent}/a/b-1.jar:{home.parent}/a/b-2.jar"
    return [arguments[0], "--conf", "spark.jars=", "--driver-class-path", jars, *arguments[1:]]


def test_submission_takes_the_archive(home: Path) -> None:
    conf, options, *passed = spark_class(home, *SUBMIT, SPARK_SUBMIT_OPTS="-Xss4m -Da='b c'")

    folder = home / ARCHIVE_FOLDER
    assert conf == f"{folder}/empty"
    assert options.startswith("-Xlog:disable ")
    assert f"'-Dlog4j2.configurationFile={home}/conf/log4j2.properties'" in options
    used = f"'-XX:SharedArchiveFile={folder}/java.jsa:{folder}/classes.jsa'"
    assert options.endswith(f"{used} -Xss4m -Da='b c'")  # the user's options come last, so they win
    assert passed == [SUBMIT[0], "--properties-file", f"{folder}/spark.properties", *SUBMIT[1:]]


@pytest.mark.parametrize(
    "flags",
    [
        ("--master", "spark://host:7077"),
        ("--deploy-mode=cluster",),
        ("--jars", "/mine.jar"),
        ("--packages", "a:b:1"),
        ("--properties-file", "mine.conf"),
        ("--driver-class-path", "/mine.jar"),
        ("--conf", "spark.master=yarn"),
        ("--conf=spark.jars=/mine.jar",),
        ("--conf", "spark.jars.packages=a:b:1"),
        ("-c", "spark.driver.extraClassPath=/mine.jar"),
    ],
)
def test_submission_with_other_jars_or_master_is_unchanged(home: Path, flags: tuple[str, ...]) -> None:
    assert is_taken(home, SUBMIT[0], "--conf", "spark.driver.memory=2g", *SUBMIT[1:])
    assert not is_taken(home, SUBMIT[0], *flags, *SUBMIT[1:])

    shutil.rmtree(home / ARCHIVE_FOLDER)
    assert not reads_jars_in_place(home, SUBMIT[0], *flags, *SUBMIT[1:])


@pytest.mark.parametrize(
    "option",
    ["-javaagent:/opt/apm.jar", "-agentlib:jdwp=transport=dt_socket", "-agentpath:/p.so", "-XX:StartFlightRecording"],
)
def test_java_agents_do_not_take_the_archive(home: Path, option: str) -> None:
    assert not is_taken(home, SUBMIT[0], "--conf", f"spark.driver.extraJavaOptions={option}", *SUBMIT[1:])
    assert not is_taken(home, *SUBMIT, SPARK_SUBMIT_OPTS=option)
    assert not is_taken(home, *SUBMIT, JAVA_TOOL_OPTIONS=option)
    assert not is_taken(home, *SUBMIT, JDK_JAVA_OPTIONS=option)


def test_local_submissions_read_the_jars_in_place(home: Path) -> None:
    local = (SUBMIT[0], "--master", "local[2]", *SUBMIT[1:])
    assert is_taken(home, *local)

    shutil.rmtree(home / ARCHIVE_FOLDER)
    assert reads_jars_in_place(home, *local)
    assert reads_jars_in_place(home, *SUBMIT)
    assert not reads_jars_in_place(home, SUBMIT[0], "--master", "local-cluster[1,1,1024]", *SUBMIT[1:])


@pytest.mark.parametrize("setting", ["spark.master yarn", "spark.driver.extraClassPath /mine.jar"])
def test_defaults_with_a_master_or_class_path_are_kept(home: Path, setting: str) -> None:
    with (home / "conf" / "spark-defaults.conf").open("a") as defaults:
        defaults.write(f"{setting}\n")

    assert not reads_jars_in_place(home, *SUBMIT)


def test_other_programs_of_spark_are_unchanged(home: Path) -> None:
    worker = ("org.apache.spark.deploy.worker.Worker", "spark://host:7077")

    assert not is_taken(home, *worker)
    assert not reads_jars_in_place(home, *worker)


def test_variable_of_a_master_or_of_settings_is_kept(home: Path, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-env.sh").write_text((home / "conf" / "spark-env.sh").read_text())

    assert not is_taken(home, *SUBMIT, MASTER="spark://host:7077")
    assert not reads_jars_in_place(home, *SUBMIT, MASTER="spark://host:7077")
    assert not reads_jars_in_place(home, *SUBMIT, SPARK_CONF_DIR=str(tmp_path / "conf"))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("conf/hive-site.xml", "<configuration/>"),
        ("conf/spark-defaults.conf", "spark.executor.memory 2g\n"),
        (f"{ARCHIVE_FOLDER}/classes.jsa", "caf"),
        (f"{ARCHIVE_FOLDER}/classes.jsa", "fade"),
        (f"{ARCHIVE_FOLDER}/java.jsa", "vase"),
    ],
)
def test_changed_settings_or_damaged_archive_are_not_taken(home: Path, file: str, text: str) -> None:
    (home / file).write_text(text)

    assert not is_taken(home, *SUBMIT)


@pytest.mark.parametrize("file", ["java.jsa", "classes.jsa"])
def test_deleted_archive_is_not_taken(home: Path, file: str) -> None:
    (home / ARCHIVE_FOLDER / file).unlink()

    assert not is_taken(home, *SUBMIT)


@pytest.fixture
def archived_ivy(tmp_path: Path) -> Path:
    """A folder with Ivy's jar, and an archive of its classes by this Java."""
    (ivy,) = (spark_home() / "jars").glob("ivy-*.jar")
    shutil.copyfile(ivy, tmp_path / "ivy.jar")
    base = f"-XX:SharedArchiveFile={tmp_path}/java.jsa"
    subprocess.run([find_java(), "-Xshare:dump", base], check=True, capture_output=True)
    run_ivy(tmp_path, base, f"-XX:ArchiveClassesAtExit={tmp_path}/classes.jsa")
    return tmp_path


def run_ivy(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [find_java(), *options, "-cp", str(folder / "ivy.jar"), "org.apache.ivy.Main", "-version"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("stale", ["jar", "java"])
def test_java_starts_without_a_stale_archive(archived_ivy: Path, stale: str) -> None:
    use_archive = conf_module._use_archive(archived_ivy)
    assert run_ivy(archived_ivy, "-Xshare:on", use_archive).returncode == 0

    if stale == "jar":
        os.utime(archived_ivy / "ivy.jar", (0, 0))
    else:  # another Java has another base
        (archived_ivy / "java.jsa").unlink()
        subprocess.run(
            [find_java(), "-Xshare:dump", "-XX:-UseCompressedOops", f"-XX:SharedArchiveFile={archived_ivy}/java.jsa"],
            check=True,
            capture_output=True,
        )

    assert run_ivy(archived_ivy, "-Xshare:on", use_archive).returncode == 1
    ended = run_ivy(archived_ivy, *shlex.split(conf_module._java_options(use_archive)))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Apache Ivy")


@pytest.fixture
def ran_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a Spark after one short run."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    for name in conf_module._OWN_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    shutil.rmtree(home / ARCHIVE_FOLDER)
    assert not conf_module._is_due(home / ARCHIVE_FOLDER)
    return home


def test_only_second_short_run_archives(ran_once: Path) -> None:
    folder = ran_once / ARCHIVE_FOLDER

    assert conf_module._is_due(folder)
    (folder / "begun").touch()
    assert not conf_module._is_due(folder)


def test_new_jars_are_archived_again(ran_once: Path, tmp_path: Path) -> None:
    folder = ran_once / ARCHIVE_FOLDER
    (folder / "begun").touch()
    write_spark_defaults([Jar(("spark",), "a", "b", "3", "jar", "", "")], tmp_path, {})

    assert [conf_module._is_due(folder) for _ in range(2)] == [False, True]


@pytest.mark.parametrize("name", conf_module._OWN_SETTINGS)
def test_runs_with_own_settings_archive_nothing(ran_once: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "-Da=b")

    assert not conf_module._is_due(ran_once / ARCHIVE_FOLDER)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("hive-site.xml", "<configuration/>"),
        ("spark-defaults.conf", "spark.master yarn"),
        ("spark-defaults.conf", "spark.driver.extraJavaOptions -javaagent:/opt/apm.jar"),
    ],
)
def test_spark_with_other_settings_archives_nothing(ran_once: Path, file: str, line: str) -> None:
    with (ran_once / "conf" / file).open("a") as settings:
        settings.write(f"{line}\n")

    assert [conf_module._is_due(ran_once / ARCHIVE_FOLDER) for _ in range(2)] == [False, False]


def test_unwritable_environment_archives_nothing(ran_once: Path) -> None:
    shutil.rmtree(ran_once / ARCHIVE_FOLDER)
    (ran_once / ARCHIVE_FOLDER).write_text("in the way")

    with conf_module.archived_if_due():
        assert "PYSPARK_SUBMIT_ARGS" not in os.environ


def test_jars_are_on_the_class_path_for_the_archive() -> None:
    settings = "# Written by us.\nspark.jars /jars/a.jar,/jars/b.jar\nspark.ui.enabled false\n"

    assert conf_module._on_class_path(settings) == (
        "# Written by us.\nspark.driver.extraClassPath /jars/a.jar:/jars/b.jar\nspark.ui.enabled false\n"
    )
