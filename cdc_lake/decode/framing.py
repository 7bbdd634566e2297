"""How a record's bytes identify their schema, and where the body starts.

Keys and values are each in a frame of their own. A frame gives a *reference*, `<kind>:<id>`: how the bytes identify the
schema, before it is looked up. Sources: Confluent's wire format and `HeaderSchemaIdSerializer`; Apicurio's
`Default4ByteIdHandler`, `Legacy8ByteIdHandler` and header names; AWS Glue's `AWSSchemaRegistryConstants`; Avro's single
object encoding. docs/explanation/bronze.md "Frames".
"""

import uuid
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal
from urllib.parse import quote

from pyspark.sql import Column
from pyspark.sql import functions as F

Side = Literal["key", "value"]

ID4, ID8, APICURIO, CONFLUENT = "id4", "id8", "apicurio", "confluent"
GLUE, GLUE_ZLIB, SINGLE_OBJECT, BARE = "glue", "glue-zlib", "single-object", "bare"
JSON, CSV, STRING = "json", "csv", "string"
PAYLOAD, EXT_JSON = "json-payload", "ext-json"
FILE = "file"

COMMON = (ID4, ID8)
"""The frames of nearly all topics."""
NUMBERED = (*COMMON, EXT_JSON)
"""Frames with a bare number: the registry's type, or the record itself, decides which kind of ID it is."""
TEXTS = (JSON, PAYLOAD, EXT_JSON)
"""Frames of JSON: the record itself, or wrapped in an object without a schema, or with the ID of a schema."""
DECLARED = (BARE, CSV, STRING)
"""Frames without a reference: their schema is declared in the settings."""

_WRAPPED: Final = {
    PAYLOAD: r'^\s*\{\s*(?:"schema"\s*:\s*null\s*,\s*)?"payload"\s*:',
    EXT_JSON: r'^\s*\{\s*"schemaId"\s*:\s*([0-9]{1,18})\s*,\s*"payload"\s*:',
}
"""What comes before the body; the schema's ID is group 1."""
_WRAPPER_END: Final = r'(?:,\s*"schema"\s*:\s*null\s*)?\}\s*\z'
_BODY_STARTS: Final = {ID4: 6, ID8: 10, GLUE: 19, GLUE_ZLIB: 19, SINGLE_OBJECT: 11}
"""Where the body starts, counted from 1; in other frames it is everything."""
_MAGIC: Final = {ID4: b"\0", ID8: b"\0", GLUE: b"\x03\0", GLUE_ZLIB: b"\x03\5", SINGLE_OBJECT: b"\xc3\x01"}
FILE_HEADER: Final = "cdc_lake.{}.schema"
"""Header of a key or value from a file: the fingerprint of the file's schema."""
_NAMED_IN_HEADERS = frozenset((APICURIO, CONFLUENT, FILE))
_APICURIO_IDS = ("contentId", "globalId")
_GUESSED_KEY = ("key", "auto")
_MERGE_KEYS = "list the columns of the row that form the key in `merge.keys`"
_BARE_KEYS = f"; if keys are bare values, {_MERGE_KEYS}"
_JAVA_TEXT = f"it is Java's text of a struct, which StringConverter writes instead of its columns; {_MERGE_KEYS}"
_BARE_TEXT = f"it is a bare value, without the name of its column; {_MERGE_KEYS}"
_PRINTABLE = r"^[!-z][ -~]*$"
"""Text, such as a number or a UUID. JSON objects, which begin with a brace, have a frame."""
_PIECE_BYTES = 1 << 20
MAX_INFLATED_BYTES = 64 << 20
"""A body that decompresses to more than this is rejected."""


def framing(
    data: Column,
    headers: Column,
    side: Side,
    configured: str = "auto",
    *,
    declared: Collection[str] = (),
    of_files: bool = False,
) -> Column:
    """The name of the frame; null if there are no bytes, or no known frame matches.

    Headers take precedence: a body that headers describe may start with a byte that looks like a frame.

    Args:
        configured: the frame set for the table, or `auto`.
        declared: the columns in the settings. If `payload` is one of them, it does not wrap a value.
        of_files: whether the records come from files. cdc_lake's header is ignored in Kafka, where others may send it.
    """
    magic = {name: F.startswith(data, F.lit(start)) for name, start in _MAGIC.items()}
    is_long_id = F.startswith(data, F.lit(bytes(5))) & (F.length(data) >= _BODY_STARTS[ID8] - 1)
    json = F.lit(JSON) if "payload" in declared else F.coalesce(_wrapper(data.cast("string")), F.lit(JSON))
    by_bytes = json if configured == JSON else F.lit(configured)
    if configured == "auto":
        by_bytes = F.when(is_long_id, ID8)
        for name in (ID4, GLUE, GLUE_ZLIB, SINGLE_OBJECT):
            by_bytes = by_bytes.when(magic[name], name)
        is_encoded_twice = F.startswith(data, F.lit(b'"{'))
        by_bytes = by_bytes.when(F.startswith(data, F.lit(b"{")), json).when(is_encoded_twice, JSON)
    return F.when(data.isNotNull(), F.coalesce(_frame_of_headers(headers, side, of_files), by_bytes))


