"""Show the progress of a run on a terminal, updated in place. Without a terminal, the log shows it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.live import Live
from rich.text import Text

from cdc_lake.cli.output import Output
from cdc_lake.runs.report import Report

_MAX_NAMED = 3


class Display:
    """Shows the state of the latest run, from the reports of its layers."""

    def __init__(self) -> None:
        self._reports: Sequence[Report] = ()

    def watch(self, *reports: Report) -> None:
        """Show the layers that run now."""
        self._reports = reports

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
        if not self._reports:
            return Text("starting Spark")
        return Text("\n".join(map(line, self._reports)), overflow="ellipsis", no_wrap=True)


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
