"""docs/reference/compatibility.md matches cdc_lake/spark/versions.py and the stored test results."""

import pytest
from profiles.page import read_results

from cdc_lake.spark.versions import PROFILES

pytestmark = pytest.mark.core


def test_every_profile_was_run_without_failures() -> None:
    results = read_results()

    assert set(results) == set(PROFILES)
    assert [(name, suite) for name, found in results.items() for suite, count in found.items() if count.failed] == []
    assert all("engines/test_tables" in found for found in results.values())
