"""Translates the errors of Spark, Kafka and the operating system into `CdcLakeError`s."""

import re
from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from cdc_lake.brokers import permanent_error
from cdc_lake.errors import CdcLakeError, ConfigError, DamagedFileError, DataLossError, InfrastructureError
from cdc_lake.runs.user_sql import first_line
from cdc_lake.sources.files import OVERLAP
from cdc_lake.storage.exhaustion import exhaustion_error
from cdc_lake.storage.hadoop import ACCESS_DENIED
from cdc_lake.tables.damage import damage_error, with_cure
from cdc_lake.tables.iceberg_catalog import catalog_error

_LOST_NODE_SIGNS = ("ExecutorLostFailure", "FetchFailed", "no longer alive", "Worker lost", "worker lost")
"""Spark's messages if a lost executor had data that Spark does not recompute; the third is about checkpoints."""


def translate_error(table: str, error: Exception, disk_paths: Sequence[str]) -> CdcLakeError:
    """The `CdcLakeError` for any error.

    Args:
        disk_paths: the lake's root, and Spark's temporary folders.
    """
    if not isinstance(error, CdcLakeError):
        error = exhaustion_error(table, error, *disk_paths) or error
    if isinstance(error, (PySparkException, Py4JError)):
        error = _translate_spark_error(table, error)
    if isinstance(error, DamagedFileError):
        return with_cure(error, disk_paths[0])
    if isinstance(error, CdcLakeError):
        return error
    return CdcLakeError(
        table,
        f"unexpected: {type(error).__name__}: {error}",
        "this is a bug in cdc_lake: please report it with the output of --debug; the other tables continued",
    )


def _translate_spark_error(table: str, error: Exception) -> CdcLakeError:
    message = str(error)
    if "OffsetOutOfRangeException" in message or "failOnDataLoss" in message:
        return DataLossError(
            table,
            "Kafka deleted records while they were being read",
            "run again to see the offsets of the gap; the batch was not committed",
        )
    if "org.apache.kafka.common.errors" in message:
        return permanent_error(table, message) or InfrastructureError(
            table,
            "the broker stopped responding during the run",
            "run again; the batch was not committed",
        )
    if any(sign in message for sign in ACCESS_DENIED):
        return ConfigError(
            table,
            f"the store denied access: {first_line(error)}",
            "allow the job's user to list, read, write and delete below lake.root; the batch was not committed",
        )
    if overlap := re.search(rf"\S+: {OVERLAP}", message):
        return ConfigError(
            table,
            overlap[0],
            "remove the file with the repeated records, and have the sink write each partition's records in offset "
            "order; the batch was not committed",
        )
    if any(sign in message for sign in _LOST_NODE_SIGNS):
        return InfrastructureError(
            table,
            f"the cluster lost a node during a batch: {first_line(error)}",
            "run again; the batch was not committed",
        )
    return (
        damage_error(error, table)
        or catalog_error(error)
        or CdcLakeError(table, f"Spark failed: {first_line(error)}", "run again with --debug to see where")
    )
