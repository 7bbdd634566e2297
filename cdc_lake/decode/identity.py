"""What identifies a record apart from its offset: a log that loses its end assigns the same offsets to other
records.
"""

import zlib

from pydantic import BaseModel, ConfigDict
from pyspark.sql import Column
from pyspark.sql import functions as F

NO_TIMESTAMP_MS = -1
"""Kafka's value for records without a timestamp; also used for timestamps that Spark cannot represent."""


class Identity(BaseModel):
    """One record of a partition.

    Attributes:
        timestamp_ms: Kafka's.
        key, value: their CRC-32; null of a null.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    offset: int
    timestamp_ms: int
    key: int | None
    value: int | None

    @classmethod
    def of(cls, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> "Identity":
        """The identity of a record as Kafka's client returns it."""
        checksums = (None if data is None else zlib.crc32(data) for data in (key, value))
        return cls(offset=offset, timestamp_ms=timestamp_ms, **dict(zip(("key", "value"), checksums, strict=True)))


def identity(timestamp: str, key: str, value: str) -> Column:
    """The same as a struct, from the column `offset` and the named columns. Without a time: `NO_TIMESTAMP_MS`."""
    return F.struct(
        "offset",
        F.coalesce(F.unix_millis(timestamp), F.lit(NO_TIMESTAMP_MS)).alias("timestamp_ms"),
        F.crc32(key).alias("key"),
        F.crc32(value).alias("value"),
    )
