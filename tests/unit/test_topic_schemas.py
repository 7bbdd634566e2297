"""Schemas that are derived from columns: parts that must not change with a query, and invalid names and types."""

import json
from typing import Any

import fastavro
import pytest
from pyspark.sql.types import IntegerType, MapType, NullType, StringType, StructField, StructType

from cdc_lake.decode.schemas import differences, parse
from cdc_lake.errors import IncompatibleSchemaError
from cdc_lake.sinks.avro import derived_schemas

pytestmark = pytest.mark.core


def columns(*fields: StructField) -> StructType:
    return StructType(list(fields))


def column(name: str, kind: Any = None, *, nullable: bool = True, comment: str | None = None) -> StructField:
    return StructField(name, kind or IntegerType(), nullable, {"comment": comment} if comment else None)


def test_nullability_changes_no_schema_and_comments_no_key() -> None:
    one = derived_schemas(columns(column("id"), column("n")), ["id"], "t")
    other = derived_schemas(columns(column("id", nullable=False), column("n", nullable=False)), ["ID"], "t")
    described = derived_schemas(
        columns(column("id", comment="which"), column("n", comment="why")), ["id"], "t", doc="d"
    )

    assert one == other
    assert described.key == one.key
    assert differences(parse(one.value), parse(described.value)) == []
    assert [field["doc"] for field in json.loads(described.value)["fields"]] == ["which", "why"]


def test_column_order_of_the_query_does_not_change_the_key() -> None:
    one, other = (derived_schemas(columns(*map(column, names)), ["b", "a"], "t") for names in ("abc", "cab"))

    assert one.key == other.key
    assert [field["name"] for field in json.loads(one.key)["fields"]] == ["b", "a"]


def test_nested_records_have_unique_names_by_topic_and_path() -> None:
    inner = columns(column("b", columns(column("x"))))
    schemas = derived_schemas(columns(column("id"), column("a", inner), column("a_b", inner)), ["id"], "gold.2.f-r")

    fastavro.parse_schema(json.loads(schemas.value))
    assert [json.loads(text)["namespace"] for text in (schemas.key, schemas.value)] == ["gold._2.f_r"] * 2
    assert "gold._2.f_r.Value.a_b.b" in schemas.value


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (column("a b"), r"`a b`: Avro does not allow this name"),
        (column("a.b"), r"`a\.b`: Avro does not allow this name"),
        (column("a", columns(column("é"))), "`a.é`: Avro does not allow this name"),
        (column("a", NullType()), "Avro has no type for void"),
        (column("a", MapType(IntegerType(), StringType())), "Avro has no type for map<int,string>"),
    ],
)
def test_column_without_avro_name_or_type_is_named(wrong: StructField, why: str) -> None:
    with pytest.raises(IncompatibleSchemaError, match=why):
        derived_schemas(columns(column("id"), wrong), ["id"], "t")


def test_differences_are_listed_field_by_field() -> None:
    def record(*fields: tuple[str, Any], name: str = "R") -> Any:
        content = {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}
        return content

    def told(before: Any, after: Any) -> list[str]:
        return differences(parse(json.dumps(before)), parse(json.dumps(after)))

    amount = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    before = record(("a", "int"), ("b", "string"), ("c", amount), ("d", {"type": "array", "items": "int"}))
    after = record(("a", ["null", "int"]), ("c", {**amount, "precision": 9}), ("d", {"type": "array", "items": "long"}))

    assert told(before, before) == []
    assert told(before, after) == [
        "`a` may be null now",
        "`b` was removed",
        "`c` was decimal(5,2) and is decimal(9,2) now",
        "`d[]` was int and is long now",
    ]
    assert told(record(("in", record(("x", "int"), name="I"))), record(("in", record(("y", "int"), name="J")))) == [
        "the record `I` is called `J` now",
        "`in.x` was removed",
        "`in.y` is new, int",
    ]
    assert told(record(("a", "int"), ("b", "int")), record(("b", "int"), ("a", "int"))) == [
        "the order of the fields has changed"
    ]
