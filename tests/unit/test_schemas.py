"""Schemas: which are rejected, which parts are removed, and what two of them have in common."""

import itertools
import json
import re
from typing import Any

import pytest
from support.events import FLAT_METADATA, body, decimal, envelope_schema, flat_schema

from cdc_lake.bronze.usable_schemas import Schemas
from cdc_lake.config import TableConfig
from cdc_lake.decode import schemas as schemas_module
from cdc_lake.decode.envelope import row_fields, shape_of
from cdc_lake.decode.records import WriterSchema
from cdc_lake.decode.schema_texts import compact, fingerprint, inline
from cdc_lake.decode.schemas import MAX_TEXT_BYTES, SchemaError, connect_name, fields, non_null, parse
from cdc_lake.errors import UnsupportedError
from cdc_lake.silver.evolution import check_names

pytestmark = pytest.mark.core


def a_record(name: str = "R", **columns: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in columns.items()]}


def nested(depth: int) -> str:
    opened = (f'{{"type": "record", "name": "R{n}", "fields": [{{"name": "inner", "type": ' for n in range(depth))
    return "".join(opened) + '"int"' + "}]}" * depth


@pytest.mark.parametrize(
    "schema",
    [
        a_record(next=["null", "R"]),
        a_record(next={"type": "array", "items": "R"}),
        a_record(a=a_record("S", b={"type": "map", "values": "R"})),
    ],
)
def test_recursive_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="contains itself"):
        parse(json.dumps(schema))


@pytest.mark.parametrize("depth", [65, 500, 20_000])
def test_too_deeply_nested_schema_is_refused(depth: int) -> None:
    with pytest.raises(SchemaError):
        parse(nested(depth))


def test_schema_nested_through_names_is_refused() -> None:
    columns: dict[str, Any] = {"c0": a_record("N0", v="int")}
    columns |= {f"c{n}": a_record(f"N{n}", v=f"N{n - 1}") for n in range(1, 70)}

    with pytest.raises(SchemaError, match="deeper"):
        parse(json.dumps(a_record("Top", **columns)))


def test_schema_of_sixty_levels_is_accepted() -> None:
    assert parse(nested(60))["type"] == "record"


def test_schema_text_over_one_mebibyte_is_refused() -> None:
    text = json.dumps(a_record(a="int") | {"doc": "é" * (MAX_TEXT_BYTES // 2)}, ensure_ascii=False)

    with pytest.raises(SchemaError, match="longer than"):
        parse(text)


@pytest.mark.parametrize(
    "items",
    ["null", a_record("Empty"), {"type": "fixed", "name": "F", "size": 0}, a_record("Outer", a=a_record("Empty"))],
)
def test_array_of_zero_size_items_is_refused(items: Any) -> None:
    with pytest.raises(SchemaError, match="have no size"):
        parse(json.dumps(a_record(many={"type": "array", "items": items})))


def test_exponentially_growing_types_are_measured_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    doubling = [a_record("N0", a="null")]
    doubling += [a_record(f"N{n}", a=f"N{n - 1}", b=f"N{n - 1}") for n in range(1, 61)]
    visits, children = itertools.count(1), schemas_module.children

    def counted(tree: Any) -> Any:
        assert next(visits) <= 1_000
        return children(tree)

    monkeypatch.setattr(schemas_module, "children", counted)
    for schema in (doubling, [*doubling[:50], {"type": "array", "items": "N49"}]):
        with pytest.raises(SchemaError, match="more than 20000 types"):
            parse(json.dumps(schema))


ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "enum", "name": "E"}, "KeyError 'symbols'"),
        ({"type": "fixed", "name": "F"}, "KeyError 'size'"),
        *[
            (ENUM | {"symbols": symbols}, "the symbols of the enum `E` are not different names")
            for symbols in ([], ["A", "B", "A"], ["A", "a-b"], ["A", ""], ["a.b"], 7, "AB", {"A": 1})
        ],
        (ENUM | {"symbols": ["A", None]}, "not an Avro schema"),
        ({"type": {"type": "fixed", "name": "F", "size": -4}, "size": 4}, "the fixed type `F` does not have"),
        *[
            (branches, "a union is empty, or has a type twice or another union in it")
            for branches in ([], ["int", "int"], ["null", ENUM, "E"], ["null", ["int"]], ["int", {"type": "int"}])
        ],
        (a_record(a=ENUM, b=ENUM), "the type `E` is defined twice"),
        (a_record(a=ENUM | {"name": "R"}), "the type `R` is defined twice"),
        (a_record("int", a="long"), "`int` is not a valid Avro name"),
        (a_record("a.", a="long"), "`a.` is not a valid Avro name; set schema.name.adjustment.mode=avro"),
        (a_record("shop.public.2019", a="long"), "`shop.public.2019` is not a valid Avro name"),
        (a_record(**{"a.b": "long"}), "`a.b` is not a valid Avro name; set field.name.adjustment.mode=avro"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "`a` is there twice"),
        (a_record(inner=a_record("S", a="int", A="int")), "`A` differs from `a` in upper and lower case only"),
        *[
            (decimal(*size), "a decimal has a precision or a scale that no number has")
            for size in ((0, 0), (-1, 0), (1 << 31, 0), (5, 1 << 31), (5, -(1 << 31)))
        ],
        ({"type": "fixed", "name": "F", "size": 2} | {"logicalType": "decimal", "precision": 5}, "5 digits does not"),
        (a_record("R", next={"type": "R"}), "contains itself"),
    ],
)
def test_schema_that_the_jvm_refuses_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(why)):
        parse(json.dumps(schema))


