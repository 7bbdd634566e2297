"""The schema registry: the text behind a schema id.

Apicurio Registry, interface v3. Its ids live in two namespaces, content ids and global ids, and an id looked up in the
wrong one often names another table's schema; so the namespace is a setting, never a guess.
"""

from typing import Any, Literal, Protocol
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from cdc_lake.errors import InfrastructureError
from cdc_lake.events.schemas import inline

_RETRIED_STATUSES = (429, 500, 502, 503, 504)


class Registry(Protocol):
    """What bronze asks of a registry."""

    @property
    def name(self) -> str:
        """A name for files and messages, without credentials."""

    @property
    def namespace(self) -> str:
        """The namespace its ids are in."""

    def text(self, schema_id: int) -> str | None:
        """The self-contained schema text of an id; none when the registry says that there is no such id.

        Raises:
            InfrastructureError: the registry does not answer.
        """


class ApicurioRegistry:
    """Apicurio Registry 3.

    Args:
        url: up to and without `/apis`.
        ids: the namespace of the ids in the frames.
        timeout_seconds: for one request.
        attempts: requests in all before the registry counts as down.
    """

    def __init__(self, url: str, *, ids: Literal["content", "global"], timeout_seconds: float, attempts: int) -> None:
        self.name = "apicurio"
        self.namespace = f"{ids}Id"
        self._url = url
        self._base = f"{url}/apis/registry/v3"
        self._timeout = timeout_seconds
        self._session = requests.Session()
        retry = Retry(total=attempts - 1, backoff_factor=0.2, status_forcelist=_RETRIED_STATUSES, redirect=0)
        self._session.mount(url, HTTPAdapter(max_retries=retry))

    def text(self, schema_id: int) -> str | None:
        """The text of an id, with every schema it refers to written into it.

        A text by content id is not self-contained, and the registry does not dereference content ids, so its references
        are followed here, recursively.
        """
        path = f"ids/{self.namespace}s/{schema_id}"
        answer = self._get(path)
        if answer is None:
            return None
        references = self._get(f"{path}/references")
        referenced: dict[tuple[str, str, str], str] = {}
        self._follow(references.json() if references is not None else [], referenced)
        return inline(answer.text, list(referenced.values())) if referenced else answer.text

    def check(self) -> None:
        """See that the registry answers.

        Raises:
            InfrastructureError: it does not.
        """
        self._get("system/info")

    def _follow(self, references: list[dict[str, Any]], found: dict[tuple[str, str, str], str]) -> None:
        for reference in references:
            group = reference.get("groupId") or "default"
            coordinates = (group, reference["artifactId"], reference["version"])
            if coordinates in found:
                continue
            path = "groups/{}/artifacts/{}/versions/{}".format(*(quote(part, safe="") for part in coordinates))
            content = self._get(f"{path}/content")
            if content is None:
                raise self._down(f"it refers to {coordinates} and does not have it")
            found[coordinates] = content.text
            deeper = self._get(f"{path}/references")
            self._follow(deeper.json() if deeper is not None else [], found)

    def _get(self, path: str) -> requests.Response | None:
        try:
            answer = self._session.get(f"{self._base}/{path}", timeout=self._timeout, allow_redirects=False)
        except requests.RequestException as exc:
            raise self._down(f"it does not answer ({type(exc).__name__})") from exc
        if answer.status_code == requests.codes.not_found:
            return None
        if answer.status_code != requests.codes.ok:
            raise self._down(f"it answered {answer.status_code} for {path}")
        return answer

    def _down(self, what: str) -> InfrastructureError:
        return InfrastructureError(
            f"schema registry at {self._url}",
            what,
            "see that it runs and can be reached from here, then run again; nothing was committed",
        )
