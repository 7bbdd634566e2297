"""Access to registries by the settings: credentials, certificates, proxies, and what never leaves the process."""

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.one_server import serving
from support.registry_server import TOKEN_PATH, Certificates, FakeServer

from cdc_lake.config import Config, load_config
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.registries import credentials, open_registry
from cdc_lake.registries import registry as registry_module
from cdc_lake.registries.registry import RegisteredSchema, Registry, referenced_texts

pytestmark = pytest.mark.core

CANARY = "canary-7f3a"
TYPES = pytest.mark.parametrize("kind", ["apicurio", "confluent"])


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(FakeServer()) as server:
        filled(server)
        yield server


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets of the settings, and no other variable that could change how to reach a server."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("REGISTRY_SECRET", CANARY)


def filled(server: FakeServer) -> None:
    """Schema 1 of an Apicurio and of a Confluent registry."""
    server.answer("/apis/registry/v3/search/artifacts?limit=1", (200, {"artifacts": [], "count": 0}))
    server.answer("/apis/registry/v3/ids/contentIds/1", (200, '"string"'))
    server.answer("/schemas/types", (200, ["AVRO"]))
    server.answer("/schemas/ids/1", (200, {"schema": '"string"'}))


def settings(folder: Path, kind: str, url: str, more: str = "") -> Config:
    file = folder / "cdc-lake.yml"
    file.write_text(f"registry:\n  type: {kind}\n  url: {url}\n  timeout_seconds: 5\n  attempts: 2\n{more}")
    return load_config(file)


def opened(folder: Path, kind: str, url: str, more: str = "") -> Registry:
    config = settings(folder, kind, url, more)
    return open_registry(config.registry)


def first(registry: Registry) -> RegisteredSchema | None:
    return registry.schema(registry.namespaces[0], "1")


def sent(server: FakeServer, header: str = "Authorization") -> set[str | None]:
    return {headers[header] for _, path, headers in server.seen if path != TOKEN_PATH}


def oauth(server: FakeServer) -> str:
    return (
        f"  auth: {{oauth: {{token_url: '{server.url}{TOKEN_PATH}', client_id: lake, "
        "client_secret: env:REGISTRY_SECRET, scope: read more}}\n"
    )


@TYPES
def test_without_credentials_none_are_sent(server: FakeServer, tmp_path: Path, kind: str) -> None:
    registry = opened(tmp_path, kind, server.url)

    registry.check()

    assert first(registry) == RegisteredSchema('"string"')
    assert sent(server) == {None}


@TYPES
def test_netrc_file_is_not_used(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))

    first(opened(tmp_path, kind, server.url))

    assert sent(server) == {None}


@TYPES
def test_basic_authentication_sends_user_and_password(server: FakeServer, tmp_path: Path, kind: str) -> None:
    expected = f"Basic {base64.b64encode(f'lake:{CANARY}'.encode()).decode()}"
    server.required = {expected}
    registry = opened(tmp_path, kind, server.url, "  auth: {basic: {user: lake, password: env:REGISTRY_SECRET}}\n")

    registry.check()

    assert first(registry) == RegisteredSchema('"string"')
    assert sent(server) == {expected}


@TYPES
def test_refused_token_is_reread_from_its_file(server: FakeServer, tmp_path: Path, kind: str) -> None:
    (tmp_path / "token").write_text("old\n")
    server.required = {"Bearer old"}
    registry = opened(tmp_path, kind, server.url, "  auth: {bearer: {token: 'file:token'}}\n")
    registry.check()
    server.required = {"Bearer new"}
    (tmp_path / "token").write_text("new\n")

    assert first(registry) == RegisteredSchema('"string"')


@TYPES
def test_unchanged_token_is_not_tried_twice(server: FakeServer, tmp_path: Path, kind: str) -> None:
    server.required = {"Bearer another"}

    with pytest.raises(ConfigError, match=r"rejects the credentials \(401 .*check registry\.auth"):
        opened(tmp_path, kind, server.url, "  auth: {bearer: {token: env:REGISTRY_SECRET}}\n").check()

    assert len(server.seen) == 1


