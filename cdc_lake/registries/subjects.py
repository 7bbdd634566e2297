"""The contract of a registry for producers: register and compare schema versions of a subject.

A topic's subjects are `<topic>-key` and `<topic>-value`. In Apicurio a subject is an artifact in the group `default`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from cdc_lake.decode.schemas import SchemaError, Tree, differences, parse
from cdc_lake.errors import IncompatibleSchemaError
from cdc_lake.registries.registry import Registry

KEY_SUFFIX, VALUE_SUFFIX = "-key", "-value"
"""Suffixes that make a topic's subjects."""
Level = Literal["BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE"]
"""Compatibility levels, as Confluent and Apicurio name them."""


@dataclass(frozen=True)
class SubjectVersion:
    """A version of a subject.

    Attributes:
        number: the registry's version number, from 1.
        kind: the kind of `id`: `id`, or in Apicurio `contentId` or `globalId`.
        id: the number that records carry in their frames.
    """

    number: str
    text: str
    kind: Literal["id", "contentId", "globalId"]
    id: int


class Subjects(Registry, Protocol):
    """A registry in which schemas can be registered.

    Each method raises `ConfigError` if the registry rejects the credentials, and `InfrastructureError` if it does not
    respond, or not as a registry.
    """

    def subjects(self) -> list[str]:
        """All subjects, sorted."""

    def versions(self, subject: str) -> list[str]:
        """A subject's version numbers, oldest first; none if the subject does not exist."""

    def version(self, subject: str, number: str | None = None) -> SubjectVersion | None:
        """A version, or the latest; none if it does not exist."""

    def level(self, subject: str) -> Level:
        """The compatibility level of a subject: its own, or the registry's; `NONE` if neither is set."""

    def set_level(self, subject: str, level: Level) -> None:
        """Set the compatibility level of an existing subject."""

    def problems(self, subject: str, text: str) -> Sequence[str] | None:
        """Test a text against the subject's compatibility level, without registering it.

        Returns:
            The registry's messages, possibly none, if the text is incompatible. None if it is compatible, or the
            subject does not exist.

        Raises:
            IncompatibleSchemaError: the registry rejects the text as a schema.
        """

    def register(self, subject: str, text: str) -> SubjectVersion:
        """Register a text, unless it is registered already.

        Returns:
            The version of the text.

        Raises:
            IncompatibleSchemaError: the subject's level does not allow it.
        """


def layout_changes(subject: str, before: SubjectVersion, text: str) -> list[str]:
    """Descriptions of how a text differs from a version of its subject; empty if the layout is the same.

    Raises:
        IncompatibleSchemaError: one of them is not a schema.
    """
    return differences(_tree(f"{subject}, version {before.number}", before.text), _tree(subject, text))


def check_compatible(subjects: Subjects, subject: str, text: str) -> None:
    """Check that a text can be the next version of a subject, without registering it.

    A key's schema must never change, at any level: the id in its frame is part of the key's bytes, and Kafka's
    compaction and partitioner compare bytes.

    Raises:
        IncompatibleSchemaError: it cannot.
    """
    before = subjects.version(subject)
    if before is None:
        _tree(subject, text)  # a registry accepts any text for a new subject
        return
    changed = layout_changes(subject, before, text)
    if subject.endswith(KEY_SUFFIX) and changed:
        what = f"the key's schema differs from version {before.number}: {'; '.join(changed)}"
        cure = "keep the key's columns and types, or send to another topic, because equal keys would get other bytes"
        raise IncompatibleSchemaError(subject, what, cure)
    problems = subjects.problems(subject, text)
    if problems is not None:
        raise incompatible_error(subject, problems, changed)


def register_compatible(subjects: Subjects, subject: str, text: str) -> SubjectVersion:
    """The version of a compatible text, which is registered if it is new.

    For a key it is the oldest version with the same layout: a later one may differ in a comment, and its id would give
    equal keys other bytes.

    Raises:
        IncompatibleSchemaError: the subject's level does not allow it.
    """
    if subject.endswith(KEY_SUFFIX):
        for number in subjects.versions(subject):
            version = subjects.version(subject, number)
            if version is not None and not layout_changes(subject, version, text):
                return version
    return subjects.register(subject, text)


def incompatible_error(subject: str, problems: Sequence[str], changes: Sequence[str] = ()) -> IncompatibleSchemaError:
    """The error of a text that the registry rejects for a subject.

    Args:
        problems: the registry's messages.
        changes: see `layout_changes`.
    """
    reason = f"its message: {'; '.join(problems)}" if problems else "it gives no reason"
    return IncompatibleSchemaError(
        subject,
        f"the registry rejects the schema as the next version: {''.join(f'{change}; ' for change in changes)}{reason}",
        "keep the columns' types and add or drop only nullable columns, or send to another topic",
    )


def _tree(where: str, text: str) -> Tree:
    try:
        return parse(text)
    except SchemaError as exc:
        raise IncompatibleSchemaError(where, str(exc), "write a self-contained Avro schema") from exc
