"""Addresses of the servers; `embedded` is resolved to the address in the embedded stack."""

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
    """The bootstrap servers, with `embedded` resolved."""
    return _address(stack, kafka.bootstrap_servers, "kafka")


def registry_address(registry: RegistryConfig, stack: StackConfig) -> str:
    """The registry's URL without a trailing slash, with `embedded` resolved."""
    url = _address(stack, registry.url, "registry").rstrip("/")
    return f"{url}/apis/ccompat/v7" if (registry.url, registry.type) == (EMBEDDED, "ccompat") else url


def metastore_address(catalog: CatalogConfig, stack: StackConfig) -> str | None:
    """The metastore's addresses, with `embedded` resolved; None if the cluster's hive-site.xml has them."""
    return catalog.uri and _address(stack, catalog.uri, "metastore")


def database_url(databases: Mapping[str, DatabaseConfig], stack: StackConfig, prefix: str) -> SecretStr:
    """The URL of the source database of a topic prefix, with `embedded` and references resolved.

    Raises:
        ConfigError: the embedded server does not run, or the secret does not exist.
        UnsupportedError: it is not the URL of a Postgres database.
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
            "only Postgres databases can be compared, and this is not the URL of one",
            "set a URL that begins with `postgresql://`",
        )
    return url


def endpoints_file(stack_folder: str | Path) -> Path:
    """The file in which a running embedded stack stores its addresses: a JSON object of strings."""
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
            f"the embedded servers in {stack.folder} were started without this server",
            f"run `cdc-lake stack down`, then `cdc-lake stack up --{server}`",
        )
    return address
