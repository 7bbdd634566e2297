"""Hooks of `make docs`."""

import re

_CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
_LONG_WORD = re.compile(r"(?<![^\s>])[^\s<>]{20,}(?=[\s<])")
_SEPARATOR = re.compile(r"(?<=\w)[/._=,:]+(?=\w{3})")


def on_post_page(output: str, **_: object) -> str:
    """Let long names in tables break after their separators. Otherwise they widen the table, or break anywhere."""

    def breakable(word: re.Match[str]) -> str:
        return _SEPARATOR.sub(r"\g<0><wbr>", word[0])

    return _CELL.sub(lambda cell: re.sub(r">[^<]+<", lambda text: _LONG_WORD.sub(breakable, text[0]), cell[0]), output)
