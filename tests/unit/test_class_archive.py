"""Which JVM a short run starts, without starting one."""

import os
from pathlib import Path

import pytest

from cdc_lake.spark import class_archive
from cdc_lake.spark.class_archive import short_jvm
from cdc_lake.spark.java import SHORT_JVM

DEFAULTS = "# Written by `cdc-lake jars fetch`.\nspark.jars /jars/a.jar,/jars/b.jar\nspark.ui.enabled false\n"
IN_ARCHIVE = (
    "# Written by `cdc-lake jars fetch`.\nspark.driver.extraClassPath /jars/a.jar:/jars/b.jar\nspark.ui.enabled false\n"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PySpark's folder as `cdc-lake jars fetch` and `cdc-lake jars archive` leave it."""
    home = tmp_path / "my spark"
    files = {
        "conf/spark-defaults.conf": DEFAULTS,
        "conf/spark-env.sh": "",
        "conf/log4j2.properties": "",
        "short-runs/spark.properties": IN_ARCHIVE,
        "short-runs/java.jsa": "",
        "short-runs/classes-4.jsa": "cafe",
    }
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    monkeypatch.setattr(class_archive, "spark_home", lambda: home)
    for name in ("JAVA_HOME", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    return home


def test_archive_is_taken_while_the_jvm_starts(home: Path) -> None:
    before = dict(os.environ)

    with short_jvm():
        folder = home / "short-runs"
        assert os.environ["PYSPARK_SUBMIT_ARGS"] == f"--properties-file '{folder}/spark.properties' pyspark-shell"
        assert os.environ["SPARK_CONF_DIR"] == f"{folder}/empty"
        options = os.environ["SPARK_SUBMIT_OPTS"]
        assert options.startswith(SHORT_JVM)
        assert options.endswith(f"'-XX:SharedArchiveFile={folder}/java.jsa:{folder}/classes-4.jsa'")
        assert (Path(os.environ["JAVA_HOME"]) / "bin" / "java").is_file()

    assert dict(os.environ) == before


@pytest.mark.parametrize("name", ["SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"])
def test_archive_is_left_where_the_user_chose_spark(home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "mine")

    with short_jvm():
        assert os.environ[name] == "mine"
        assert os.environ["SPARK_SUBMIT_OPTS"] == SHORT_JVM


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("conf/hive-site.xml", "<configuration/>"),
        ("conf/spark-defaults.conf", f"{DEFAULTS}spark.executor.memory 2g\n"),
        ("conf/spark-defaults.conf", DEFAULTS.replace("a.jar", "c.jar")),
    ],
)
def test_archive_is_left_where_settings_are_others(home: Path, file: str, text: str) -> None:
    (home / file).write_text(text)

    with short_jvm():
        assert os.environ["SPARK_SUBMIT_OPTS"] == SHORT_JVM
        assert "SPARK_CONF_DIR" not in os.environ


@pytest.mark.parametrize("left", [None, "caf"])
def test_archive_that_is_gone_or_cut_is_not_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch, left: str | None
) -> None:
    archive = home / "short-runs" / "classes-4.jsa"
    archive.unlink()
    if left:
        archive.write_text(left)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss4m")

    with short_jvm():
        assert os.environ["SPARK_SUBMIT_OPTS"] == f"{SHORT_JVM} -Xss4m"
        assert "PYSPARK_SUBMIT_ARGS" not in os.environ