def reference(data: Column, headers: Column, side: Side, frame: Column, frames: Collection[str]) -> Column:
    """How the bytes identify their schema, `<kind>:<id>`; null if they do not.

    Kinds: `id4`, `id8` and `ext-json`, a registry's number in hexadecimal digits; `contentId`, `globalId`,
    `contentHash`, `artifact` (group, artifact and version, each percent-encoded), from Apicurio's headers; `guid`;
    `glue`; `crc`, an Avro fingerprint; `file`, a header of cdc_lake; `declared`. JSON contains its schema's reference,
    see `decode.json`.

    Args:
        frames: the frames to plan for.
    """
    glue, text = F.concat(F.lit("glue:"), _uuid(F.substring(data, 3, 16))), data.cast("string")
    by_frame = {
        **{
            name: F.when(
                F.length(data) >= _BODY_STARTS[name],
                F.concat(F.lit(f"{name}:"), F.hex(F.substring(data, 2, _BODY_STARTS[name] - 2))),
            )
            for name in COMMON
        },
        EXT_JSON: F.concat(F.lit(f"{EXT_JSON}:"), F.hex(F.regexp_extract(text, _WRAPPED[EXT_JSON], 1).cast("bigint"))),
        APICURIO: _apicurio_reference(headers, side),
        CONFLUENT: _confluent_reference(_header(headers, f"__{side}_schema_id")),
        FILE: F.concat(F.lit(f"{FILE}:"), _header(headers, FILE_HEADER.format(side)).cast("string")),
        GLUE: glue,
        GLUE_ZLIB: glue,
        SINGLE_OBJECT: F.concat(F.lit("crc:"), F.lower(F.hex(F.substring(data, 3, 8)))),
        **dict.fromkeys(DECLARED, F.lit(f"declared:{side}")),
    }
    references = [F.when(frame == name, column) for name, column in by_frame.items() if name in frames]
    return F.coalesce(*references, F.lit(None).cast("string"))


def id_of(reference: str) -> str:
    """The ID in a reference. A number is converted to decimal digits here, since that is expensive per record."""
    kind, _, schema_id = reference.partition(":")
    return str(int(schema_id, 16)) if kind in NUMBERED else schema_id


def body(data: Column, frame: Column, frames: Collection[str]) -> Column:
    """The bytes that the schema describes, binary.

    Args:
        frames: the frames of the rows; others are not planned.
    """
    known, wrapped = set(frames) & _BODY_STARTS.keys(), set(frames) & _WRAPPED.keys()
    if not known | wrapped:
        return data
    start, text = F.lit(1), data.cast("string")
    for name in sorted(known):
        start = F.when(frame == name, _BODY_STARTS[name]).otherwise(start)
    for name in sorted(wrapped):
        start = F.when(frame == name, F.length(F.regexp_extract(text, _WRAPPED[name], 0)) + 1).otherwise(start)
    length = F.lit(1 << 30)
    if wrapped:
        rest = F.length(data) - start + 1 - F.length(F.regexp_extract(text, _WRAPPER_END, 0))
        length = F.when(frame.isin(*wrapped), rest).otherwise(length)
    content = F.call_function("substring", data, start, length)
    if GLUE_ZLIB in known:
        # Spark has no function that decompresses, so only this frame goes through Python.
        packed = F.when(frame == GLUE_ZLIB, content)
        # Without type hints: of a function that has them PySpark 4 wants to know what else they mean.
        return F.coalesce(F.udf(lambda data: _inflated(data), "binary")(packed), content)
    return content


def reference_and_body(
    data: bytes, headers: Sequence[tuple[str, bytes | None]], side: Side, configured: str = "auto"
) -> tuple[str | None, bytes]:
    """`reference` and `body` of one key or value, without Spark; no reference if no registry has its schema."""
    values = {name: value or b"" for name, value in reversed(headers)}
    if (name := f"__{side}_schema_id") in values:
        return _confluent_reference_in(values[name]), data
    prefix = f"apicurio.{side}."
    named = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    if reference := _apicurio_reference_in(named):
        return reference, data
    frame = _frame_of_bytes(data) if configured == "auto" else configured
    start = _BODY_STARTS.get(frame, 1) - 1
    if frame not in (*COMMON, GLUE, GLUE_ZLIB) or len(data) < start:
        return None, data
    if frame in COMMON:
        return f"{frame}:{data[1:start].hex().upper()}", data[start:]
    body = data[start:] if frame == GLUE else _inflated(data[start:]) or b""
    return f"glue:{uuid.UUID(bytes=data[2:start])}", body


