"""The run's report adds up, and its exit code is that of the worst table."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cdc_lake.errors import CdcLakeError, DataLossError, InfrastructureError
from cdc_lake.runs.report import Report, ReportedError, TableReport, check_totals

pytestmark = pytest.mark.core


def test_balanced_counts_pass_silently() -> None:
    check_totals("t", 6, ok=3, quarantined=2, control=1)
    check_totals("t", 0)


@pytest.mark.parametrize("ok", [2, 4])
def test_unbalanced_counts_stop_the_run(ok: int) -> None:
    with pytest.raises(CdcLakeError, match=f"6 rows went in and {ok} ok \\+ 3 quarantined came out") as caught:
        check_totals("t", 6, ok=ok, quarantined=3)
    assert caught.value.exit_code == 1


def test_counts_add_up_over_batches() -> None:
    report = TableReport(table="t")

    report.count(read=3, ok=2)
    report.count(read=4, ok=4, control=1)

    assert report.rows == {"read": 7, "ok": 6, "control": 1}


def test_freshness_is_that_of_all_batches_of_the_run() -> None:
    report, now = TableReport(table="t"), time.time()
    assert report.freshness is None

    report.add_changes([])
    assert report.freshness is None
    report.add_changes([(int(1000 * (now - 3)), 10), (int(1000 * (now - 40)), 9.0)])
    report.add_changes([(int(1000 * (now - 4000)), 1), (int(1000 * (now + 60)), 80)])

    found = report.freshness
    assert found is not None
    assert (found.p50, found.p95, found.max) == pytest.approx((0, 40, 4000), abs=0.5)
    assert found.within == {
        **dict.fromkeys(("1", "2"), 80),
        **dict.fromkeys(("5", "10", "20", "30"), 90),
        **dict.fromkeys(("60", "300", "1800"), 99),
        **dict.fromkeys(("7200", "86400", "any"), 100),
    }


def test_count_that_is_not_described_is_refused() -> None:
    report = TableReport(table="t")

    with pytest.raises(AssertionError, match=r"describe it in COUNTS: .*unknown"):
        report.count(read=1, unknown=1)
    assert report.rows == {}


def test_phase_time_adds_up_even_when_the_phase_fails() -> None:
    report = TableReport(table="t")

    with report.phase("read"):
        pass
    with pytest.raises(ValueError), report.phase("write"):
        raise ValueError

    assert set(report.seconds) == {"read", "write"}


def test_nested_phase_is_subtracted_from_the_outer_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((0.0, 1.0, 4.0, 10.0))
    monkeypatch.setattr("cdc_lake.runs.report.time.monotonic", lambda: next(seconds))
    report = TableReport(table="t")

    with report.phase("open"), report.phase("write"):
        pass

    assert report.seconds == {"write": 3.0, "open": 7.0}


def test_phases_of_a_run_sum_up_to_its_time() -> None:
    started = datetime.now(UTC) - timedelta(seconds=10)
    report = Report(layer="bronze", started_at=started, seconds={"start": 2.0, "session": 3.0, "tables": 4.0})

    report.end()

    assert report.seconds["list"] == pytest.approx(3.0, abs=0.5)


def test_process_start_precedes_the_first_import() -> None:
    waits = "import time; from cdc_lake.runs.report import seconds_before; time.sleep(0.3); t = time.time(); "
    outcome = subprocess.run(
        [sys.executable, "-c", waits + "time.sleep(0.3); print(seconds_before(t))"], capture_output=True, text=True
    )

    assert 0.3 <= float(outcome.stdout) < 10


def test_run_exit_code_is_that_of_the_worst_table() -> None:
    report = Report(layer="bronze", tables=[TableReport(table=name) for name in "abc"])
    assert report.exit_code == 0

    report.tables[0].fail(InfrastructureError("broker", "down", "wait"))
    assert report.exit_code == 10

    report.tables[1].fail(DataLossError("t", "gone", "reload"))
    assert report.exit_code == 20
    assert report.tables[1].status == "failed"


def test_run_without_tables_exits_with_its_own_error() -> None:
    error = ReportedError.of(InfrastructureError("broker", "down", "wait"))
    report = Report(layer="bronze", error=error)

    assert (report.exit_code, report.failing, report.is_idle) == (10, {"": "CDC-300"}, True)
    report.unwritten = ReportedError.of(DataLossError("_runs", "read-only", "allow it"))
    assert report.exit_code == 10
    assert Report.model_validate_json(report.model_dump_json()).error == error


def test_failure_in_the_report_has_all_fields_of_the_error() -> None:
    report = TableReport(table="t")
    report.fail(InfrastructureError("broker", "down", "wait"))

    assert report.error is not None
    assert report.error.model_dump() == {
        "code": "CDC-300",
        "message": "broker: down; wait",
        "exit_code": 10,
        "retryable": True,
    }


def test_report_round_trips_through_json() -> None:
    report = Report(layer="silver", tables=[TableReport(table="t", rows={"events": 3})])

    assert Report.model_validate_json(report.model_dump_json()) == report


def test_report_files_sort_by_time() -> None:
    start = datetime(2026, 9, 30, 23, 59, 59, 999_999, UTC)
    names = [Report(layer="silver", started_at=start + timedelta(microseconds=n)).file_name for n in range(3)]

    assert sorted(names) == names


@pytest.mark.parametrize(
    ("states", "is_idle"),
    [((), True), (("unchanged", "waiting"), True), (("unchanged", "ok"), False), (("failed",), True)],
)
def test_run_without_any_work_is_idle(states: tuple[Any, ...], is_idle: bool) -> None:
    report = Report(layer="silver", tables=[TableReport(table="t", status=state) for state in states])

    assert report.is_idle is is_idle
