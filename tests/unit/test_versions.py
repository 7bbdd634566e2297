"""Which Spark is accepted. Java and the jars are looked at by a running JVM: see tests/jobs."""

import pyspark
import pytest

from cdc_lake.errors import InstallationError
from cdc_lake.jars import PROFILES
from cdc_lake.versions import check_spark


@pytest.mark.parametrize("version", [f"{line}.9" for line in PROFILES])
def test_a_spark_of_a_line_that_was_tried_is_accepted(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)

    check_spark()


@pytest.mark.parametrize("version", ["3.3.0", "3.50.1", "4.0.1", "5.0.0.dev0"])
def test_any_other_spark_is_refused_and_the_right_ones_are_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)

    with pytest.raises(InstallationError, match=r"works with Spark 3\.5 and 4\.1; install") as caught:
        check_spark()

    assert str(caught.value).startswith(f"Spark {version}: ")
    assert caught.value.exit_code == 2
