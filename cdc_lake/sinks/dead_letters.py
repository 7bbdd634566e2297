"""Send quarantined records to a dead-letter topic, in the format of Kafka Connect's sink connectors."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.sinks.topic import KafkaTopic

_PREFIX = "__connect.errors."
SIZE_HEADER = "cdc_lake.left_out.bytes"
"""Header of a dead letter without its record's key, value and headers: their size in bytes, which is too large."""
_RECORD_BYTES, _HEADER_BYTES = 512, 10
"""Maximum overhead of a record with cdc_lake's headers, and of each header."""


def send_dead_letters(topic: KafkaTopic, rows: DataFrame) -> tuple[int, str | None]:
    """Send records with their original key, value and headers, and the reason in further headers.

    If the topic does not exist, it is created with one partition, like Connect does. A record that exceeds the topic's
    size limit is sent without its key, value and headers.

    Args:
        rows: rows of bronze.

    Returns:
        The number of records sent, and a warning for the report, if any.

    Raises:
        ConfigError, InfrastructureError: see `KafkaTopic`.
    """
    found = rows.agg(F.count("*").alias("n"), F.max(_bytes()).alias("largest")).first()
    assert found is not None
    if not found["n"]:
        return 0, None
    topic.create(config={})
    most, setting = topic.max_bytes()
    topic.produce(dead_letters(rows, most))
    if found["largest"] <= most:
        return found["n"], None
    return found["n"], (
        f"dead letters of more than {most} bytes were sent without key, value and headers (the header {SIZE_HEADER} "
        f"has their size): raise {setting}; bronze has the complete records"
    )


def dead_letters(rows: DataFrame, max_bytes: int) -> DataFrame:
    """Records in the format of Connect's `DeadLetterQueueReporter`: numbers as digits, texts as UTF-8.

    Args:
        max_bytes: size limit of a dead letter.

    Columns in: bronze's. Columns out: `key`, `value` binary; `headers`.
    """
    is_large = _bytes() > max_bytes
    stage, code, message = (F.col(f"error.{name}") for name in ("stage", "code", "message"))
    # Connect's names of stages. A message begins with the side that it concerns.
    converter = F.when(message.startswith("key:"), "KEY_CONVERTER").otherwise("VALUE_CONVERTER")
    why = {
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "connector.name": F.lit("cdc_lake"),
        "task.id": F.lit(0),
        "stage": F.when(stage.isin("frame", "lookup", "decode"), converter).otherwise("TRANSFORMATION"),
        "class.name": F.lit("cdc_lake.layers.bronze"),  # kept, because consumers may filter by it
        "exception.class.name": F.concat_ws(".", F.lit("cdc_lake"), stage, code),
        "exception.message": message,
    }
    own = F.array(*(_header(f"{_PREFIX}{name}", value) for name, value in why.items()))
    sent = F.when(is_large, F.array(_header(SIZE_HEADER, _bytes()))).otherwise(F.col("headers"))
    headers = F.concat(F.coalesce(sent, F.filter(own, lambda _: F.lit(False))), own)
    sides = (F.when(~is_large, F.col(f"raw_{side}")).alias(side) for side in ("key", "value"))
    return rows.select(*sides, headers.alias("headers"))


def _bytes() -> Column:
    """Upper bound of a dead letter's size, in bytes."""
    held = (F.coalesce(F.length(name), F.lit(0)) for name in ("raw_key", "raw_value", "topic", "error.message"))
    headers = F.aggregate(
        F.col("headers"),
        F.lit(0),
        lambda size, h: (
            size + _HEADER_BYTES + F.octet_length(h["key"]) + F.coalesce(F.octet_length(h["value"]), F.lit(0))
        ),
    )
    return sum(held, F.lit(_RECORD_BYTES)) + F.coalesce(headers, F.lit(0))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
