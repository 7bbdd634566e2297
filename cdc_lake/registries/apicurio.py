"""Apicurio Registry, by its own REST interface, version 3 or 2.

Texts by content id are not self-contained, and the registry does not dereference content ids, so references are
followed here, the same way for every kind of id.
"""

import json
import re
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import quote, unquote

from cdc_lake.errors import ConfigError
from cdc_lake.registries.access import Anonymous, Credentials, Endpoint, HttpClient, Patience
from cdc_lake.registries.registry import RegisteredSchema, referenced_texts, self_contained

_NAMESPACES = {"auto": ("contentId", "globalId"), "content": ("contentId",), "global": ("globalId",)}
_IDS = {"contentId": r"[0-9]{1,19}", "globalId": r"[0-9]{1,19}", "contentHash": r"[0-9A-Fa-f]{1,128}"}
_PLURALS = {"contentId": "contentIds", "globalId": "globalIds", "contentHash": "contentHashes"}
_VERSION = re.compile(r"(?!latest$)(?!\.*$)[A-Za-z0-9._+-]{1,256}")
"""Neither `latest` nor `branch=…`, whose meaning changes; nor a step up the path."""
_VERSIONED_PATH = re.compile(r"(.*)/apis/registry/(v[23])")
_JSON_SCHEMA_KEYS = frozenset({"$schema", "$id", "$ref", "properties", "oneOf", "anyOf", "allOf"})
_JSON_SCHEMA_TYPES = ("object", "integer", "number")
_PROTOBUF = re.compile(r"^\s*(syntax|edition|package|import|option|message|enum)\b", re.MULTILINE)


class ApicurioRegistry:
    """Apicurio Registry.

    Args:
        endpoint: its URL up to and without `/apis`, then `check` finds out the newest version of its interface; or up
            to `/apis/registry/v2` or `v3`.
        ids: what bare numbers in frames are.
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
        versioned = _VERSIONED_PATH.fullmatch(endpoint.url)
        self._version = versioned[2] if versioned else None
        self._endpoint = replace(endpoint, url=versioned[1]) if versioned else endpoint
        self._http = HttpClient(self._endpoint, credentials or Anonymous())
        self._patience = Patience()

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        """See `Registry`."""
        path = _path(kind, schema_id)
        return None if path is None else self._patience.ask(lambda: self._look_up(path, kind))

    def check(self) -> None:
        """See `Registry`."""
        for version in (self._version,) if self._version else ("v3", "v2"):
            if self._http.get_json(f"apis/registry/{version}/search/artifacts?limit=1") is not None:
                self._version = version
                return
        raise ConfigError(
            f"schema registry at {self._endpoint.url}",
            f"there is no Apicurio Registry ({self._version or 'neither v3 nor v2'})",
            "see registry.url, which is without `/apis` or up to `/apis/registry/v2` or `v3`, and registry.type",
        )

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
            raise self._endpoint.down(f"one of its schemas refers to {unquote(path)}, and it does not have that")
        return text, self._references(path)

    def _references(self, path: str) -> list[str]:
        """The paths of what the schema at a path refers to."""
        references = self._http.get_json(f"{self._base}/{path}/references") or []
        try:
            return [_path_of(reference) for reference in references]
        except (KeyError, TypeError, AttributeError) as exc:
            raise self._endpoint.down("its references are not what a registry answers") from exc

    def _content(self, path: str, kind: str) -> str | None:
        is_version = kind == "artifact" and self._base.endswith("v3")
        return self._http.get(f"{self._base}/{path}/content" if is_version else f"{self._base}/{path}")

    @property
    def _base(self) -> str:
        if self._version is None:
            self.check()
        return f"apis/registry/{self._version}"

    def _type_of(self, text: str) -> str:
        """What kind of schema a text is. The registry does not say for content ids."""
        try:
            content = json.loads(text)
        except RecursionError:
            return "AVRO"  # whose reader refuses it
        except ValueError:
            if _PROTOBUF.search(text) and not text.lstrip().startswith("<"):
                return "PROTOBUF"
            raise self._endpoint.down("its answer is not a schema, so something else answers there") from None
        if not isinstance(content, str | list | dict):
            raise self._endpoint.down("its answer is not a schema, so something else answers there")
        is_json = isinstance(content, dict) and (
            not _JSON_SCHEMA_KEYS.isdisjoint(content) or content.get("type") in (None, *_JSON_SCHEMA_TYPES)
        )
        return "JSON" if is_json else "AVRO"


def _path(kind: str, schema_id: str) -> str | None:
    """Where a schema is below the interface; none for an id that is not one. Ids come out of records: anything."""
    if kind in _IDS:
        return f"ids/{_PLURALS[kind]}/{schema_id}" if re.fullmatch(_IDS[kind], schema_id) else None
    parts = [unquote(part) for part in schema_id.split("/")]
    if kind != "artifact" or len(parts) != 3 or not _VERSION.fullmatch(parts[2]):
        return None
    if any(part in ("", ".", "..") for part in parts):
        return None
    return "groups/{}/artifacts/{}/versions/{}".format(*(quote(part, safe="") for part in parts))


def _path_of(reference: dict[str, Any]) -> str:
    coordinates = (reference.get("groupId") or "default", reference["artifactId"], reference["version"])
    path = _path("artifact", "/".join(quote(part, safe="") for part in coordinates))
    if path is None:
        raise KeyError(str(coordinates))
    return path
