"""Apicurio's client, with a small server on loopback whose responses the test sets."""

import pytest
from support.one_server import serving
from support.registry_server import FakeServer, a_record

from cdc_lake.decode.schemas import SchemaError, fields, parse
from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.registries import http_client
from cdc_lake.registries.apicurio import ApicurioRegistry
from cdc_lake.registries.http_client import Endpoint
from cdc_lake.registries.registry import RegisteredSchema, RetryPolicy

pytestmark = pytest.mark.core

V3 = "/apis/registry/v3"
V2 = "/apis/registry/v2"
CHECK = "search/artifacts?limit=1"


def client(server: FakeServer, attempts: int = 2, ids: str = "auto", path: str = V3) -> ApicurioRegistry:
    return ApicurioRegistry(Endpoint(server.url + path, timeout_seconds=5, attempts=attempts), ids=ids)


def text_of(registry: ApicurioRegistry, content_id: int) -> str:
    found = registry.schema("contentId", str(content_id))
    assert found is not None
    return found.text


def reference(artifact: str, group: str | None = None) -> dict[str, object]:
    return {"groupId": group, "artifactId": artifact, "version": "1", "name": f"x.{artifact}"}


def test_content_id_returns_its_text(server: FakeServer) -> None:
    server.answer(f"{V3}/ids/contentIds/5", (200, '{"type": "string"}'))

    assert client(server).schema("contentId", "5") == RegisteredSchema('{"type": "string"}', "AVRO")


def test_each_id_kind_is_requested_at_its_endpoint(server: FakeServer) -> None:
    places = {
        ("contentId", "5"): "ids/contentIds/5",
        ("globalId", "5"): "ids/globalIds/5",
        ("contentHash", "ab12"): "ids/contentHashes/ab12",
        ("artifact", "g%2Fh/a%20b/1.0"): "groups/g%2Fh/artifacts/a%20b/versions/1.0/content",
    }
    for number, place in enumerate(places.values()):
        server.answer(f"{V3}/{place}", (200, f'"schema {number}"'))

    found = [client(server).schema(*wanted) for wanted in places]

    assert [schema.text for schema in found if schema] == [f'"schema {number}"' for number in range(4)]


@pytest.mark.parametrize(
    ("ids", "namespaces"),
    [("auto", ("contentId", "globalId")), ("content", ("contentId",)), ("global", ("globalId",))],
)
def test_registry_ids_setting_defines_the_meaning_of_numbers(
    server: FakeServer, ids: str, namespaces: tuple[str, ...]
) -> None:
    assert client(server, ids=ids).namespaces == namespaces


@pytest.mark.parametrize(
    ("kind", "hostile"),
    [
        ("contentId", "../../admin"),
        ("contentId", "5/references"),
        ("contentId", "\N{ARABIC-INDIC DIGIT FIVE}"),
        ("contentId", ""),
        ("globalId", "-1"),
        ("contentHash", "ab?x=y"),
        ("artifact", "g/a"),
        ("artifact", "g/../1"),
        ("artifact", "%2e%2e/a/1"),
        ("artifact", "/a/1"),
        ("artifact", "g/a/.."),
        ("artifact", "g/a/latest"),
        ("artifact", "g/a/branch%3Dlatest"),
        ("artifact", "g/a/1%2F..%2F.."),
        ("guid", "89791762-2336-4186-9674-299b90a802e2"),
        ("id", "5"),
    ],
)
def test_invalid_id_is_never_sent(server: FakeServer, kind: str, hostile: str) -> None:
    assert client(server).schema(kind, hostile) is None
    assert not server.seen


@pytest.mark.parametrize(("version", "content"), [("v3", "/content"), ("v2", "")])
def test_references_are_resolved_and_inlined(server: FakeServer, version: str, content: str) -> None:
    base = f"/apis/registry/{version}"
    server.answer(f"{base}/ids/contentIds/1", (200, a_record("Outer", ["null", "x.Middle"])))
    server.answer(f"{base}/ids/contentIds/1/references", (200, [reference("Middle", "g/x")]))
    middle, inner = (
        f"{base}/groups/g%2Fx/artifacts/Middle/versions/1",
        f"{base}/groups/default/artifacts/Inner/versions/1",
    )
    server.answer(middle + content, (200, a_record("Middle", "x.Inner")))
    server.answer(f"{middle}/references", (200, [reference("Inner")]))
    server.answer(inner + content, (200, a_record("Inner", "int")))
    server.answer(f"{inner}/references", (200, []))

    text = text_of(client(server, path=base), 1)

    inlined = fields(parse(text))["v"]["branches"][1]
    assert fields(fields(inlined)["v"]) == {"v": {"type": "int"}}


