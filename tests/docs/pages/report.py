"""Every field of a run's report and of the status, from the docstrings and tables of their modules."""

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from cdc_lake.operations.status import Status
from cdc_lake.runs.report import COUNTS, PHASES, RUN_PHASES, Described, Report

from .markdown import code, prose, table, text

_ENTRY = re.compile(r"^(\w+)(?: \(([^;)]+)(?:; ([^)]+))?\))?: (.*(?:\n[ ]{4}.*)*)", re.MULTILINE)
_WORDS = {bool: "`true`, `false`", int: "integer", float: "number", str: "text", datetime: "time"}
_NAMES: Mapping[str, Mapping[str, Described]] = {
    "seconds": RUN_PHASES,
    "tables[].rows": COUNTS,
    "tables[].seconds": PHASES,
}
"""Objects whose names are listed."""


def _model(kind: Any) -> type[BaseModel] | None:
    """The model in a type, itself or inside a list or a union."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next(filter(None, map(_model, get_args(kind))), None)


def _type(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(map(code, inner))
    if origin in (Union, types.UnionType):
        return " or ".join("null" if one is type(None) else _type(one) for one in inner)
    if origin is dict:
        return f"text to {_type(inner[1])}"
    if origin in (list, tuple):
        return f"list of {'objects' if _model(kind) else _type(inner[0])}"
    return "object" if _model(kind) else _WORDS[kind]


def _layers(names: str) -> str:
    return names if names == "all" else ", ".join(map(code, names.split(", ")))


def _fields(model: type[BaseModel]) -> str:
    """The table of a model's fields that are in its JSON, without columns that say nothing."""
    entries = inspect.cleandoc(model.__doc__ or "").partition("\nAttributes:\n")[2]
    described = {name: more for name, *more in _ENTRY.findall(inspect.cleandoc("\n" + entries))}
    assert described.keys() == model.model_fields.keys(), f"{model.__name__}: describe each field"
    rows = [("field", "type", "unit", "layers", "meaning")]
    for name, field in model.model_fields.items():
        if not field.exclude:
            layers, unit, meaning = described[name]
            meaning = text(" ".join(meaning.split()))
            rows.append((code(name), _type(field.annotation), unit, _layers(layers or "all"), meaning))
    headings, *lines = zip(*(column for column in zip(*rows, strict=True) if {*column[1:]} - {"", "all"}), strict=True)
    return table(headings, lines)


def _sections(model: type[BaseModel], path: str, title: str, described: dict[type[BaseModel], str]) -> Iterator[str]:
    """A section for a model, one for each of its objects whose names are listed, and those of the models in it.

    Args:
        described: the models that have a section, and the path of each.
    """
    yield f"## {title}\n"
    if model in described:
        yield f"The fields are those of {code(described[model])}.\n"
        return
    described[model] = path
    yield f"{prose((model.__doc__ or '').partition('Attributes:')[0])}\n"
    yield _fields(model)
    for name, field in model.model_fields.items():
        inner = f"{path}.{name}".lstrip(".") + ("[]" if get_origin(field.annotation) is list else "")
        if inner in _NAMES:
            rows = [(code(one), _layers(it.layers), text(it.meaning)) for one, it in _NAMES[inner].items()]
            yield f"## {code(inner)}\n"
            yield table(("name", "layers", "meaning"), rows)
        elif (below := _model(field.annotation)) and not field.exclude:
            yield from _sections(below, inner, code(inner), described)


def report_fields() -> str:
    """A section for each object of the report."""
    return "\n".join(_sections(Report, "", "The run", {}))


def status_fields() -> str:
    """A section for each object of the status."""
    return "\n".join(_sections(Status, "", "The lake", {}))
