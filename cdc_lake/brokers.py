"""Logins at Kafka brokers: client settings for Java's client inside Spark, and for librdkafka."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from cdc_lake.config import JAVA_PRODUCER_SETTINGS, KafkaConfig, KafkaTls, check_privacy, is_reference, secret
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, InstallationError

_OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer"
_EVENT_HUBS_KEEP_ALIVE = "180000"
"""Milliseconds. Azure silently closes connections that were idle for 240 seconds."""


@dataclass(frozen=True)
class BrokerLogin:
    """Client settings of a login at the brokers; by default no login.

    The settings contain passwords and keys, so they are excluded from `repr`.

    Attributes:
        name: the login's name in the settings (`kafka.auth`).
        java: settings of Java's client, without Spark's prefix `kafka.`.
        java_producer: further settings of Java's producer.
        client: settings of librdkafka.
    """

    name: str = "none"
    java: Mapping[str, str] = field(default_factory=dict, repr=False)
    java_producer: Mapping[str, str] = field(default_factory=dict, repr=False)
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def options(self) -> dict[str, str]:
        """`java` as options of Spark's Kafka source."""
        return {f"kafka.{name}": value for name, value in self.java.items()}

    @property
    def producer_options(self) -> dict[str, str]:
        """`java` and `java_producer` as options of Spark's Kafka sink."""
        return self.options | {f"kafka.{name}": value for name, value in self.java_producer.items()}


class Admin:
    """librdkafka's admin client. It tells a rejected login from brokers that do not respond.

    Args:
        bootstrap_servers: host:port, comma separated.

    Raises:
        ConfigError: librdkafka rejects these settings.
        InstallationError: this build of librdkafka does not support the login.
    """

    def __init__(self, bootstrap_servers: str, login: BrokerLogin) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._login = login
        self._rejection: KafkaError | None = None
        settings = {"bootstrap.servers": bootstrap_servers, "log_level": 0, "error_cb": self._on_error, **login.client}
        try:
            self.client = AdminClient(settings)
        except KafkaException as exc:
            raise self._settings_error(exc.args[0].str()) from exc

    def check_reachable(self, timeout_seconds: float, cure: str) -> None:
        """Check that a bootstrap server accepts a connection. The clients wait for servers that refuse it.

        Raises:
            InfrastructureError: each one refuses it, or its host name is unknown.
        """
        problems = []
        for server in self._bootstrap_servers.split(","):
            host, _, port = server.strip().rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout_seconds).close()
            except socket.gaierror:
                problems.append(f"the host name `{host}` is unknown")
            except ConnectionRefusedError:
                problems.append(f"{server.strip()} refuses the connection")
            except OSError:
                return  # the client reports it
            else:
                return
        raise self.unavailable_error("; ".join(problems), cure)

    def unavailable_error(self, why: object, cure: str) -> CdcLakeError:
        """The error of brokers that do not respond."""
        if isinstance(why, KafkaException):
            why = why.args[0].str()
        why = str(why) or "no response in time"
        self.client.poll(0)  # delivers pending errors to `_on_error`
        kafka, rejection = f"Kafka at {self._bootstrap_servers}", self._rejection
        if rejection is None:
            return InfrastructureError(kafka, f"the broker does not respond ({why})", cure)
        if rejection.code() != KafkaError._AUTHENTICATION:
            cure = "check names, dates and signers of the certificates: `ca` for the broker's, `cert` for the client's"
            return ConfigError("kafka.tls", f"the TLS handshake with {kafka} failed ({rejection.str()})", cure)
        where, cure = f"kafka.auth: {self._login.name}", f"check {_CHECK[self._login.name]}; nothing was read"
        return ConfigError(where, f"{kafka} rejects the login ({rejection.str()})", cure)

    def _on_error(self, error: KafkaError) -> None:
        # In TLS 1.3 a broker reports an untrusted client certificate only after the connection is open.
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or "tls alert" in error.str():
            self._rejection = error

    def _settings_error(self, message: str) -> ConfigError:
        where, message = f"kafka.auth: {self._login.name}", message.removeprefix("Failed to create admin client: ")
        if "No provider for SASL mechanism" in message:
            cure = "install one with libsasl2: `pip install --no-binary confluent-kafka confluent-kafka`"
            return InstallationError(where, f"the installed librdkafka does not support this login ({message})", cure)
        return ConfigError(where, f"librdkafka rejects these settings ({message})", "correct `kafka` in the settings")


def permanent_error(where: str, message: str) -> ConfigError | None:
    """The error of a broker's rejection that retries do not fix; none for other errors.

    Args:
        message: the message of Java's client or librdkafka.
    """
    for java, client, what, cure in _REJECTIONS:
        if f"errors.{java}Exception" in message or f"code={client}," in message:
            return ConfigError(where, what, cure)
    return None


