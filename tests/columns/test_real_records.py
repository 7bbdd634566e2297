"""Records of real connectors, byte by byte, and the columns that a table must have."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from support.events import FakeRegistry, Record
from support.lake import by_offset, decided, in_log_order

from cdc_lake.bronze.decide import bronze_rows
from cdc_lake.config import TableConfig
from cdc_lake.decode.records import WriterSchema
from cdc_lake.silver.batch_schemas import BatchSchemas
from cdc_lake.silver.events import events, sent_columns
from cdc_lake.silver.evolution import evolve_layout
from cdc_lake.silver.key_changes import key_change_id

pytestmark = pytest.mark.core

FIXTURES = Path(__file__).parents[1] / "fixtures" / "debezium"
UNSENT = {"unavailable": True}


def fixture(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


def records_of(source: dict[str, Any], registry: FakeRegistry, first: int) -> list[Record]:
    """The fixture's records with offsets from `first`, and its own schema ids."""
    registry.texts[source["key_schema_id"]] = source["key_schema"]
    registry.texts[source["value_schema_id"]] = source["value_schema"]
    found = []
    for offset, record in enumerate(source["records"], first):
        value = None if record["value"] is None else bytes.fromhex(record["value"])
        headers = [(header["name"], header["value"].encode()) for header in record["headers"]]
        timestamp = datetime.fromtimestamp(record["timestamp_ms"] / 1000, UTC)
        found.append(Record(bytes.fromhex(record["key"]), value, source["topic"], 0, offset, timestamp, headers))
    return found


def as_text(name: str, kind: str) -> Any:
    """A column of `row` in the form of the fixtures."""
    column = F.col("row")[name]
    if kind == "timestamp":
        return F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
    if kind == "date" or kind.startswith("decimal"):
        return column.cast("string")
    return F.lower(F.hex(column)) if kind == "binary" else column


def expected_row(record: dict[str, Any]) -> dict[str, Any]:
    """The fixture's row as `as_text` returns it, without values that were not sent."""
    row = {name: value for name, value in record["row"].items() if value != UNSENT}
    return {name: value["hex"] if isinstance(value, dict) else value for name, value in row.items()}


def expected_metadata(shape: str, record: dict[str, Any]) -> dict[str, Any]:
    """The columns that bronze must store for a record, from its Avro value."""
    value = record["decoded_value"]
    if value is None:
        return dict.fromkeys(("source_ts_ms", "source_position", "snapshot", "position_domain")) | {"op": "tombstone"}
    if shape == "envelope":
        source = value["source"]
        ts_ms, lsn, snapshot, domain = source["ts_ms"], source["lsn"], source["snapshot"], f"{source['name']}/pagila"
    else:
        ts_ms, lsn, snapshot = value["__source_ts_ms"], value["__lsn"], value["__source_snapshot"]
        domain = None
    return {
        "op": record["op"],
        "source_ts_ms": ts_ms,
        "source_position": [lsn],
        "snapshot": None if snapshot == "false" else snapshot,
        "position_domain": domain,
    }


