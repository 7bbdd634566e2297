"""Every kind of login at a real broker: both clients succeed with the right one and fail at once with a wrong one."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pyspark.sql import SparkSession
from support.events import FakeRegistry
from support.kafka_server import PASSWORD, SCRAM_PASSWORD, USER, Provider, SecureKafka, running
from support.one_server import serving
from support.registry_server import Certificates, FakeServer

from cdc_lake.brokers import broker_login
from cdc_lake.bronze.run import run_bronze
from cdc_lake.cli.app import execute
from cdc_lake.config import load_config
from cdc_lake.errors import ConfigError
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.sinks.topic import KafkaTopic
from cdc_lake.sources.kafka import Broker
from cdc_lake.sources.logs import Span

Refused = Callable[[Path], str]
CANARY = re.compile("canary|PRIVATE KEY")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with serving(FakeServer()) as server:
        yield server


@pytest.fixture(scope="module")
def provider(server: FakeServer) -> Provider:
    return Provider(server)


@pytest.fixture(scope="module")
def broker(
    certificates: Certificates, provider: Provider, server: FakeServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureKafka]:
    with running(tmp_path_factory.mktemp("kafka"), certificates, server.url) as broker:
        yield broker


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch, certificates: Certificates) -> dict[str, str]:
    """Secrets in the environment, and their references in the settings."""
    texts = {
        "PASSWORD": PASSWORD,
        "SCRAM_PASSWORD": SCRAM_PASSWORD,
        "WRONG": "canary-3 of somebody else",
        "OAUTH_SECRET": "canary-4",
        "CA": Path(certificates.ca).read_text(),
        "CERT": Path(certificates.client_cert).read_text(),
        "KEY": Path(certificates.client_key).read_text(),
    }
    for name, text in texts.items():
        monkeypatch.setenv(f"KAFKA_{name}", text)
    return {name: f"env:KAFKA_{name}" for name in texts}


def settings(folder: Path, address: str, **kafka: Any) -> Path:
    """A file of settings."""
    file = folder / "cdc-lake.yml"
    wanted = {
        "kafka": {"bootstrap_servers": address, "timeout_seconds": 5, **kafka},
        "registry": {"url": "http://127.0.0.1:9"},
        "lake": {"root": str(folder / "lake")},
    }
    file.write_text(yaml.safe_dump(wanted))
    return file


def works(spark: SparkSession, file: Path) -> None:
    """Write a record with the Java client, find it with librdkafka, and read it with the Java client."""
    kafka = load_config(file).kafka
    login, name = broker_login(kafka), f"topic_of_{kafka.auth}"
    assert not CANARY.search(repr(login))
    topic = KafkaTopic(name, kafka.bootstrap_servers, 10, login, "the test's")
    topic.create(config={})

    topic.produce(spark.sql("SELECT binary('k') AS key, binary('v') AS value"))

    source = Broker(kafka.bootstrap_servers, 10, login)
    assert name in source.topics()
    log = source.logs([name])[name]
    assert log.partitions == {0: Span(0, 1)}
    (row,) = source.read(spark, name, log.partitions).select("key", "value").collect()
    assert (bytes(row.key), bytes(row.value)) == (b"k", b"v")
    assert source.timestamps_ms(name, {0: 0})
    told = told_by(spark)
    assert "kafka" in told.lower()
    assert not CANARY.search(told)


def told_by(spark: SparkSession) -> str:
    """The newest plans of this session, and its settings, as listeners see them."""
    store = spark._jsparkSession.sharedState().statusStore()
    newest = store.executionsList(max(0, store.executionsCount() - 20), 20)
    plans = [newest.apply(n).physicalPlanDescription() for n in range(newest.size())]
    return "\n".join([*plans, spark.sparkContext.getConf().toDebugString()])


def test_missing_read_permission_exits_2_without_a_retry(
    spark: SparkSession, broker: SecureKafka, secrets: dict[str, str], tmp_path: Path
) -> None:
    """Both clients are rejected: Java's while Spark reads, librdkafka while bronze compares its last record."""
    name = "seen.not.read"
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, 1)])[name].result(10)
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(name, b"v", b"k")
    producer.flush(10)
    acl = AclBinding(
        *(ResourceType.TOPIC, name, ResourcePatternType.LITERAL),
        *(f"User:{USER}", "*", AclOperation.DESCRIBE, AclPermissionType.ALLOW),
    )
    for created in admin.create_acls([acl]).values():
        created.result(10)
    login = {"auth": "plain", "user": USER, "password": secrets["PASSWORD"], "tls": {"enabled": False}}
    file = settings(tmp_path, broker.site.address("open"), **login)
    scheduler = TableScheduler(spark=spark, retry_seconds=600)

    (report,) = run_bronze(load_config(file), [name], registry=FakeRegistry(), scheduler=scheduler).tables

    assert report.error is not None and (report.error.exit_code, report.error.retryable) == (2, False)
    assert "grant its user the ACLs Describe and Read on the topic" in report.error.message
    with pytest.raises(ConfigError, match="ACLs Describe and Read on the topic"):
        Broker(broker.site.address("open"), 10, broker_login(load_config(file).kafka)).first_records(name, {0: 0})


def test_scram_over_tls(
    spark: SparkSession, broker: SecureKafka, secrets: dict[str, str], certificates: Certificates, tmp_path: Path
) -> None:
    address, tls = broker.site.address("scram"), {"ca": certificates.ca}
    login = {"auth": "scram_sha_512", "user": USER, "password": secrets["SCRAM_PASSWORD"]}
    works(spark, settings(tmp_path, address, **login, tls=tls, java={"linger.ms": 5, "client.id": "lake"}))


