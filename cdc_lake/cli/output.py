"""What leaves for a terminal or a log. Records and schemas can neither command the one
nor forge entries of the other.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls except tab and newline, marks of direction, separators that end a line for others, half characters."""
_INDENT = "    "


def printable(text: str) -> str:
    """The text with escapes, as JSON and Python write them, in place of characters that command a terminal."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def as_log_entry(text: str) -> str:
    """The same as one entry of a log: lines behind the first are indented, so that none of them passes for an entry."""
    return printable(text).replace("\n", f"\n{_INDENT}")


def say(text: str, *, error: bool = False) -> None:
    """Print a message, on stderr if it is no part of what the command was asked for."""
    answer(as_log_entry(text), error=error)


def answer(text: str, *, error: bool = False) -> None:
    """Print text that has lines of its own, such as JSON, which stays the same JSON, or a command to copy."""
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


class LogFormatter(logging.Formatter):
    """One entry of the log, its traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return as_log_entry(super().format(record))


class Output(Console):
    """A console that takes text as it is: no markup, no emoji, no highlighting, no commands to the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """See `rich.console.Console`; the lines of a text behind its first are indented."""
        super().print(*(_escape_text(one, as_log_entry) for one in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See `rich.console.Console`; all text comes through here, that of a table's cells included."""
        return super().render(_escape_text(renderable, printable), options)


def _escape_text(renderable: Any, rewrite: Callable[[str], str]) -> Any:
    """A text after `rewrite`; anything else as it is."""
    if isinstance(renderable, str):
        return Text(rewrite(renderable))
    if isinstance(renderable, Text) and rewrite(renderable.plain) != renderable.plain:
        renderable = renderable.copy()
        renderable.plain = rewrite(renderable.plain)
    return renderable
