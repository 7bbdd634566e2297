"""How a registry is reached: its address, credentials that go there and nowhere else, and patience.

Redirects are not followed, since the next host would be told what only this one may know; and no answer is read without
a limit. What is raised here names the address and never a credential.
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

MAX_ANSWER_BYTES = 8 << 20
"""What is read of one answer. Texts of more than 1 MiB are refused as schemas, and JSON may write a text several times
as long as it is."""
RETRIED_STATUSES = (408, 429, 500, 502, 503, 504)
BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 10.0
_REFUSALS = (401, 403)
_LAG_WAITS_SECONDS = (0.2, 0.6)
_LAG_PERIOD_SECONDS = 10.0
_REQUESTS_PER_LOOKUP = 3
"""A lookup may take as long as so many requests that all time out."""
_EARLY_SECONDS = 30.0
_EARLY_SHARE = 0.2
"""A token is renewed so long before its end, or when this share of its life is left, if that is later."""

T = TypeVar("T")


@dataclass(frozen=True)
class Endpoint:
    """A server, and how to talk to it.

    Args:
        url: without a trailing slash.
        timeout_seconds: for one request.
        attempts: requests in all before the server counts as down.
        headers: sent along; no credentials.
        tls: files.
        proxy: its address, which may hold a password.
        name: what the server is to a reader.
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
        """For one lookup."""
        return lookup_seconds(self.timeout_seconds, self.attempts)

    def down(self, what: str) -> InfrastructureError:
        """The error of a server that does not do what it is there for."""
        todo = "see that it runs and can be reached from here, then run again; nothing was committed"
        return InfrastructureError(f"{self.name} at {self.url}", what, todo)

    def refused(self, status: int, path: str) -> ConfigError:
        """The error of a server that does not let us in."""
        return ConfigError(
            f"{self.name} at {self.url}",
            f"it refuses the credentials ({status} for {path})",
            "see registry.auth, and what they may read and write there; nothing was committed",
        )

    def failed(self, status: int, path: str) -> CdcLakeError:
        """The error of a status other than success."""
        if status in _REFUSALS:
            return self.refused(status, path)
        return self.down(f"it answered {status} for {path}")


class Credentials(Protocol):
    """Who asks."""

    def authorization(self) -> str | None:
        """The header of that name, if there is one."""

    def renew(self) -> bool:
        """Take back what was just refused; whether the next `authorization` may be another one."""


