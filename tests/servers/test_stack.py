"""The embedded servers: how they start and end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import requests
from psycopg.conninfo import make_conninfo

from cdc_lake.config import endpoints_file
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.errors import ConfigError, InfrastructureError

NAMES = {"postgres", "kafka", "registry", "connect"}


def pids(stack: Stack) -> list[int]:
    return [server.pid for server in stack.status() if server.pid]


def keeper(stack: Stack) -> int:
    pid: int = json.loads((stack.folder / "stack.json").read_text())["keeper"]
    return pid


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def soon(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[Stack]:
    """A stack that a test may break."""
    stack = Stack(tmp_path / "stack")
    yield stack
    stack.delete()


@pytest.mark.core
def test_all_servers_are_up_and_respond(stack: Stack) -> None:
    assert {server.name: server.state for server in stack.status()} == dict.fromkeys(NAMES, "running")
    assert all(server.rss_bytes > 10_000_000 for server in stack.status())
    assert set(stack.endpoints) == NAMES
    with psycopg.connect(stack.endpoints["postgres"]) as connection:
        assert connection.execute("show wal_level").fetchone() == ("logical",)
    plugins = requests.get(f"{stack.endpoints['connect']}/connector-plugins", timeout=10).json()
    assert "io.debezium.connector.postgresql.PostgresConnector" in {plugin["class"] for plugin in plugins}


@pytest.mark.core
def test_postgres_requires_a_password_only_its_user_can_read(stack: Stack) -> None:
    address = stack.endpoints["postgres"]
    for password in ("", "postgres"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(make_conninfo(address, password=password), passfile="/nonexistent")
    holding = {name: stack.folder / name for name in ("endpoints.json", "stack.json", "postgres.password")}
    assert {name: file.stat().st_mode & 0o777 for name, file in holding.items()} == dict.fromkeys(holding, 0o600)


def test_starting_a_running_stack_changes_nothing(stack: Stack) -> None:
    before = pids(stack)
    Stack(stack.folder).start(detach=False)
    assert pids(stack) == before


def test_failed_connector_reports_the_reason(stack: Stack) -> None:
    config = postgres_connector_config(stack.endpoints, database="absent", topic_prefix="absent", tables=["public.a"])
    with pytest.raises(InfrastructureError, match=r'(?s)connector absent: .*database "absent" does not exist'):
        put_connector(stack.endpoints["connect"], "absent", config)


def test_running_servers_refuse_a_metastore_that_they_lack(stack: Stack) -> None:
    with pytest.raises(ConfigError, match=r"without a metastore; run `cdc-lake stack down`"):
        Stack(stack.folder).start(detach=False, metastore=True)


def start_elsewhere(stack: Stack, how: str = "", what_next: str = "") -> subprocess.Popen[str]:
    """Start the servers from another process, which then runs `what_next` and waits."""
    program = (
        "import pathlib, sys, time\nfrom cdc_lake.demo.servers.stack import Stack\n"
        f"stack = Stack(pathlib.Path(sys.argv[1]))\nstack.start(detach=False{how})\n"
        f"{what_next}\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    return subprocess.Popen([sys.executable, "-c", program, str(stack.folder)], stdout=subprocess.PIPE, text=True)


def test_detached_servers_outlive_caller_and_data_outlives_stop(own_stack: Stack) -> None:
    with start_elsewhere(own_stack, ", metastore=True", "stack.detach()") as caller:
        assert caller.stdout and caller.stdout.readline() == "up\n"
        addresses, servers = own_stack.endpoints, pids(own_stack)
        caller.kill()
    assert set(addresses) == NAMES | {"metastore"}
    with psycopg.connect(addresses["postgres"]) as connection:
        connection.execute("create table kept as select 1 as id")
    time.sleep(1)
    assert all(map(lives, servers))
    own_stack.stop()
    assert soon(lambda: not any(map(lives, servers)), seconds=15)
    assert {server.state for server in own_stack.status()} == {"stopped"}
    assert not endpoints_file(own_stack.folder).exists()
    with pytest.raises(InfrastructureError, match="cdc-lake stack up"):
        _ = own_stack.endpoints

    with start_elsewhere(own_stack) as caller:
        assert caller.stdout and caller.stdout.readline() == "up\n"
        again, servers = own_stack.endpoints, pids(own_stack)
        with psycopg.connect(again["postgres"]) as connection:
            assert connection.execute("select id from kept").fetchone() == (1,)
        caller.kill()
    assert again == {name: addresses[name] for name in NAMES}
    assert soon(lambda: not any(map(lives, servers)), seconds=15)


def test_killed_keeper_stops_its_servers(own_stack: Stack) -> None:
    with start_elsewhere(own_stack) as caller:
        # Connect, which is the fourth, waits until Kafka is ready.
        are_there = soon(lambda: len(pids(own_stack)) >= 3, seconds=60)
        servers = pids(own_stack)
        os.kill(keeper(own_stack), signal.SIGKILL)
        caller.kill()
    assert are_there
    assert soon(lambda: not any(map(lives, servers)))
    assert {server.state for server in own_stack.status()} == {"stopped"}


def test_failed_server_start_shows_log_and_stops_everything(own_stack: Stack) -> None:
    data = own_stack.folder / "kafka"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("version=7\n")
    with pytest.raises(InfrastructureError) as caught:
        own_stack.start(detach=False)
    message = str(caught.value)
    assert message.startswith("kafka: it ended with code 1 before it was ready; ")
    assert str(own_stack.folder / "logs" / "kafka.log") in message
    assert "meta.properties" in message.partition("ends with")[2]
    assert {server.state for server in own_stack.status()} == {"stopped"}
    assert not endpoints_file(own_stack.folder).exists()
    assert not lives(keeper(own_stack))
