"""The base class of all settings, and the text of their validation errors."""

import difflib
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Name = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
"""An identifier."""


class Model(BaseModel):
    """Settings are read once and never changed. An unknown key is an error.

    Defaults are validated like values, because some of them are relative paths (`secrets.ConfigPath`).
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
        revalidate_instances="always",
        serialize_by_alias=True,
    )


def in_words(exc: ValidationError, model: type[Model]) -> str:
    """The validation errors as text, by key. For an unknown key, it suggests the most similar known one."""
    return "; ".join(_one_in_words(model, error["type"], error["loc"], error["msg"]) for error in exc.errors())


def _one_in_words(model: type[Model], kind: str, loc: tuple[int | str, ...], message: str) -> str:
    key = ".".join(map(str, loc))
    if kind != "extra_forbidden":
        return f"`{key}`: {message.removeprefix('Value error, ')}" if key else message.removeprefix("Value error, ")
    for step in loc[:-1]:
        model = dict(_inner_models(model)).get(str(step), model)
    near = difflib.get_close_matches(str(loc[-1]), _keys(model), n=1)
    return f"`{key}` is not a known key" + (f" (did you mean `{near[0]}`?)" if near else "")


def _keys(model: type[Model]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _inner_models(model: type[Model]) -> Iterator[tuple[str, type[Model]]]:
    """The keys whose values are models, or mappings or lists of models."""
    for key, field in zip(_keys(model), model.model_fields.values(), strict=True):
        kinds = [field.annotation]
        if get_origin(field.annotation) in (Union, UnionType, dict, tuple):
            kinds = list(get_args(field.annotation))
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Model):
                yield key, kind
