"""docs/index.md lists every page, and no page links to a file or heading that does not exist."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
INDEX = DOCS / "index.md"
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
MAX_WIDTH = 140
PAGES = sorted({*DOCS.rglob("*.md"), *CHECKOUT.glob("*.md"), CHECKOUT / "infra" / "README.md"})


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, each with the anchor or an empty text."""
    return [((page.parent / path).resolve() if path else page, anchor) for path, anchor in LINK.findall(prose(page))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub builds them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(prose(page))}


def test_index_lists_every_page_once() -> None:
    listed = [path for path, _ in links(INDEX) if path.suffix == ".md"]

    assert sorted(listed) == sorted({*DOCS.rglob("*.md")} - {INDEX})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_resolve(page: Path) -> None:
    broken = [
        f"{path.name}#{anchor}" if anchor else str(path.relative_to(CHECKOUT))
        for path, anchor in links(page)
        if not path.exists() or (anchor and anchor not in anchors(path))
    ]

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_lines_fit_the_screen(page: Path) -> None:
    """Rows of tables cannot be wrapped."""
    lines = prose(page).splitlines()

    assert [line for line in lines if len(line) > MAX_WIDTH and not line.startswith("|")] == []
