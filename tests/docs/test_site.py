"""`make docs`: the site builds without warnings, and its pages load nothing from other hosts."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "link": "href"}


class Loaded(HTMLParser):
    """The URLs that a page loads when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        url = dict(attrs).get(LOADING.get(tag, ""))
        if url and dict(attrs).get("rel") not in ("canonical", "prev", "next"):
            self.urls.append(url)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    unreachable = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https")}
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env=os.environ | unreachable | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def test_every_page_is_built(site: Path) -> None:
    pages = {page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md")}

    assert pages <= {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")}


def test_pages_load_only_local_files(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = Loaded()
        loaded.feed(text)
        assert [url for url in loaded.urls if re.match(r"(?:https?:)?//", url)] == [], page.name
        assert all(
            (page.parent / url.partition("?")[0]).exists() for url in loaded.urls if not url.startswith(("data:", "/"))
        )
        assert 'class="mermaid"' not in text, f"{page.name}: Mermaid is fetched from a CDN; draw an SVG"
    for style in site.rglob("*.css"):
        assert re.findall(r"url\(['\"]?https?:", style.read_text(encoding="utf-8")) == [], style.name


def test_search_finds_words_without_a_server(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")

    assert "unpaired tombstone" in index.lower()
    assert all("assets/iframe-worker.js" in page.read_text(encoding="utf-8") for page in site.rglob("index.html"))


def test_long_names_in_tables_break_after_separators(site: Path) -> None:
    types = (site / "reference" / "types.html").read_text(encoding="utf-8")
    architecture = (site / "explanation" / "architecture.html").read_text(encoding="utf-8")

    assert "<code>io.<wbr>debezium.<wbr>data.<wbr>VariableScaleDecimal</code>" in types
    assert "<code>bronze/<wbr>schema_<wbr>resolution.py</code>" in architecture
    assert "<code>fold/rules.py</code>" in architecture
    assert re.findall(r'(?:href|id)="[^"]*<wbr>', types + architecture) == []


def test_links_lead_to_headings_that_the_site_has(site: Path) -> None:
    """MkDocs and GitHub may build different anchors from the same heading."""
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    anchors = {page: set(re.findall(r'\bid="?([^"\s>]+)', text)) for page, text in pages.items()}
    broken = [
        f"{page.relative_to(site)}: {link}"
        for page, text in pages.items()
        for link in re.findall(r'<a\b[^>]*?href="?([^"\s>]*#[^"\s>]+)', text)
        if not re.match("[a-z]+:", link)
        for file, _, anchor in (link.partition("#"),)
        if anchor not in anchors[(page.parent / file).resolve() if file else page]
    ]

    assert broken == []
