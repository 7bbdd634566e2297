"""What `cdc-lake status` prints for a fleet of 40 tables, and its exit codes."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Group
from support.fleet import FAILURE, fleet, ran, topics
from typer.testing import CliRunner, Result

from cdc_lake.cli.app import app
from cdc_lake.cli.output import Output
from cdc_lake.cli.status import duration, status_view
from cdc_lake.errors import ConfigError
from cdc_lake.operations import status as status_module
from cdc_lake.operations.status import Status, TableStatus

pytestmark = pytest.mark.core

PREFIX = "shop.public."


def screen(found: Status, width: int = 80, *, max_lag: float | None = None, only_failed: bool = False) -> list[str]:
    out = io.StringIO()
    late = [] if max_lag is None else [one for one in found.tables if one.is_late(max_lag)]
    view = status_view(found, late, width, only_failed=only_failed)
    Output(file=out, width=width).print(Group(*view))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`cdc-lake status <flags>` on a made-up lake."""
    (tmp_path / "conf.yml").write_text("lake: {root: lake}\n")
    monkeypatch.setattr(status_module, "status", lambda config, tables: fleet())
    return lambda *flags: CliRunner().invoke(app, ["status", *flags, "--config", str(tmp_path / "conf.yml")])


@pytest.mark.parametrize("width", [80, 200])
def test_each_topic_has_one_line_with_its_whole_name(width: int) -> None:
    lines = screen(fleet(), width)

    prefix = PREFIX if width == 80 else ""
    short = [topic.removeprefix(prefix) for topic in topics() if len(topic.removeprefix(prefix)) <= width - 54]
    assert len(short) == 40
    starts = [line.split()[0] for line in lines if line]
    assert all(starts.count(name) == 1 for name in short)
    assert len(lines) < 70


def test_failed_tables_come_first_with_code_and_cure() -> None:
    first, second, blank, _, _, _, *rows = screen(fleet(), 240)

    payments, orders = f"{PREFIX}payments_04", f"{PREFIX}orders_07"
    assert first == f"bronze failed 4 min ago: CDC-400 {FAILURE.format(payments)}"
    assert second == f"silver failed 7 min ago: CDC-400 {FAILURE.format(orders)}"
    assert blank == ""
    assert [row.split()[0] for row in rows[:3]] == [payments, orders, f"{PREFIX}order_items_02"]


def test_columns_are_ages_lag_freshness_and_quarantine() -> None:
    rows = {line.split()[0]: line.split()[1:] for line in screen(fleet(), 200) if line}

    assert rows[f"{PREFIX}orders_07"] == ["7", "min", "ago", "failed", "8,400", "1", "h", "4", "s", "0"]
    assert rows[f"{PREFIX}order_items_02"] == ["2", "min", "ago", "2", "min", "ago", "0", "0", "s", "4", "s", "2"]
    assert rows[topics()[-1]][:6] == ["3", "d", "ago", "3", "d", "ago"]
    assert rows["revenue_per_day"] == ["2", "h", "ago", "1", "min"]


def test_totals_are_the_last_line_and_name_the_next_command() -> None:
    assert screen(fleet(), 240)[-1] == (
        "81 tables (40 bronze, 40 silver, 1 gold): 2 failed, 13,200 records behind, lag at most 1 h "
        "(shop.public.orders_07), 2 quarantined (cdc-lake quarantine list)"
    )


def test_only_failed_tables_are_shown_with_all_totals() -> None:
    lines = screen(fleet(), 240, only_failed=True)

    assert len([line for line in lines if line.startswith(PREFIX)]) == 2
    assert lines[-1].startswith("81 tables")


def test_late_tables_are_named_once() -> None:
    first, *lines = screen(fleet(), 240, max_lag=3600)

    assert first == "lag above --max-lag: shop.public.orders_07 (1 h)"
    assert "2 failed, 1 above --max-lag" in lines[-1]


def test_failed_run_without_tables_is_red_even_in_an_empty_lake() -> None:
    run = ran("bronze", "Registry at r", 7200, failed=True)

    lines = screen(Status(failed_runs=[run], broker_error="kafka: unknown"), 240)

    cause = f"{run.code} {FAILURE.format('Registry at r')}"
    assert lines[0] == f"bronze run failed 2 h ago before its tables started: {cause}"
    assert lines[1] == "The lag is unknown: kafka: unknown"


def test_further_silver_table_of_a_topic_has_its_own_line() -> None:
    tables = [
        TableStatus(table="t", layer="bronze", commit=1, quarantined=1),
        TableStatus(table="t", layer="silver", commit=1, behind_records=2, quarantined=1),
        TableStatus(table="t@hudi_mor", layer="silver", commit=None, error="t@hudi_mor: a file is damaged; restore it"),
        TableStatus(table="u", layer="bronze", commit=1),
    ]

    lines = screen(Status(tables=tables), 100)

    rows = [line.split() for line in lines if line.startswith(("t ", "t@", "u "))]
    assert rows == [
        ["t@hudi_mor", "unreadable", "-", "-", "-", "0"],
        ["t", "never", "never", "-", "-", "-", "2"],
        ["u", "never", "-", "-", "-", "0"],
    ]


@pytest.mark.parametrize(("lag", "is_late"), [(59.0, False), (61.0, True), (None, True)])
def test_unknown_lag_is_late(lag: float | None, is_late: bool) -> None:
    assert TableStatus(table="t", layer="silver", commit=1, lag_seconds=lag).is_late(60) is is_late


def test_table_that_no_run_has_created_is_not_late() -> None:
    assert not TableStatus(table="t", layer="silver", commit=None).is_late(60)


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--max-lag", "2h"), 0), (("--max-lag", "5m"), 30)])
def test_exit_code_is_30_above_max_lag(call: Callable[..., Result], flags: tuple[str, ...], code: int) -> None:
    assert call(*flags).exit_code == code


def test_json_has_gold_and_only_failed_tables_on_request(call: Callable[..., Result]) -> None:
    every, failed = (Status.model_validate(json.loads(call("--json", *flags).stdout)) for flags in ((), ("--failed",)))

    assert [one.layer for one in every.tables].count("gold") == 1 and len(every.tables) == 81
    assert [(one.layer, one.table) for one in failed.tables] == [
        ("bronze", f"{PREFIX}payments_04"),
        ("silver", f"{PREFIX}orders_07"),
    ]


def test_watch_needs_a_terminal(call: Callable[..., Result]) -> None:
    ended = call("--watch")

    assert isinstance(ended.exception, ConfigError) and "the output is not a terminal" in str(ended.exception)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (86399, "23 h"), (200_000, "2 d")],
)
def test_duration_is_in_the_largest_unit(number: float, text: str) -> None:
    assert duration(number) == text
