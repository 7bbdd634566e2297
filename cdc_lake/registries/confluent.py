"""Confluent's Schema Registry and compatible servers, through their REST API."""

from collections.abc import Sequence
from typing import Any, TypeVar, cast
from urllib.parse import quote

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

_MEDIA_TYPE = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
_BAD_REQUEST, _NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 400, 404, 409, 422
_REJECTED = (_CONFLICT, _UNPROCESSABLE)
"""Statuses for incompatible and invalid schemas."""

T = TypeVar("T")


class ConfluentRegistry:
    """Confluent's Schema Registry, Apicurio's `ccompat` API, or another compatible server.

    Args:
        endpoint: its URL without `/schemas` and `/subjects`.
        name: `confluent` or `ccompat`.
        context: the schema context of the ids; none for the default context.
    """

    namespaces = ("id",)

    def __init__(
        self,
        endpoint: Endpoint,
        credentials: Credentials | None = None,
        *,
        name: str = "confluent",
        context: str | None = None,
    ) -> None:
        # Ids are counted per context.
        self.name = f"{name}.{quote(context, safe='')}" if context else name
        self._endpoint = endpoint
        self._has_guids = name == "confluent"
        self._context = f":.{context}:" if context else ""
        self._http = HttpClient(endpoint, credentials or Anonymous())
        self._retry = RetryPolicy(
            endpoint.unavailable_error, lookup_seconds(endpoint.timeout_seconds, endpoint.attempts)
        )

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        if not is_id(kind, schema_id):
            return None
        if kind == "id":
            context = f"?subject={_quoted(self._context)}" if self._context else ""
            path = f"schemas/ids/{int(schema_id)}{context}"
        elif kind == "guid" and self._has_guids:
            path = f"schemas/guids/{schema_id}"
        else:
            return None
        return self._retry.call_until_found(lambda: self._look_up(path))

    def check(self) -> None:
        if self._retry.call(lambda: self._http.get_json("schemas/types")) is None:
            raise ConfigError(
                f"schema registry at {self._endpoint.url}",
                "the server is not a Confluent-compatible registry (404 for schemas/types)",
                "check registry.type, and registry.url, which for Apicurio's ccompat ends with `/apis/ccompat/v7`",
            )

    def subjects(self) -> list[str]:
        prefix = f"?subjectPrefix={_quoted(self._context)}" if self._context else ""
        return sorted(name.removeprefix(self._context) for name in self._list(f"subjects{prefix}", str))

    def versions(self, subject: str) -> list[str]:
        return [str(number) for number in self._list(f"{self._path(subject)}/versions", int)]

    def version(self, subject: str, number: str | None = None) -> SubjectVersion | None:
        answer = self._http.get_json(f"{self._path(subject)}/versions/{number or 'latest'}")
        return None if answer is None else self._numbered(answer, self._text(answer))

    def level(self, subject: str) -> Level:
        for path in (f"config/{_quoted(self._in_context(subject))}", "config"):
            answer = self._http.get_json(path)
            if answer is not None:
                return cast(Level, self._part(answer, "compatibilityLevel", str))
        return "NONE"

    def set_level(self, subject: str, level: Level) -> None:
        path = f"config/{_quoted(self._in_context(subject))}"
        status, _ = self._http.send("PUT", path, {"compatibility": level}, _MEDIA_TYPE)
        if status >= _BAD_REQUEST:
            raise self._endpoint.status_error(status, path)

    def problems(self, subject: str, text: str) -> Sequence[str] | None:
        answer = self._send(subject, f"compatibility/{self._path(subject)}/versions?verbose=true", text)
        if answer is None or self._part(answer, "is_compatible", bool):
            return None
        return [str(message) for message in answer.get("messages") or []]

    def register(self, subject: str, text: str) -> SubjectVersion:
        self._send(subject, f"{self._path(subject)}/versions", text)
        answer = self._send(subject, self._path(subject), text)
        if answer is None:
            raise self._endpoint.unavailable_error(f"it lacks the schema of {subject} that was just registered")
        return self._numbered(answer, text)

    def _in_context(self, subject: str) -> str:
        return f"{self._context}{subject}"

    def _path(self, subject: str) -> str:
        return f"subjects/{_quoted(self._in_context(subject))}"

    def _numbered(self, answer: Any, text: str) -> SubjectVersion:
        version, schema_id = (self._part(answer, name, int) for name in ("version", "id"))
        return SubjectVersion(str(version), text, "id", schema_id)

    def _look_up(self, path: str) -> RegisteredSchema | None:
        answer = self._http.get_json(path)
        if answer is None:
            return None
        text = self._text(answer)
        schema_type = answer.get("schemaType") or "AVRO"
        if schema_type != "AVRO":
            return RegisteredSchema(text, schema_type)
        return RegisteredSchema(self_contained(text, referenced_texts(self._references(answer), self._referenced)))

    def _references(self, answer: Any) -> list[tuple[str, int]]:
        references = answer.get("references") or []
        if not isinstance(references, list):
            raise self._endpoint.unavailable_error("its response is not a registry's")
        return [self._coordinates(reference) for reference in references]

    def _coordinates(self, reference: Any) -> tuple[str, int]:
        match reference:
            case {"subject": str(subject), "version": int(version)}:
                return subject if subject.startswith(":.") else self._in_context(subject), version
        raise self._endpoint.unavailable_error("its response about references is not a registry's")

    def _referenced(self, coordinates: tuple[str, int]) -> tuple[str, list[tuple[str, int]]]:
        subject, version = coordinates
        answer = self._http.get_json(f"subjects/{_quoted(subject)}/versions/{version}?deleted=true")
        if answer is None:
            raise self._endpoint.unavailable_error(
                f"one of its schemas refers to version {version} of the subject {subject}, which it lacks"
            )
        return self._text(answer), self._references(answer)

    def _text(self, answer: Any) -> str:
        match answer:
            case {"schema": str(text)}:
                return text
        raise self._endpoint.unavailable_error("its response is not a schema: it may be another server")

    def _part(self, answer: Any, name: str, expected: type[T]) -> T:
        if isinstance(answer, dict) and isinstance(value := answer.get(name), expected):
            return value
        raise self._endpoint.unavailable_error("its response is not a registry's")

    def _list(self, path: str, expected: type[T]) -> list[T]:
        """The list at a path; empty for 404."""
        answer = self._http.get_json(path)
        if answer is None:
            return []
        if not isinstance(answer, list) or not all(isinstance(item, expected) for item in answer):
            raise self._endpoint.unavailable_error("its response is not a registry's")
        return answer

    def _send(self, subject: str, path: str, text: str) -> Any:
        """Send a schema; the response's JSON, none for 404."""
        status, answer = self._http.send("POST", path, {"schema": text, "schemaType": "AVRO"}, _MEDIA_TYPE)
        if status in _REJECTED:
            raise incompatible_error(subject, [str(self._part(answer, "message", str))])
        if status == _NOT_FOUND:
            return None
        if status >= _BAD_REQUEST:
            raise self._endpoint.status_error(status, path)
        return answer


def _quoted(name: str) -> str:
    return quote(name, safe="")
