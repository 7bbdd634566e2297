"""The login at Amazon MSK: what both Kafka clients are told, and the token that is signed for one of them."""

import base64
import builtins
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from confluent_kafka.admin import AdminClient

from cdc_lake.brokers import BrokerLogin, broker_login
from cdc_lake.config import KafkaConfig, load_config
from cdc_lake.errors import ConfigError, InfrastructureError, InstallationError
from cdc_lake.sources.kafka import Broker

BROKERS = "b-1.lake.x1y2z3.c4.kafka.eu-central-1.amazonaws.com:9098"
CANARY = "canary-c77a"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of nobody, and none of whoever runs the tests."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)


def login(brokers: str = BROKERS, **more: Any) -> BrokerLogin:
    return broker_login(KafkaConfig(bootstrap_servers=brokers, auth="aws_msk_iam", **more))


def test_without_a_login_nothing_is_added() -> None:
    assert broker_login(KafkaConfig()) == BrokerLogin()
    assert BrokerLogin().options == {}


def test_javas_client_is_told_exactly_this() -> None:
    assert login().options == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "AWS_MSK_IAM",
        "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }


def test_librdkafka_is_told_exactly_this() -> None:
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
def test_a_token_is_signed_for_the_brokers_region(brokers: str, more: dict[str, str], region: str) -> None:
    token, until = login(brokers, **more).client["oauth_cb"]("")

    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    asked = parse_qs(url.query)
    assert url.hostname == f"kafka.{region}.amazonaws.com"
    assert asked["Action"] == ["kafka-cluster:Connect"]
    assert f"/{region}/kafka-cluster/aws4_request" in asked["X-Amz-Credential"][0]
    assert asked["X-Amz-Credential"][0].startswith("nobody/")
    assert 600 < until - time.time() <= 900
    assert CANARY not in url.geturl()


def test_librdkafka_asks_for_the_token() -> None:
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


def test_brokers_that_are_not_reached_are_infrastructure_with_a_login_too() -> None:
    with pytest.raises(InfrastructureError, match=r"Kafka at 127\.0\.0\.1:9: the broker does not answer"):
        Broker("127.0.0.1:9", 1, login()).topics()


def test_a_region_that_nothing_says_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text("kafka: {bootstrap_servers: 'msk.internal:9098', auth: aws_msk_iam}")

    with pytest.raises(ConfigError, match=r"`kafka`: no name of a broker of Amazon MSK says its region: set `region`"):
        load_config(file)


def test_without_credentials_that_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(ConfigError, match=r"kafka\.auth: aws_msk_iam: there are no AWS credentials"):
        login()


def test_without_the_signer_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **more: Any) -> Any:
        if name == "aws_msk_iam_sasl_signer":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name, *args, **more)

    monkeypatch.delitem(sys.modules, "aws_msk_iam_sasl_signer", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InstallationError, match=r"cdc-lake\[msk\]"):
        login()
