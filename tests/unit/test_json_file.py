"""`--json-file` and `--profile`: the files that a run writes, and errors before the run begins."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdc_lake.cli.app import app
from cdc_lake.cli.run import RunOptions, show_report
from cdc_lake.errors import ConfigError, InfrastructureError
from cdc_lake.runs.report import Report

pytestmark = pytest.mark.core

COMMANDS = {
    "bronze": ["run", "bronze", "--table", "t"],
    "silver": ["run", "silver", "--table", "t"],
    "gold": ["run", "gold", "--model", "m"],
    "maintain": ["run", "maintain", "--table", "t"],
    "rebuild": ["rebuild", "--table", "t"],
    "reconcile": ["reconcile", "--table", "t"],
}


def report(run_id: str) -> Report:
    return Report(run_id=run_id, layer="bronze", started_at=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("name", COMMANDS)
def test_missing_directory_is_refused_before_the_run(name: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, [*COMMANDS[name], "--json-file", str(tmp_path / "none" / "report.json")])

    assert isinstance(ended.exception, ConfigError)
    assert f"{tmp_path / 'none'} is not a directory; create it" in str(ended.exception)


@pytest.mark.parametrize("name", ["bronze", "silver", "gold"])
def test_missing_directory_of_a_profile_is_refused(name: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, [*COMMANDS[name], "--profile", str(tmp_path / "none" / "profile.json")])

    assert isinstance(ended.exception, ConfigError)
    assert f"--profile {tmp_path / 'none' / 'profile.json'}" in str(ended.exception)


def test_directory_as_report_file_is_refused(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, [*COMMANDS["bronze"], "--json-file", str(tmp_path)])

    assert isinstance(ended.exception, ConfigError)
    assert "it is a directory; name a file" in str(ended.exception)


@pytest.mark.parametrize("name", COMMANDS)
def test_failed_start_leaves_no_older_report(name: str, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("of an earlier run")
    (tmp_path / "conf.yml").write_text("lake: {root: lake}\ndefaults: {deletes: {mode: maybe}}\n")

    ended = CliRunner().invoke(app, [*COMMANDS[name], "--json-file", str(file), "--config", str(tmp_path / "conf.yml")])

    assert isinstance(ended.exception, ConfigError)
    assert not file.exists()


def test_newest_report_replaces_the_previous_one(tmp_path: Path) -> None:
    file = tmp_path / "report.json"

    for run_id in ("first", "second"):
        show_report(report(run_id), RunOptions(json_file=file))

    assert json.loads(file.read_text()) == json.loads(report("second").model_dump_json())
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_unwritable_report_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "gone" / "report.json"

    with pytest.raises(InfrastructureError, match="cannot write the file: No such file or directory"):
        show_report(report("first"), RunOptions(json_file=file))
