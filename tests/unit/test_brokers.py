"""Logins at Kafka brokers: the exact settings of both clients, and the token that is signed for Amazon MSK."""

import base64
import builtins
import socket
import sys
import time
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from support.registry_server import Certificates

from cdc_lake.brokers import BrokerLogin, broker_login, permanent_error
from cdc_lake.config import ALLOWED_CLIENT_SETTINGS, KafkaAuth, KafkaConfig, load_config
from cdc_lake.errors import ConfigError, InfrastructureError, InstallationError
from cdc_lake.sources.kafka import Broker

pytestmark = pytest.mark.core

BROKERS = "b-1.lake.x1y2z3.c4.kafka.eu-central-1.amazonaws.com:9098"
CANARY = "canary-c77a"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Invalid AWS credentials instead of those of the user who runs the tests."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)


def login(brokers: str = BROKERS, **more: Any) -> BrokerLogin:
    return broker_login(KafkaConfig(bootstrap_servers=brokers, auth="aws_msk_iam", **more))


def test_without_login_no_settings_are_added() -> None:
    assert broker_login(KafkaConfig()) == BrokerLogin()
    assert BrokerLogin().options == {}


def test_java_client_gets_exactly_the_msk_iam_settings() -> None:
    assert login().options == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "AWS_MSK_IAM",
        "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }


def test_librdkafka_gets_exactly_the_msk_iam_settings() -> None:
    told = dict(login().client)

    assert callable(told.pop("oauth_cb"))
    assert told == {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("brokers", "more", "region"),
    [
        (BROKERS, {}, "eu-central-1"),
        ("boot-ab12.c2.kafka-serverless.us-east-1.amazonaws.com:9098", {}, "us-east-1"),
        (BROKERS, {"region": "ap-south-1"}, "ap-south-1"),
        ("msk.internal:9098", {"region": "eu-west-1"}, "eu-west-1"),
    ],
)
def test_token_is_signed_for_the_region_of_the_brokers(brokers: str, more: dict[str, str], region: str) -> None:
    token, until = login(brokers, **more).client["oauth_cb"]("")

    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    asked = parse_qs(url.query)
    assert url.hostname == f"kafka.{region}.amazonaws.com"
    assert asked["Action"] == ["kafka-cluster:Connect"]
    assert f"/{region}/kafka-cluster/aws4_request" in asked["X-Amz-Credential"][0]
    assert asked["X-Amz-Credential"][0].startswith("nobody/")
    assert 600 < until - time.time() <= 900
    assert CANARY not in url.geturl()


def test_librdkafka_requests_the_token() -> None:
    asked = []

    def token(said: str) -> tuple[str, float]:
        asked.append(said)
        return login().client["oauth_cb"](said)

    settings = {**login().client, "oauth_cb": token, "bootstrap.servers": "127.0.0.1:9", "log_level": 0}
    admin = AdminClient(settings)

    deadline = time.monotonic() + 10
    while not asked and time.monotonic() < deadline:
        admin.poll(0.1)
    assert asked


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:9", r"127\.0\.0\.1:9 refuses the connection"),
        (
            "nohost.invalid:9092, 127.0.0.2:9",
            r"the host name `nohost\.invalid` is unknown; 127\.0\.0\.2:9 refuses the connection",
        ),
    ],
)
def test_unreachable_brokers_are_named_without_a_wait(address: str, why: str) -> None:
    for ask in (lambda broker: broker.topics(), lambda broker: broker.logs(["a"])):
        with pytest.raises(InfrastructureError, match=rf"the broker does not respond \({why}\); check that it runs"):
            ask(Broker(address, 600, login()))


