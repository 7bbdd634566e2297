"""Output for terminals and logs. Texts of records and schemas cannot send control sequences or forge log entries."""

import logging
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and newline, bidirectional marks, Unicode line separators, and lone surrogates."""
_INDENT = "    "


def printable(text: str) -> str:
    """The text with `\\uXXXX` escapes for characters that control a terminal."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def as_log_entry(text: str) -> str:
    """`printable`, with all lines after the first indented, so that none of them looks like a log entry."""
    return printable(text).replace("\n", f"\n{_INDENT}")


def say(text: str, *, error: bool = False) -> None:
    """Print a message, indented like a log entry.

    Args:
        text: the message.
        error: print to stderr.
    """
    answer(as_log_entry(text), error=error)


def answer(text: str, *, error: bool = False) -> None:
    """Print text line by line, without indentation, such as JSON or a command to copy."""
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


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