@pytest.mark.parametrize("token", ["two words", "two\nlines", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"])
def test_invalid_token_is_refused_without_showing_it(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("REGISTRY_SECRET", token)

    with pytest.raises(ConfigError, match="env:REGISTRY_SECRET: it is not a token") as caught:
        opened(tmp_path, "apicurio", server.url, "  auth: {bearer: {token: env:REGISTRY_SECRET}}\n")
    assert token not in str(caught.value)


@TYPES
def test_oauth_token_is_reused_while_valid(server: FakeServer, tmp_path: Path, kind: str) -> None:
    server.client = f"lake:{CANARY}"
    registry = opened(tmp_path, kind, server.url, oauth(server))

    registry.check()
    first(registry)

    assert server.asked[TOKEN_PATH] == 1
    assert server.forms == [{"grant_type": ["client_credentials"], "scope": ["read more"]}]
    assert sent(server) == {"Bearer token-1"}


class LaterClock:
    """A fake: the clock of `credentials`, some seconds ahead of the server's."""

    ahead_seconds = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_seconds


@TYPES
@pytest.mark.parametrize(("life", "not_yet", "renewed"), [(60.0, 40.0, 48.5), (3600.0, 3500.0, 3570.5)])
def test_oauth_token_is_renewed_before_it_expires(
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    life: float,
    not_yet: float,
    renewed: float,
) -> None:
    clock = LaterClock()
    monkeypatch.setattr(credentials, "time", clock)
    server.client, server.token_seconds = f"lake:{CANARY}", life
    registry = opened(tmp_path, kind, server.url, oauth(server))
    registry.check()

    clock.ahead_seconds = not_yet
    registry.check()
    assert server.asked[TOKEN_PATH] == 1

    clock.ahead_seconds = renewed
    assert first(registry) == RegisteredSchema('"string"')
    assert sent(server) == {"Bearer token-1", "Bearer token-2"}
    assert server.asked[TOKEN_PATH] == 2


@TYPES
def test_revoked_token_is_renewed_once(server: FakeServer, tmp_path: Path, kind: str) -> None:
    server.client = f"lake:{CANARY}"
    registry = opened(tmp_path, kind, server.url, oauth(server))
    registry.check()
    server.revoke()

    assert first(registry) == RegisteredSchema('"string"')
    assert server.asked[TOKEN_PATH] == 2

    server.required = {"Bearer another"}
    with pytest.raises(ConfigError, match="rejects the credentials"):
        registry.check()
    assert server.asked[TOKEN_PATH] == 3


@TYPES
@pytest.mark.parametrize(
    ("status", "body", "error", "what"),
    [
        (401, {"error": "invalid_client"}, ConfigError, "rejects the credentials"),
        (400, {"error": "invalid_scope"}, ConfigError, "rejects the credentials"),
        (503, "", InfrastructureError, "responded with 503"),
        (200, "<html>", InfrastructureError, "not JSON"),
        (200, {"token": "x"}, InfrastructureError, "contains no token"),
        (200, {"access_token": "a b"}, InfrastructureError, "contains no token"),
        (200, [], InfrastructureError, "contains no token"),
        (302, "http://127.0.0.1:9/", InfrastructureError, "responded with 302"),
    ],
)
def test_token_endpoint_without_a_token_is_named(
    server: FakeServer, tmp_path: Path, kind: str, status: int, body: object, error: type[CdcLakeError], what: str
) -> None:
    server.answer(TOKEN_PATH, (status, body))

    with pytest.raises(error, match=f"token endpoint at {server.url}{TOKEN_PATH}: .*{what}"):
        opened(tmp_path, kind, server.url, oauth(server)).check()
    assert sent(server) == set()


@TYPES
def test_custom_certificate_authority(
    certificates: Certificates, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(FakeServer(certificates.context())) as server:
        filled(server)
        registry = opened(tmp_path, kind, server.url, f"  tls: {{ca: {certificates.ca}}}\n")
        registry.check()

        monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
        with pytest.raises(ConfigError, match=r"the TLS handshake failed \(certificate verify failed: .*registry\.tls"):
            opened(tmp_path, kind, server.url).check()

        assert first(registry) == RegisteredSchema('"string"')


@TYPES
def test_https_url_of_an_http_server_exits_2_without_retries(
    server: FakeServer, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match=rf"the server speaks http, not https; use {server.url}$"):
        opened(tmp_path, kind, server.url.replace("http:", "https:")).check()

    assert (server.seen, caplog.records) == ([], [])


@TYPES
def test_unknown_host_and_refused_connection_are_named(tmp_path: Path, kind: str) -> None:
    for address, why in (("nohost.invalid", "its host name is unknown"), ("127.0.0.1:9", "the connection is refused")):
        with pytest.raises(InfrastructureError, match=rf"{address}: it does not respond \({why}\)"):
            opened(tmp_path, kind, f"http://{address}").check()


@TYPES
def test_client_certificate_is_sent_on_request(certificates: Certificates, tmp_path: Path, kind: str) -> None:
    with serving(FakeServer(certificates.context(asks_for_certificate=True))) as server:
        filled(server)
        own = f"ca: {certificates.ca}, cert: {certificates.client_cert}, key: {certificates.client_key}"
        opened(tmp_path, kind, server.url, f"  tls: {{{own}}}\n").check()

        seen = len(server.seen)
        with pytest.raises(CdcLakeError, match=r"certificate required\)|does not respond"):  # depends on the timing
            opened(tmp_path, kind, server.url, f"  tls: {{ca: {certificates.ca}}}\n").check()
        assert (seen, len(server.seen)) == (1, 1)


def test_token_endpoint_uses_the_same_certificates(certificates: Certificates, tmp_path: Path) -> None:
    with serving(FakeServer(certificates.context(asks_for_certificate=True))) as server:
        filled(server)
        server.client = f"lake:{CANARY}"
        own = f"ca: {certificates.ca}, cert: {certificates.client_cert}, key: {certificates.client_key}"

        opened(tmp_path, "apicurio", server.url, f"  tls: {{{own}}}\n{oauth(server)}").check()

        assert server.asked[TOKEN_PATH] == 1


@pytest.mark.parametrize("tls", ["ca: nowhere.pem", "cert: {ca}, key: {client_key}", "ca: {server_key}"])
def test_invalid_certificate_file_is_named(certificates: Certificates, tmp_path: Path, tls: str) -> None:
    with pytest.raises(
        ConfigError, match=r"registry\.tls\.(ca|cert) .*\.pem.*: a file is missing or not a PEM file of its kind"
    ):
        opened(tmp_path, "apicurio", "https://127.0.0.1:9", f"  tls: {{{tls.format(**vars(certificates))}}}\n")


@TYPES
def test_proxy_is_used_with_its_password(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("REGISTRY_PROXY", server.url.replace("//", "//user:pass@"))
    registry = opened(tmp_path, kind, "http://registry.invalid", "  proxy: env:REGISTRY_PROXY\n")

    registry.check()

    assert first(registry) == RegisteredSchema('"string"')
    assert {path.partition("/apis")[0].partition("/schemas")[0] for _, path, _ in server.seen} == {
        "http://registry.invalid"
    }
    assert sent(server, "Proxy-Authorization") == {"Basic dXNlcjpwYXNz"}


@pytest.mark.parametrize("proxy", ["proxy:3128", f"user:{CANARY}@proxy", "http://", f"http://u:{CANARY}@proxy:port"])
def test_proxy_without_address_is_refused_without_showing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("REGISTRY_PROXY", proxy)

    with pytest.raises(ConfigError, match="env:REGISTRY_PROXY: it is not a URL") as caught:
        opened(tmp_path, "confluent", "http://registry.invalid", "  proxy: env:REGISTRY_PROXY\n")
    assert CANARY not in "".join(causes(caught.value))


@TYPES
def test_headers_are_sent_only_to_the_registry(server: FakeServer, tmp_path: Path, kind: str) -> None:
    server.client = f"lake:{CANARY}"

    opened(tmp_path, kind, server.url, f"  headers: {{target-sr-cluster: lsrc-1}}\n{oauth(server)}").check()

    assert sent(server, "target-sr-cluster") == {"lsrc-1"}
    assert [headers["target-sr-cluster"] for _, path, headers in server.seen if path == TOKEN_PATH] == [None]


BASIC = "  auth: {basic: {user: lake, password: env:REGISTRY_SECRET}}\n"


@pytest.mark.parametrize(
    ("url", "more", "setting"),
    [
        ("http://registry.invalid", BASIC, "registry.url"),
        ("http://10.0.0.1", BASIC, "registry.url"),
        ("http://127.0.0.1.invalid", BASIC, "registry.url"),
        ("http://127.0.0.1:9", BASIC + "  proxy: http://proxy.invalid\n", "registry.url"),
        (
            "https://registry.invalid",
            "  auth: {oauth: {token_url: 'http://x.invalid/', client_id: a, client_secret: env:REGISTRY_SECRET}}\n",
            "registry.auth.oauth.token_url",
        ),
    ],
)
def test_credentials_are_not_sent_in_clear_text(tmp_path: Path, url: str, more: str, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting}: credentials would be sent unencrypted to http://"):
        opened(tmp_path, "apicurio", url, more)


def test_credentials_are_not_sent_over_a_clear_text_env_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.invalid")

    with pytest.raises(ConfigError, match="through a proxy"):
        opened(tmp_path, "apicurio", "http://127.0.0.1:9", BASIC)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    opened(tmp_path, "apicurio", "http://127.0.0.1:9", BASIC)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("env:NO_SUCH_VARIABLE", "env:NO_SUCH_VARIABLE: the environment has no such variable"),
        ("file:nowhere", "nowhere: it cannot be read"),
        ("file:empty", "empty: it is empty"),
    ],
)
def test_missing_secret_is_named(tmp_path: Path, reference: str, message: str) -> None:
    (tmp_path / "empty").write_text("\n")

    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, "apicurio", "https://registry.invalid", f"  auth: {{bearer: {{token: '{reference}'}}}}\n")


SLOTS: list[Callable[[FakeServer], str]] = [
    lambda server: BASIC,
    lambda server: "  auth: {bearer: {token: env:REGISTRY_SECRET}}\n",
    oauth,
]


@TYPES
@pytest.mark.parametrize("auth", SLOTS, ids=["basic", "bearer", "oauth"])
@pytest.mark.parametrize("status", [200, 401, 503])
def test_secrets_are_in_no_repr_error_or_log(
    server: FakeServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    auth: Callable[[FakeServer], str],
    status: int,
) -> None:
    caplog.set_level("DEBUG")
    server.client = f"lake:{CANARY}"
    for path in ("/schemas/types", "/apis/registry/v3/search/artifacts?limit=1"):
        server.answer(path, (status, ["AVRO"]))
    config = settings(tmp_path, kind, server.url, auth(server))
    said = [repr(config), config.model_dump_json()]

    try:
        registry = open_registry(config.registry)
        said += [repr(registry), repr(vars(registry))]
        registry.check()
    except CdcLakeError as error:
        said += causes(error)

    assert server.seen
    encoded = base64.b64encode(f"lake:{CANARY}".encode()).decode()
    for secret in (CANARY, encoded, "Bearer token-1"):
        assert secret not in "\n".join([*said, caplog.text])


@TYPES
def test_proxy_password_is_in_no_error_or_log(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level("DEBUG")
    server.socket.close()
    monkeypatch.setenv("REGISTRY_PROXY", server.url.replace("//", f"//user:{CANARY}@"))

    with pytest.raises(InfrastructureError, match="does not respond") as caught:
        opened(tmp_path, kind, "http://registry.invalid", "  proxy: env:REGISTRY_PROXY\n").check()

    encoded = base64.b64encode(f"user:{CANARY}".encode()).decode()
    for secret in (CANARY, encoded):
        assert secret not in "\n".join([*causes(caught.value), caplog.text])


def causes(error: BaseException | None) -> list[str]:
    """An error's message, and those of all its causes."""
    said = []
    while error is not None:
        said += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return said


class FilesInMemory:
    """A fake: the part of `Files` that the lake's schema files need."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def names(self, folder: str) -> list[str]:
        return sorted({path.removeprefix(f"{folder}/").split("/")[0] for path in self.texts if path.startswith(folder)})

    def write_once(self, path: str, text: str) -> None:
        self.texts.setdefault(path, text)


@TYPES
def test_repeated_lookups_of_one_id_send_one_request_per_run(server: FakeServer, tmp_path: Path, kind: str) -> None:
    registry = opened(tmp_path, kind, server.url)
    registry.check()
    schemas = SchemaFiles(FilesInMemory(), "lake", registry)  # type: ignore[arg-type]

    found = [schemas.look_up({"apicurio": "contentId", "confluent": "id"}[kind], "1") for _ in range(1000)]

    assert all(len(schemas) == 1 for schemas in found)
    asked = {"apicurio": "/apis/registry/v3/ids/contentIds/1", "confluent": "/schemas/ids/1"}[kind]
    assert server.asked[asked] == 1


@TYPES
def test_slow_drip_response_is_an_infrastructure_error(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    server.drip_seconds = 0.3
    monkeypatch.setattr(registry_module, "_REQUESTS_PER_LOOKUP", 0.05)
    registry = opened(tmp_path, kind, server.url)

    for question in (registry.check, lambda: registry.schema(registry.namespaces[0], "1")):
        with pytest.raises(InfrastructureError, match=r"a lookup took more than 0\.55 s"):
            question()


def test_references_beyond_the_limits_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(referenced_texts([0], lambda number: ("x", [number + 1]))) == 200
    monkeypatch.setattr(registry_module, "MAX_REFERENCED_CHARACTERS", 10)
    assert len(referenced_texts([0], lambda number: ("1234", [number + 1]))) == 3