def test_circular_references_terminate(server: FakeServer) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (200, a_record("A", ["null", "x.B"])))
    server.answer(f"{V3}/ids/contentIds/1/references", (200, [reference("B")]))
    b = f"{V3}/groups/default/artifacts/B/versions/1"
    server.answer(f"{b}/content", (200, a_record("B", ["null", "x.B"])))
    server.answer(f"{b}/references", (200, [reference("B")]))

    assert "x.B" in text_of(client(server), 1)
    assert server.asked[f"{b}/content"] == 1


def test_missing_reference_is_an_infrastructure_error(server: FakeServer) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (200, a_record("A", "x.B")))
    server.answer(f"{V3}/ids/contentIds/1/references", (200, [reference("B")]))

    with pytest.raises(InfrastructureError, match="refers to groups/default/artifacts/B/versions/1, which it lacks"):
        client(server).schema("contentId", "1")


def test_reference_to_invalid_schema_leaves_a_refused_text(server: FakeServer) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (200, a_record("A", "x.B")))
    server.answer(f"{V3}/ids/contentIds/1/references", (200, [reference("B")]))
    server.answer(f"{V3}/groups/default/artifacts/B/versions/1/content", (200, "no schema"))

    with pytest.raises(SchemaError, match="does not define the type"):
        parse(text_of(client(server), 1))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('"string"', "AVRO"),
        ('["null", "int"]', "AVRO"),
        ('{"type": "record", "name": "R", "fields": []}', "AVRO"),
        ('{"type": {"type": "map", "values": "int"}}', "AVRO"),
        ('{"type": "object", "properties": {}}', "JSON"),
        ('{"type": "integer", "title": "key"}', "JSON"),
        ('{"oneOf": [{"type": "null"}, {"type": "string"}]}', "JSON"),
        ('{"$schema": "x", "type": "string"}', "JSON"),
        ('// c\nsyntax = "proto3";\nmessage A { int32 a = 1; }', "PROTOBUF"),
    ],
)
def test_schema_type_is_detected_from_its_text(server: FakeServer, text: str, kind: str) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (200, text))

    assert client(server).schema("contentId", "1") == RegisteredSchema(text, kind)


@pytest.mark.parametrize("text", ["<html>please log in\nmessage</html>", "hello", "17", ""])
def test_response_without_schema_is_an_infrastructure_error(server: FakeServer, text: str) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (200, text))

    with pytest.raises(InfrastructureError, match=f"registry at {server.url}: its response is not a schema"):
        client(server).schema("contentId", "1")


@pytest.mark.parametrize("references", ["<html>", {"a": 1}, [{"artifactId": "a"}], [reference("..")], "[[1]]"])
def test_malformed_references_are_an_infrastructure_error(server: FakeServer, references: object) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (200, a_record("A", "x.B")))
    server.answer(f"{V3}/ids/contentIds/1/references", (200, references))

    with pytest.raises(InfrastructureError, match=r"its response about references|not JSON"):
        client(server).schema("contentId", "1")


def test_binary_response_is_an_infrastructure_error(server: FakeServer) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (200, b'"\xff"'))

    with pytest.raises(InfrastructureError, match="not text"):
        client(server).schema("contentId", "1")


def test_oversize_response_is_an_infrastructure_error(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_RESPONSE_BYTES", 1000)
    server.answer(f"{V3}/ids/contentIds/1", (200, f'"{"x" * 998}"'))
    server.answer(f"{V3}/ids/contentIds/2", (200, f'"{"x" * 999}"'))

    assert len(text_of(client(server), 1)) == 1000
    with pytest.raises(InfrastructureError, match="its response exceeds 1000 bytes"):
        client(server).schema("contentId", "2")


def test_missing_id_is_none_after_retries(server: FakeServer) -> None:
    registry = client(server)

    assert registry.schema("contentId", "99") is None
    assert server.asked[f"{V3}/ids/contentIds/99"] == 3


def test_id_missing_on_a_replica_is_found_by_retry(server: FakeServer) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (404, ""), (200, '"string"'))

    assert text_of(client(server), 1) == '"string"'


