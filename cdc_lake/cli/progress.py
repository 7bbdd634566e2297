"""What a run is doing, while it does it: on a terminal, in place; elsewhere the log says it line by line."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.live import Live
from rich.text import Text

from cdc_lake.cli.output import Output
from cdc_lake.runs.report import Report

_MAX_NAMED = 3


class Display:
    """The newest run's state, from its report."""

    def __init__(self) -> None:
        self._report: Report | None = None

    def watch(self, report: Report) -> None:
        """Show this run from now on."""
        self._report = report

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show it meanwhile, if there is a terminal to show it on."""
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
    """One line: how many tables there are in each state, and which are being worked on."""
    number = Counter(done.status for done in report.tables)
    states = ", ".join(
        f"{number[state]} {state}" for state in ("ok", "unchanged", "failed", "waiting") if number[state]
    )
    working = [done.table for done in report.tables if done.status == "working"]
    more = f" and {len(working) - _MAX_NAMED} more" if len(working) > _MAX_NAMED else ""
    now = f"; working on {', '.join(working[:_MAX_NAMED])}{more}" if working else ""
    return f"{report.layer}: {states or 'no table is through yet'}{now}"
