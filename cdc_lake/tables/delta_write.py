"""Writes to a Delta table: commits, the errors with which Delta rejects them, OPTIMIZE and VACUUM."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from delta import exceptions
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_lake.columns import quoted
from cdc_lake.errors import ConfigError, TableLockedError
from cdc_lake.spark.versions import tell_conflicts
from cdc_lake.storage.hadoop import Storage

tell_conflicts()

USER_METADATA = "commitInfo.userMetadata"
"""The setting with the metadata that a commit stores; see `committing`."""
_CONFLICTS = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.DeltaConcurrentModificationException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)
"""Errors of concurrent commits, including concurrent creation. In Python they have no common base class."""
_SET_BY_HAND = (
    (
        "DELTA_CANNOT_MODIFY_APPEND_ONLY",
        "the table property `delta.appendOnly`{}",
        "UNSET TBLPROPERTIES ('delta.appendOnly'){}",
    ),
    (r"CHECK constraint (\S+) .* violated by row", "the CHECK constraint `{}`", "DROP CONSTRAINT `{}`"),
    (
        r"NOT NULL constraint violated for column: ([^\n]+?)\.?(?:\n|$)",
        "NOT NULL of the column `{}`",
        "ALTER COLUMN `{}` DROP NOT NULL",
    ),
)
"""Delta's errors of properties and constraints that users set, their names, and how to remove them."""
_COMPACTION = {"optimize.minFileSize": str(128 << 20), "optimize.maxFileSize": str(128 << 20)}
"""Delta's default is a gigabyte, and a merge copies the whole file for one changed row."""


@contextmanager
def committing(
    spark: SparkSession, path: str, settings: Mapping[str, str], locked: Callable[[], TableLockedError]
) -> Iterator[None]:
    """Commit with temporary settings of the session, and translate Delta's errors.

    The settings are unset again; otherwise Delta would silently skip the session's next commit.

    Args:
        settings: names without `spark.databricks.delta.` -> values.
        locked: returns the error if another run committed first.

    Raises:
        TableLockedError: another run committed first.
        ConfigError: a property or constraint of the table rejects the rows.
    """
    try:
        with session_settings(spark, {f"spark.databricks.delta.{name}": value for name, value in settings.items()}):
            yield
    except _CONFLICTS as exc:
        raise locked() from exc
    except (PySparkException, Py4JJavaError) as exc:
        if known := _constraint_error(path, exc):
            raise known from exc
        raise


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session, and unset them at the end."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def _constraint_error(path: str, error: Exception) -> ConfigError | None:
    """The error of a table property or constraint that rejected a write; none for other causes."""
    for sign, what, cure in _SET_BY_HAND:
        if found := re.search(sign, str(error)):
            (name,) = found.groups() or ("",)
            todo = f"to remove it, run ALTER TABLE delta.{quoted(path)} {cure.format(name)}"
            return ConfigError(
                path, f"{what.format(name)} rejects the source's rows; the batch was not committed", todo
            )
    return None


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
