"""The client of Confluent's registry, with a small server on loopback that responds like Confluent's."""

import json
from typing import Any

import pytest
from support.one_server import serving
from support.registry_server import FakeServer, a_record

from cdc_lake.decode.schemas import fields, parse
from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.registries import http_client
from cdc_lake.registries.confluent import ConfluentRegistry
from cdc_lake.registries.http_client import Endpoint
from cdc_lake.registries.registry import RegisteredSchema

pytestmark = pytest.mark.core

GUID = "89791762-2336-4186-9674-299b90a802e2"
IN_CONTEXT = "subject=%3A.eu%3A"


def client(server: FakeServer, attempts: int = 2, **more: Any) -> ConfluentRegistry:
    return ConfluentRegistry(Endpoint(server.url, timeout_seconds=5, attempts=attempts), **more)


def registered(schema: object, *references: tuple[str, int], **more: object) -> dict[str, object]:
    """The response of Confluent's server for a schema."""
    named = [{"name": f"x.{subject}", "subject": subject, "version": version} for subject, version in references]
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return {"schema": text, **({"references": named} if named else {}), **more}


def test_id_returns_its_text_and_the_default_type_is_avro(server: FakeServer) -> None:
    server.answer("/schemas/ids/5", (200, registered('"string"')))

    assert client(server).schema("id", "5") == RegisteredSchema('"string"', "AVRO")
    assert client(server).namespaces == ("id",)


@pytest.mark.parametrize("kind", ["JSON", "PROTOBUF"])
def test_schema_of_another_type_is_returned_as_registered(server: FakeServer, kind: str) -> None:
    server.answer("/schemas/ids/5", (200, registered("{}", ("Other", 1), schemaType=kind)))

    assert client(server).schema("id", "5") == RegisteredSchema("{}", kind)
    assert len(server.seen) == 1


def test_ids_of_a_context_are_requested_and_named_by_context(server: FakeServer) -> None:
    server.answer("/schemas/ids/5", (200, registered('"string"')))
    server.answer(f"/schemas/ids/5?{IN_CONTEXT}", (200, registered('"int"')))

    found = client(server).schema("id", "5"), client(server, context="eu").schema("id", "5")

    assert [schema.text for schema in found if schema] == ['"string"', '"int"']
    assert (client(server).name, client(server, context="eu").name) == ("confluent", "confluent.eu")


def test_guid_is_requested_by_guid(server: FakeServer) -> None:
    server.answer(f"/schemas/guids/{GUID}", (200, registered('"string"', guid=GUID)))

    assert client(server).schema("guid", GUID) == RegisteredSchema('"string"')


def test_non_confluent_registry_is_not_asked_for_guids(server: FakeServer) -> None:
    server.answer(f"/schemas/guids/{GUID}", (200, registered('"string"', guid=GUID)))

    assert client(server, name="ccompat").schema("guid", GUID) is None
    assert not server.seen


@pytest.mark.parametrize(
    ("kind", "hostile"),
    [
        ("id", "../subjects"),
        ("id", "-1"),
        ("id", ""),
        ("id", "5?x=y"),
        ("guid", "../ids/5"),
        ("guid", GUID + "0"),
        ("contentId", "5"),
        ("glue", GUID),
    ],
)
def test_invalid_id_is_never_sent(server: FakeServer, kind: str, hostile: str) -> None:
    assert client(server).schema(kind, hostile) is None
    assert not server.seen


@pytest.mark.parametrize(("context", "prefix", "query"), [(None, "", ""), ("eu", "%3A.eu%3A", f"?{IN_CONTEXT}")])
def test_references_are_resolved_and_inlined(server: FakeServer, context: str | None, prefix: str, query: str) -> None:
    server.answer(f"/schemas/ids/1{query}", (200, registered(a_record("Outer", "x.Middle"), ("a/Middle", 3))))
    middle = registered(a_record("Middle", "x.Inner"), ("Inner", 1), subject="a/Middle", version=3, id=7)
    inner = registered(a_record("Inner", "int"), ("a/Middle", 3), subject="Inner", version=1, id=8)
    server.answer(f"/subjects/{prefix}a%2FMiddle/versions/3?deleted=true", (200, middle))
    server.answer(f"/subjects/{prefix}Inner/versions/1?deleted=true", (200, inner))

    found = client(server, context=context).schema("id", "1")

    assert found is not None
    assert fields(fields(fields(parse(found.text))["v"])["v"]) == {"v": {"type": "int"}}


def test_reference_into_another_context_is_resolved_there(server: FakeServer) -> None:
    server.answer(f"/schemas/ids/1?{IN_CONTEXT}", (200, registered(a_record("A", "x.B"), (":.us:B", 1))))
    server.answer("/subjects/%3A.us%3AB/versions/1?deleted=true", (200, registered(a_record("B", "int"))))

    found = client(server, context="eu").schema("id", "1")

    assert found is not None
    assert fields(fields(parse(found.text))["v"]) == {"v": {"type": "int"}}


