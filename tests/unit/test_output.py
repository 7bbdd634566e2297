"""Text from records and schemas reaches a terminal and the log without control characters."""

import ast
import io
import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdc_lake.cli.app import execute
from cdc_lake.cli.look import _print_plan, _print_story
from cdc_lake.cli.output import LogFormatter, Output, answer, print_round, print_rows, progress_line
from cdc_lake.cli.run import RunOptions, show_report
from cdc_lake.cli.status import status_view
from cdc_lake.errors import ConfigError
from cdc_lake.operations.plan import Plan, TablePlan
from cdc_lake.operations.status import Status, TableStatus
from cdc_lake.operations.story import Story, StoryEvent
from cdc_lake.runs.report import Report, ReportedError, TableReport

pytestmark = pytest.mark.core

CLI = Path(__file__).parents[2] / "cdc_lake" / "cli"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08[/x] [bold]b[/] :smile: \u202egpj.exe\u2066\x7f"
COMMANDS = "\x1b\x07\x08\r\x9b\x7f\u202e\u2066\u2028"
FORGED = "a\n2026-01-01 00:00:00 ERROR cdc_lake forged"


def printed(*renderables: object) -> str:
    out = io.StringIO()
    console = Output(file=out, width=200)
    for one in renderables:
        console.print(one)
    return out.getvalue()


def in_table(text: str) -> Table:
    table = Table(title="t")
    table.add_column(text)
    table.add_row(text)
    return table


@pytest.mark.parametrize("make", [str, Text, in_table])
def test_hostile_text_sends_no_terminal_commands(make: type) -> None:
    said = printed(make(HOSTILE))

    assert not set(COMMANDS) & set(said)
    assert "[bold]b[/] :smile:" in said
    assert "\\u202egpj.exe" in said


def test_tabs_newlines_and_other_scripts_are_kept() -> None:
    assert printed("größe\t値 شكرا 👍").rstrip() == "größe   値 شكرا 👍"


def test_rows_are_aligned_and_wide_cells_are_not_cut() -> None:
    out = io.StringIO()

    print_rows(Output(file=out, width=14), ("table", ">rows"), [("orders.x", 1234567890), (), ("t", 7)])

    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "table     rows",
        "──────────────",
        "orders  123456",
        ".x        7890",
        "",
        "t            7",
    ]


def test_status_plan_and_story_print_any_text_safely() -> None:
    out = io.StringIO()
    console = Output(file=out, width=200)
    stands = TableStatus(table=HOSTILE, layer="silver", commit=1, error=HOSTILE)
    event = StoryEvent(
        place="0@1",
        batch=1,
        op=HOSTILE,
        source_ts_ms=1,
        verdict="rejected",
        why=HOSTILE,
        changes={"n": (HOSTILE, FORGED)},
    )

    console.print(Group(*status_view(Status(tables=[stands], broker_error=HOSTILE), [], 200)))
    planned = TablePlan(table="t", layer="silver", what=HOSTILE, why=[HOSTILE, FORGED])
    _print_plan(Plan(tables=[planned], warnings=[HOSTILE, FORGED]), console)
    _print_story(Story(table="t", key=f"{HOSTILE}{FORGED}", events=[event], left_out=0), console)

    assert not set(COMMANDS) & set(out.getvalue())
    assert not [line for line in out.getvalue().splitlines() if line.startswith("2026")]
    assert out.getvalue().count("[/x]") >= 6


def test_plan_lists_the_offsets_and_batches_it_would_read() -> None:
    out = io.StringIO()
    ranges = {"1": 7, "0": 5, "bronze": 4}
    planned = TablePlan(table="t", layer="silver", what="merges", consumed_from={"1": 7, "0": 3}, consumed_to=ranges)

    _print_plan(Plan(tables=[planned]), Output(file=out, width=200))

    assert out.getvalue().splitlines()[1:] == ["  partition 0: offsets 3 to 4", "  bronze batches 1 to 4"]


