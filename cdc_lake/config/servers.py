"""Addresses of the servers, with those of the embedded stack looked up."""

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from pydantic import SecretStr

from cdc_lake.config.catalog import CatalogConfig
from cdc_lake.config.kafka import KafkaConfig
from cdc_lake.config.registry import RegistryConfig
from cdc_lake.config.secrets import secret
from cdc_lake.config.settings import DatabaseConfig, StackConfig
from cdc_lake.config.urls import EMBEDDED
from cdc_lake.errors import ConfigError, UnsupportedError


def kafka_address(kafka: KafkaConfig, stack: StackConfig) -> str:
    """The bootstrap servers, with `embedded` looked up."""
    return _address(stack, kafka.bootstrap_servers, "kafka")


def registry_address(registry: RegistryConfig, stack: StackConfig) -> str:
    """The registry's URL without a trailing slash, with `embedded` looked up."""
    url = _address(stack, registry.url, "registry").rstrip("/")
    return f"{url}/apis/ccompat/v7" if (registry.url, registry.type) == (EMBEDDED, "ccompat") else url


def metastore_address(catalog: CatalogConfig, stack: StackConfig) -> str | None:
    """The metastore's addresses, with `embedded` looked up; none where the cluster's own settings say."""
    return catalog.uri and _address(stack, catalog.uri, "metastore")


def database_url(databases: Mapping[str, DatabaseConfig], stack: StackConfig, prefix: str) -> SecretStr:
    """The address of the source database of a topic prefix, with `embedded` and references looked up.

    Raises:
        ConfigError: nothing says where it is.
        UnsupportedError: it is no Postgres.
        InstallationError, InfrastructureError: see `secret`.
    """
    setting = databases.get(prefix, DatabaseConfig()).url
    if setting == EMBEDDED:
        server = urlsplit(_address(stack, setting, "postgres"))
        return SecretStr(server._replace(path=f"/{quote(prefix)}").geturl())
    url = secret(setting)
    scheme, _, rest = url.get_secret_value().partition("://")
    if rest and scheme not in ("postgresql", "postgres"):
        raise UnsupportedError(
            f"databases.{prefix}.url",
            "it is not the address of a Postgres, the only kind of database that can be compared with",
            "give one that begins with `postgresql://`",
        )
    return url


def endpoints_file(stack_folder: str | Path) -> Path:
    """Where a running embedded stack writes its addresses, as one JSON object of strings."""
    return Path(stack_folder) / "endpoints.json"


def _address(stack: StackConfig, value: str, server: str) -> str:
    if value != EMBEDDED:
        return value
    file = endpoints_file(stack.folder)
    if not file.is_file():
        raise ConfigError(
            f"{server}: embedded",
            f"the embedded servers in {stack.folder} are not running",
            "run `cdc-lake stack up`, or set the address in the configuration file",
        )
    address: str | None = json.loads(file.read_text(encoding="utf-8")).get(server)
    if address is None:
        raise ConfigError(
            f"{server}: embedded",
            f"the embedded servers in {stack.folder} were started without one",
            f"run `cdc-lake stack down`, then `cdc-lake stack up --{server}`",
        )
    return address
