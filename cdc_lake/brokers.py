"""How Kafka's brokers know who asks: the settings of both clients in use, Java's inside Spark and librdkafka's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from cdc_lake.config import JAVA_PRODUCER_SETTINGS, KafkaConfig, KafkaTls, is_reference, secret
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, InstallationError
from cdc_lake.privacy import check_privacy

_OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer"
_EVENT_HUBS_KEEP_ALIVE = "180000"
"""Milliseconds. Azure closes a connection that was idle for 240 seconds, and tells nobody."""


@dataclass(frozen=True)
class BrokerLogin:
    """A login at the brokers; none at all, if nothing is said.

    The settings hold passwords and keys: they are passed on to the clients, and shown nowhere.

    Attributes:
        name: what the settings call it.
        java: settings of Java's client, without Spark's `kafka.` in front.
        java_producer: more of them that only a producer knows.
        client: settings of librdkafka's.
    """

    name: str = "none"
    java: Mapping[str, str] = field(default_factory=dict, repr=False)
    java_producer: Mapping[str, str] = field(default_factory=dict, repr=False)
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def options(self) -> dict[str, str]:
        """`java`, as Spark's Kafka source takes it."""
        return {f"kafka.{name}": value for name, value in self.java.items()}

    @property
    def producer_options(self) -> dict[str, str]:
        """The same for Spark's Kafka sink."""
        return self.options | {f"kafka.{name}": value for name, value in self.java_producer.items()}


class Admin:
    """librdkafka's admin client, and whether a login that is refused is why nobody answers.

    Args:
        bootstrap_servers: host:port, comma separated.
        login: how the brokers know who asks.

    Raises:
        ConfigError: it cannot work with these settings.
        InstallationError: this build of it has no such login.
    """

    def __init__(self, bootstrap_servers: str, login: BrokerLogin) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._login = login
        self._refusal: KafkaError | None = None
        settings = {"bootstrap.servers": bootstrap_servers, "log_level": 0, "error_cb": self._hear, **login.client}
        try:
            self.client = AdminClient(settings)
        except KafkaException as exc:
            raise self._unfit(exc.args[0].str()) from exc

    def down(self, why: object, todo: str) -> CdcLakeError:
        """The error of brokers that do not answer.

        Args:
            why: what the client says.
            todo: what helps if they are down.
        """
        self.client.poll(0)  # or what it has heard is not told
        kafka, refusal = f"Kafka at {self._bootstrap_servers}", self._refusal
        if refusal is None:
            return InfrastructureError(kafka, f"the broker does not answer ({why})", todo)
        if refusal.code() != KafkaError._AUTHENTICATION:
            todo = "see the names, dates and signers of the certificates: `ca` is of theirs, `cert` is ours"
            return ConfigError("kafka.tls", f"{kafka} and this side do not trust each other ({refusal.str()})", todo)
        where, todo = f"kafka.auth: {self._login.name}", f"see {_SEE[self._login.name]}; nothing was read"
        return ConfigError(where, f"{kafka} refuses the login ({refusal.str()})", todo)

    def _hear(self, error: KafkaError) -> None:
        # In TLS 1.3 a broker that does not like the client's certificate says so when the line is already up.
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or "tls alert" in error.str():
            self._refusal = error

    def _unfit(self, said: str) -> ConfigError:
        where, said = f"kafka.auth: {self._login.name}", said.removeprefix("Failed to create admin client: ")
        if "No provider for SASL mechanism" in said:
            todo = "install one with libsasl2: `pip install --no-binary confluent-kafka confluent-kafka`"
            return InstallationError(where, f"the installed librdkafka has no such login ({said})", todo)
        return ConfigError(where, f"librdkafka cannot work with these settings ({said})", "see `kafka` in the settings")


def refused(where: str, said: str) -> ConfigError | None:
    """The error of an answer that a broker gives again however often it is asked; none for what may pass.

    Args:
        where: what was read.
        said: what Java's client or librdkafka says.
    """
    for java, client, what, todo in _REFUSALS:
        if f"errors.{java}Exception" in said or f"code={client}," in said:
            return ConfigError(where, what, f"{todo}; nothing of this batch was committed")
    return None


_REFUSALS = (
    (
        "TopicAuthorization",
        "TOPIC_AUTHORIZATION_FAILED",
        "the broker does not let this login read the topic",
        "give its user the ACLs Describe and Read on the topic",
    ),
    (
        "GroupAuthorization",
        "GROUP_AUTHORIZATION_FAILED",
        "the broker does not let this login use a consumer group",
        "give its user the ACL Read on groups that begin with `spark-kafka-` and `cdc_lake-`",
    ),
    (
        "ClusterAuthorization",
        "CLUSTER_AUTHORIZATION_FAILED",
        "the broker does not let this login see the cluster",
        "give its user the ACL Describe on the cluster",
    ),
    (
        "RecordTooLarge",
        "MSG_SIZE_TOO_LARGE",
        "a record is larger than the client may fetch",
        "raise `max.partition.fetch.bytes` and `fetch.max.bytes` in `kafka.java`",
    ),
    (
        "UnknownTopicOrPartition",
        "UNKNOWN_TOPIC_OR_PART",
        "the broker does not know the topic, or does not let this login see it",
        "check that it still exists, and give its user the ACL Describe on it",
    ),
    (
        "SaslAuthentication",
        "SASL_AUTHENTICATION_FAILED",
        "the broker refuses the login",
        "check `kafka.auth` and the secrets that it refers to",
    ),
)
"""By the names of both clients: what is wrong, and which permission or setting is missing."""

