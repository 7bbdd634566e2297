"""The registries' clients with Apicurio itself: version 3 of the embedded stack, and version 2."""

import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import fastavro
import pytest
from support import wire
from support.apicurio_server import ApicurioServer, register

from cdc_lake.config import RegistryConfig
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.errors import ConfigError, IncompatibleSchemaError, InfrastructureError
from cdc_lake.registries import open_registry, open_subjects
from cdc_lake.registries.registry import RegisteredSchema, Registry
from cdc_lake.spark.fetch import fetch
from cdc_lake.spark.jars import Jar, cache_folder

VERSION_2 = Jar(
    ("apicurio",),
    "io.apicurio",
    "apicurio-registry-app",
    "2.6.13.Final",
    "tar.gz",
    "all",
    "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba",
)

TOWN = {"type": "record", "name": "Town", "namespace": "a", "fields": [{"name": "name", "type": "string"}]}
ADDRESS = {"type": "record", "name": "Address", "namespace": "b", "fields": [{"name": "town", "type": "a.Town"}]}
PERSON = {
    "type": "record",
    "name": "Person",
    "namespace": "c",
    "fields": [{"name": "home", "type": "b.Address"}, {"name": "born", "type": ["null", "a.Town"]}],
}
JSON_SCHEMA = '{"type":"object","properties":{"id":{"type":"integer"}}}'
PROTOBUF = 'syntax = "proto3";\nmessage Person {\n  int32 id = 1;\n}\n'
EVENT = {"home": {"town": {"name": "Ærø"}}, "born": {"name": "東京"}}


@pytest.fixture(scope="module")
def version_3(stack: Stack) -> str:
    """The address of Apicurio 3."""
    return stack.endpoints["registry"]


