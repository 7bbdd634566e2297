"""Endpoint and credentials of the settings' registry, checked before the first request."""

import ssl
from dataclasses import replace
from urllib.parse import urlsplit

from pydantic import SecretStr

from cdc_lake.config import RegistryConfig, TlsConfig, is_reference, secret
from cdc_lake.errors import ConfigError
from cdc_lake.privacy import check_privacy
from cdc_lake.registries.credentials import Anonymous, Basic, Bearer, ClientCredentials
from cdc_lake.registries.http_client import Credentials, Endpoint


def access_to(config: RegistryConfig, url: str) -> tuple[Endpoint, Credentials]:
    """The endpoint and credentials of the settings' registry.

    Args:
        url: `registry.url`, with `embedded` resolved.

    Raises:
        ConfigError: credentials would be sent unencrypted, or a file or secret is missing.
    """
    _check_files(config.tls)
    endpoint = Endpoint(
        url, config.timeout_seconds, config.attempts, config.headers, config.tls, proxy_address(config.proxy)
    )
    if config.auth is None:
        return endpoint, Anonymous()
    check_privacy("registry.url", url, endpoint.proxy)
    if config.auth.basic:
        return endpoint, Basic(config.auth.basic.user, secret(config.auth.basic.password))
    if config.auth.bearer:
        return endpoint, Bearer(config.auth.bearer.token)
    oauth = config.auth.oauth
    assert oauth is not None, "checked by the settings"
    check_privacy("registry.auth.oauth.token_url", oauth.token_url, endpoint.proxy)
    provider = replace(endpoint, url=oauth.token_url, headers={}, name="token endpoint")
    return endpoint, ClientCredentials(provider, oauth.client_id, secret(oauth.client_secret), oauth.scope)


def proxy_address(proxy: str | None) -> SecretStr | None:
    """The URL of the settings' proxy, which may contain a password.

    Raises:
        ConfigError: the setting or its secret is not a URL.
    """
    if proxy is None:
        return None
    address = secret(proxy) if is_reference(proxy) else SecretStr(proxy)
    try:
        url = urlsplit(address.get_secret_value())
        is_address = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(f"registry.proxy {proxy}", "it is not a URL", "write it as `http://host:port`")
    return address


def _check_files(tls: TlsConfig) -> None:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key, password="")  # otherwise OpenSSL prompts for one
    except OSError as exc:
        files = ", ".join(f"registry.tls.{name} {path}" for name, path in tls.model_dump(exclude_none=True).items())
        raise ConfigError(
            files,
            f"a file is missing or not a PEM file of its kind ({type(exc).__name__})",
            "check each file; the key must not be encrypted",
        ) from exc
