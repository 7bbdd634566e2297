"""The properties of Delta tables: defaults, the settings' properties, and the columns for data skipping."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc_lake.columns import quoted, type_text

DELETION_VECTORS = "delta.enableDeletionVectors"
DEFAULTS = {
    DELETION_VECTORS: "false",
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 30 days",
}
"""Deletion vectors are off because not all Delta readers support them.

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
_QUOTED = re.compile(r"`((?:[^`]|``)+)`")


def with_statistics(schema: StructType) -> list[str]:
    """The columns of types for which Delta supports statistics."""
    kinds = {field.name: type_text(field.dataType) for field in schema}
    return [name for name, kind in kinds.items() if not kind.startswith(_WITHOUT_STATISTICS)]


def first_with_statistics(schema: StructType) -> list[str]:
    """The first columns of these types, as many as Delta would choose.

    Delta would also choose booleans, for which it counts only nulls; delta-rs then finds no rows by them.
    """
    return with_statistics(schema)[:_MOST_STATISTICS]


def of_new_table(own: Mapping[str, str], statistics: Iterable[str]) -> dict[str, str]:
    """The properties of a new table.

    Args:
        own: the properties in the settings, which override the defaults.
        statistics: the columns for data skipping; if empty, Delta chooses them.
    """
    columns = ",".join(map(quoted, dict.fromkeys(statistics)))
    return {**DEFAULTS, **own, **({STATISTICS: columns} if columns else {})}


def update(spark: SparkSession, path: str, stored: Mapping[str, str], wanted: Mapping[str, str]) -> None:
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
    names = [name.replace("``", "`") for name in _QUOTED.findall(stored.get(STATISTICS, ""))]
    kept = [name for name in (names if STATISTICS in stored else default()) if name in columns]
    if kept != names:
        listed = ",".join(map(quoted, kept)).replace("'", "\\'")
        change = f"('{STATISTICS}' = '{listed}')" if kept else f"('{STATISTICS}')"
        _alter(spark, path, f"{'SET' if kept else 'UNSET'} TBLPROPERTIES {change}")


def _alter(spark: SparkSession, path: str, change: str) -> None:
    # A new session, because that of a gold model cannot name tables by path.
    spark.newSession().sql(f"ALTER TABLE delta.{quoted(path)} {change}").collect()
