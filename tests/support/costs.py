"""The costs of tests: CPU seconds of each file, including all processes that its tests start. A pytest plugin.

`costs.json` records what each file cost when somebody last looked, its core tests (`make test`) apart from the rest.
The most expensive files start first, those that need the servers in one process, so that the servers start once. A run
of all core tests fails if they cost more than their budget; a run of the rest, or of both, fails if a folder costs more
than a third above its record. CPU seconds of two machines, or of two hours of one, differ; so what is recorded are
units: the CPU seconds of a small loop, which each run measures among its tests.
"""

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal

import pytest
from xdist.scheduler import LoadFileScheduling

from benchmarks.cpu import cpu_seconds

Part = Literal["core", "rest"]
Record = Mapping[str, Mapping[Part, float]]
"""Units by file and part."""

RECORD = Path(__file__).with_name("costs.json")
CORE_BUDGET = 150_000
"""What all core tests should cost in units: 12 CPU minutes where a unit takes 4.8 ms."""
CORE_TOLERANCE = 1.2
"""A run may exceed the budget by this factor, because a unit depends on what else the machine does: on one whose speed
varied, two runs of nearly the same tests cost 99,000 and 146,000 units.
"""
LENIENCE, STARTS = 4 / 3, 10_000
"""A folder may cost its record times the first, plus the second in units: the first test that needs Spark or the
servers pays for their start, and it may be in any folder.
"""
PARTS: dict[str, tuple[Part, ...]] = {
    "core": ("core",),
    "not deep and not core": ("rest",),
    "not deep": ("core", "rest"),
}
"""The parts that a run of these marks consists of."""
_PROPERTY = "cost of the tests"
_EXPENSIVE_FILES = 5
_SERVERS, _NEEDS_SERVERS = "the servers", "stack: Stack"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--record-costs`."""
    parser.addoption("--record-costs", action="store_true", help="write the costs of this whole run to costs.json")


def pytest_configure(config: pytest.Config) -> None:
    """Each process measures itself; the reporting one adds up."""
    config.pluginmanager.register(Costs(json.loads(RECORD.read_text())), NAME)


NAME = "costs of the tests"
"""The name of `Costs` among pytest's plugins."""


class Costs:
    """The measured costs.

    Attributes:
        cpu_seconds: by file and part.
        units: what the loop took, each time.
        problems: why the run failed because of its costs, once it has ended.
    """

    def __init__(self, recorded: Record) -> None:
        self.recorded = recorded
        self.problems: list[str] = []
        self.cpu_seconds: Counter[tuple[str, Part]] = Counter()
        self.units: list[float] = []
        self._measured: tuple[str, Part] | None = None
        self._is_last = False
        self._before = 0.0

    @pytest.hookimpl(trylast=True)  # after the tests of other marks are deselected
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Most expensive files first, because the last ones should be short. New files come before all others."""
        together: defaultdict[str, float] = defaultdict(float)
        for file, part in set(map(part_of, items)):
            together[runs_with(file, config.rootpath)] += self.recorded.get(file, {}).get(part, float("inf"))
        items.sort(key=lambda item: -together[runs_with(file_of(item.nodeid), config.rootpath)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadFileScheduling | None:
        """Run the files that need the servers in one process."""
        return _ByFile(config, log) if config.option.dist == "loadfile" else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Record where the tests of a file and part begin and end: measuring each test costs more than many tests."""
        if self._measured is None:
            self._measured, self._before = part_of(item), cpu_seconds()
        self._is_last = nextitem is None or part_of(nextitem) != self._measured
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
        """Add the cost of the tests of a file and part to their last report."""
        report: pytest.TestReport = yield
        if self._is_last and call.when == "teardown":
            assert self._measured is not None
            cost = max(
                cpu_seconds() - self._before, 0.0
            )  # the cost of processes that outlive their parent is not known
            report.user_properties.append((_PROPERTY, [*self._measured, cost, unit_seconds()]))
            self._measured = None
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the costs in the process where the reports arrive."""
        if found := dict(report.user_properties).get(_PROPERTY):
            file, part, cost, unit = found
            self.cpu_seconds[file, part] += cost
            self.units.append(unit)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Record the costs of a whole part if requested; otherwise fail if it is too expensive."""
        config = session.config
        parts = whole_parts(config)
        if hasattr(config, "workerinput") or not self.units or not parts:
            return
        if config.option.record_costs:
            files = updated(self.recorded, self.costs, parts).items()
            lines = (f" {json.dumps(file)}: {json.dumps(costs)}" for file, costs in files)
            RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            return
        self.problems = too_expensive(self.costs, self.recorded, parts)
        if self.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """CPU minutes, the most expensive files, and what cost too much."""
        if not self.units:
            return
        terminalreporter.section("CPU")
        whole = sum(self.cpu_seconds.values())
        terminalreporter.write_line(f"{whole / 60:.1f} minutes; a unit took {median(self.units) * 1000:.1f} ms")
        if "core" in whole_parts(terminalreporter.config):
            core = sum(seconds for (_, part), seconds in self.cpu_seconds.items() if part == "core")
            units = core / median(self.units)
            terminalreporter.write_line(
                f"core: {core / 60:.1f} minutes, which are {units:,.0f} of {CORE_BUDGET:,} units"
            )
        for file, seconds in self.by_file.most_common(_EXPENSIVE_FILES):
            terminalreporter.write_line(f"{seconds:7.1f} s  {file}")
        for problem in self.problems:
            terminalreporter.write_line(problem, red=True)

    @property
    def by_file(self) -> Counter[str]:
        """CPU seconds by file."""
        found: Counter[str] = Counter()
        for (file, _), seconds in self.cpu_seconds.items():
            found[file] += seconds
        return found

    @property
    def costs(self) -> Record:
        """The same in units, by file and part."""
        found: defaultdict[str, dict[Part, float]] = defaultdict(dict)
        for (file, part), seconds in sorted(self.cpu_seconds.items()):
            found[file][part] = seconds / median(self.units)
        return found


class _ByFile(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return runs_with(file_of(nodeid), self.config.rootpath)


@cache
def runs_with(file: str, root: Path) -> str:
    """The group of tests for one process: a file, or all files that need the servers."""
    return _SERVERS if _NEEDS_SERVERS in (root / file).read_text(encoding="utf-8") else file


def too_expensive(costs: Record, recorded: Record, parts: Collection[Part]) -> list[str]:
    """Core if it exceeds its budget, and if the rest runs too, the folders that are too expensive."""
    found = []
    if (core := sum(by_folder(costs, ["core"]).values())) > CORE_TOLERANCE * CORE_BUDGET:
        found.append(
            f"the core tests cost {core:,.0f} units, and their budget is {CORE_BUDGET:,}: make them cheaper, or leave "
            "out the `core` mark of some (CONTRIBUTING.md)"
        )
    if "rest" in parts:
        now, before = by_folder(costs, parts), by_folder(recorded, parts)
        found += [
            f"{folder} costs {now[folder]:,.0f} units, and the record allows a third above {before[folder]:,.0f}: make "
            "its tests cheaper (CONTRIBUTING.md), or run with --record-costs and give the reason in the commit"
            for folder in before
            if now.get(folder, 0.0) > LENIENCE * before[folder] + STARTS
        ]
    return found


def by_folder(costs: Record, parts: Collection[Part]) -> dict[str, float]:
    """Costs of these parts by folder."""
    found: Counter[str] = Counter()
    for file, units in costs.items():
        found[file.rpartition("/")[0]] += sum(units.get(part, 0.0) for part in parts)
    return dict(found)


def updated(recorded: Record, costs: Record, parts: Collection[Part]) -> Record:
    """The record with the costs of these parts replaced."""
    found: dict[str, dict[Part, float]] = {}
    for file in sorted({*recorded, *costs}):
        others = {part: units for part, units in recorded.get(file, {}).items() if part not in parts}
        if both := others | {part: round(units) for part, units in costs.get(file, {}).items()}:
            found[file] = dict(sorted(both.items()))
    return found


def whole_parts(config: pytest.Config) -> tuple[Part, ...]:
    """The parts of the suite of which all tests run."""
    option = config.option
    is_partial = option.keyword or option.deselect or option.collectonly
    if is_partial or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return ()
    return PARTS.get(option.markexpr, ())


def part_of(item: pytest.Item) -> tuple[str, Part]:
    """A test's file and part."""
    return file_of(item.nodeid), "core" if item.get_closest_marker("core") else "rest"


def file_of(nodeid: str) -> str:
    """A test's file."""
    return nodeid.partition("::")[0]


def unit_seconds() -> float:
    """The CPU seconds of a small loop."""
    before = time.thread_time()
    numbers = {str(number): number * number for number in range(20_000)}
    hashlib.sha256(repr(numbers).encode()).digest()
    return time.thread_time() - before
