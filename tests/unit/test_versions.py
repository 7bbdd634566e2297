"""Which versions work together, as values. tests/jobs checks those of a running JVM."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.errors import InstallationError
from cdc_lake.spark import versions as versions_module
from cdc_lake.spark.jars import lock_file, read_lock
from cdc_lake.spark.session import SPARK_DEFAULTS
from cdc_lake.spark.versions import (
    CATALOG,
    EXTENSIONS,
    INCOMPATIBLE,
    PROFILES,
    SERIALIZER,
    InstalledVersions,
    check,
    number,
    profile_name,
)

pytestmark = pytest.mark.core

CHECKOUT = Path(__file__).parents[2]
HOODIE_CATALOG = "org.apache.spark.sql.hudi.catalog.HoodieCatalog"
SPARK35 = {"spark": "3.5.7", "scala": "2.12.18", "java": "17", "delta": "3.3.3", "hudi": "1.0.2"}
SPARK41 = {"spark": "4.1.1", "scala": "2.13.17", "java": "17", "delta": "4.3.1", "hudi": None}
HUDI12 = SPARK35 | {"hudi": "1.2.0"}


def found(name: str) -> InstalledVersions:
    profile = PROFILES[name]
    return InstalledVersions(profile.spark, f"{profile.scala}.1", "17", profile.delta, profile.hudi)


def refused(what: InstalledVersions, settings: Mapping[str, str] | None = None) -> InstallationError:
    with pytest.raises(InstallationError) as caught:
        check(what, SPARK_DEFAULTS | dict(settings or {}))
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(
    ("name", "java"), [("emr7", "17"), ("spark35-hudi12", "17"), ("spark41", "17"), ("spark41", "21")]
)
def test_every_profile_is_accepted(name: str, java: str) -> None:
    check(replace(found(name), java=java), SPARK_DEFAULTS)


@pytest.mark.parametrize("release", range(3))
def test_emr_7_builds_are_accepted_despite_a_broken_delta_number(release: int) -> None:
    amazons = {name: f"{version}-amzn-{release}" for name, version in (("delta", "3.3.2"), ("hudi", "1.0.2"))}
    check(InstalledVersions(spark=f"3.5.6-amzn-{release}", scala="2.12.18", java="17", **amazons), SPARK_DEFAULTS)


def test_emr_7_10_is_accepted_without_hudi() -> None:
    versions = {"spark": "3.5.5-amzn-1", "scala": "2.12.18", "java": "17", "delta": "3.3.0-amzn-2"}

    check(InstalledVersions(**versions, hudi=None), SPARK_DEFAULTS)
    assert "Hudi before 1.0" in refused(InstalledVersions(**versions, hudi="0.15.0-amzn-7")).where


@pytest.mark.parametrize(
    ("versions", "faults"),
    [
        ({"spark": "4.1.1-amzn-0", "delta": "4.1.0-amzn-0", "hudi": "1.1.1-amzn-0"}, ["Hudi 1.2.0 or older"]),
        (
            {"spark": "4.1.2-amzn-0", "delta": "4.1.0-amzn-1", "hudi": "1.2.0-amzn-0"},
            ["Delta Lake 4.1.0 or 4.2.0", "Hudi 1.2.0 or older"],
        ),
        ({"spark": "4.1.1-amzn-0", "delta": "4.0.1-amzn-0", "hudi": None}, ["Delta Lake other than 3.3"]),
    ],
)
def test_amazon_builds_on_spark_41_pass_with_a_warning(
    versions: dict[str, str], faults: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    check(InstalledVersions(scala="2.13.17", java="17", **versions), SPARK_DEFAULTS)

    said = [record.getMessage() for record in caplog.records]
    assert [one.startswith(fault) for one, fault in zip(said, faults, strict=True)] == [True] * len(faults)
    assert all("with open-source builds" in one for one in said)


CASES = (
    ("Java 24 or newer", SPARK35 | {"java": "25"}, {}, "getSubject is not supported"),
    ("Java 24 or newer", SPARK41 | {"java": "25"}, {}, "getSubject is not supported"),
    ("Java other than 17", SPARK35 | {"java": "21"}, {}, "cdc_lake was not tested"),
    ("Java other than 17", SPARK35 | {"java": "11"}, {}, "cdc_lake was not tested"),
    ("Java other than 17", SPARK41 | {"java": "11"}, {}, "cdc_lake was not tested"),
    ("Spark 3.5 for Scala 2.13", SPARK35 | {"scala": "2.13.8"}, {}, "for the other Scala version"),
    ("Delta Lake 3.3.2", SPARK35 | {"delta": "3.3.2"}, {}, "does not support truncate in batch mode"),
    ("Delta Lake 3.3.2", SPARK35 | {"delta": "3.3.2", "spark": "3.5.6"}, {}, "does not support truncate in batch mode"),
    ("Delta Lake 4.1.0 or 4.2.0", SPARK41 | {"delta": "4.1.0", "spark": "4.1.2"}, {}, "NoSuchMethodError"),
    ("Delta Lake 4.1.0 or 4.2.0", SPARK41 | {"delta": "4.2.0", "spark": "4.1.4"}, {}, "NoSuchMethodError"),
    ("Delta Lake other than 3.3", SPARK35 | {"delta": "3.2.1"}, {}, "is for another Spark release"),
    ("Delta Lake other than 3.3", SPARK35 | {"delta": "4.0.0"}, {}, "is for another Spark release"),
    ("Delta Lake other than 3.3", SPARK41 | {"delta": "4.0.1"}, {}, "is for another Spark release"),
    ("Hudi before 1.0", SPARK35 | {"hudi": "0.15.0"}, {}, "its timeline"),
    ("Hudi 1.2.0 or older with Spark 4.1", SPARK41 | {"hudi": "1.2.0"}, {}, "parquet-variant"),
    ("Hudi 1.2.0 or older with Spark 4.1", SPARK41 | {"hudi": "1.0.2"}, {}, "parquet-variant"),
    (
        "Hudi 1.2 without HoodieSparkSessionExtension",
        HUDI12,
        {EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension"},
        "silently return no rows",
    ),
    (
        "Hudi 1.2 without HoodieSparkSessionExtension",
        HUDI12 | {"hudi": "1.2.1"},
        {EXTENSIONS: ""},
        "silently return no rows",
    ),
    (
        "Hudi with a spark.serializer",
        SPARK35,
        {SERIALIZER: "org.apache.spark.serializer.JavaSerializer"},
        "every write",
    ),
    ("HoodieCatalog as spark.sql.catalog.spark_catalog", SPARK35, {CATALOG: HOODIE_CATALOG}, "by name"),
)


@pytest.mark.parametrize(
    ("what", "versions", "settings", "why"), CASES, ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)]
)
def test_broken_combination_is_refused_with_its_reason(
    what: str, versions: dict[str, str], settings: dict[str, str], why: str
) -> None:
    error = refused(InstalledVersions(**versions), settings)

    assert error.where.startswith(what)
    assert f"({InstalledVersions(**versions)})" in error.where
    assert why in error.what


def test_every_broken_combination_is_tested() -> None:
    assert [broken.what for broken in INCOMPATIBLE if not any(broken.what.startswith(case[0]) for case in CASES)] == []


@pytest.mark.parametrize(
    ("versions", "settings"),
    [
        (SPARK35 | {"delta": "3.3.2", "spark": "3.5.5"}, {}),
        (SPARK35 | {"delta": "3.3.2", "spark": "3.5.6-amzn-2"}, {}),
        (SPARK41 | {"delta": "4.1.0"}, {}),
        (SPARK41 | {"delta": "4.3.1", "spark": "4.1.4"}, {}),
        (SPARK35, {EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension"}),
        (SPARK35 | {"hudi": None}, {SERIALIZER: "org.apache.spark.serializer.JavaSerializer"}),
        (SPARK35 | {"hudi": "of unknown version"}, {}),
    ],
)
def test_similar_combinations_are_accepted(versions: dict[str, str], settings: dict[str, str]) -> None:
    check(InstalledVersions(**versions), SPARK_DEFAULTS | settings)


@pytest.mark.parametrize("spark", ["3.3.0", "3.50.1", "4.0.2-amzn-0", "4.2.1", "5.0.0.dev0"])
def test_unsupported_spark_is_refused_and_names_supported_ones(spark: str) -> None:
    error = refused(InstalledVersions(spark, "2.13.16", "17", "4.0.0", "1.1.0"))

    assert re.match(rf"Spark {spark}: cdc_lake supports Spark 3\.5 and 4\.1; install", str(error))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("3.3.2-amzn-2", (3, 3, 2)), ("1.2.0", (1, 2, 0)), ("17", (17,)), ("of unknown version", ()), (None, ())],
)
def test_vendor_suffix_is_ignored_in_comparisons(text: str | None, numbers: tuple[int, ...]) -> None:
    assert number(text) == numbers


def test_profile_follows_pyspark_unless_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDC_LAKE_PROFILE", raising=False)
    monkeypatch.setattr(versions_module, "version", lambda name: "4.1.1")
    assert profile_name() == "spark41"
    monkeypatch.setattr(versions_module, "version", lambda name: "3.3.0")
    with pytest.raises(InstallationError, match=r"Spark 3\.3\.0"):
        profile_name()
    monkeypatch.setenv("CDC_LAKE_PROFILE", "spark35-hudi12")
    assert profile_name() == "spark35-hudi12"


@pytest.mark.parametrize("name", PROFILES)
def test_profile_versions_match_its_lock_file(name: str) -> None:
    profile = PROFILES[name]
    jars = {jar.artifact: jar.version for jar in read_lock(lock_file(name))}

    of_delta = {artifact: version for artifact, version in jars.items() if artifact.startswith("delta-spark")}
    assert set(of_delta.values()) == {profile.delta}
    assert all(artifact.endswith(f"_{profile.scala}") for artifact in of_delta)
    assert jars[f"spark-avro_{profile.scala}"] == jars[f"spark-sql-kafka-0-10_{profile.scala}"] == profile.spark
    assert [version for artifact, version in jars.items() if artifact.startswith("hudi-spark")] == (
        [profile.hudi] if profile.hudi else []
    )
    assert jars[f"iceberg-spark-runtime-{profile.line}_{profile.scala}"] == profile.iceberg


def test_extras_install_the_versions_of_the_profiles() -> None:
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    for name, extra in (("emr7", "spark35"), ("spark41", "spark41")):
        assert extras[extra][:2] == [f"pyspark=={PROFILES[name].spark}", f"delta-spark=={PROFILES[name].delta}"]
    assert PROFILES["spark35-hudi12"].spark == PROFILES["emr7"].spark


def test_pyspark_35_extra_installs_distutils_for_python_312() -> None:
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert "setuptools>=75 ; python_version >= '3.12'" in extras["spark35"], "Python 3.12 has no distutils of its own"


def pins(lock: str) -> set[tuple[str, str]]:
    """Names and versions in a requirements file."""
    text = (CHECKOUT / "requirements" / f"{lock}.txt").read_text()
    return set(re.findall(r"^([\w.-]+)==([^ ;]+)", text, re.MULTILINE))


@pytest.mark.parametrize(("sent", "tested"), [("cluster-spark35", "local"), ("cluster-spark41", "spark41")])
def test_cluster_requirements_are_complete_and_tested(sent: str, tested: str) -> None:
    needed = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]

    assert {re.split(r"[\[>=]", one)[0] for one in needed} <= {name for name, _ in pins(sent)}
    assert pins(sent) <= pins(tested)
