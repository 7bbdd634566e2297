"""A lint of IAM statements: actions, resources and principals must be named, unless there is a reason."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_SCOPED = re.compile(r"arn:[^*:]+:[^*:]+:[^*:]*:[^*:]*:[^*/]+/[^*]+")
"""An ARN with a part of a path before the first `*`: a folder, a database's name, a topic's prefix."""


def wildcards(statement: Mapping[str, Any]) -> Iterator[str]:
    """The actions and resources of a statement that are not named."""
    for action in _all(statement, "Action"):
        if "*" in action or "?" in action:
            yield f"action {action}"
    for resource in _all(statement, "Resource"):
        if ("*" in resource or "?" in resource) and not _SCOPED.match(resource):
            yield f"resource {resource}"
    for key in ("NotAction", "NotResource", "NotPrincipal"):
        if key in statement:
            yield key
    principal = statement.get("Principal")
    anybody = principal.values() if isinstance(principal, Mapping) else [principal]
    if any("*" in (one if isinstance(one, list) else [one]) for one in anybody):
        yield "principal *"


def complaints(statements: Iterable[Mapping[str, Any]], reasons: Mapping[str, str]) -> list[str]:
    """The problems of statements: `<Sid>: <problem>`.

    Args:
        statements: of any policy.
        reasons: why a statement of this Sid may have wildcards.
    """
    found = []
    for statement in statements:
        sid = statement.get("Sid", "")
        if not sid:
            found.append(f"{statement}: has no Sid")
        if statement.get("Effect") not in ("Allow", "Deny"):
            found.append(f"{sid}: neither allows nor denies")
        if not reasons.get(sid, "").strip():
            found += [f"{sid}: {what}" for what in wildcards(statement)]
    return found


def _all(statement: Mapping[str, Any], key: str) -> list[str]:
    value = statement.get(key, [])
    return [value] if isinstance(value, str) else list(value)
