"""Tables in topics on the real broker and registry, read by Confluent's own deserializer and by fastavro."""

import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pytest
import requests
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, ConfigResource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.topics import SinkTopic

from cdc_lake.columns import GONE
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.errors import ConfigError, IncompatibleSchemaError, InfrastructureError, UnsupportedError
from cdc_lake.sinks.kafka import BATCH_HEADER

EVERY_TYPE = """
SELECT id, concat('ä', id) AS name, id = 1 AS is_first, cast(id AS smallint) AS small, id * 1099511627776 AS big,
  cast(id + 0.5 AS float) AS ratio, id / 3D AS third, cast(id AS binary) AS bytes, date'0001-01-01' + id AS day,
  timestamp'1969-12-31 23:59:59.000001' AS at, timestamp_ntz'2020-01-02 03:04:05.000006' AS wall,
  cast(-id / 8 AS decimal(10,4)) AS amount, cast('12345678901234567890123456789012.345678' AS decimal(38,6)) AS wide,
  array(id, null) AS list, map('a', id, 'b', null) AS by_name,
  named_struct('x', id, 'inner', named_struct('y', 'z')) AS part, array(named_struct('n', id)) AS parts,
  cast(null AS string) AS nothing
FROM VALUES 1, 2, 3 AS t(id)
"""


@pytest.fixture
def place(stack: Stack, tmp_path: Path) -> SinkTopic:
    return SinkTopic(stack, f"gold.sent-{uuid4().hex[:8]}", tmp_path)


def things(spark: SparkSession, rows: Mapping[int, Any], gone: Sequence[int] = (), kind: str = "string") -> DataFrame:
    """Rows of (id, kind), and keys of deleted rows."""
    literal = {id: "null" if value is None else repr(value) for id, value in rows.items()}
    content = [f"({id}, cast({value} AS {kind}), false)" for id, value in literal.items()]
    content += [f"({id}, cast(null AS {kind}), true)" for id in gone]
    return spark.sql(f"SELECT * FROM VALUES {', '.join(content)} AS t(id, kind, {GONE})")


def headers(record: Message) -> dict[str, bytes]:
    return dict(record.headers() or [])


def read_bare(text: str, data: bytes) -> Any:
    body = io.BytesIO(data)
    found = fastavro.schemaless_reader(body, fastavro.parse_schema(json.loads(text)), None)
    assert not body.read()
    return found


@pytest.mark.parametrize("kind", ["ccompat", "apicurio"])
def test_confluent_deserializer_reads_every_type(place: SinkTopic, spark: SparkSession, kind: str) -> None:
    rows = spark.sql(EVERY_TYPE)

    assert place.sink(kind).send(rows.withColumn(GONE, F.lit(False)), keys=["name", "id"], batch=7, doc="things") == 3

    sent = place.upserted()
    assert sent == {(row["name"], row["id"]): expected(row.asDict(recursive=True)) for row in rows.collect()}
    assert {headers(record)[BATCH_HEADER] for record in place.records()} == {b"7"}
    assert json.loads(place.text("value"))["doc"] == "things"


