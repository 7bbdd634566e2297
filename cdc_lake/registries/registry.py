"""The contract of a schema registry: look up a schema by its id; and what the registries of all kinds share.

An id has a kind, because a number alone is ambiguous: Apicurio's *content ids* and *global ids* and Confluent's ids are
separate sequences, and the same number often names another table's schema.
"""

import re
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar
from urllib.parse import quote, unquote

from cdc_lake.decode.schema_texts import inline
from cdc_lake.errors import CdcLakeError
from cdc_lake.registries.http_client import BACKOFF_SECONDS

_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_VERSION = re.compile(r"(?!latest$)(?!\.*$)[A-Za-z0-9._+-]{1,256}")
"""Excludes `latest` and `branch=…`, whose meaning changes, and `..`."""
_IDS = {
    "id": re.compile(r"[0-9]{1,10}"),
    "guid": re.compile(_UUID),
    "contentId": re.compile(r"[0-9]{1,19}"),
    "globalId": re.compile(r"[0-9]{1,19}"),
    "contentHash": re.compile(r"[0-9A-Fa-f]{1,128}"),
    "glue": re.compile(_UUID),
}
"""The form of ids without parts, by kind."""
_MAX_NAME_BYTES = 255
"""Ids become file names in the lake."""

MAX_REFERENCES, MAX_REFERENCED_CHARACTERS = 200, 8 << 20
"""Limits of a schema's references. Beyond them the schema stays incomplete, and its records are quarantined."""

_LAG_WAITS_SECONDS = (0.2, 0.6)
_LAG_PERIOD_SECONDS = 10.0
_REQUESTS_PER_LOOKUP = 3
"""A lookup may take as long as this many requests that all time out."""

T = TypeVar("T")
Reference = TypeVar("Reference", bound=Hashable)


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema from a registry.

    Attributes:
        text: for Avro with all referenced schemas inlined.
        type: AVRO, JSON or PROTOBUF.
    """

    text: str
    type: str = "AVRO"


def is_id(kind: str, schema_id: str) -> bool:
    """Whether an id has the form of its kind. Ids come from records; a valid one is safe in file names and URLs."""
    if kind != "artifact":
        return kind in _IDS and _IDS[kind].fullmatch(schema_id) is not None
    parts = [unquote(part) for part in schema_id.split("/")]
    is_short = len(quote(schema_id, safe="")) <= _MAX_NAME_BYTES
    return is_short and len(parts) == 3 and bool(_VERSION.fullmatch(parts[2])) and {"", ".", ".."}.isdisjoint(parts)


class Registry(Protocol):
    """What bronze needs of a registry."""

    @property
    def name(self) -> str:
        """Its name in files and messages, without credentials."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The kinds of id that a bare number in a frame may have, most likely first."""

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        """The schema of an id; none if the registry does not have it or does not know ids of that kind.

        Args:
            kind: `contentId`, `globalId`, `contentHash` or `artifact` (Apicurio), `id` or `guid` (Confluent), `glue`.
            schema_id: digits, a hash or a UUID; for `artifact` group, id and version, each percent-encoded, separated
                by slashes.

        Raises:
            ConfigError: the registry rejects the credentials.
            InfrastructureError: the registry does not respond, or not as a registry.
        """

    def check(self) -> None:
        """Check that the registry responds and accepts the credentials.

        Raises:
            ConfigError: it rejects the credentials, or is another kind of server.
            InfrastructureError: it does not respond.
        """


class RetryPolicy:
    """Limits the time of lookups, and retries those that find nothing: replicas of a registry may lag.

    After lookups that waited and found nothing, others do not wait for some seconds. So a topic full of garbage does
    not delay a run by one wait per unknown id.

    Args:
        unavailable_error: makes the error of a registry that does not respond.
        seconds: time limit of one lookup, with all its requests.
    """

    def __init__(
        self,
        unavailable_error: Callable[[str], CdcLakeError],
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._unavailable_error = unavailable_error
        self._seconds = seconds
        self._sleep = sleep
        self._waited_at = -_LAG_PERIOD_SECONDS

    def call(self, look_up: Callable[[], T]) -> T:
        """Call `look_up` on a thread of its own, because reads of a server that sends byte by byte never time out.

        Raises:
            InfrastructureError: it takes too long.
        """
        future: Future[T] = Future()

        def wait() -> None:
            try:
                future.set_result(look_up())
            except BaseException as exc:
                future.set_exception(exc)

        threading.Thread(target=wait, daemon=True).start()
        try:
            return future.result(self._seconds)
        except TimeoutError as exc:
            if future.done():
                raise
            raise self._unavailable_error(f"a lookup took more than {self._seconds:g} s") from exc

    def call_until_found(self, look_up: Callable[[], T | None]) -> T | None:
        """Call `look_up`, and again after short waits while it returns none.

        Raises:
            InfrastructureError: see `call`.
        """
        answer = self.call(look_up)
        if answer is not None or time.monotonic() - self._waited_at < _LAG_PERIOD_SECONDS:
            return answer
        for seconds in _LAG_WAITS_SECONDS:
            self._sleep(seconds)
            answer = self.call(look_up)
            if answer is not None:
                return answer
        self._waited_at = time.monotonic()
        return None


def lookup_seconds(timeout_seconds: float, attempts: int) -> float:
    """The time limit of one lookup, from the settings of a request."""
    return _REQUESTS_PER_LOOKUP * attempts * (timeout_seconds + BACKOFF_SECONDS)


def referenced_texts(
    references: Iterable[Reference], fetch: Callable[[Reference], tuple[str, Iterable[Reference]]]
) -> list[str]:
    """The texts of direct and indirect references, each once, up to the limits of number and size.

    Args:
        fetch: returns a reference's text and its own references.
    """
    texts: dict[Reference, str] = {}
    ahead = list(references)
    while ahead and len(texts) < MAX_REFERENCES and sum(map(len, texts.values())) < MAX_REFERENCED_CHARACTERS:
        reference = ahead.pop()
        if reference not in texts:
            texts[reference], deeper = fetch(reference)
            ahead.extend(deeper)
    return list(texts.values())


def self_contained(text: str, referenced: list[str]) -> str:
    """An Avro text with the referenced texts inlined.

    If one of them is not an Avro schema, the text stays as it is: its records fail to decode and are quarantined.
    """
    try:
        return inline(text, referenced) if referenced else text
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text
