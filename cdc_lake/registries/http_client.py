"""HTTP requests to a registry, with retries and limits.

Redirects are not followed, because they would send the credentials to another host. Responses have a size limit. Errors
name the URL but no credentials.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import requests
from pydantic import SecretStr
from requests.adapters import HTTPAdapter
from urllib3.exceptions import NameResolutionError
from urllib3.util import Retry

from cdc_lake.config import TlsConfig
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError

MAX_RESPONSE_BYTES = 8 << 20
"""Limit of a response. Schemas are limited to 1 MiB, and JSON escapes may make a text several times longer."""
RETRIED_STATUSES = (408, 429, 500, 502, 503, 504)
BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 10.0
_REJECTION_STATUSES = (401, 403)
_PLAIN_HTTP = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""OpenSSL's reasons when the server's response is not TLS; they differ between its versions."""
_CLOSED = "EOF"


@dataclass(frozen=True)
class Endpoint:
    """A server's URL and connection settings.

    Args:
        url: without a trailing slash.
        timeout_seconds: for one request.
        attempts: number of requests before the server is considered unavailable.
        headers: additional headers, without credentials.
        proxy: its URL, which may contain a password.
        name: the server's name in messages.
        login_cure: what to do if the server rejects the credentials.
    """

    url: str
    timeout_seconds: float = 10.0
    attempts: int = 4
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: TlsConfig = field(default_factory=TlsConfig)
    proxy: SecretStr | None = None
    name: str = "schema registry"
    login_cure: str = "check registry.auth, and its read and write permissions there"

    def unavailable_error(self, what: str) -> InfrastructureError:
        """The error of a server that does not respond, or not as a registry."""
        cure = "check that it runs and is reachable from this machine, then run again"
        return InfrastructureError(f"{self.name} at {self.url}", what, cure)

    def tls_error(self, exc: requests.exceptions.SSLError) -> CdcLakeError:
        """The error of a connection that cannot be encrypted."""
        where, why = f"{self.name} at {self.url}", str(exc)
        if any(sign in why for sign in _PLAIN_HTTP):
            return ConfigError(where, "the server speaks http, not https", f"use http://{self.url.partition('://')[2]}")
        if _CLOSED in why:
            return self.unavailable_error("it does not respond (it closed the connection during the TLS handshake)")
        reason = re.search(r"\[SSL: \w+\] ([^(\])']+)", why)
        what = f"the TLS handshake failed ({reason[1].strip() if reason else 'SSLError'})"
        return ConfigError(where, what, "check the server's certificate, and `registry.tls`")

    def rejection_error(self, status: int, path: str) -> ConfigError:
        """The error of a server that rejects the credentials."""
        return ConfigError(
            f"{self.name} at {self.url}",
            f"it rejects the credentials ({status} for {path})",
            self.login_cure,
        )

    def status_error(self, status: int, path: str) -> CdcLakeError:
        if status in _REJECTION_STATUSES:
            return self.rejection_error(status, path)
        return self.unavailable_error(f"it responded with {status} for {path}")


class Credentials(Protocol):
    def authorization(self) -> str | None:
        """The value of the `Authorization` header; none without credentials."""

    def renew(self) -> bool:
        """Discard a rejected credential.

        Returns:
            Whether the next `authorization` may differ.
        """


class HttpClient:
    """HTTP requests with retries.

    Each raises `ConfigError` if the server rejects the credentials, and `InfrastructureError` if the server does not
    respond, or with an error.
    """

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
            other=0,  # such as a failed TLS handshake
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
        text = self.get(path)
        return None if text is None else self._json(text)

    def send(
        self, method: str, path: str, content: object, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a text, or an object as JSON, to a path below the endpoint's URL.

        Returns:
            The status, and the response's JSON. The caller handles statuses from 400 to 499 except 401 and 403.
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
        """POST a form to the endpoint's URL; the response's JSON."""
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
        except requests.exceptions.SSLError as exc:
            raise self._endpoint.tls_error(exc) from exc
        except requests.RequestException as exc:
            raise self._endpoint.unavailable_error(f"it does not respond ({_why(exc)})") from exc
        except UnicodeDecodeError as exc:
            raise self._endpoint.unavailable_error("its response is not text") from exc

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        header = self._credentials.authorization()
        if header is not None:
            request.headers["Authorization"] = header
        return request


def _why(exc: requests.RequestException) -> str:
    reason = getattr(exc.args[0] if exc.args else None, "reason", None)
    if isinstance(reason, NameResolutionError):
        return "its host name is unknown"
    if isinstance(reason, Exception) and isinstance(reason.__cause__, ConnectionRefusedError):
        return "the connection is refused"
    return type(exc).__name__
