"""One commit to a Delta table: its settings, and the errors with which Delta rejects it."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_lake.columns import quoted
from cdc_lake.errors import ConfigError, TableLockedError
from cdc_lake.spark.versions import tell_conflicts

tell_conflicts()

USER_METADATA = "commitInfo.userMetadata"
"""The setting with the metadata that a commit stores; see `committing`."""
_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
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


@contextmanager
def committing(
    spark: SparkSession, path: str, settings: Mapping[str, str], locked: Callable[[], TableLockedError]
) -> Iterator[None]:
    """Commit with temporary settings of the session, and translate Delta's errors.

    The settings are unset again; otherwise Delta would silently skip the session's next commit.

    Args:
        spark: the session that commits.
        path: the table's folder.
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
