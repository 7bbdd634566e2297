"""Progress of a run on a terminal, updated in place. Without a terminal, the log shows it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.live import Live
from rich.text import Text

from cdc_lake.cli.output import Output
from cdc_lake.runs.report import Report

_MAX_NAMED = 3


class Display:
    """Shows the state of the latest run, from its report."""

    def __init__(self) -> None:
        self._report: Report | None = None

    def watch(self, report: Report) -> None:
        """Show this run."""
        self._report = report

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the run inside the block, if stderr is a terminal."""
        console = Output(stderr=True)
        if not console.is_terminal:
            yield
            return
        with Live(get_renderable=self._line, console=console, transient=True, refresh_per_second=4):
            yield

    def _line(self) -> Text:
        if self._report is None:
            return Text("starting Spark")
        return Text(line(self._report), overflow="ellipsis", no_wrap=True)


def line(report: Report) -> str:
    """One line: the number of tables in each state, and the tables in progress."""
    number = Counter(done.status for done in report.tables)
    states = ", ".join(
        f"{number[state]} {state}" for state in ("ok", "unchanged", "failed", "waiting") if number[state]
    )
    working = [done.table for done in report.tables if done.status == "working"]
    more = f" and {len(working) - _MAX_NAMED} more" if len(working) > _MAX_NAMED else ""
    now = f"; working on {', '.join(working[:_MAX_NAMED])}{more}" if working else ""
    return f"{report.layer}: {states or 'no table is done yet'}{now}"
