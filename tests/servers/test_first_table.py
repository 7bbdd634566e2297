"""docs/tutorial/first-table.md, step by step, against the embedded servers; and the report that the reference shows."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support import CHECKOUT

from cdc_lake.cli.app import execute
from cdc_lake.demo import sample
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack

NAME = "shop"
PAGE = CHECKOUT / "docs" / "tutorial" / "first-table.md"
REPORT_PAGE = CHECKOUT / "docs" / "reference" / "report.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
VOLATILE = re.compile(
    r"(?<=^bronze )[0-9a-f]{8}$|(?<=^silver )[0-9a-f]{8}$"  # the run's id
    r"| +\d+\.\d(?= │$)|^\d+\.\d s: .*"  # seconds
    r"|^[\d-]{10} [\d:.]{12}Z",  # the time of an event
    re.MULTILINE,
)
WIDTH = 80
INSTALLS = (
    *("python3 -m venv .venv", ". .venv/bin/activate"),
    *("pip install 'cdc-lake[spark35,report]' deltalake", "cdc-lake jars fetch"),
)
SERVERS = {"broker:9092": "kafka", "http://registry:8080": "registry"}


@pytest.fixture
def source(stack: Stack) -> str:
    """The DSN of an empty database."""
    with psycopg.connect(stack.endpoints["postgres"], autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(NAME)))
    return make_conninfo(stack.endpoints["postgres"], dbname=NAME)


@pytest.mark.usefixtures("spark")
def test_every_step_works_and_prints_what_the_page_shows(
    stack: Stack, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    names: dict[str, object] = {}
    printed = ""
    steps = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [kind for kind, _ in steps].count("sh") > 4
    for kind, text in steps:
        assert not kind or not printed, "a step follows, but the page does not show this output"
        match kind:
            case "sql":
                change(stack, source, text)
            case "sh":
                for written, server in SERVERS.items():
                    text = text.replace(written, stack.endpoints[server])
                for line in text.splitlines():
                    run(line)
                printed = capsys.readouterr().out
            case "python":
                exec(text, names)
                printed = capsys.readouterr().out
            case _:
                assert steady(printed) == steady(text)
                assert max(map(len, text.splitlines())) <= WIDTH
                printed = ""
    assert not printed, "the page does not show the last output"
    first, *_ = sorted(Path("lake/_runs").glob("*-bronze-*.json"))
    (shown,) = (text for kind, text in BLOCK.findall(REPORT_PAGE.read_text(encoding="utf-8")) if kind == "json")
    assert steady_report(shown) == steady_report(first.read_text(encoding="utf-8"))


def steady(output: str) -> str:
    """Output without times and ids, and without blanks at the ends of lines."""
    return VOLATILE.sub("…", "\n".join(line.rstrip() for line in output.splitlines()))


def steady_report(text: str) -> dict[str, Any]:
    """A report without its id, its times, and the size of records, which have source positions; the phases stay."""
    report: dict[str, Any] = json.loads(text)
    report |= dict.fromkeys(("run_id", "started_at", "ended_at", "utilization"))
    for timed in (report, *report["tables"]):
        timed["seconds"] = set(timed["seconds"])
    for table in report["tables"]:
        table["read_bytes"] = table["read_bytes"] > 0
        table["waited"] = table["waited"] < 1
    return report


def change(stack: Stack, source: str, statements: str) -> None:
    """Change the source, and wait until Kafka has it; the first statements create the table and the connector."""
    with psycopg.connect(source, autocommit=True) as connection:
        connection.execute(statements)
    if "CREATE TABLE" in statements:
        tables = ["public.orders"]
        wanted = postgres_connector_config(
            stack.endpoints, database=NAME, topic_prefix=NAME, tables=tables, envelope_tables=tables
        )
        put_connector(stack.endpoints["connect"], NAME, wanted)
    sample.wait_until_sent(source, NAME, 60)


def run(line: str) -> None:
    """Run a command in this process; commands that install are skipped: test_wheel.py runs them."""
    if line in INSTALLS:
        return
    program, *arguments = shlex.split(line)
    assert program == "cdc-lake"
    with pytest.raises(SystemExit) as ended:
        execute(*arguments)
    assert ended.value.code == 0, line
