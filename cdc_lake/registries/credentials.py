"""Access to the settings' registry: its endpoint, and credentials (none, a password, a token, or OAuth tokens)."""

import base64
import ssl
import threading
import time
from dataclasses import replace
from urllib.parse import quote_plus, urlsplit

from pydantic import SecretStr

from cdc_lake.config import RegistryConfig, TlsConfig, check_privacy, is_reference, secret
from cdc_lake.errors import ConfigError
from cdc_lake.registries.http_client import Credentials, Endpoint, HttpClient

_EARLY_SECONDS = 30.0
_EARLY_SHARE = 0.2
"""A token is renewed this long before it expires, or when this share of its lifetime is left, if that is later."""


class Anonymous:
    def authorization(self) -> str | None:
        return None

    def renew(self) -> bool:
        return False


class Basic:
    def __init__(self, user: str, password: SecretStr) -> None:
        self._user = user
        self._password = password

    def authorization(self) -> str | None:
        pair = f"{self._user}:{self._password.get_secret_value()}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"

    def renew(self) -> bool:
        return False


class Bearer:
    """A bearer token that another process keeps up to date.

    Args:
        reference: a secret reference; see `cdc_lake.config.secret`.
    """

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._token = self._read()

    def authorization(self) -> str | None:
        return f"Bearer {self._token.get_secret_value()}"

    def renew(self) -> bool:
        before, self._token = self._token, self._read()
        return self._token != before

    def _read(self) -> SecretStr:
        token = secret(self._reference)
        if not _is_token(token.get_secret_value()):
            raise ConfigError(self._reference, "it is not a token", "store the bare token there, on one line")
        return token


class ClientCredentials:
    """OAuth tokens of a client id and secret, each used until shortly before it expires."""

    def __init__(self, provider: Endpoint, client_id: str, client_secret: SecretStr, scope: str | None) -> None:
        # RFC 6749 §2.3.1: id and secret are form-encoded first.
        encoded = SecretStr(quote_plus(client_secret.get_secret_value()))
        self._http = HttpClient(provider, Basic(quote_plus(client_id), encoded))
        self._provider = provider
        self._form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        self._lock = threading.Lock()
        self._token = SecretStr("")
        self._renew_at = 0.0

    def authorization(self) -> str | None:
        with self._lock:
            if time.monotonic() >= self._renew_at:
                self._fetch()
            return f"Bearer {self._token.get_secret_value()}"

    def renew(self) -> bool:
        with self._lock:
            self._renew_at = 0.0
        return True

    def _fetch(self) -> None:
        requested_at = time.monotonic()
        answer = self._http.post_form(self._form)
        try:
            token, lifetime_seconds = answer["access_token"], float(answer.get("expires_in") or 300)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise self._provider.unavailable_error("its response contains no token") from exc
        if not isinstance(token, str) or not _is_token(token):
            raise self._provider.unavailable_error("its response contains no token")
        self._token = SecretStr(token)
        self._renew_at = requested_at + lifetime_seconds - min(_EARLY_SECONDS, _EARLY_SHARE * lifetime_seconds)


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and bool(text) and " " not in text


def access_to(config: RegistryConfig) -> tuple[Endpoint, Credentials]:
    """The endpoint and credentials of the settings' registry.

    Raises:
        ConfigError: credentials would be sent unencrypted, or the address, a file or a secret is missing.
    """
    url = config.address
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


def login(reference: str) -> Credentials:
    """The credentials of a secret that is `user:password` or a token.

    Args:
        reference: see `cdc_lake.config.secret`.

    Raises:
        ConfigError: the secret does not exist, or is neither.
    """
    user, is_basic, password = secret(reference).get_secret_value().partition(":")
    return Basic(user, SecretStr(password)) if is_basic else Bearer(reference)


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
