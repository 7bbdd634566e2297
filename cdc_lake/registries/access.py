"""HTTP access to a registry: endpoint, credentials, retries and limits.

Redirects are not followed, because they would send the credentials to another host. Responses have a size limit. Errors
name the URL but no credentials.
"""

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar
from urllib.parse import quote_plus, urlsplit

import requests
from pydantic import SecretStr
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from cdc_lake.config import RegistryConfig, TlsConfig, is_reference, secret
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError
from cdc_lake.privacy import check_privacy

MAX_RESPONSE_BYTES = 8 << 20
"""Limit of a response. Schemas are limited to 1 MiB, and JSON escapes may make a text several times longer."""
RETRIED_STATUSES = (408, 429, 500, 502, 503, 504)
BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 10.0
_REJECTION_STATUSES = (401, 403)
_LAG_WAITS_SECONDS = (0.2, 0.6)
_LAG_PERIOD_SECONDS = 10.0
_REQUESTS_PER_LOOKUP = 3
"""A lookup may take as long as this many requests that all time out."""
_EARLY_SECONDS = 30.0
_EARLY_SHARE = 0.2
"""A token is renewed this long before it expires, or when this share of its lifetime is left, if that is later."""

T = TypeVar("T")


@dataclass(frozen=True)
class Endpoint:
    """A server's URL and connection settings.

    Args:
        url: without a trailing slash.
        timeout_seconds: for one request.
        attempts: number of requests before the server is considered unavailable.
        headers: additional headers, without credentials.
        tls: certificate files.
        proxy: its URL, which may contain a password.
        name: the server's name in messages.
    """

    url: str
    timeout_seconds: float = 10.0
    attempts: int = 4
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: TlsConfig = field(default_factory=TlsConfig)
    proxy: SecretStr | None = None
    name: str = "schema registry"

    @property
    def lookup_seconds(self) -> float:
        """The time limit of one lookup."""
        return lookup_seconds(self.timeout_seconds, self.attempts)

    def unavailable_error(self, what: str) -> InfrastructureError:
        """The error of a server that does not respond, or not as a registry."""
        todo = "check that it runs and is reachable from this machine, then run again"
        return InfrastructureError(f"{self.name} at {self.url}", what, todo)

    def rejection_error(self, status: int, path: str) -> ConfigError:
        """The error of a server that rejects the credentials."""
        return ConfigError(
            f"{self.name} at {self.url}",
            f"it rejects the credentials ({status} for {path})",
            "check registry.auth, and its read and write permissions there",
        )

    def status_error(self, status: int, path: str) -> CdcLakeError:
        """The error of an HTTP status other than success."""
        if status in _REJECTION_STATUSES:
            return self.rejection_error(status, path)
        return self.unavailable_error(f"it responded with {status} for {path}")


class Credentials(Protocol):
    """Credentials of requests."""

    def authorization(self) -> str | None:
        """The value of the `Authorization` header; none without credentials."""

    def renew(self) -> bool:
        """Discard a rejected credential.

        Returns:
            Whether the next `authorization` may differ.
        """


class Anonymous:
    """No credentials."""

    def authorization(self) -> str | None:
        """See `Credentials`."""
        return None

    def renew(self) -> bool:
        """See `Credentials`."""
        return False


class Basic:
    """A user and a password."""

    def __init__(self, user: str, password: SecretStr) -> None:
        self._user = user
        self._password = password

    def authorization(self) -> str | None:
        """See `Credentials`."""
        pair = f"{self._user}:{self._password.get_secret_value()}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"

    def renew(self) -> bool:
        """See `Credentials`."""
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
        """See `Credentials`."""
        return f"Bearer {self._token.get_secret_value()}"

    def renew(self) -> bool:
        """See `Credentials`."""
        before, self._token = self._token, self._read()
        return self._token != before

    def _read(self) -> SecretStr:
        token = secret(self._reference)
        if not _is_token(token.get_secret_value()):
            raise ConfigError(self._reference, "it is not a token", "store the bare token there, on one line")
        return token


class ClientCredentials:
    """OAuth tokens of a client id and secret, each used until shortly before it expires.

    Args:
        provider: the token endpoint.
    """

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
        """See `Credentials`."""
        with self._lock:
            if time.monotonic() >= self._renew_at:
                self._fetch()
            return f"Bearer {self._token.get_secret_value()}"

    def renew(self) -> bool:
        """See `Credentials`."""
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


