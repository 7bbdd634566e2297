"""Records that could not be read, in a topic, as sink connectors of Kafka Connect write their dead letters."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from cdc_lake.sinks.topic import KafkaTopic

_PREFIX = "__connect.errors."
LEFT_OUT = "cdc_lake.left_out.bytes"
"""The header of a letter that has not its record's key, value and headers, because they are so many bytes."""
_RECORD_BYTES, _HEADER_BYTES = 512, 10
"""Of a record with our headers, and of each header, at most, without what they hold."""


def send_dead_letters(topic: KafkaTopic, rows: DataFrame) -> tuple[int, str | None]:
    """Send records with the key, the value and the headers that they came with, and why they are sent.

    The topic is created if there is none, with one partition, as Connect does. A record that is larger than it takes
    is sent without these three.

    Args:
        rows: bronze's.

    Returns:
        How many were sent, and what the operator should know.

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
        f"dead letters of more than {most} bytes were sent without key, value and headers (their header {LEFT_OUT} has "
        f"the size): raise {setting}; bronze has the whole records"
    )


def dead_letters(rows: DataFrame, max_bytes: int) -> DataFrame:
    """Records as Connect's `DeadLetterQueueReporter` writes them; its numbers are digits, its texts UTF-8.

    Args:
        max_bytes: of a letter.

    Columns in: bronze's. Columns out: `key`, `value` binary; `headers`.
    """
    is_large = _bytes() > max_bytes
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
        "class.name": F.lit("cdc_lake.layers.bronze"),  # a stable name that consumers may filter by
        "exception.class.name": F.concat_ws(".", F.lit("cdc_lake"), stage, code),
        "exception.message": message,
    }
    own = F.array(*(_header(f"{_PREFIX}{name}", value) for name, value in why.items()))
    sent = F.when(is_large, F.array(_header(LEFT_OUT, _bytes()))).otherwise(F.col("headers"))
    headers = F.concat(F.coalesce(sent, F.filter(own, lambda _: F.lit(False))), own)
    sides = (F.when(~is_large, F.col(f"raw_{side}")).alias(side) for side in ("key", "value"))
    return rows.select(*sides, headers.alias("headers"))


def _bytes() -> Column:
    """How large a letter would be, at most."""
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
