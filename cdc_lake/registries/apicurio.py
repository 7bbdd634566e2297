"""Apicurio Registry through its own REST API, version 3 or 2.

Schemas by content id are not self-contained, and the registry does not dereference them, so this client follows the
references of every kind of id.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal
from urllib.parse import quote, unquote

from cdc_lake.errors import ConfigError
from cdc_lake.registries.credentials import Anonymous
from cdc_lake.registries.http_client import Credentials, Endpoint, HttpClient
from cdc_lake.registries.registry import (
    RegisteredSchema,
    RetryPolicy,
    is_id,
    lookup_seconds,
    referenced_texts,
    self_contained,
)
from cdc_lake.registries.subjects import Level, SubjectVersion, incompatible_error

_NAMESPACES = {"auto": ("contentId", "globalId"), "content": ("contentId",), "global": ("globalId",)}
_PLURALS = {"contentId": "contentIds", "globalId": "globalIds", "contentHash": "contentHashes"}
_VERSIONED_PATH = re.compile(r"(.*)/apis/registry/(v[23])")
_JSON_SCHEMA_KEYS = frozenset({"$schema", "$id", "$ref", "properties", "oneOf", "anyOf", "allOf"})
_JSON_SCHEMA_TYPES = ("object", "integer", "number")
_COMPATIBILITY = "COMPATIBILITY"
_BAD_REQUEST, _NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 400, 404, 409, 422
_PAGE = 500
_PROTOBUF = re.compile(r"^\s*(syntax|edition|package|import|option|message|enum)\b", re.MULTILINE)


class ApicurioRegistry:
    """Apicurio Registry.

    Args:
        endpoint: its URL without `/apis`, so that `check` finds its newest API version; or up to `/apis/registry/v2`
            or `v3`.
        ids: the kind of bare numbers in frames.
    """

    name = "apicurio"

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: Credentials | None = None,
        *,
        ids: Literal["auto", "content", "global"] = "auto",
    ) -> None:
        self.namespaces = _NAMESPACES[ids]
        self._ids = ids
        versioned = _VERSIONED_PATH.fullmatch(endpoint.url)
        self._version = versioned[2] if versioned else None
        self._endpoint = replace(endpoint, url=versioned[1]) if versioned else endpoint
        self._http = HttpClient(self._endpoint, credentials or Anonymous())
        self._retry = RetryPolicy(
            self._endpoint.unavailable_error, lookup_seconds(endpoint.timeout_seconds, endpoint.attempts)
        )

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        path = _path(kind, schema_id)
        return None if path is None else self._retry.call_until_found(lambda: self._look_up(path, kind))

    def check(self) -> None:
        for version in (self._version,) if self._version else ("v3", "v2"):
            path = f"apis/registry/{version}/search/artifacts?limit=1"
            if self._retry.call(partial(self._http.get_json, path)) is not None:
                self._version = version
                return
        raise ConfigError(
            f"schema registry at {self._endpoint.url}",
            f"the server is not an Apicurio Registry ({self._version or 'neither v3 nor v2'})",
            "check registry.type, and registry.url, which ends before `/apis` or with `/apis/registry/v2` or `v3`",
        )

    def subjects(self) -> list[str]:
        parameter, name = ("groupId", "artifactId") if self._is_newest else ("group", "id")
        artifacts = self._listed("search/artifacts", "artifacts", f"{parameter}=default&")
        return sorted(self._part(artifact, name) for artifact in artifacts)

    def versions(self, subject: str) -> list[str]:
        return [str(self._part(version, "version")) for version in self._versions(subject)]

    def version(self, subject: str, number: str | None = None) -> SubjectVersion | None:
        versions = {str(self._part(version, "version")): version for version in self._versions(subject)}
        newest = next(reversed(versions), None)
        metadata = versions.get(number or newest or "")
        if metadata is None:
            return None
        text = self._content(f"{_artifact(subject)}/versions/{quote(str(metadata['version']), safe='')}", "artifact")
        return None if text is None else self._numbered(metadata, text)

    def level(self, subject: str) -> Level:
        group = ["groups/default/rules"] if self._is_newest else []
        for rules in (f"{_artifact(subject)}/rules", *group, "admin/rules"):
            rule = self._http.get_json(f"{self._base}/{rules}/{_COMPATIBILITY}")
            if rule is not None:
                level: Level = self._part(rule, "config")
                return level
        return "NONE"

    def set_level(self, subject: str, level: Level) -> None:
        rules = f"{self._base}/{_artifact(subject)}/rules"
        rule = {"ruleType" if self._is_newest else "type": _COMPATIBILITY, "config": level}
        status, _ = self._http.send("POST", rules, rule)
        if status == _CONFLICT:  # the rule exists
            status, _ = self._http.send("PUT", f"{rules}/{_COMPATIBILITY}", rule)
        if status >= _BAD_REQUEST:
            raise self._endpoint.status_error(status, rules)

    def problems(self, subject: str, text: str) -> Sequence[str] | None:
        path = f"{self._base}/{_artifact(subject)}"
        if self._is_newest:
            status, answer = self._http.send("POST", f"{path}/versions?dryRun=true", _content(text))
        else:
            status, answer = self._http.send("PUT", f"{path}/test", text)
        if status < _BAD_REQUEST or status == _NOT_FOUND:
            return None
        return self._messages(status, answer, path)

    def register(self, subject: str, text: str) -> SubjectVersion:
        path = f"{self._base}/groups/default/artifacts"
        if self._is_newest:
            artifact = {"artifactId": subject, "artifactType": "AVRO", "firstVersion": _content(text)}
            status, answer = self._http.send("POST", f"{path}?ifExists=FIND_OR_CREATE_VERSION", artifact)
        else:
            headers = {"X-Registry-ArtifactId": subject, "X-Registry-ArtifactType": "AVRO"}
            status, answer = self._http.send("POST", f"{path}?ifExists=RETURN_OR_UPDATE", text, headers)
        if status >= _BAD_REQUEST:
            raise incompatible_error(subject, self._messages(status, answer, path))
        return self._numbered(self._part(answer, "version") if self._is_newest else answer, text)

    def _versions(self, subject: str) -> list[dict[str, Any]]:
        """An artifact's versions, oldest first."""
        versions = self._listed(f"{_artifact(subject)}/versions", "versions")
        return sorted(versions, key=lambda version: int(self._part(version, "globalId")))

    def _listed(self, path: str, member: str, query: str = "") -> list[dict[str, Any]]:
        """All pages of a listing; empty for 404."""
        entries: list[dict[str, Any]] = []
        while True:
            page = self._http.get_json(f"{self._base}/{path}?{query}limit={_PAGE}&offset={len(entries)}")
            listed = [] if page is None else self._part(page, member)
            entries.extend(listed)
            if len(listed) < _PAGE:
                return entries

    def _numbered(self, metadata: dict[str, Any], text: str) -> SubjectVersion:
        kind: Literal["contentId", "globalId"] = "contentId" if self._is_newest else "globalId"
        if self._ids != "auto":
            kind = "contentId" if self._ids == "content" else "globalId"
        return SubjectVersion(str(self._part(metadata, "version")), text, kind, int(self._part(metadata, kind)))

    def _messages(self, status: int, answer: Any, path: str) -> list[str]:
        """The registry's reasons for rejecting a text."""
        if status not in (_BAD_REQUEST, _CONFLICT, _UNPROCESSABLE):
            raise self._endpoint.status_error(status, path)
        content = answer if isinstance(answer, dict) else {}
        causes = [f"{cause.get('description')} at {cause.get('context')}" for cause in content.get("causes") or []]
        return causes or [str(content.get("title") or content.get("message") or f"it responded with {status}")]

    def _part(self, answer: Any, name: str) -> Any:
        try:
            return answer[name]
        except (KeyError, TypeError) as exc:
            raise self._endpoint.unavailable_error("its response is not a registry's") from exc

    @property
    def _is_newest(self) -> bool:
        return self._base.endswith("v3")

    def _look_up(self, path: str, kind: str) -> RegisteredSchema | None:
        text = self._content(path, kind)
        if text is None:
            return None
        schema_type = self._type_of(text)
        if schema_type != "AVRO":
            return RegisteredSchema(text, schema_type)
        return RegisteredSchema(self_contained(text, referenced_texts(self._references(path), self._referenced)))

    def _referenced(self, path: str) -> tuple[str, list[str]]:
        text = self._content(path, "artifact")
        if text is None:
            raise self._endpoint.unavailable_error(f"one of its schemas refers to {unquote(path)}, which it lacks")
        return text, self._references(path)

    def _references(self, path: str) -> list[str]:
        references = self._http.get_json(f"{self._base}/{path}/references") or []
        try:
            return [_path_of(reference) for reference in references]
        except (KeyError, TypeError, AttributeError) as exc:
            raise self._endpoint.unavailable_error("its response about references is not a registry's") from exc

    def _content(self, path: str, kind: str) -> str | None:
        is_version = kind == "artifact" and self._is_newest
        return self._http.get(f"{self._base}/{path}/content" if is_version else f"{self._base}/{path}")

    @property
    def _base(self) -> str:
        if self._version is None:
            self.check()
        return f"apis/registry/{self._version}"

    def _type_of(self, text: str) -> str:
        """The type of a schema's text, which the registry does not return for content ids."""
        try:
            content = json.loads(text)
        except RecursionError:
            return "AVRO"  # its reader rejects it
        except ValueError:
            if _PROTOBUF.search(text) and not text.lstrip().startswith("<"):
                return "PROTOBUF"
            raise self._endpoint.unavailable_error("its response is not a schema: it may be another server") from None
        if not isinstance(content, str | list | dict):
            raise self._endpoint.unavailable_error("its response is not a schema: it may be another server")
        is_json = isinstance(content, dict) and (
            not _JSON_SCHEMA_KEYS.isdisjoint(content) or content.get("type") in (None, *_JSON_SCHEMA_TYPES)
        )
        return "JSON" if is_json else "AVRO"


def _artifact(subject: str) -> str:
    return f"groups/default/artifacts/{quote(subject, safe='')}"


def _content(text: str) -> dict[str, Any]:
    return {"content": {"content": text, "contentType": "application/json"}}


def _path(kind: str, schema_id: str) -> str | None:
    """A schema's path below the API's; none for an invalid id."""
    if kind not in (*_PLURALS, "artifact") or not is_id(kind, schema_id):
        return None
    if kind in _PLURALS:
        return f"ids/{_PLURALS[kind]}/{schema_id}"
    parts = [unquote(part) for part in schema_id.split("/")]
    return "groups/{}/artifacts/{}/versions/{}".format(*(quote(part, safe="") for part in parts))


def _path_of(reference: dict[str, Any]) -> str:
    coordinates = (reference.get("groupId") or "default", reference["artifactId"], reference["version"])
    path = _path("artifact", "/".join(quote(part, safe="") for part in coordinates))
    if path is None:
        raise KeyError(str(coordinates))
    return path
