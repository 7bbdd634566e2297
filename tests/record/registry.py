"""The registry's responses about schemas, unchanged."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import requests

from tests.support.wire import artifact_reference

_TIMEOUT_SECONDS: Final = 30.0


def schemas(registry: str, references: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each schema as the registry returns it, and the schemas that it refers to, by reference."""
    waiting, known = list(references), set()
    while waiting:
        reference = waiting.pop(0)
        if reference in known:
            continue
        known.add(reference)
        text, named = _schema(registry, reference)
        yield reference, {"text": text, "references": named}
        waiting += named.values()


def _schema(registry: str, reference: str) -> tuple[str, dict[str, str]]:
    """A schema's text, and references to the schemas that it names."""
    kind, _, name = reference.partition(":")
    if kind == "id":
        answer = _get(f"{registry}/apis/ccompat/v7/schemas/ids/{name}").json()
        named = answer.get("references") or []
        return answer["schema"], {
            one["name"]: artifact_reference("default", one["subject"], str(one["version"])) for one in named
        }
    api = f"{registry}/apis/registry/v3"
    if kind == "artifact":
        group, artifact, version = name.split("/")
        address = f"{api}/groups/{group}/artifacts/{artifact}/versions/{version}"
        text, named = _get(f"{address}/content").text, _get(f"{address}/references").json()
    else:
        address = f"{api}/ids/{kind}s/{name}"
        text, named = _get(address).text, _get(f"{address}/references").json()
    return text, {
        one["name"]: artifact_reference(one.get("groupId") or "default", one["artifactId"], str(one["version"]))
        for one in named
    }


def _get(address: str) -> requests.Response:
    answer = requests.get(address, timeout=_TIMEOUT_SECONDS)
    answer.raise_for_status()
    answer.encoding = "utf-8"
    return answer


def part_the_ids(registry: str) -> None:
    """Register one text twice, which uses up one global id and two content ids, so that no schema has two equal ids."""
    for _ in range(2):
        content = {"content": '"string"', "contentType": "application/json"}
        requests.post(
            f"{registry}/apis/registry/v3/groups/default/artifacts",
            params={"ifExists": "FIND_OR_CREATE_VERSION"},
            json={"artifactId": "nobody-s", "artifactType": "AVRO", "firstVersion": {"content": content}},
            timeout=_TIMEOUT_SECONDS,
        ).raise_for_status()
