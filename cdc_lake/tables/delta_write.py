"""Writes to a Delta table: commits, the errors with which Delta rejects them, OPTIMIZE and VACUUM, and the properties:
defaults, the settings' properties, and the columns for data skipping.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from delta import exceptions
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc_lake.columns import quoted, type_text
from cdc_lake.errors import ConfigError, TableLockedError
from cdc_lake.spark.session import session_settings
from cdc_lake.spark.versions import tell_conflicts
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import compaction_conflict_error

tell_conflicts()

DELETION_VECTORS = "delta.enableDeletionVectors"
DEFAULTS = {
    DELETION_VECTORS: "false",
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 30 days",
}
"""Properties of new tables. Deletion vectors are off because not all Delta readers support them.

Vacuum retains files as long as the log retains commits, so every version in the log can be read and restored. With a
checkpoint every 20 commits, a run every 10 s writes one every 200 s, and a reader opens at most 20 commits after it.
"""
STATISTICS = "delta.dataSkippingStatsColumns"
"""The property with the columns for data skipping."""
_COPIED_BYTES, _COPIED_PER_CHANGE = 128 << 20, 5
"""A merge copies too much if it replaced files of this size, and copied more than this many rows per changed row.
docs/explanation/performance.md has the measurements.
"""
_MOST_STATISTICS = 32
"""Delta's own default for the number of columns with statistics."""
_WITHOUT_STATISTICS = ("array<", "map<", "struct<", "binary", "boolean")
_QUOTED_NAME = re.compile(r"`((?:[^`]|``)+)`")
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

    The former settings are restored; otherwise Delta would silently skip the session's next commit.

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


def _constraint_error(path: str, error: Exception) -> ConfigError | None:
    """The error of a table property or constraint that rejected a write; none for other causes."""
    for sign, what, clause in _SET_BY_HAND:
        if match := re.search(sign, str(error)):
            (name,) = match.groups() or ("",)
            cure = f"to remove it, run ALTER TABLE delta.{quoted(path)} {clause.format(name)}"
            return ConfigError(
                path, f"{what.format(name)} rejects the source's rows; the batch was not committed", cure
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
    with committing(spark, path, _COMPACTION, lambda: compaction_conflict_error(path)):
        optimize = DeltaTable.forPath(spark, path).optimize()
        written = optimize.executeCompaction().select("metrics.numFilesAdded").head()
    assert written is not None, "OPTIMIZE returns metrics"
    return int(written[0])


def vacuum(spark: SparkSession, path: str) -> int:
    """Remove the files that no version within the table's retention needs.

    Returns:
        The number of bytes removed.
    """
    files = HadoopFiles(spark)
    before = files.size(path)
    # Otherwise it lists one folder in 10,000 tasks.
    tasks = str(4 * spark.sparkContext.defaultParallelism)
    listing = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": tasks}
    with session_settings(spark, listing), _prints_to_stderr(spark):
        DeltaTable.forPath(spark, path).vacuum()
    return max(before - files.size(path), 0)


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


def with_statistics(schema: StructType) -> list[str]:
    """The columns of types for which Delta supports statistics."""
    kinds = {field.name: type_text(field.dataType) for field in schema}
    return [name for name, kind in kinds.items() if not kind.startswith(_WITHOUT_STATISTICS)]


def first_with_statistics(schema: StructType) -> list[str]:
    """The first columns of these types, as many as Delta would choose.

    Delta would also choose booleans, for which it counts only nulls; delta-rs then finds no rows by them.
    """
    return with_statistics(schema)[:_MOST_STATISTICS]


def properties_of_new_table(own: Mapping[str, str], statistics: Iterable[str]) -> dict[str, str]:
    """The properties of a new table.

    Args:
        own: the properties in the settings, which override the defaults.
        statistics: the columns for data skipping; if empty, Delta chooses them.
    """
    columns = ",".join(map(quoted, dict.fromkeys(statistics)))
    return {**DEFAULTS, **own, **({STATISTICS: columns} if columns else {})}


def update_properties(spark: SparkSession, path: str, stored: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Update the properties that changed, in a separate commit.

    Args:
        stored: the table's properties.
        wanted: properties in its settings.
    """
    changed = {name: value for name, value in wanted.items() if stored.get(name) != value}
    if changed:
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in changed.items())
        _alter(spark, path, f"SET TBLPROPERTIES ({listed})")


def copied_too_much(commit: Mapping[str, Any]) -> tuple[int, int] | None:
    """The rows that a merge copied and changed, if it copied so many that deletion vectors would have been cheaper.

    Args:
        commit: the merge's `commitInfo`.
    """
    metrics = commit.get("operationMetrics", {})
    copied, updated, deleted, size = (
        int(metrics.get(f"numTarget{name}", 0)) for name in ("RowsCopied", "RowsUpdated", "RowsDeleted", "BytesRemoved")
    )
    changed = updated + deleted
    return (copied, changed) if size >= _COPIED_BYTES and copied > _COPIED_PER_CHANGE * changed else None


def restrict_statistics(
    spark: SparkSession,
    path: str,
    stored: Mapping[str, str],
    columns: Collection[str],
    default: Callable[[], list[str]],
) -> None:
    """Remove all other columns from data skipping, in a separate commit if there are any.

    Args:
        stored: the table's properties.
        columns: the columns that the table will have and Delta supports.
        default: columns to choose from if the table has no such property.
    """
    names = [name.replace("``", "`") for name in _QUOTED_NAME.findall(stored.get(STATISTICS, ""))]
    kept = [name for name in (names if STATISTICS in stored else default()) if name in columns]
    if kept != names:
        listed = ",".join(map(quoted, kept)).replace("'", "\\'")
        change = f"('{STATISTICS}' = '{listed}')" if kept else f"('{STATISTICS}')"
        _alter(spark, path, f"{'SET' if kept else 'UNSET'} TBLPROPERTIES {change}")


def _alter(spark: SparkSession, path: str, change: str) -> None:
    # A new session, because that of a gold model cannot name tables by path.
    spark.newSession().sql(f"ALTER TABLE delta.{quoted(path)} {change}").collect()
