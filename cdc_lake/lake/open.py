"""Which engine holds a table of silver or gold."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from cdc_lake.columns import BATCH
from cdc_lake.config import StorageConfig
from cdc_lake.errors import ConfigError, InstallationError
from cdc_lake.spark.versions import has_hudi
from cdc_lake.storage.files import Storage
from cdc_lake.tables.contract import P, Table
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.hudi import HudiTable
from cdc_lake.tables.newest import LOG_FOLDER, METADATA_FOLDER
from cdc_lake.tables.progress import GoldProgress, SilverProgress

_MARKS = {"delta": LOG_FOLDER, "hudi": METADATA_FOLDER}
TABLE_FOLDERS = tuple(_MARKS.values())
"""What a table's folder holds; one of these."""


def silver_table(spark: SparkSession, path: str, wanted: StorageConfig) -> Table[SilverProgress]:
    """A silver table by path.

    Args:
        wanted: what the settings say of it.

    Raises:
        ConfigError: there is a table of another format or type, with other partitions, or not one of ours.
        InstallationError: it is to be held in Hudi, which is not there.
        UnsupportedError: a newer Hudi has written it.
    """
    todo = (
        "set `storage` of the table back, or move the folder and its side table away: silver is then made anew from "
        "bronze"
    )
    return _table(spark, path, wanted, todo, statistics=(BATCH, "__source_ts_ms"))


def gold_table(spark: SparkSession, path: str, wanted: StorageConfig) -> Table[GoldProgress]:
    """A gold table by path; see `silver_table`.

    Args:
        wanted: what the model says of it.
    """
    return _table(spark, path, wanted, "set `table` of the model back, or move the folder away: it is then made anew")


def _table(
    spark: SparkSession, path: str, wanted: StorageConfig, todo: str, *, statistics: Sequence[str] = ()
) -> Table[P]:
    other = next(format for format in _MARKS if format != wanted.format)
    if Storage(spark).exists(f"{path}/{_MARKS[other]}"):
        raise _another(path, f"a {other} table", wanted, todo)
    if wanted.format == "delta":
        delta: DeltaLakeTable[P] = DeltaLakeTable(
            spark, path, partitions=wanted.partitions, statistics=statistics, properties=wanted.properties
        )
        found = delta.partitioned_by()
        if found is not None and found != tuple(field.name for field in wanted.partitions):
            raise _another(path, f"a delta table with the partitions ({', '.join(found)})", wanted, todo)
        return delta
    if not has_hudi():
        raise InstallationError(
            path, "it is held in hudi, and this Spark has no Hudi", "hold it in delta, or take a profile with Hudi"
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
        raise _another(path, f"a hudi table whose {differing}", wanted, todo)
    return hudi


def _another(path: str, found: str, wanted: StorageConfig, todo: str) -> ConfigError:
    by = f"partitioned by ({', '.join(wanted.partition_by)})" if wanted.partition_by else None
    name = " ".join(filter(None, (wanted.format, wanted.type, by)))
    return ConfigError(path, f"there is {found}, and the settings say {name}", todo)