_REJECTIONS = (
    (
        "TopicAuthorization",
        "TOPIC_AUTHORIZATION_FAILED",
        "this login may not read the topic",
        "grant its user the ACLs Describe and Read on the topic",
    ),
    (
        "GroupAuthorization",
        "GROUP_AUTHORIZATION_FAILED",
        "this login may not use a consumer group",
        "grant its user the ACL Read on groups that begin with `spark-kafka-` and `cdc_lake-`",
    ),
    (
        "ClusterAuthorization",
        "CLUSTER_AUTHORIZATION_FAILED",
        "this login may not describe the cluster",
        "grant its user the ACL Describe on the cluster",
    ),
    (
        "RecordTooLarge",
        "MSG_SIZE_TOO_LARGE",
        "a record is larger than the client's fetch limit",
        "raise `max.partition.fetch.bytes` and `fetch.max.bytes` in `kafka.java`",
    ),
    (
        "UnknownTopicOrPartition",
        "UNKNOWN_TOPIC_OR_PART",
        "the topic does not exist, or this login may not describe it",
        "check that it exists, and grant the login's user the ACL Describe on it",
    ),
    (
        "SaslAuthentication",
        "SASL_AUTHENTICATION_FAILED",
        "the broker rejects the login",
        "check `kafka.auth` and the secrets that it refers to",
    ),
)
"""Error names of both clients, what is wrong, and the missing permission or setting."""

_CHECK = {
    "none": "which login the brokers require",
    **dict.fromkeys(
        ("plain", "scram_sha_256", "scram_sha_512"), "kafka.user, the secret of kafka.password, and the mechanism"
    ),
    "oauthbearer": "kafka.oauth",
    "gssapi": "kafka.kerberos",
    "azure_event_hubs": "the secret of kafka.connection_string",
    "aws_msk_iam": "that the role allows kafka-cluster:Connect",
}


def broker_login(kafka: KafkaConfig) -> BrokerLogin:
    """The client settings of the login in the settings.

    Raises:
        ConfigError: a secret or certificate is missing or invalid, a secret would be sent unencrypted, or there are no
            AWS credentials.
        InstallationError: the signer for Amazon MSK is not installed.
        InfrastructureError: see `cdc_lake.config.secret`.
    """
    line = ("" if kafka.auth == "none" else "SASL_") + ("SSL" if kafka.is_encrypted else "PLAINTEXT")
    protocol = {} if line == "PLAINTEXT" else {"security.protocol": line}  # PLAINTEXT is both clients' default
    login = _LOGINS[kafka.auth](kafka)
    java_tls, client_tls = _tls(kafka.tls) if kafka.tls and kafka.tls.enabled else ({}, {})
    more, client = ({name: _text(value) for name, value in given.items()} for given in (kafka.java, kafka.librdkafka))
    producer = {name: more.pop(name) for name in JAVA_PRODUCER_SETTINGS & more.keys()}
    return BrokerLogin(
        kafka.auth,
        java={**protocol, **java_tls, **login.java, **more},
        java_producer={**login.java_producer, **producer},
        client={**protocol, **client_tls, **login.client, **client},
    )


def _plain(kafka: KafkaConfig) -> BrokerLogin:
    return _by_password("PLAIN", "plain.PlainLoginModule", kafka.user, kafka.password)


def _scram(kafka: KafkaConfig) -> BrokerLogin:
    mechanism = kafka.auth.upper().replace("_", "-")
    return _by_password(mechanism, "scram.ScramLoginModule", kafka.user, kafka.password)


def _by_password(mechanism: str, module: str, user: str | None, password: str | None) -> BrokerLogin:
    assert user is not None and password is not None, "checked by the settings"
    word = secret(password).get_secret_value()
    jaas = _jaas(f"org.apache.kafka.common.security.{module}", username=user, password=word)
    return BrokerLogin(
        java={"sasl.mechanism": mechanism, "sasl.jaas.config": jaas},
        client={"sasl.mechanisms": mechanism, "sasl.username": user, "sasl.password": word},
    )


def _oauthbearer(kafka: KafkaConfig) -> BrokerLogin:
    oauth = kafka.oauth
    assert oauth is not None, "checked by the settings"
    check_privacy("kafka.oauth.token_url", oauth.token_url)
    word = secret(oauth.client_secret).get_secret_value()
    scope = {"scope": oauth.scope} if oauth.scope else {}
    return BrokerLogin(
        java={
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": _jaas(
                f"{_OAUTHBEARER}.OAuthBearerLoginModule", clientId=oauth.client_id, clientSecret=word, **scope
            ),
            "sasl.login.callback.handler.class": f"{_OAUTHBEARER}.secured.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": oauth.token_url,
        },
        client={
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": oauth.token_url,
            "sasl.oauthbearer.client.id": oauth.client_id,
            "sasl.oauthbearer.client.secret": word,
            **{f"sasl.oauthbearer.{name}": value for name, value in scope.items()},
        },
    )


def _gssapi(kafka: KafkaConfig) -> BrokerLogin:
    kerberos = kafka.kerberos
    assert kerberos is not None, "checked by the settings"
    jaas = _jaas(
        "com.sun.security.auth.module.Krb5LoginModule",
        useKeyTab="true",
        storeKey="true",
        keyTab=kerberos.keytab,
        principal=kerberos.principal,
    )
    return BrokerLogin(
        java={
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": kerberos.service,
            "sasl.jaas.config": jaas,
        },
        client={
            "sasl.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": kerberos.service,
            "sasl.kerberos.keytab": kerberos.keytab,
            "sasl.kerberos.principal": kerberos.principal,
        },
    )