def _frame_of_bytes(data: bytes) -> str:
    """The frame that the first bytes show; empty if it does not name a registered schema."""
    if data.startswith(bytes(5)) and len(data) >= _BODY_STARTS[ID8] - 1:
        return ID8
    return next((name for name in (ID4, GLUE, GLUE_ZLIB) if data.startswith(_MAGIC[name])), "")


def _apicurio_reference_in(headers: Mapping[str, bytes]) -> str | None:
    """The reference in headers, whose names lack the side."""
    for kind in _APICURIO_IDS:
        if kind in headers:
            return f"{kind}:{int.from_bytes(headers[kind])}"
    if "contentHash" in headers:
        return f"contentHash:{headers['contentHash'].decode(errors='replace')}"
    if not {"artifactId", "version"} <= headers.keys():
        return None
    parts = (headers.get("groupId", b"default"), headers["artifactId"], headers["version"])
    return "artifact:" + "/".join(quote(part, safe="") for part in parts)


def _confluent_reference_in(value: bytes) -> str | None:
    if value[:1] == b"\1" and len(value) == 17:
        return f"guid:{uuid.UUID(bytes=value[1:])}"
    return f"{ID4}:{value[1:].hex().upper()}" if value[:1] == b"\0" and len(value) == 5 else None


def unpacked_bytes(data: Column, frame: Column, most: int) -> Column:
    """How many bytes a compressed body unpacks to, bigint; no more than a little above `most` are counted, and none are
    kept. Null for bodies in other frames.
    """
    packed = F.when(
        frame == GLUE_ZLIB, F.call_function("substring", data, F.lit(_BODY_STARTS[GLUE_ZLIB]), F.lit(1 << 30))
    )
    return F.udf(lambda data: _unpacked_bytes(data, most), "bigint")(packed)


def frame_problem(side: Side, frame: Column, named: Column, frames: Collection[str], configured: str) -> Column:
    """Why a key or value cannot be read, string; null if it can, or if there is none.

    Args:
        side: the column with the bytes.
        frame: `framing` of the bytes.
        named: `reference` of the bytes.
        frames: the frames to plan for.
    """
    data = F.col(side)
    problem = F.when(data.isNull(), None)
    for name, start in _BODY_STARTS.items():
        if name not in frames:
            continue
        is_short = F.length(data) < start
        too_few = f"%d bytes are too few for the frame {name}{_BARE_KEYS if (side, configured) == _GUESSED_KEY else ''}"
        problem = problem.when((frame == name) & is_short, F.format_string(too_few, F.length(data)))
        problem = problem.when(
            (frame == name) & ~F.startswith(data, F.lit(_MAGIC[name])),
            F.format_string(f"its first byte is 0x%s, which is not the frame {name}", _first_byte(data)),
        )
    unknown = f"its first byte is 0x%s, which starts no known frame; if that is intended, set `{side}.wire_format`"
    problem = problem.when(F.length(data) == 0, "there are no bytes")
    if side == "key":
        problem = problem.when(frame.isNull() & F.startswith(data, F.lit(b"Struct{")), _JAVA_TEXT)
        problem = problem.when(frame.isNull() & data.cast("string").rlike(_PRINTABLE), _BARE_TEXT)
        unknown += _BARE_KEYS
    problem = problem.when(frame.isNull(), F.format_string(unknown, _first_byte(data)))
    if not _NAMED_IN_HEADERS.isdisjoint(frames):
        problem = problem.when(
            frame.isin(*_NAMED_IN_HEADERS) & named.isNull(),
            F.format_string("the headers of %s name no schema that can be looked up", frame),
        )
    if not {JSON, PAYLOAD}.isdisjoint(frames):
        problem = problem.when(frame.isin(JSON, PAYLOAD) & named.isNull(), _json_problem(side, configured))
    return problem


def _json_problem(side: Side, configured: str) -> str:
    """Why a text in the frame `json` names no schema."""
    if configured == JSON:
        return f"it is not a JSON object{_BARE_KEYS if side == 'key' else ''}"
    cure = "and the types of its columns in `value.columns`" if side == "value" else f"or {_MERGE_KEYS}"
    return f"it is not a JSON object with a schema; if that is intended, set `{side}.wire_format: json`, {cure}"


