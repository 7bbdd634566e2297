"""Confluent's Schema Registry, and others that answer as it does, by Confluent's own client."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import quote

import httpx2 as httpx
from confluent_kafka.schema_registry import RegisteredSchema as RegisteredVersion
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError

from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.registries.access import (
    BACKOFF_SECONDS,
    MAX_ANSWER_BYTES,
    MAX_BACKOFF_SECONDS,
    Anonymous,
    Credentials,
    Endpoint,
    Patience,
)
from cdc_lake.registries.registry import RegisteredSchema, is_id, referenced_texts, self_contained
from cdc_lake.registries.subjects import Level, Version, incompatible

_NOT_TAKEN = (409, 422)
"""What a schema is answered that is incompatible, or none."""

T = TypeVar("T")


class ConfluentRegistry:
    """Confluent's Schema Registry; Apicurio's `ccompat` interface, or another of the kind.

    Args:
        endpoint: all that is in front of `/schemas` and `/subjects`.
        name: `confluent` or `ccompat`.
        context: the schema context whose ids are meant; the default one when there is none.
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
        self._credentials = credentials or Anonymous()
        self._has_guids = name == "confluent"
        self._context = f":.{context}:" if context else None
        self._client = self._opened()
        self._patience = Patience(endpoint.down, endpoint.lookup_seconds)

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        """See `Registry`."""
        if kind == "id" and is_id(kind, schema_id):
            return self._patience.ask(lambda: self._look_up(self._client.get_schema, int(schema_id), self._context))
        if kind == "guid" and self._has_guids and is_id(kind, schema_id):
            return self._patience.ask(lambda: self._look_up(self._client.get_schema_by_guid, schema_id))
        return None

    def check(self) -> None:
        """See `Registry`."""
        if self._patience.once(lambda: self._ask(self._client.get_schema_types)) is None:
            raise ConfigError(
                f"schema registry at {self._endpoint.url}",
                "there is no registry that answers as Confluent's does (404 for schemas/types)",
                "see registry.url, of Apicurio's ccompat up to `/apis/ccompat/v7`, and registry.type",
            )

    def subjects(self) -> list[str]:
        """See `Subjects`."""
        found = self._ask(self._client.get_subjects, subject_prefix=self._context) or []
        return sorted(name.removeprefix(self._context or "") for name in found)

    def versions(self, subject: str) -> list[str]:
        """See `Subjects`."""
        return [str(number) for number in self._ask(self._client.get_versions, self._in_context(subject)) or []]

    def version(self, subject: str, number: str | None = None) -> Version | None:
        """See `Subjects`."""
        found = self._ask(self._client.get_version, self._in_context(subject), number or "latest")
        return None if found is None else self._numbered(found, self._text(found.schema))

    def level(self, subject: str) -> Level:
        """See `Subjects`."""
        get = self._client.get_compatibility
        return cast(Level, self._ask(get, self._in_context(subject)) or self._ask(get) or "NONE")

    def set_level(self, subject: str, level: Level) -> None:
        """See `Subjects`."""
        self._ask(self._client.set_compatibility, self._in_context(subject), level)

    def problems(self, subject: str, text: str) -> Sequence[str] | None:
        """See `Subjects`."""
        named = quote(self._in_context(subject), safe="")
        path = f"compatibility/subjects/{named}/versions?verbose=true"

        def compatibility() -> list[str] | None:  # the client's own question drops what the registry says
            answer = self._client._rest_client.post(path, body={"schema": text, "schemaType": "AVRO"})
            return None if answer["is_compatible"] else [str(one) for one in answer.get("messages") or []]

        return self._send(subject, compatibility)

    def register(self, subject: str, text: str) -> Version:
        """See `Subjects`."""
        named, schema = self._in_context(subject), Schema(text, "AVRO")
        self._send(subject, self._client.register_schema, named, schema)
        found = self._ask(self._client.lookup_schema, named, schema)
        if found is None:
            raise self._endpoint.down(f"it does not have the schema of {subject} that it was just given")
        return self._numbered(found, text)

    def _in_context(self, subject: str) -> str:
        return f"{self._context or ''}{subject}"

    def _numbered(self, found: RegisteredVersion, text: str) -> Version:
        if found.schema_id is None:
            raise self._endpoint.down("its answer is not what a registry answers")
        return Version(str(found.version), text, "id", found.schema_id)

    def _look_up(self, get: Callable[..., Schema], *what: Any) -> RegisteredSchema | None:
        schema = self._ask(get, *what)
        if schema is None:
            return None
        text = self._text(schema)
        schema_type = schema.schema_type or "AVRO"
        if schema_type != "AVRO":
            return RegisteredSchema(text, schema_type)
        return RegisteredSchema(self_contained(text, referenced_texts(self._references(schema), self._referenced)))

    def _references(self, schema: Schema) -> list[tuple[str, int]]:
        return [self._coordinates(reference) for reference in schema.references or []]

    def _coordinates(self, reference: SchemaReference) -> tuple[str, int]:
        subject, version = reference.subject, reference.version
        if not isinstance(subject, str) or not isinstance(version, int):
            raise self._endpoint.down("its references are not what a registry answers")
        return subject if subject.startswith(":.") else f"{self._context or ''}{subject}", version

    def _referenced(self, coordinates: tuple[str, int]) -> tuple[str, list[tuple[str, int]]]:
        subject, version = coordinates
        found = self._ask(self._client.get_version, subject, version, deleted=True)
        if found is None:
            raise self._endpoint.down(
                f"one of its schemas refers to version {version} of the subject {subject}, and it does not have that"
            )
        return self._text(found.schema), self._references(found.schema)

    def _text(self, schema: Schema) -> str:
        if not isinstance(schema.schema_str, str):
            raise self._endpoint.down("its answer is not a schema, so something else answers there")
        return schema.schema_str

    def _ask(self, question: Callable[..., T], *what: Any, **how: Any) -> T | None:
        """What the client returns; none for 404."""
        try:
            try:
                return question(*what, **how)
            except SchemaRegistryError as exc:
                if exc.http_status_code != httpx.codes.UNAUTHORIZED or not self._credentials.renew():
                    raise
                return question(*what, **how)
        except SchemaRegistryError as exc:
            if exc.http_status_code == httpx.codes.NOT_FOUND:
                return None
            raise self._endpoint.failed(exc.http_status_code, question.__name__) from exc
        except httpx.HTTPError as exc:
            raise self._endpoint.down(f"it does not answer ({type(exc).__name__})") from exc
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as exc:
            raise self._endpoint.down("its answer is not what a registry answers") from exc

    def _send(self, subject: str, question: Callable[..., T], *what: Any) -> T | None:
        """The same of a question that holds a schema, which the registry may not take."""
        try:
            return self._ask(question, *what)
        except InfrastructureError as exc:
            said = exc.__cause__
            if isinstance(said, SchemaRegistryError) and said.http_status_code in _NOT_TAKEN:
                raise incompatible(subject, [said.error_message]) from said
            raise

    def _opened(self) -> SchemaRegistryClient:
        endpoint = self._endpoint
        settings = {
            "url": endpoint.url,
            "timeout": endpoint.timeout_seconds,
            "max.retries": endpoint.attempts - 1,
            "retries.wait.ms": int(BACKOFF_SECONDS * 1000),
            "retries.max.wait.ms": int(MAX_BACKOFF_SECONDS * 1000),
            "proxy": endpoint.proxy.get_secret_value() if endpoint.proxy else None,
            "ssl.ca.location": endpoint.tls.ca,
            "ssl.certificate.location": endpoint.tls.cert,
            "ssl.key.location": endpoint.tls.key,
        }
        client = SchemaRegistryClient({name: value for name, value in settings.items() if value is not None})
        # The client has no setting for a limit, for headers, or for tokens other than Confluent Cloud's.
        session = client._rest_client.session
        session.headers.update({"Accept-Encoding": "identity", **endpoint.headers})
        session.event_hooks = {"request": [self._authorized], "response": [self._limited]}
        return client

    def _authorized(self, request: httpx.Request) -> None:
        header = self._credentials.authorization()
        if header is not None:
            request.headers["Authorization"] = header

    def _limited(self, response: httpx.Response) -> None:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise self._endpoint.down("its answer is compressed, which was not asked for")
        response.stream = _Limited(response.stream, self._endpoint)


class _Limited(httpx.SyncByteStream):
    """The bytes of an answer, up to what is read of one."""

    def __init__(self, stream: Any, endpoint: Endpoint) -> None:
        self._stream = stream
        self._endpoint = endpoint

    def __iter__(self) -> Iterator[bytes]:
        read = 0
        for chunk in self._stream:
            read += len(chunk)
            if read > MAX_ANSWER_BYTES:
                raise self._endpoint.down(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
            yield chunk

    def close(self) -> None:
        self._stream.close()
