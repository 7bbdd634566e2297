"""`cdc-lake demo` and a slice of the full one, on the servers of all tests; deep tests run all of the full one."""

import io
import json
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import psycopg
import pytest
import requests
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from support.running_servers import running

from cdc_lake.cli.app import execute
from cdc_lake.config import TableType
from cdc_lake.demo import sample
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.demo.source import FLOOR, SAMPLE, SMALL_FLOOR, SMALL_TABLES, models_reading_only
from cdc_lake.reconcile.postgres_catalog import CUT_TIME, OTHER_CALENDAR, SEVERAL_DIMENSIONS

COMMAND = Path(sys.executable).with_name("cdc-lake")
SLICE = ["pagila.public.customer", "pagila.public.payment"]
"""Full change events and hard deletes; flattened rows of a partitioned table, and soft deletes."""
DUMPS = Path(__file__).with_name("dumps")


@dataclass(frozen=True)
class Ended:
    """The result of the demo.

    Attributes:
        folder: what it ran in.
        result: its last line of output.
        out, err: what it printed.
        servers: what it asked of its servers, in order.
    """

    folder: Path
    result: dict[str, Any]
    out: str
    err: str
    servers: list[str]


def run_on(stack: Stack, folder: Path, *flags: str) -> Ended:
    """The demo on servers that run already, which then forget it."""
    out, err, servers = io.StringIO(), io.StringIO(), running(stack)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr("cdc_lake.demo.run.Stack", servers)
        with pytest.raises(SystemExit) as exited:
            execute("demo", "--json", "--folder", str(folder), *flags)
    try:
        assert exited.value.code == 0, err.getvalue()
    finally:
        forget(stack)
    return Ended(folder, json.loads(out.getvalue().splitlines()[-1]), out.getvalue(), err.getvalue(), servers.calls)


def forget(stack: Stack) -> None:
    """Remove the demo's connector, slot, database and topics."""
    addresses = stack.endpoints
    requests.delete(f"{addresses['connect']}/connectors/{SAMPLE}", timeout=30).raise_for_status()
    with psycopg.connect(addresses["postgres"], autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [SAMPLE]
        )
        while admin.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s AND active", [SAMPLE]).fetchone():
            time.sleep(0.1)
        admin.execute("SELECT pg_drop_replication_slot(%s)", [SAMPLE])
        admin.execute(f"DROP DATABASE {SAMPLE} WITH (FORCE)".encode())
    kafka = AdminClient({"bootstrap.servers": addresses["kafka"]})
    topics = [topic for topic in kafka.list_topics(timeout=30).topics if topic.startswith(f"{SAMPLE}.")]
    for deleted in kafka.delete_topics(topics).values():
        deleted.result(30)