def test_missing_reference_is_an_infrastructure_error(server: FakeServer) -> None:
    server.answer("/schemas/ids/1", (200, registered(a_record("A", "x.B"), ("B", 2))))

    with pytest.raises(InfrastructureError, match="refers to version 2 of the subject B, which it lacks"):
        client(server).schema("id", "1")


def test_missing_id_is_none_after_retries(server: FakeServer) -> None:
    assert client(server).schema("id", "99") is None
    assert server.asked["/schemas/ids/99"] == 3


def test_id_missing_on_a_follower_is_found_by_retry(server: FakeServer) -> None:
    server.answer("/schemas/ids/1", (404, {"error_code": 40403, "message": "no"}), (200, registered('"string"')))

    assert client(server).schema("id", "1") == RegisteredSchema('"string"')


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_temporary_error_is_retried(server: FakeServer, status: int) -> None:
    server.answer("/schemas/ids/1", (status, {"error_code": 50001, "message": "later"}), (200, registered('"string"')))

    assert client(server).schema("id", "1") == RegisteredSchema('"string"')


def test_registry_that_stays_down_is_an_infrastructure_error(server: FakeServer) -> None:
    server.answer("/schemas/ids/1", (429, {"error_code": 42901, "message": "slow down"}))

    with pytest.raises(InfrastructureError, match="responded with 429") as caught:
        client(server, attempts=3).schema("id", "1")

    assert caught.value.exit_code == 10
    assert server.asked["/schemas/ids/1"] == 3


def test_registry_timeout_is_an_infrastructure_error(server: FakeServer) -> None:
    server.delay_seconds = 1.0
    registry = ConfluentRegistry(Endpoint(server.url, timeout_seconds=0.1, attempts=2))

    with pytest.raises(InfrastructureError, match="does not respond"):
        registry.schema("id", "1")
    assert len(server.seen) == 2


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_not_retried(server: FakeServer, status: int) -> None:
    server.answer("/schemas/types", (status, {"error_code": status * 100, "message": "no"}))

    with pytest.raises(ConfigError, match=f"rejects the credentials .{status}.*registry.auth") as caught:
        client(server).check()

    assert caught.value.exit_code == 2
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "body", ["<html>welcome</html>", "17", [], {}, {"schema": 5}, {"schema": "x", "references": 3}]
)
def test_response_without_schema_is_an_infrastructure_error(server: FakeServer, body: object) -> None:
    server.answer("/schemas/ids/1", (200, body))

    with pytest.raises(InfrastructureError, match=f"registry at {server.url}: its response is not"):
        client(server).schema("id", "1")


@pytest.mark.parametrize("reference", [{"subject": 5, "version": 1}, {"subject": "B", "version": "../1"}, {}])
def test_malformed_references_are_an_infrastructure_error(server: FakeServer, reference: object) -> None:
    server.answer("/schemas/ids/1", (200, registered(a_record("A", "x.B"), references=[reference])))

    with pytest.raises(InfrastructureError, match="its response about references is not"):
        client(server).schema("id", "1")


def test_oversize_response_is_an_infrastructure_error(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_RESPONSE_BYTES", 1000)
    server.answer("/schemas/ids/1", (200, json.dumps({"schema": "x" * 985}).ljust(1000)))
    server.answer("/schemas/ids/2", (200, json.dumps({"schema": "x" * 985}).ljust(1001)))

    assert client(server).schema("id", "1") == RegisteredSchema("x" * 985)
    with pytest.raises(InfrastructureError, match="exceeds 1000 bytes"):
        client(server).schema("id", "2")


def test_a_redirect_is_not_followed(server: FakeServer) -> None:
    with serving(FakeServer()) as elsewhere:
        server.answer("/schemas/ids/1", (302, f"{elsewhere.url}/latest/meta-data"))

        with pytest.raises(InfrastructureError, match="302"):
            client(server).schema("id", "1")
        assert not elsewhere.seen


def test_closed_registry_port_is_an_infrastructure_error(server: FakeServer) -> None:
    registry = client(server, attempts=1)
    server.socket.close()

    with pytest.raises(InfrastructureError, match="does not respond"):
        registry.check()


def test_responding_registry_passes_the_check(server: FakeServer) -> None:
    server.answer("/schemas/types", (200, ["AVRO", "JSON"]))

    client(server).check()

    assert server.asked["/schemas/types"] == 1


def test_other_server_is_a_config_error(server: FakeServer) -> None:
    with pytest.raises(
        ConfigError,
        match=r"the server is not a Confluent-compatible registry .*check registry\.type, and registry\.url",
    ):
        client(server).check()
