"""Maintenance of Delta tables: OPTIMIZE and VACUUM."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from cdc_lake.errors import TableLockedError
from cdc_lake.storage.hadoop import Storage
from cdc_lake.tables.delta_write import committing, session_settings

_COMPACTION = {"optimize.minFileSize": str(128 << 20), "optimize.maxFileSize": str(128 << 20)}
"""Delta's default is a gigabyte, and a merge copies the whole file for one changed row."""


def compact(spark: SparkSession, path: str) -> int:
    """Compact small files.

    The commit stores no progress: a concurrent append does not conflict with it, so its progress could be older than
    the append's.

    Returns:
        The number of files written.

    Raises:
        TableLockedError: another run committed during compaction.
    """

    def locked() -> TableLockedError:
        return TableLockedError(
            path,
            "another run committed during compaction",
            "its files were not changed; run again when the other run has ended",
        )

    with committing(spark, path, _COMPACTION, locked):
        optimize = DeltaTable.forPath(spark, path).optimize()
        written = optimize.executeCompaction().select("metrics.numFilesAdded").head()
    assert written is not None, "OPTIMIZE returns metrics"
    return int(written[0])


def vacuum(spark: SparkSession, path: str) -> int:
    """Remove the files that no version within the table's retention needs.

    Returns:
        The number of bytes removed.
    """
    storage = Storage(spark)
    before = storage.size(path)
    # Otherwise it lists one folder in 10,000 tasks.
    tasks = str(4 * spark.sparkContext.defaultParallelism)
    listing = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": tasks}
    with session_settings(spark, listing), _prints_to_stderr(spark):
        DeltaTable.forPath(spark, path).vacuum()
    return max(before - storage.size(path), 0)


@contextmanager
def _prints_to_stderr(spark: SparkSession) -> Iterator[None]:
    """Redirect VACUUM's output from stdout, which `--json` reserves for reports."""
    jvm: Any = spark._jvm
    console = getattr(getattr(jvm.scala, "Console$"), "MODULE$")
    before = console.out()
    console.setOutDirect(jvm.java.lang.System.err)
    try:
        yield
    finally:
        console.setOutDirect(before)
