"""Helpers for Markdown in the generated parts of docs/reference/."""

import re
from collections.abc import Iterable, Sequence
from textwrap import fill

WIDTH = 120


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a `|` in a cell is escaped."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def code(words: object) -> str:
    """Words as code."""
    return f"`{words}`"


def text(words: str) -> str:
    """A text from the code: outside code spans `<` is escaped, and names of pages become links."""
    parts = re.split(r"(`[^`]*`)", words)
    parts[::2] = [
        re.sub(r"docs/((?:[a-z-]+/)?([a-z-]+)\.md)", r"[\2](../\1)", part.replace("<", "&lt;")) for part in parts[::2]
    ]
    return "".join(parts)


def prose(doc: str) -> str:
    """A docstring's paragraphs as lines of at most `WIDTH`."""
    parts = (text(" ".join(part.split())) for part in doc.strip().split("\n\n"))
    return "\n\n".join(fill(part, WIDTH, break_on_hyphens=False) for part in parts)
