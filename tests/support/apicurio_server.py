"""A separate Apicurio, which a test can wipe."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import requests

from cdc_lake.config import RegistryConfig
from cdc_lake.demo.servers.jvm_servers import Apicurio
from cdc_lake.demo.servers.server import Site, choose_ports
from cdc_lake.registries import open_registry
from cdc_lake.registries.registry import RegisteredSchema
from cdc_lake.spark.jars import EMBEDDED_PROFILE, Jar, cache_folder, lock_file, read_lock
from cdc_lake.spark.java import find_java
from support.one_server import started


class ApicurioServer:
    """A server that runs inside the context.

    Args:
        folder: an empty one.
        jars: jars that include the server (default: the embedded stack's).
    """

    def __init__(self, folder: Path, jars: Sequence[Jar] = ()) -> None:
        self._folder = folder
        jars = jars or read_lock(lock_file(EMBEDDED_PROFILE))
        self._server = Apicurio(Site(folder, choose_ports(folder), find_java(), jars, cache_folder()))
        self.address = self._server.address

    def __enter__(self) -> "ApicurioServer":
        self._process = started(self._server)
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()

    def wipe(self) -> None:
        """Delete all content, like a registry whose disk is lost: ids begin again."""
        self.__exit__()
        shutil.rmtree(self._folder / "registry")
        self.__enter__()


def register(
    address: str, name: str, text: str, kind: str = "AVRO", references: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Register a schema that refers to artifacts by their names in its text; the registry's response."""
    known_as = {"AVRO": "application/json", "JSON": "application/json", "PROTOBUF": "application/x-protobuf"}
    answer = requests.post(
        f"{address}/apis/registry/v2/groups/default/artifacts",
        params={"ifExists": "RETURN_OR_UPDATE"},
        headers={
            "X-Registry-ArtifactId": name,
            "X-Registry-ArtifactType": kind,
            "X-Registry-Version": "1",
            "Content-Type": "application/create.extended+json" if references else known_as[kind],
        },
        data=json.dumps(
            {
                "content": text,
                "references": [
                    {"groupId": "default", "artifactId": artifact, "version": "1", "name": type_name}
                    for artifact, type_name in references.items()
                ],
            }
        )
        if references
        else text,
        timeout=10,
    )
    assert answer.ok, answer.text
    ids: dict[str, Any] = answer.json()
    return ids


class ApicurioRegistry:
    """Like `converters.AnyIdRegistry`, but with a real Apicurio, which assigns the ids itself, from 1 on."""

    def __init__(self, server: ApicurioServer) -> None:
        self._server = server
        url = server.address
        self._registry = open_registry(RegistryConfig(type="apicurio", url=url, timeout_seconds=10))
        self.name, self.namespaces = self._registry.name, self._registry.namespaces

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        """See `Registry`."""
        return self._registry.schema(kind, schema_id)

    def put(self, reference: str, text: str) -> str:
        """Register a text; it must get the next id."""
        assert f"contentId:{register(self._server.address, reference, text)['contentId']}" == reference
        return reference

    def wipe(self) -> None:
        """Delete all content."""
        self._server.wipe()
