"""How a record's bytes name their schema.

This version reads the frame of Confluent's serializers and of Apicurio 3: a zero byte, a schema id of four bytes, big
endian, the Avro body. Source: Confluent wire format; Apicurio `Default4ByteIdHandler`. Other frames are recognised, and
their records quarantined with the frame's name.
"""

from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

FOUR_BYTES = "id4"
_FRAME_BYTES = 5

Side = Literal["key", "value"]


def framing(data: Column) -> Column:
    """The name of the frame `data` is in; null when `data` is null or the frame is not one that can be read."""
    return F.when(_is_framed(data), F.lit(FOUR_BYTES))


def schema_id(data: Column) -> Column:
    """The schema id in the frame, bigint; null outside a known frame."""
    digits = F.conv(F.hex(F.substring(data, 2, 4)), 16, 10)
    return F.when(_is_framed(data), digits.cast("bigint"))


def body(data: Column) -> Column:
    """The Avro body behind a known frame, binary."""
    return F.substring(data, _FRAME_BYTES + 1, 1 << 30)


def frame_problem(data: Column, headers: Column, side: Side) -> Column:
    """Why the bytes cannot be read, string; null when they can, or when there are none."""
    named = F.exists(
        headers,
        lambda h: h["key"].startswith(f"apicurio.{side}.") | (h["key"] == f"__{side}_schema_id"),
    )
    first = F.hex(F.substring(data, 1, 1))
    return (
        F.when(data.isNull(), None)
        .when(F.coalesce(named, F.lit(False)), "the schema is named in the record's headers: not read by this version")
        .when(F.length(data) < _FRAME_BYTES + 1, F.format_string("%d bytes are too few for a frame", F.length(data)))
        .when(first == "03", "the frame looks like AWS Glue's: not read by this version")
        .when(first != "00", F.format_string("the first byte is 0x%s, not the frame's 0x00", F.lower(first)))
        .when(
            F.hex(F.substring(data, 2, 4)) == "00000000",
            "the frame looks like Apicurio's with 8-byte ids: not read by this version",
        )
    )


def _is_framed(data: Column) -> Column:
    starts = F.hex(F.substring(data, 1, 1)) == "00"
    return starts & (F.length(data) > _FRAME_BYTES) & (F.hex(F.substring(data, 2, 4)) != "00000000")
