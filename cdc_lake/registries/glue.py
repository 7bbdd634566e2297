"""AWS Glue Schema Registry, by boto3, which the extra `aws` brings."""

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

from cdc_lake.aws import is_refusal
from cdc_lake.config import EMBEDDED, RegistryConfig
from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.registries.access import Patience, lookup_seconds, proxy_address
from cdc_lake.registries.registry import RegisteredSchema, is_id

_NO_SCHEMA = "00000000-0000-0000-0000-000000000000"
_MISSING = "EntityNotFoundException"


class GlueRegistry:
    """AWS Glue Schema Registry. Its frames hold the UUID of a schema's version, so a bare number means nothing to it.

    Args:
        settings: those of the registry. Credentials come from where AWS' own tools look for them.
    """

    name = "glue"
    namespaces = ()

    def __init__(self, settings: RegistryConfig) -> None:
        self._where = f"AWS Glue Schema Registry{f' in {settings.region}' if settings.region else ''}"
        self._get = self._opened(settings)
        self._patience = Patience(self._down, lookup_seconds(settings.timeout_seconds, settings.attempts))

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        """See `Registry`."""
        if kind != "glue" or not is_id(kind, schema_id):
            return None
        return self._patience.ask(lambda: self._look_up(schema_id))

    def check(self) -> None:
        """See `Registry`. Asks for a version that is not there: so the one permission that is needed is enough."""
        self._patience.once(lambda: self._look_up(_NO_SCHEMA))

    def _look_up(self, version: str) -> RegisteredSchema | None:
        try:
            found = self._get(SchemaVersionId=version)
            return RegisteredSchema(found["SchemaDefinition"], found["DataFormat"])
        except ClientError as exc:
            code = exc.response.get("Error", {}).get("Code", "no code")
            if code == _MISSING:
                return None
            raise (self._refused(code) if is_refusal(exc) else self._down(f"it answered {code}")) from exc
        except (NoCredentialsError, PartialCredentialsError, TokenRetrievalError) as exc:
            raise self._refused(type(exc).__name__) from exc
        except BotoCoreError as exc:
            raise self._down(f"it does not answer ({type(exc).__name__})") from exc
        except KeyError as exc:
            raise self._down("its answer is not a schema") from exc

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            self._where,
            f"it refuses the credentials ({why})",
            "see that AWS' tools find credentials here, and that they allow glue:GetSchemaVersion",
        )

    def _down(self, what: str) -> InfrastructureError:
        return InfrastructureError(
            self._where, what, "see that it can be reached from here, then run again; nothing was committed"
        )

    def _opened(self, settings: RegistryConfig) -> Callable[..., dict[str, Any]]:
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
                endpoint_url=None if settings.url == EMBEDDED else settings.url,
                verify=tls.ca,
                config=config,
            )
        except BotoCoreError as exc:
            raise ConfigError(
                self._where, f"there is no client for it ({type(exc).__name__})", "see registry.region and registry.url"
            ) from exc
        get: Callable[..., dict[str, Any]] = client.get_schema_version
        return get