def test_outer_type_does_not_change_the_inner_size() -> None:
    assert parse('{"type": {"type": "fixed", "name": "F", "size": 4}, "size": 2000000000}')["size"] == 4


@pytest.mark.parametrize("text", ['{"type": "fixed", "name": "F", "size": ' + "9" * 5_000 + "}", '"\ud800"', "\ud800"])
def test_numbers_and_texts_beyond_python_limits_are_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        parse(text)


def fixed_schema(size: object) -> str:
    return json.dumps({"type": "fixed", "name": "a.Seal", "size": size})


@pytest.mark.parametrize("size", [2_000_000_000, (1 << 20) + 1, -1, 1.5, True, "16", None])
def test_fixed_type_of_unusable_size_is_refused(size: object) -> None:
    with pytest.raises(SchemaError, match=r"^the fixed type `a\.Seal` does not have 0 to 1048576 bytes$"):
        parse(fixed_schema(size))


@pytest.mark.parametrize("size", [0, 16, 1 << 20])
def test_fixed_type_of_up_to_one_mebibyte_is_accepted(size: int) -> None:
    assert parse(fixed_schema(size))["size"] == size


def test_array_of_optional_items_is_accepted() -> None:
    assert parse('{"type": "array", "items": ["null", "string"]}')["items"]["type"] == "union"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[", "7", "null", "{}", '{"type": "record"}', '"Unknown"', '{"type": "array"}', '{"type": ["nope"]}'],
)
def test_invalid_avro_schema_raises_schema_error(text: str) -> None:
    with pytest.raises(SchemaError):
        parse(text)


def test_reused_named_type_is_expanded() -> None:
    parts = fields(parse(envelope_schema({"id": "int"})))

    assert non_null(parts["after"]) == non_null(parts["before"])
    assert list(fields(non_null(parts["after"]))) == ["id"]


def test_equivalent_schemas_have_equal_trees() -> None:
    plain = a_record(day={"type": "int", "connect.name": "io.debezium.time.Date"}, n="int", tags=["null", "string"])
    told = json.loads(json.dumps(plain)) | {"doc": "of version 2", "aliases": ["Q"], "connect.version": 2}
    day, number, tags = told["fields"]
    day["type"] |= {"connect.default": 0, "connect.doc": "of birth", "connect.version": 1}
    number |= {"default": 7, "doc": "how many", "order": "ignore"}
    number["type"] = {"type": "int", "connect.parameters": {"__debezium.source.column.length": "4"}}
    tags |= {"default": None}

    assert parse(json.dumps(told)) == parse(json.dumps(plain))


@pytest.mark.parametrize("name", ["__op", "__key", "__keep", "__delete", "_hoodie_record_key"])
def test_column_named_like_a_reserved_column_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"a.b.{name}: `{name}` is the name of one of"):
        check_names("a.b", ["id", name])


def test_connect_names_are_kept() -> None:
    tree = parse(json.dumps(a_record(rate=decimal(4, 2))))

    assert connect_name(fields(tree)["rate"]) == "org.apache.kafka.connect.data.Decimal"


def test_reference_is_inlined_once_and_recursively() -> None:
    inner = json.dumps(a_record("Inner", v="int") | {"namespace": "x"})
    middle = json.dumps(a_record("Middle", i="x.Inner") | {"namespace": "x"})
    outer = json.dumps(a_record("Outer", a=["null", "x.Middle"], b="x.Middle", c="x.Inner"))

    text = inline(outer, [middle, inner])

    value = {"a": None, "b": {"i": {"v": 1}}, "c": {"v": 2}}
    assert body(text, value) == b"\0\x02\x04"
    assert list(fields(parse(text))) == ["a", "b", "c"]


