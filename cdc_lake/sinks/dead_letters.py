"""Records that could not be read, in a topic, as sink connectors of Kafka Connect write their dead letters."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.sinks.topic import KafkaTopic

_PREFIX = "__connect.errors."


def send_dead_letters(topic: KafkaTopic, rows: DataFrame) -> int:
    """Send records with the key, the value and the headers that they came with, and why they are sent; how many.

    The topic is created if there is none, with one partition, as Connect does.

    Args:
        rows: bronze's.

    Raises:
        ConfigError, InfrastructureError: see `KafkaTopic`.
    """
    count = rows.count()
    if count:
        topic.create(config={})
        topic.produce(dead_letters(rows))
    return count


def dead_letters(rows: DataFrame) -> DataFrame:
    """Records as Connect's `DeadLetterQueueReporter` writes them; its numbers are digits, its texts UTF-8.

    Columns in: bronze's. Columns out: `key`, `value` binary; `headers`.
    """
    stage, code, message = (F.col(f"error.{name}") for name in ("stage", "code", "message"))
    # Stages by Connect's names. A message begins with the side that it is about.
    converter = F.when(message.startswith("key:"), "KEY_CONVERTER").otherwise("VALUE_CONVERTER")
    why = {
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "connector.name": F.lit("cdc_lake"),
        "task.id": F.lit(0),
        "stage": F.when(stage.isin("frame", "lookup", "decode"), converter).otherwise("TRANSFORMATION"),
        "class.name": F.lit("cdc_lake.layers.bronze"),
        "exception.class.name": F.concat_ws(".", F.lit("cdc_lake"), stage, code),
        "exception.message": message,
    }
    own = F.array(*(_header(f"{_PREFIX}{name}", value) for name, value in why.items()))
    headers = F.concat(F.coalesce(F.col("headers"), F.filter(own, lambda _: F.lit(False))), own)
    return rows.select(F.col("raw_key").alias("key"), F.col("raw_value").alias("value"), headers.alias("headers"))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
