"""The functions and classes of `import cdc_lake`, from their signatures and docstrings."""

import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import cdc_lake
from cdc_lake.operations.story import Story, StoryEvent

from .markdown import code, prose, table, text

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):\n((?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^(\S[^:]*): (.*(?:\n[ ]{4}.*)*)", re.MULTILINE)


def _annotation(kind: Any) -> str:
    text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    return re.sub(r"\b(?:[a-z_]+\.)+", "", text)


def _signature(member: Any) -> str:
    """A function with one argument per line, or a class with its fields; types without their modules."""
    found = inspect.signature(member)
    if inspect.isclass(member):
        fields = (f"    {one.name}: {_annotation(one.annotation)}" for one in found.parameters.values())
        return "\n".join((f"class {member.__name__}:", *fields))
    lines = []
    for one in found.parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in lines:
            lines.append("*")
        default = "" if one.default is one.empty else f" = {one.default!r}"
        lines.append(f"{one.name}: {_annotation(one.annotation)}{default}")
    returned = "" if found.return_annotation in (None, found.empty) else f" -> {_annotation(found.return_annotation)}"
    arguments = ",\n    ".join(lines).replace("'", '"')
    return f"def {member.__name__}(\n    {arguments},\n){returned}: ..."


def _body(member: Any) -> Iterator[str]:
    doc = inspect.cleandoc(member.__doc__ or "") + "\n"
    yield prose(_SECTION.split(doc)[0]) + "\n"
    for name, section in _SECTION.findall(doc):
        inner = inspect.cleandoc("\n" + section)
        if name == "Returns":
            yield prose(f"Returns: {inner}") + "\n"
        else:
            entries = [(code(entry), text(" ".join(meaning.split()))) for entry, meaning in _ENTRY.findall(inner)]
            yield table(({"Args": "argument", "Raises": "error"}.get(name, "attribute"), "meaning"), entries)


def api() -> str:
    """A section for each public name."""
    parts = []
    for name in sorted(cdc_lake.__all__, key=str.lower):
        member = getattr(cdc_lake, name)
        parts += [f"## cdc_lake.{name}\n", f"```python\n{_signature(member)}\n```\n", *_body(member)]
    for shown in (Story, StoryEvent):
        hints = typing.get_type_hints(shown)
        parts += [
            f"## {shown.__name__}\n",
            "".join(_body(shown)),
            f"Fields: {', '.join(code(one) for one in hints if one in shown.model_fields)}.\n",
        ]
    return "\n".join(parts)
