"""The base of all settings: strict, frozen, still read under former keys; and its errors as text."""

import difflib
import logging
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails

logger = logging.getLogger(__name__)

Name = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
"""An identifier."""
Key = tuple[int | str, ...]
"""The steps to a setting, from the outermost."""


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

    former_keys: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Keys of earlier versions, each with today's key: one in a group, or one of the same level."""

    @model_validator(mode="wrap")
    @classmethod
    def _under_former_keys(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Accept former keys with a warning; an error names the key that was given."""
        if not isinstance(given, Mapping):
            return handler(given)
        settings, written = with_new_keys(given, cls)
        warn_of_former_keys(cls.__name__, written)
        try:
            return handler(settings)
        except ValidationError as exc:
            raise _with_former_keys(exc, written) from None


def with_new_keys(
    settings: Mapping[str, Any], model: type[Model], at: Key = ()
) -> tuple[dict[str, Any], dict[Key, Key]]:
    """The settings under today's keys.

    Args:
        settings: as they were written.
        model: what they are of.
        at: the steps to them, for messages.

    Returns:
        The settings; and the former key that was written, by the new one.

    Raises:
        ValueError: a setting is given under both keys.
    """
    former = {
        key: new
        for key, new in model.former_keys.items()
        if key in settings and not (key == new[0] and isinstance(settings[key], Mapping | Model))
    }
    made = {key: value for key, value in settings.items() if key not in former}
    written: dict[Key, Key] = {}
    for key, new in former.items():
        *group, name = new
        inside = made.get(group[0], {}) if group else made
        inside = inside.model_dump(exclude_unset=True) if isinstance(inside, Model) else inside
        if not isinstance(inside, Mapping):
            continue  # which is an error of its own
        if name in inside:
            old, today = _dotted((*at, key)), _dotted((*at, *new))
            raise ValueError(f"`{old}` is the former key of `{today}`, and both are set; remove `{old}`")
        now = {**inside, name: settings[key]}
        made = {**made, group[0]: now} if group else now
        written[*at, *new] = (*at, key)
    for key, inner, is_mapping in _inner_models(model):
        if not isinstance(value := made.get(key), Mapping):
            continue
        for step, one in value.items() if is_mapping else [(None, value)]:
            if isinstance(one, Mapping):
                place = (*at, key) if step is None else (*at, key, step)
                new_keys, found = with_new_keys(one, inner, place)
                made[key] = new_keys if step is None else {**made[key], step: new_keys}
                written |= found
    return made, written


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings as one; where both have a value, that of `above` wins."""
    both = {
        key: merged(below[key], value)
        for key, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **above, **both}


def warn_of_former_keys(where: str, written: Mapping[Key, Key]) -> None:
    """Log a warning for each former key.

    Args:
        where: the file, variable or class in which they were written.
        written: see `with_new_keys`.
    """
    for new, old in written.items():
        logger.warning("%s: `%s` is deprecated; use `%s`", where, _dotted(old), _dotted(new))


def in_words(exc: ValidationError, model: type[Model], written: Mapping[Key, Key] | None = None) -> str:
    """What is wrong, key by key; an unknown key with the nearest known one.

    Args:
        exc: what pydantic found.
        model: what was validated.
        written: see `with_new_keys`.
    """
    return "; ".join(
        _one_in_words(model, error["type"], error["loc"], error["msg"], written or {}) for error in exc.errors()
    )


def _one_in_words(model: type[Model], kind: str, loc: Key, message: str, written: Mapping[Key, Key]) -> str:
    key = _dotted(_as_written(loc, written))
    if kind != "extra_forbidden":
        return f"`{key}`: {message.removeprefix('Value error, ')}" if key else message.removeprefix("Value error, ")
    known = _known_keys(model, loc[:-1])
    near = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f"`{key}` is not a known key" + (f" (did you mean `{known[near[0]]}`?)" if near else "")


def _known_keys(root: type[Model], loc: Key) -> dict[str, str]:
    """The keys that a model at a place has: today's and former ones, each with today's."""
    model = root
    for written in loc:
        for step in model.former_keys.get(str(written), (str(written),)):
            model = {key: inner for key, inner, _ in _inner_models(model)}.get(step, model)
    former = {key: ".".join(new) for key, new in model.former_keys.items()}
    return former | {key: key for key in _keys(model)}


def _keys(model: type[Model]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _inner_models(model: type[Model]) -> Iterator[tuple[str, type[Model], bool]]:
    """The keys whose values are models, or mappings or lists of models, which the last part tells."""
    for key, field in zip(_keys(model), model.model_fields.values(), strict=True):
        kinds = [field.annotation]
        if get_origin(field.annotation) in (Union, UnionType, dict, tuple):
            kinds = list(get_args(field.annotation))
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, Model):
                yield key, kind, get_origin(field.annotation) is dict


def _as_written(loc: Key, written: Mapping[Key, Key]) -> Key:
    for length in range(len(loc), 0, -1):
        if old := written.get(loc[:length]):
            return (*old, *loc[length:])
    return loc


def _with_former_keys(exc: ValidationError, written: Mapping[Key, Key]) -> ValidationError:
    errors = [
        InitErrorDetails(
            type=error["type"],
            loc=_as_written(error["loc"], written),
            input=error["input"],
            ctx=error.get("ctx", {}),
        )
        for error in exc.errors()
    ]
    return ValidationError.from_exception_data(exc.title, errors, hide_input=True)


def _dotted(key: Key) -> str:
    return ".".join(map(str, key))