def test_server_that_is_no_broker_is_named_in_words() -> None:
    """It accepts the connection, and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        for ask in (lambda broker: broker.topics(), lambda broker: broker.logs(["a"])):
            with pytest.raises(
                InfrastructureError, match=rf"Kafka at {address}: the broker does not respond"
            ) as caught:
                ask(Broker(address, 0.5))
            assert "KafkaError{" not in str(caught.value) and "()" not in str(caught.value)


def test_region_that_cannot_be_derived_is_a_config_error(tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text("kafka: {bootstrap_servers: 'msk.internal:9098', auth: aws_msk_iam}")

    with pytest.raises(
        ConfigError, match=r"`kafka`: the brokers' host names do not contain the AWS region; set `region`"
    ):
        load_config(file)


def test_missing_credentials_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(ConfigError, match=r"kafka\.auth: aws_msk_iam: there are no AWS credentials"):
        login()


def test_missing_signer_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **more: Any) -> Any:
        if name == "aws_msk_iam_sasl_signer":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name, *args, **more)

    monkeypatch.delitem(sys.modules, "aws_msk_iam_sasl_signer", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InstallationError, match=r"cdc-lake\[msk\]"):
        login()


WORD = 'canary "a" \\b'
QUOTED = '"canary \\"a\\" \\\\b"'
"""The same in JAAS."""
MODULES = "org.apache.kafka.common.security"
OAUTH = {"token_url": "https://id.example/token", "client_id": "lake", "client_secret": "env:WORD", "scope": "a b"}
BY_USER = {"user": "lake", "password": "env:WORD"}
RENDERED: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = {
    "plain": (
        BY_USER,
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required username="lake" password={QUOTED};',
        },
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "lake",
            "sasl.password": WORD,
        },
    ),
    **{
        auth: (
            BY_USER,
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": f'{MODULES}.scram.ScramLoginModule required username="lake" password={QUOTED};',
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanisms": mechanism,
                "sasl.username": "lake",
                "sasl.password": WORD,
            },
        )
        for auth, mechanism in (("scram_sha_256", "SCRAM-SHA-256"), ("scram_sha_512", "SCRAM-SHA-512"))
    },
    "oauthbearer": (
        {"oauth": OAUTH},
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": (
                f'{MODULES}.oauthbearer.OAuthBearerLoginModule required clientId="lake" clientSecret={QUOTED} '
                'scope="a b";'
            ),
            "sasl.login.callback.handler.class": f"{MODULES}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
        },
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
            "sasl.oauthbearer.client.id": "lake",
            "sasl.oauthbearer.client.secret": WORD,
            "sasl.oauthbearer.scope": "a b",
        },
    ),
    "gssapi": (
        {"kerberos": {"principal": "lake@EXAMPLE", "keytab": "/etc/lake.keytab"}, "tls": {"enabled": False}},
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": (
                'com.sun.security.auth.module.Krb5LoginModule required useKeyTab="true" storeKey="true" '
                'keyTab="/etc/lake.keytab" principal="lake@EXAMPLE";'
            ),
        },
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.keytab": "/etc/lake.keytab",
            "sasl.kerberos.principal": "lake@EXAMPLE",
        },
    ),
    "azure_event_hubs": (
        {"connection_string": "env:WORD"},
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": (
                f'{MODULES}.plain.PlainLoginModule required username="$ConnectionString" password={QUOTED};'
            ),
            "metadata.max.age.ms": "180000",
            "connections.max.idle.ms": "180000",
            "request.timeout.ms": "60000",
        },
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "$ConnectionString",
            "sasl.password": WORD,
            "metadata.max.age.ms": "180000",
            "connections.max.idle.ms": "180000",
            "socket.keepalive.enable": "true",
        },
    ),
}


def of(auth: str, **more: Any) -> BrokerLogin:
    return broker_login(KafkaConfig.model_validate({"auth": auth, **more}))


@pytest.mark.parametrize("auth", RENDERED)
def test_each_login_sets_both_clients_exactly(monkeypatch: pytest.MonkeyPatch, auth: str) -> None:
    monkeypatch.setenv("WORD", WORD)
    given, java, client = RENDERED[auth]

    found = of(auth, **given)

    assert (found.java, found.client) == (java, client)
    assert "canary" not in repr(found)
    more = {"kafka.metadata.max.idle.ms": "180000", "kafka.max.request.size": "1000000"}
    assert found.producer_options == found.options | (more if auth == "azure_event_hubs" else {})


@pytest.mark.parametrize("url", ["http://id.example/token", "http://10.0.0.9:8080/token"])
def test_oauth_secret_is_not_sent_in_clear_text(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("WORD", WORD)

    with pytest.raises(ConfigError, match=r"kafka\.oauth\.token_url: credentials would be sent unencrypted to http://"):
        of("oauthbearer", oauth={**OAUTH, "token_url": url})


def test_every_login_type_is_tested() -> None:
    assert set(get_args(KafkaAuth)) == {"none", "aws_msk_iam", *RENDERED}


def test_certificates_are_passed_as_text_from_any_source(
    monkeypatch: pytest.MonkeyPatch, certificates: Certificates
) -> None:
    cert, key = (Path(file).read_text() for file in (certificates.client_cert, certificates.client_key))
    monkeypatch.setenv("BOTH", f"Bag Attributes\n{key}\n{cert}")

    found = of("none", tls={"ca": certificates.ca, "cert": "env:BOTH", "verify_hostname": False})

    ca = Path(certificates.ca).read_text()
    assert found.java == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": ca,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": cert,
        "ssl.keystore.key": key,
        "ssl.endpoint.identification.algorithm": "",
    }
    assert found.client == {
        "security.protocol": "SSL",
        "ssl.ca.pem": ca,
        "ssl.certificate.pem": cert,
        "ssl.key.pem": key,
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert of("none", tls={}).java == {"security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({"ca": "nowhere.pem"}, "kafka.tls.ca: cannot read nowhere.pem (FileNotFoundError)"),
        ({"ca": "env:NONE"}, "env:NONE: the environment has no such variable"),
        ({"ca": "env:WORD"}, "kafka.tls.ca: it contains no `-----BEGIN CERTIFICATE-----`"),
        ({"cert": "env:CERT"}, "kafka.tls.cert: it contains no `-----BEGIN PRIVATE KEY-----`"),
        (
            {"cert": "env:CERT", "key": "env:OLD_KEY"},
            "kafka.tls.key: the private key is encrypted or not in PKCS #8 format",
        ),
    ],
)
def test_invalid_certificate_is_named(
    monkeypatch: pytest.MonkeyPatch, certificates: Certificates, tls: dict[str, str], said: str
) -> None:
    monkeypatch.setenv("WORD", WORD)
    monkeypatch.setenv("CERT", Path(certificates.client_cert).read_text())
    monkeypatch.setenv("OLD_KEY", "-----BEGIN RSA PRIVATE KEY-----\ncanary\n-----END RSA PRIVATE KEY-----")

    with pytest.raises(ConfigError) as error:
        of("none", tls=tls)

    assert said in str(error.value)
    assert "canary" not in str(error.value)


def test_relative_files_start_at_the_settings_file(tmp_path: Path, certificates: Certificates) -> None:
    (tmp_path / "word").write_text(WORD)
    file = tmp_path / "cdc-lake.yml"
    tls = {"ca": "ca.pem", "cert": "file:client.pem", "key": "client-key.pem"}
    file.write_text(yaml.safe_dump({"kafka": {"auth": "plain", "user": "lake", "password": "file:word", "tls": tls}}))

    found = broker_login(load_config(file).kafka)

    assert found.client["sasl.password"] == WORD
    texts = (certificates.ca, certificates.client_cert, certificates.client_key)
    assert [found.client[f"ssl.{name}.pem"] for name in ("ca", "certificate", "key")] == [
        Path(text).read_text() for text in texts
    ]
    for more in (
        {"auth": "oauthbearer", "oauth": {**OAUTH, "client_secret": "file:word"}},
        {"auth": "azure_event_hubs", "connection_string": "file:word"},
        {"auth": "gssapi", "kerberos": {"principal": "lake@EXAMPLE", "keytab": "lake.keytab"}},
    ):
        file.write_text(yaml.safe_dump({"kafka": more}))
        assert str(tmp_path) in load_config(file).kafka.model_dump_json()


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.mark.parametrize(
    ("kafka", "said"),
    [
        ({"auth": "plain"}, "`auth: plain` needs `kafka.user` and `kafka.password`"),
        (
            {"auth": "scram_sha_512", "user": "a", "password": "canary"},
            "write a reference to the secret, not the secret",
        ),
        ({"user": "a"}, "`kafka.user` has no effect with `auth: none`"),
        ({"auth": "azure_event_hubs"}, "`auth: azure_event_hubs` needs `kafka.connection_string`"),
        (
            {"auth": "azure_event_hubs", "connection_string": "env:A", "tls": {"enabled": False}},
            "`auth: azure_event_hubs` requires TLS",
        ),
        ({"tls": {"enabled": False}}, "without a login, TLS is off unless `kafka.tls` sets it"),
        ({"tls": {"key": "a.pem"}}, "`key` is the private key of a certificate; set `cert` too"),
        ({"tls": {"enabled": False, "ca": "a.pem"}}, "`enabled: false` allows no other TLS setting"),
        ({"java": {"fetch.max.wait": 1}}, "did you mean `fetch.max.wait.ms`?"),
        *(
            ({client: {name: "canary"}}, f"`{name}` is not an allowed setting")
            for client, name in (
                ("java", "sasl.jaas.config"),
                ("java", "sasl.login.callback.handler.class"),
                ("java", "sasl.oauthbearer.token.endpoint.url"),
                ("java", "interceptor.classes"),
                ("java", "config.providers"),
                ("java", "isolation.level"),
                ("java", "ssl.truststore.location"),
                ("librdkafka", "plugin.library.paths"),
                ("librdkafka", "sasl.oauthbearer.token.endpoint.url"),
                ("librdkafka", "sasl.password"),
                ("librdkafka", "ssl.ca.location"),
                ("librdkafka", "enable.ssl.certificate.verification"),
                ("librdkafka", "debug"),
            )
        ),
    ],
)
def test_invalid_settings_are_refused_without_showing_secrets(tmp_path: Path, kafka: dict[str, Any], said: str) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(yaml.safe_dump({"kafka": kafka}))

    with pytest.raises(ConfigError) as error:
        load_config(file)

    assert said in str(error.value)
    assert "canary" not in str(error.value)


def test_allowed_client_settings_reach_only_their_client() -> None:
    java = {"fetch.max.wait.ms": 200, "check.crcs": False, "linger.ms": 5}
    found = of("none", java=java, librdkafka={"socket.keepalive.enable": True})

    assert found.options == {"kafka.fetch.max.wait.ms": "200", "kafka.check.crcs": "false"}
    assert found.producer_options == found.options | {"kafka.linger.ms": "5"}
    assert found.client == {"socket.keepalive.enable": "true"}


def test_librdkafka_knows_all_allowed_settings() -> None:
    values = {"ssl.cipher.suites": "ALL", "ssl.curves.list": "P-256", "ssl.sigalgs.list": "RSA+SHA256"}
    words = {
        "broker.address.family": "v4",
        "client.dns.lookup": "use_all_dns_ips",
        "client.id": "a",
        "client.rack": "r",
    }
    numbers = dict.fromkeys(ALLOWED_CLIENT_SETTINGS["librdkafka"] - {*values, *words}, 100_000)
    booleans = {name: True for name in numbers if name.endswith(("enable", "disable"))}
    told = {**numbers, **booleans, **words, **values}

    Broker("127.0.0.1:9", 1, of("none", librdkafka=told))


def test_login_unsupported_by_librdkafka_names_what_to_install() -> None:
    kerberos = {"principal": "lake@EXAMPLE", "keytab": "/etc/lake.keytab"}

    with pytest.raises(InstallationError, match=r"kafka\.auth: gssapi: .*pip install --no-binary confluent-kafka"):
        Broker("127.0.0.1:9", 1, of("gssapi", kerberos=kerberos))


@pytest.mark.parametrize(
    ("java", "client", "cure"),
    [
        ("TopicAuthorization", KafkaError.TOPIC_AUTHORIZATION_FAILED, "ACLs Describe and Read"),
        ("GroupAuthorization", KafkaError.GROUP_AUTHORIZATION_FAILED, "`spark-kafka-` and `cdc_lake-`"),
        ("ClusterAuthorization", KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Describe on the cluster"),
        ("RecordTooLarge", KafkaError.MSG_SIZE_TOO_LARGE, "`max.partition.fetch.bytes`"),
        ("UnknownTopicOrPartition", KafkaError.UNKNOWN_TOPIC_OR_PART, "ACL Describe"),
        ("SaslAuthentication", KafkaError.SASL_AUTHENTICATION_FAILED, "`kafka.auth`"),
    ],
)
def test_refusal_by_either_client_names_permission_or_setting(java: str, client: int, cure: str) -> None:
    of_java = f"Caused by: org.apache.kafka.common.errors.{java}Exception: no"

    found = [permanent_error("here", said) for said in (of_java, str(KafkaException(KafkaError(client))))]

    assert [cure in str(one) for one in found] == [True, True]
    assert permanent_error("here", "Caused by: org.apache.kafka.common.errors.TimeoutException: no") is None
    assert permanent_error("here", str(KafkaException(KafkaError(KafkaError._TRANSPORT)))) is None


def test_disabled_tls_checks_cause_warnings() -> None:
    assert KafkaConfig.model_validate({"auth": "plain", **BY_USER}).warnings == []
    assert [
        warning.partition(":")[0]
        for tls in ({"enabled": False}, {"verify_hostname": False})
        for warning in KafkaConfig.model_validate({"auth": "plain", **BY_USER, "tls": tls}).warnings
    ] == ["kafka.tls.enabled", "kafka.tls.verify_hostname"]


def test_page_lists_every_login_and_every_allowed_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "brokers.md").read_text(encoding="utf-8")
    names = {*get_args(KafkaAuth), *(name for names in ALLOWED_CLIENT_SETTINGS.values() for name in names)}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
