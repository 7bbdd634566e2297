"""What is asked of a registry by who writes to topics: texts under a subject, version by version.

A topic's subjects are `<topic>-key` and `<topic>-value`. In Apicurio a subject is an artifact of the group `default`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from cdc_lake.decode.schemas import SchemaError, Tree, differences, parse
from cdc_lake.errors import IncompatibleSchemaError

KEY_SUFFIX, VALUE_SUFFIX = "-key", "-value"
"""Behind a topic's name they make its subjects."""
Level = Literal["BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE"]
"""What a new version is compared with, and in which direction; Confluent's words, which are Apicurio's too."""


@dataclass(frozen=True)
class Version:
    """A version of a subject.

    Attributes:
        number: as the registry counts them, from 1 on.
        text: as it was registered.
        kind: what a frame's number is: `id`, or of Apicurio `contentId` or `globalId`.
        id: that number.
    """

    number: str
    text: str
    kind: Literal["id", "contentId", "globalId"]
    id: int


class Subjects(Protocol):
    """A registry that schemas can be registered in.

    Each of these raises `ConfigError` when the registry refuses the credentials, and `InfrastructureError` when it does
    not answer, or not as a registry.
    """

    @property
    def namespaces(self) -> tuple[str, ...]:
        """See `Registry`."""

    def check(self) -> None:
        """See `Registry`."""

    def subjects(self) -> list[str]:
        """The subjects there are, sorted."""

    def versions(self, subject: str) -> list[str]:
        """The numbers of a subject's versions, the oldest first; none when there is no such subject."""

    def version(self, subject: str, number: str | None = None) -> Version | None:
        """A version, or the newest; none when there is none."""

    def level(self, subject: str) -> Level:
        """What new versions of a subject have to be: its own level, or the registry's; `NONE` when nobody says."""

    def set_level(self, subject: str, level: Level) -> None:
        """Give a subject that is there a level of its own."""

    def problems(self, subject: str, text: str) -> Sequence[str] | None:
        """Why the subject's level does not allow a text, in the registry's words, which may be none at all.

        None when the text is compatible, or the subject new. Nothing is registered.

        Raises:
            IncompatibleSchemaError: to the registry it is no schema at all.
        """

    def register(self, subject: str, text: str) -> Version:
        """The version that a text is: the one that it has been before, or a new one.

        Raises:
            IncompatibleSchemaError: the subject's level does not allow it.
        """


def changes(subject: str, before: Version, text: str) -> list[str]:
    """What a text has otherwise than a version of its subject, in words; nothing if the layout is the same.

    Raises:
        IncompatibleSchemaError: one of them is no schema.
    """
    return differences(_tree(f"{subject}, version {before.number}", before.text), _tree(subject, text))


def check_compatible(subjects: Subjects, subject: str, text: str) -> None:
    """See that a text can be the next version of a subject; nothing is registered.

    A key's schema never changes, whatever its level: the id in its frame is a part of the key's bytes, and other bytes
    are another key, to Kafka's compaction and to its partitioner.

    Raises:
        IncompatibleSchemaError: it cannot.
    """
    before = subjects.version(subject)
    if before is None:
        _tree(subject, text)  # of a new subject a registry takes anything
        return
    changed = changes(subject, before, text)
    if subject.endswith(KEY_SUFFIX) and changed:
        what = f"the key's schema is another than its version {before.number}: {'; '.join(changed)}"
        todo = "keep the key's columns and types, or send to another topic: the same key would have other bytes"
        raise IncompatibleSchemaError(subject, what, todo)
    problems = subjects.problems(subject, text)
    if problems is not None:
        raise incompatible(subject, problems, changed)


def registered(subjects: Subjects, subject: str, text: str) -> Version:
    """The version of a subject that a compatible text is: of a value the one with this text, registered if need be.

    Of a key the oldest with the same layout: a later one may have another comment, and so another id, which would give
    the same key other bytes.

    Raises:
        IncompatibleSchemaError: the subject's level does not allow it.
    """
    if subject.endswith(KEY_SUFFIX):
        for number in subjects.versions(subject):
            found = subjects.version(subject, number)
            if found is not None and not changes(subject, found, text):
                return found
    return subjects.register(subject, text)


def incompatible(subject: str, problems: Sequence[str], changes: Sequence[str] = ()) -> IncompatibleSchemaError:
    """The error of a text that its subject does not take.

    Args:
        problems: in the registry's words.
        changes: in ours.
    """
    said = f"it says: {'; '.join(problems)}" if problems else "it does not say why"
    return IncompatibleSchemaError(
        subject,
        f"the registry does not take the schema as its next version: {''.join(f'{one}; ' for one in changes)}{said}",
        "keep the columns' types and add or drop only columns that may be null, or send to another topic",
    )


def _tree(where: str, text: str) -> Tree:
    try:
        return parse(text)
    except SchemaError as exc:
        raise IncompatibleSchemaError(where, str(exc), "write a schema in Avro that says all of itself") from exc
