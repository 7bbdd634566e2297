"""The results of several test runs in one summary, as `.ci/run` prints it.

With `--results FILE`, this plugin of pytest appends a run's results to a file. `python -m tests.support.results FILE`
prints them.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from . import costs

_COUNTED = {"passed": "passed", "failed": "failed", "errors": "error", "skipped": "skipped"}
"""The columns of the summary, and what pytest calls these results."""
_EXPENSIVE_FILES = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--results`."""
    parser.addoption("--results", type=Path, metavar="FILE", help="append the results of this run to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """The process where the reports arrive writes the results."""
    if config.option.results and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Results(config.option.results))


class _Results:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._started = time.monotonic()

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        measured: costs.Costs = config.pluginmanager.get_plugin(costs.NAME)
        reports = terminalreporter.stats
        result = {
            "run": " and ".join(costs.whole_parts(config)) or "other",
            **{column: len(reports.get(name, ())) for column, name in _COUNTED.items()},
            "minutes": (time.monotonic() - self._started) / 60,
            "CPU minutes": sum(measured.cpu_seconds.values()) / 60,
            "files": measured.by_file,
            "problems": [
                *(f"{name.upper()} {one.nodeid}" for name in ("failed", "error") for one in reports.get(name, ())),
                *measured.problems,
            ],
        }
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")


def summary(results: list[dict[str, Any]]) -> str:
    """A line per run, their sum, the most expensive files in CPU seconds, and everything that failed."""
    columns = (*_COUNTED, "minutes", "CPU minutes")
    total = {"run": "together", **{column: sum(result[column] for result in results) for column in columns}}
    files: Counter[str] = Counter()
    for result in results:
        files.update(result["files"])
    return "\n".join(
        [
            " " * 8 + "".join(f"{column:>13}" for column in columns),
            *(
                f"{result['run']:8}" + "".join(f"{round(result[column], 1):>13,}" for column in columns)
                for result in (*results, total)
            ),
            *(f"{seconds:8.1f} s  {file}" for file, seconds in files.most_common(_EXPENSIVE_FILES)),
            *(problem for result in results for problem in result["problems"]),
        ]
    )


if __name__ == "__main__":
    print(summary(list(map(json.loads, Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()))))
