"""A server that keeps what is posted to it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import NamedTuple

from support.one_server import serving


class Posted(NamedTuple):
    """A POST request."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class Receiver(HTTPServer):
    """A fake collector or backend: it keeps each POST request, and answers with `status` and no body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[Posted] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append(Posted(self.path, dict(self.headers.items()), body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that runs."""
    with serving(Receiver()) as server:
        yield server
