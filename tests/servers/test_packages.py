"""The complete demo from a package, on a cluster that loses a worker, and on S3.

These are `make test-cluster` and `make test-s3`; tests/jobs/test_package_slice.py runs a part with each change.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from support.buckets import LAKE, Bucket
from support.plain_spark import PlainSpark, cluster, losing_a_worker, remove

from cdc_lake.config import TableType
from cdc_lake.demo.jobs import Platform, this_machine
from cdc_lake.demo.run import run_demo

pytestmark = [pytest.mark.deep, pytest.mark.parametrize("table_type", get_args(TableType))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainSpark]:
    folder = tmp_path_factory.mktemp("plain")
    yield PlainSpark.make(folder)
    remove(folder)


def demo(folder: Path, table_type: TableType, platform: Platform) -> int:
    """Run it and print its results; its exit code, which is 0 if there is no difference."""
    found = run_demo(folder, is_full=True, table_type=table_type, platform=platform, keep=False, show=nullcontext)
    print(found.to_json())
    return found.exit_code


def test_packaged_jobs_run_on_plain_spark(plain: PlainSpark, table_type: TableType, tmp_path: Path) -> None:
    assert demo(tmp_path / "demo", table_type, plain.platform("local[2]")) == 0


def test_cluster_that_loses_a_worker_during_merge_completes(
    plain: PlainSpark, table_type: TableType, tmp_path: Path
) -> None:
    silver = tmp_path / "demo" / "lake" / "silver"
    with cluster(plain) as on, losing_a_worker(on, silver, replaced=True) as seen:
        assert (
            demo(tmp_path / "demo", table_type, plain.platform(on.master, "--executor-memory", "1g", attempts=2)) == 0
        )

    assert seen, "no worker was lost"


def test_lake_on_s3(aws: str, table_type: TableType, tmp_path: Path) -> None:
    bucket, local = Bucket(aws), this_machine()
    platform = replace(local, command=[*local.command, *bucket.flags()], lake=LAKE, download=bucket.download)

    assert demo(tmp_path / "demo", table_type, platform) == 0
