"""Avro's limits of a session, and the Java options of a submission."""

import pytest
from support import CHECKOUT

from cdc_lake.config import Config, TableConfig
from cdc_lake.spark.java import COMPILE_HUGE_METHODS, JAVA_DEFAULTS
from cdc_lake.spark.session import DRIVER_OPTIONS, EXECUTOR_OPTIONS, SPARK_DEFAULTS, avro_limits, with_avro_limits

pytestmark = pytest.mark.core

LIMITS = {"org.apache.avro.limits.string.maxLength": 5, "org.apache.avro.limits.collectionItems.maxLength": 3}
FLAGS = "-Dorg.apache.avro.limits.string.maxLength=5 -Dorg.apache.avro.limits.collectionItems.maxLength=3"


@pytest.mark.parametrize(
    ("record", "text", "items"),
    [
        (1_000_000, 128 << 20, 1_000_000),
        (16 << 20, 128 << 20, 16 << 20),
        (100 << 20, 200 << 20, 100 << 20),
        (1 << 40, (1 << 31) - 9, (1 << 31) - 9),
    ],
)
def test_avro_limits_follow_max_record_bytes(record: int, text: int, items: int) -> None:
    assert {name.rpartition("limits.")[2]: most for name, most in avro_limits(record).items()} == {
        "string.maxLength": text,
        "bytes.maxLength": text,
        "collectionItems.maxLength": items,
    }


@pytest.mark.parametrize(
    ("submitted", "merged"),
    [
        ("", FLAGS),
        ("-Dmine=1 -XX:+UseSerialGC", f"-Dmine=1 -XX:+UseSerialGC {FLAGS}"),
        ("-Dtext='a  b' -Dmine=1", f"-Dtext='a  b' -Dmine=1 {FLAGS}"),
        ("-Dorg.apache.avro.limits.string.maxLength=2000000000 -Dmine=1", f"-Dmine=1 {FLAGS}"),
        (f"-Dmine=1 {FLAGS}", f"-Dmine=1 {FLAGS}"),
    ],
)
def test_avro_limits_are_added_to_java_options(submitted: str, merged: str) -> None:
    assert with_avro_limits(submitted, LIMITS) == merged


@pytest.mark.parametrize("name", [DRIVER_OPTIONS, EXECUTOR_OPTIONS])
def test_default_java_options_include_avro_limits(name: str) -> None:
    assert SPARK_DEFAULTS[name] == with_avro_limits("-Dorg.apache.avro.fastread=true", avro_limits(16 << 20))


@pytest.mark.parametrize("jvm", ["driver", "executor"])
def test_default_java_options_are_set(jvm: str) -> None:
    assert SPARK_DEFAULTS[f"spark.{jvm}.defaultJavaOptions"] == JAVA_DEFAULTS


@pytest.mark.parametrize("page", ["clusters", "kubernetes"])
def test_submissions_in_docs_compile_huge_methods(page: str) -> None:
    text = (CHECKOUT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")

    assert f"--conf spark.driver.defaultJavaOptions={COMPILE_HUGE_METHODS}" in text


def test_largest_max_record_bytes_of_all_tables_is_used() -> None:
    def of(size: int) -> TableConfig:
        return TableConfig(read={"max_record_bytes": size})

    assert Config().max_record_bytes == 16 << 20
    assert Config(defaults=of(5), tables={"a.*": TableConfig(deletes={"mode": "hard"})}).max_record_bytes == 5
    assert Config(defaults=of(5), tables={"a.*": of(9), "a.b.c": of(7)}).max_record_bytes == 9