@pytest.fixture(scope="module")
def version_2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an Apicurio 2, which is downloaded for these tests only."""
    fetch([VERSION_2], cache_folder())
    with ApicurioServer(tmp_path_factory.mktemp("apicurio2"), [VERSION_2]) as server:
        yield server.address


@pytest.fixture(params=["version_3", pytest.param("version_2", marks=pytest.mark.deep)])
def address(request: pytest.FixtureRequest) -> str:
    """Each Apicurio in turn."""
    found: str = request.getfixturevalue(request.param)
    return found


def opened(kind: str, url: str) -> Registry:
    return open_registry(RegistryConfig(type=kind, url=url, timeout_seconds=10, attempts=2))


def person(address: str) -> dict[str, Any]:
    """A schema that refers to two others, one of them indirectly; its content id differs from its global id."""
    register(address, "town", json.dumps(TOWN))
    register(address, "address/of a person", json.dumps(ADDRESS), references={"town": "a.Town"})
    references = {"address/of a person": "b.Address", "town": "a.Town"}
    twin = register(address, "a twin", json.dumps(PERSON), references=references)
    if twin["globalId"] + 1 == twin["contentId"]:  # because of earlier registrations
        register(address, "another twin", json.dumps(PERSON), references=references)
    ids = register(address, "person", json.dumps(PERSON), references=references)
    assert ids["contentId"] != ids["globalId"]
    return ids


def assert_reads(schema: RegisteredSchema | None) -> None:
    """Check that a person can be written and read with this text alone."""
    assert schema is not None
    assert schema.type == "AVRO"
    parsed = fastavro.parse_schema(json.loads(schema.text))
    assert fastavro.schemaless_reader(io.BytesIO(wire.avro(schema.text, EVENT)), parsed, None) == EVENT


@pytest.mark.parametrize("path", ["", "/apis/registry/v2"])
def test_every_apicurio_id_kind_resolves_to_the_same_text(address: str, path: str) -> None:
    ids = person(address)
    registry = opened("apicurio", f"{address}{path}")

    registry.check()

    assert_reads(registry.schema("contentId", str(ids["contentId"])))
    assert_reads(registry.schema("globalId", str(ids["globalId"])))
    assert_reads(registry.schema("artifact", "default/person/1"))
    town = registry.schema("artifact", "default/town/1")
    assert town is not None
    assert registry.schema("contentHash", hashlib.sha256(town.text.encode()).hexdigest()) == town


def test_global_id_read_as_content_id_is_another_schema(address: str) -> None:
    ids = person(address)
    registry = opened("apicurio", address)

    one, other = (registry.schema(kind, str(ids["globalId"])) for kind in ("globalId", "contentId"))

    assert_reads(one)
    assert one != other


def test_confluent_client_reads_the_same_text_from_apicurio(address: str) -> None:
    ids = person(address)
    registry = opened("ccompat", f"{address}/apis/ccompat/v7")

    registry.check()

    assert_reads(registry.schema("id", str(ids["contentId"])))
    assert registry.schema("id", "999999") is None


@pytest.mark.deep
def test_ccompat_v6_interface_is_read_on_apicurio_2(version_2: str) -> None:
    ids = person(version_2)
    registry = opened("ccompat", f"{version_2}/apis/ccompat/v6")

    registry.check()

    assert_reads(registry.schema("id", str(ids["contentId"])))


@pytest.mark.parametrize(("kind", "path"), [("apicurio", ""), ("ccompat", "/apis/ccompat/v7")])
def test_other_schema_types_are_reported_with_their_type(address: str, kind: str, path: str) -> None:
    registry = opened(kind, f"{address}{path}")
    namespace = registry.namespaces[0]

    for name, text in {"JSON": JSON_SCHEMA, "PROTOBUF": PROTOBUF}.items():
        schema_id = register(address, f"a {name}", text, name)["contentId"]
        assert registry.schema(namespace, str(schema_id)) == RegisteredSchema(text, name)


@pytest.mark.parametrize("path", ["", "/apis/registry/v2"])
@pytest.mark.parametrize(
    ("kind", "missing"),
    [("contentId", "999999"), ("globalId", "999999"), ("contentHash", "ab"), ("artifact", "default/nothing/1")],
)
def test_missing_apicurio_artifact_is_none(address: str, path: str, kind: str, missing: str) -> None:
    assert opened("apicurio", f"{address}{path}").schema(kind, missing) is None


@pytest.mark.parametrize(("kind", "path"), [("ccompat", "/apis/ccompat/v6"), ("ccompat", ""), ("apicurio", "/health")])
def test_missing_interface_names_registry_url(version_3: str, kind: str, path: str) -> None:
    with pytest.raises((ConfigError, InfrastructureError), match=version_3) as caught:
        opened(kind, f"{version_3}{path}").check()

    assert "registry.url" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "path"), [("apicurio", ""), ("apicurio", "/apis/registry/v2"), ("ccompat", "/apis/ccompat/v7")]
)
def test_versions_register_once_if_compatible(address: str, kind: str, path: str) -> None:
    def text(*fields: tuple[str, Any]) -> str:
        content = [{"name": name, "type": its_type, "default": None} for name, its_type in fields]
        return json.dumps({**TOWN, "fields": [*TOWN["fields"], *content]})

    registry = open_subjects(RegistryConfig(type=kind, url=f"{address}{path}", attempts=2))
    subject = f"{uuid4().hex[:8]}-value"
    first, second, wrong = text(), text(("zip", ["null", "int"])), text(("zip", ["null", "string"]))
    assert (registry.versions(subject), registry.version(subject)) == ([], None)
    assert (registry.level(subject), registry.problems(subject, first)) == ("NONE", None)

    one = registry.register(subject, first)
    registry.set_level(subject, "FORWARD")
    registry.set_level(subject, "FULL")
    assert registry.problems(subject, second) is None
    two = registry.register(subject, second)

    assert one.id != two.id
    assert (registry.register(subject, first), registry.register(subject, second)) == (one, two)
    assert registry.level(subject) == "FULL"
    assert registry.problems(subject, wrong) is not None
    with pytest.raises(IncompatibleSchemaError, match=subject):
        registry.register(subject, wrong)
    assert registry.versions(subject) == ["1", "2"]
    assert (registry.version(subject, "1"), registry.version(subject)) == (one, two)
    assert registry.version(subject, "3") is None
    assert subject in registry.subjects()
