"""The costs of tests: CPU seconds of each file, including all processes that its tests start. A pytest plugin.

`costs.json` records what each file cost when somebody last looked. The most expensive files start first, those that
need the servers in one process, so that the servers start once. A whole run fails if a folder costs more than a third
above its record. CPU seconds of two machines, or of two hours of one, differ; so what is recorded are units: the CPU
seconds of a small loop, which each run measures among its tests.
"""

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from benchmarks.cpu import cpu_seconds

RECORD = Path(__file__).with_name("costs.json")
LENIENCE, STARTS = 4 / 3, 10_000
"""A folder may cost its record times the first, plus the second in units: the first test that needs Spark or the
servers pays for their start, and it may be in any folder.
"""
_PROPERTY = "cost of the file"
_EXPENSIVE_FILES = 5
_SERVERS, _NEEDS_SERVERS = "the servers", "stack: Stack"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--record-costs`."""
    parser.addoption("--record-costs", action="store_true", help="write the costs of this whole run to costs.json")


def pytest_configure(config: pytest.Config) -> None:
    """Each process measures itself; the reporting one adds up."""
    config.pluginmanager.register(Costs(json.loads(RECORD.read_text())), "costs of the tests")


class Costs:
    """The measured costs.

    Args:
        recorded: units by file.

    Attributes:
        cpu_seconds: by file.
        units: what the loop took, each time.
        exceeding: the folders that cost more than they may, once a whole run has ended; see `too_expensive`.
    """

    def __init__(self, recorded: Mapping[str, float]) -> None:
        self.recorded = recorded
        self.exceeding: dict[str, tuple[float, float]] = {}
        self.cpu_seconds: Counter[str] = Counter()
        self.units: list[float] = []
        self._file = ""
        self._is_last = False
        self._before = 0.0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Most expensive files first, because the last ones should be short. New files come before all others."""
        together: defaultdict[str, float] = defaultdict(float)
        for file in {file_of(item.nodeid) for item in items}:
            together[runs_with(file, config.rootpath)] += self.recorded.get(file, float("inf"))
        items.sort(key=lambda item: -together[runs_with(file_of(item.nodeid), config.rootpath)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadFileScheduling | None:
        """Run the files that need the servers in one process."""
        return _ByFile(config, log) if config.option.dist == "loadfile" else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Record where a file begins and ends."""
        if self._file != (file := file_of(item.nodeid)):
            self._file, self._before = file, cpu_seconds()
        self._is_last = nextitem is None or file_of(nextitem.nodeid) != file
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
        """Add a file's cost to its last report."""
        report: pytest.TestReport = yield
        if self._is_last and call.when == "teardown":
            cost = max(
                cpu_seconds() - self._before, 0.0
            )  # the cost of processes that outlive their parent is not known
            report.user_properties.append((_PROPERTY, [cost, unit_seconds()]))
            self._file = ""
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the costs in the process where the reports arrive."""
        if found := dict(report.user_properties).get(_PROPERTY):
            cost, unit = found
            self.cpu_seconds[file_of(report.nodeid)] += cost
            self.units.append(unit)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Record the costs of a whole run if requested; otherwise fail if a folder is too expensive."""
        config = session.config
        if hasattr(config, "workerinput") or not self.units or not is_whole(config):
            return
        unit = median(self.units)
        costs = {file: seconds / unit for file, seconds in sorted(self.cpu_seconds.items())}
        if config.option.record_costs:
            RECORD.write_text(json.dumps({file: round(cost) for file, cost in costs.items()}, indent=1) + "\n")
            return
        self.exceeding = too_expensive(costs, self.recorded)
        if self.exceeding and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """CPU minutes, the most expensive files, and the folders that cost too much."""
        if not self.units:
            return
        terminalreporter.section("CPU")
        whole = sum(self.cpu_seconds.values())
        terminalreporter.write_line(f"{whole / 60:.1f} minutes; a unit took {median(self.units) * 1000:.1f} ms")
        for file, cost in self.cpu_seconds.most_common(_EXPENSIVE_FILES):
            terminalreporter.write_line(f"{cost:7.1f} s  {file}")
        for folder, (cost, recorded) in self.exceeding.items():
            terminalreporter.write_line(
                f"{folder} costs {cost:,.0f} units, and the record allows a third above {recorded:,.0f}: make "
                "its tests cheaper (CONTRIBUTING.md), or run with --record-costs and give the reason in the commit",
                red=True,
            )


class _ByFile(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return runs_with(file_of(nodeid), self.config.rootpath)


@cache
def runs_with(file: str, root: Path) -> str:
    """The group of tests for one process: a file, or all files that need the servers."""
    return _SERVERS if _NEEDS_SERVERS in (root / file).read_text(encoding="utf-8") else file


def too_expensive(costs: Mapping[str, float], recorded: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The folders that are too expensive: their cost and the recorded one."""
    now, before = by_folder(costs), by_folder(recorded)
    return {
        folder: (now[folder], before[folder])
        for folder in before
        if now.get(folder, 0.0) > LENIENCE * before[folder] + STARTS
    }


def by_folder(costs: Mapping[str, float]) -> dict[str, float]:
    """Costs by folder."""
    found: Counter[str] = Counter()
    for file, cost in costs.items():
        found[file.rpartition("/")[0]] += cost
    return dict(found)


def is_whole(config: pytest.Config) -> bool:
    """Whether all tests of `make test` run."""
    option = config.option
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not (
        option.keyword or option.deselect or option.collectonly or option.markexpr != "not deep"
    )


def file_of(nodeid: str) -> str:
    """A test's file."""
    return nodeid.partition("::")[0]


def unit_seconds() -> float:
    """The CPU seconds of a small loop."""
    before = time.thread_time()
    numbers = {str(number): number * number for number in range(20_000)}
    hashlib.sha256(repr(numbers).encode()).digest()
    return time.thread_time() - before
