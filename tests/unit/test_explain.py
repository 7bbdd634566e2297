"""The reasons for records that do not decode."""

import json
import re

import pytest
from support.events import body, decimal

from cdc_lake.bronze.explain import fields_read, reason
from cdc_lake.decode.records import WriterSchema, schema_text

pytestmark = pytest.mark.core

TEXT = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "rate", "type": decimal(4, 2)},
        ],
    }
)
WHOLE = body(TEXT, {"id": 1, "name": "secret", "rate": b"\x01\xf3"})


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_truncated_record_is_explained(length: int) -> None:
    field = "id" if length < 1 else "name" if length < 9 else "rate"

    assert reason(WriterSchema(TEXT), WHOLE[:length]) == f"the bytes end in the middle of the record, at `{field}`"


def test_trailing_bytes_are_counted() -> None:
    assert reason(WriterSchema(TEXT), WHOLE + b"abc") == "3 bytes are left over after the record"


def test_invalid_union_branch_is_explained_with_its_position() -> None:
    said = reason(WriterSchema(TEXT), b"\x02\x08secret")

    assert said.startswith("the bytes do not fit the schema (")
    assert re.search(r" at byte \d+ of 8\), at `name`$", said)


def test_value_out_of_range_of_its_column_is_explained() -> None:
    too_long = body(TEXT, {"id": 1, "name": "secret", "rate": (12345).to_bytes(2, "big")})

    assert reason(WriterSchema(TEXT), too_long) == "`rate` has more digits than its 4"
    assert reason(WriterSchema(TEXT), WHOLE) == "a value does not fit its column's type"


def test_text_that_is_not_utf8_is_named() -> None:
    assert reason(WriterSchema(TEXT), b"\x02\x02\x06\xff\xfe\xfd\0") == "one of its texts is not UTF-8, at `name`"


def test_decimal_that_spark_cannot_read_is_named() -> None:
    wide = body(TEXT, {"id": 1, "name": "secret", "rate": (10**38).to_bytes(17, "big")})

    assert reason(WriterSchema(TEXT), wide) == "`rate` has more digits than its 4"


ROW = {"type": "struct", "fields": [{"field": "n", "type": "int32"}, {"field": "blob", "type": "bytes"}]}
INSIDE = {"type": "struct", "fields": [{"field": "rows", "type": "array", "items": {**ROW, "optional": True}}]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"payload": {"rows": [{"n": 1}, {"n": "secret"}]}}', "the value of `rows.n` is not int"),
        (b'{"payload": {"rows": [null, {"n": 2147483648}]}}', "the value of `rows.n` is not int"),
        (b'{"payload": {"rows": [{"blob": "secret."}]}}', "the value of `rows.blob` is not bytes"),
        (b'{"payload": {"rows": {}}}', "the value of `rows` is not array"),
        (b'{"payload": {"rows": []}} secret', "the text is not one JSON value"),
        (b'{"payload": {"rows": ["\xff"]}}', "the text is not UTF-8"),
    ],
)
def test_json_field_that_does_not_fit_is_named(content: bytes, said: str) -> None:
    schema = WriterSchema(schema_text("connect", schema=json.dumps(INSIDE)))

    assert reason(schema, content) == said


@pytest.mark.parametrize(
    "data", [WHOLE[:6], WHOLE + b"x", b"\x02\x08secret", b"\xff" * 30, b"\x02\x02\x06\xff\xfe\xfd\0"]
)
def test_explanation_never_shows_record_values(data: bytes) -> None:
    said = reason(WriterSchema(TEXT), data)

    assert "secret" not in said
    assert "\\x" not in said


def test_fields_are_read_up_to_the_first_undecodable_one() -> None:
    nested = {"type": "record", "name": "Outer", "fields": [{"name": "op", "type": "string"}]}
    nested["fields"] += [{"name": "after", "type": ["null", json.loads(TEXT)]}, {"name": "ts", "type": "long"}]
    schema = WriterSchema(json.dumps(nested))
    data = b"\x02c\x02" + WHOLE + b"\x04"
    read = {"op": "c", "after.id": 1, "after.name": "secret", "after.rate": b"\x01\xf3", "ts": 2}

    assert fields_read(schema, data) == (read, None)
    assert fields_read(schema, data[:-1]) == ({name: read[name] for name in list(read)[:4]}, "ts")
    assert fields_read(schema, data[:7]) == ({"op": "c", "after.id": 1}, "after.name")
    assert fields_read(schema, b"\x02c\x01") == ({"op": "c"}, "after")  # a branch with a negative number
