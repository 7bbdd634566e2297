"""The Kafka brokers."""

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from cdc_lake.config.base import ConfigPath, Model, SecretReference
from cdc_lake.config.servers import EMBEDDED, OAuth, ServerConfig, TlsConfig

JAVA_PRODUCER_SETTINGS = frozenset(
    {"batch.size", "buffer.memory", "compression.type", "delivery.timeout.ms", "linger.ms", "max.request.size"}
)
"""Settings of the Java client that only producers have."""
ALLOWED_CLIENT_SETTINGS: Mapping[str, frozenset[str]] = {
    "java": JAVA_PRODUCER_SETTINGS
    | {
        *("check.crcs", "client.dns.lookup", "client.id", "client.rack", "connections.max.idle.ms"),
        *("default.api.timeout.ms", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes"),
        *("max.partition.fetch.bytes", "max.poll.records", "metadata.max.age.ms", "receive.buffer.bytes"),
        *("reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.timeout.ms", "retry.backoff.ms"),
        *("send.buffer.bytes", "socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms"),
        *("ssl.cipher.suites", "ssl.enabled.protocols", "ssl.protocol"),
    },
    "librdkafka": frozenset(
        {
            *("broker.address.family", "broker.address.ttl", "client.dns.lookup", "client.id", "client.rack"),
            *("connections.max.idle.ms", "metadata.max.age.ms", "reconnect.backoff.max.ms", "reconnect.backoff.ms"),
            *("socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.max.fails"),
            *("socket.nagle.disable", "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "socket.timeout.ms"),
            *("ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list"),
        }
    ),
}
"""Settings of each Kafka client that users may set, for tuning. It excludes settings that read files, call URLs, load
classes or change the login (CVE-2023-25194, CVE-2025-27817), and those that affect bronze's order and completeness."""


_SERVER = re.compile(r"(?:[\w.%-]+|\[[\w.:%]+\]):\d{1,5}")


def _servers(value: str) -> str:
    if "@" in value:
        raise ValueError("a broker's address must not contain a user or a password; set `kafka.auth`")
    if value != EMBEDDED and not all(_SERVER.fullmatch(server.strip()) for server in value.split(",")):
        raise ValueError("write `host:port` without a scheme, several separated by commas, or `embedded`")
    return value


class KerberosConfig(Model):
    """Login with a Kerberos principal."""

    principal: str = Field(min_length=1, description="Names the principal.")
    keytab: ConfigPath = Field(
        min_length=1, description="Sets the path of the keytab, the same on the driver and on every executor."
    )
    service: str = Field(default="kafka", min_length=1, description="Names the service principal of the brokers.")


class KafkaTls(TlsConfig):
    """TLS to the brokers. Certificates and PKCS #8 keys are PEM files, or references to their text (`env:KAFKA_CA`)."""

    enabled: bool = Field(
        default=True,
        description="Encrypts the connection. If false, login and records are sent unencrypted; each report warns.",
    )
    verify_hostname: bool = Field(
        default=True,
        description="Checks the broker's host name. If false, any host with a certificate signed by `ca` is accepted; "
        "each report warns.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.enabled and (self.ca or self.cert or not self.verify_hostname):
            raise ValueError("`enabled: false` allows no other TLS setting; remove the others, or `enabled`")
        return self


KafkaAuth = Literal[
    "none", "plain", "scram_sha_256", "scram_sha_512", "oauthbearer", "gssapi", "aws_msk_iam", "azure_event_hubs"
]
_LOGIN_SETTINGS: Mapping[KafkaAuth, tuple[str, ...]] = {
    "none": (),
    "plain": ("user", "password"),
    "scram_sha_256": ("user", "password"),
    "scram_sha_512": ("user", "password"),
    "oauthbearer": ("oauth",),
    "gssapi": ("kerberos",),
    "aws_msk_iam": (),
    "azure_event_hubs": ("connection_string",),
}
"""The settings that each login requires; other logins reject them."""


ClientSettings = dict[str, str | int | float | bool]


class KafkaConfig(ServerConfig):
    """The Kafka brokers, and how to log in (docs/how-to/brokers.md)."""

    bootstrap_servers: Annotated[str, AfterValidator(_servers)] = Field(
        default=EMBEDDED,
        description="Lists brokers as `host:port`, separated by commas. `embedded`: the broker of `cdc-lake stack up`.",
    )
    auth: KafkaAuth = Field(default="none", description="Sets the login method.")
    user: str | None = Field(default=None, min_length=1, description="With plain and scram, names the user.")
    password: SecretReference | None = Field(default=None, description="With plain and scram, references the password.")
    oauth: OAuth | None = Field(default=None, description="With oauthbearer, sets where to get tokens.")
    kerberos: KerberosConfig | None = Field(default=None, description="With gssapi, sets the Kerberos principal.")
    connection_string: SecretReference | None = Field(
        default=None, description="With azure_event_hubs, references the connection string."
    )
    region: str | None = Field(
        default=None, description="With aws_msk_iam, names the AWS region if no broker's host name has it."
    )
    tls: KafkaTls | None = Field(
        default=None, description="Configures TLS. Every login uses TLS; without a login, set this if brokers need TLS."
    )
    java: ClientSettings = Field(
        default_factory=dict,
        description="Sets options of the Java client in Spark; docs/how-to/brokers.md lists those allowed.",
    )
    librdkafka: ClientSettings = Field(
        default_factory=dict,
        description="Sets options of librdkafka in the driver; docs/how-to/brokers.md lists those allowed.",
    )
    timeout_seconds: float = Field(
        default=10.0, gt=0, description="Sets the timeout of a request to a broker, in seconds."
    )

    @model_validator(mode="after")
    def _login_is_whole(self) -> Self:
        needed = _LOGIN_SETTINGS[self.auth]
        if missing := [f"`kafka.{name}`" for name in needed if getattr(self, name) is None]:
            raise ValueError(f"`auth: {self.auth}` needs {' and '.join(missing)}")
        unneeded = {name for names in _LOGIN_SETTINGS.values() for name in names if name not in needed}
        if useless := sorted(name for name in unneeded if getattr(self, name) is not None):
            raise ValueError(f"`kafka.{useless[0]}` has no effect with `auth: {self.auth}`; remove it")
        if self.auth == "aws_msk_iam" and self.msk_region is None:
            raise ValueError("the brokers' host names do not contain the AWS region; set `region`")
        if self.auth in ("aws_msk_iam", "azure_event_hubs") and self.tls and not self.tls.enabled:
            raise ValueError(f"`auth: {self.auth}` requires TLS; remove `kafka.tls.enabled`")
        if self.auth == "none" and self.tls and not self.tls.enabled:
            raise ValueError("without a login, TLS is off unless `kafka.tls` sets it; remove this setting")
        return self

    @field_validator("java", "librdkafka")
    @classmethod
    def _may_be_set(cls, given: ClientSettings, about: ValidationInfo) -> ClientSettings:
        allowed = ALLOWED_CLIENT_SETTINGS[str(about.field_name)]
        for name in given:
            if name not in allowed:
                near = difflib.get_close_matches(name, allowed, n=1)
                hint = f"did you mean `{near[0]}`?" if near else "docs/how-to/brokers.md lists the allowed settings"
                raise ValueError(f"`{name}` is not an allowed setting; {hint}")
        return given

    @property
    def is_embedded(self) -> bool:
        """Whether the broker is that of `cdc-lake stack up`."""
        return self.bootstrap_servers == EMBEDDED

    @property
    def address(self) -> str:
        """The bootstrap servers, with `embedded` resolved; see `StackConfig.address`."""
        return self._resolved(self.bootstrap_servers, "kafka")

    @property
    def msk_region(self) -> str | None:
        """The AWS region of Amazon MSK's brokers; None if it is unknown."""
        match = re.search(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", self.bootstrap_servers)
        return self.region or (match and match[1])

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection to the brokers uses TLS."""
        return self.tls.enabled if self.tls else self.auth != "none"

    @property
    def warnings(self) -> list[str]:
        """Warnings for each report about protection that the settings disable."""
        warnings = []
        if self.tls and not self.tls.enabled:
            warnings.append("kafka.tls.enabled: false: the login and all records are sent unencrypted")
        if self.tls and not self.tls.verify_hostname:
            warnings.append(
                "kafka.tls.verify_hostname: false: any host with a certificate signed by kafka.tls.ca is accepted"
            )
        return warnings
