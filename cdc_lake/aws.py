"""AWS by boto3, which the extra `aws` brings: its clients, its errors in our words, and what stands in its stores."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, InstallationError

S3_SCHEMES = ("s3", "s3a", "s3n")
"""Of paths that lead into S3: Hadoop's, and EMR's own."""
_REFUSALS = re.compile(r"AccessDenied|UnrecognizedClient|Signature|Token|Unauthorized|OptInRequired")
"""Codes by which AWS' services refuse credentials."""
_REFUSAL_STATUSES = (401, 403)
_MISSING = re.compile(r"ParameterNotFound|ParameterVersionNotFound|ResourceNotFound")
_WRONG = re.compile(r"Invalid|Validation")
_ATTEMPTS = 4
_TIMEOUT_SECONDS = 10.0


def client(service: str, region: str | None = None, *, path_style: bool = False, **settings: str | None) -> Any:
    """A client of one of AWS' services. Credentials come from where AWS' own tools look for them.

    Args:
        service: as boto3 names it.
        region: where; AWS' usual places if nothing is said.
        path_style: of S3: a bucket's name is part of the path, not of the host.
        settings: more of boto3's own, such as `endpoint_url`.

    Raises:
        InstallationError: boto3 is not installed.
        ConfigError: nothing says which region.
    """
    try:
        import boto3
        from botocore.config import Config as ClientConfig
    except ModuleNotFoundError as exc:
        raise InstallationError(f"AWS {service}", "boto3 is not installed", "pip install 'cdc-lake[aws]'") from exc
    with in_our_words(f"AWS {service}"):
        return boto3.Session().client(
            service,
            region_name=region,
            **settings,
            config=ClientConfig(
                s3={"addressing_style": "path" if path_style else "auto"},
                connect_timeout=_TIMEOUT_SECONDS,
                read_timeout=_TIMEOUT_SECONDS,
                retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
            ),
        )


@contextmanager
def in_our_words(where: str) -> Iterator[None]:
    """Tell what boto3 raises as errors of ours.

    Args:
        where: what is asked for, for the message.

    Raises:
        ConfigError: there is no such thing, or the credentials are missing or do not allow it.
        InfrastructureError: AWS does not answer.
        CdcLakeError: AWS does not take the request.
    """
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        NoRegionError,
        ParamValidationError,
        PartialCredentialsError,
    )

    credentials = "see that AWS' tools find credentials here, and that they allow it"
    try:
        yield
    except ClientError as exc:
        error = exc.response.get("Error", {})
        code, said = error.get("Code", "no code"), error.get("Message", "")
        if _MISSING.search(code):
            raise ConfigError(where, "there is no such thing", "see its name, and the region") from exc
        if is_refusal(exc):
            raise ConfigError(where, f"AWS refuses the credentials ({said or code})", credentials) from exc
        if _WRONG.search(code):
            raise ConfigError(where, f"AWS does not take it ({code}: {said})", "see the settings") from exc
        raise InfrastructureError(where, f"AWS answered {code}", "run again") from exc
    except (NoCredentialsError, PartialCredentialsError) as exc:
        raise ConfigError(where, f"there are no credentials ({type(exc).__name__})", credentials) from exc
    except NoRegionError as exc:
        raise ConfigError(where, "nothing says which region", "set AWS_DEFAULT_REGION") from exc
    except ParamValidationError as exc:
        todo = "this is a defect of cdc_lake: please report it"
        raise CdcLakeError(where, f"the request is not one ({exc})", todo) from exc
    except BotoCoreError as exc:
        todo = "see the region, and that it can be reached from here; then run again"
        raise InfrastructureError(where, f"AWS does not answer ({type(exc).__name__})", todo) from exc


def is_refusal(error: Any) -> bool:
    """Whether AWS refuses the credentials, or what they may do, which it does however often it is asked.

    Args:
        error: a `ClientError` of botocore.
    """
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status in _REFUSAL_STATUSES or bool(_REFUSALS.search(error.response.get("Error", {}).get("Code", "")))


def parameter(name: str) -> str:
    """The value of a parameter in Systems Manager's Parameter Store, decrypted.

    Args:
        name: with its path, or its ARN.

    Raises:
        ConfigError: there is none, or it cannot be read.
        InfrastructureError: AWS does not answer.
    """
    store = client("ssm")
    with in_our_words(f"ssm:{name}"):
        value: str = store.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
    return value


def managed_secret(place: str) -> str:
    """A secret of Secrets Manager.

    Args:
        place: its name or ARN; of one that is a JSON object with `#` and a key behind it.

    Raises:
        ConfigError: there is none, or not that key in it, or it cannot be read.
        InfrastructureError: AWS does not answer.
    """
    name, _, key = place.partition("#")
    manager = client("secretsmanager")
    with in_our_words(f"secretsmanager:{place}"):
        text: str | None = manager.get_secret_value(SecretId=name).get("SecretString")
    if text is None:
        raise ConfigError(f"secretsmanager:{place}", "it is binary", "store it as text")
    if not key:
        return text
    try:
        return str(json.loads(text)[key])
    except (ValueError, KeyError, TypeError):
        # Without the cause: what json says of a text quotes it.
        raise ConfigError(
            f"secretsmanager:{place}", f"it is no JSON object with `{key}`", "see its keys, or leave `#…` out"
        ) from None
