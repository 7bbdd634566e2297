"""The schema registry: the schema behind an id.

A number in a frame means nothing by itself: Apicurio's *content ids* and *global ids* and Confluent's ids count
separately, and an id looked up as one of another kind often names another table's schema. So an id has a kind.
"""

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar
from urllib.parse import quote, unquote

from cdc_lake.decode.schemas import inline

_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_VERSION = re.compile(r"(?!latest$)(?!\.*$)[A-Za-z0-9._+-]{1,256}")
"""Neither `latest` nor `branch=…`, whose meaning changes; nor a step up the path."""
_IDS = {
    "id": re.compile(r"[0-9]{1,10}"),
    "guid": re.compile(_UUID),
    "contentId": re.compile(r"[0-9]{1,19}"),
    "globalId": re.compile(r"[0-9]{1,19}"),
    "contentHash": re.compile(r"[0-9A-Fa-f]{1,128}"),
    "glue": re.compile(_UUID),
}
"""What an id can be that has no parts, by its kind."""
_MOST_BYTES = 255
"""Of a file's name, which an id is in the lake."""

MAX_REFERENCES, MAX_REFERENCED_CHARACTERS = 200, 8 << 20
"""A schema that refers to more stays without them, so that it cannot be read, and its records are quarantined."""

Reference = TypeVar("Reference", bound=Hashable)


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as a registry has it.

    Attributes:
        text: of Avro with every schema it refers to written into it.
        type: AVRO, JSON or PROTOBUF.
    """

    text: str
    type: str = "AVRO"


def is_id(kind: str, schema_id: str) -> bool:
    """Whether an id can be one of its kind. Ids come out of records, so they are anything; an id that passes is safe as
    a file's name and in a URL.
    """
    if kind != "artifact":
        return kind in _IDS and _IDS[kind].fullmatch(schema_id) is not None
    parts = [unquote(part) for part in schema_id.split("/")]
    is_short = len(quote(schema_id, safe="")) <= _MOST_BYTES
    return is_short and len(parts) == 3 and bool(_VERSION.fullmatch(parts[2])) and {"", ".", ".."}.isdisjoint(parts)


class Registry(Protocol):
    """What bronze asks of a registry."""

    @property
    def name(self) -> str:
        """A name for files and messages, without credentials."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The kinds of id that a bare number in a frame may be, the likelier first."""

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        """The schema of an id; none when the registry says that it has none, or does not know ids of that kind.

        Args:
            kind: `contentId`, `globalId`, `contentHash` or `artifact` (Apicurio), `id` or `guid` (Confluent), `glue`.
            schema_id: digits, a hash or a UUID; of an `artifact` its group, id and version, each percent-encoded, with
                slashes between.

        Raises:
            ConfigError: the registry refuses the credentials.
            InfrastructureError: the registry does not answer, or not as a registry.
        """

    def check(self) -> None:
        """See that the registry answers, and lets us in.

        Raises:
            ConfigError: it refuses the credentials, or is another kind of server.
            InfrastructureError: it does not answer.
        """


def referenced_texts(
    references: Iterable[Reference], fetch: Callable[[Reference], tuple[str, Iterable[Reference]]]
) -> list[str]:
    """The texts behind `references` and behind theirs, and so on, each once; not all, if they are too many or too long.

    Args:
        fetch: the text of a reference, and what that refers to in turn.
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
    """An Avro text with those it refers to written into it.

    What cannot be (one of them is no Avro schema) stays as it is: reading it then fails, and its records are
    quarantined.
    """
    try:
        return inline(text, referenced) if referenced else text
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text
