"""A quick part of the kit on Delta: the logs that share a table, in one batch. `make conformance` runs all of it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .by_delta import results_by_delta
from .log import Deletes, Shape, load


@pytest.mark.parametrize(
    ("deletes", "shape"), [("hard", "flat"), pytest.param("soft", "envelope", marks=pytest.mark.deep)]
)
def test_the_logs_that_share_a_table_end_as_they_must(
    spark: SparkSession, tmp_path: Path, deletes: Deletes, shape: Shape
) -> None:
    logs = [log for log in load() if not log.has_own_table]

    results = dict(results_by_delta(spark, tmp_path, logs, split="none", deletes=deletes, shape=shape))

    assert {name: lines for name, lines in results.items() if lines} == {}
    assert len(results) > 100


@pytest.mark.parametrize(
    "names",
    [
        {"K8-another-primary-key", "missing-row-and-a-replay"},
        pytest.param({"T4-replay-that-closes-a-second-life"}, marks=pytest.mark.deep),
    ],
    ids=["short", "long"],
)
def test_what_shows_only_from_batch_to_batch(spark: SparkSession, tmp_path: Path, names: set[str]) -> None:
    logs = [log for log in load() if log.log in names]

    results = dict(results_by_delta(spark, tmp_path, logs, split="each", deletes="hard", shape="envelope"))

    assert len(results) == len(names)
    assert {name: lines for name, lines in results.items() if lines} == {}
