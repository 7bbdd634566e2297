"""The costs of tests, as tests/support/costs.py measures them, in a small separate suite."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import CHECKOUT, costs, results

pytestmark = pytest.mark.core

SUITE = """
import hashlib
def test_costs_something():
    for _ in range({rounds}):
        hashlib.sha256(bytes(1 << 20)).digest()
"""


CORE_SUITE = f"import pytest\n\npytestmark = pytest.mark.core\n{SUITE}"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project with a test file in each of two folders, the cheap one core, and recorded costs."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ntestpaths = tests\naddopts = -m 'not deep'\nmarkers =\n    core\n    deep\n"
    )
    (tmp_path / "support").mkdir()
    strict = Path(costs.__file__).read_text().replace("4 / 3, 10_000", "4 / 3, 0").replace("150_000", "40")
    (tmp_path / "support" / "costs.py").write_text(strict)
    shutil.copy(results.__file__, tmp_path / "support")
    for folder, rounds, text in (("dear", 500, SUITE), ("cheap", 1, CORE_SUITE)):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(text.format(rounds=rounds))
    return tmp_path


def run(suite: Path, recorded: dict[str, dict[str, float]], *arguments: str) -> "subprocess.CompletedProcess[str]":
    (suite / "support" / "costs.json").write_text(json.dumps(recorded))
    plugins = ["-p", "support.costs", "-p", "support.results", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, *arguments]
    return subprocess.run(command, cwd=suite, env={"PYTHONPATH": "."}, capture_output=True, text=True, timeout=120)


def recorded_in(suite: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads((suite / "support" / "costs.json").read_text())
    return found


DEAR, CHEAP = "tests/dear/test_dear.py", "tests/cheap/test_cheap.py"
REST = "not deep and not core"


@pytest.mark.parametrize("processes", [[], ["-n", "2", "--dist", "loadfile"]], ids=["one process", "two processes"])
def test_full_run_fails_if_a_folder_exceeds_its_recorded_cost(suite: Path, processes: list[str]) -> None:
    ended = run(suite, {DEAR: {"rest": 1}, CHEAP: {"core": 10_000}}, *processes)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "tests/dear costs" in ended.stdout and "tests/cheap costs" not in ended.stdout
    assert "2 passed" in ended.stdout


def test_partial_run_is_not_checked_against_costs(suite: Path) -> None:
    ended = run(suite, {DEAR: {"rest": 1}, CHEAP: {"core": 1}}, DEAR)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"s  {DEAR}" in ended.stdout


def test_core_run_that_exceeds_its_budget_fails(suite: Path) -> None:
    (suite / CHEAP).write_text(CORE_SUITE.format(rounds=2_000))

    ended = run(suite, {CHEAP: {"core": 1}}, "-m", "core")

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "the core tests cost" in ended.stdout and "tests/cheap costs" not in ended.stdout


def test_recorded_run_passes_and_starts_the_most_expensive_first(suite: Path) -> None:
    assert run(suite, {}, "--record-costs").returncode == 0
    recorded = recorded_in(suite)
    dear, cheap = recorded[DEAR]["rest"], recorded[CHEAP]["core"]

    again = run(suite, {DEAR: {"rest": dear + 100}, CHEAP: {"core": cheap + 50}}, "-v")

    assert recorded.keys() == {DEAR, CHEAP} and dear > cheap
    assert again.returncode == 0, again.stdout
    assert again.stdout.index(f"{DEAR}::") < again.stdout.index(f"{CHEAP}::")


def test_parts_of_one_file_are_recorded_apart(suite: Path) -> None:
    both = SUITE.replace("test_costs", "test_rest_costs") + SUITE.replace("def", "@pytest.mark.core\ndef")
    (suite / DEAR).write_text(f"import pytest\n{both}".format(rounds=50))
    before = {DEAR: {"core": 7_000, "rest": 8_000}, "tests/dear/test_gone.py": {"core": 1, "rest": 2}}

    assert run(suite, before, "--record-costs", "-m", "core").returncode == 0
    core = recorded_in(suite)
    assert run(suite, core, "--record-costs", "-m", REST).returncode == 0
    rest = recorded_in(suite)

    assert core[DEAR]["core"] < 7_000 and core[DEAR]["rest"] == 8_000
    assert core["tests/dear/test_gone.py"] == {"rest": 2}
    assert rest == {CHEAP: core[CHEAP], DEAR: {"core": core[DEAR]["core"], "rest": rest[DEAR]["rest"]}}
    assert rest[DEAR]["rest"] < 8_000


def test_results_of_two_runs_have_one_summary(suite: Path) -> None:
    (suite / CHEAP).write_text(f"{CORE_SUITE}\ndef test_fails():\n    assert False\n".format(rounds=1))
    file = suite / "results"
    core, _ = (run(suite, {CHEAP: {"core": 1}}, "-m", marks, "--results", str(file)) for marks in ("core", REST))

    assert re.search(r"^core: 0\.\d minutes, which are \d+ of 40 units$", core.stdout, re.MULTILINE)
    found = results.summary(list(map(json.loads, file.read_text().splitlines())))

    heading, *rows = found.splitlines()
    assert heading.split() == ["passed", "failed", "errors", "skipped", "minutes", "CPU", "minutes"]
    assert [row.split()[:5] for row in rows[:3]] == [
        ["core", "1", "1", "0", "0"],
        ["rest", "1", "0", "0", "0"],
        ["together", "2", "1", "0", "0"],
    ]
    assert f"s  {DEAR}" in rows[3] and f"s  {CHEAP}" in rows[4]
    assert rows[5:] == [f"FAILED {CHEAP}::test_fails"]


def test_make_passes_the_file_of_results_to_pytest(tmp_path: Path) -> None:
    # The file is in another folder, as in .ci/run: pytest must not look for tests and settings there.
    dry = ["make", "--dry-run", "test", f"TEST_RESULTS={tmp_path / 'results'}"]
    printed = subprocess.run(dry, cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60).stdout
    (command,) = (line for line in printed.splitlines() if line.startswith("pytest "))

    ended = subprocess.run(
        [sys.executable, "-m", *command.split(), "--markers"], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )

    assert ended.returncode == 0, ended.stderr


def test_folder_may_exceed_its_cost_by_a_third_and_startup() -> None:
    recorded: costs.Record = {
        "tests/a/test_one.py": {"core": 20_000.0, "rest": 40_000.0},
        "tests/a/test_two.py": {"rest": 30_000.0},
        "tests/b/test_gone.py": {"core": 5.0},
    }
    one: costs.Record = {"tests/a/test_one.py": {"core": 25_000.0, "rest": 85_000.0}}

    assert costs.too_expensive({**one, "tests/a/test_new.py": {"rest": 20_000.0}}, recorded, ["core", "rest"]) == []
    (problem,) = costs.too_expensive({**one, "tests/a/test_new.py": {"rest": 20_001.0}}, recorded, ["core", "rest"])
    assert problem.startswith("tests/a costs 130,001 units, and the record allows a third above 90,000")


def test_files_that_need_the_servers_run_in_one_process(suite: Path) -> None:
    for number in range(4):
        needs = "import time\n\ndef test_that_waits():\n    time.sleep(0.3)\n"
        (suite / "tests" / f"test_needing_{number}.py").write_text(f"# stack: Stack\n{needs}")

    ended = run(suite, {}, "-n", "3", "--dist", "loadfile", "-v")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    workers = re.findall(r"\[(gw\d)\].* tests/test_needing_\d", ended.stdout)
    assert len(workers) == 4
    assert len(set(workers)) == 1
