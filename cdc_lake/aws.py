"""AWS through boto3 (extra `aws`): clients, translated errors, parameters, secrets, and exclusive puts to S3."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, InstallationError

S3_SCHEMES = ("s3", "s3a", "s3n")
"""URL schemes of S3: Hadoop's and EMR's."""
_CREDENTIALS_REJECTED = re.compile(r"AccessDenied|UnrecognizedClient|Signature|Token|Unauthorized|OptInRequired")
"""Error codes with which AWS services reject credentials."""
_CREDENTIALS_REJECTED_STATUSES = (401, 403)
_MISSING = re.compile(r"ParameterNotFound|ParameterVersionNotFound|ResourceNotFound")
_INVALID = re.compile(r"Invalid|Validation")
_EXISTS = ("PreconditionFailed", "ConditionalRequestConflict")
"""S3's errors of a conditional put if the object exists, or another client is creating it."""
_ATTEMPTS = 4
_TIMEOUT_SECONDS = 10.0


def client(service: str, region: str | None = None, *, path_style: bool = False, **settings: str | None) -> Any:
    """A boto3 client of an AWS service, with credentials from boto3's default chain.

    Args:
        region: default: boto3's own sources.
        path_style: for S3: the bucket's name is part of the path instead of the host.
        settings: further arguments of boto3, such as `endpoint_url`.

    Raises:
        InstallationError: boto3 is not installed.
        ConfigError: no region is set.
    """
    try:
        import boto3
        from botocore.config import Config as ClientConfig
    except ModuleNotFoundError as exc:
        raise InstallationError(f"AWS {service}", "boto3 is not installed", "pip install 'cdc-lake[aws]'") from exc
    with translated(f"AWS {service}"):
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
def translated(where: str) -> Iterator[None]:
    """Translate boto3's errors to cdc_lake's.

    Raises:
        ConfigError: the resource does not exist, or the credentials are missing or lack a permission.
        InfrastructureError: AWS does not respond.
        CdcLakeError: boto3 rejects the request.
    """
    from botocore import exceptions

    credentials = "provide AWS credentials that allow this request"
    try:
        yield
    except exceptions.ClientError as exc:
        error = exc.response.get("Error", {})
        code, message = error.get("Code", "no code"), error.get("Message", "")
        if _MISSING.search(code):
            raise ConfigError(where, "it does not exist", "check its name and the region") from exc
        if rejects_credentials(exc):
            raise ConfigError(where, f"AWS rejects the credentials ({message or code})", credentials) from exc
        if _INVALID.search(code):
            raise ConfigError(where, f"AWS rejects the request ({code}: {message})", "check the settings") from exc
        raise InfrastructureError(where, f"AWS responded with {code}", "run again") from exc
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as exc:
        raise ConfigError(where, f"there are no credentials ({type(exc).__name__})", credentials) from exc
    except exceptions.NoRegionError as exc:
        raise ConfigError(where, "no AWS region is set", "set AWS_DEFAULT_REGION") from exc
    except exceptions.ParamValidationError as exc:
        cure = "this is a bug in cdc_lake: please report it"
        raise CdcLakeError(where, f"the request is invalid ({exc})", cure) from exc
    except exceptions.BotoCoreError as exc:
        cure = "check the region and the network connection, then run again"
        raise InfrastructureError(where, f"AWS does not respond ({type(exc).__name__})", cure) from exc


def rejects_credentials(error: Any) -> bool:
    """Whether AWS rejects the credentials or their permissions, so that retries do not help."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = error.response.get("Error", {}).get("Code", "")
    return status in _CREDENTIALS_REJECTED_STATUSES or bool(_CREDENTIALS_REJECTED.search(code))


def parameter(name: str) -> str:
    """The decrypted value of a parameter in Systems Manager's Parameter Store.

    Args:
        name: its full name or ARN.

    Raises:
        ConfigError: it does not exist, or cannot be read.
        InfrastructureError: AWS does not respond.
    """
    store = client("ssm")
    with translated(f"ssm:{name}"):
        value: str = store.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
    return value


def managed_secret(place: str) -> str:
    """A secret from Secrets Manager.

    Args:
        place: its name or ARN, followed by `#` and a key if the secret is a JSON object.

    Raises:
        ConfigError: the secret or the key does not exist, or cannot be read.
        InfrastructureError: AWS does not respond.
    """
    name, _, key = place.partition("#")
    manager = client("secretsmanager")
    with translated(f"secretsmanager:{place}"):
        text: str | None = manager.get_secret_value(SecretId=name).get("SecretString")
    if text is None:
        raise ConfigError(f"secretsmanager:{place}", "the secret is binary", "store it as text")
    if not key:
        return text
    try:
        return str(json.loads(text)[key])
    except (ValueError, KeyError, TypeError):
        # Without the cause: json's error quotes the secret.
        raise ConfigError(
            f"secretsmanager:{place}",
            f"the secret is not a JSON object with the key `{key}`",
            "correct the key, or remove `#…`",
        ) from None


class ConditionalPuts:
    """Puts S3 objects only if they do not exist (`If-None-Match: *`), which Hadoop's file systems cannot.

    It uses the endpoint and keys of Hadoop's configuration, or else boto3's default credentials.

    Args:
        conf: Hadoop's configuration.
        bucket: its settings (`fs.s3a.bucket.<bucket>.…`) override those of all buckets.

    Raises:
        InstallationError: boto3 is not installed.
        ConfigError: no region is set.
    """

    def __init__(self, conf: Any, bucket: str) -> None:
        def setting(name: str) -> str | None:
            found: str | None = conf.get(f"fs.s3a.bucket.{bucket}.{name}", conf.get(f"fs.s3a.{name}"))
            return found

        endpoint = setting("endpoint")
        if endpoint and "://" not in endpoint:
            endpoint = f"{'http' if setting('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
        self._client = client(
            "s3",
            setting("endpoint.region"),
            path_style=setting("path.style.access") == "true",
            endpoint_url=endpoint or None,
            aws_access_key_id=setting("access.key"),
            aws_secret_access_key=setting("secret.key"),
            aws_session_token=setting("session.token"),
        )

    def put(self, path: str, text: str) -> bool:
        """Create an object; false if it exists.

        Raises:
            ConfigError: the credentials are missing, or lack the permission.
            InfrastructureError: the store does not respond, or the bucket does not exist.
        """
        from botocore.exceptions import ClientError

        url = urlsplit(path)
        with translated(path):
            try:
                self._client.put_object(
                    Bucket=url.netloc, Key=url.path.lstrip("/"), Body=text.encode(), IfNoneMatch="*"
                )
            except ClientError as exc:
                if exc.response["Error"]["Code"] in _EXISTS:
                    return False
                raise
        return True