def test_one_delay_covers_all_ids_missing_at_that_time() -> None:
    waits: list[float] = []
    retry, asked = RetryPolicy(Endpoint("http://registry").unavailable_error, 10, waits.append), 0

    def missing() -> None:
        nonlocal asked
        asked += 1

    for _ in range(100):
        assert retry.call_until_found(missing) is None

    assert (len(waits), asked) == (2, 102)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_temporary_error_is_retried(server: FakeServer, status: int) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (status, "later"), (200, '"string"'))

    assert text_of(client(server), 1) == '"string"'


def test_registry_that_stays_down_is_an_infrastructure_error(server: FakeServer) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (503, "down"))

    with pytest.raises(InfrastructureError, match="responded with 503") as caught:
        client(server, attempts=3).schema("contentId", "1")

    assert caught.value.exit_code == 10
    assert caught.value.retryable
    assert server.asked[f"{V3}/ids/contentIds/1"] == 3


def test_registry_timeout_is_an_infrastructure_error(server: FakeServer) -> None:
    server.delay_seconds = 1.0
    registry = ApicurioRegistry(Endpoint(f"{server.url}{V3}", timeout_seconds=0.1, attempts=2))

    with pytest.raises(InfrastructureError, match="does not respond"):
        registry.schema("contentId", "1")
    assert len(server.seen) == 2


@pytest.mark.parametrize(("status", "error"), [(400, InfrastructureError), (401, ConfigError), (403, ConfigError)])
def test_permanent_error_is_not_retried(server: FakeServer, status: int, error: type[Exception]) -> None:
    server.answer(f"{V3}/ids/contentIds/1", (status, b"<html>\xff"))

    with pytest.raises(error, match=str(status)):
        client(server).schema("contentId", "1")
    assert server.asked[f"{V3}/ids/contentIds/1"] == 1


def test_a_redirect_is_not_followed(server: FakeServer) -> None:
    with serving(FakeServer()) as elsewhere:
        server.answer(f"{V3}/ids/contentIds/1", (302, f"{elsewhere.url}/latest/meta-data"))

        with pytest.raises(InfrastructureError, match="302"):
            client(server).schema("contentId", "1")
        assert not elsewhere.seen


def test_closed_registry_port_is_an_infrastructure_error() -> None:
    with serving(FakeServer()) as server:
        registry = client(server, attempts=1)

    with pytest.raises(InfrastructureError, match="does not respond"):
        registry.check()


@pytest.mark.parametrize(("path", "asked"), [("", [V3]), (V3, [V3]), (V2, [V2])])
def test_url_selects_the_api_version_or_the_newest_is_used(server: FakeServer, path: str, asked: list[str]) -> None:
    for base in (V3, V2):
        server.answer(f"{base}/{CHECK}", (200, {"artifacts": [], "count": 0}))
        server.answer(f"{base}/ids/globalIds/1", (200, '"string"'))
    registry = client(server, path=path)

    registry.check()
    registry.schema("globalId", "1")

    assert [path.partition("/search")[0] for _, path, _ in server.seen if "search" in path] == asked
    assert server.asked[f"{asked[-1]}/ids/globalIds/1"] == 1


@pytest.mark.parametrize("checked", [True, False])
def test_registry_without_v3_is_asked_by_v2(server: FakeServer, checked: bool) -> None:
    server.answer(f"{V2}/{CHECK}", (200, {"artifacts": [], "count": 0}))
    server.answer(f"{V2}/ids/globalIds/1", (200, '"string"'))
    registry = client(server, path="")

    if checked:
        registry.check()

    assert registry.schema("globalId", "1") == RegisteredSchema('"string"')


def test_server_that_is_not_apicurio_is_a_config_error(server: FakeServer) -> None:
    with pytest.raises(
        ConfigError,
        match=r"the server is not an Apicurio Registry \(neither v3 nor v2\); check registry\.type, and registry\.url",
    ):
        client(server, path="").check()
    with pytest.raises(ConfigError, match=r"the server is not an Apicurio Registry \(v2\)"):
        client(server, path=V2).check()


def test_html_page_instead_of_registry_is_infrastructure_error(server: FakeServer) -> None:
    server.answer(f"{V3}/{CHECK}", (200, "<html>welcome</html>"))

    with pytest.raises(InfrastructureError, match="not JSON"):
        client(server, path="").check()