def check(table: str, sources: list[dict[str, Any]], spark: SparkSession) -> None:
    registry = FakeRegistry()
    sent: list[tuple[dict[str, Any], dict[str, Any]]] = []
    kafka: list[Record] = []
    for source in sources:
        kafka += records_of(source, registry, len(kafka))
        sent += [(source, record) for record in source["records"]]
    bronze = bronze_rows(
        in_log_order(decided(spark, registry, kafka)), batch=1, generation=0, ingest_date=date(2026, 1, 1)
    ).persist()
    keys = [WriterSchema(source["key_schema"]) for source in sources]
    values = [WriterSchema(source["value_schema"]) for source in sources]
    trees = [one.tree for one in keys]
    change = evolve_layout(table, sent_columns(trees, values))
    layout = change.layout
    every = bronze.withColumn(
        "tombstone_of", F.lit(None).cast("bigint")
    )  # otherwise tombstones of deletes are no events
    typed = events(every, BatchSchemas(table, TableConfig(), keys, trees, values, ["id4"], change)).select(
        "__kafka.offset",
        "pk",
        F.col("row").isNull().alias("is_without_row"),
        F.struct(*(as_text(name, kind).alias(name) for name, kind in layout.columns.items())).alias("as_text"),
        "unavailable",
    )

    for (source, record), row, event in zip(sent, by_offset(bronze), by_offset(typed), strict=True):
        about = f"{source['shape']} {record['name']}"
        assert (row["status"], row["error"]) == ("ok", None), about
        said = row.asDict()
        wanted = expected_metadata(source["shape"], record)
        if source["shape"] == "flattened":
            wanted["position_domain"] = said["position_domain"]
            assert said["position_domain"] in ("pagila/pagila", source["topic"]), about
        assert {name: said[name] for name in wanted} == wanted, about
        assert row["kafka_timestamp"].timestamp() * 1000 == pytest.approx(record["timestamp_ms"]), about
        assert event["pk"].asDict() == record["decoded_key"], about
        assert json.loads(row["key"]) == record["decoded_key"], about
        assert event["is_without_row"] is (record["row"] is None), about
        if record["row"] is not None:
            check_row(about, record, event)


def check_row(about: str, record: dict[str, Any], event: Row) -> None:
    unsent = {name for name, value in record["row"].items() if value == UNSENT}
    held = event["as_text"].asDict(recursive=True)
    assert set(event["unavailable"]) == unsent, about
    assert {name: value for name, value in held.items() if name not in unsent} == expected_row(record), about


@pytest.mark.parametrize("table", ["film", "customer"])
def test_recorded_records_of_both_shapes_decode_to_source_values(spark: SparkSession, table: str) -> None:
    """Case F1: the shape belongs to the schema, not to the topic."""
    check(table, [fixture(f"{table}-envelope"), fixture(f"{table}-flattened")], spark)


def test_recorded_logical_message_is_a_control_record(spark: SparkSession) -> None:
    registry = FakeRegistry()
    records = records_of(fixture("message"), registry, 0)

    (row,) = by_offset(decided(spark, registry, records))

    assert (row["status"], row["error"], row["op"]) == ("control", None, "m")


@pytest.fixture(scope="module")
def key_changes(spark: SparkSession) -> dict[tuple[str, str], dict[str, str | None]]:
    """By shape and by the source of its fields: the key changes of the fixture's records."""
    registry, sources = FakeRegistry(), [fixture("film-envelope"), fixture("film-flattened")]
    named_by = {"position": F.col("source_position"), "keys": F.lit(None).cast("array<bigint>")}
    others = [F.col(name) for name in ("position_domain", "source_ts_ms", "canonical_key")]
    columns = {name: key_change_id(F.col("headers"), position, *others) for name, position in named_by.items()}
    sent, records = [], list[Record]()
    for source in sources:
        records += records_of(source, registry, len(records))
        sent += [(source["shape"], record["name"]) for record in source["records"]]
    found: dict[tuple[str, str], dict[str, str | None]] = {}
    for (shape, name), row in zip(sent, by_offset(decided(spark, registry, records).withColumns(columns)), strict=True):
        for column in columns:
            found.setdefault((shape, column), {})[name] = row[column]
    return found


@pytest.mark.parametrize("named_by", ["position", "keys"])
@pytest.mark.parametrize("shape", ["envelope", "flattened"])
def test_halves_of_a_recorded_key_change_share_one_id(
    key_changes: dict[tuple[str, str], dict[str, str | None]], shape: str, named_by: str
) -> None:
    found = key_changes[shape, named_by]

    first, second = found["key_change_delete_1"], found["key_change_delete_2"]
    assert None not in (first, second)
    assert first != second
    assert found["key_change_create_placeholder_1"] == first
    assert found["key_change_create_1"] == second
    assert [name for name, name_of_move in found.items() if name_of_move and "key_change" not in name] == []
