"""A separate Kafka broker with authentication: one listener for each kind of login, and one with an expired
certificate.
"""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from cdc_lake.demo.servers.jvm_servers import Kafka
from cdc_lake.demo.servers.server import Site, choose_ports
from cdc_lake.spark.jars import EMBEDDED_PROFILE, cache_folder, lock_file, read_lock
from cdc_lake.spark.java import find_java
from support import one_server
from support.registry_server import Certificates, FakeServer

USER = "lake"
PASSWORD = 'canary-1 "quoted" \\ and $more'
"""A password with all special characters of JAAS."""
SCRAM_PASSWORD = "canary-2 $more \\ and so on"
LISTENERS = ("scram", "plain", "open", "oauth", "mutual", "expired")
KEYS_PATH = "/keys"
_LOGIN = "org.apache.kafka.common.security"


class SecureKafka(Kafka):
    """The embedded broker with more listeners.

    Args:
        site: its ports have the names of `LISTENERS`, too.
        certificates: of the broker, and of the clients that it believes.
        provider: the address of who signs tokens.
    """

    def __init__(self, site: Site, certificates: Certificates, provider: str) -> None:
        super().__init__(site)
        self._certificates = certificates
        self._provider = provider

    def command(self) -> list[str]:
        """Kafka downloads keys only from URLs that its JVM allows."""
        java, *rest = super().command()
        return [java, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._provider}{KEYS_PATH}", *rest]

    def _users(self) -> list[str]:
        return ["--add-scram", f'SCRAM-SHA-512=[name={USER},password="{SCRAM_PASSWORD}"]']

    def _settings(self) -> dict[str, object]:
        plain = super()._settings()
        listeners = [str(plain["listeners"]), *(f"{name.upper()}://{self.site.address(name)}" for name in LISTENERS)]
        protocols = dict.fromkeys(LISTENERS, "SASL_SSL") | {"open": "SASL_PLAINTEXT", "mutual": "SSL", "expired": "SSL"}
        map_of = "listener.security.protocol.map"
        return plain | {
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(listeners),
            map_of: ",".join([str(plain[map_of]), *(f"{name.upper()}:{kind}" for name, kind in protocols.items())]),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",  # the plain listener, and the broker's own
            "allow.everyone.if.no.acl.found": "true",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._both("server"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._certificates.ca,
            "listener.name.expired.ssl.keystore.location": self._both("old_server"),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{_LOGIN}.scram.ScramLoginModule required;",
            **self._by_password("plain"),
            **self._by_password("open"),
            **self._by_token(),
        }

    def _by_password(self, listener: str) -> dict[str, object]:
        word = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        return {
            f"listener.name.{listener}.sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.{listener}.plain.sasl.jaas.config": (
                f'{_LOGIN}.plain.PlainLoginModule required user_{USER}="{word}";'
            ),
        }

    def _by_token(self) -> dict[str, object]:
        of = "listener.name.oauth"
        handler = f"{_LOGIN}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        return {
            f"{of}.sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{of}.oauthbearer.sasl.jaas.config": f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required;",
            f"{of}.oauthbearer.sasl.server.callback.handler.class": handler,
            f"{of}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"{self._provider}{KEYS_PATH}",
            f"{of}.oauthbearer.sasl.oauthbearer.expected.audience": "kafka",
        }

    def _both(self, name: str) -> Path:
        """A certificate and its key in one PEM file, as a keystore."""
        files = (getattr(self._certificates, f"{name}_{what}") for what in ("key", "cert"))
        return self.site.write(f"{name}.pem", "".join(Path(file).read_text() for file in files))


@contextmanager
def running(folder: Path, certificates: Certificates, provider: str) -> Iterator[SecureKafka]:
    """The broker, in its own folder."""
    ports = choose_ports(folder)
    for name in LISTENERS:
        (folder / name).mkdir()
        ports[name] = choose_ports(folder / name)["kafka"]
    jars = read_lock(lock_file(EMBEDDED_PROFILE))
    server = SecureKafka(Site(folder, ports, find_java(), jars, cache_folder()), certificates, provider)
    with one_server.running(server):
        yield server


class Provider:
    """A fake: an identity provider that gives every client a signed token.

    Args:
        server: answers for it.
    """

    token_path = "/oauth/token"

    def __init__(self, server: FakeServer) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        numbers = key.public_key().public_numbers()
        public = {"x": _base64(numbers.x.to_bytes(32)), "y": _base64(numbers.y.to_bytes(32))}
        jwk = {"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "one", **public}
        now = int(time.time())
        claims = {"iss": "test", "sub": USER, "aud": "kafka", "scope": "lake", "iat": now, "exp": now + 3600}
        text = f"{_json({'alg': 'ES256', 'kid': 'one'})}.{_json(claims)}"
        r, s = decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        token = f"{text}.{_base64(r.to_bytes(32) + s.to_bytes(32))}"
        server.answer(KEYS_PATH, (200, {"keys": [jwk]}))
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": 3600}
        server.answer(self.token_path, (200, answer))


def _json(value: object) -> str:
    return _base64(json.dumps(value).encode())


def _base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
