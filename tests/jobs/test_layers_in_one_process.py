"""`cdc-lake run bronze silver gold`: all layers in one process, with a session and a scheduler that they share."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from conformance.by_lake import silver_rows, table_rows
from submitting import PROGRAMS
from test_continuous import wait_for

from cdc_lake.cli.app import execute
from cdc_lake.demo.jobs import SMALL_JVM

TOPIC, OTHER = "shop.public.orders", "shop.public.broken"
MODEL = f"""\
-- name: per_half
-- keys: [half]
-- sources: {{orders: {TOPIC}}}
SELECT id % 2 AS half, sum(n) AS n FROM orders GROUP BY 1
"""
SETTINGS = {
    "lake": {"root": "lake"},
    "files": {"root": "landing"},
    "gold": {"models": "models"},
    "defaults": {
        "value": {"wire_format": "json", "columns": {"id": "int", "n": "int"}},
        "merge": {"keys": ["id"]},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a lake that is read from JSON files of a sink connector, with a gold model."""
    for name in ("models", f"landing/{TOPIC}"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "models" / "per_half.sql").write_text(MODEL)
    (tmp_path / "cdc-lake.yml").write_text(yaml.safe_dump(SETTINGS))
    write(tmp_path, TOPIC, 0, {"id": 1, "n": 10}, {"id": 2, "n": 20})
    return tmp_path


def write(folder: Path, topic: str, offset: int, *rows: dict[str, int]) -> None:
    file = folder / "landing" / topic / f"{topic}+0+{offset}.json"
    file.parent.mkdir(exist_ok=True)
    file.with_suffix(".new").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    file.with_suffix(".new").rename(file)


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **variables,
        "PYSPARK_SUBMIT_ARGS": f"--conf 'spark.driver.extraJavaOptions={SMALL_JVM}' pyspark-shell",
        "CDC_LAKE_CONFIG": str(folder / "cdc-lake.yml"),
    }
    command = [str(PROGRAMS / "cdc-lake"), "run", "bronze", "silver", "gold", "--table", "*", "--json", *arguments]
    return subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def in_silver(folder: Path) -> dict[int, int]:
    return {row["id"]: row["n"] for row in silver_rows(folder / "lake", TOPIC)}


def in_gold(folder: Path) -> dict[int, int]:
    return {row["half"]: row["n"] for row in table_rows(str(folder / "lake" / "gold" / "per_half"))}


def test_all_layers_run_in_one_process(folder: Path) -> None:
    (folder / "landing" / OTHER).mkdir()
    (folder / "landing" / OTHER / "no-offset.json").write_text('{"id": 1, "n": 1}\n')
    file = folder / "reports.json"

    with start(folder, "--json-file", str(file)) as process:
        out, err = process.communicate(timeout=300)

    reports: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert [json.loads(line) for line in file.read_text().splitlines()] == reports
    assert [report["layer"] for report in reports] == ["bronze", "silver", "gold"], err
    statuses = [(table["table"], table["status"]) for report in reports for table in report["tables"]]
    silver = [(OTHER, "unchanged"), (TOPIC, "ok")]
    assert statuses == [(OTHER, "failed"), (TOPIC, "ok"), *silver, ("per_half", "ok")]
    assert process.returncode == 1
    assert in_silver(folder) == {1: 10, 2: 20}
    assert in_gold(folder) == {0: 20, 1: 10}
    assert "start" in reports[0]["seconds"] and "start" not in reports[1]["seconds"]


def test_all_layers_run_continuously(folder: Path) -> None:
    with start(folder, "--continuous", "--interval", "500ms") as process:
        try:
            wait_for(lambda: in_gold(folder) == {0: 20, 1: 10}, process)
            write(folder, TOPIC, 2, {"id": 1, "n": 11}, {"id": 3, "n": 30})
            wait_for(lambda: in_gold(folder) == {0: 20, 1: 41}, process)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()

    assert process.returncode == 0, err
    assert {json.loads(line)["layer"] for line in out.splitlines()} == {"bronze", "silver", "gold"}


@pytest.mark.parametrize("point", ["bronze.after_append", "silver.after_side", "silver.after_merge"])
def test_killed_process_is_recovered_by_the_next(folder: Path, point: str) -> None:
    with start(folder, CDC_LAKE_FAILPOINT=f"{point}:kill9") as process:
        process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    write(folder, TOPIC, 2, {"id": 1, "n": 11}, {"id": 3, "n": 30})

    with start(folder) as process:
        _, err = process.communicate(timeout=300)

    assert process.returncode == 0, err
    assert in_silver(folder) == {1: 11, 2: 20, 3: 30}
    assert in_gold(folder) == {0: 20, 1: 41}


@pytest.mark.core
@pytest.mark.parametrize("layers", [["bronze", "gold"], ["silver", "bronze"], ["bronze", "silver", "silver"]])
def test_layers_come_in_their_order(layers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        execute("run", *layers, "--table", "*")

    assert ended.value.code == 2
    assert "Error: Invalid value" in capsys.readouterr().err
