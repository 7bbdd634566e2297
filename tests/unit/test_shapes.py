"""The shape of records, determined from their schema alone."""

import json

import pytest
from support.events import envelope_schema, flat_metadata, flat_schema, key_schema

from cdc_lake.decode.envelope import is_of_signal_table, pruned_schema, row_fields, shape_of
from cdc_lake.decode.schemas import fields, parse

pytestmark = pytest.mark.core

CONNECTORS = ["postgresql", "mysql", "sqlserver", "oracle"]


def a_record(name: str, *names: str) -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": n, "type": "string"} for n in names]})


@pytest.mark.parametrize("name", ["Heartbeat", "TransactionMetadataValue", "SchemaChangeValue", "Notification"])
def test_table_named_like_a_control_record_is_a_table(name: str) -> None:
    assert shape_of(parse(envelope_schema({"id": "int"}, f"pagila.public.{name}"))) == "envelope"
    assert shape_of(parse(flat_schema({"id": "int"}, f"io.debezium.connector.{name}"))) == "flat"


@pytest.mark.parametrize("table", ["pagila.public.debezium_signal", "pagila.debezium_signal", "debezium_signal"])
def test_signal_table_is_recognized_by_key_and_value_name(table: str) -> None:
    texts = [schema({"id": "string"}, table) for schema in (key_schema, envelope_schema, flat_schema)]

    assert [is_of_signal_table(parse(text)) for text in texts] == [True] * 3
    assert [shape_of(parse(text)) for text in texts[1:]] == ["control"] * 2


@pytest.mark.parametrize("table", ["pagila.debezium_signal.film", "pagila.public.debezium_signals", "xdebezium_signal"])
def test_table_with_another_name_is_not_the_signal_table(table: str) -> None:
    assert not is_of_signal_table(parse(key_schema({"id": "int"}, table)))


def test_non_record_key_does_not_belong_to_the_signal_table() -> None:
    assert not is_of_signal_table(parse('"int"'))


@pytest.mark.parametrize("connector", CONNECTORS)
def test_position_fields_added_by_the_transform_are_not_columns(connector: str) -> None:
    metadata = flat_metadata(connector)
    long_names = {f"__source_{name.removeprefix('__')}": kind for name, kind in metadata.items()}

    for added in (metadata, long_names):
        assert list(row_fields(parse(flat_schema({"id": "int"}, metadata=added)))) == ["id"]


def test_only_the_op_of_a_control_record_is_read() -> None:
    message = parse(a_record("io.debezium.connector.postgresql.MessageValue", "op", "message"))
    heartbeat = parse(a_record("io.debezium.connector.common.Heartbeat", "ts_ms"))

    assert list(fields(pruned_schema(message))) == ["op"]
    assert list(fields(pruned_schema(heartbeat))) == []
