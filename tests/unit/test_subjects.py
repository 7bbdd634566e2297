"""Registering schemas at servers that respond like Confluent's, and what Glue does not support."""

import json
from typing import Any

import pytest
from support.registry_server import FakeServer, a_record

from cdc_lake.config import RegistryConfig
from cdc_lake.errors import ConfigError, IncompatibleSchemaError, InfrastructureError, UnsupportedError
from cdc_lake.registries import open_subjects
from cdc_lake.registries.subjects import Subjects, check_compatible, register_compatible

pytestmark = pytest.mark.core

INT, LONG = (json.dumps(a_record("Value", kind)) for kind in ("int", "long"))
OF_VALUE = "/subjects/t-value/versions"
COMPATIBLE = "/compatibility/subjects/t-value/versions?verbose=true"


def subjects(server: FakeServer, **more: Any) -> Subjects:
    server.answer("/schemas/types", (200, ["AVRO"]))
    server.answer("/apis/registry/v3/search/artifacts?limit=1", (200, {"artifacts": []}))
    settings = RegistryConfig(type=more.pop("type", "confluent"), url=server.url, timeout_seconds=5, attempts=1, **more)
    return open_subjects(settings)


def version(text: str, number: int = 1, schema_id: int = 7) -> tuple[int, dict[str, Any]]:
    return 200, {"subject": "t-value", "version": number, "id": schema_id, "schema": text}


def test_refused_version_shows_our_and_the_registrys_reasons(server: FakeServer) -> None:
    server.answer(f"{OF_VALUE}/latest", version(LONG))
    server.answer(COMPATIBLE, (200, {"is_compatible": False, "messages": ["READER_FIELD_TYPE", "at v"]}))

    with pytest.raises(
        IncompatibleSchemaError, match=r"t-value: .*`v` was long and is int now; .*READER_FIELD_TYPE; at v"
    ):
        check_compatible(subjects(server), "t-value", INT)

    assert json.loads(dict(server.sent)[COMPATIBLE]) == {"schema": INT, "schemaType": "AVRO"}


def test_version_refused_at_registration_is_the_same_error(server: FakeServer) -> None:
    server.answer(OF_VALUE, (409, {"error_code": 409, "message": "not that one"}))

    with pytest.raises(IncompatibleSchemaError, match="not that one"):
        register_compatible(subjects(server), "t-value", INT)


def test_failing_registry_is_infrastructure_and_401_is_config(server: FakeServer) -> None:
    server.answer(OF_VALUE, (503, {}))
    with pytest.raises(InfrastructureError):
        register_compatible(subjects(server), "t-value", INT)

    server.required = {"Bearer other"}
    for kind in ("confluent", "apicurio"):
        with pytest.raises(ConfigError, match="rejects the credentials"):
            subjects(server, type=kind)


def test_unexpected_response_is_an_infrastructure_error(server: FakeServer) -> None:
    server.answer(COMPATIBLE, (200, {"never": "mind"}))
    artifact = "/apis/registry/v3/groups/default/artifacts/t-value"
    server.answer(f"{artifact}/versions?limit=500&offset=0", (200, {"never": "mind"}))
    server.answer(f"{artifact}/versions?dryRun=true", (418, "a teapot"))
    apicurio = subjects(server, type="apicurio")

    for question in (
        lambda: subjects(server).problems("t-value", INT),
        lambda: apicurio.versions("t-value"),
        lambda: apicurio.problems("t-value", INT),
    ):
        with pytest.raises(InfrastructureError):
            question()


def test_subjects_of_a_context_are_named_without_it(server: FakeServer) -> None:
    server.answer("/subjects?subjectPrefix=%3A.eu%3A", (200, [":.eu:t"]))
    server.answer("/config/%3A.eu%3At", (200, {"compatibilityLevel": "FULL"}))

    found = subjects(server, context="eu")

    assert found.subjects() == ["t"]
    assert found.level("t") == "FULL"


def test_subject_without_a_level_has_the_global_level(server: FakeServer) -> None:
    server.answer("/config", (200, {"compatibilityLevel": "FORWARD"}))

    assert subjects(server).level("t-value") == "FORWARD"


def test_key_keeps_the_oldest_id_of_its_layout(server: FakeServer) -> None:
    again = json.dumps(json.loads(INT) | {"doc": "now with a comment"})
    server.answer("/subjects/t-key/versions", (200, [1, 2, 3]))
    for number, text in enumerate((LONG, INT, again), 1):
        server.answer(f"/subjects/t-key/versions/{number}", version(text, number, 10 * number))

    assert register_compatible(subjects(server), "t-key", again).id == 20
    assert not server.sent


def test_registering_in_glue_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="cannot register schemas in Glue"):
        open_subjects(RegistryConfig(type="glue", region="eu-central-1"))