def test_plan_of_several_tables_ends_with_totals() -> None:
    out = io.StringIO()
    tables = [TablePlan(table=f"t{n}", layer="bronze", what="appends", records=1000) for n in range(39)]
    refused = TablePlan(table="t39", layer="bronze", what="nothing: the topic is empty", refused=["its name"])

    _print_plan(Plan(tables=[*tables, refused]), Output(file=out, width=80))

    assert out.getvalue().splitlines()[-1] == "40 tables: 39 appends, 1 nothing; 39,000 records; 1 refused"


def fleet_report(*, ended: bool) -> Report:
    """A run of 40 tables."""
    report = Report(layer="bronze", tables=[TableReport(table=f"shop.public.t{n:02}") for n in range(40)])
    for done in report.tables[:4]:
        done.status = "ok"
        done.count(read=1000, ok=999, quarantined=1, control=0)
    report.tables[4].status = "failed"
    for done in () if ended else report.tables[5:9]:
        done.status = "working"
    if ended:
        report.ended_at, report.seconds = datetime(2026, 11, 28, 21, 5, 3, tzinfo=UTC), {"tables": 3.3, "list": 0.1}
    return report


def test_live_line_counts_tables_and_rows() -> None:
    assert progress_line(fleet_report(ended=False)) == (
        "bronze: 36 of 40 tables, 4,000 rows; 1 failed; working on shop.public.t05, shop.public.t06, shop.public.t07 "
        "and 1 more"
    )


def test_round_is_one_line_that_names_what_changed() -> None:
    out = io.StringIO()

    print_round(fleet_report(ended=True), Output(file=out, width=80))

    assert out.getvalue().splitlines() == [
        "2026-11-28 21:05:03Z bronze: 1 failed (shop.public.t04), 4 ok (shop.public.t00, shop.public.t01, "
        "shop.public.t02 and 1 more), 35 unchanged; 4,000 read, 3,996 ok, 4 quarantined; 3.4 s"
    ]


def test_warnings_and_errors_cannot_forge_lines(capsys: pytest.CaptureFixture[str]) -> None:
    failure = ReportedError(code="CDC-100", message=FORGED + HOSTILE, exit_code=1, retryable=False)
    table_report = TableReport(table="t", status="failed", warnings=[FORGED + HOSTILE], error=failure)
    report = Report(run_id="r", layer="bronze", started_at=datetime(2026, 1, 1, tzinfo=UTC), tables=[table_report])

    show_report(report, RunOptions(as_json=True))

    said = capsys.readouterr()
    assert not set(COMMANDS) & set(said.err + said.out)
    assert [line[:5] for line in said.err.splitlines() if not line.startswith("    ")] == ["warni", "error"]
    assert Report.model_validate_json(said.out) == report


def test_error_of_a_command_cannot_forge_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise ConfigError(HOSTILE, FORGED, "fix it")

    monkeypatch.setattr("cdc_lake.cli.app.app", refuse)

    with pytest.raises(SystemExit):
        execute("status")

    said = capsys.readouterr().err
    assert not set(COMMANDS) & set(said)
    assert [line[:5] for line in said.splitlines() if not line.startswith("    ")] == ["error"]


def test_multiline_log_entry_cannot_forge_lines() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as exc:
        record = logging.LogRecord(
            "cdc_lake", logging.WARNING, "", 0, "%s", (HOSTILE,), (ValueError, exc, exc.__traceback__)
        )

    first, *others = LogFormatter("%(levelname)s %(message)s").format(record).split("\n")

    assert first.startswith("WARNING")
    assert not set(COMMANDS) & set(first)
    assert others and all(line.startswith("    ") for line in others)


def test_printed_json_keeps_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    answer(json.dumps(HOSTILE, ensure_ascii=False))

    said = capsys.readouterr().out
    assert not set(COMMANDS) & set(said)
    assert json.loads(said) == HOSTILE


@pytest.mark.parametrize("file", sorted(CLI.glob("*.py")), ids=lambda file: file.stem)
def test_commands_print_only_through_the_output_module(file: Path) -> None:
    called = [node.func for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    names = [name.id for name in called if isinstance(name, ast.Name)]

    assert names.count("print") == (file.stem == "output")
    assert "Console" not in names