class HttpClient:
    """HTTP requests with retries."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials) -> None:
        self._endpoint = endpoint
        self._credentials = credentials
        self._session = requests.Session()
        self._session.headers.update({"Accept-Encoding": "identity", **endpoint.headers})
        # Also keeps `requests` from reading ~/.netrc.
        self._session.auth = self._authorize
        if endpoint.tls.cert:
            self._session.cert = (endpoint.tls.cert, endpoint.tls.key) if endpoint.tls.key else endpoint.tls.cert
        retry = Retry(
            total=endpoint.attempts - 1,
            redirect=0,
            allowed_methods=None,
            status_forcelist=RETRIED_STATUSES,
            raise_on_status=False,
            backoff_factor=BACKOFF_SECONDS,
            backoff_jitter=BACKOFF_SECONDS,
            backoff_max=MAX_BACKOFF_SECONDS,
            respect_retry_after_header=False,  # which may ask for hours
        )
        self._session.mount("http://", HTTPAdapter(max_retries=retry))
        self._session.mount("https://", HTTPAdapter(max_retries=retry))

    def get(self, path: str) -> str | None:
        """GET a path below the endpoint's URL.

        Returns:
            The response's text; none for 404.

        Raises:
            ConfigError: the server rejects the credentials.
            InfrastructureError: the server does not respond, or with an error.
        """
        url = f"{self._endpoint.url}/{path}"
        status, text = self._request("GET", url)
        if status == requests.codes.unauthorized and self._credentials.renew():
            status, text = self._request("GET", url)
        if status == requests.codes.not_found:
            return None
        if status != requests.codes.ok:
            raise self._endpoint.status_error(status, path)
        return text

    def get_json(self, path: str) -> Any:
        """GET a path as JSON; see `get`."""
        text = self.get(path)
        return None if text is None else self._json(text)

    def send(
        self, method: str, path: str, content: object, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a text, or an object as JSON, to a path below the endpoint's URL.

        Returns:
            The status, and the response's JSON. The caller handles statuses from 400 to 499 except 401 and 403.

        Raises:
            ConfigError: the server rejects the credentials.
            InfrastructureError: the server does not respond, or with an error from 500 on.
        """
        url = f"{self._endpoint.url}/{path}"
        body = content if isinstance(content, str) else json.dumps(content)
        all_headers = {"Content-Type": "application/json", **(headers or {})}
        status, text = self._request(method, url, body, all_headers)
        if status == requests.codes.unauthorized and self._credentials.renew():
            status, text = self._request(method, url, body, all_headers)
        if status in _REJECTION_STATUSES or status >= requests.codes.server_error:
            raise self._endpoint.status_error(status, path)
        return status, self._json(text) if text else None

    def post_form(self, form: Mapping[str, str]) -> Any:
        """POST a form to the endpoint's URL; the response's JSON.

        Raises:
            ConfigError: the server rejects the credentials.
            InfrastructureError: the server does not respond, or with an error.
        """
        status, text = self._request("POST", self._endpoint.url, form)
        if status == requests.codes.bad_request:  # RFC 6749 §5.2: for a wrong client id, secret or scope
            raise self._endpoint.rejection_error(status, "a token")
        if status != requests.codes.ok:
            raise self._endpoint.status_error(status, "a token")
        return self._json(text)

    def _json(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise self._endpoint.unavailable_error("its response is not JSON: it may be another server") from exc

    def _request(
        self,
        method: str,
        url: str,
        body: str | Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        proxy = self._endpoint.proxy.get_secret_value() if self._endpoint.proxy else None
        try:
            with self._session.request(
                method,
                url,
                data=body.encode() if isinstance(body, str) else body,
                headers=headers,
                timeout=self._endpoint.timeout_seconds,
                allow_redirects=False,
                stream=True,
                verify=self._endpoint.tls.ca or True,
                proxies={"http": proxy, "https": proxy} if proxy else None,
            ) as answer:
                content = bytearray()
                for chunk in answer.iter_content(1 << 16):
                    content += chunk
                    if len(content) > MAX_RESPONSE_BYTES:
                        raise self._endpoint.unavailable_error(f"its response exceeds {MAX_RESPONSE_BYTES} bytes")
                return answer.status_code, content.decode("utf-8", "strict" if answer.ok else "replace")
        except requests.RequestException as exc:
            raise self._endpoint.unavailable_error(f"it does not respond ({type(exc).__name__})") from exc
        except UnicodeDecodeError as exc:
            raise self._endpoint.unavailable_error("its response is not text") from exc

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        header = self._credentials.authorization()
        if header is not None:
            request.headers["Authorization"] = header
        return request


class RetryPolicy:
    """Limits the time of lookups, and retries those that find nothing: replicas of a registry may lag.

    After lookups that waited and found nothing, others do not wait for some seconds. So a topic full of garbage does
    not delay a run by one wait per unknown id.

    Args:
        unavailable_error: makes the error of a registry that does not respond.
        seconds: time limit of one lookup, with all its requests.
    """

    def __init__(
        self,
        unavailable_error: Callable[[str], CdcLakeError],
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._unavailable_error = unavailable_error
        self._seconds = seconds
        self._sleep = sleep
        self._waited_at = -_LAG_PERIOD_SECONDS

    def call(self, look_up: Callable[[], T]) -> T:
        """Call `look_up` on a thread of its own, because reads of a server that sends byte by byte never time out.

        Raises:
            InfrastructureError: it takes too long.
        """
        found: Future[T] = Future()

        def wait() -> None:
            try:
                found.set_result(look_up())
            except BaseException as exc:
                found.set_exception(exc)

        threading.Thread(target=wait, daemon=True).start()
        try:
            return found.result(self._seconds)
        except TimeoutError as exc:
            if found.done():
                raise
            raise self._unavailable_error(f"a lookup took more than {self._seconds:g} s") from exc

    def call_until_found(self, look_up: Callable[[], T | None]) -> T | None:
        """Call `look_up`, and again after short waits while it returns none.

        Raises:
            InfrastructureError: see `call`.
        """
        answer = self.call(look_up)
        if answer is not None or time.monotonic() - self._waited_at < _LAG_PERIOD_SECONDS:
            return answer
        for seconds in _LAG_WAITS_SECONDS:
            self._sleep(seconds)
            answer = self.call(look_up)
            if answer is not None:
                return answer
        self._waited_at = time.monotonic()
        return None


def lookup_seconds(timeout_seconds: float, attempts: int) -> float:
    """The time limit of one lookup, from the settings of a request."""
    return _REQUESTS_PER_LOOKUP * attempts * (timeout_seconds + BACKOFF_SECONDS)


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


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and bool(text) and " " not in text
