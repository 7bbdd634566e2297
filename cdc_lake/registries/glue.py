"""AWS Glue Schema Registry through boto3 (extra `aws`)."""

from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config as ClientConfig
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
)

from cdc_lake.aws import rejects_credentials
from cdc_lake.config import RegistryConfig
from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.registries.credentials import proxy_address
from cdc_lake.registries.registry import RegisteredSchema, RetryPolicy, is_id, lookup_seconds

_NO_SCHEMA = "00000000-0000-0000-0000-000000000000"
_MISSING = "EntityNotFoundException"


class GlueRegistry:
    """AWS Glue Schema Registry. Its frames contain the UUID of a schema version, never a bare number.

    Args:
        settings: the registry's. Credentials come from boto3's default chain.
    """

    name = "glue"
    namespaces = ()

    def __init__(self, settings: RegistryConfig) -> None:
        self._where = f"AWS Glue Schema Registry{f' in {settings.region}' if settings.region else ''}"
        self._get = self._open_client(settings)
        self._retry = RetryPolicy(self._unavailable_error, lookup_seconds(settings.timeout_seconds, settings.attempts))

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        if kind != "glue" or not is_id(kind, schema_id):
            return None
        return self._retry.call_until_found(lambda: self._look_up(schema_id))

    def check(self) -> None:
        """See `Registry`. It requests a version that does not exist, so glue:GetSchemaVersion suffices."""
        self._retry.call(lambda: self._look_up(_NO_SCHEMA))

    def _look_up(self, version: str) -> RegisteredSchema | None:
        try:
            answer = self._get(SchemaVersionId=version)
            return RegisteredSchema(answer["SchemaDefinition"], answer["DataFormat"])
        except ClientError as exc:
            code = exc.response.get("Error", {}).get("Code", "no code")
            if code == _MISSING:
                return None
            raise (
                self._rejection_error(code)
                if rejects_credentials(exc)
                else self._unavailable_error(f"it responded with {code}")
            ) from exc
        except (NoCredentialsError, PartialCredentialsError, TokenRetrievalError) as exc:
            raise self._rejection_error(type(exc).__name__) from exc
        except BotoCoreError as exc:
            raise self._unavailable_error(f"it does not respond ({type(exc).__name__})") from exc
        except KeyError as exc:
            raise self._unavailable_error("its response is not a schema") from exc

    def _rejection_error(self, why: str) -> ConfigError:
        return ConfigError(
            self._where,
            f"it rejects the credentials ({why})",
            "provide AWS credentials that allow glue:GetSchemaVersion",
        )

    def _unavailable_error(self, what: str) -> InfrastructureError:
        return InfrastructureError(self._where, what, "check the network connection and the region, then run again")

    def _open_client(self, settings: RegistryConfig) -> Callable[..., dict[str, Any]]:
        proxy, tls = proxy_address(settings.proxy), settings.tls
        config = ClientConfig(
            connect_timeout=settings.timeout_seconds,
            read_timeout=settings.timeout_seconds,
            retries={"total_max_attempts": settings.attempts, "mode": "standard"},
            proxies={"https": proxy.get_secret_value()} if proxy else None,
            client_cert=(tls.cert, tls.key) if tls.key else tls.cert,
        )
        try:
            client = boto3.Session().client(
                "glue",
                region_name=settings.region,
                endpoint_url=settings.glue_endpoint,
                verify=tls.ca,
                config=config,
            )
        except BotoCoreError as exc:
            raise ConfigError(
                self._where,
                f"boto3 rejects the settings ({type(exc).__name__})",
                "check registry.region and registry.url",
            ) from exc
        get: Callable[..., dict[str, Any]] = client.get_schema_version
        return get
