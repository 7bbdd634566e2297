"""Every frame decodes to the same events, for keys and values, also with several frames in one topic."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from support import wire
from support.converters import ENVELOPE, KEY_TEXT, TABLE, TEXTS, VALUE_TEXT, AnyIdRegistry, Lake, check_life, life

from cdc_lake.bronze.frames import with_frames, with_references
from cdc_lake.config import TableConfig
from cdc_lake.decode import framing
from cdc_lake.decode.framing import ID4, JSON

NUMBERS = {"key": 40, "value": 41}
UUIDS = {"key": uuid.UUID(int=1 << 100), "value": uuid.UUID(int=(1 << 100) + 1)}
FRAMES: Sequence[tuple[wire.Frame, str]] = (
    ("id4", "contentId"),
    ("id8", "contentId"),
    ("apicurio", "contentId"),
    ("apicurio", "globalId"),
    ("apicurio", "contentHash"),
    ("apicurio", "artifact"),
    ("confluent", "guid"),
    ("glue", "glue"),
    ("glue-zlib", "glue"),
    ("single-object", "crc"),
)


def reference(kind: str, side: wire.Side) -> str:
    """A reference to the schema of a key or value, by kind of id."""
    match kind:
        case "contentId" | "globalId" | "id":
            return f"{kind}:{NUMBERS[side] + (kind == 'globalId') * 100}"
        case "contentHash":
            return f"contentHash:{NUMBERS[side]}0123abcd"
        case "artifact":
            return wire.artifact_reference("my group", f"thing/{side}", "1.0")
        case "crc":
            return wire.crc_reference(wire.avro_schema(TABLE.key if side == "key" else ENVELOPE))
    return f"{kind}:{UUIDS[side]}"


@pytest.fixture
def registry() -> AnyIdRegistry:
    registry = AnyIdRegistry()
    for _, kind in FRAMES:
        for side, text in TEXTS.items():
            if kind != "crc":
                registry.put(reference(kind, side), text)  # type: ignore[arg-type]
    return registry


@pytest.fixture
def schema_files(tmp_path: Path) -> dict[str, Any]:
    found = {}
    for side, text in TEXTS.items():
        file = tmp_path / f"{side}.avsc"
        file.write_text(text)
        found[side] = {"schemas": (str(file),)}
    return found


@pytest.mark.core
def test_every_key_frame_with_every_value_frame_decodes_equally(
    spark: SparkSession, tmp_path: Path, registry: AnyIdRegistry, schema_files: dict[str, Any]
) -> None:
    lake = Lake(spark, tmp_path, registry, **schema_files)
    starts = []
    for key_frame, key_kind in FRAMES:
        for value_frame, value_kind in FRAMES:
            starts.append(100 + 5 * len(starts))
            for key, change in life(starts[-1]):
                lake.send(
                    wire.framed(key_frame, reference(key_kind, "key"), wire.avro(KEY_TEXT, {"id": key}), "key"),
                    (None, [])
                    if change is None
                    else wire.framed(
                        value_frame,
                        reference(value_kind, "value"),
                        wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, change)),
                        "value",
                    ),
                )

    report = lake.land()
    rows = lake.fold()

    assert (report.error, report.rows["quarantined"]) == (None, 0)
    assert {(r["framing"]["key"], r["framing"]["value"]) for r in lake.bronze()} >= {
        (key, value) for key, _ in FRAMES for value, _ in FRAMES
    }
    assert len(rows) == 5 * len(starts)
    for start in starts:
        check_life(rows, start)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param("bare", marks=pytest.mark.core),
        *(pytest.param(frame, marks=pytest.mark.deep) for frame in ("single-object", "id8")),
    ],
)
def test_configured_frame_is_not_guessed(
    spark: SparkSession, tmp_path: Path, registry: AnyIdRegistry, schema_files: dict[str, Any], frame: wire.Frame
) -> None:
    kind = {"bare": None, "single-object": "crc", "id8": "contentId"}[frame]
    lake = Lake(
        spark, tmp_path, registry, **{side: {**files, "wire_format": frame} for side, files in schema_files.items()}
    )
    for key, change in life(0):  # a bare envelope begins with a zero byte, and so does the key 0
        value = None if change is None else wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, change))
        lake.send(
            wire.framed(frame, kind and reference(kind, "key"), wire.avro(KEY_TEXT, {"id": key}), "key"),
            (None, []) if value is None else wire.framed(frame, kind and reference(kind, "value"), value, "value"),
        )

    report = lake.land()

    assert (report.error, report.rows["quarantined"]) == (None, 0)
    check_life(lake.fold(), 0)


@pytest.mark.core
def test_unknown_id_in_a_header_does_not_stop_a_bare_topic(
    spark: SparkSession, tmp_path: Path, schema_files: dict[str, Any]
) -> None:
    lake = Lake(
        spark,
        tmp_path,
        AnyIdRegistry(),
        **{side: {**files, "wire_format": "bare"} for side, files in schema_files.items()},
    )
    key = wire.framed("bare", None, wire.avro(KEY_TEXT, {"id": 1}), "key")
    for headers in ([], [("__key_schema_id", b"\0\0\0\0\x09")]):
        for _, change in life(1):
            value = None if change is None else wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, change))
            lake.send(key, (value, headers))
            break

    report = lake.land()

    assert (report.error, report.rows["ok"], report.rows["quarantined"]) == (None, 1, 1)


def key_problem(spark: SparkSession, keys: Sequence[bytes], wire_format: str) -> list[str]:
    """Why keys cannot be read, in their order."""
    records = spark.createDataFrame(
        [(number, key, None, []) for number, key in enumerate(keys)],
        "n int, key binary, value binary, headers array<struct<key: string, value: binary>>",
    )
    settings = TableConfig(key={"wire_format": wire_format})
    framed = with_frames(records, settings)
    found = with_references(framed, {ID4, JSON}, settings).orderBy("n").select("frame_problem")
    return [row["frame_problem"] for row in found.collect()]


@pytest.mark.core
def test_key_without_columns_names_merge_keys(spark: SparkSession) -> None:
    cure = "list the columns of the row that form the key in `merge.keys`"
    bare = f"key: it is a bare value, without the name of its column; {cure}"
    keys = (b"Struct{id=1}", b"1", b'"x"', b"6f1e-ab", b"\0\0\0\1", b"\x02", b'{"id":1}')

    struct, *bare_texts, number, unknown, json = key_problem(spark, keys, "auto")
    (configured,) = key_problem(spark, [b"1"], "json")

    assert struct.startswith("key: it is Java's text of a struct") and struct.endswith(cure)
    assert bare_texts == [bare] * 3
    assert number == f"key: 4 bytes are too few for the frame id4; if keys are bare values, {cure}"
    assert unknown.startswith("key: its first byte is 0x02") and unknown.endswith(cure)
    assert json.endswith(f"set `key.wire_format: json`, or {cure}")
    assert configured == f"key: it is not a JSON object; if keys are bare values, {cure}"


@pytest.mark.core
@pytest.mark.parametrize("side", ["key", "value"])
def test_one_record_is_read_without_spark_as_by_the_columns(spark: SparkSession, side: wire.Side) -> None:
    frames = [(frame, reference(kind, side)) for frame, kind in FRAMES if kind != "crc"]
    sent = [wire.framed(frame, named, b"body", side) for frame, named in frames]
    sent += [(data, []) for data in (b"", b"\0\0", b"\0\0\0\0\0\0", b'{"a": 1}', b"plain")]
    sent += [(b"body", [(f"__{side}_schema_id", b"\0\0\0\0\7")]), (b"body", [(f"apicurio.{side}.encoding", b"BINARY")])]
    rows = spark.createDataFrame(
        [(data, headers) for data, headers in sent], "data binary, headers array<struct<key: string, value: binary>>"
    )
    names = {ID4, *(frame for frame, _ in frames)}
    framed = rows.withColumn("frame", framing.framing(F.col("data"), F.col("headers"), side))
    by_columns = framed.select(
        framing.reference(F.col("data"), F.col("headers"), side, F.col("frame"), names).alias("reference"),
        framing.body(F.col("data"), F.col("frame"), names).alias("body"),
    ).collect()

    for (data, headers), expected in zip(sent, by_columns, strict=True):
        named, body = framing.reference_and_body(data, headers, side)
        assert named == expected["reference"]
        assert body == (bytes(expected["body"]) if named else data)
    assert framing.reference_and_body(b"\0\0\0\0\0\0\0\0\1body", [], side, "id4") == ("id4:00000000", b"\0\0\0\1body")
    assert framing.reference_and_body(b"\0\0\0\0\0\0\0\0\1body", [], side, "bare")[0] is None
