"""Open tables of silver and gold as Delta or Hudi tables."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from cdc_lake.columns import BATCH
from cdc_lake.config import StorageConfig
from cdc_lake.errors import ConfigError, InstallationError
from cdc_lake.spark.versions import has_hudi
from cdc_lake.storage.hadoop import Storage
from cdc_lake.tables.contract import P, Table
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.hudi import HudiTable
from cdc_lake.tables.newest import LOG_FOLDER, METADATA_FOLDER
from cdc_lake.tables.progress import GoldProgress, SilverProgress

_MARKS = {"delta": LOG_FOLDER, "hudi": METADATA_FOLDER}
TABLE_FOLDERS = tuple(_MARKS.values())
"""Folders that mark a table's folder; each has one of them."""


def silver_table(spark: SparkSession, path: str, wanted: StorageConfig) -> Table[SilverProgress]:
    """Open a silver table by path.

    Args:
        wanted: the storage in the settings.

    Raises:
        ConfigError: the folder has a table of another format, type or program, or with other partitions.
        InstallationError: it is a Hudi table, but this Spark has no Hudi.
        UnsupportedError: a newer Hudi release wrote it.
    """
    todo = (
        "restore the table's `storage` setting, or move the folder and its side table away: the silver job then "
        "rebuilds the table from bronze"
    )
    return _table(spark, path, wanted, todo, statistics=(BATCH, "__source_ts_ms"))


def gold_table(spark: SparkSession, path: str, wanted: StorageConfig) -> Table[GoldProgress]:
    """Open a gold table by path; see `silver_table`.

    Args:
        wanted: the storage in the model.
    """
    todo = "restore the model's `table` setting, or move the folder away: the gold job then rebuilds the table"
    return _table(spark, path, wanted, todo)


def _table(
    spark: SparkSession, path: str, wanted: StorageConfig, todo: str, *, statistics: Sequence[str] = ()
) -> Table[P]:
    other = next(format for format in _MARKS if format != wanted.format)
    if Storage(spark).exists(f"{path}/{_MARKS[other]}"):
        raise _mismatch(path, f"a {other} table", wanted, todo)
    if wanted.format == "delta":
        delta: DeltaLakeTable[P] = DeltaLakeTable(
            spark,
            path,
            partitions=wanted.partitions,
            statistics=statistics,
            deletion_vectors=wanted.deletion_vectors,
            properties=wanted.properties,
        )
        found = delta.partitioned_by()
        if found is not None and found != tuple(field.name for field in wanted.partitions):
            raise _mismatch(path, f"a delta table with the partitions ({', '.join(found)})", wanted, todo)
        return delta
    if not has_hudi():
        raise InstallationError(
            path, "it is a Hudi table, but this Spark has no Hudi", "use a profile with Hudi, or store it in Delta"
        )
    hudi: HudiTable[P] = HudiTable(
        spark,
        path,
        kind=wanted.type or "cow",
        partitions=wanted.partitions,
        buckets=wanted.buckets,
        table_version=wanted.table_version,
        properties=wanted.properties,
    )
    if (differing := hudi.differing_settings()) is not None:
        raise _mismatch(path, f"a hudi table whose {differing}", wanted, todo)
    return hudi


def _mismatch(path: str, found: str, wanted: StorageConfig, todo: str) -> ConfigError:
    by = f"partitioned by ({', '.join(wanted.partition_by)})" if wanted.partition_by else None
    name = " ".join(filter(None, (wanted.format, wanted.type, by)))
    return ConfigError(path, f"the folder has {found}, but the settings ask for {name}", todo)