@pytest.fixture(scope="module")
def ended(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The demo, once."""
    return run_on(stack, tmp_path_factory.mktemp("demo") / "made by the demo")


@pytest.mark.core
def test_demo_exits_0_and_last_line_is_the_result(ended: Ended) -> None:
    result = ended.result
    assert set(result) == {
        *("source", "left_out", "skipped", "tables", "gold", "differences", "samples", "transactions", "example"),
        *("stream", "too_few", "parts", "seconds", "peak_rss_bytes"),
    }
    assert [table["topic"] for table in result["tables"]] == [f"pagila.public.{table}" for table in SMALL_TABLES]
    assert [made["model"] for made in result["gold"]] == ["films_by_rating", "rentals_per_store_day"]
    for table in result["tables"]:
        assert set(table) == {
            *("topic", "events", "bronze_rows", "quarantined", "silver_rows", "source_rows", "differences", "losses"),
            "seconds",
        }
    assert set(result["stream"]) == set(SMALL_FLOOR)


@pytest.mark.core
def test_demo_finds_no_difference(ended: Ended) -> None:
    assert (ended.result["differences"], ended.result["samples"], ended.result["too_few"]) == (0, [], {})
    for table in ended.result["tables"]:
        assert (table["differences"], table["losses"]) == (0, {})
        assert table["quarantined"] == (table["topic"] == "pagila.public.film")
        assert table["events"] == table["bronze_rows"] >= table["source_rows"] == table["silver_rows"] > 0
    assert all(made["rows"] == made["source_rows"] > 0 for made in ended.result["gold"])


@pytest.mark.core
def test_demo_runs_each_layer_in_two_rounds(ended: Ended) -> None:
    assert list(ended.result["parts"]) == [
        *("start", "load", "connector", "snapshot", "bronze", "silver", "gold"),
        *("changes", "bronze again", "silver again", "gold again", "compare"),
    ]
    assert 0 < sum(ended.result["parts"].values()) <= ended.result["seconds"] + 1
    assert 1 << 29 < ended.result["peak_rss_bytes"] < 8 << 30
    reports = [json.loads(file.read_text()) for file in (ended.folder / "lake" / "_runs").glob("*.json")]
    assert Counter(report["layer"] for report in reports) == {"bronze": 2, "silver": 2, "gold": 2}


@pytest.mark.core
def test_soft_delete_keeps_the_row_and_hard_delete_removes_it(ended: Ended) -> None:
    silver = ended.folder / "lake" / "silver" / "pagila" / "public"
    customers, payments = (DeltaTable(silver / name).to_pyarrow_table().to_pylist() for name in ("customer", "payment"))
    soft = [row for row in payments if row["__deleted"]]

    assert len(soft) >= 10
    assert {row["__op"] for row in soft} <= {"d", "tombstone"}
    assert all(row["amount"] is not None and row["rental_id"] is not None for row in soft)
    assert not any(row["__deleted"] for row in customers)


@pytest.mark.core
def test_demo_prints_steps_summary_and_next_commands(ended: Ended) -> None:
    assert len(ended.out.splitlines()) == 1  # all else is on stderr with --json
    steps, _, rest = ended.err.partition("topic after")
    assert [line.split()[0] for line in steps.split("\n\n")[0].splitlines()] == [
        part.split()[0] for part in ended.result["parts"]
    ]
    assert "Silver and gold equal Postgres." in rest
    shown, _, commands = ended.err.partition("Try next")
    assert max(map(len, shown.splitlines())) <= 80
    assert [word for word in ("status", "story", "duckdb") if word in commands] == ["status", "story", "duckdb"]


@pytest.mark.core
def test_printed_commands_work_when_pasted(ended: Ended) -> None:
    _, _, commands = ended.err.partition("on the lake of the demo:\n")

    done = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    assert "The lag is unknown" in done.stdout  # the servers are stopped
    story = " ".join(done.stdout.split())
    assert re.search(r"u 0@\d+ lost: stale", story), story
    assert "quarantined: value: the bytes end in the middle of the record" in story
    assert "NC-17" in done.stdout


@pytest.mark.core
def test_demo_starts_and_stops_its_servers(ended: Ended) -> None:
    """tests/servers/test_stack.py tests stopped servers."""
    assert ended.servers == ["delete", "start", "stop"]


def test_slice_of_the_full_demo_finds_no_difference(stack: Stack, tmp_path: Path) -> None:
    result = run_on(stack, tmp_path, *(flag for topic in SLICE for flag in ("--table", topic))).result

    assert [table["topic"] for table in result["tables"]] == SLICE
    assert result["gold"] == []  # no model reads only these tables
    assert (result["differences"], result["too_few"]) == (0, {})
    assert result["transactions"] >= sample.ENOUGH
    assert list(result["parts"]) == [
        *("start", "load", "connector", "snapshot", "bronze", "silver"),
        *("rest", "bronze again", "silver again", "compare"),
    ]
    hard = {name: number for name, number in result["stream"].items() if name in FLOOR}
    assert min(hard.values()) >= 10, hard


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The demo's output from another folder than this test's, which it does not change."""

    def by(*flags: str) -> str:
        before = content(tmp_path)
        with pytest.raises(SystemExit) as ended:
            execute("demo", "--folder", str(tmp_path), *flags)
        said = capsys.readouterr().err
        assert ended.value.code == 2, said
        assert "Traceback" not in said
        assert content(tmp_path) == before
        return said

    return by


@pytest.mark.core
def test_unknown_demo_table_is_refused_and_known_ones_are_listed(refused: Callable[..., str]) -> None:
    said = refused("--table", "pagila.public.movie")

    assert "error CDC-200 pagila.public.movie: it matches no topic" in said
    assert "pagila.public.film" in said


@pytest.mark.core
@pytest.mark.parametrize("place", ["lake", "stack"])
def test_folder_with_foreign_data_is_refused_and_unchanged(
    refused: Callable[..., str], tmp_path: Path, place: str
) -> None:
    (tmp_path / place / "bronze").mkdir(parents=True)
    (tmp_path / place / "bronze" / "mine.parquet").write_bytes(b"years of work")

    said = refused()

    assert f"error CDC-200 {tmp_path}: it contains servers or tables that the demo did not create" in said
    assert "--folder" in said


@pytest.mark.core
def test_slice_includes_models_that_read_only_its_tables() -> None:
    topics = [f"pagila.public.{table}" for table in ("customer", "inventory", "rental", "payment")]

    assert list(models_reading_only(topics, sample.GOLD)) == ["rentals_per_store_day", "sales_by_region"]


def demo(folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """The demo in a new clone of the repository; it leaves no server running."""
    command = [str(COMMAND), "demo", "--json", "--folder", str(folder), *flags]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        servers = Stack(folder / "stack").status()
    finally:
        Stack(folder / "stack").delete()
    assert {server.name: server.state for server in servers} == dict.fromkeys(
        ("postgres", "kafka", "registry", "connect"), "stopped"
    ), ended.stderr
    assert not [server.address for server in servers if listens(server.address)]
    return ended


def listens(address: str) -> bool:
    place = urlsplit(address if "://" in address else f"kafka://{address}")
    with socket.socket() as client:
        client.settimeout(2)
        return client.connect_ex((str(place.hostname), place.port or 0)) == 0


@pytest.mark.deep
@pytest.mark.parametrize("table_type", get_args(TableType))
def test_full_demo_finds_no_difference_in_a_hard_stream(tmp_path: Path, table_type: TableType) -> None:
    ended = demo(tmp_path, "--full", "--table-type", table_type)

    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert (found["differences"], found["too_few"]) == (0, {})
    assert [table["topic"] for table in found["tables"]] == [f"pagila.public.{table}" for table in sample.TABLES]
    assert [made["model"] for made in found["gold"]] == list(sample.GOLD)
    assert all(made["rows"] == made["source_rows"] > 0 for made in found["gold"]), found["gold"]
    assert list(found["parts"]) == [
        *("start", "load", "connector", "snapshot", "bronze", "silver", "gold"),
        *("rest", "bronze again", "silver again", "gold again", "compare"),
    ]
    assert "Silver and gold equal Postgres" in ended.stderr
    assert all(found["stream"][name] >= least for name, least in FLOOR.items()), found["stream"]


@pytest.mark.deep
def test_demo_follows_dumps_unlike_the_sample(tmp_path: Path) -> None:
    dumps = [flag for dump in sorted(DUMPS.glob("*.sql")) for flag in ("--sql", str(dump))]

    ended = demo(tmp_path, *dumps)

    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["differences"] == 0
    assert {table["topic"] for table in found["tables"]} == {
        *("dump.Sky_Survey.Star", "dump.Sky_Survey.Exposure_2024", "dump.archive.plate"),
        *("dump.public.Port", "dump.public.Ship", "dump.public.Call"),
        *("dump.customs.Declaration.v2", "dump.customs.empty"),
    }
    assert [table["topic"] for table in found["tables"] if not table["source_rows"]] == ["dump.customs.empty"]
    assert set(found["left_out"]) == {"archive.Observer's log", "customs.scratch"}
    assert min(found["stream"][name] for name in ("updates", "deletes", "key_changes")) > 0
    losses = {table["topic"]: set(table["losses"]) for table in found["tables"]}
    assert losses["dump.archive.plate"] >= {OTHER_CALENDAR, CUT_TIME, SEVERAL_DIMENSIONS}
