"""Paths and references to secrets, made absolute as they are validated; and the lookup of secrets."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr, ValidationInfo

from cdc_lake import aws
from cdc_lake.errors import ConfigError

SSM = "ssm:"
_REFERENCES = ("env:", "file:", SSM, "secretsmanager:")


def is_reference(value: str) -> bool:
    """Whether a setting says where a secret is, and is not the value itself."""
    return value.startswith(_REFERENCES)


def _absolute(path: str, info: ValidationInfo) -> str:
    if "://" in path and ":" in urlsplit(path).netloc.rpartition("@")[0]:
        raise ValueError("a URL must not hold a password; let the cluster's settings or the environment log in")
    folder: Path | None = (info.context or {}).get("folder")
    return path if folder is None or "://" in path else str((folder / path).resolve())


def check_reference(value: str, info: ValidationInfo) -> str:
    """The reference, with the path of a `file:` made absolute.

    Raises:
        ValueError: it is not a reference.
    """
    kind, _, place = value.partition(":")
    if not is_reference(value) or not place:
        raise ValueError(
            "write where the secret is, not the secret: `env:NAME` for a variable, `file:PATH` for a file, `ssm:NAME` "
            "or `secretsmanager:NAME` for one that AWS keeps"
        )
    return f"file:{_absolute(place, info)}" if kind == "file" else value


def _file_or_reference(value: str, info: ValidationInfo) -> str:
    return check_reference(value, info) if is_reference(value) else value and _absolute(value, info)


ConfigPath = Annotated[str, AfterValidator(_absolute)]
"""A path or URL. Relative paths start at `folder` of the validation context; without a context they stay relative."""
OptionalPath = Annotated[ConfigPath | None, BeforeValidator(lambda value: value or None)]
"""The same, or none: an empty text counts as none, so that the environment can unset it."""
FileOrReference = Annotated[str, AfterValidator(_file_or_reference)]
"""The path of a PEM file, or a reference to its text."""
SecretReference = Annotated[str, AfterValidator(check_reference)]
"""Where a secret is: `env:NAME`, `file:PATH`, `ssm:NAME` or `secretsmanager:NAME`; `secret` looks it up."""

_LOOK_UP: Mapping[str, Callable[[str], str]] = {
    "env": lambda name: os.environ[name],
    "file": lambda path: Path(path).read_text(encoding="utf-8"),
    "ssm": aws.parameter,
    "secretsmanager": aws.managed_secret,
}


def secret(reference: str) -> SecretStr:
    """What a reference stands for, looked up now.

    Raises:
        ConfigError: there is nothing.
        InstallationError: it is AWS' to keep, and boto3 is not installed.
        InfrastructureError: AWS does not answer.
    """
    kind, _, place = reference.partition(":")
    try:
        value = _LOOK_UP[kind](place)
    except KeyError as exc:
        raise ConfigError(reference, "the environment has no such variable", "set it for this run") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(reference, f"it cannot be read ({type(exc).__name__})", "see that it is there") from exc
    value = value.rstrip("\r\n")
    if not value:
        raise ConfigError(reference, "it is empty", "put the secret there")
    return SecretStr(value)