_SEE = {
    "none": "which login the brokers want",
    **dict.fromkeys(
        ("plain", "scram_sha_256", "scram_sha_512"), "kafka.user, what kafka.password refers to, and its kind"
    ),
    "oauthbearer": "kafka.oauth",
    "gssapi": "kafka.kerberos",
    "azure_event_hubs": "what kafka.connection_string refers to",
    "aws_msk_iam": "the role's right to kafka-cluster:Connect",
}


def broker_login(kafka: KafkaConfig) -> BrokerLogin:
    """The login that the settings ask for.

    Raises:
        ConfigError: a secret or a certificate is not there or is none, a secret would travel in the clear, or there are
            no AWS credentials.
        InstallationError: what signs for Amazon MSK is not installed.
        InfrastructureError: see `cdc_lake.config.secret`.
    """
    line = ("" if kafka.auth == "none" else "SASL_") + ("SSL" if kafka.is_encrypted else "PLAINTEXT")
    protocol = {} if line == "PLAINTEXT" else {"security.protocol": line}  # which both clients take for granted
    found = _LOGINS[kafka.auth](kafka)
    java_tls, client_tls = _tls(kafka.tls) if kafka.tls and kafka.tls.enabled else ({}, {})
    more, client = ({name: _text(value) for name, value in given.items()} for given in (kafka.java, kafka.librdkafka))
    producer = {name: more.pop(name) for name in JAVA_PRODUCER_SETTINGS & more.keys()}
    return BrokerLogin(
        kafka.auth,
        java={**protocol, **java_tls, **found.java, **more},
        java_producer={**found.java_producer, **producer},
        client={**protocol, **client_tls, **found.client, **client},
    )


def _plain(kafka: KafkaConfig) -> BrokerLogin:
    return _by_password("PLAIN", "plain.PlainLoginModule", kafka.user, kafka.password)


def _scram(kafka: KafkaConfig) -> BrokerLogin:
    mechanism = kafka.auth.upper().replace("_", "-")
    return _by_password(mechanism, "scram.ScramLoginModule", kafka.user, kafka.password)


def _by_password(mechanism: str, module: str, user: str | None, password: str | None) -> BrokerLogin:
    assert user is not None and password is not None, "the settings see to it"
    word = secret(password).get_secret_value()
    jaas = _jaas(f"org.apache.kafka.common.security.{module}", username=user, password=word)
    return BrokerLogin(
        java={"sasl.mechanism": mechanism, "sasl.jaas.config": jaas},
        client={"sasl.mechanisms": mechanism, "sasl.username": user, "sasl.password": word},
    )


def _oauthbearer(kafka: KafkaConfig) -> BrokerLogin:
    oauth = kafka.oauth
    assert oauth is not None, "the settings see to it"
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
    assert kerberos is not None, "the settings see to it"
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
    assert region is not None, "the settings see to it"
    _signed(region)  # or a missing role would look like a broker that does not answer
    return BrokerLogin(
        java={
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": _jaas("software.amazon.msk.auth.iam.IAMLoginModule"),
            "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        },
        client={"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": lambda _: _signed(region)},
    )


def _azure_event_hubs(kafka: KafkaConfig) -> BrokerLogin:
    """The settings that Microsoft advises for Apache Kafka's clients of Event Hubs."""
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
    """Java's settings and librdkafka's. Both are given the texts: no file has to be on an executor."""
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


def _pem(setting: str, value: str, what: str) -> str:
    """The blocks of a kind in a PEM text, which is in a file or behind a reference."""
    where = f"kafka.tls.{setting}"
    try:
        text = secret(value).get_secret_value() if is_reference(value) else Path(value).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(where, f"{value} cannot be read ({type(exc).__name__})", "see that it is there") from exc
    begin, end = f"-----BEGIN {what}-----", f"-----END {what}-----"
    blocks = [f"{begin}{block.partition(end)[0]}{end}\n" for block in text.split(begin)[1:] if end in block]
    if blocks:
        return "".join(blocks)
    if what == "PRIVATE KEY" and "PRIVATE KEY-----" in text:
        todo = "make it one: `openssl pkcs8 -topk8 -nocrypt -in <key> -out <new key>`"
        raise ConfigError(
            where, "the private key is not PKCS #8, or has a password, which Java's client reads not", todo
        )
    raise ConfigError(where, f"there is no `{begin}` in it", "give PEM text, or the path of a file that holds it")


def _jaas(module: str, **options: str) -> str:
    """A line of JAAS: a value is read as a quoted string with backslashes."""
    given = []
    for name, value in options.items():
        if not value.isprintable():
            raise ConfigError(f"kafka: {name}", "it holds characters that cannot be printed", "see where it comes from")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        given.append(f' {name}="{escaped}"')
    return f"{module} required{''.join(given)};"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