def _aws_msk_iam(kafka: KafkaConfig) -> BrokerLogin:
    region = kafka.msk_region
    assert region is not None, "checked by the settings"
    _msk_token(region)  # otherwise a missing role would look like a broker that does not respond
    return BrokerLogin(
        java={
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": _jaas("software.amazon.msk.auth.iam.IAMLoginModule"),
            "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        },
        client={"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": lambda _: _msk_token(region)},
    )


def _azure_event_hubs(kafka: KafkaConfig) -> BrokerLogin:
    """The settings that Microsoft recommends for Kafka clients of Event Hubs."""
    by_string = _by_password("PLAIN", "plain.PlainLoginModule", "$ConnectionString", kafka.connection_string)
    idle = {"metadata.max.age.ms": _EVENT_HUBS_KEEP_ALIVE, "connections.max.idle.ms": _EVENT_HUBS_KEEP_ALIVE}
    return BrokerLogin(
        java={**by_string.java, **idle, "request.timeout.ms": "60000"},
        java_producer={"metadata.max.idle.ms": _EVENT_HUBS_KEEP_ALIVE, "max.request.size": "1000000"},
        client={**by_string.client, **idle, "socket.keepalive.enable": "true"},
    )


_LOGINS: Mapping[str, Callable[[KafkaConfig], BrokerLogin]] = {
    "none": lambda _: BrokerLogin(),
    "plain": _plain,
    "scram_sha_256": _scram,
    "scram_sha_512": _scram,
    "oauthbearer": _oauthbearer,
    "gssapi": _gssapi,
    "aws_msk_iam": _aws_msk_iam,
    "azure_event_hubs": _azure_event_hubs,
}


def _tls(tls: KafkaTls) -> tuple[dict[str, str], dict[str, str]]:
    """TLS settings of Java's client and of librdkafka. They contain the PEM texts, so executors need no files."""
    java, client = dict[str, str](), dict[str, str]()
    if tls.ca:
        ca = _pem("ca", tls.ca, "CERTIFICATE")
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": ca}
        client["ssl.ca.pem"] = ca
    if tls.cert:
        cert = _pem("cert", tls.cert, "CERTIFICATE")
        key = _pem("key", tls.key, "PRIVATE KEY") if tls.key else _pem("cert", tls.cert, "PRIVATE KEY")
        java |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": cert,
            "ssl.keystore.key": key,
        }
        client |= {"ssl.certificate.pem": cert, "ssl.key.pem": key}
    if not tls.verify_hostname:
        java["ssl.endpoint.identification.algorithm"] = ""
        client["ssl.endpoint.identification.algorithm"] = "none"
    return java, client


def _pem(setting: str, value: str, label: str) -> str:
    """The blocks of one kind in a PEM text from a file or a secret reference."""
    where = f"kafka.tls.{setting}"
    try:
        text = secret(value).get_secret_value() if is_reference(value) else Path(value).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        cure = "check that it exists and that the job's user may read it"
        raise ConfigError(where, f"cannot read {value} ({type(exc).__name__})", cure) from exc
    begin, end = f"-----BEGIN {label}-----", f"-----END {label}-----"
    blocks = [f"{begin}{block.partition(end)[0]}{end}\n" for block in text.split(begin)[1:] if end in block]
    if blocks:
        return "".join(blocks)
    if label == "PRIVATE KEY" and "PRIVATE KEY-----" in text:
        cure = "convert it: `openssl pkcs8 -topk8 -nocrypt -in <key> -out <new key>`"
        raise ConfigError(where, "the private key is encrypted or not in PKCS #8 format", cure)
    raise ConfigError(where, f"it contains no `{begin}`", "set it to the path of a PEM file, or to a secret reference")


def _jaas(module: str, **options: str) -> str:
    """A JAAS entry; option values are quoted strings with backslash escapes."""
    given = []
    for name, value in options.items():
        if not value.isprintable():
            raise ConfigError(f"kafka: {name}", "it contains unprintable characters", "correct the secret or setting")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        given.append(f' {name}="{escaped}"')
    return f"{module} required{''.join(given)};"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _msk_token(region: str) -> tuple[str, float]:
    """A token for a region's MSK brokers, and its expiry in seconds since 1970."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ModuleNotFoundError as exc:
        where, cure = "kafka.auth: aws_msk_iam", "pip install 'cdc-lake[msk]'"
        raise InstallationError(where, "aws-msk-iam-sasl-signer-python is not installed", cure) from exc
    from botocore.exceptions import BotoCoreError

    try:
        token, until_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except (AttributeError, ValueError, BotoCoreError) as exc:  # without credentials it raises AttributeError
        raise ConfigError(
            "kafka.auth: aws_msk_iam",
            f"there are no AWS credentials ({type(exc).__name__})",
            "provide AWS credentials whose role allows kafka-cluster:Connect",
        ) from exc
    return token, until_ms / 1000
