"""The page of `cdc-lake report` in a headless Chromium: wide and narrow, light and dark, by keyboard."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from support import CHECKOUT
from support.page_lake import write_reports, write_tables

from cdc_lake.config import Config, GoldConfig, LakeConfig
from cdc_lake.operations.page.facts import read_facts
from cdc_lake.operations.page.render import render
from cdc_lake.operations.story import Story, StoryEvent

BROWSER = CHECKOUT / ".cdc_lake" / "browser"
AXE = BROWSER / "node_modules" / "axe-core" / "axe.min.js"
TOPICS = [f"shop.public.table_{number:02}" for number in range(12)]
MODEL = f"""-- name: prices
-- keys: [id]
-- sources:
--   items: {TOPICS[0]}
SELECT id, price FROM items
"""
FOCUSABLE = "a[href], button, input, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = BROWSER / "chromium"
    assert chromium.is_file(), "run `make setup-browser`"
    libraries = f"{BROWSER / 'al2023' / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu"],
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section, failures, and a name that is too long for a narrow screen."""
    root = tmp_path_factory.mktemp("page")
    for number, topic in enumerate(TOPICS):
        write_tables(root / "lake", topic, quarantined=["cut off"] * (number % 3), behind=5 * number % 12)
    write_reports(root / "lake", TOPICS, 120, error=f"</script><b>{'unbroken' * 30}")
    (root / "gold").mkdir()
    (root / "gold" / "prices.sql").write_text(MODEL)
    happened = StoryEvent(place="0@1", op="u", source_ts_ms=1, verdict="rejected", why="stale" * 60)
    happened.changes = {"name": ("a" * 200, None)}
    (root / "story.json").write_text(
        Story(table=TOPICS[0], key='{"id": 1}', events=[happened], left_out=0).model_dump_json()
    )
    config = Config(lake=LakeConfig(root=str(root / "lake")), gold=GoldConfig(models=str(root / "gold")))
    page = root / "page.html"
    page.write_text(render(read_facts(config, runs=1000, stories=[root / "story.json"])), encoding="utf-8")
    return page


class Opened:
    """The page in a window of its own, with what it requested and what it logged."""

    def __init__(self, browser: Browser, file: Path, *, width: int = 1400, scheme: Any = "light") -> None:
        self.requests: list[str] = []
        self.messages: list[str] = []
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.goto(file.as_uri())


@pytest.fixture
def opened(browser: Browser, file: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    width, scheme = getattr(request, "param", (1400, "light"))
    opened = Opened(browser, file, width=width, scheme=scheme)
    yield opened
    opened.page.close()


SCREENS = pytest.mark.parametrize(
    "opened",
    [(1400, "light"), (1400, "dark"), (400, "light"), (400, "dark")],
    indirect=True,
    ids=["wide light", "wide dark", "narrow light", "narrow dark"],
)


@SCREENS
def test_page_fits_the_screen_and_loads_nothing(opened: Opened, file: Path) -> None:
    for details in opened.page.locator("details").all():
        details.evaluate("element => { element.open = true }")
    width: int = opened.page.evaluate("innerWidth")
    shown = {svg.get_attribute("class") for svg in opened.page.locator("svg").all() if svg.is_visible()}
    texts = opened.page.locator("svg text").evaluate_all(
        "all => all.map(text => text.getBoundingClientRect()).map(box => [box.left, box.right])"
    )

    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert shown == {"wide" if width == 1400 else "narrow"}
    assert [edges for edges in texts if edges[0] < 0 or edges[1] > width] == []
    assert opened.requests == [file.as_uri()]
    assert opened.messages == []


@SCREENS
def test_axe_finds_no_barrier(opened: Opened) -> None:
    for details in opened.page.locator("details").all():
        details.evaluate("element => { element.open = true }")
    opened.page.evaluate(AXE.read_text(encoding="utf-8"))

    found = opened.page.evaluate("axe.run()")

    assert len(found["passes"]) > 20
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in found["violations"]] == []


@SCREENS
def test_style_follows_the_color_scheme(opened: Opened, request: pytest.FixtureRequest) -> None:
    color = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    is_dark = opened.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    lines = opened.page.locator("figure.lag svg path[stroke='var(--accent)']").all()

    assert color == ("rgb(20, 23, 26)" if is_dark else "rgb(255, 255, 255)")
    assert {line.evaluate("line => getComputedStyle(line).stroke") for line in lines} == {
        "rgb(122, 176, 240)" if is_dark else "rgb(31, 98, 184)"
    }


@pytest.mark.parametrize("opened", [(1400, "light"), (400, "dark")], indirect=True, ids=["wide", "narrow"])
def test_every_control_is_reached_by_tab(opened: Opened) -> None:
    controls: int = opened.page.evaluate(
        f"""() => {{
            const visible = [...document.querySelectorAll("{FOCUSABLE}")].filter(one => one.checkVisibility());
            visible.forEach((one, number) => {{ one.dataset.number = number }});
            return visible.length;
        }}"""
    )
    reached = []
    for _ in range(controls):
        opened.page.keyboard.press("Tab")
        reached.append(
            opened.page.evaluate(
                "[Number(document.activeElement.dataset.number), getComputedStyle(document.activeElement).outlineStyle]"
            )
        )

    assert controls > 60
    assert reached == [[number, "solid"] for number in range(controls)]


def column(page: Page, number: int) -> list[float]:
    cells = page.locator(f"#topics tbody tr td:nth-child({number})")
    values: list[float] = cells.evaluate_all("cells => cells.map(cell => Number(cell.dataset.value))")
    return values


def test_heading_sorts_its_column_up_and_down(opened: Opened) -> None:
    heading = opened.page.locator("#topics").get_by_role("columnheader", name="Behind, records")
    before = column(opened.page, 6)

    heading.get_by_role("button").press("Enter")
    assert (column(opened.page, 6), heading.get_attribute("aria-sort")) == (sorted(before), "ascending")
    heading.get_by_role("button").press("Enter")
    assert (column(opened.page, 6), heading.get_attribute("aria-sort")) == (sorted(before)[::-1], "descending")
    assert before not in (sorted(before), sorted(before)[::-1])


def test_filter_shows_matching_rows_and_counts_them(opened: Opened) -> None:
    rows = opened.page.locator("#topics tbody tr")
    field = opened.page.get_by_label("Filter tables")

    field.press_sequentially("TABLE_03")

    assert [row.locator("th").inner_text() for row in shown(rows)] == [TOPICS[3]]
    assert opened.page.get_by_text("1 of 12").is_visible()
    field.fill("")
    assert len(shown(rows)) == len(TOPICS)


def shown(rows: Locator) -> list[Locator]:
    return [row for row in rows.all() if row.is_visible()]


def test_link_of_a_table_opens_its_lineage(opened: Opened) -> None:
    lineage = opened.page.locator("details", has=opened.page.get_by_text(TOPICS[0], exact=True))
    assert not lineage.get_by_role("table").is_visible()

    opened.page.locator("#topics").get_by_role("link", name=TOPICS[0]).press("Enter")

    expect(lineage.get_by_role("row", name="price raw_value price double prices")).to_be_visible()


def test_headings_form_an_outline(opened: Opened) -> None:
    headings = opened.page.locator("h1, h2, h3").evaluate_all("all => all.map(one => [one.tagName, one.textContent])")
    levels = [int(tag[1]) for tag, _ in headings]

    assert [text for tag, text in headings if tag == "H2"] == [
        *("Tables", "Freshness and lag", "From source commit to silver", "Rows through the layers"),
        *("Quarantine by reason", "Run history", "Lineage", "Biography of a key"),
    ]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
