"""How a Kafka broker knows who asks: the settings of both clients in use, Java's inside Spark and librdkafka's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cdc_lake.config import KafkaConfig
from cdc_lake.errors import ConfigError, InstallationError


@dataclass(frozen=True)
class BrokerLogin:
    """A login at the brokers; none at all, if nothing is said.

    Attributes:
        java: settings of Java's client, without Spark's `kafka.` in front. They hold no secret: Spark shows them.
        client: settings of librdkafka's.
    """

    java: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, str]:
        """`java`, as Spark's Kafka source and sink take it."""
        return {f"kafka.{name}": value for name, value in self.java.items()}


def broker_login(kafka: KafkaConfig) -> BrokerLogin:
    """The login that the settings ask for.

    Raises:
        InstallationError: what signs for Amazon MSK is not installed.
        ConfigError: there are no AWS credentials.
    """
    if kafka.auth == "none":
        return BrokerLogin()
    region = kafka.msk_region
    assert region is not None, "the settings see to it"
    _signed(region)  # or a missing role would look like a broker that does not answer
    return BrokerLogin(
        java={
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
            "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        },
        client={
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "OAUTHBEARER",
            "oauth_cb": lambda _: _signed(region),
        },
    )


def _signed(region: str) -> tuple[str, float]:
    """A token for the brokers of a region, and until when it is good, in seconds since 1970."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ModuleNotFoundError as exc:
        where, todo = "kafka.auth: aws_msk_iam", "pip install 'cdc-lake[msk]'"
        raise InstallationError(where, "aws-msk-iam-sasl-signer-python is not installed", todo) from exc
    from botocore.exceptions import BotoCoreError

    try:
        token, until_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except (AttributeError, ValueError, BotoCoreError) as exc:  # the first is what it makes of no credentials
        raise ConfigError(
            "kafka.auth: aws_msk_iam",
            f"there are no AWS credentials ({type(exc).__name__})",
            "see that AWS' tools find some here, and that their role may kafka-cluster:Connect",
        ) from exc
    return token, until_ms / 1000
