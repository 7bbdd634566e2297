"""A schema registry, its proxy and its token endpoint, with the behavior that clients observe."""

import base64
import json
import ssl
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

TOKEN_PATH = "/token"
Answer = tuple[int, object]


class FakeServer(ThreadingHTTPServer):
    """A fake: responses by path, (status, body), in order, the last one repeated; 404 otherwise.

    Attributes:
        asked: how often, by path.
        seen: method, path and headers of every request.
        required: the `Authorization` without which it answers 401; a set, or all tokens that are valid.
        delay_seconds: how long each answer takes.
        drip_seconds: how long each of its bytes takes, if they come one by one.
        token_seconds: what it says of a token's life, and how long each of its tokens is taken.
        client: who gets tokens, `id:secret`.
        sent: path and body of every POST and PUT.
    """

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scheme = "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.answers: dict[str, list[Answer]] = {}
        self.asked: Counter[str] = Counter()
        self.seen: list[tuple[str, str, Message]] = []
        self.required: set[str] | None = None
        self.delay_seconds = self.drip_seconds = 0.0
        self.token_seconds = 60.0
        self.client = "lake:s3cret"
        self.forms: list[dict[str, list[str]]] = []
        self.sent: list[tuple[str, str]] = []
        self._tokens: dict[str, float] = {}

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, *answers: Answer) -> None:
        self.answers[path] = list(answers)

    def revoke(self) -> None:
        """Reject all tokens that were issued before."""
        self._tokens.clear()

    def lets_in(self, authorization: str | None) -> bool:
        if self.required is not None:
            return authorization in self.required
        if self._tokens or self.forms:
            return self._tokens.get(authorization or "", 0.0) > time.monotonic()
        return True

    def token(self, authorization: str | None, form: str) -> Answer:
        if authorization != f"Basic {base64.b64encode(self.client.encode()).decode()}":
            return 401, {"error": "invalid_client"}
        self.forms.append(parse_qs(form))
        token = f"token-{len(self.forms)}"
        self._tokens[f"Bearer {token}"] = time.monotonic() + self.token_seconds
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.token_seconds}

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that disconnects, or fails the handshake, does not fail the test."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        path = self.path if self.path.startswith("/") else "/" + self.path.split("/", 3)[3]
        self._note()
        if not self.server.lets_in(self.headers["Authorization"]):
            return self._answer(401, {"error_code": 40101, "message": "who are you?"})
        left = self.server.answers.get(path, [(404, {"error_code": 40403, "message": "not found"})])
        self._answer(*(left.pop(0) if len(left) > 1 else left[0]))

    def do_POST(self) -> None:
        self._note()
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.sent.append((self.path, form))
        scripted = self.server.answers.get(self.path)
        self._answer(*(scripted[0] if scripted else self.server.token(self.headers["Authorization"], form)))

    do_PUT = do_POST

    def _note(self) -> None:
        self.server.asked[self.path] += 1
        self.server.seen.append((self.command, self.path, self.headers))
        time.sleep(self.server.delay_seconds)

    def _answer(self, status: int, body: object) -> None:
        content = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", content.decode())
        if not isinstance(body, bytes | str):
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        pieces = [content[at : at + 1] for at in range(len(content))] if self.server.drip_seconds else [content]
        for piece in pieces:
            self.wfile.write(piece)
            time.sleep(self.server.drip_seconds)

    def log_message(self, format: str, *args: object) -> None:
        pass


def a_record(name: str, kind: object) -> dict[str, object]:
    """A schema of one field."""
    return {"type": "record", "name": name, "namespace": "x", "fields": [{"name": "v", "type": kind}]}


class Certificates:
    """A certificate authority, with a certificate for 127.0.0.1 and one for a client, as files in a folder.

    Each has another one that expired a while ago.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"authority of {folder.name}")])
        self.ca = self._written("ca", self._signed(self._name, self._key, is_authority=True))
        self.server_cert, self.server_key = self._pair("server")
        self.client_cert, self.client_key = self._pair("client")
        self.old_server_cert, self.old_server_key = self._pair("old-server", is_old=True)
        self.old_client_cert, self.old_client_key = self._pair("old-client", is_old=True)

    def context(self, *, asks_for_certificate: bool = False) -> ssl.SSLContext:
        """The server's TLS context."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server_cert, self.server_key)
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED if asks_for_certificate else ssl.CERT_NONE
        return context

    def _pair(self, name: str, *, is_old: bool = False) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._written(name, self._signed(subject, key, is_old=is_old)), self._written(f"{name}-key", private)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool = False, is_old: bool = False
    ) -> bytes:
        now = datetime.now(UTC) - timedelta(days=9 if is_old else 0)
        own = key.public_key()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(own)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _written(self, name: str, content: bytes) -> str:
        file = self._folder / f"{name}.pem"
        file.write_bytes(content)
        return str(file)
