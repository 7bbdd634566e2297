"""Failpoints do nothing unless they are set; then they act at their point, and runs report them."""

import ast
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from cdc_lake import failpoints
from cdc_lake.errors import CdcLakeError, ConfigError
from cdc_lake.failpoints import POINTS, VARIABLE, check, reach

pytestmark = pytest.mark.core

PACKAGE = Path(failpoints.__file__).parent


def calls_of_reach() -> Counter[str]:
    """The points that the package's code reaches, by name."""
    calls = (
        node
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("reach", "failpoints.reach")
    )
    return Counter(ast.literal_eval(call.args[0]) for call in calls)


def test_declared_failpoints_match_those_in_the_code() -> None:
    assert calls_of_reach().keys() == POINTS.keys()


def test_failpoints_do_nothing_unless_the_variable_is_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    check()
    reach("silver.after_merge", batch=1)

    assert caplog.records == []


def test_active_failpoints_are_logged_at_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "silver.after_side:batch=3:kill9,bronze.after_append:pause=0.5")

    check()

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "CDC_LAKE_FAILPOINT is set: this run will kill9 at silver.after_side batch 3"),
        ("WARNING", "CDC_LAKE_FAILPOINT is set: this run will pause 0.5 s at bronze.after_append"),
    ]


def test_raise_fails_with_exit_code_1_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "silver.before_report:raise")

    with pytest.raises(CdcLakeError, match="a failpoint raised this error") as raised:
        reach("silver.before_report")

    assert raised.value.exit_code == 1
    assert "raise at silver.before_report now" in caplog.text


@pytest.mark.parametrize(("point", "batch"), [("silver.after_merge", 2), ("silver.after_side", 3)])
def test_failpoint_affects_only_its_point_and_batch(monkeypatch: pytest.MonkeyPatch, point: str, batch: int) -> None:
    monkeypatch.setenv(VARIABLE, "silver.after_merge:batch=3:raise")

    reach(point, batch=batch)
    with pytest.raises(CdcLakeError):
        reach("silver.after_merge", batch=3)


def test_failpoint_without_a_batch_applies_to_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "silver.after_merge:raise")

    for batch in (1, 2):
        with pytest.raises(CdcLakeError):
            reach("silver.after_merge", batch=batch)


def test_pause_delays_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "bronze.after_plan:pause=0.2")
    started = time.monotonic()

    reach("bronze.after_plan", batch=1)

    assert time.monotonic() - started >= 0.2


def test_kill9_kills_the_process_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "bronze.after_append:batch=2:kill9")
    program = (
        "from cdc_lake.failpoints import reach\n"
        "try:\n"
        "    for batch in (1, 2, 3): reach('bronze.after_append', batch=batch); print(batch, flush=True)\n"
        "finally:\n"
        "    print('cleaned up', flush=True)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "1\n")
    assert "kill9 at bronze.after_append batch 2 now" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("silver.after_lunch:kill9", "unknown failpoint `silver.after_lunch`; use one of bronze.after_plan, "),
        ("silver.after_side", "unknown action ``; use one of kill9, raise, pause=SECONDS"),
        ("silver.after_side:kill", "unknown action `kill`"),
        ("silver.after_side:pause", "unknown action `pause`"),
        ("silver.after_side:pause=long", "unknown action `pause=long`"),
        ("silver.after_side:pause=-1", "unknown action `pause=-1`"),
        ("silver.after_side:pause=nan", "unknown action `pause=nan`"),
        ("silver.after_side:pause=inf", "unknown action `pause=inf`"),
        ("silver.after_side:table=3:raise", "`table=3` is not a condition of silver.after_side; its .* are: batch=N"),
        ("silver.after_side:batch=x:raise", "`batch=x` is not a condition"),
        (
            "silver.before_report:batch=1:raise",
            "`batch=1` is not a condition of silver.before_report; its .* are: none",
        ),
        ("silver.after_side:raise,", "unknown failpoint ``"),
    ],
)
def test_unknown_failpoint_is_a_config_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv(VARIABLE, text)

    with pytest.raises(ConfigError, match=f"^{VARIABLE}=.*: {said}"):
        check()
