"""What all settings are made of: their base class, names, paths and references to secrets; and validation errors."""

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
)

from cdc_lake import aws
from cdc_lake.errors import ConfigError

Name = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
"""An identifier."""
SSM = "ssm:"
_REFERENCES = ("env:", "file:", SSM, "secretsmanager:")


class Model(BaseModel):
    """Settings are read once and never changed. An unknown key is an error.

    Defaults are validated like values, because some of them are relative paths (`ConfigPath`).
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


def _one_in_words(model: type[Model], error_type: str, loc: tuple[int | str, ...], message: str) -> str:
    key = ".".join(map(str, loc))
    if error_type != "extra_forbidden":
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
        annotations = [field.annotation]
        if get_origin(field.annotation) in (Union, UnionType, dict, tuple):
            annotations = list(get_args(field.annotation))
        for annotation in annotations:
            if isinstance(annotation, type) and issubclass(annotation, Model):
                yield key, annotation


def is_reference(value: str) -> bool:
    """Whether a setting is a reference to a secret, not the secret itself."""
    return value.startswith(_REFERENCES)


def _absolute(path: str, info: ValidationInfo) -> str:
    if "://" in path and ":" in urlsplit(path).netloc.rpartition("@")[0]:
        raise ValueError(
            "a URL must not contain a password; put the login into the cluster's settings or the environment"
        )
    folder: Path | None = (info.context or {}).get("folder")
    return path if folder is None or "://" in path else str((folder / path).resolve())


def check_reference(value: str, info: ValidationInfo) -> str:
    """The reference, with the path of a `file:` made absolute.

    Raises:
        ValueError: it is not a reference.
    """
    scheme, _, place = value.partition(":")
    if not is_reference(value) or not place:
        raise ValueError(
            "write a reference to the secret, not the secret: `env:NAME` for a variable, `file:PATH` for a file, "
            "`ssm:NAME` or `secretsmanager:NAME` for AWS"
        )
    return f"file:{_absolute(place, info)}" if scheme == "file" else value


def _file_or_reference(value: str, info: ValidationInfo) -> str:
    return check_reference(value, info) if is_reference(value) else value and _absolute(value, info)


ConfigPath = Annotated[str, AfterValidator(_absolute)]
"""A path or URL. Relative paths start at `folder` of the validation context; without a context they stay relative."""
OptionalPath = Annotated[ConfigPath | None, BeforeValidator(lambda value: value or None)]
"""The same, or None: an empty text means None, so that the environment can unset it."""
FileOrReference = Annotated[str, AfterValidator(_file_or_reference)]
"""The path of a PEM file, or a reference to its text."""
SecretReference = Annotated[str, AfterValidator(check_reference)]
"""A reference to a secret: `env:NAME`, `file:PATH`, `ssm:NAME` or `secretsmanager:NAME`; see `secret`."""

_LOOK_UP: Mapping[str, Callable[[str], str]] = {
    "env": lambda name: os.environ[name],
    "file": lambda path: Path(path).read_text(encoding="utf-8"),
    "ssm": aws.parameter,
    "secretsmanager": aws.managed_secret,
}


def secret(reference: str) -> SecretStr:
    """The secret that a reference names.

    Raises:
        ConfigError: it does not exist, or is empty.
        InstallationError: it is in AWS, and boto3 is not installed.
        InfrastructureError: AWS does not respond.
    """
    scheme, _, place = reference.partition(":")
    try:
        value = _LOOK_UP[scheme](place)
    except KeyError as exc:
        raise ConfigError(reference, "the environment has no such variable", "set it for this run") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(
            reference, f"it cannot be read ({type(exc).__name__})", "check the path and its permissions"
        ) from exc
    value = value.rstrip("\r\n")
    if not value:
        raise ConfigError(reference, "it is empty", "store the secret there")
    return SecretStr(value)
