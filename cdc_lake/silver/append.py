"""Silver with `merge.mode: append`: one row per event, without a fold or keys."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import BATCH, KAFKA, META, META_TYPE, quoted, type_text
from cdc_lake.errors import ConfigError
from cdc_lake.runs.user_sql import checked_expression
from cdc_lake.silver.batch import Batch
from cdc_lake.silver.batch_schemas import BatchSchemas
from cdc_lake.silver.events import events
from cdc_lake.silver.table import SilverTable
from cdc_lake.spark.expressions import of_batch
from cdc_lake.tables.partitions import check_partitions


def appended(batch: Batch, schemas: BatchSchemas, commit: int) -> DataFrame:
    """The rows that a batch appends.

    Columns out: the layout's; `meta` struct, which identifies the record; `__op`, `__source_ts_ms`, `__batch`; those in
    `merge.derive`.

    Raises:
        ConfigError: an expression in `derive` is not valid for these columns, changes its type, or its name is in use.
    """
    table, merge = batch.table, batch.table.settings.merge
    rows = events(batch.accepted, schemas, has_key_changes=False, more=["kafka_timestamp"])
    place = F.col(KAFKA)
    kafka = [place[name].alias(name) for name in ("topic", "generation", "partition", "offset")]
    meta = F.struct(F.struct(*kafka, F.col("kafka_timestamp").alias("timestamp")).alias("kafka")).cast(META_TYPE)
    rows = rows.select(
        "row.*",
        meta.alias(META),
        F.col("op").alias("__op"),
        F.col("source_ts_ms").alias("__source_ts_ms"),
        of_batch(commit, place["offset"]).cast("bigint").alias(BATCH),
    )
    if may_repeat(batch):
        rows = rows.join(table.silver.read().select(META), META, "left_anti").select(*map(quoted, rows.columns))
    rows = _derived(rows, merge.derive, table.name)
    if batch.progress is not None:
        _check_types(rows.schema, table.silver.schema(), merge.derive, table.name)
    columns = {field.name: type_text(field.dataType) for field in rows.schema}
    check_partitions(table.name, table.storage, columns, ())
    return rows


def may_repeat(batch: Batch) -> bool:
    """Whether silver may already have records of a batch: bronze was deleted, restored or replaced by a backup.

    Bronze then reads them again, or they return from quarantine or a gap as replayed records (`late`).
    """
    has_more = batch.progress is not None and bool(batch.progress.reread_to or batch.counts.late)
    return batch.is_comparison or has_more


def ahead(table: SilverTable) -> dict[int, int]:
    """Up to which offset of each partition silver has records that bronze has yet to read again."""
    place = F.col(META)["kafka"]
    newest = F.max(F.struct(place["generation"], place["offset"])).alias("newest")
    rows = table.silver.read().groupBy(place["partition"].alias("partition")).agg(newest).collect()
    generation = len(table.landed.offsets) - 1
    return {
        partition: offset + 1
        for partition, (silver_generation, offset) in rows
        if (silver_generation, offset) >= (generation, table.landed.position.get(partition, 0))
    }


def _derived(rows: DataFrame, derive: Mapping[str, str], table: str) -> DataFrame:
    columns = []
    for name, expression in derive.items():
        where = f"{table}: merge.derive: {name}"
        if name in rows.columns:
            raise ConfigError(where, "a column of that name already exists", "use another name")
        columns.append(checked_expression(rows, expression, where).alias(name))
    return rows.select("*", *columns)


def _check_types(rows: StructType, stored: StructType, derive: Mapping[str, str], table: str) -> None:
    for name in derive:
        if name in stored.names and stored[name].dataType != rows[name].dataType:
            was, becomes = type_text(stored[name].dataType), type_text(rows[name].dataType)
            raise ConfigError(
                f"{table}: merge.derive: {name}",
                f"its type changed from {was} to {becomes}",
                "use another name for the new column, or cast it",
            )