class Anonymous:
    """Nobody in particular."""

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
    """A token from where someone else keeps it fresh.

    Args:
        reference: as `secret` takes it.
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
            raise ConfigError(self._reference, "what is there is not a token", "put the bare token there, on one line")
        return token


class ClientCredentials:
    """OAuth tokens for a client id and its secret, each used until shortly before it expires.

    Args:
        provider: the token endpoint.
    """

    def __init__(self, provider: Endpoint, client_id: str, client_secret: SecretStr, scope: str | None) -> None:
        # RFC 6749 §2.3.1: both are form-encoded first.
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
        asked_at = time.monotonic()
        answer = self._http.post_form(self._form)
        try:
            token, life_seconds = answer["access_token"], float(answer.get("expires_in") or 300)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise self._provider.down("its answer holds no token") from exc
        if not isinstance(token, str) or not _is_token(token):
            raise self._provider.down("its answer holds no token")
        self._token = SecretStr(token)
        self._renew_at = asked_at + life_seconds - min(_EARLY_SECONDS, _EARLY_SHARE * life_seconds)


class HttpClient:
    """GET and POST on `requests`, with retries."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials) -> None:
        self._endpoint = endpoint
        self._credentials = credentials
        self._session = requests.Session()
        self._session.headers.update({"Accept-Encoding": "identity", **endpoint.headers})
        # Also keeps `requests` from looking into ~/.netrc.
        self._session.auth = self._authorized
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
            respect_retry_after_header=False,  # which may name hours
        )
        self._session.mount("http://", HTTPAdapter(max_retries=retry))
        self._session.mount("https://", HTTPAdapter(max_retries=retry))

    def get(self, path: str) -> str | None:
        """What is at a path below the endpoint's; none if nothing is.

        Raises:
            ConfigError: the credentials are refused.
            InfrastructureError: there is no answer, or not one of use.
        """
        url = f"{self._endpoint.url}/{path}"
        status, text = self._request("GET", url)
        if status == requests.codes.unauthorized and self._credentials.renew():
            status, text = self._request("GET", url)
        if status == requests.codes.not_found:
            return None
        if status != requests.codes.ok:
            raise self._endpoint.failed(status, path)
        return text

    def get_json(self, path: str) -> Any:
        """The same, read as JSON."""
        text = self.get(path)
        return None if text is None else self._json(text)

    def send(
        self, method: str, path: str, content: object, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a text, or else JSON, to a path below the endpoint's: the status, and the JSON that answers.

        Statuses from 400 on are the caller's to read, but for those of credentials and of servers that are down.

        Raises:
            ConfigError: the credentials are refused.
            InfrastructureError: there is no answer, or not one of use.
        """
        url = f"{self._endpoint.url}/{path}"
        body = content if isinstance(content, str) else json.dumps(content)
        how = {"Content-Type": "application/json", **(headers or {})}
        status, text = self._request(method, url, body, how)
        if status == requests.codes.unauthorized and self._credentials.renew():
            status, text = self._request(method, url, body, how)
        if status in _REFUSALS or status >= requests.codes.server_error:
            raise self._endpoint.failed(status, path)
        return status, self._json(text) if text else None

    def post_form(self, form: Mapping[str, str]) -> Any:
        """The JSON that answers a form sent to the endpoint itself.

        Raises:
            ConfigError: the credentials are refused.
            InfrastructureError: there is no answer, or not one of use.
        """
        status, text = self._request("POST", self._endpoint.url, form)
        if status == requests.codes.bad_request:  # RFC 6749 §5.2: what a wrong client id, secret or scope is told
            raise self._endpoint.refused(status, "a token")
        if status != requests.codes.ok:
            raise self._endpoint.failed(status, "a token")
        return self._json(text)

    def _json(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise self._endpoint.down("its answer is not JSON, so something else answers there") from exc

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
                    if len(content) > MAX_ANSWER_BYTES:
                        raise self._endpoint.down(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
                return answer.status_code, content.decode("utf-8", "strict" if answer.ok else "replace")
        except requests.RequestException as exc:
            raise self._endpoint.down(f"it does not answer ({type(exc).__name__})") from exc
        except UnicodeDecodeError as exc:
            raise self._endpoint.down("its answer is not text") from exc

    def _authorized(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        header = self._credentials.authorization()
        if header is not None:
            request.headers["Authorization"] = header
        return request


class Patience:
    """Asks within a limit of time, and once more for what is missing: a registry's replicas may lag behind the one that
    a producer wrote to.

    One wait serves every id that is missed within some seconds of it, so that a topic full of garbage does not take for
    ever.

    Args:
        down: the error of a registry that does not do what it is there for.
        seconds: for one lookup, with all the requests that it takes.
    """

    def __init__(
        self, down: Callable[[str], CdcLakeError], seconds: float, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._down = down
        self._seconds = seconds
        self._sleep = sleep
        self._waited_at = -_LAG_PERIOD_SECONDS

    def once(self, look_up: Callable[[], T]) -> T:
        """What `look_up` returns. Of a server that sends byte by byte no read ever times out, so a thread waits for it,
        until that connection ends.

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
            raise self._down(f"one lookup takes more than {self._seconds:g} s") from exc

    def ask(self, look_up: Callable[[], T | None]) -> T | None:
        """What `look_up` returns; asked again if that is none.

        Raises:
            InfrastructureError: see `once`.
        """
        answer = self.once(look_up)
        if answer is not None or time.monotonic() - self._waited_at < _LAG_PERIOD_SECONDS:
            return answer
        for seconds in _LAG_WAITS_SECONDS:
            self._sleep(seconds)
            answer = self.once(look_up)
            if answer is not None:
                return answer
        self._waited_at = time.monotonic()
        return None


def lookup_seconds(timeout_seconds: float, attempts: int) -> float:
    """How long one lookup may take, by the settings for a request."""
    return _REQUESTS_PER_LOOKUP * attempts * (timeout_seconds + BACKOFF_SECONDS)


def access_to(config: RegistryConfig, url: str) -> tuple[Endpoint, Credentials]:
    """The settings' registry, and who asks it.

    Args:
        url: `registry.url`, with `embedded` looked up.

    Raises:
        ConfigError: credentials would travel in the clear, or a file or secret is not there.
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
    assert oauth is not None, "the settings hold one of the three"
    check_privacy("registry.auth.oauth.token_url", oauth.token_url, endpoint.proxy)
    provider = replace(endpoint, url=oauth.token_url, headers={}, name="token endpoint")
    return endpoint, ClientCredentials(provider, oauth.client_id, secret(oauth.client_secret), oauth.scope)


def proxy_address(proxy: str | None) -> SecretStr | None:
    """The proxy of the settings, with its password if it has one.

    Raises:
        ConfigError: there is none where the settings say.
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
        raise ConfigError(f"registry.proxy {proxy}", "what is there is no address", "write `http://host:port` there")
    return address


def _check_files(tls: TlsConfig) -> None:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key, password="")  # or OpenSSL would ask at the terminal
    except OSError as exc:
        files = ", ".join(f"registry.tls.{name} {path}" for name, path in tls.model_dump(exclude_none=True).items())
        raise ConfigError(
            files,
            f"not a PEM file of that kind ({type(exc).__name__})",
            "see that each is there and holds what its name says, the key without a password",
        ) from exc


def _is_token(text: str) -> bool:
    return text.isascii() and text.isprintable() and bool(text) and " " not in text
