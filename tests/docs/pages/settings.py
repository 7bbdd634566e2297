"""Every setting with its values, default and meaning, from the models of `cdc_lake.config`."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cdc_lake.config import Config

from .markdown import code, prose, table, text

_WORDS = {bool: "`true`, `false`", int: "number", float: "number", str: "text"}


class Setting(NamedTuple):
    """A key with its type, default and meaning."""

    key: str
    values: str
    default: str
    meaning: str


class Group(NamedTuple):
    """Keys of one model.

    Attributes:
        depth: number of enclosing groups.
    """

    key: str
    depth: int
    meaning: str
    settings: list[Setting]


def _inside(kind: Any) -> Iterator[Any]:
    """A type and the types inside it."""
    yield kind
    for inner in get_args(kind):
        yield from _inside(inner)


def _model(kind: Any) -> type[BaseModel] | None:
    return next((one for one in _inside(kind) if isinstance(one, type) and issubclass(one, BaseModel)), None)


def _step(kind: Any) -> str:
    """The separator in a key between a field and the fields of its model."""
    origins = {get_origin(one) for one in _inside(kind)}
    return ".<name>" if dict in origins else "[]" if tuple in origins else ""


def _values(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _values(inner[0])
    if origin is Literal:
        return ", ".join(code(one) for one in inner)
    if origin in (Union, types.UnionType):
        return ", ".join(dict.fromkeys(_values(one) for one in inner if one is not type(None)))
    if origin is tuple:
        return f"list of {_values(inner[0])}"
    if origin is dict:
        return f"{_values(inner[0])} to {_values(inner[1])}"
    return _WORDS.get(kind, "a group" if _model(kind) else "text")


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "required"
    if default is None or default in ((), {}):
        return "none"
    if isinstance(default, tuple):
        return "`[" + ", ".join("{}" if isinstance(one, BaseModel) else str(one) for one in default) + "]`"
    if isinstance(default, BaseModel):
        return ""
    return code(
        str(default).lower()
        if isinstance(default, bool)
        else f"{default:.15g}"
        if isinstance(default, float)
        else default
    )


def groups(model: type[BaseModel] = Config, key: str = "", depth: int = 0) -> Iterator[Group]:
    """A model's own keys, followed by those of the models in it; small models are listed with the enclosing one."""
    own: list[Setting] = []
    below: list[Group] = []
    for name, field in model.model_fields.items():
        path, inner = f"{key}.{field.alias or name}".lstrip("."), _model(field.annotation)
        if path == "defaults":
            continue
        if inner is None:
            own.append(Setting(path, _values(field.annotation), _default(field), field.description or ""))
            continue
        step = _step(field.annotation)
        if step and field.description:
            own.append(Setting(path, _values(field.annotation), _default(field), field.description))
        found = list(groups(inner, path + step, depth + 1))
        if depth and len(found) == 1 and len(found[0].settings) <= 4 and not step:
            own += found[0].settings
        else:
            below += found
    if own:
        yield Group(key, depth, prose((model.__doc__ or "").partition("\n\n")[0]), own)
    yield from below


def settings() -> str:
    """A section for each group of keys."""
    parts = []
    for group in groups():
        if not group.key:
            continue
        shown = group.key.removeprefix("tables.<name>.").removesuffix(".<name>")
        parts.append(f"{'#' * min(group.depth + 1, 4)} `{shown}`\n\n{group.meaning}\n")
        rows = [
            (code(one.key.removeprefix("tables.<name>.")), one.values, one.default, text(one.meaning))
            for one in group.settings
        ]
        parts.append(table(("key", "values", "default", "meaning"), rows))
    return "\n".join(parts)
