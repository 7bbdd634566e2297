"""Secrets of every kind of reference appear neither while bronze runs with them nor in its files."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import psutil
import pytest
import yaml
from confluent_kafka import Producer
from support.kafka_server import PASSWORD, USER, SecureKafka, running
from support.one_server import serving
from support.registry_server import Certificates, FakeServer

CANARY = "canary"
"""Part of the secret, and of no other text."""


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeServer]:
    with serving(FakeServer()) as server:
        login = base64.b64encode(f"lake:{PASSWORD}".encode()).decode()
        server.required = {f"Basic {login}"}
        server.answer("/schemas/types", (200, ["AVRO"]))
        yield server


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, registry: FakeServer) -> Iterator[SecureKafka]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with running(tmp_path_factory.mktemp("kafka"), certificates, registry.url) as broker:
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce("pagila.public.one", b"\0\0\0\0\x01\x02", b"\0\0\0\0\x02\x02")
        producer.flush(10)
        yield broker


@pytest.fixture
def references(aws: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The same secret at each kind of reference."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("LAKE_PASSWORD", PASSWORD)
    boto3.client("ssm").put_parameter(Name="/lake", Value=PASSWORD, Type="SecureString")
    boto3.client("secretsmanager").create_secret(Name="lake", SecretString=PASSWORD)
    (tmp_path / "secret").write_text(PASSWORD)
    return {
        "env": "env:LAKE_PASSWORD",
        "file": f"file:{tmp_path / 'secret'}",
        "ssm": "ssm:/lake",
        "secretsmanager": "secretsmanager:lake",
    }


@pytest.mark.parametrize(("of_kafka", "of_registry"), [("ssm", "file"), ("secretsmanager", "env")])
def test_no_secret_shows_up_anywhere(
    broker: SecureKafka,
    registry: FakeServer,
    references: dict[str, str],
    tmp_path: Path,
    of_kafka: str,
    of_registry: str,
) -> None:
    work = tmp_path / "work"
    (work / "events").mkdir(parents=True)
    settings = {
        "kafka": {
            "bootstrap_servers": broker.site.address("open"),
            "auth": "plain",
            "user": USER,
            "password": references[of_kafka],
            "tls": {"enabled": False},
        },
        "registry": {
            "type": "confluent",
            "url": registry.url,
            "auth": {"basic": {"user": "lake", "password": references[of_registry]}},
        },
        "lake": {"root": str(work / "lake")},
        "defaults": {"quality": {"on_unusable_records": "warn"}},
    }
    (work / "cdc-lake.yml").write_text(yaml.safe_dump(settings))
    logged = f"--conf spark.eventLog.enabled=true --conf spark.eventLog.dir={work / 'events'} pyspark-shell"
    command = [sys.executable, "-c", "from cdc_lake.cli.app import main; main()", "--debug", "run", "bronze", "--json"]
    with (work / "said").open("w") as output:
        started = subprocess.Popen(
            [
                *command,
                "--config",
                str(work / "cdc-lake.yml"),
                "--table",
                "pagila.public.*",
                "--quarantine-unknown-ids",
            ],
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": logged},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        arguments, environments = watched(started)

    said = (work / "said").read_text()
    assert started.returncode == 0, said
    (report,) = json.loads(said.splitlines()[-1])["tables"]
    assert report["rows"]["quarantined"] == 1
    left = {path.relative_to(work).parts[0] for path in work.rglob("*") if path.is_file()}
    assert left == {"cdc-lake.yml", "events", "lake", "said"}
    holding = [path for path in work.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert not holding
    assert any("java" in text for text in arguments)
    assert not [text for text in arguments if CANARY in text]
    showing = {name for names in environments for name, value in names.items() if CANARY in value}
    assert showing == {"LAKE_PASSWORD"}, "only the variable that whoever starts the run has set"


def watched(process: "subprocess.Popen[bytes]") -> tuple[set[str], list[dict[str, str]]]:
    """Command lines and environments of a process and its children, collected until it ends."""
    arguments, environments, known = set(), [], set()
    while process.poll() is None:
        for one in [root := psutil.Process(process.pid), *root.children(recursive=True)]:
            try:
                line = " ".join(one.cmdline())
                if (one.pid, line) not in known:
                    known.add((one.pid, line))
                    arguments.add(line)
                    environments.append(one.environ())
            except psutil.Error:
                continue
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    return arguments, environments
