"""Output for terminals and logs. Texts of records and schemas cannot send control sequences or forge log entries."""

import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cdc_lake.runs.report import Report

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and newline, bidirectional marks, Unicode line separators, and lone surrogates."""
_INDENT = "    "
_MAX_NAMED = 3
_STATES, _NAMED_STATES = ("failed", "ok", "waiting", "unchanged"), ("failed", "ok")
"""The status of tables in the line of a round, in this order, and those whose tables are named."""


def printable(text: str) -> str:
    """The text with `\\uXXXX` escapes for characters that control a terminal."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def as_log_entry(text: str) -> str:
    """`printable`, with all lines after the first indented, so that none of them looks like a log entry."""
    return printable(text).replace("\n", f"\n{_INDENT}")


def say(*messages: str, error: bool = False) -> None:
    """Print messages, indented like log entries.

    Args:
        error: print to stderr.
    """
    for message in messages:
        answer(as_log_entry(message), error=error)


def answer(text: str, *, error: bool = False) -> None:
    """Print text line by line, without indentation, such as JSON or a command to copy."""
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


def show_result(result: Any, show: Callable[[], None], *, as_json: bool) -> None:
    """Print what a command found: as one line of JSON, or for people, as `show` prints it."""
    if not as_json:
        show()
    elif isinstance(result, BaseModel):
        answer(result.model_dump_json())
    else:
        answer(json.dumps(result, default=lambda model: model.model_dump(mode="json")))


def print_rows(
    console: Console,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    narrow: str | None = None,
) -> None:
    """Print rows under headings; see `rows_table`."""
    console.print(rows_table(headings, rows, title=title, narrow=narrow))


def rows_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, narrow: str | None = None
) -> Table:
    """A table. What is too wide for the console continues on the next line.

    Args:
        headings: a heading starts with `>` if its column is aligned to the right.
        rows: the cells of each row; an empty row prints a blank line.
        narrow: the only column that may become narrower to fit the console (default: all).
    """
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left"
    )
    for heading in headings:
        fixed, name = narrow not in (None, heading), heading.removeprefix(">")
        table.add_column(name, justify="left" if name == heading else "right", overflow="fold", no_wrap=fixed)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in row))
    return table


class LogFormatter(logging.Formatter):
    """Formats a record and its traceback as one log entry."""

    def format(self, record: logging.LogRecord) -> str:
        return as_log_entry(super().format(record))


class Output(Console):
    """A console that prints text literally: no markup, emoji, highlighting or control sequences."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """See `rich.console.Console`; all lines of a text after the first are indented."""
        super().print(*(_escape_text(one, as_log_entry) for one in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `rich.console.Console`; all text passes through here, also that of table cells."""
        return super().render(_escape_text(renderable, printable), options)


def _escape_text(renderable: Any, rewrite: Callable[[str], str]) -> Any:
    """Apply `rewrite` to a text; return anything else unchanged."""
    if isinstance(renderable, str):
        return Text(rewrite(renderable))
    if isinstance(renderable, Text) and rewrite(renderable.plain) != renderable.plain:
        renderable = renderable.copy()
        renderable.plain = rewrite(renderable.plain)
    return renderable


class Display:
    """Shows the progress of the latest run on a terminal, updated in place. Without a terminal, the log shows it."""

    def __init__(self) -> None:
        self._reports: Sequence[Report] = ()
        self._started = time.monotonic()

    def watch(self, *reports: Report) -> None:
        """Show the layers that run now."""
        self._reports = reports

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the run inside the block, if stderr is a terminal."""
        self._started, console = time.monotonic(), Output(stderr=True)
        if not console.is_terminal:
            yield
            return
        with Live(get_renderable=self._line, console=console, transient=True, refresh_per_second=4):
            yield

    def _line(self) -> Text:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        lines = [progress_line(report) for report in self._reports] or ["starting Spark"]
        return Text("\n".join(f"{minutes}:{seconds:02} {line}" for line in lines), overflow="ellipsis", no_wrap=True)


def progress_line(report: Report) -> str:
    """A run that is active: how many of its tables are table_report, the rows so far, and the tables in progress."""
    number = Counter(table_report.status for table_report in report.tables)
    ended = len(report.tables) - number["working"] - number["waiting"]
    parts = [f"{report.layer}: {ended} of {len(report.tables)} tables, {report.rows_read:,} rows"]
    if number["failed"]:
        parts.append(f"{number['failed']} failed")
    if working := [table_report.table for table_report in report.tables if table_report.status == "working"]:
        parts.append(f"working on {named(working)}")
    return "; ".join(parts)


def print_round(report: Report, console: Console) -> None:
    """Print a round of a continuous run on one line: when it ended, its tables by status, its rows, and its time."""
    tables = {
        state: [table_report.table for table_report in report.tables if table_report.status == state]
        for state in _STATES
    }
    states = [
        f"{len(names)} {state}" + (f" ({named(names)})" if state in _NAMED_STATES else "")
        for state, names in tables.items()
        if names
    ]
    rows = sum((Counter(table_report.rows) for table_report in report.tables), Counter[str]())
    seconds = f"{sum(report.seconds.values()):.1f} s"
    parts = filter(None, (", ".join(states) or "failed", _counted(rows), seconds))
    ended_at = f"{report.ended_at:%Y-%m-%d %H:%M:%S}Z " if report.ended_at else ""
    console.print(f"{ended_at}{report.layer}: {'; '.join(parts)}", soft_wrap=True)


def _counted(rows: Counter[str]) -> str:
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in rows.items())


def named(names: Sequence[str]) -> str:
    """Names separated by commas; of many, the first ones."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"
