"""Paths and references to secrets, which validation makes absolute; and the lookup of secrets."""

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
    kind, _, place = value.partition(":")
    if not is_reference(value) or not place:
        raise ValueError(
            "write a reference to the secret, not the secret: `env:NAME` for a variable, `file:PATH` for a file, "
            "`ssm:NAME` or `secretsmanager:NAME` for AWS"
        )
    return f"file:{_absolute(place, info)}" if kind == "file" else value


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
    kind, _, place = reference.partition(":")
    try:
        value = _LOOK_UP[kind](place)
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