def expected(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the types of Python's Avro: times with a zone, and bytes instead of bytearray."""
    return {**row, "bytes": bytes(row["bytes"]), "at": row["at"].replace(tzinfo=UTC)}


def test_upserting_consumer_matches_table_after_repeated_batches(place: SinkTopic, spark: SparkSession) -> None:
    sink = place.sink(partitions=3)
    first = {id: f"kind {id}" for id in range(20)}
    second = {3: "other", 20: "new"}

    sink.send(things(spark, first), keys=["ID"], batch=1)
    for _ in range(2):
        sink.send(things(spark, second, gone=[4, 5]), keys=["ID"], batch=2)

    table = {id: kind for id, kind in {**first, **second}.items() if id not in (4, 5)}
    assert place.upserted() == {(id,): {"id": id, "kind": kind} for id, kind in table.items()}
    records = place.records()
    assert len(records) == 20 + 2 * 4
    partition = {record.key(): record.partition() for record in records}
    assert all(partition[record.key()] == record.partition() for record in records)
    assert len(set(partition.values())) == 3
    assert sorted(headers(r)[BATCH_HEADER] for r in records) == [b"1"] * 20 + [b"2"] * 8
    asked = ConfigResource(ConfigResource.Type.TOPIC, place.topic)
    admin = AdminClient({"bootstrap.servers": place.stack.endpoints["kafka"]})
    assert admin.describe_configs([asked])[asked].result(10)["cleanup.policy"].value == "compact"


@pytest.mark.parametrize("framing", ["id8", "headers", "bare"])
def test_each_framing_names_the_schema(place: SinkTopic, spark: SparkSession, framing: str) -> None:
    place.sink(framing=framing).send(things(spark, {1: "a"}, gone=[2]), keys=["id"], batch=1)

    by_key: dict[Any, Message] = {}
    start = 9 if framing == "id8" else 0
    for record in place.records():
        by_key[read_bare(place.text("key"), record.key()[start:])["id"]] = record
    row = by_key[1]
    assert read_bare(place.text("value"), row.value()[start:]) == {"id": 1, "kind": "a"}
    assert by_key[2].value() is None
    base = f"{place.stack.endpoints['registry']}/apis/registry/v3"
    ids = {
        side: requests.get(f"{base}/groups/default/artifacts/{place.topic}-{side}/versions/1", timeout=10).json()
        for side in ("key", "value")
    }
    if framing == "id8":
        assert row.key()[:9] == b"\0" + ids["key"]["contentId"].to_bytes(8, "big")
        assert row.value()[:9] == b"\0" + ids["value"]["contentId"].to_bytes(8, "big")
    if framing == "headers":
        key = {"apicurio.key.contentId": ids["key"]["contentId"].to_bytes(8, "big"), "apicurio.key.encoding": b"BINARY"}
        value = {name.replace("key", "value"): content for name, content in key.items()}
        value["apicurio.value.contentId"] = ids["value"]["contentId"].to_bytes(8, "big")
        assert headers(row) == {BATCH_HEADER: b"1", **key, **value}
        assert headers(by_key[2]) == {BATCH_HEADER: b"1", **key}


def test_new_column_makes_a_compatible_version_and_keeps_keys(place: SinkTopic, spark: SparkSession) -> None:
    sink = place.sink()
    sink.send(things(spark, {1: "a", 2: "b"}), keys=["id"], batch=1)
    old = place.text("value")
    wider = things(spark, {1: "c"}).withColumn("more", F.lit(5))

    sink.send(wider, keys=["id"], batch=2, doc="now with a comment")

    *before, last = place.records()
    assert place.upserted() == {(1,): {"id": 1, "kind": "c", "more": 5}, (2,): {"id": 2, "kind": "b"}}
    assert place.upserted(old)[1,] == {"id": 1, "kind": "c"}
    assert last.key() in [record.key() for record in before]
    assert last.value()[:5] not in [record.value()[:5] for record in before]


@pytest.mark.parametrize("kind", ["ccompat", "apicurio"])
def test_incompatible_schema_is_refused_before_sending(place: SinkTopic, spark: SparkSession, kind: str) -> None:
    sink = place.sink(kind)
    sink.send(things(spark, {1: "a"}), keys=["id"], batch=1)

    with pytest.raises(IncompatibleSchemaError, match=f"{place.topic}-value") as caught:
        sink.send(things(spark, {2: 2}, kind="int"), keys=["id"], batch=2)
    with pytest.raises(IncompatibleSchemaError, match=f"{place.topic}-key.*`kind` is new"):
        sink.send(things(spark, {2: "b"}), keys=["id", "kind"], batch=2)

    assert caught.value.exit_code == 2
    assert "`kind` was string and is int now" in str(caught.value)
    assert len(place.records()) == 1
    assert sink.check(spark, things(spark, {1: "a"}).drop(GONE).schema, keys=["id"])


def test_compatibility_none_skips_registry_checks(place: SinkTopic, spark: SparkSession) -> None:
    sink = place.sink(compatibility="none")
    sink.send(things(spark, {1: "a"}), keys=["id"], batch=1)

    sink.send(things(spark, {1: 2}, kind="int"), keys=["id"], batch=2)

    assert place.upserted() == {(1,): {"id": 1, "kind": 2}}


def test_hand_written_schemas_must_match_the_columns(place: SinkTopic, spark: SparkSession) -> None:
    def write(side: str, **kinds: Any) -> str:
        content = {"type": "record", "name": f"x.{side}", "fields": [{"name": n, "type": t} for n, t in kinds.items()]}
        (place.schema_folder / f"{place.topic}-{side}.avsc").write_text(json.dumps(content))
        return json.dumps(content)

    sink, enum = place.sink(), {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}
    key = write("key", id={"type": "int", "doc": "which"})
    for kinds, why in (
        ({"id": "int"}, "no field for the column `kind`"),
        ({"id": "int", "kind": "string", "more": ["null", "int"]}, "its field `more` is not a column"),
        ({"id": "long", "kind": "string"}, "the field `id` is long, but Spark cannot write int to it"),
    ):
        write("value", **kinds)
        with pytest.raises(IncompatibleSchemaError, match=why):
            sink.send(things(spark, {1: "a"}), keys=["id"], batch=1)
    value = write("value", kind=enum, id="int")
    with pytest.raises(IncompatibleSchemaError, match="`kind` is null in 1 rows"):
        sink.send(things(spark, {1: "a", 2: None}), keys=["id"], batch=1)
    with pytest.raises(
        IncompatibleSchemaError, match="its schema does not allow a value of the column `kind`"
    ) as caught:
        sink.send(things(spark, {1: "secret"}), keys=["id"], batch=1)
    assert "secret" not in str(caught.value)

    sink.send(things(spark, {1: "a"}, gone=[2]), keys=["id"], batch=1)

    assert (json.loads(place.text("key")), json.loads(place.text("value"))) == (json.loads(key), json.loads(value))
    assert place.upserted() == {(1,): {"id": 1, "kind": "a"}}


def test_unavailable_broker_differs_from_missing_topic(place: SinkTopic, spark: SparkSession) -> None:
    rows = things(spark, {1: "a"})

    with pytest.raises(InfrastructureError, match=r"Kafka at 127\.0\.0\.1:1:") as down:
        place.sink(kafka="127.0.0.1:1").send(rows, keys=["id"], batch=1)
    with pytest.raises(InfrastructureError, match="schema registry"):
        place.sink(url="http://127.0.0.1:1").send(rows, keys=["id"], batch=1)
    with pytest.raises(ConfigError, match="the topic does not exist"):
        place.sink(create=False).send(rows, keys=["id"], batch=1)
    with pytest.raises(ConfigError, match="INVALID_REPLICATION_FACTOR"):
        place.sink(replication=3).send(rows, keys=["id"], batch=1)
    with pytest.raises(ConfigError, match="RecordTooLarge"):
        place.sink().send(rows.withColumn("kind", F.expr("repeat('x', 2000000)")), keys=["id"], batch=1)
    with pytest.raises(UnsupportedError, match="framing: id4"):
        place.sink("ccompat", framing="headers").send(rows, keys=["id"], batch=1)

    assert down.value.exit_code == 10
    assert place.sink().send(rows.limit(0), keys=["id"], batch=1) == 0