def test_plain_over_tls_and_without_tls(
    spark: SparkSession, broker: SecureKafka, secrets: dict[str, str], tmp_path: Path
) -> None:
    login = {"auth": "plain", "user": USER, "password": secrets["PASSWORD"]}
    address = broker.site.address("plain")
    works(spark, settings(tmp_path, address, **login, tls={"ca": secrets["CA"]}, librdkafka={"socket.max.fails": 2}))

    file = settings(tmp_path, broker.site.address("open"), **login, tls={"enabled": False})
    (report,) = run_bronze(load_config(file), ["topic_of_plain"], spark, registry=FakeRegistry()).tables
    assert report.rows["read"] == 1
    assert [warning.partition(":")[0] for warning in report.warnings] == [
        "kafka.tls.enabled",
        "none of the 1 records could be used, for example topic_of_plain[0]@0",
    ]


def test_mutual_tls_with_certificates_from_the_environment(
    spark: SparkSession, broker: SecureKafka, secrets: dict[str, str], tmp_path: Path
) -> None:
    tls = {name.lower(): secrets[name] for name in ("CA", "CERT", "KEY")}
    works(spark, settings(tmp_path, broker.site.address("mutual"), tls=tls))


def test_oauth_tokens_from_an_identity_provider(
    spark: SparkSession,
    broker: SecureKafka,
    provider: Provider,
    server: FakeServer,
    secrets: dict[str, str],
    certificates: Certificates,
    tmp_path: Path,
) -> None:
    oauth = {
        "token_url": f"{server.url}{provider.token_path}",
        "client_id": "lake",
        "client_secret": secrets["OAUTH_SECRET"],
        "scope": "lake",
    }
    login = {"auth": "oauthbearer", "oauth": oauth, "tls": {"ca": certificates.ca}}
    works(spark, settings(tmp_path, broker.site.address("oauth"), **login))

    asked = {headers["Authorization"] for _, path, headers in server.seen if path == provider.token_path}
    assert asked == {f"Basic {base64.b64encode(b'lake:canary-4').decode()}"}


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """The bronze job's error about its settings: it exits with 2, and has written nothing."""

    def by(file: Path) -> str:
        with pytest.raises(SystemExit) as ended:
            execute("run", "bronze", "--config", str(file), "--table", "*")
        said = "".join(capsys.readouterr())
        assert ended.value.code == 2, said
        assert not CANARY.search(said)
        assert {entry.name for entry in (file.parent / "lake").glob("*")} <= {"_runs"}  # the report of the failed run
        return " ".join(said.split())

    return by


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "scram": ("scram", {"password": "WRONG"}, "kafka.auth: scram_sha_512"),
    "plain": ("plain", {"auth": "plain", "password": "WRONG"}, "kafka.auth: plain"),
    "another_mechanism": ("plain", {"password": "SCRAM_PASSWORD"}, "kafka.auth: scram_sha_512"),
}


@pytest.mark.parametrize(("listener", "login", "said"), WRONG.values(), ids=WRONG)
def test_wrong_login_exits_2_before_anything_is_read(
    broker: SecureKafka,
    refused: Refused,
    secrets: dict[str, str],
    certificates: Certificates,
    tmp_path: Path,
    listener: str,
    login: dict[str, Any],
    said: str,
) -> None:
    login = {"auth": "scram_sha_512", "user": USER, **login, "password": secrets[login["password"]]}

    error = refused(settings(tmp_path, broker.site.address(listener), **login, tls={"ca": certificates.ca}))

    assert error.startswith(f"error CDC-200 {said}: Kafka at {broker.site.address(listener)} rejects the login (")
    assert "check kafka.user" in error


NOT_BELIEVED: dict[str, tuple[str, dict[str, str]]] = {
    "the_broker_s": ("expired", {}),
    "the_client_s": ("mutual", {"cert": "old_client_cert", "key": "old_client_key"}),
    "none_at_all": ("mutual", {}),
    "another_authority": ("scram", {"ca": "client_cert"}),
}


@pytest.mark.parametrize(("listener", "tls"), NOT_BELIEVED.values(), ids=NOT_BELIEVED)
def test_untrusted_certificate_exits_2(
    broker: SecureKafka,
    refused: Refused,
    certificates: Certificates,
    tmp_path: Path,
    listener: str,
    tls: dict[str, str],
) -> None:
    files = {name: getattr(certificates, attribute) for name, attribute in {"ca": "ca", **tls}.items()}

    error = refused(settings(tmp_path, broker.site.address(listener), tls=files))

    assert error.startswith(
        f"error CDC-200 kafka.tls: the TLS handshake with Kafka at {broker.site.address(listener)} failed"
    )
    assert "certificate" in error


def test_incomplete_login_settings_are_named_before_start(refused: Refused, tmp_path: Path) -> None:
    for kafka, said in (
        ({"auth": "scram_sha_512", "user": "lake"}, "`auth: scram_sha_512` needs `kafka.password`"),
        ({"auth": "oauthbearer"}, "`auth: oauthbearer` needs `kafka.oauth`"),
        ({"auth": "gssapi"}, "`auth: gssapi` needs `kafka.kerberos`"),
        ({"auth": "plain", "user": "lake", "password": "canary-5"}, "write a reference to the secret, not the secret"),
        ({"java": {"sasl.jaas.config": "canary-6"}}, "`sasl.jaas.config` is not an allowed setting"),
    ):
        assert said in refused(settings(tmp_path, "127.0.0.1:9", **kafka)), json.dumps(kafka)
