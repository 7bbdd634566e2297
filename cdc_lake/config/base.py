"""The base of all settings, and what is wrong with some in words."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, get_args

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
    )


def in_words(exc: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong, key by key; one that is not known with the nearest that is.

    Args:
        exc: what pydantic found.
        model: what was to be made.
    """
    return "; ".join(_one_in_words(model, error["type"], error["loc"], error["msg"]) for error in exc.errors())


def _one_in_words(model: type[BaseModel], kind: str, loc: tuple[int | str, ...], message: str) -> str:
    key = ".".join(map(str, loc))
    if kind != "extra_forbidden":
        return f"`{key}`: {message.removeprefix('Value error, ')}"
    near = difflib.get_close_matches(str(loc[-1]), _known_keys(model, loc[:-1]), n=1)
    return f"`{key}` is not a known key" + (f" (did you mean `{near[0]}`?)" if near else "")


def _known_keys(root: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    model: Any = root
    for step in loc:
        fields: Mapping[str, Any] = getattr(model, "model_fields", {})
        if step in fields:
            annotation = fields[str(step)].annotation
            inner = [kind for kind in get_args(annotation) if kind is not type(None)]
            model = inner[-1] if inner else annotation
    return list(getattr(model, "model_fields", {}))