def _frame_of_headers(headers: Column, side: Side, of_files: bool) -> Column:
    """The frame whose headers identify a side's schema; null if none do."""

    def is_apicurio(name: Column) -> Column:
        return name.startswith(f"apicurio.{side}.") & ~name.endswith(".encoding") & ~name.endswith(".type")

    is_confluent = F.exists(headers, lambda h: h["key"] == f"__{side}_schema_id")
    frame = F.when(is_confluent, CONFLUENT).when(F.exists(headers, lambda h: is_apicurio(h["key"])), APICURIO)
    return frame.when(F.exists(headers, lambda h: h["key"] == FILE_HEADER.format(side)), FILE) if of_files else frame


def _wrapper(text: Column) -> Column:
    """The frame of a JSON text that wraps a value, string; null if it does not.

    Sources: Apicurio's `PrettyFormatStrategy`; Connect's `JsonConverter`, which writes a null schema if there is none.
    """
    # Texts that do not begin like a wrapper are not parsed.
    names = F.array_sort(F.array_distinct(F.json_object_keys(text)))
    is_object = text.rlike(_WRAPPED[PAYLOAD] + r"\s*(?:\{|null\s*\}\s*\z)")
    has_null_schema = (names == _names("payload", "schema")) & F.get_json_object(text, "$.schema").isNull()
    is_payload = F.when(text.rlike(_WRAPPED[PAYLOAD]), ((names == _names("payload")) & is_object) | has_null_schema)
    is_ext_json = F.when(text.rlike(_WRAPPED[EXT_JSON]), names == _names("payload", "schemaId"))
    return F.when(is_ext_json, EXT_JSON).when(is_payload, PAYLOAD)


def _names(*names: str) -> Column:
    return F.array(*map(F.lit, names))


def _header(headers: Column, name: str) -> Column:
    return F.get(F.filter(headers, lambda h: h["key"] == name), 0)["value"]


def _apicurio_reference(headers: Column, side: Side) -> Column:
    def text(name: str) -> Column:
        return _header(headers, f"apicurio.{side}.{name}").cast("string")

    def encoded(name: str) -> Column:
        return F.regexp_replace(F.url_encode(text(name)), r"\+", "%20")

    by_number = [
        F.concat(F.lit(f"{kind}:"), F.conv(F.hex(_header(headers, f"apicurio.{side}.{kind}")), 16, 10))
        for kind in _APICURIO_IDS
    ]
    group = F.coalesce(encoded("groupId"), F.lit("default"))
    artifact = F.concat(F.lit("artifact:"), group, F.lit("/"), encoded("artifactId"), F.lit("/"), encoded("version"))
    return F.coalesce(*by_number, F.concat(F.lit("contentHash:"), text("contentHash")), artifact)


def _confluent_reference(value: Column) -> Column:
    is_guid = F.startswith(value, F.lit(b"\x01")) & (F.length(value) == 17)
    is_number = F.startswith(value, F.lit(b"\0")) & (F.length(value) == 5)
    return F.when(is_guid, F.concat(F.lit("guid:"), _uuid(F.substring(value, 2, 16)))).when(
        is_number, F.concat(F.lit(f"{ID4}:"), F.hex(F.substring(value, 2, 4)))
    )


def _uuid(data: Column) -> Column:
    return F.regexp_replace(F.lower(F.hex(data)), r"^(.{8})(.{4})(.{4})(.{4})(.{12})$", "$1-$2-$3-$4-$5")


def _first_byte(data: Column) -> Column:
    return F.lower(F.hex(F.substring(data, 1, 1)))


def _inflated(data: bytes | None) -> bytes | None:
    if data is None:
        return None
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(bytes(data), MAX_INFLATED_BYTES)
    except zlib.error:
        return b""
    return unpacked if unpacker.eof and not unpacker.unused_data else b""


def _unpacked_bytes(data: bytes | None, most: int) -> int | None:
    if data is None:
        return None
    unpacker, size, left = zlib.decompressobj(), 0, bytes(data)
    try:
        while left and size <= most:
            size += len(unpacker.decompress(left, _PIECE_BYTES))
            left = unpacker.unconsumed_tail
    except zlib.error:
        return 0
    return size


def header_bytes(headers: Column) -> Column:
    """The bytes of a record's headers, bigint; never null."""

    def more(so_far: Column, header: Column) -> Column:
        return so_far + F.octet_length(header["key"]) + F.coalesce(F.length(header["value"]), F.lit(0))

    return F.coalesce(F.aggregate(headers, F.lit(0).cast("bigint"), more), F.lit(0).cast("bigint"))
