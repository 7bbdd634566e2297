"""The docker-compose servers have the versions, settings and plugins of the embedded stack."""

import json
import runpy
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployments import INFRA
from support import CHECKOUT

from cdc_lake.config import load_config
from cdc_lake.demo import sample
from cdc_lake.demo.servers.connectors import postgres_connector_config
from cdc_lake.demo.servers.jvm_servers import Connect, Kafka
from cdc_lake.demo.servers.postgres import Postgres, program
from cdc_lake.demo.servers.server import PORTS, Site
from cdc_lake.spark.jars import cache_folder, lock_file, read_lock

pytestmark = pytest.mark.core

Services = dict[str, dict[str, Any]]
COMPOSE = INFRA / "compose"
JARS = read_lock(lock_file("embedded"))
OTHER_PLACE = {"bootstrap.servers", "listeners", "rest.advertised.host.name", "plugin.path"}
OTHER_BROKER = {
    *("controller.quorum.bootstrap.servers", "controller.listener.names", "inter.broker.listener.name"),
    *("listeners", "advertised.listeners", "listener.security.protocol.map", "log.dirs"),
}
"""Differences because a container has another address, and separate listeners inside and outside."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, dict.fromkeys(PORTS, 1), Path("java"), JARS, cache_folder())


@pytest.fixture(scope="module")
def services() -> Services:
    text = (COMPOSE / "docker-compose.yml").read_text(encoding="utf-8")
    found: Services = yaml.safe_load(text)["services"]
    return found


def version(part: str, artifact: str) -> str:
    (found,) = {jar.version for jar in JARS if part in jar.parts and jar.artifact == artifact}
    return found


def test_images_have_the_embedded_versions(services: Services) -> None:
    kafka = version("kafka", "kafka-server")
    assert version("connect", "connect-runtime") == kafka
    said = subprocess.run([program("postgres"), "--version"], check=True, capture_output=True, text=True).stdout

    assert {name: service["image"] for name, service in services.items()} == {
        "postgres": f"postgres:{said.split()[-1]}",
        "kafka": f"apache/kafka:{kafka}",
        "connect": f"apache/kafka:{kafka}",
        "registry": f"apicurio/apicurio-registry:{version('apicurio', 'apicurio-registry-app')}",
    }


def test_broker_settings_match_the_embedded_broker(services: Services, site: Site) -> None:
    wanted = {key: str(value) for key, value in Kafka(site)._settings().items() if key not in OTHER_BROKER}
    there = services["kafka"]["environment"]

    assert {key: there.get(f"KAFKA_{key.replace('.', '_').upper()}") for key in wanted} == wanted
    ours = {*wanted, *OTHER_BROKER, "controller.quorum.voters", "heap.opts"}
    known = {f"KAFKA_{key.replace('.', '_').upper()}" for key in ours} | {"CLUSTER_ID"}
    assert there.keys() <= known


def test_connect_settings_match_the_embedded_connect(site: Site) -> None:
    lines = (COMPOSE / "connect.properties").read_text(encoding="utf-8").splitlines()
    there = dict(line.split("=", 1) for line in lines)
    wanted = {key: str(value) for key, value in Connect(site)._settings(Path("/plugins")).items()}

    assert there.keys() == wanted.keys()
    assert {key for key in wanted if there[key] != wanted[key]} == OTHER_PLACE - {"plugin.path"}


def test_postgres_settings_match_the_embedded_postgres(services: Services, site: Site) -> None:
    def settings(command: list[str]) -> set[str]:
        return {value for flag, value in pairwise(command) if flag == "-c"}

    embedded = settings(Postgres(site).command())
    there = settings(services["postgres"]["command"])

    assert there < embedded
    assert {one.partition("=")[0] for one in embedded - there} == {
        *("listen_addresses", "port", "unix_socket_directories"),
        "fsync",  # the embedded server may lose data that a laptop's user would need
    }


def test_connector_matches_the_demo_connector() -> None:
    assert json.loads((COMPOSE / "connector.json").read_text(encoding="utf-8")) == postgres_connector_config(
        {"postgres": "postgresql://postgres@postgres:5432/postgres", "registry": "http://registry:8080"},
        database="pagila",
        topic_prefix="pagila",
        tables=[f"public.{table}" for table in sample.TABLES],
        envelope_tables=[f"public.{table}" for table in sample.ENVELOPE_TABLES],
        signal_table=f"public.{sample.SIGNAL_TABLE}",
    )


def test_servers_listen_on_loopback_only(services: Services) -> None:
    ports = [port for service in services.values() for port in service["ports"]]

    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_mounted_files_exist(services: Services) -> None:
    volumes = [volume.split(":")[0] for service in services.values() for volume in service["volumes"]]
    files = [volume for volume in volumes if volume.startswith(".") and volume != "./plugins"]

    assert len(files) == 2
    assert all((COMPOSE / file).is_file() for file in files)


def test_jobs_env_sets_the_server_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in (COMPOSE / "jobs.env").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            monkeypatch.setenv(*line.split("=", 1))
    config = load_config(CHECKOUT / "conf" / "cdc-lake.yml")

    assert config.kafka.address == "localhost:9092"
    assert config.registry.address == "http://localhost:8080"


def test_plugins_are_the_locked_jars(tmp_path: Path) -> None:
    write_plugins = runpy.run_path(str(COMPOSE / "plugins.py"))["write_plugins"]
    write_plugins(tmp_path / "plugins")
    write_plugins(tmp_path / "plugins")
    converter = {jar.path(cache_folder()).name for jar in JARS if "apicurio-converter" in jar.parts}

    assert {file.name for file in (tmp_path / "plugins" / "apicurio-converter").iterdir()} == converter
    assert list((tmp_path / "plugins" / "debezium").rglob("debezium-connector-postgres-*.jar"))
    assert not [file for file in (tmp_path / "plugins").rglob("*") if file.is_symlink()]
