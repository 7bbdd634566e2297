"""Hostile schemas, in a registry or in JSON records: they are rejected, and other records land."""

import json
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from support import wire
from support.converters import ENVELOPE, KEY_TEXT, TABLE, VALUE_TEXT, AnyIdRegistry, Lake, event, row

from cdc_lake.decode.records import avro_schema, schema_text, spark_refusal

pytestmark = pytest.mark.core


def flat(name: str = f"{TABLE.name}.Value", **columns: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in columns.items()]}


def doubling() -> dict[str, Any]:
    """A small schema of an array whose items are infinitely large when written."""
    kinds = [flat("N0", a="null"), *(flat(f"N{n}", a=f"N{n - 1}", b=f"N{n - 1}") for n in range(1, 50))]
    return flat(of=kinds, many={"type": "array", "items": "N49"})


INJECTED = schema_text("csv", columns={"id": "int COMMENT 'x', injected string"})
DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "optional": True}
WITHOUT_NAMESPACE = flat("Foo", x="int") | {"namespace": ""}
REGISTERED: dict[str, tuple[Any, str]] = {
    "items that double": (doubling(), "more than 20000 types"),
    "an enum without symbols": (flat(id={"type": "enum", "name": "E"}), "KeyError 'symbols'"),
    "a decimal without digits": (
        flat(id={"type": "bytes", "logicalType": "decimal", "precision": 0}),
        "a precision or a scale that no number has",
    ),
    "a number of 5,000 digits": (flat(id="int") | {"version": "N"}, "not an Avro schema"),
    "the name that the JVM is given a schema by": (
        flat(id=flat("cdc_lake.Wrapped", x="int")),
        "Spark rejects it: ",
    ),
    "a name that becomes another's": (
        flat(x=flat("a.Foo", x="int"), y=flat("a.R", z=WITHOUT_NAMESPACE)),
        "Spark rejects it: ",
    ),
    "a schema of cdc_lake's own": (INJECTED, "`cdc_lake.format`, which is cdc_lake's own"),
    "a schema of cdc_lake's own that is Avro, too": (
        INJECTED[:-1] + "," + json.dumps(flat(id="int"))[1:],
        "`cdc_lake.format`, which is cdc_lake's own",
    ),
    "half a character": ("\ud800", "its text is not Unicode"),
}
EMBEDDED: dict[str, tuple[Any, str]] = {
    "a scale that is a text": (DECIMAL | {"parameters": {"scale": "abc"}}, "ValueError"),
    "a scale of 5,000 digits": (DECIMAL | {"parameters": {"scale": "9" * 5_000}}, "ValueError"),
    "a scale that no number has": (DECIMAL | {"parameters": {"scale": "9" * 40}}, "a scale that no number has"),
    "parameters that are a text": (DECIMAL | {"parameters": "scale"}, "AttributeError"),
    "a field that is a number": ({"type": "string", "field": 7}, "is not a text"),
    "a field that is an object": ({"type": "string", "field": {}}, "is not a text"),
    "a field that is there twice": ({"type": "string", "field": "id"}, "`id` is there twice"),
    "half a character": ({"type": "string", "field": "\ud800"}, "UnicodeEncodeError"),
    "a struct whose name is a number": ({"type": "struct", "name": 7, "fields": []}, "is not a text"),
    "a struct whose name is an object": ({"type": "struct", "name": {"a": 1}, "fields": []}, "is not a text"),
}


def embedded(name: str, hostile: Any) -> dict[str, Any]:
    """A Connect schema with a hostile field."""
    return {
        "type": "struct",
        "name": name,
        "fields": [{"type": "int32", "field": "id"}, {"field": "x", **hostile}],
    }


class Landed(NamedTuple):
    """The results: by name, each hostile record's error; silver's keys and columns."""

    errors: dict[str, dict[str, str]]
    keys: set[int]
    columns: set[str]
    good: int


@pytest.fixture(scope="module")
def landed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Landed:
    registry = AnyIdRegistry()
    registry.namespaces = ("contentId",)
    registry.put("contentId:1", KEY_TEXT)
    registry.put("contentId:2", VALUE_TEXT)
    lake = Lake(spark, tmp_path_factory.mktemp("hostile"), registry)
    offsets, good = {}, 0

    def send_good() -> None:
        nonlocal good
        body = wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("c", row(good, "good"), good)))
        lake.send_numbered(good, body, 2)
        good += 1

    send_good()
    for number, (name, (schema, _)) in enumerate(REGISTERED.items(), 10):
        text = schema if isinstance(schema, str) else json.dumps(schema)
        registry.put(f"contentId:{number}", text.replace('"N"', "9" * 5_000))
        for side in ("key", "value"):
            offsets[f"{side}: {name}"] = lake.offset
            if side == "key":
                hostile_key = wire.framed("id4", f"id:{number}", b"\x02", "key")
                lake.send(hostile_key, wire.framed("id4", "id:2", b"\x02", "value"))
            else:
                lake.send_numbered(1, b"\x02", number)
            send_good()
    good_key = wire.json_record(TABLE.key, {"id": 1}), []
    for name, (hostile, _) in EMBEDDED.items():
        for side, record in (("key", f"{TABLE.name}.Key"), ("value", f"{TABLE.name}.Value")):
            sent = json.dumps({"schema": embedded(record, hostile), "payload": {"id": 1}}).encode(), []
            offsets[f"{side}: {name}"] = lake.offset
            lake.send(sent, (wire.json_record(ENVELOPE, event("c", row(1, "x"), 1)), [])) if side == "key" else (
                lake.send(good_key, sent)
            )
            send_good()
    assert lake.land().error is None
    rows = lake.bronze()
    errors = {name: rows[offset]["error"].asDict() for name, offset in offsets.items() if rows[offset]["error"]}
    folded = lake.fold()
    return Landed(errors, set(folded), set(lake.table("silver").read().columns), good)


HOSTILE = {
    f"{side}: {name}": why
    for several in (REGISTERED, EMBEDDED)
    for name, (_, why) in several.items()
    for side in ("key", "value")
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schema_is_refused_with_a_reason(landed: Landed, name: str) -> None:
    error = landed.errors[name]

    assert (error["stage"], error["code"]) == ("lookup", "unusable_schema")
    assert HOSTILE[name] in error["message"]
    assert len(error["message"]) < 700


def test_records_adjacent_to_hostile_schemas_land(landed: Landed) -> None:
    assert landed.keys == set(range(landed.good))
    assert "injected" not in landed.columns


def test_spark_checks_each_schema_once(spark: SparkSession) -> None:
    schema = avro_schema(json.dumps(flat("a.RebuildOptions", id="int")))
    before = spark_refusal.cache_info().misses

    assert [spark_refusal(schema, spark), spark_refusal(avro_schema(schema.text), spark)] == [None, None]
    assert spark_refusal.cache_info().misses == before + 1
