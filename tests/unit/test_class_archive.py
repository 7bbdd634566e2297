"""Which submissions use the class archive, without starting a JVM."""

import subprocess
from pathlib import Path

import pytest

from cdc_lake.spark import class_archive
from cdc_lake.spark import conf as conf_module
from cdc_lake.spark.conf import ARCHIVE_FOLDER, write_spark_defaults
from cdc_lake.spark.jars import Jar
from cdc_lake.spark.java import find_java

SUBMIT = ("org.apache.spark.deploy.SparkSubmit", "jobs/bronze.py", "--table", "shop.public.*")
SHOW = '. "$SPARK_CONF_DIR/spark-env.sh"; printf "%s\\n" "$SPARK_CONF_DIR" "$SPARK_SUBMIT_OPTS" "$@"'
"""As `spark-class` does it, which then starts Spark with these variables and arguments."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PySpark's folder as `cdc-lake jars fetch` and `cdc-lake jars archive` leave it."""
    home = tmp_path / "my spark"
    for module in (class_archive, conf_module):
        monkeypatch.setattr(module, "spark_home", lambda: home)
    write_spark_defaults([Jar(("spark",), "a", "b", "1", "jar", "", "")], tmp_path, {"spark.ui.enabled": "false"})
    folder = home / ARCHIVE_FOLDER
    (folder / "empty").mkdir(parents=True)
    (folder / "classes.jsa").write_text("cafe")
    (folder / "spark-defaults.conf").write_text((home / "conf" / "spark-defaults.conf").read_text())
    (folder / "spark-env.sh").write_text(class_archive._spark_env(folder / "classes.jsa", "-XX:SharedArchiveFile=a b"))
    return home


def spark_class(home: Path, *arguments: str, **variables: str) -> list[str]:
    """The folder of settings, Java's first options, and the arguments that Spark is started with."""
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
    conf, options, *passed = spark_class(home, *arguments, **variables)
    if options == variables.get("SPARK_SUBMIT_OPTS", ""):
        assert conf == variables.get("SPARK_CONF_DIR", f"{home}/conf")
        assert passed == list(arguments)
        return False
    return True


def test_submission_takes_the_archive(home: Path) -> None:
    conf, options, *passed = spark_class(home, *SUBMIT, SPARK_SUBMIT_OPTS="-Xss4m -Da='b c'")

    folder = home / ARCHIVE_FOLDER
    assert conf == f"{folder}/empty"
    assert options.startswith("-Xlog:disable ")
    assert f"'-Dlog4j2.configurationFile={home}/conf/log4j2.properties'" in options
    assert options.endswith("'-XX:SharedArchiveFile=a b' -Xss4m -Da='b c'")  # the user's are the last, so they count
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
def test_submission_with_other_jars_or_master_takes_no_archive(home: Path, flags: tuple[str, ...]) -> None:
    assert is_taken(home, SUBMIT[0], "--conf", "spark.driver.memory=2g", *SUBMIT[1:])
    assert not is_taken(home, SUBMIT[0], *flags, *SUBMIT[1:])


def test_other_programs_of_spark_take_no_archive(home: Path) -> None:
    assert not is_taken(home, "org.apache.spark.deploy.worker.Worker", "spark://host:7077")


def test_variable_of_a_master_or_of_settings_takes_no_archive(home: Path, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-env.sh").write_text((home / "conf" / "spark-env.sh").read_text())

    assert not is_taken(home, *SUBMIT, MASTER="spark://host:7077")
    assert not is_taken(home, *SUBMIT, SPARK_CONF_DIR=str(tmp_path / "conf"))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("conf/hive-site.xml", "<configuration/>"),
        ("conf/spark-defaults.conf", "spark.executor.memory 2g\n"),
        (f"{ARCHIVE_FOLDER}/classes.jsa", "caf"),
    ],
)
def test_changed_settings_or_cut_archive_are_not_taken(home: Path, file: str, text: str) -> None:
    (home / file).write_text(text)

    assert not is_taken(home, *SUBMIT)


def test_jars_are_on_the_class_path_for_the_archive() -> None:
    settings = "# Written by us.\nspark.jars /jars/a.jar,/jars/b.jar\nspark.ui.enabled false\n"

    assert class_archive._on_class_path(settings) == (
        "# Written by us.\nspark.driver.extraClassPath /jars/a.jar:/jars/b.jar\nspark.ui.enabled false\n"
    )
