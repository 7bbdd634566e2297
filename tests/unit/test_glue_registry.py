"""The client of AWS Glue's registry, with moto's server and a small server on loopback."""

import uuid
from typing import Any

import boto3
import pytest
from moto import mock_aws
from support.registry_server import FakeServer

from cdc_lake.config import RegistryConfig
from cdc_lake.errors import ConfigError, InfrastructureError, InstallationError
from cdc_lake.registries import open_registry
from cdc_lake.registries.glue import GlueRegistry
from cdc_lake.registries.registry import RegisteredSchema

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("aws_of_nobody")]

TEXT = '{"type":"record","name":"R","fields":[{"name":"v","type":"int"}]}'
ANY_ID = str(uuid.UUID(int=7, version=4))


def client(**more: Any) -> GlueRegistry:
    settings = {"type": "glue", "region": "eu-central-1", "attempts": 2, "timeout_seconds": 5, **more}
    return GlueRegistry(RegistryConfig(**settings))


@pytest.mark.parametrize(
    ("kind", "text"), [("AVRO", TEXT), ("JSON", '{"$schema": "http://json-schema.org/draft-07/schema#"}')]
)
def test_version_uuid_returns_its_text(kind: str, text: str) -> None:
    with mock_aws():
        glue = boto3.client("glue", region_name="eu-central-1")
        glue.create_registry(RegistryName="r")
        created = glue.create_schema(
            RegistryId={"RegistryName": "r"},
            SchemaName="s",
            DataFormat=kind,
            Compatibility="NONE",
            SchemaDefinition=text,
        )
        registry = client()

        registry.check()

        assert registry.schema("glue", created["SchemaVersionId"]) == RegisteredSchema(text, kind)
        assert registry.schema("glue", ANY_ID) is None
        assert registry.namespaces == ()


@pytest.mark.parametrize(("kind", "hostile"), [("glue", "../x"), ("glue", ""), ("id", "5"), ("guid", ANY_ID)])
def test_invalid_id_is_never_sent(server: FakeServer, kind: str, hostile: str) -> None:
    assert client(url=server.url).schema(kind, hostile) is None
    assert not server.seen


@pytest.mark.parametrize(
    "code",
    ["AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException"],
)
def test_refused_credentials_are_not_retried(server: FakeServer, code: str) -> None:
    server.answer("/", (400, {"__type": code, "message": "no"}))

    with pytest.raises(ConfigError, match=rf"eu-central-1: it rejects the credentials \({code}\)"):
        client(url=server.url).check()
    assert len(server.seen) == 1


@pytest.mark.parametrize(("status", "code"), [(400, "ThrottlingException"), (500, "InternalServiceException")])
def test_registry_that_stays_down_is_an_infrastructure_error(server: FakeServer, status: int, code: str) -> None:
    server.answer("/", (status, {"__type": code, "message": "later"}))

    with pytest.raises(InfrastructureError, match=f"it responded with {code}"):
        client(url=server.url).schema("glue", ANY_ID)
    assert len(server.seen) == 2


def test_closed_registry_port_is_an_infrastructure_error(server: FakeServer) -> None:
    server.socket.close()

    with pytest.raises(InfrastructureError, match="does not respond"):
        client(url=server.url).check()


def test_response_without_schema_is_an_infrastructure_error(server: FakeServer) -> None:
    server.answer("/", (200, {"SchemaVersionId": ANY_ID}))

    with pytest.raises(InfrastructureError, match="not a schema"):
        client(url=server.url).schema("glue", ANY_ID)


def test_missing_credentials_or_region_are_config_errors(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(ConfigError, match="NoCredentialsError"):
        client(url=server.url).check()
    assert not server.seen
    with pytest.raises(ConfigError, match=r"NoRegionError.*check registry\.region"):
        client(region=None)


def test_missing_boto3_names_the_extra(without_boto3: None) -> None:
    with pytest.raises(InstallationError, match=r"registry\.type: glue: boto3 is not installed; .*cdc-lake\[aws\]"):
        open_registry(RegistryConfig(type="glue"))
