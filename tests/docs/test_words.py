"""Pages use the field's words: those that the glossary or plain English replaced do not come back."""

import re
from pathlib import Path

import pytest
from pages import DOCS, PART

CHECKOUT = DOCS.parent
REPLACED = (
    *("anew", "mend", "mended", "mends", "whatever", "beside", "neighbour", "neighbours", "held in", "is told"),
    *("says so", "set aside", "let go of", "stands in", "come to", "what it costs", "made anew", "lone tombstone"),
    *("folded again", "in our words", "is no folder", "nobody"),
)
WORDS = re.compile(rf"\b(?:{'|'.join(REPLACED)})\b", re.IGNORECASE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
PAGES = sorted([*DOCS.rglob("*.md"), CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_page_uses_the_words_of_the_glossary(page: Path) -> None:
    """Generated parts have the words of help texts and descriptions, which are not the page's."""
    written = CODE.sub("", PART.sub("", page.read_text(encoding="utf-8")))

    assert WORDS.findall(written) == []


def test_glossary_is_complete_and_sorted() -> None:
    text = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", text, re.MULTILINE)

    assert len(rows) >= 40
    assert [term for term, _ in rows] == sorted((term for term, _ in rows), key=str.lower)
    assert [term for term, meaning in rows if not re.fullmatch(r"[A-Z`<].*\.", meaning)] == []
