"""The costs of tests, as tests/support/costs.py measures them, in a small separate suite."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import costs

SUITE = """
import hashlib
def test_costs_something():
    for _ in range({rounds}):
        hashlib.sha256(bytes(1 << 20)).digest()
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project with a test file in each of two folders, and recorded costs."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = -m 'not deep'\nmarkers = deep\n")
    strict = Path(costs.__file__).read_text().replace("4 / 3, 10_000", "4 / 3, 0")
    (tmp_path / "costs.py").write_text(strict)
    for folder, rounds in (("dear", 500), ("cheap", 1)):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(SUITE.format(rounds=rounds))
    return tmp_path


def run(suite: Path, recorded: dict[str, float], *arguments: str) -> "subprocess.CompletedProcess[str]":
    (suite / "costs.json").write_text(json.dumps(recorded))
    command = [sys.executable, "-m", "pytest", "-p", "costs", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=suite, env={"PYTHONPATH": "."}, capture_output=True, text=True, timeout=120)


DEAR, CHEAP = "tests/dear/test_dear.py", "tests/cheap/test_cheap.py"


@pytest.mark.parametrize("processes", [[], ["-n", "2", "--dist", "loadfile"]], ids=["one process", "two processes"])
def test_full_run_fails_if_a_folder_exceeds_its_recorded_cost(suite: Path, processes: list[str]) -> None:
    ended = run(suite, {DEAR: 1, CHEAP: 10_000}, *processes)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "tests/dear costs" in ended.stdout and "tests/cheap costs" not in ended.stdout
    assert "2 passed" in ended.stdout


def test_partial_run_is_not_checked_against_costs(suite: Path) -> None:
    ended = run(suite, {DEAR: 1, CHEAP: 1}, DEAR)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"s  {DEAR}" in ended.stdout


def test_recorded_run_passes_and_starts_the_most_expensive_first(suite: Path) -> None:
    assert run(suite, {}, "--record-costs").returncode == 0
    recorded = json.loads((suite / "costs.json").read_text())

    again = run(suite, {DEAR: recorded[DEAR] + 100, CHEAP: recorded[CHEAP] + 50}, "-v")

    assert recorded.keys() == {DEAR, CHEAP} and recorded[DEAR] > recorded[CHEAP]
    assert again.returncode == 0, again.stdout
    assert again.stdout.index(f"{DEAR}::") < again.stdout.index(f"{CHEAP}::")


def test_folder_may_exceed_its_cost_by_a_third_and_startup() -> None:
    recorded = {"tests/a/test_one.py": 60_000.0, "tests/a/test_two.py": 30_000.0, "tests/b/test_gone.py": 5.0}

    assert costs.too_expensive({"tests/a/test_one.py": 110_000.0, "tests/a/test_new.py": 20_000.0}, recorded) == {}
    assert costs.too_expensive({"tests/a/test_one.py": 110_000.0, "tests/a/test_new.py": 20_001.0}, recorded) == {
        "tests/a": (130_001.0, 90_000.0)
    }


def test_files_that_need_the_servers_run_in_one_process(suite: Path) -> None:
    for number in range(4):
        needs = "import time\n\ndef test_that_waits():\n    time.sleep(0.3)\n"
        (suite / "tests" / f"test_needing_{number}.py").write_text(f"# stack: Stack\n{needs}")

    ended = run(suite, {}, "-n", "3", "--dist", "loadfile", "-v")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    workers = re.findall(r"\[(gw\d)\].* tests/test_needing_\d", ended.stdout)
    assert len(workers) == 4
    assert len(set(workers)) == 1
