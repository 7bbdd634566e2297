"""Records that are not Avro: JSON with a schema, with a registry's schema, without one; CSV and text; Protobuf."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import Row, SparkSession
from support import wire
from support.converters import ENVELOPE, TABLE, AnyIdRegistry, Lake, check_life, event, life, row
from support.setting_groups import patched

from cdc_lake.bronze import schema_resolution
from cdc_lake.registries.registry import RegisteredSchema

PLAIN = {"key": {"wire_format": "json"}, "value": {"wire_format": "json"}}
FLAT = wire.Unwrap(("op", "source.ts_ms", "lsn"))
STARTS = {0: ENVELOPE, 10: FLAT.schema(ENVELOPE)}
"""By the first key of a series of changes: its values' schema."""
SENT = {"price": "12.50", "at": "2026-01-02T03:04:05Z", "tags": ["a", 1], "n": 5, "no": None, "yes": True}


def text(content: Any) -> tuple[bytes, wire.Headers]:
    return (content if isinstance(content, bytes) else wire.json_text(content)), []


@pytest.fixture(scope="module")
def with_schemas(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Silver of the changes in each shape."""
    lake = Lake(spark, tmp_path_factory.mktemp("with schemas"), AnyIdRegistry())
    for start, schema in STARTS.items():
        for key, change in life(start):
            values = FLAT.values(ENVELOPE, change) if schema is not ENVELOPE and change else [change]
            for value in values:
                lake.send(
                    text(wire.json_record(TABLE.key, {"id": key})),
                    (None, []) if value is None else text(wire.json_record(schema, value)),
                )
    assert (lake.land().error, lake.problems()) == (None, {})
    return lake.fold()


@pytest.mark.parametrize("start", [pytest.param(0, id="envelope"), pytest.param(10, id="flat")])
def test_json_with_inline_schemas_decodes_like_avro(with_schemas: dict[int, Any], start: int) -> None:
    check_life(with_schemas, start)


def test_only_the_first_batch_of_json_is_scanned_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, scans = Lake(spark, tmp_path, AnyIdRegistry()), []
    summarize = schema_resolution._summarize
    monkeypatch.setattr(schema_resolution, "_summarize", lambda records: scans.append(records) or summarize(records))
    for number_of_scans in (2, 1):
        scans.clear()
        record = wire.json_record(ENVELOPE, event("c", row(1, "a"), 1))
        lake.send(text(wire.json_record(TABLE.key, {"id": 1})), text(record))

        assert lake.land().rows["ok"] == 1
        assert len(scans) == number_of_scans


NO_JSON = ('{"id":1', '{"id":1} x', '{"id":1},"x":2', '{"id":1}{"id":2}', '{"id":"one"}', '{"id":1.5}', "{}x", "[1]")


class Declared(NamedTuple):
    """The results of JSON without schemas: a good and a bad row in each shape, then texts that are not JSON."""

    bronze: list[Row]
    problems: dict[int, str]
    silver: dict[int, Row]


@pytest.fixture(scope="module")
def declared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Declared:
    columns = {"id": "bigint", "price": "decimal(6,2)", "at": "timestamp"}
    lake = Lake(
        spark, tmp_path_factory.mktemp("declared"), AnyIdRegistry(), **patched(PLAIN, {"value": {"columns": columns}})
    )
    source = {"lsn": 7, "ts_ms": 9, "name": "p", "db": "p"}
    for key, price in ((1, "12.50"), (1, "much")):
        row = {"id": key, **SENT, "price": price}
        lake.send(text({"id": key}), text({"after": row, "before": None, "op": "c", "source": source}))
    for key, price in ((2, "12.50"), (2, "much")):
        row = {"id": key, **SENT, "price": price}
        lake.send(text({"id": key}), text({**row, "__op": "c", "__source_ts_ms": 9, "__lsn": 7}))
    for bad in NO_JSON:
        lake.send(text({"id": 3}), text(bad.encode()))
        lake.send(text({"id": 3}), text({"id": 3}))
    assert lake.land().error is None
    return Declared(lake.bronze(), lake.problems(), lake.fold())


@pytest.mark.parametrize("key", [pytest.param(1, id="envelope"), pytest.param(2, id="flat")])
def test_json_without_schema_has_declared_types_or_text(declared: Declared, key: int) -> None:
    good, bad = 2 * key - 2, 2 * key - 1

    assert bad in declared.problems and good not in declared.problems
    assert declared.bronze[good]["source_position"] == [7]
    assert declared.bronze[good]["key"] == f'{{"id":{key}}}'
    assert {name: str(declared.silver[key][name]) for name in ("id", *SENT)} == {
        "id": str(key),
        "price": "12.50",
        "at": "2026-01-02 03:04:05",
        "tags": '["a",1]',
        "n": "5",
        "no": "None",
        "yes": "true",
    }


def test_text_that_is_not_one_fitting_json_object_is_quarantined(declared: Declared) -> None:
    assert {place for place in declared.problems if place >= 4} == {4 + 2 * number for number in range(len(NO_JSON))}


MYSQL = {"connector": "mysql", "name": "m", "db": "shop", "server_id": 7, "file": "binlog.000002", "pos": 4, "row": 0}
DELETE = {
    "before": {"id": 1, "price": "", "name": "gone"},  # Debezium fills columns outside the key with defaults
    "after": None,
    "source": {**MYSQL, "ts_ms": 9},
    "op": "d",
}
CREATE = {"before": None, "after": {"id": 1, "price": "1.50"}, "source": {**MYSQL, "ts_ms": 8, "pos": 3}, "op": "c"}


def test_plain_delete_takes_its_key_from_the_row_before(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"id": "int", "price": "decimal(6,2)"}
    lake = Lake(
        spark, tmp_path, AnyIdRegistry(), value={"wire_format": "json", "columns": columns}, merge={"keys": ["id"]}
    )
    for change in (CREATE, DELETE, {**DELETE, "before": {"id": None}}):
        lake.send((None, []), text(change))

    assert lake.land().error is None
    assert lake.problems() == {2: "`id`, a column of `merge.keys`, is null or missing"}
    (row,) = lake.fold().values()
    assert (row["id"], str(row["price"]), row["__deleted"]) == (1, "1.50", True)
    assert [found["source_position"] for found in lake.bronze()] == [[2, 3, -1], [2, 4, -1], None]
    assert lake.bronze()[0]["position_domain"] == "7/binlog"


def test_appended_plain_delete_has_the_row_before(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"id": "int", "price": "decimal(6,2)"}
    lake = Lake(
        spark, tmp_path, AnyIdRegistry(), value={"wire_format": "json", "columns": columns}, merge={"mode": "append"}
    )
    lake.send((None, []), text({**DELETE, "before": {"id": 2, "price": "7.25"}}))
    lake.send((None, []), text(DELETE))

    assert lake.land().error is None
    assert list(lake.problems()) == [1]
    assert {key: str(row["price"]) for key, row in lake.fold().items()} == {2: "7.25"}


def registered(kind: str, content: Any) -> RegisteredSchema:
    return RegisteredSchema(content if isinstance(content, str) else json.dumps(content), kind)


def test_json_schemas_of_a_registry_are_read_and_protobuf_is_not(spark: SparkSession, tmp_path: Path) -> None:
    registry = AnyIdRegistry()
    registry.put(
        "contentId:1",
        registered(
            "JSON",
            {
                "type": "object",
                "title": f"{TABLE.name}.Key",
                "properties": {"id": {"type": "integer", "connect.type": "int32", "connect.index": 0}},
                "required": ["id"],
            },
        ),
    )
    optional_text = {"oneOf": [{"type": "null"}, {"type": "string"}]}
    registry.put(
        "contentId:2",
        registered(
            "JSON",
            {
                "type": "object",
                "title": f"{TABLE.name}.Value",
                "properties": {
                    "rate": {
                        "connect.index": 2,
                        "oneOf": [
                            {"type": "null"},
                            {
                                "type": "string",
                                "title": "org.apache.kafka.connect.data.Decimal",
                                "connect.type": "bytes",
                                "connect.parameters": {"scale": "2", "connect.decimal.precision": "4"},
                            },
                        ],
                    },
                    "name": {"connect.index": 1, **optional_text},
                    "id": {"connect.index": 0, "type": "integer", "connect.type": "int32"},
                    "place": {"connect.index": 3, "oneOf": [{"type": "null"}, {"$ref": "#/definitions/place"}]},
                    "__op": {"connect.index": 4, **optional_text},
                },
                "definitions": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}},
            },
        ),
    )
    registry.put("contentId:3", registered("PROTOBUF", 'syntax = "proto3"; message Key { int32 id = 1; }'))
    lake = Lake(spark, tmp_path, registry)
    value = {"id": 1, "name": "a", "rate": "AfM=", "place": {"x": 1.5}, "__op": "c"}
    lake.send(
        wire.framed("id4", "id:1", wire.json_text({"id": 1}), "key"),
        wire.framed("id4", "id:2", wire.json_text(value), "value"),
    )

    lake.send(wire.framed("id4", "id:3", b"\0\x08\x01", "key"), wire.framed("id4", "id:3", b"\0\x08\x01", "value"))

    assert lake.land().error is None
    assert lake.problems() == {
        1: "value: the schema of schema id 3 is refused: Protobuf is not supported; have the connector write "
        "Avro or JSON"
    }
    (found,) = lake.fold().values()
    assert (found["id"], found["name"], str(found["rate"]), found["place"]) == (1, "a", "4.99", Row(x=1.5))
    assert [n for n in lake.table("silver").read().columns if not n.startswith("__")] == ["id", "name", "rate", "place"]


def test_csv_and_text_are_read_by_the_declared_columns(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(
        spark,
        tmp_path,
        AnyIdRegistry(),
        key={"wire_format": "string", "columns": ("id",)},
        value={"wire_format": "csv", "columns": {"id": "bigint", "name": "string", "price": "decimal(6,2)"}},
    )
    lake.send((b"1", []), (b'1,"a, b",12.5', []))
    lake.send((b"2", []), (b"2,b,cheap", []))
    lake.send((b"two", []), (b"2,b,1", []))
    lake.send((b"3", []), (b"3,c,1", []))
    lake.send((b"3", []), (None, []))

    lake.land()
    rows = lake.fold()

    assert set(lake.problems()) == {1, 2}
    assert {key: (r["name"], str(r["price"]), r["__deleted"]) for key, r in rows.items()} == {
        1: ("a, b", "12.50", False),
        3: ("c", "1.00", True),
    }


@pytest.mark.parametrize(
    ("prefix", "renamed"),
    [
        ("", {name: name for name in ("op", "source_ts_ms", "lsn")}),
        ("cdc_", {}),
        pytest.param("__", {"op": "action", "source_ts_ms": "committed"}, marks=pytest.mark.deep),
    ],
)
def test_metadata_fields_may_have_any_prefix_and_name(
    spark: SparkSession, tmp_path: Path, prefix: str, renamed: dict[str, str]
) -> None:
    lake = Lake(
        spark,
        tmp_path,
        AnyIdRegistry(),
        envelope={
            "add_fields_prefix": prefix,
            "add_fields_renamed": {ours: prefix + sent for ours, sent in renamed.items()},
        },
    )
    fields = [
        f"{path}:{renamed[name]}" if (name := path.replace(".", "_")) in renamed else path
        for path in ("op", "source.ts_ms", "lsn")
    ]
    unwrap = wire.Unwrap(fields, prefix=prefix, deletes="tombstone")
    schema = unwrap.schema(ENVELOPE)
    for as_json in (True, False):
        key = 1 + as_json
        for value in (*unwrap.values(ENVELOPE, event("u", row(key, "new"), 7)),):
            body = wire.json_record(schema, value)
            if not as_json:
                lake.registry.put("contentId:1", wire.json_text(wire.avro_schema(schema)).decode())
                avro = wire.avro(wire.avro_schema(schema), wire.filled(schema, value))
                body, _ = wire.framed("id4", "id:1", avro, "value")
            lake.send(text(wire.json_record(TABLE.key, {"id": key})), (body, []))

    assert (lake.land().error, lake.problems()) == (None, {})
    assert [(r["op"], r["source_ts_ms"], r["source_position"]) for r in lake.bronze()] == [
        ("u", 1_700_000_000_007, [7])
    ] * 2
    assert [n for n in lake.table("bronze").read().columns if n == "name"] == []
    assert {key: r["name"] for key, r in lake.fold().items()} == {1: "new", 2: "new"}
    assert [n for n in lake.table("silver").read().columns if not n.startswith("__")] == list(TABLE.columns)