def test_compact_text_drops_docs_defaults_and_most_logical_types() -> None:
    schema = a_record(
        day={"type": "int", "logicalType": "date", "connect.name": "org.apache.kafka.connect.data.Date"},
        at={"type": "long", "logicalType": "timestamp-millis", "connect.default": 0},
        rate=decimal(4, 2),
    )
    schema["doc"] = "a table"

    text = compact(parse(json.dumps(schema)))

    assert json.loads(text)["fields"] == [
        {"name": "day", "type": "int"},
        {"name": "at", "type": "long"},
        {"name": "rate", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
    ]


def test_equal_layouts_have_equal_compact_texts() -> None:
    plain = envelope_schema({"id": "int", "name": ["null", "string"]})
    commented = json.loads(plain)
    commented["doc"] = "a comment on the table changes the id, not the columns"
    commented["fields"][0]["doc"] = "before"

    assert compact(parse(plain)) == compact(parse(json.dumps(commented)))


def test_other_columns_or_a_flipped_union_are_other_layouts() -> None:
    texts = {
        compact(parse(envelope_schema({"id": kind}))) for kind in ("int", "long", ["null", "int"], ["int", "null"])
    }

    assert len(texts) == 4


def test_decimal_wider_than_spark_allows_is_read_as_bytes() -> None:
    assert json.loads(compact(parse(json.dumps(decimal(38, 2)))))["logicalType"] == "decimal"
    assert [compact(parse(json.dumps(decimal(*size)))) for size in ((39, 2), (5, 39), (5, -2))] == ['"bytes"'] * 3


def test_decimal_precision_is_at_least_its_scale() -> None:
    assert json.loads(compact(parse(json.dumps(decimal(3, 5)))))["precision"] == 5


def test_a_fingerprint_is_the_sha256_of_the_exact_text() -> None:
    assert fingerprint("é") == "4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"
    assert fingerprint('{"type":"int"}') != fingerprint('{"type": "int"}')


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (envelope_schema({"id": "int"}), "envelope"),
        (flat_schema({"id": "int"}), "flat"),
        (flat_schema({"op": "string", "source": "string", "before": "string", "after": "string"}, metadata={}), "flat"),
        (json.dumps(a_record("io.debezium.connector.common.Heartbeat", ts_ms="long")), "control"),
        (json.dumps(a_record("io.debezium.connector.common.TransactionMetadataValue", id="string")), "control"),
        (json.dumps(a_record("io.debezium.connector.postgresql.MessageValue", op="string")), "control"),
        (json.dumps(a_record("io.debezium.connector.mysql.SchemaChangeValue", ddl="string")), "control"),
    ],
)
def test_record_name_decides_the_shape(text: str, shape: str) -> None:
    assert shape_of(parse(text)) == shape


def test_flat_row_excludes_columns_added_by_the_transform() -> None:
    tree = parse(flat_schema({"id": "int", "op": "string"}, metadata=FLAT_METADATA | {"__source_lsn": "long"}))

    assert list(row_fields(tree)) == ["id", "op"]


def test_unusable_schema_is_a_problem_of_only_its_records() -> None:
    schemas = Schemas.of(
        {
            "id4:1": [WriterSchema(envelope_schema({"id": "int"}))],
            "id4:3": [
                WriterSchema(
                    json.dumps(a_record("pagila.public.t.Envelope", next=["null", "pagila.public.t.Envelope"]))
                )
            ],
            "id4:4": [WriterSchema(flat_schema({"id": "int", "either": ["int", "string"]}))],
            "id4:5": [WriterSchema("not a schema")],
        },
        {"id4:2": "schema id 2 is not in the registry"},
        side="value",
        settings=TableConfig(),
    )

    assert set(schemas.known) == {"id4:1"}
    assert "not in the registry" in schemas.problems["id4:2"]
    assert all("refused" in schemas.problems[f"id4:{number}"] for number in (3, 4, 5))


@pytest.mark.parametrize(
    "text",
    [
        '"string"',
        '["null", "string"]',
        json.dumps(a_record("pagila.public.t.Envelope", op="string")),
        json.dumps(a_record("pagila.public.t.Envelope", after="int", source="int", op="string")),
    ],
)
def test_value_schema_without_a_row_is_a_problem_of_its_records(text: str) -> None:
    schemas = Schemas.of({"id4:1": [WriterSchema(text)]}, side="value", settings=TableConfig())

    assert set(schemas.problems) == {"id4:1"}


@pytest.mark.parametrize("name", ["Order-Date", "1st", "a b", "a²"])
def test_invalid_java_avro_name_is_a_problem_of_its_records(name: str) -> None:
    schemas = Schemas.of(
        {"id4:1": [WriterSchema(flat_schema({"id": "int", name: "int"}))]}, side="value", settings=TableConfig()
    )

    assert set(schemas.problems) == {"id4:1"}
